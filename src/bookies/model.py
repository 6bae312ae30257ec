"""Frozen values that all layers share: ids, digests, ledger metadata, the information that a bookie publishes.

Source: client-protocol 1.1 to 1.2, metadata 4.2 and 6.2.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NewType

from msgspec import Struct, field
from msgspec.structs import replace

BookieId = NewType("BookieId", str)

INVALID_ENTRY_ID = -1
LAST_ENTRY = -1  # entry id of a read request: "the highest entry you have"
ENTRY_HEADER_SIZE = 32  # bytes: ledger id, entry id, last add confirmed, accumulated length (int64 each)
MASTER_KEY_SIZE = 20
# Characters of the names of logs, records and runs: every store and file system accepts them.
NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._")
FRAME_SIZE_MAX = 5 * 1024 * 1024  # bytes, the four of the length prefix included

Ensemble = tuple[BookieId, ...]


class DigestType(enum.IntEnum):
    """Digest types, numbered as in ledger metadata; `size` is the digest's size in an entry, in bytes."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4

    @property
    def size(self) -> int:
        return _DIGEST_SIZES[self]


_DIGEST_SIZES = {DigestType.CRC32: 8, DigestType.HMAC: 20, DigestType.CRC32C: 4, DigestType.DUMMY: 0}


class LedgerState(enum.IntEnum):
    """OPEN: being written; IN_RECOVERY: a recovery decides its end; CLOSED: sealed, its end will never change."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


class LedgerMetadata(Struct, frozen=True):
    """One ledger's record. `ensembles`: (first entry id, ensemble) pairs, ascending, never empty.

    `last_entry_id` and `length` mean something only when CLOSED; otherwise -1 and 0. `digest_type` and `password`
    are None only in ledgers of format 1. `ctime_ms` is stored in the record only when `stores_ctime`.
    """

    ledger_id: int
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    ensembles: tuple[tuple[int, Ensemble], ...]
    state: LedgerState = LedgerState.OPEN
    last_entry_id: int = INVALID_ENTRY_ID
    length: int = 0
    digest_type: DigestType | None = DigestType.CRC32C
    password: bytes | None = b""
    custom_metadata: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
    format_version: int = 3
    ctime_ms: int | None = None
    stores_ctime: bool = False
    creator_token: int = 0

    @property
    def is_closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    @property
    def last_fragment_first_entry(self) -> int:
        return self.ensembles[-1][0]

    @property
    def last_ensemble(self) -> Ensemble:
        return self.ensembles[-1][1]

    def fragment_index(self, entry_id: int) -> int:
        """Return the index in `ensembles` of the fragment that holds, or would hold, the entry."""
        if len(self.ensembles) == 1:
            return 0
        return max(0, bisect_right(self.ensembles, entry_id, key=lambda fragment: fragment[0]) - 1)

    def ensemble_at(self, entry_id: int) -> Ensemble:
        """Return the bookies of the fragment that the entry belongs to."""
        return self.ensembles[self.fragment_index(entry_id)][1]

    @property
    def bookies(self) -> list[BookieId]:
        """Return the bookies of all ensembles, each once, in the order of their first appearance."""
        return list(dict.fromkeys(bookie for _, ensemble in self.ensembles for bookie in ensemble))

    def names(self, bookie: str) -> bool:
        """Report whether any fragment has this bookie in its ensemble."""
        return any(bookie in ensemble for _, ensemble in self.ensembles)

    def replace(self, **changes: object) -> LedgerMetadata:
        """Return a copy with these fields changed."""
        return replace(self, **changes)

    def __repr__(self) -> str:
        """Return all fields but the password."""
        fragments = ", ".join(f"{first}: [{', '.join(ensemble)}]" for first, ensemble in self.ensembles)
        end = f" last_entry={self.last_entry_id} length={self.length}" if self.is_closed else ""
        digest = self.digest_type.name.lower() if self.digest_type else "unknown digest"
        return (
            f"<LedgerMetadata {self.ledger_id} {self.state.name} E{self.ensemble_size}/Qw{self.write_quorum}"
            f"/Qa{self.ack_quorum} {digest}{end} {{{fragments}}}>"
        )

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("", repr(self))]  # a struct's own method returns all fields


class BookieMode(enum.Enum):
    """The mode under which a bookie is registered."""

    WRITABLE = "writable"
    READ_ONLY = "read-only"


class Endpoint(Struct, frozen=True):
    """One endpoint that a bookie publishes. `protocol`: `bookie-rpc`, `http` and the like. Source: metadata 6.2."""

    id: str
    host: str
    port: int
    protocol: str
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


class BookieInfo(Struct, frozen=True):
    """The information that a bookie publishes. Source: metadata 6.2."""

    endpoints: tuple[Endpoint, ...] = ()
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def rpc_address(self) -> tuple[str, int] | None:
        """Return host and port of the endpoint that speaks the wire protocol."""
        for endpoint in self.endpoints:
            if endpoint.protocol == "bookie-rpc":
                return endpoint.host, endpoint.port
        return None

    def http_address(self) -> str | None:
        """Return the address of the bookie's HTTP server, such as `https://b1:8080`; None: it has none."""
        for endpoint in self.endpoints:
            if endpoint.id == "httpserver":
                return f"{endpoint.protocol}://{endpoint.host}:{endpoint.port}"
        return None


def fragments_of(metadata: LedgerMetadata, last_entry_id: int) -> Sequence[tuple[int, int, Ensemble]]:
    """Return (first, last, ensemble) of every non-empty fragment up to and including `last_entry_id`."""
    bounds = [first for first, _ in metadata.ensembles[1:]]
    bounds.append(last_entry_id + 1)
    return [
        (first, min(bound - 1, last_entry_id), ensemble)
        for (first, ensemble), bound in zip(metadata.ensembles, bounds, strict=True)
        if first <= min(bound - 1, last_entry_id)
    ]
