"""The client's end of a connection: requests in, bytes out; bytes in, responses out. Source: wire-protocol 1.3, 1.4."""

from __future__ import annotations

from collections.abc import Sequence

from bookies import kernels
from bookies.wire import v2, v3
from bookies.wire.framing import FrameReader
from bookies.wire.messages import AddResponses, Buffer, Request, Response, StartTlsResponse

adds_as_v3 = v3.adds_as_v3


def encode_request(request: Request) -> list[Buffer]:
    """The frames of a request, in the protocol of its `version`; long bodies are the very buffers given.

    Raises LocalProtocolError for what that protocol cannot say. Frames are not checked against a frame limit.
    """
    return v3.pack_request(request) if request.version == v3.VERSION else v2.pack_request(request)


class ResponseDecoder:
    """Decode the responses of one connection; adjacent answers to adds of one ledger with one status are merged.

    `wire`: "v2" or "v3". `expects_start_tls`: the first thing asked was START_TLS, whose answer is v3 always; nothing
    behind it is decoded, those bytes wait in `take_rest`.
    """

    def __init__(self, wire: str, frame_size_max: int, *, expects_start_tls: bool = False) -> None:
        assert wire in ("v2", "v3")
        self._is_v3 = wire == "v3"
        self._frames = FrameReader(frame_size_max)
        self._expects_start_tls = expects_start_tls
        self._rest = b""

    def feed(self, data: Buffer) -> list[Response]:
        """Responses in the order of their arrival. Raises RemoteProtocolError: the caller closes the connection."""
        return self._decoded(*self._frames.feed(data))

    def room(self) -> memoryview | None:
        """Where the next bytes had best be written; then tell `received`. None: anywhere, and `feed` them."""
        return self._frames.room()

    def received(self, count: int) -> list[Response]:
        """So many bytes were written into `room`: as `feed`."""
        return self._decoded(*self._frames.received(count))

    def _decoded(self, buffer: bytes, starts: Sequence[int]) -> list[Response]:
        responses: list[Response] = []
        index, count = 0, len(starts) - 1
        while index < count:
            at, end = starts[index], starts[index + 1]
            if self._is_v3 or self._expects_start_tls:
                index = v3.parse_responses(buffer, starts, index, responses)
                if self._expects_start_tls and isinstance(responses[-1], StartTlsResponse):
                    self._expects_start_tls = False
                    self._frames.forget_rest()
                    self._rest = buffer[starts[index] :]
                    return responses
            elif end - at == v2.ADD_RESPONSE_SIZE and v2.parse_header(buffer, at, end)[1] == v2.OPCODE_ADD:
                version = v2.parse_header(buffer, at, end)[0]
                index, code, ledger_id, entry_ids = kernels.scan_add_responses(buffer, starts, index)
                responses.append(AddResponses(version, v2.status_of(code), ledger_id, entry_ids))
            else:
                responses.append(v2.parse_response(buffer, at, end))
                index += 1
        if self._frames.error is not None:
            raise self._frames.error
        return responses

    def take_rest(self) -> bytes:
        """The bytes behind the answer to START_TLS, once."""
        rest, self._rest = self._rest, b""
        return rest
