"""Length-prefixed frames, incremental: bytes in any pieces go in, whole frames come out.

    frame := uint32 N, big-endian | N bytes

One scan per piece finds all frames. A declared length is checked when its four bytes are there, and allocates nothing.
Room for the whole of a frame of up to `DIRECT_SIZE_MAX` is allocated when `DIRECT_HELD` of it has arrived,
so that the rest is received in its place. Source: wire-protocol 1.2.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookies.errors import RemoteProtocolError
from bookies.kernels import Frame, scan_frames
from bookies.wire.messages import Buffer

PREFIX_SIZE = 4
DIRECT_HELD = 16 << 10  # bytes of a frame that have to arrive before room is made for the rest
DIRECT_SIZE_MAX = 8 << 20  # bytes of a frame
ROOM_SHARE = 8  # share of a frame's room that counts as held before it is filled


class FrameReader:
    """Reader that cuts one direction of one connection into frames.

    `frame_size_max`: bytes of the largest frame, the four of the length word included. `error`: set when the bytes
    after the frames that `feed` returned last are not a frame; the stream is broken there. `direct`: an incomplete
    frame that is filled in its place: then the next bytes belong into `direct.rest()`, and `received` follows.
    """

    def __init__(self, frame_size_max: int) -> None:
        self.error: RemoteProtocolError | None = None
        self._frame_size_max = frame_size_max
        self._pieces: list[bytes] = []  # of one incomplete frame; joined when it is complete
        self._held = 0  # bytes in them
        self._need = PREFIX_SIZE
        self.direct: Frame | None = None  # no pieces then

    @property
    def is_between(self) -> bool:
        """Report whether the next bytes begin a frame."""
        return not self._held and self.direct is None and self.error is None

    def received(self, count: int) -> tuple[bytes, Sequence[int]]:
        """Handle `count` bytes that were written into the rest of `direct`, like `feed`."""
        direct = self.direct
        assert direct is not None
        direct.advance(count)
        if direct.missing:
            return b"", (0,)
        self.direct = None
        whole = direct.take()
        return whole, (0, len(whole))

    def feed(self, data: Buffer) -> tuple[bytes, Sequence[int]]:
        """Accept the next bytes; return (buffer, offsets in it of the complete frames' length words and of their end).

        Without a complete frame there is one offset. An incomplete frame at the end is kept for the next call. Raises
        RemoteProtocolError when no frame precedes a declared length that is 0 or too large.
        """
        if self.error is not None:
            raise self.error
        buffer = bytes(data)  # no copy when it is bytes already
        if self.direct is not None:
            rest = self.direct.rest()
            count = min(len(rest), len(buffer))
            rest[:count] = buffer[:count]
            whole, starts = self.received(count)
            if count == len(buffer):
                return whole, starts
            buffer = whole + buffer[count:]
        elif self._pieces:
            self._pieces.append(buffer)
            self._held += len(buffer)
            if self._held < self._need:
                return b"", (0,)
            buffer = b"".join(self._pieces)
        try:
            starts, need = scan_frames(buffer, 0, self._frame_size_max)
        except ValueError as error:
            self.error = RemoteProtocolError(
                f"{error}: at least 1 and with its prefix at most {self._frame_size_max:,}"
            )
            raise self.error from None
        if starts[-1] != len(buffer) or self._pieces:
            self._hold(buffer, starts[-1], need)
        return buffer, starts

    def _hold(self, buffer: bytes, end: int, need: int) -> None:
        """Keep the bytes after the frames. `need`: bytes of the frame that begins there, 0: unknown, -1: it is not a
        frame."""
        held = len(buffer) - end
        self._pieces, self._held = [], held
        self._need = need if need > 0 else PREFIX_SIZE
        if need < 0:
            self.error = RemoteProtocolError(f"frame with a length of 0 or above {self._frame_size_max:,} bytes")
        if held >= DIRECT_HELD and held < need <= DIRECT_SIZE_MAX:
            self._held = 0
            self.direct = Frame(need)
            self.direct.rest()[:held] = memoryview(buffer)[end:]
            self.direct.advance(held)
        elif held:
            self._pieces = [buffer[end:]]

    @property
    def held_size(self) -> int:
        """Return the bytes held of the incomplete frame; at least an eighth of the room that was made for it."""
        direct = self.direct
        return self._held if direct is None else max(direct.filled, (direct.filled + direct.missing) // ROOM_SHARE)

    def forget_rest(self) -> None:
        """Drop the bytes after the complete frames: they are in the buffer, and not framed (START_TLS)."""
        self._pieces, self._held, self._need, self.direct, self.error = [], 0, PREFIX_SIZE, None, None
