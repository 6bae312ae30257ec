"""The protobuf protocol (v3): requests and responses to and from the messages of `schema.py`.

`starts` and `index` are those of `framing.FrameReader`; adds and their answers that follow each other are merged.
Source: wire-protocol 3.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from bookies import kernels
from bookies.errors import LocalProtocolError, RemoteProtocolError, Status
from bookies.kernels import Records
from bookies.wire import protobuf, schema, v2
from bookies.wire.messages import (
    AddBatch,
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
from bookies.wire.protobuf import Values, pack_varint
from bookies.wire.schema import (
    CODE_OF_OPERATION,
    CODE_OF_STATUS,
    OPERATION_OF_CODE,
    REQUEST_NAME,
    RESPONSE_NAME,
    STATUS_OF_CODE,
)

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
    count = len(starts) - 1
    run: _AddRun | None = None
    while index < count:
        try:
            values = schema.REQUEST.parse(buffer, starts[index] + 4, starts[index + 1])
        except RemoteProtocolError:
            if run is None:
                raise
            break  # the adds before it first; it is parsed, and raises, again
        header = values["header"]
        add = values.get("addRequest") if header["operation"] == _ADD else None
        if add is None or header["version"] != VERSION or not _is_sound(add):
            if run is None:
                requests.append(_request_of(values))
                return index + 1
            break
        key = (add["ledgerId"], add["masterKey"], header.get("priority", 0) > 0, add.get("flag"), _is_deferred(add))
        if run is None:
            run = _AddRun(key)
        elif run.key != key:
            break
        run.append(header["txnId"], add)
        index += 1
    assert run is not None
    requests.append(run.batch())
    return index


class _AddRun:
    """Adds that share `key`: ledger, master key, high priority, flag, deferred sync."""

    def __init__(self, key: tuple[int, bytes, bool, int | None, bool]) -> None:
        self.key = key
        self._txn_ids: list[int] = []
        self._entry_ids: list[int] = []
        self._bodies: list[bytes] = []

    def append(self, txn_id: int, add: Values) -> None:
        self._txn_ids.append(txn_id)
        self._entry_ids.append(add["entryId"])
        self._bodies.append(add["body"])

    def batch(self) -> AddBatch:
        ledger_id, master_key, is_high_priority, flag, is_deferred_sync = self.key
        return AddBatch(
            VERSION,
            ledger_id,
            master_key,
            _as_range(self._entry_ids),
            Records.of(self._bodies),
            max([_BODY_HEAD.unpack_from(body)[2] for body in self._bodies]),
            is_recovery=flag == schema.ADD_FLAG_RECOVERY,
            is_high_priority=is_high_priority,
            is_deferred_sync=is_deferred_sync,
            txn_ids=_as_range(self._txn_ids),
        )


def _as_range(numbers: list[int]) -> Sequence[int]:
    consecutive = range(numbers[0], numbers[0] + len(numbers))
    return consecutive if numbers[-1] == consecutive[-1] and numbers == list(consecutive) else numbers


def _is_deferred(add: Values) -> bool:
    return bool(add.get("writeFlags", 0) & schema.WRITE_FLAG_DEFERRED_SYNC)


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
        )
    if operation is Operation.WRITE_LAC:
        return WriteLacRequest(VERSION, txn_id, fields["ledgerId"], fields["lac"], fields["masterKey"], fields["body"])
    if operation is Operation.GET_BOOKIE_INFO:
        return GetBookieInfoRequest(VERSION, txn_id, fields.get("requested", 0))
    return _LEDGER_REQUESTS[operation](VERSION, txn_id, fields["ledgerId"])


def pack_request(request: Request) -> list[Buffer]:
    """The frame of a request, or the frames of a batch of adds (which needs `txn_ids`)."""
    if isinstance(request, AddBatch):
        return _pack_add_batch(request)
    operation, fields = _fields_of_request(request)
    header: Values = {"version": VERSION, "operation": CODE_OF_OPERATION[operation], "txnId": request.txn_id}
    if isinstance(request, ReadRequest) and request.is_high_priority:
        header["priority"] = schema.PRIORITY_HIGH
    return protobuf.frame(schema.REQUEST.pack({"header": header, REQUEST_NAME[operation]: fields}))


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


class _AddPacker:
    """Frames of adds that share everything but transaction, entry id and body; what is shared is packed once."""

    def __init__(
        self, ledger_id: int, master_key: bytes, *, is_recovery: bool, is_high_priority: bool, is_deferred_sync: bool
    ) -> None:
        self._header_end = b"\x20" + pack_varint(schema.PRIORITY_HIGH) if is_high_priority else b""
        self._ledger = b"\x08" + pack_varint(ledger_id) + b"\x10"
        self._key = b"\x1a" + pack_varint(len(master_key)) + master_key + b"\x22"
        self._end = b"\x28\x01" * is_deferred_sync + b"\xa0\x06\x01" * is_recovery

    def append(self, parts: list[bytes], txn_id: int, entry_id: int, body: bytes) -> None:
        header = b"\x08\x03\x10\x02\x18" + pack_varint(txn_id) + self._header_end
        add = self._ledger + pack_varint(entry_id) + self._key + pack_varint(len(body))
        add_size = pack_varint(len(add) + len(body) + len(self._end))
        size = 4 + len(header) + len(add_size) + len(add) + len(body) + len(self._end)
        parts.append(b"%b\x0a%c%b\xaa\x06%b%b" % (size.to_bytes(4, "big"), len(header), header, add_size, add))
        parts.append(body)
        if self._end:
            parts.append(self._end)


def _pack_add_batch(batch: AddBatch) -> list[Buffer]:
    if batch.txn_ids is None or len(batch.txn_ids) != len(batch.records):
        raise LocalProtocolError("v3 adds need one transaction id each")
    packer = _AddPacker(
        batch.ledger_id,
        batch.master_key,
        is_recovery=batch.is_recovery,
        is_high_priority=batch.is_high_priority,
        is_deferred_sync=batch.is_deferred_sync,
    )
    parts: list[bytes] = []
    for index, (txn_id, entry_id) in enumerate(zip(batch.txn_ids, batch.entry_ids, strict=True)):
        packer.append(parts, txn_id, entry_id, batch.records.body(index))
    return [b"".join(parts)]


def adds_as_v3(frames: bytes, first_txn_id: int, *, is_deferred_sync: bool = False) -> tuple[bytes, int]:
    """The v3 form of v2 ADD frames that share ledger, key and flags: (frames, transaction id behind the last).

    Transaction ids are consecutive from `first_txn_id` on, in the order of the frames.
    """
    starts, _ = kernels.scan_frames(frames, 0, len(frames))
    index, batch = v2.parse_adds(frames, starts, 0)
    assert index == len(starts) - 1
    assert starts[-1] == len(frames)
    txn_id = first_txn_id + len(batch.records)
    batch.txn_ids, batch.is_deferred_sync = range(first_txn_id, txn_id), is_deferred_sync
    (packed,) = _pack_add_batch(batch)
    assert isinstance(packed, bytes)
    return packed, txn_id


# Responses


def parse_responses(buffer: bytes, starts: Sequence[int], index: int, responses: list[Response]) -> int:
    """Append the response in frame `index`; the answer to an add is merged into an equal one just before it.

    Returns the index of the next frame. Raises RemoteProtocolError for a message that is not a `Response`.
    """
    values = schema.RESPONSE.parse(buffer, starts[index] + 4, starts[index + 1])
    operation = OPERATION_OF_CODE[values["header"]["operation"]]
    txn_id = values["header"]["txnId"]
    fields: Values | None = values.get(RESPONSE_NAME.get(operation, ""))
    status = STATUS_OF_CODE[values["status"]]
    if status is Status.OK and fields is not None:
        # Of the two status fields the outer one counts unless it says OK. Source: wire-protocol 3.4.
        status = STATUS_OF_CODE[fields.get("status", 0)]
    if operation is Operation.ADD and fields is not None:
        ledger_id, entry_id = fields["ledgerId"], fields["entryId"]
        last = responses[-1] if responses else None
        if type(last) is AddResponses and last.ledger_id == ledger_id and last.status is status:
            assert isinstance(last.entry_ids, list)
            assert isinstance(last.txn_ids, list)
            last.entry_ids.append(entry_id)
            last.txn_ids.append(txn_id)
        else:
            responses.append(AddResponses(VERSION, status, ledger_id, [entry_id], [txn_id]))
    else:
        responses.append(_response_of(operation, txn_id, status, fields))
    return index + 1


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
            return WriteLacResponse(VERSION, txn_id, status, fields["ledgerId"])
        case Operation.READ_LAC:
            bodies = fields.get("lacBody"), fields.get("lastEntryBody")
            return ReadLacResponse(VERSION, txn_id, status, fields["ledgerId"], *bodies)
        case Operation.GET_BOOKIE_INFO:
            sizes = fields.get("totalDiskCapacity"), fields.get("freeDiskSpace")
            return GetBookieInfoResponse(VERSION, txn_id, status, *sizes)
        case Operation.FORCE_LEDGER:
            return ForceLedgerResponse(VERSION, txn_id, status, fields["ledgerId"])
        case _:
            availability = fields.get("availabilityOfEntriesOfLedger")
            return ListEntriesResponse(VERSION, txn_id, status, fields["ledgerId"], availability)


def pack_response(response: Response) -> list[Buffer]:
    """The frame of a response, or the frames of a batch of answers to adds (which needs `txn_ids`)."""
    if isinstance(response, AddResponses):
        return [_pack_add_responses(response)]
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
            return Operation.WRITE_LAC, {"ledgerId": response.ledger_id}
        case ReadLacResponse():
            return Operation.READ_LAC, {
                "ledgerId": response.ledger_id,
                "lacBody": response.lac_body,
                "lastEntryBody": response.last_entry_body,
            }
        case GetBookieInfoResponse():
            sizes = {"totalDiskCapacity": response.total_disk_capacity, "freeDiskSpace": response.free_disk_space}
            return Operation.GET_BOOKIE_INFO, sizes if is_ok else {}
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
    status = pack_varint(CODE_OF_STATUS[response.status])
    middle = b"\x10" + status + b"\xaa\x06"
    inner = b"\x08" + status + b"\x10" + pack_varint(response.ledger_id) + b"\x18"
    parts: list[bytes] = []
    for txn_id, entry_id in zip(response.txn_ids, response.entry_ids, strict=True):
        header = b"\x08\x03\x10\x02\x18" + pack_varint(txn_id)
        entry = pack_varint(entry_id)
        size = 3 + len(header) + len(middle) + len(inner) + len(entry)
        inner_size = len(inner) + len(entry)
        parts.append(b"\x00\x00\x00%c\x0a%c%b%b%c%b%b" % (size, len(header), header, middle, inner_size, inner, entry))
    return b"".join(parts)
