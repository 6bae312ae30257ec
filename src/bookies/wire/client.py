"""The client's end of a connection: requests in, bytes out; bytes in, responses out. Source: wire-protocol 1.3, 1.4."""

from __future__ import annotations

from collections.abc import Sequence

from bookies import kernels
from bookies.errors import RemoteProtocolError
from bookies.wire import v2, v3
from bookies.wire.framing import FrameReader
from bookies.wire.messages import AddResponses, Buffer, Request, Response, StartTlsResponse

adds_as_v3 = v3.adds_as_v3


def encode_request(request: Request) -> list[Buffer]:
    """Return the frames of a request, in the protocol of its `version`; long bodies are the very buffers given.

    Raises LocalProtocolError for a request that the protocol cannot express. Frames are not checked against a frame
    limit.
    """
    return v3.pack_request(request) if request.version == v3.VERSION else v2.pack_request(request)


class ResponseDecoder:
    """Decoder of the responses of one connection; adjacent answers to adds of one ledger with one status are merged.

    `wire`: "v2" or "v3". `frames`: cuts the bytes.

    The answer to START_TLS is always v3 and comes before the first request. Apache's bookies
    send another one later, that the client has not authenticated; it is dropped. Source: wire-protocol 5.3.
    """

    def __init__(self, wire: str, frame_size_max: int) -> None:
        assert wire in ("v2", "v3")
        self._is_v3 = wire == "v3"
        self.frames = FrameReader(frame_size_max)

    def feed(self, data: Buffer) -> list[Response]:
        """Return responses in the order of their arrival. Raises RemoteProtocolError: the caller closes the
        connection."""
        is_lone = len(data) == v2.ADD_RESPONSE_SIZE and not self._is_v3 and self.frames.is_between
        if is_lone and (answer := v2.maybe_add_response(data)) is not None:
            return [answer]
        return self._decoded(*self.frames.feed(data))

    def received(self, count: int) -> list[Response]:
        """Handle `count` bytes that were written into the rest of `frames.direct`, like `feed`."""
        return self._decoded(*self.frames.received(count))

    def _decoded(self, buffer: bytes, starts: Sequence[int]) -> list[Response]:
        responses: list[Response] = []
        index, count = 0, len(starts) - 1
        while index < count:
            at, end = starts[index], starts[index + 1]
            if self._is_v3:
                index = v3.parse_responses(buffer, starts, index, responses)
            elif end - at == v2.ADD_RESPONSE_SIZE and (header := v2.parse_header(buffer, at, end))[1] == v2.OPCODE_ADD:
                index, runs = kernels.scan_add_responses(buffer, starts, index)
                for code, ledger_id, entry_ids in runs:
                    responses.append(AddResponses(header[0], v2.status_of(code), ledger_id, entry_ids))
            else:
                try:
                    responses.append(v2.parse_response(buffer, at, end))
                except RemoteProtocolError:
                    if not _is_about_tls(buffer, starts[index : index + 2]):
                        raise
                index += 1
        if self.frames.error is not None:
            raise self.frames.error
        return responses


def _is_about_tls(buffer: bytes, starts: Sequence[int]) -> bool:
    """Report whether a frame is an answer to START_TLS, in v3."""
    responses: list[Response] = []
    if buffer[starts[0] + 4] < 0x08:
        return False
    v3.parse_responses(buffer, starts, 0, responses)
    return isinstance(responses[0], StartTlsResponse)
