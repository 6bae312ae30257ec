"""The messages and numbers of the v3 protocol. Source: wire-protocol 3.1 to 3.3 and 2.5."""

from __future__ import annotations

from bookies.errors import Status
from bookies.wire.messages import Operation
from bookies.wire.protobuf import Field, Kind, Message

VERSION_THREE = 3
PRIORITY_HIGH = 100  # what clients send for ledger recovery; any value above 0 is high
READ_FLAG_FENCE, READ_FLAG_PIGGYBACK = 1, 2  # an enum: at most one of them
ADD_FLAG_RECOVERY = 1
WRITE_FLAG_DEFERRED_SYNC = 1  # a bit

STATUS_OF_CODE = {
    0: Status.OK,
    402: Status.NO_LEDGER,
    403: Status.NO_ENTRY,
    404: Status.BAD_REQUEST,
    501: Status.IO_ERROR,
    502: Status.UNAUTHORIZED,
    503: Status.BAD_VERSION,
    504: Status.FENCED,
    505: Status.READ_ONLY,
    506: Status.TOO_MANY_REQUESTS,
    507: Status.UNKNOWN_LEDGER_STATE,
}
CODE_OF_STATUS = {status: code for code, status in STATUS_OF_CODE.items()}

OPERATION_OF_CODE = {
    1: Operation.READ,
    2: Operation.ADD,
    3: Operation.RANGE_READ,
    4: Operation.RANGE_ADD,
    5: Operation.AUTH,
    6: Operation.WRITE_LAC,
    7: Operation.READ_LAC,
    8: Operation.GET_BOOKIE_INFO,
    9: Operation.START_TLS,
    10: Operation.FORCE_LEDGER,
    11: Operation.LIST_ENTRIES,
    12: Operation.BATCH_READ,
}
CODE_OF_OPERATION = {operation: code for code, operation in OPERATION_OF_CODE.items()}

_VERSIONS = frozenset({1, 2, VERSION_THREE})
_STATUSES = frozenset(STATUS_OF_CODE)
_STATUS = Field(1, "status", Kind.ENUM, _STATUSES, required=True)


def _ledger(number: int) -> Field:
    return Field(number, "ledgerId", Kind.INT64, required=True)


HEADER = Message(
    Field(1, "version", Kind.ENUM, _VERSIONS, required=True),
    Field(2, "operation", Kind.ENUM, frozenset(OPERATION_OF_CODE), required=True),
    Field(3, "txnId", Kind.UINT64, required=True),
    Field(4, "priority", Kind.UINT32),
)
CONTEXT_PAIR = Message(Field(1, "key", Kind.STRING, required=True), Field(2, "value", Kind.STRING, required=True))
AUTH_MESSAGE = Message(
    Field(1, "authPluginName", Kind.STRING, required=True), Field(2, "payload", Kind.BYTES, required=True)
)
NO_FIELDS = Message()

READ_REQUEST = Message(
    _ledger(1),
    Field(2, "entryId", Kind.INT64, required=True),
    Field(3, "masterKey", Kind.BYTES),
    Field(4, "previousLAC", Kind.INT64),
    Field(5, "timeOut", Kind.INT64),
    Field(100, "flag", Kind.ENUM, frozenset({READ_FLAG_FENCE, READ_FLAG_PIGGYBACK})),
)
ADD_REQUEST = Message(
    _ledger(1),
    Field(2, "entryId", Kind.INT64, required=True),
    Field(3, "masterKey", Kind.BYTES, required=True),
    Field(4, "body", Kind.BYTES, required=True),
    Field(5, "writeFlags", Kind.INT32),
    Field(100, "flag", Kind.ENUM, frozenset({ADD_FLAG_RECOVERY})),
)
WRITE_LAC_REQUEST = Message(
    _ledger(1),
    Field(2, "lac", Kind.INT64, required=True),
    Field(3, "masterKey", Kind.BYTES, required=True),
    Field(4, "body", Kind.BYTES, required=True),
    Field(100, "asksReaders", Kind.INT32),  # ours, as the response's: Apache's skip both
)
LEDGER_REQUEST = Message(_ledger(1))
GET_BOOKIE_INFO_REQUEST = Message(Field(1, "requested", Kind.INT64))

