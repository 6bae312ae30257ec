"""A cluster's metadata as lines of JSON: what `bk metadata dump` writes and `bk metadata load` reads.

    {"kind": "cluster", "format": 1, "instance_id": ..., "from": ...}       the first line
    {"kind": "ids", "next_id": ..., "spent": [[first, last], ...]}
    {"kind": "cookie", "bookie": ..., "data": ...}
    {"kind": "record", "name": ..., "data": ...}
    {"kind": "recovery", "enabled": ..., "delay_s": ..., "checked_at_ms": {"all ledgers": ...}}
    {"kind": "mark", "ledger": ..., "replicas": [...], "ctime_ms": ...}
    {"kind": "ledger", "ledger": ..., "state": ..., "ensembles": [{"first": 0, "bookies": [...]}], ...}
    {"kind": "ids", ...}                                                    again: other clients may go on meanwhile
    {"kind": "end", "lines": ...}                                           the last line; without it the dump is cut

Bytes are text if they are UTF-8, else `{"base64": ...}`. A ledger's password is null unless it was requested or is
empty. A ledger whose record cannot be read is `{"kind": "damaged", "ledger": ..., "reason": ...}`.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from bookies.encoding.documents import parse_json
from bookies.errors import InvalidArgument, MetadataCorrupt
from bookies.metadata.formats import pack_ledger
from bookies.metadata.formats.recovery_items import RecoverySettings, UnderReplicated
from bookies.metadata.formats.serde import is_bookie_id
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import GivenIds, check_record
from bookies.metadata.interface.recovery_store import AuditKind
from bookies.metadata.interface.spent_ids import joined, without
from bookies.metadata.transfer import Damaged, Item, NamedRecord, StoredCookie, read_items
from bookies.model import BookieId, DigestType, LedgerMetadata, LedgerState
from bookies.protocol.quorums import IdSet

FORMAT = 1
IDS_SKIPPED = 1_000_000  # ledger ids that a cluster may have used after its dump


async def dump_lines(driver: MetadataDriver, *, passwords: bool) -> AsyncIterator[tuple[Item | None, dict[str, Any]]]:
    """Yield every line of a dump, with its item; None: the first or the last line. Raises `MetadataError`."""
    yield None, {"kind": "cluster", "format": FORMAT, "instance_id": await driver.instance_id(), "from": driver.uri}
    count = 3
    async for item in read_items(driver):
        yield item, pack_item(item, passwords=passwords)
        count += 1
    ids = await driver.given_ids()
    yield ids, pack_item(ids, passwords=passwords)
    yield None, {"kind": "end", "lines": count}


def ids_of(lines: Sequence[GivenIds], ledger_ids: Iterable[int]) -> GivenIds:
    """Return the ids that no new ledger may get: those of all lines. A ledger that was deleted during the dump may be
    in `ledger_ids`, the ledgers of the dump; its id is not spent, so that it can be restored.
    """
    spent = IdSet(0)
    for ids in lines:
        for first, last in ids.spent:
            spent.add(first, last + 1)
    for ledger_id in ledger_ids:
        if ledger_id in spent:
            spent = without(spent, ledger_id)
    return GivenIds(max((ids.next_id for ids in lines), default=0), joined({0: spent}))


def pack_item(item: Item, *, passwords: bool) -> dict[str, Any]:
    """Return an item's line. `passwords`: include ledgers' passwords, without which a dump cannot be loaded."""
    if isinstance(item, GivenIds):
        return {"kind": "ids", "next_id": item.next_id, "spent": [list(run) for run in item.spent]}
    if isinstance(item, StoredCookie):
        return {"kind": "cookie", "bookie": item.bookie, "data": pack_bytes(item.data)}
    if isinstance(item, NamedRecord):
        return {"kind": "record", "name": item.name, "data": pack_bytes(item.data)}
    if isinstance(item, RecoverySettings):
        checked = {kind.value: at_ms for kind, at_ms in item.checked_at_ms}
        return {"kind": "recovery", "enabled": item.is_enabled, "delay_s": item.delay_s, "checked_at_ms": checked}
    if isinstance(item, UnderReplicated):
        return {
            "kind": "mark",
            "ledger": item.ledger_id,
            "replicas": list(item.replicas),
            "ctime_ms": item.ctime_ms,
        }
    if isinstance(item, Damaged):
        return {"kind": "damaged", "ledger": item.ledger_id, "reason": item.reason}
    is_shown = item.password is not None and (passwords or not item.password)
    return {
        "kind": "ledger",
        "ledger": item.ledger_id,
        "state": item.state.name.lower(),
        "ensemble_size": item.ensemble_size,
        "write_quorum": item.write_quorum,
        "ack_quorum": item.ack_quorum,
        "ensembles": [{"first": first, "bookies": list(ensemble)} for first, ensemble in item.ensembles],
        "last_entry": item.last_entry_id,
        "length": item.length,
        "digest": None if item.digest_type is None else item.digest_type.name.lower(),
        "password": pack_bytes(item.password) if is_shown and item.password is not None else None,
        "custom_metadata": {key: pack_bytes(value) for key, value in item.custom_metadata.items()},
        "format": item.format_version,
        "ctime_ms": item.ctime_ms,
        "stores_ctime": item.stores_ctime,
        "creator_token": item.creator_token,
    }


def parse_line(text: str) -> dict[str, Any]:
    """Parse a line of a dump. Raises `InvalidArgument` for any other text."""
    try:
        line = parse_json(text)
        if not isinstance(line, dict) or not isinstance(line.get("kind"), str):
            raise ValueError("it has no kind")
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{text[:60]!r} is not a line of `bk metadata dump`: {error}") from error
    return line


def parse_item(line: Mapping[str, Any]) -> Item:
    """Return the item of a line.

    Raises `InvalidArgument`, also for a ledger whose password was left out, and for an item that cannot be stored.
    """
    kind = line["kind"]
    try:
        if kind == "ids":
            return _parse_ids(line)
        if kind == "cookie":
            if not is_bookie_id(line["bookie"]):
                raise ValueError(f"{line['bookie']!r} is not a bookie id")
            return StoredCookie(BookieId(line["bookie"]), parse_bytes(line["data"]))
        if kind == "record":
            check_record(line["name"])
            return NamedRecord(line["name"], parse_bytes(line["data"]))
        if kind == "recovery":
            return _parse_settings(line)
        if kind == "mark":
            return UnderReplicated(
                int(line["ledger"]), tuple(map(BookieId, line["replicas"])), _optional(line["ctime_ms"])
            )
        if kind == "damaged":
            return Damaged(int(line["ledger"]), str(line["reason"]))
        if kind == "ledger":
            return _parse_ledger(line)
    except InvalidArgument:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(f"a line of kind {kind} cannot be read: {error!r}") from error
    raise InvalidArgument(f"a line has the kind {kind!r}, which this version of bookies does not know")


def _parse_ids(line: Mapping[str, Any]) -> GivenIds:
    ids = GivenIds(int(line["next_id"]), tuple((int(first), int(last)) for first, last in line["spent"]))
    if ids.next_id < 0 or any(not 0 <= first <= last for first, last in ids.spent):
        raise ValueError("an id is below 0, or a run of spent ids ends before it begins")
    return ids


def _parse_settings(line: Mapping[str, Any]) -> RecoverySettings:
    checked = {kind: line["checked_at_ms"].get(kind.value) for kind in AuditKind}
    return RecoverySettings(
        bool(line["enabled"]),
        _optional(line["delay_s"]),
        tuple((kind, int(at_ms)) for kind, at_ms in checked.items() if at_ms is not None),
    )


def _optional(value: Any) -> int | None:
    return None if value is None else int(value)


def _parse_ledger(line: Mapping[str, Any]) -> LedgerMetadata:
    digest = None if line["digest"] is None else DigestType[line["digest"].upper()]
    if digest is not None and line["password"] is None:
        raise InvalidArgument(
            f"the password of ledger {line['ledger']} is not in the dump, and clients cannot read the ledger without "
            "it: dump again with --passwords"
        )
    metadata = LedgerMetadata(
        ledger_id=int(line["ledger"]),
        ensemble_size=int(line["ensemble_size"]),
        write_quorum=int(line["write_quorum"]),
        ack_quorum=int(line["ack_quorum"]),
        ensembles=tuple(
            (int(ensemble["first"]), tuple(map(BookieId, ensemble["bookies"]))) for ensemble in line["ensembles"]
        ),
        state=LedgerState[line["state"].upper()],
        last_entry_id=int(line["last_entry"]),
        length=int(line["length"]),
        digest_type=digest,
        password=None if line["password"] is None else parse_bytes(line["password"]),
        custom_metadata={key: parse_bytes(value) for key, value in line["custom_metadata"].items()},
        format_version=int(line["format"]),
        ctime_ms=None if line["ctime_ms"] is None else int(line["ctime_ms"]),
        stores_ctime=bool(line["stores_ctime"]),
        creator_token=int(line["creator_token"]),
    )
    try:
        pack_ledger(metadata)
    except MetadataCorrupt as error:
        raise InvalidArgument(f"ledger {metadata.ledger_id}: {error.message}") from error
    return metadata


def pack_bytes(data: bytes) -> str | dict[str, str]:
    """Return bytes as text if they are UTF-8, else in base64."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def parse_bytes(value: Any) -> bytes:
    """Return the bytes; inverse of `pack_bytes`. Raises ValueError, KeyError, TypeError."""
    if isinstance(value, str):
        return value.encode("utf-8")
    return base64.b64decode(value["base64"], validate=True)
