"""The protobuf protocol (v3): requests and responses to and from the messages of `schema.py`.

`starts` and `index` are those of `framing.FrameReader`; adds and their answers that follow each other are merged.
Source: wire-protocol 3.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from bookies import kernels
from bookies.errors import LocalProtocolError, RemoteProtocolError, Status
from bookies.kernels import Adds, Records
from bookies.wire import protobuf, schema, v2, v3_reads
from bookies.wire.messages import (
    AddRequest,
    AddResponses,
    AuthRequest,
    AuthResponse,
    BareResponse,
    Buffer,
    ForceLedgerRequest,
    ForceLedgerResponse,
    GetBookieInfoRequest,
    GetBookieInfoResponse,
    InvalidRequest,
    ListEntriesRequest,
    ListEntriesResponse,
    Operation,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
    StartTlsRequest,
    StartTlsResponse,
    WriteLacRequest,
    WriteLacResponse,
)
from bookies.wire.protobuf import Values
from bookies.wire.schema import (
    CODE_OF_OPERATION,
    CODE_OF_STATUS,
    OPERATION_OF_CODE,
    REQUEST_NAME,
    RESPONSE_NAME,
    STATUS_OF_CODE,
)
from bookies.wire.v3_adds import AddResponseShape, AddShape
from bookies.wire.v3_context import trace_of, with_trace

VERSION = 3

_BODY_HEAD = struct.Struct(">qqq")  # ledger, entry, last add confirmed
_ADD = CODE_OF_OPERATION[Operation.ADD]
_WITHOUT_STATUS = (Operation.AUTH, Operation.START_TLS)  # their messages have none; refusals are bare

# Requests and responses that name nothing but a ledger.
_LEDGER_REQUESTS: dict[Operation, type[ReadLacRequest | ForceLedgerRequest | ListEntriesRequest]] = {
    Operation.READ_LAC: ReadLacRequest,
    Operation.FORCE_LEDGER: ForceLedgerRequest,
    Operation.LIST_ENTRIES: ListEntriesRequest,
}


# Requests


def parse_requests(buffer: bytes, starts: Sequence[int], index: int, requests: list[Request]) -> int:
    """Append the request in frame `index`, an add together with the adds behind it that it can be merged with.

    Returns the index of the first frame not taken. Raises RemoteProtocolError for a message that is not a `Request`.
    """
    read = v3_reads.maybe_parse_read(buffer, starts[index], starts[index + 1])
    if read is not None:
        requests.append(read)
        return index + 1
    values = schema.REQUEST.parse(buffer, starts[index] + 4, starts[index + 1])
    header = values["header"]
    add = values.get("addRequest") if header["operation"] == _ADD else None
    if add is None or header["version"] != VERSION or not _is_sound(add):
        requests.append(_request_of(values))
        return index + 1
    flags = {
        "is_recovery": add.get("flag") == schema.ADD_FLAG_RECOVERY,
        "is_high_priority": header.get("priority", 0) > 0,
        "is_deferred_sync": bool(add.get("writeFlags", 0) & schema.WRITE_FLAG_DEFERRED_SYNC),
    }
    ledger_id, master_key = add["ledgerId"], add["masterKey"]
    txn_ids, entry_ids, bodies = [header["txnId"]], [add["entryId"]], [add["body"]]
    _, _, last_add_confirmed = _BODY_HEAD.unpack_from(add["body"])
    trace = trace_of(values)
    shape = AddShape(ledger_id, master_key, **flags)
    index += 1
    while not trace and index < len(starts) - 1:
        another = shape.maybe_parse(buffer, starts[index], starts[index + 1])
        if another is None:
            break
        txn_id, entry_id, body = another
        if len(body) < _BODY_HEAD.size:
            break
        body_ledger_id, body_entry_id, body_lac = _BODY_HEAD.unpack_from(body)
        if body_ledger_id != ledger_id or body_entry_id != entry_id:
            break
        txn_ids.append(txn_id)
        entry_ids.append(entry_id)
        bodies.append(body)
        last_add_confirmed = max(last_add_confirmed, body_lac)
        index += 1
    adds = Adds.of(ledger_id, _as_range(entry_ids), Records.of(bodies), last_add_confirmed)
    requests.append(AddRequest(VERSION, master_key, adds, **flags, txn_ids=_as_range(txn_ids), trace=trace))
    return index


def _as_range(numbers: list[int]) -> Sequence[int]:
    consecutive = range(numbers[0], numbers[0] + len(numbers))
    return consecutive if numbers[-1] == consecutive[-1] and numbers == list(consecutive) else numbers


def _is_sound(add: Values) -> bool:
    """The body begins with the very ids of the message, none negative. Source: wire-protocol 5.4."""
    ledger_id, entry_id, body = add["ledgerId"], add["entryId"], add["body"]
    if len(body) < _BODY_HEAD.size or ledger_id < 0 or entry_id < 0:
        return False
    return _BODY_HEAD.unpack_from(body)[:2] == (ledger_id, entry_id)


def _request_of(values: Values) -> Request:
    """Any request but a servable add."""
    header = values["header"]
    operation = OPERATION_OF_CODE[header["operation"]]
    txn_id = header["txnId"]
    fields = values.get(REQUEST_NAME.get(operation, ""))
    if fields is None:
        return InvalidRequest(VERSION, txn_id, operation, Status.BAD_REQUEST)
    if operation is Operation.AUTH:
        return AuthRequest(VERSION, txn_id, fields["authPluginName"], fields["payload"])
    if operation is Operation.START_TLS:
        return StartTlsRequest(VERSION, txn_id)
    is_unversioned = header["version"] != VERSION
    if operation is Operation.ADD or is_unversioned:
        status = Status.BAD_VERSION if is_unversioned else Status.BAD_REQUEST
        ids = fields.get("ledgerId", -1), fields.get("entryId", -1)
        return InvalidRequest(VERSION, txn_id, operation, status, *ids)
    if operation is Operation.READ:
        return ReadRequest(
            VERSION,
            txn_id,
            fields["ledgerId"],
            fields["entryId"],
            fields.get("masterKey"),
            is_fencing=fields.get("flag") == schema.READ_FLAG_FENCE,
            is_high_priority=header.get("priority", 0) > 0,
            previous_lac=fields.get("previousLAC"),
            timeout_ms=fields.get("timeOut"),
            wants_piggyback=fields.get("flag") == schema.READ_FLAG_PIGGYBACK,
            trace=trace_of(values),
        )
    if operation is Operation.WRITE_LAC:
        about = fields["ledgerId"], fields["lac"], fields["masterKey"], fields["body"]
        return WriteLacRequest(VERSION, txn_id, *about, asks_readers=bool(fields.get("asksReaders")))
    if operation is Operation.GET_BOOKIE_INFO:
        return GetBookieInfoRequest(VERSION, txn_id, fields.get("requested", 0))
    return _LEDGER_REQUESTS[operation](VERSION, txn_id, fields["ledgerId"])


def pack_request(request: Request) -> list[Buffer]:
    """The frame of a request, or the frames of adds (which need `txn_ids`)."""
    if isinstance(request, AddRequest):
        return [_pack_adds(request)]
    if isinstance(request, ReadRequest) and v3_reads.is_plain(request):
        return [v3_reads.pack_read(request)]
    operation, fields = _fields_of_request(request)
    header: Values = {"version": VERSION, "operation": CODE_OF_OPERATION[operation], "txnId": request.txn_id}
    if isinstance(request, ReadRequest) and request.is_high_priority:
        header["priority"] = schema.PRIORITY_HIGH
    frames = protobuf.frame(schema.REQUEST.pack({"header": header, REQUEST_NAME[operation]: fields}))
    return [with_trace(frames, request.trace)] if isinstance(request, ReadRequest) and request.trace else frames


def _fields_of_request(request: Request) -> tuple[Operation, Values]:
    match request:
        case ReadRequest():
            if request.is_fencing and request.wants_piggyback:
                raise LocalProtocolError("a read fences or brings an entry along, not both")
            flag = schema.READ_FLAG_PIGGYBACK if request.wants_piggyback else None
            return Operation.READ, {
                "ledgerId": request.ledger_id,
                "entryId": request.entry_id,
                "masterKey": request.master_key,
                "previousLAC": request.previous_lac,
                "timeOut": request.timeout_ms,
                "flag": schema.READ_FLAG_FENCE if request.is_fencing else flag,
            }
        case AuthRequest():
            return Operation.AUTH, {"authPluginName": request.plugin, "payload": request.payload}
        case WriteLacRequest():
            return Operation.WRITE_LAC, {
                "ledgerId": request.ledger_id,
                "lac": request.last_add_confirmed,
                "masterKey": request.master_key,
                "body": request.body,
                "asksReaders": True if request.asks_readers else None,
            }
        case GetBookieInfoRequest():
            return Operation.GET_BOOKIE_INFO, {"requested": request.requested}
        case StartTlsRequest():
            return Operation.START_TLS, {}
        case ReadLacRequest():
            return Operation.READ_LAC, {"ledgerId": request.ledger_id}
        case ForceLedgerRequest():
            return Operation.FORCE_LEDGER, {"ledgerId": request.ledger_id}
        case ListEntriesRequest():
            return Operation.LIST_ENTRIES, {"ledgerId": request.ledger_id}
        case _:
            raise LocalProtocolError(f"{type(request).__name__} has no v3 encoding")


def _pack_adds(request: AddRequest) -> bytes:
    adds = request.adds
    if request.txn_ids is None or len(request.txn_ids) != len(adds):
        raise LocalProtocolError("v3 adds need one transaction id each")
    if request.trace and len(adds) != 1:
        raise LocalProtocolError("a traced request adds one entry")
    shape = AddShape(
        adds.first_ledger_id,
        request.master_key,
        is_recovery=request.is_recovery,
        is_high_priority=request.is_high_priority,
        is_deferred_sync=request.is_deferred_sync,
    )
    data, starts = adds.records.data, adds.records.starts
    bodies = [data[at + 4 : end] for at, end in pairwise(starts)]
    packed = shape.pack(zip(request.txn_ids, adds.entry_ids, bodies, strict=True))
    return with_trace((packed,), request.trace) if request.trace else packed


def adds_as_v3(
    frames: bytes, first_txn_id: int, *, is_deferred_sync: bool = False, trace: str = ""
) -> tuple[bytes, int]:
    """The v3 form of v2 ADD frames that share ledger, key and flags: (frames, transaction id behind the last).

    Transaction ids are consecutive from `first_txn_id` on, in the order of the frames. `trace`: of a single add.
    """
    starts, _ = kernels.scan_frames(frames, 0, len(frames))
    version, _, flags = v2.parse_header(frames, 0, starts[1])
    index, request, _ = v2.parse_adds(frames, starts, 0, version, flags)
    assert index == len(starts) - 1
    assert starts[-1] == len(frames)
    txn_id = first_txn_id + len(request.adds)
    request.txn_ids, request.is_deferred_sync = range(first_txn_id, txn_id), is_deferred_sync
    request.trace = trace
    return _pack_adds(request), txn_id


# Responses


def parse_responses(buffer: bytes, starts: Sequence[int], index: int, responses: list[Response]) -> int:
    """Append the response in frame `index`, the answer to an add together with like answers behind it.

    Returns the index of the first frame not taken. Raises RemoteProtocolError for a message that is not a `Response`.
    """
    read = v3_reads.maybe_parse_read_answer(buffer, starts[index], starts[index + 1])
    if read is not None:
        responses.append(read)
        return index + 1
    values = schema.RESPONSE.parse(buffer, starts[index] + 4, starts[index + 1])
    operation = OPERATION_OF_CODE[values["header"]["operation"]]
    txn_id = values["header"]["txnId"]
    fields: Values | None = values.get(RESPONSE_NAME.get(operation, ""))
    status = STATUS_OF_CODE[values["status"]]
    if status is Status.OK and fields is not None:
        # Of the two status fields the outer one counts unless it says OK. Source: wire-protocol 3.4.
        status = STATUS_OF_CODE[fields.get("status", 0)]
    index += 1
    if operation is not Operation.ADD or fields is None:
        responses.append(_response_of(operation, txn_id, status, fields))
        return index
    entry_ids, txn_ids = [fields["entryId"]], [txn_id]
    shape = AddResponseShape(status, fields["ledgerId"])
    while index < len(starts) - 1:
        another = shape.maybe_parse(buffer, starts[index], starts[index + 1])
        if another is None:
            break
        txn_ids.append(another[0])
        entry_ids.append(another[1])
        index += 1
    ids, txns = _as_range(entry_ids), _as_range(txn_ids)
    responses.append(AddResponses(VERSION, status, fields["ledgerId"], ids, txns))
    return index


def _response_of(operation: Operation, txn_id: int, status: Status, fields: Values | None) -> Response:
    """Any response but the answer to an add."""
    if operation is Operation.START_TLS:
        return StartTlsResponse(VERSION, txn_id, status)
    if fields is None:
        if status is Status.OK:
            raise RemoteProtocolError(f"response to {operation.value} without its message")
        return BareResponse(VERSION, txn_id, operation, status)
    match operation:
        case Operation.READ:
            return ReadResponse(
                VERSION,
                txn_id,
                status,
                fields["ledgerId"],
                fields["entryId"],
                fields.get("body"),
                fields.get("maxLAC"),
                fields.get("lacUpdateTimestamp"),
            )
        case Operation.AUTH:
            return AuthResponse(VERSION, txn_id, status, fields["authPluginName"], fields["payload"])
        case Operation.WRITE_LAC:
            has_readers = fields.get("hasReaders")
            return WriteLacResponse(
                VERSION, txn_id, status, fields["ledgerId"], None if has_readers is None else bool(has_readers)
            )
        case Operation.READ_LAC:
            bodies = fields.get("lacBody"), fields.get("lastEntryBody")
            return ReadLacResponse(VERSION, txn_id, status, fields["ledgerId"], *bodies)
        case Operation.GET_BOOKIE_INFO:
            names = "totalDiskCapacity", "freeDiskSpace", "readRate", "readLedgers", "owedEntries"
            return GetBookieInfoResponse(VERSION, txn_id, status, *map(fields.get, names))
        case Operation.FORCE_LEDGER:
            return ForceLedgerResponse(VERSION, txn_id, status, fields["ledgerId"])
        case Operation.LIST_ENTRIES:
            availability = fields.get("availabilityOfEntriesOfLedger")
            return ListEntriesResponse(VERSION, txn_id, status, fields["ledgerId"], availability)
        case _:
            raise AssertionError(f"{operation.value} has a message in a response and no conversion")


def pack_response(response: Response) -> list[Buffer]:
    """The frame of a response, or the frames of a batch of answers to adds (which needs `txn_ids`)."""
    if isinstance(response, AddResponses):
        return [_pack_add_responses(response)]
    if isinstance(response, ReadResponse) and v3_reads.is_plain_answer(response):
        return v3_reads.pack_read_answer(response)
    operation, fields = _fields_of_response(response)
    code = CODE_OF_STATUS[response.status]
    header = {"version": VERSION, "operation": CODE_OF_OPERATION[operation], "txnId": response.txn_id}
    values: Values = {"header": header, "status": code}
    if fields is not None:
        # AUTH and START_TLS messages have no status of their own; a name that the schema lacks is not packed.
        values[RESPONSE_NAME[operation]] = {"status": code, **fields}
    return protobuf.frame(schema.RESPONSE.pack(values))


def _fields_of_response(response: Response) -> tuple[Operation, dict[str, Any] | None]:
    """The operation and its message; None where the response is header and status only."""
    is_ok = response.status is Status.OK
    match response:
        case ReadResponse():
            return Operation.READ, {
                "ledgerId": response.ledger_id,
                "entryId": response.entry_id,
                "body": response.body if is_ok else None,
                "maxLAC": response.max_lac if is_ok else None,
                "lacUpdateTimestamp": response.lac_update_ms if is_ok else None,
            }
        case AuthResponse():
            if not is_ok:
                return Operation.AUTH, None
            return Operation.AUTH, {"authPluginName": response.plugin, "payload": response.payload}
        case WriteLacResponse():
            return Operation.WRITE_LAC, {"ledgerId": response.ledger_id, "hasReaders": response.has_readers}
        case ReadLacResponse():
            return Operation.READ_LAC, {
                "ledgerId": response.ledger_id,
                "lacBody": response.lac_body,
                "lastEntryBody": response.last_entry_body,
            }
        case GetBookieInfoResponse():
            info = {
                "totalDiskCapacity": response.total_disk_capacity,
                "freeDiskSpace": response.free_disk_space,
                "readRate": response.read_rate,
                "readLedgers": response.read_ledgers,
                "owedEntries": response.owed_entries,
            }
            return Operation.GET_BOOKIE_INFO, info if is_ok else {}
        case ForceLedgerResponse():
            return Operation.FORCE_LEDGER, {"ledgerId": response.ledger_id}
        case ListEntriesResponse():
            fields = {"ledgerId": response.ledger_id, "availabilityOfEntriesOfLedger": response.availability}
            return Operation.LIST_ENTRIES, fields
        case StartTlsResponse():
            return Operation.START_TLS, {} if is_ok else None
        case BareResponse():
            # Refusals of a request that was understood repeat its ids. Source: wire-protocol 3.4.
            is_understood = response.ledger_id != -1 or response.status is Status.BAD_VERSION
            if not is_understood or response.operation in _WITHOUT_STATUS or response.operation not in RESPONSE_NAME:
                return response.operation, None
            return response.operation, {"ledgerId": response.ledger_id, "entryId": response.entry_id}
        case _:
            raise LocalProtocolError(f"{type(response).__name__} has no v3 encoding")


def _pack_add_responses(response: AddResponses) -> bytes:
    if response.txn_ids is None or len(response.txn_ids) != len(response.entry_ids):
        raise LocalProtocolError("answers to v3 adds need one transaction id each")
    shape = AddResponseShape(response.status, response.ledger_id)
    return shape.pack(zip(response.txn_ids, response.entry_ids, strict=True))