REQUEST = Message(
    Field(1, "header", Kind.MESSAGE, HEADER, required=True),
    Field(100, "readRequest", Kind.MESSAGE, READ_REQUEST),
    Field(101, "addRequest", Kind.MESSAGE, ADD_REQUEST),
    Field(102, "authRequest", Kind.MESSAGE, AUTH_MESSAGE),
    Field(103, "writeLacRequest", Kind.MESSAGE, WRITE_LAC_REQUEST),
    Field(104, "readLacRequest", Kind.MESSAGE, LEDGER_REQUEST),
    Field(105, "getBookieInfoRequest", Kind.MESSAGE, GET_BOOKIE_INFO_REQUEST),
    Field(106, "startTLSRequest", Kind.MESSAGE, NO_FIELDS),
    Field(107, "forceLedgerRequest", Kind.MESSAGE, LEDGER_REQUEST),
    Field(108, "getListOfEntriesOfLedgerRequest", Kind.MESSAGE, LEDGER_REQUEST),
    Field(200, "requestContext", Kind.REPEATED_MESSAGE, CONTEXT_PAIR),
)

READ_RESPONSE = Message(
    _STATUS,
    _ledger(2),
    Field(3, "entryId", Kind.INT64, required=True),
    Field(4, "body", Kind.BYTES),
    Field(5, "maxLAC", Kind.INT64),
    Field(6, "lacUpdateTimestamp", Kind.INT64),
)
ADD_RESPONSE = Message(_STATUS, _ledger(2), Field(3, "entryId", Kind.INT64, required=True))
LEDGER_RESPONSE = Message(_STATUS, _ledger(2))
WRITE_LAC_RESPONSE = Message(_STATUS, _ledger(2), Field(100, "hasReaders", Kind.INT32))
READ_LAC_RESPONSE = Message(_STATUS, _ledger(2), Field(3, "lacBody", Kind.BYTES), Field(4, "lastEntryBody", Kind.BYTES))
GET_BOOKIE_INFO_RESPONSE = Message(
    _STATUS,
    Field(2, "totalDiskCapacity", Kind.INT64),
    Field(3, "freeDiskSpace", Kind.INT64),
    Field(100, "readRate", Kind.INT64),  # ours, sent on request only
    Field(101, "readLedgers", Kind.BYTES),
    Field(102, "owedEntries", Kind.INT64),
)
LIST_ENTRIES_RESPONSE = Message(_STATUS, _ledger(2), Field(3, "availabilityOfEntriesOfLedger", Kind.BYTES))

RESPONSE = Message(
    Field(1, "header", Kind.MESSAGE, HEADER, required=True),
    Field(2, "status", Kind.ENUM, _STATUSES, required=True),
    Field(100, "readResponse", Kind.MESSAGE, READ_RESPONSE),
    Field(101, "addResponse", Kind.MESSAGE, ADD_RESPONSE),
    Field(102, "authResponse", Kind.MESSAGE, AUTH_MESSAGE),
    Field(103, "writeLacResponse", Kind.MESSAGE, WRITE_LAC_RESPONSE),
    Field(104, "readLacResponse", Kind.MESSAGE, READ_LAC_RESPONSE),
    Field(105, "getBookieInfoResponse", Kind.MESSAGE, GET_BOOKIE_INFO_RESPONSE),
    Field(106, "startTLSResponse", Kind.MESSAGE, NO_FIELDS),
    Field(107, "forceLedgerResponse", Kind.MESSAGE, LEDGER_RESPONSE),
    Field(108, "getListOfEntriesOfLedgerResponse", Kind.MESSAGE, LIST_ENTRIES_RESPONSE),
)

# Operations with messages of their own -> the stem of their fields' names in the envelopes.
STEM_OF_OPERATION = {
    Operation.READ: "read",
    Operation.ADD: "add",
    Operation.AUTH: "auth",
    Operation.WRITE_LAC: "writeLac",
    Operation.READ_LAC: "readLac",
    Operation.GET_BOOKIE_INFO: "getBookieInfo",
    Operation.START_TLS: "startTLS",
    Operation.FORCE_LEDGER: "forceLedger",
    Operation.LIST_ENTRIES: "getListOfEntriesOfLedger",
}
REQUEST_NAME = {operation: stem + "Request" for operation, stem in STEM_OF_OPERATION.items()}
RESPONSE_NAME = {operation: stem + "Response" for operation, stem in STEM_OF_OPERATION.items()}
