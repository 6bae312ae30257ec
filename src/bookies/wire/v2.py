"""The fixed-layout protocol (v2): one frame to or from one message, and its numbers.

Batches of adds and of their answers do not pass here one by one: `server.py` and `client.py` use the kernels for
runs of them. In all functions `at` is the offset of a frame's length word and `end` that of the byte behind it.

`version` of a message is the version byte, 0 to 2. A byte above 2, which only refusals carry, appears as 256 + byte,
because 3 says that a message belongs to the v3 protocol. Source: wire-protocol 2.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from bookies import kernels
from bookies.errors import LocalProtocolError, RemoteProtocolError, Status
from bookies.kernels import Adds, table_of
from bookies.model import MASTER_KEY_SIZE
from bookies.wire import protobuf
from bookies.wire.messages import (
    AddRequest,
    AddResponses,
    AuthRequest,
    AuthResponse,
    BareResponse,
    BatchReadRequest,
    BatchReadResponse,
    Buffer,
    InvalidRequest,
    Operation,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
)
from bookies.wire.schema import AUTH_MESSAGE

VERSION = 2
UNSUPPORTED = 256  # added to a version byte above `VERSION`

OPCODE_ADD, OPCODE_READ, OPCODE_AUTH, OPCODE_BATCH_READ = 1, 2, 3, 7
FLAG_FENCE, FLAG_RECOVERY, FLAG_HIGH_PRIORITY = 0x1, 0x2, 0x4

# Offsets from a frame's length word.
ADD_KEY = 8
ADD_BODY = 28
ADD_DECODABLE_SIZE = 44  # with both ids of the body; smaller frames are not answered at all
ADD_SIZE_MIN = 52  # with the 24 bytes of a body that the bookie checks; smaller ones are refused
ADD_RESPONSE_SIZE = 28
PLAIN_READ_SIZE = 24

STATUS_OF_CODE = {
    0: Status.OK,
    1: Status.NO_LEDGER,
    2: Status.NO_ENTRY,
    100: Status.BAD_REQUEST,
    101: Status.IO_ERROR,
    102: Status.UNAUTHORIZED,
    103: Status.BAD_VERSION,
    104: Status.FENCED,
    105: Status.READ_ONLY,
    106: Status.TOO_MANY_REQUESTS,
    107: Status.UNKNOWN_LEDGER_STATE,
}
# Apache's v2 clients close the connection on 107, and a negative answer would let a recovery drop the entry, so the
# unknown state goes out as an I/O error. Source: wire-protocol 2.5.
CODE_OF_STATUS = {status: code for code, status in STATUS_OF_CODE.items()} | {Status.UNKNOWN_LEDGER_STATE: 101}

_OPERATION_OF_OPCODE = {
    OPCODE_ADD: Operation.ADD,
    OPCODE_READ: Operation.READ,
    OPCODE_AUTH: Operation.AUTH,
    OPCODE_BATCH_READ: Operation.BATCH_READ,
}
_OPCODE_OF_OPERATION = {operation: opcode for opcode, operation in _OPERATION_OF_OPCODE.items()}

_HEADER = struct.Struct(">4xBBH")  # behind the length word: version, opcode, flags
_IDS = struct.Struct(">qq")
_BATCH_READ = struct.Struct(">qqqiq")  # ledger, first entry, request id, count max, size max
_PLAIN_READ = struct.Struct(">IIqq")  # length, header, ids: the frame of a read without a key
_PLAIN_BATCH_READ = struct.Struct(">IIqqqiq")  # length, header, and as `_BATCH_READ`
_RESPONSE = struct.Struct(">iqq")  # error code, ledger, entry
_PLAIN_RESPONSE = struct.Struct(">IIiqq")  # length, header, and as `_RESPONSE`
_ADD_RESPONSE = struct.Struct(">IBBHiqq")  # length, header, and as `_RESPONSE`
_I64 = struct.Struct(">q")


def parse_header(buffer: bytes, at: int, end: int) -> tuple[int, int, int]:
    """(version, opcode, flags). In version 0 the whole word is the opcode. Source: wire-protocol 2.1."""
    if end - at < 8:
        raise RemoteProtocolError("frame without a packet header")
    version, opcode, flags = _HEADER.unpack_from(buffer, at)
    if version == 0:
        return 0, flags & 0xFF, 0
    return version if version <= VERSION else version + UNSUPPORTED, opcode, flags


def pack_header(version: int, opcode: int, flags: int = 0) -> bytes:
    if version == 0:
        return opcode.to_bytes(4, "big")
    return bytes((version & 0xFF, opcode, flags >> 8, flags & 0xFF))


def add_head(master_key: bytes, *, is_recovery: bool = False, is_high_priority: bool = False) -> bytes:
    """Packet header and key of an ADD, the 24 bytes that `kernels.pack_add_frames` puts in front of every body."""
    if len(master_key) != MASTER_KEY_SIZE:
        raise LocalProtocolError(f"v2 adds carry keys of {MASTER_KEY_SIZE} bytes, not {len(master_key)}")
    flags = FLAG_RECOVERY * is_recovery | FLAG_HIGH_PRIORITY * is_high_priority
    return pack_header(VERSION, OPCODE_ADD, flags) + master_key


def parse_adds(
    buffer: bytes, starts: Sequence[int], index: int, version: int, flags: int
) -> tuple[int, AddRequest, int]:
    """Gather the adds with one key and the same flags from frame `index` on, an ADD of at least `ADD_SIZE_MIN` bytes.

    `version` and `flags`: those of its header. Returns (index of the first frame that is not one of them, their
    request, least of their ledger and entry ids).
    """
    at = starts[index]
    key = buffer[at + ADD_KEY : at + ADD_BODY]
    index, table, entry_ids, records, least = kernels.gather_adds(buffer, starts, index)
    is_recovery, is_high_priority = flags & FLAG_RECOVERY != 0, flags & FLAG_HIGH_PRIORITY != 0
    return index, AddRequest(version, key, Adds(table, entry_ids, records), is_recovery, is_high_priority), least


def parse_plain_read(version: int, buffer: bytes, at: int) -> ReadRequest:
    """A read of `PLAIN_READ_SIZE` bytes without flags, as `parse_request` does: entries at random are read so."""
    return ReadRequest(version, 0, *_IDS.unpack_from(buffer, at + 8))


def parse_request(buffer: bytes, at: int, end: int) -> Request:
    """Any request but a servable add. Raises RemoteProtocolError where a bookie closes (wire-protocol 2.6)."""
    version, opcode, flags = parse_header(buffer, at, end)
    if opcode == OPCODE_AUTH:
        auth = AUTH_MESSAGE.parse(buffer, at + 8, end)
        return AuthRequest(version, 0, auth["authPluginName"], auth["payload"])
    operation = _OPERATION_OF_OPCODE.get(opcode)
    if operation is None:
        raise RemoteProtocolError(f"unknown v2 opcode {opcode}")
    try:
        if operation is Operation.ADD:
            if end - at < ADD_DECODABLE_SIZE:
                raise RemoteProtocolError("add is cut off")
            status = Status.BAD_REQUEST if version < UNSUPPORTED else Status.BAD_VERSION
            return InvalidRequest(version, 0, operation, status, *_IDS.unpack_from(buffer, at + ADD_BODY))
        if operation is Operation.READ:
            ledger_id, entry_id = _IDS.unpack(buffer[at + 8 : min(at + 24, end)])
            if version >= UNSUPPORTED:
                return InvalidRequest(version, 0, operation, Status.BAD_VERSION, ledger_id, entry_id)
            key = _parse_fencing_key(version, flags, buffer, at + 24, end)
            is_fencing, is_high_priority = flags & FLAG_FENCE != 0, flags & FLAG_HIGH_PRIORITY != 0
            return ReadRequest(version, 0, ledger_id, entry_id, key, is_fencing, is_high_priority)
        fields = _BATCH_READ.unpack(buffer[at + 8 : min(at + 44, end)])
    except struct.error:
        raise RemoteProtocolError(f"{operation.value} is cut off") from None
    ledger_id, entry_id, request_id, count_max, size_max = fields
    if version >= UNSUPPORTED:
        return InvalidRequest(version, request_id, operation, Status.BAD_VERSION, ledger_id, entry_id)
    return BatchReadRequest(
        version,
        request_id,
        ledger_id,
        entry_id,
        count_max,
        size_max,
        _parse_fencing_key(version, flags, buffer, at + 44, end),
        is_fencing=flags & FLAG_FENCE != 0,
        is_high_priority=flags & FLAG_HIGH_PRIORITY != 0,
    )


def _parse_fencing_key(version: int, flags: int, buffer: bytes, at: int, end: int) -> bytes | None:
    """The key, which is there only in fencing requests of version 2. Source: wire-protocol 2.3."""
    if not flags & FLAG_FENCE or version < VERSION:
        return None
    if end - at < MASTER_KEY_SIZE:
        raise RemoteProtocolError("master key is cut off")
    return buffer[at : at + MASTER_KEY_SIZE]


def pack_request(request: Request) -> list[Buffer]:
    """The frame or frames of a request. Raises LocalProtocolError for what v2 cannot say."""
    if isinstance(request, AddRequest):
        return _pack_adds(request)
    if isinstance(request, AuthRequest):
        auth = AUTH_MESSAGE.pack({"authPluginName": request.plugin, "payload": request.payload})
        return protobuf.frame([pack_header(request.version, OPCODE_AUTH), *auth])
    if not isinstance(request, ReadRequest | BatchReadRequest):
        raise LocalProtocolError(f"{type(request).__name__} has no v2 encoding")
    if isinstance(request, ReadRequest) and request.previous_lac is not None:
        raise LocalProtocolError("long polls have no v2 encoding")
    flags = FLAG_FENCE * request.is_fencing | FLAG_HIGH_PRIORITY * request.is_high_priority
    if not flags and request.version == VERSION:
        if isinstance(request, ReadRequest):
            return [pack_read(request.ledger_id, request.entry_id)]
        return [_pack_plain_batch_read(request)]
    key = b""
    if request.is_fencing and request.version == VERSION:
        key = request.master_key or b""
        if len(key) != MASTER_KEY_SIZE:
            raise LocalProtocolError(f"fencing needs a key of {MASTER_KEY_SIZE} bytes")
    if isinstance(request, ReadRequest):
        ids = _IDS.pack(request.ledger_id, request.entry_id)
        return protobuf.frame([pack_header(request.version, OPCODE_READ, flags), ids, key])
    limits = request.txn_id, request.count_max, request.size_max
    fields = _BATCH_READ.pack(request.ledger_id, request.entry_id, *limits)
    return protobuf.frame([pack_header(request.version, OPCODE_BATCH_READ, flags), fields, key])


def pack_read(ledger_id: int, entry_id: int) -> bytes:
    """The frame of a plain `ReadRequest`, without one: entries at random are read one by one."""
    return _PLAIN_READ.pack(_PLAIN_READ.size - 4, VERSION << 24 | OPCODE_READ << 16, ledger_id, entry_id)


def _pack_plain_batch_read(request: BatchReadRequest) -> bytes:
    """Pack a request without a key in one step: striped ledgers are read in very many small requests."""
    header = VERSION << 24 | OPCODE_BATCH_READ << 16
    limits = request.txn_id, request.count_max, request.size_max
    return _PLAIN_BATCH_READ.pack(_PLAIN_BATCH_READ.size - 4, header, request.ledger_id, request.entry_id, *limits)


def _pack_adds(request: AddRequest) -> list[Buffer]:
    if request.is_deferred_sync:
        raise LocalProtocolError("deferred-sync adds have no v2 encoding")
    head = add_head(request.master_key, is_recovery=request.is_recovery, is_high_priority=request.is_high_priority)
    head = pack_header(request.version, OPCODE_ADD, head[2] << 8 | head[3]) + request.master_key
    parts: list[Buffer] = []
    for index in range(len(request.adds.records)):
        body = request.adds.records.body(index)
        parts += (len(head) + len(body)).to_bytes(4, "big"), head, body
    return [b"".join(parts)]


SHARED_SIZE_MIN = 32 << 10  # bytes; longer answers stay in the buffer they came in, when they are alone in it


def parse_response(buffer: bytes, at: int, end: int) -> Response:
    """Any response; one add as a batch of one. Raises RemoteProtocolError for what no bookie sends."""
    version, opcode, _ = parse_header(buffer, at, end)
    if opcode == OPCODE_AUTH:
        auth = AUTH_MESSAGE.parse(buffer, at + 8, end)
        return AuthResponse(version, 0, Status.OK, auth["authPluginName"], auth["payload"])
    if opcode not in _OPERATION_OF_OPCODE:
        raise RemoteProtocolError(f"response with v2 opcode {opcode}")
    if end - at < (36 if opcode == OPCODE_BATCH_READ else 28):
        raise RemoteProtocolError("response is cut off")
    code, ledger_id, entry_id = _RESPONSE.unpack_from(buffer, at + 8)
    status = status_of(code)
    if opcode == OPCODE_ADD:
        return AddResponses(version, status, ledger_id, [entry_id])
    is_ok = status is Status.OK
    if opcode == OPCODE_READ:
        body = buffer[at + 28 : end] if is_ok else None
        return ReadResponse(version, 0, status, ledger_id, entry_id, body)
    (request_id,) = _I64.unpack_from(buffer, at + 28)
    if is_ok and end - at == len(buffer) > SHARED_SIZE_MIN:
        return BatchReadResponse(version, request_id, status, ledger_id, entry_id, buffer, 36)
    records = buffer[at + 36 : end] if is_ok else b""
    return BatchReadResponse(version, request_id, status, ledger_id, entry_id, records)


def maybe_add_response(frame: Buffer) -> AddResponses | None:
    """The response to one add, in one step: a lone add has three. `frame`: of `ADD_RESPONSE_SIZE` bytes, perhaps one.

    None: use the framing.
    """
    size, version, opcode, _, code, ledger_id, entry_id = _ADD_RESPONSE.unpack(frame)
    status = STATUS_OF_CODE.get(code)
    if size != ADD_RESPONSE_SIZE - 4 or version != VERSION or opcode != OPCODE_ADD or status is None:
        return None
    return AddResponses(version, status, ledger_id, range(entry_id, entry_id + 1))


def status_of(code: int) -> Status:
    """Raises RemoteProtocolError for a number outside the table, as Apache's clients do by closing."""
    status = STATUS_OF_CODE.get(code)
    if status is None:
        raise RemoteProtocolError(f"unknown v2 error code {code}")
    return status


