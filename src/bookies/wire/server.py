"""The bookie's end of a connection: bytes in, requests out; responses in, bytes out.

Whether a connection speaks v2 or v3 is found out from what arrives, and sticks once it is v2.
Source: wire-protocol 1.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bookies import kernels
from bookies.errors import Status
from bookies.kernels import Adds
from bookies.wire import v2, v3
from bookies.wire.framing import FrameReader
from bookies.wire.messages import (
    AddRequest,
    AddResponses,
    Buffer,
    InvalidRequest,
    Operation,
    Request,
    Response,
    StartTlsRequest,
)


class RequestDecoder:
    """Decode the requests of one connection, adds with one key and the same flags that follow each other merged.

    `frames`: cuts the bytes; holds those of the request that has not arrived whole.

    `stops_at_start_tls`: decode nothing behind a START_TLS request until it is decided; the bytes behind it may be
    TLS records. They wait in `take_rest`, to be fed here again when they turn out to be plain.
    """

    def __init__(self, frame_size_max: int, *, stops_at_start_tls: bool = False) -> None:
        self.is_v2 = False
        self.frames = FrameReader(frame_size_max)
        self._stops_at_start_tls = stops_at_start_tls
        self._rest = b""

    def feed(self, data: Buffer) -> list[Request]:
        """Requests in the order of their arrival.

        Raises RemoteProtocolError: the caller closes the connection. What came before the malformed frame in the same
        read is lost with it, as it may be anyway when a connection closes.
        """
        buffer, starts = self.frames.feed(data)
        requests: list[Request] = []
        index, count = 0, len(starts) - 1
        while index < count:
            if not self.is_v2 and buffer[starts[index] + 4] < 0x08:
                # No protobuf message begins so, and every supported v2 frame does: from here on nothing is v3.
                self.is_v2 = True
            if self.is_v2:
                index = self._decode_v2(buffer, starts, index, requests)
                continue
            index = v3.parse_requests(buffer, starts, index, requests)
            if self._stops_at_start_tls and isinstance(requests[-1], StartTlsRequest):
                self.frames.forget_rest()
                self._rest = buffer[starts[index] :]
                return requests
        if self.frames.error is not None:
            raise self.frames.error
        return requests

    def take_rest(self) -> bytes:
        """The bytes behind a START_TLS request, once."""
        rest, self._rest = self._rest, b""
        return rest

    def _decode_v2(self, buffer: bytes, starts: Sequence[int], index: int, requests: list[Request]) -> int:
        at, end = starts[index], starts[index + 1]
        version, opcode, flags = v2.parse_header(buffer, at, end)
        if opcode == v2.OPCODE_READ and not flags and version < v2.UNSUPPORTED and end - at == v2.PLAIN_READ_SIZE:
            requests.append(v2.parse_plain_read(version, buffer, at))
            return index + 1
        if opcode != v2.OPCODE_ADD or end - at < v2.ADD_SIZE_MIN or version >= v2.UNSUPPORTED:
            requests.append(v2.parse_request(buffer, at, end))
            return index + 1
        index, request, least = v2.parse_adds(buffer, starts, index, version, flags)
        if least < 0:
            requests.extend(_refuse_negative_ids(request))
        else:
            requests.append(request)
        return index


def _refuse_negative_ids(request: AddRequest) -> Iterator[Request]:
    """The adds one by one, those with a negative id refused. Source: wire-protocol 5.4."""
    version = request.version
    for ledger_id, entry_ids, records in request.adds.stretches():
        for index, entry_id in enumerate(entry_ids):
            if ledger_id < 0 or entry_id < 0:
                yield InvalidRequest(version, 0, Operation.ADD, Status.BAD_REQUEST, ledger_id, entry_id)
                continue
            last_add_confirmed = int.from_bytes(records.body(index)[16:24], "big", signed=True)
            one = range(entry_id, entry_id + 1), records.slice(index, index + 1).alone()
            adds = Adds.of(ledger_id, *one, last_add_confirmed)
            yield AddRequest(version, request.master_key, adds, request.is_recovery, request.is_high_priority)


def encode_answers(request: AddRequest, adds: Adds, status: Status) -> list[Buffer]:
    """Return the answers to all entries of a request, or to some of its stretches (in v3 always to all)."""
    if request.txn_ids is not None:
        answers = AddResponses(request.version, status, adds.first_ledger_id, adds.entry_ids, request.txn_ids)
        return v3.pack_response(answers)
    code = 0 if status is Status.OK else v2.CODE_OF_STATUS[status]
    return [kernels.pack_answers(request.version & 0xFF, code, adds.table, adds.entry_ids)]


def encode_response(response: Response) -> list[Buffer]:
    """The frames of a response, in the protocol of its `version`; long bodies are the very buffers given."""
    return v3.pack_response(response) if response.version == v3.VERSION else v2.pack_response(response)
