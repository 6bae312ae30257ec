"""Formats of auto-recovery's records: Apache's bytes, in every store. No IO. Source: metadata 0.1, 2 and 8."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from bookies.encoding import protobuf
from bookies.encoding.protobuf import Schema
from bookies.errors import MetadataCorrupt
from bookies.metadata.interface.recovery_store import AuditKind
from bookies.model import BookieId

_ID_MAX = (1 << 63) - 1
_MARK = Schema({"replica": (1, "bytes"), "ctime": (2, "int")})
_OWNER = Schema({"bookieId": (1, "bytes")})  # in locks and votes
_LAYOUT = Schema({"type": (1, "bytes"), "version": (2, "int")})
_CHECKED = Schema({"ctime": (1, "int")})
_LEAF = re.compile(r"urL([0-9]{10,19})")

LAYOUT = b'type: "BASIC"\nversion: 1\n'


# -- names -------------------------------------------------------------------------------------------------------------


def leaf(ledger_id: int) -> str:
    """Return the name of a ledger's mark and lock. Source: metadata 8.4."""
    return f"urL{ledger_id:010d}"


def ledger_of(name: str) -> int | None:
    """Return the ledger of a mark's or lock's name; None for another name. Inverse of `leaf`."""
    match = _LEAF.fullmatch(name)
    ledger_id = -1 if match is None else int(match[1])
    return ledger_id if 0 <= ledger_id <= _ID_MAX and name == leaf(ledger_id) else None


_CHECK_TIMES = {
    AuditKind.ALL_LEDGERS: "checkallledgersctime",
    AuditKind.PLACEMENT: "placementpolicycheckctime",
    AuditKind.REPLICAS: "replicascheckctime",
}


def kind_below(rest: str) -> str:
    """Return the kind of a node below auto-recovery's top, in a word, for request counts. Empty for the top."""
    first = rest.partition("/")[0]
    return "marks" if first == "ledgers" else first


class SinglePlaces(Struct, frozen=True):
    """Places of auto-recovery's single nodes below `top`, by Apache's names. Source: metadata 2.1 and 8."""

    top: str

    @property
    def switch(self) -> str:
        return f"{self.top}/disable"

    @property
    def delay(self) -> str:
        return f"{self.top}/lostBookieRecoveryDelay"

    def checked(self, kind: AuditKind) -> str:
        return f"{self.top}/{_CHECK_TIMES[kind]}"

    @property
    def election(self) -> str:
        return f"{self.top}/auditorelection"


# -- marks -------------------------------------------------------------------------------------------------------------


def pack_mark(replicas: Sequence[BookieId], ctime_ms: int | None) -> bytes:
    """Return a mark's bytes. `ctime_ms`: wall clock; None: no time is stored."""
    message: list[tuple[str, protobuf.Value]] = [("replica", replica.encode("utf-8")) for replica in replicas]
    return protobuf.pack_text(_MARK, message if ctime_ms is None else [*message, ("ctime", ctime_ms)])


def parse_mark(data: bytes) -> tuple[tuple[BookieId, ...], int | None]:
    """Read a mark's replicas and time. Unreadable bytes give no replicas and no time; the ledger is still marked."""
    replicas: dict[BookieId, None] = {}
    ctime_ms = None
    try:
        for name, value in protobuf.parse_text(_MARK, data):
            if isinstance(value, bytes):
                replicas[BookieId(value.decode("utf-8"))] = None
            elif isinstance(value, int) and name == "ctime":
                ctime_ms = value
    except ValueError:
        return (), None
    return tuple(replicas), ctime_ms


# -- locks and votes ---------------------------------------------------------------------------------------------------


def pack_owner(owner: str) -> bytes:
    """Return the bytes of a lock or vote. `owner`: the lock holder's host name, or the candidate's bookie id."""
    return protobuf.pack_text(_OWNER, [("bookieId", owner.encode("utf-8"))])


def parse_owner(data: bytes) -> str:
    """Read the owner of a lock or vote; empty if the bytes cannot be read."""
    try:
        values = [value for _, value in protobuf.parse_text(_OWNER, data)]
        return values[-1].decode("utf-8") if values and isinstance(values[-1], bytes) else ""
    except ValueError:
        return ""


# -- the rest ----------------------------------------------------------------------------------------------------------


def check_layout(data: bytes) -> None:
    """Check the LAYOUT of auto-recovery's records. Raises `MetadataCorrupt` for any but the known one."""
    try:
        layout = dict(protobuf.parse_text(_LAYOUT, data))
    except ValueError as error:
        raise MetadataCorrupt(f"the layout of auto-recovery's records cannot be read: {error}") from error
    if layout != {"type": b"BASIC", "version": 1}:
        raise MetadataCorrupt(
            f"auto-recovery's records have the layout {data!r:.120}, which this version of bookies does not know"
        )


def pack_delay(delay_s: int) -> bytes:
    return str(delay_s).encode("ascii")


def parse_delay(data: bytes) -> int:
    """Read the lost-bookie delay, in seconds. Raises `MetadataCorrupt`."""
    try:
        delay_s = int(data.decode("ascii"))
        if delay_s < 0:
            raise ValueError("negative")
        return delay_s
    except ValueError as error:
        next_step = "set it again with `bk recovery delay` or Apache's lostbookierecoverydelay"
        raise MetadataCorrupt(
            f"the delay for lost bookies is {data!r:.40}, which is not a number of seconds: {next_step}"
        ) from error


def pack_checked(at_ms: int) -> bytes:
    return protobuf.pack(_CHECKED, [("ctime", at_ms)])


def parse_checked(data: bytes) -> int | None:
    """Read when a check was completed, wall clock. Unreadable bytes count as never: None."""
    try:
        return next((value for _, value in protobuf.parse(_CHECKED, data) if isinstance(value, int)), None)
    except ValueError:
        return None