def pack_response(response: Response) -> list[Buffer]:
    """The frame or frames of a response; bodies and records are passed through when they are long."""
    if isinstance(response, ReadResponse):
        body: Buffer = response.body if response.status is Status.OK and response.body is not None else b""
        if response.version == VERSION:
            size, header = _PLAIN_RESPONSE.size - 4 + len(body), VERSION << 24 | OPCODE_READ << 16
            code = 0 if response.status is Status.OK else CODE_OF_STATUS[response.status]
            head = _PLAIN_RESPONSE.pack(size, header, code, response.ledger_id, response.entry_id)
            return [head, body] if body else [head]
        opcode, request_id = OPCODE_READ, b""
    elif isinstance(response, AddResponses):
        code = CODE_OF_STATUS[response.status]
        return [kernels.pack_answers(response.version & 0xFF, code, *table_of(response.ledger_id, response.entry_ids))]
    elif isinstance(response, AuthResponse):
        auth = AUTH_MESSAGE.pack({"authPluginName": response.plugin, "payload": response.payload})
        return protobuf.frame([pack_header(response.version, OPCODE_AUTH), *auth])
    elif isinstance(response, BatchReadResponse):
        opcode, request_id = OPCODE_BATCH_READ, _I64.pack(response.txn_id)
        body = response.records if response.status is Status.OK else b""
        body = memoryview(body)[response.start :] if response.start else body
    elif isinstance(response, BareResponse) and response.operation in _OPCODE_OF_OPERATION:
        opcode, body = _OPCODE_OF_OPERATION[response.operation], b""
        request_id = _I64.pack(response.txn_id) if opcode == OPCODE_BATCH_READ else b""
    else:
        raise LocalProtocolError(f"{type(response).__name__} has no v2 encoding")
    common = _RESPONSE.pack(CODE_OF_STATUS[response.status], response.ledger_id, response.entry_id)
    return protobuf.frame([pack_header(response.version, opcode), common, request_id, body])
