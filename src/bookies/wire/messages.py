"""Requests and responses as values, independent of the protocol version.

The add path never makes an object per entry: consecutive adds on a connection travel as one `AddRequest`, whose entries
are `Records`, the framing that journal, entry log and batch-read response share:

    record := uint32 length, big-endian | length bytes (the entry body: header, digest, payload)

`version` is the protocol version byte of a v2 request (0, 1 or 2), or 3; in refusals of other v2 versions, 256 plus
the byte. `txn_id` is the transaction id of v3, and for v2 batch reads the request id. Source: wire-protocol 2 to 5.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from msgspec import Struct

from bookies.errors import Status
from bookies.kernels import Adds

Buffer = bytes | bytearray | memoryview


class Operation(enum.Enum):
    __hash__ = object.__hash__  # as that of `Status`

    ADD = "add"
    READ = "read"
    BATCH_READ = "batch read"
    AUTH = "auth"
    WRITE_LAC = "write LAC"
    READ_LAC = "read LAC"
    GET_BOOKIE_INFO = "get bookie info"
    START_TLS = "start TLS"
    FORCE_LEDGER = "force ledger"
    LIST_ENTRIES = "list entries"
    RANGE_READ = "range read"  # numbers without an implementation: BAD_REQUEST
    RANGE_ADD = "range add"


class AddRequest(Struct):
    """Adds that arrived one after the other with the same key and flags, of one or more ledgers.

    `txn_ids`: v3 only, one for each entry; such a request has one ledger. The ledger ids are those in the bodies
    (wire-protocol 5.4). `trace`: v3 only, see `v3_context`; such a request has one entry.
    """

    version: int
    master_key: bytes
    adds: Adds
    is_recovery: bool = False
    is_high_priority: bool = False
    is_deferred_sync: bool = False
    txn_ids: Sequence[int] | None = None
    trace: str = ""


class ReadRequest(Struct):
    """Read of one entry; `entry_id` -1 asks for the highest. With `previous_lac`: a long poll.

    `trace`: v3 only, see `v3_context`. Source: wire-protocol 5.5 to 5.7.
    """

    version: int
    txn_id: int
    ledger_id: int
    entry_id: int
    master_key: bytes | None = None
    is_fencing: bool = False
    is_high_priority: bool = False
    previous_lac: int | None = None
    timeout_ms: int | None = None
    wants_piggyback: bool = False
    trace: str = ""


class BatchReadRequest(Struct):
    version: int
    txn_id: int
    ledger_id: int
    entry_id: int
    count_max: int
    size_max: int
    master_key: bytes | None = None
    is_fencing: bool = False
    is_high_priority: bool = False


class AuthRequest(Struct):
    version: int
    txn_id: int
    plugin: str
    payload: bytes


class WriteLacRequest(Struct):
    """Explicit LAC. `body` is the LAC packet (wire-protocol 4.5); its ledger and LAC are the ones that count.

    `asks_readers`: the answer is to tell whether readers wait for news of the ledger; bookies of Apache's do not.
    """

    version: int
    txn_id: int
    ledger_id: int
    last_add_confirmed: int
    master_key: bytes
    body: bytes
    asks_readers: bool = False


class ReadLacRequest(Struct):
    version: int
    txn_id: int
    ledger_id: int


class GetBookieInfoRequest(Struct):
    version: int
    txn_id: int
    requested: int  # bits: 1 total disk capacity, 2 free disk space, 4 what clients read (ours: Apache's ignore it)


class ForceLedgerRequest(Struct):
    version: int
    txn_id: int
    ledger_id: int


class ListEntriesRequest(Struct):
    version: int
    txn_id: int
    ledger_id: int


class StartTlsRequest(Struct):
    version: int
    txn_id: int


class InvalidRequest(Struct):
    """A request that decodes but cannot be served; answered with `status` alone.

    An add whose body is shorter than 24 bytes, names other ids than its message, or negative ones; a v2 version byte
    above 2, a v3 header version below 3; a v3 operation without its message or without an implementation. The ids are
    echoed where they are known.
    """

    version: int
    txn_id: int
    operation: Operation
    status: Status
    ledger_id: int = -1
    entry_id: int = -1


Request = (
    AddRequest
    | ReadRequest
    | BatchReadRequest
    | AuthRequest
    | WriteLacRequest
    | ReadLacRequest
    | GetBookieInfoRequest
    | ForceLedgerRequest
    | ListEntriesRequest
    | StartTlsRequest
    | InvalidRequest
)


class AddResponses(Struct):
    """Answers to adds of one ledger, all with the same status."""

    version: int
    status: Status
    ledger_id: int
    entry_ids: Sequence[int]
    txn_ids: Sequence[int] | None = None


class ReadResponse(Struct):
    """Answer to a read. `entry_id` is the one echoed (-1 stays -1, except for a long poll that returns its entry)."""

    version: int
    txn_id: int
    status: Status
    ledger_id: int
    entry_id: int
    body: Buffer | None = None
    max_lac: int | None = None
    lac_update_ms: int | None = None


class BatchReadResponse(Struct):
    """Answer to a batch read. `records`: from `start` on, consecutive entries from `entry_id` on, framed as stored;
    empty unless OK."""

    version: int
    txn_id: int
    status: Status
    ledger_id: int
    entry_id: int
    records: Buffer = b""
    start: int = 0


class AuthResponse(Struct):
    version: int
    txn_id: int
    status: Status
    plugin: str
    payload: bytes


class WriteLacResponse(Struct):
    """`has_readers`: whether readers waited for news of the ledger; None: not asked, or a bookie of Apache's."""

    version: int
    txn_id: int
    status: Status
    ledger_id: int
    has_readers: bool | None = None


class ReadLacResponse(Struct):
    version: int
    txn_id: int
    status: Status
    ledger_id: int
    lac_body: bytes | None = None
    last_entry_body: Buffer | None = None


class GetBookieInfoResponse(Struct):
    version: int
    txn_id: int
    status: Status
    total_disk_capacity: int | None = None
    free_disk_space: int | None = None
    read_rate: int | None = None  # bytes per second
    read_ledgers: bytes | None = None  # `protocol/pacing/read_rates.py`
    owed_entries: int | None = None  # that the bookie has lost


class ForceLedgerResponse(Struct):
    version: int
    txn_id: int
    status: Status
    ledger_id: int


class ListEntriesResponse(Struct):
    """Answer to list-entries. `availability` is the encoded list of wire-protocol 5.10."""

    version: int
    txn_id: int
    status: Status
    ledger_id: int
    availability: bytes | None = None


class StartTlsResponse(Struct):
    version: int
    txn_id: int
    status: Status


class BareResponse(Struct):
    """The answer to an `InvalidRequest`, or to anything before authentication.

    v2: without a body. v3: header and status only, unless there is a ledger id or the status is BAD_VERSION, which
    come with the operation's own message. Source: wire-protocol 3.4.
    """

    version: int
    txn_id: int
    operation: Operation
    status: Status
    ledger_id: int = -1
    entry_id: int = -1


Response = (
    AddResponses
    | ReadResponse
    | BatchReadResponse
    | AuthResponse
    | WriteLacResponse
    | ReadLacResponse
    | GetBookieInfoResponse
    | ForceLedgerResponse
    | ListEntriesResponse
    | StartTlsResponse
    | BareResponse
)
