"""Length-prefixed frames, incremental: bytes in any pieces go in, whole frames come out.

    frame := uint32 N, big-endian | N bytes

One scan per piece finds all frames. A declared length is checked when its four bytes are there and nothing is ever
allocated by it: memory grows only with what arrived. Source: wire-protocol 1.2.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookies.errors import RemoteProtocolError
from bookies.kernels import scan_frames
from bookies.wire.messages import Buffer

PREFIX_SIZE = 4


class FrameReader:
    """Cut one direction of one connection into frames.

    `frame_size_max`: bytes of the largest frame, the four of the length word included.
    `error`: set when the bytes behind the frames that `feed` returned last are no frame; the stream is broken there.
    """

    def __init__(self, frame_size_max: int) -> None:
        self.error: RemoteProtocolError | None = None
        self._frame_size_max = frame_size_max
        self._pieces: list[bytes] = []  # of one incomplete frame; joined only when all of it is there
        self._held = 0
        self._need = PREFIX_SIZE

    def feed(self, data: Buffer) -> tuple[bytes, Sequence[int]]:
        """Take the next bytes: (buffer, offsets in it of the complete frames' length words and of their end).

        Without a complete frame there is one offset. An incomplete frame at the end is kept for the next call.
        Raises RemoteProtocolError when no frame precedes a declared length that is 0 or too large.
        """
        if self.error is not None:
            raise self.error
        buffer = bytes(data)  # no copy when it is bytes already
        if self._pieces:
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
        end = starts[-1]
        self._held = len(buffer) - end
        self._pieces = [buffer[end:]] if self._held else []
        self._need = need if need > 0 else PREFIX_SIZE
        if need < 0:
            self.error = RemoteProtocolError(f"frame with a length of 0 or above {self._frame_size_max:,} bytes")
        return buffer, starts

    @property
    def held_size(self) -> int:
        """Bytes of the incomplete frame that are here."""
        return self._held

    def forget_rest(self) -> None:
        """Drop the bytes behind the complete frames: they are in the buffer, and not framed (START_TLS)."""
        self._pieces, self._held, self._need, self.error = [], 0, PREFIX_SIZE, None
