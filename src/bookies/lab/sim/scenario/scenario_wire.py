"""Single messages in scenarios: their names, the match of answers to requests, and forged answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bookies.errors import LocalProtocolError, Status
from bookies.kernels import Records
from bookies.wire.messages import (
    AddRequest,
    AddResponses,
    BareResponse,
    BatchReadRequest,
    BatchReadResponse,
    ForceLedgerRequest,
    ForceLedgerResponse,
    GetBookieInfoRequest,
    ListEntriesRequest,
    ListEntriesResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
    WriteLacRequest,
    WriteLacResponse,
)
from bookies.wire.server import encode_response

V3 = 3
CODE_OFFSET_V2 = 8  # of the error code in a v2 answer, from its length word
LIMBO_V2 = (107).to_bytes(4, "big")  # code of UNKNOWN_LEDGER_STATE, which this project's bookies never send over v2

# Names of messages in scenarios.
KINDS = [
    "add",
    "recovery-add",
    "read",
    "single-read",
    "batch-read",
    "recovery-read",
    "fence",
    "last-read",
    "long-poll",
    "read-lac",
    "write-lac",
    "force",
    "list",
    "info",
    "create",
    "write",
    "delete",
    "check",
    "mark",
    "unmark",
    "lock",
    "unlock",
    "any",
]
_NAMES: dict[type, str] = {  # of requests that need no distinction
    WriteLacRequest: "write-lac",
    ReadLacRequest: "read-lac",
    ForceLedgerRequest: "force",
    ListEntriesRequest: "list",
    GetBookieInfoRequest: "info",
}
_ANSWERS: dict[type, Callable[..., Response]] = {  # of requests that only name a ledger
    WriteLacRequest: WriteLacResponse,
    ReadLacRequest: ReadLacResponse,
    ForceLedgerRequest: ForceLedgerResponse,
    ListEntriesRequest: ListEntriesResponse,
}


def kinds_of(request: Request) -> tuple[tuple[str, ...], int]:
    """Return the names of a request, the most precise first, and its entry; -1: about no single entry."""
    if isinstance(request, AddRequest):
        return (("recovery-add",) if request.is_recovery else ("add",)), request.adds.entry_ids[0]
    if isinstance(request, BatchReadRequest):
        return (("recovery-read", "batch-read") if request.is_fencing else ("batch-read", "read")), request.entry_id
    if isinstance(request, ReadRequest):
        if request.previous_lac is not None:
            return ("long-poll",), request.previous_lac + 1
        if request.is_fencing:
            return (("fence",) if request.entry_id < 0 else ("recovery-read", "single-read")), request.entry_id
        return (("last-read",) if request.entry_id < 0 else ("single-read", "read")), request.entry_id
    entry_id = request.last_add_confirmed if isinstance(request, WriteLacRequest) else -1
    return (_NAMES.get(type(request), "other"),), entry_id


def key_of(message: Any) -> tuple[object, ...]:
    """Return a key that an answer shares with its request."""
    if isinstance(message, AddRequest | AddResponses):
        if message.txn_ids is not None:
            return V3, message.txn_ids[0]
        if isinstance(message, AddRequest):
            return "add", message.adds.first_ledger_id, message.adds.entry_ids[0]
        return "add", message.ledger_id, message.entry_ids[0]
    if message.version == V3:
        return V3, message.txn_id
    if isinstance(message, BatchReadRequest | BatchReadResponse):
        return "batch", message.txn_id
    if isinstance(message, ReadRequest | ReadResponse):
        return "read", message.ledger_id, message.entry_id
    if isinstance(message, BareResponse):
        return message.operation.value, message.ledger_id, message.entry_id
    return ("other",)


def pack_answer(request: Request, status: Status, body: bytes) -> bytes:
    """Return the frame of a bookie's answer with this status. `body`: of a read that is answered OK."""
    response: Response
    if isinstance(request, AddRequest):
        response = AddResponses(
            request.version, status, request.adds.first_ledger_id, request.adds.entry_ids, request.txn_ids
        )
    elif isinstance(request, ReadRequest):
        response = ReadResponse(request.version, request.txn_id, status, request.ledger_id, request.entry_id, body)
    elif isinstance(request, BatchReadRequest):
        response = BatchReadResponse(
            request.version, request.txn_id, status, request.ledger_id, request.entry_id, Records.of([body]).data
        )
    elif isinstance(request, WriteLacRequest | ReadLacRequest | ForceLedgerRequest | ListEntriesRequest):
        response = _ANSWERS[type(request)](request.version, request.txn_id, status, request.ledger_id)
    else:
        raise LocalProtocolError(f"a scenario cannot answer a {type(request).__name__}")
    frame = b"".join(bytes(part) for part in encode_response(response))
    if status is Status.UNKNOWN_LEDGER_STATE and response.version != V3:
        frame = frame[:CODE_OFFSET_V2] + LIMBO_V2 + frame[CODE_OFFSET_V2 + 4 :]
    return frame
