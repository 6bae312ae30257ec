"""A log: an ordered list of ledgers in one record that is changed by compare-and-swap; what may become of the list.

The list is the `Manifest`. Its extents, one after the other, are the log. One process at a time adds to it: the
*leader*, who made the last ledger of the list and is its one writer. Being told to lead is only a hint; what makes it
safe is that a ledger has one writer, who can be fenced, and that the list has one next version:

* Taking over. Read the list; recover what is open in it, the older ledger first, so that its end is decided and its
  writer stopped; make a new ledger; put it at the end of *that* list. If the list was changed meanwhile, what was
  recovered may not be all that is open: begin again. Nothing is acknowledged before the swap.
* Rolling. Put a new ledger at the end of the list, end the one before, and only then acknowledge anything in the new
  one: otherwise something could be missing in the middle of the log. The next roll waits for the end of this one, so
  never more than the last two ledgers of a list are open, and recovering two is enough.
* Committing (`protocol/log/transaction.py`). Ledgers that were written and closed beforehand are put at the end in one
  swap. What is open in the list is ended before; its leader leads no more then, as if it had been taken over.
* Truncating. First a swap that takes extents out of the list and notes their ledgers in `deleting`; then the ledgers
  are deleted; then `deleting` is cleared. Whoever crashes in between leaves a note of what is still to be done, and a
  list never names what is not there. A ledger that is listed and missing was lost; one that is not listed, truncated.

Every change here is a function from the list that was read to the list to write, or None when it has been made
already. So a swap whose reply was lost needs no special case: read again, and one's own ledger is in the list, or the
list is as it was and the swap is repeated, or somebody else has changed it and the change is refused.

The record is JSON. Fields that this version does not know, in the record and in its extents, are kept by a rewrite;
what an older version could not keep safe raises `format`. `txns` belongs to transactional writers, by application.

Source: client-protocol 5; spark 4.2; logs 1.1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

from bookies.errors import InvalidArgument, LogFenced, LogTruncated, MetadataCorrupt, NotSupported
from bookies.model import DigestType

FORMAT = 1  # of a record that is the whole list
FORMAT_SEGMENTED = 2  # of one whose older extents are in records of their own
RAW, ENVELOPE = "raw", "envelope"  # an entry is the value itself, or a record with key, headers and time
RECORD_FORMATS = (RAW, ENVELOPE)
# Fields of the record of a log that was held, or migrated: see `protocol/log/migration.py`.
HELD, MIGRATED_FROM, CUT_OVER = "held", "migrated.from", "migrated.cut-over"
OPEN_MAX = 2  # ledgers at the end of a list that may be open
NAME_LENGTH_MAX = 200
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._")


class Position(NamedTuple):
    """Where an entry of a log is. The order of positions is that of the list, not of the numbers."""

    ledger_id: int
    entry_id: int

    @property
    def next(self) -> Position:
        """Where to go on behind this entry, also when it was the last of its ledger."""
        return Position(self.ledger_id, self.entry_id + 1)

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


def parse_position(text: str) -> Position:
    """`LEDGER:ENTRY`. Raises `InvalidArgument`."""
    ledger, colon, entry = text.partition(":")
    if not colon or not all(part.isascii() and part.isdigit() for part in (ledger, entry)):
        raise InvalidArgument(f"{text!r} is no position in a log: LEDGER:ENTRY, two whole numbers")
    return Position(int(ledger), int(entry))


class Written(NamedTuple):
    """A closed ledger that a transaction puts into a log. `length`: its payload, bytes."""

    ledger_id: int
    last_entry_id: int
    length: int


class LedgerEnd(NamedTuple):
    """The end of a closed ledger. `length`: its payload, bytes."""

    last_entry_id: int
    length: int


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of entries of one ledger. `last` None: the ledger may still be open, its metadata knows.

    `seq` numbers the extents of a log, never twice. `first` is more than 0 where the log was truncated, and more than
    `last` when nothing of the extent is left. `rows`, `bytes`: entries and payload when it was closed. `txn`: the
    transaction that brought it. `extra`: fields that this version does not know.
    """

    seq: int
    ledger_id: int
    first: int = 0
    last: int | None = None
    rows: int | None = None
    bytes: int | None = None
    txn: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def end(self) -> LedgerEnd | None:
        """Of its ledger, if the list says it."""
        return None if self.last is None else LedgerEnd(self.last, self.bytes or 0)

    def closed(self, end: LedgerEnd) -> Extent:
        """This extent once its ledger has that end."""
        rows = end.last_entry_id - self.first + 1
        return replace(self, last=end.last_entry_id, rows=max(0, rows), bytes=end.length)


class Segment(NamedTuple):
    """Older extents of a log, in a record of their own. See `protocol/log/log_segments.py`.

    Those with numbers `first_seq` to `last_seq`; some numbers may be missing, there are `extent_count`. `first`: where
    the first of them begins. `rows`, `bytes`: of all.
    """

    name: str
    first_seq: int
    last_seq: int
    extent_count: int
    first: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The list, and what new ledgers of it are like. `token`: tells this log from others of its name.

    `epoch` counts the leaders. `deleting`: ledgers that are out of the list and still have to be deleted.
    `is_deleting`: the log itself is. `txns`: application -> its last transaction, see `protocol/log/transaction.py`.
    `record_format`: what an entry is, `RAW` or `ENVELOPE`; nothing here depends on it.
    `segments`: where the older of the extents are stored, as it was read. `rows_truncated`: rows of the log before its
    present beginning, so that a row's number never changes.
    """

    token: str
    created_ms: int
    ensemble: int
    write_quorum: int
    ack_quorum: int
    digest: DigestType
    record_format: str = RAW
    epoch: int = 0
    next_seq: int = 0
    extents: tuple[Extent, ...] = ()
    deleting: tuple[int, ...] = ()
    is_deleting: bool = False
    rows_truncated: int = 0
    segments: tuple[Segment, ...] = ()
    txns: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ledger_ids(self) -> list[int]:
        return [extent.ledger_id for extent in self.extents]

    @property
    def held(self) -> str:
        """Why nobody may append to the log, such as that it was moved to another cluster; empty when one may."""
        return str(self.extra.get(HELD, ""))

    @property
    def open_ledgers(self) -> list[int]:
        """Those whose end the list does not say, the older first. To be recovered in this order by a new leader."""
        return [extent.ledger_id for extent in self.extents if extent.last is None]

    @property
    def beginning(self) -> Extent | None:
        """The first extent in which something is left, or may come."""
        left = [each for each in self.extents if each.last is None or each.first <= each.last]
        return next(iter(left or self.extents[-1:]), None)

    def find(self, position: Position) -> Extent | None:
        """The extent that holds a position, or the one whose ledger's last entry it is behind."""
        found = [extent for extent in self.extents if extent.ledger_id == position.ledger_id]
        for extent in found:
            if extent.last is None or position.entry_id <= extent.last:
                return extent
        return found[-1] if found else None

    def after(self, seq: int) -> Extent | None:
        """The first extent behind the one with this number, which may be in the list no more."""
        return next((extent for extent in self.extents if extent.seq > seq), None)


# -- changes ---------------------------------------------------------------------------------------------------------


def taken_over(
    found: Manifest, basis: Manifest, ledger_id: int, ends: Mapping[int, LedgerEnd], *, leader: int | None = None
) -> Manifest | None:
    """Make `ledger_id` the last ledger, under a new epoch; None: it is in the list.

    `basis`: the list whose open ledgers were recovered, to these ends. `leader`: the epoch of a leader who takes over
    from itself. Raises `LogFenced` when the list has other ledgers at its end now, so that more may be open.
    """
    if ledger_id in found.ledger_ids:
        return None
    check_held(found)
    if (found.epoch, found.next_seq, found.is_deleting) != (basis.epoch, basis.next_seq, False):
        raise LogFenced("another process has changed the end of the log meanwhile")
    if leader is not None:
        check_leader(found, leader)
    closed = _with_ends(found, ends)
    assert not closed.open_ledgers, "taken over before every end was decided"
    return replace(_with_ledger(closed, ledger_id), epoch=found.epoch + 1)


def check_leader(found: Manifest, epoch: int) -> None:
    """Raises `LogFenced` unless the leader of this epoch is still the last one."""
    if found.is_deleting:
        raise LogFenced("the log is being deleted")
    check_held(found)
    if found.epoch != epoch:
        raise LogFenced(f"another process took the log over: its epoch is {found.epoch}, this leader's was {epoch}")


def check_held(found: Manifest) -> None:
    """Raises `LogFenced` when nobody may append to the log."""
    if found.held:
        raise LogFenced(f"nothing can be appended to the log: {found.held}")


def rolled(found: Manifest, epoch: int, current: int, ledger_id: int, ends: Mapping[int, LedgerEnd]) -> Manifest | None:
    """Put `ledger_id` behind `current`, the ledger that the leader of `epoch` writes; None: it is in the list.

    `ends`: of the ledgers that this leader has closed; every one before `current` has to be. Raises `LogFenced`.
    """
    check_leader(found, epoch)
    if ledger_id in found.ledger_ids:
        return None
    if not found.extents or found.extents[-1].ledger_id != current or found.extents[-1].last is not None:
        raise LogFenced(f"another process has ended ledger {current}, or put something behind it")
    closed = _with_ends(found, {each: end for each, end in ends.items() if each != current})
    assert closed.open_ledgers == [current], "rolled before the ledger of the last roll was closed"
    return _with_ledger(closed, ledger_id)


def truncated(
    found: Manifest, before: Position, ends: Mapping[int, LedgerEnd], last_add_confirmed: int
) -> Manifest | None:
    """Let the log begin at `before`; None: it does, or later.

    `ends`: of those ledgers whose end the list does not say, if they are closed. `last_add_confirmed`: of the ledger
    of `before`. The last two ledgers stay in the list: a leader that takes over looks at these. Raises
    `InvalidArgument` for positions behind the end of the log, `LogTruncated` for those of ledgers not in the list,
    `LogFenced` for a log that follows another one.
    """
    if found.held and MIGRATED_FROM in found.extra and CUT_OVER not in found.extra:
        raise LogFenced("the log follows one in another cluster until the cut-over: truncate it there")
    target = found.find(before)
    if target is None:
        raise LogTruncated(f"position {before} is not in the log: truncated already, or of another log")
    if before.entry_id > last_add_confirmed + 1:
        known = Position(target.ledger_id, last_add_confirmed)
        raise InvalidArgument(f"position {before} is behind {known}, the last entry that is known to be confirmed")
    kept: list[Extent] = []
    dropped: list[int] = []
    rows = found.rows_truncated
    for index, extent in enumerate(found.extents):
        if extent.seq < target.seq:
            closed = extent if extent.last is not None else _closed_or_none(extent, ends)
            if closed is None or closed.last is None:
                raise InvalidArgument(f"ledger {extent.ledger_id}, which is before {before}, is still being written")
            first = max(extent.first, closed.last + 1)
            rows += first - extent.first
            if index < len(found.extents) - OPEN_MAX:
                dropped.append(extent.ledger_id)
            else:
                kept.append(replace(closed, first=first))
        elif extent.seq == target.seq:
            first = max(extent.first, before.entry_id)
            rows += first - extent.first
            kept.append(replace(extent, first=first))
        else:
            kept.append(extent)
    listed = [extent.ledger_id for extent in kept]
    gone = [ledger_id for ledger_id in dict.fromkeys(dropped) if ledger_id not in listed]
    changed = replace(found, extents=tuple(kept), deleting=(*found.deleting, *gone), rows_truncated=rows)
    return None if changed == found else changed


def appended(
    found: Manifest, written: Sequence[Written], ends: Mapping[int, LedgerEnd], txn: str, *, is_replacing: bool = False
) -> Manifest:
    """Put the closed ledgers of a transaction at the end of the list, or in the place of all that is in it.

    `ends`: of the ledgers whose end the list does not say; who leads the log leads no more then. `txn`: its name.
    """
    closed = _with_ends(found, ends)
    assert not closed.open_ledgers, "committed behind an end that is not decided"
    extents = tuple(
        Extent(seq, each.ledger_id, 0, each.last_entry_id, each.last_entry_id + 1, each.length, txn)
        for seq, each in enumerate(written, found.next_seq)
    )
    is_over = is_replacing or bool(found.open_ledgers)
    gone = closed.extents if is_replacing else ()
    return replace(
        closed,
        extents=(*closed.extents[len(gone) :], *extents),
        deleting=(*found.deleting, *dict.fromkeys(extent.ledger_id for extent in gone)),
        rows_truncated=found.rows_truncated + sum(map(_rows_left, gone)),
        next_seq=found.next_seq + len(extents),
        epoch=found.epoch + 1 if is_over else found.epoch,
    )


def ended(found: Manifest, ends: Mapping[int, LedgerEnd]) -> Manifest | None:
    """Note the ends of ledgers that were closed; None: they are."""
    changed = _with_ends(found, ends)
    return None if changed == found else changed


def swept(found: Manifest, deleted: Sequence[int]) -> Manifest | None:
    """Forget ledgers that have been deleted; None: they are."""
    left = tuple(ledger_id for ledger_id in found.deleting if ledger_id not in deleted)
    return None if left == found.deleting else replace(found, deleting=left)


def emptied(found: Manifest) -> Manifest | None:
    """The last list of a log: everything is to be deleted, and nobody leads it any more; None: it is so."""
    if found.is_deleting:
        return None
    gone = dict.fromkeys((*found.deleting, *found.ledger_ids))
    return replace(found, extents=(), deleting=tuple(gone), is_deleting=True, epoch=found.epoch + 1)


def _rows_left(extent: Extent) -> int:
    """Of a closed extent."""
    assert extent.last is not None
    return max(0, extent.last - extent.first + 1)


def _with_ledger(manifest: Manifest, ledger_id: int) -> Manifest:
    extent = Extent(manifest.next_seq, ledger_id)
    return replace(manifest, extents=(*manifest.extents, extent), next_seq=manifest.next_seq + 1)


def _with_ends(manifest: Manifest, ends: Mapping[int, LedgerEnd]) -> Manifest:
    extents = [_closed_or_none(each, ends) or each if each.last is None else each for each in manifest.extents]
    return replace(manifest, extents=tuple(extents))


def _closed_or_none(extent: Extent, ends: Mapping[int, LedgerEnd]) -> Extent | None:
    end = ends.get(extent.ledger_id)
    return None if end is None else extent.closed(end)


# -- checking --------------------------------------------------------------------------------------------------------


def illegality(before: Manifest | None, after: Manifest | None) -> str:
    """Why nobody must commit `after` over `before`; empty when it may be. None: no record (I-21)."""
    if before is None or after is None:
        if after is None:
            return "" if before is not None and before.is_deleting and not before.deleting else "deleted before its end"
        return "" if not after.extents and not after.epoch else "created with ledgers"
    if before.token != after.token or after.epoch < before.epoch or after.next_seq < before.next_seq:
        return "another log, or an earlier one"
    if before.is_deleting and not after.is_deleting:
        return "a log that was being deleted came back"
    if any(extent.last is None for extent in after.extents[:-OPEN_MAX]):
        return "more than the last two ledgers are open"
    if any(one.seq >= two.seq for one, two in pairwise(after.extents)):
        return "extents out of order"
    if after.is_deleting:
        missing = [each for each in before.ledger_ids if each not in after.deleting]
        return f"forgot to delete {missing}" if missing else ""
    return _list_illegality(before, after)


def _list_illegality(before: Manifest, after: Manifest) -> str:
    """A prefix may go to `deleting`, ledgers may come at the end, and what stays may only become shorter."""
    kept = {extent.seq: extent for extent in after.extents}
    stays = [extent for extent in before.extents if extent.seq in kept]
    gone = before.extents[: len(before.extents) - len(stays)]
    if tuple(stays) != before.extents[len(gone) :]:
        return "an extent went away from the middle"
    # A transaction that replaces everything leaves no leader, so nobody looks for the last two ledgers any more.
    is_replaced = after.epoch > before.epoch and not stays and not after.open_ledgers
    kept_count_min = 0 if is_replaced else min(OPEN_MAX, len(before.extents))
    if len(stays) < kept_count_min or (not is_replaced and any(extent.last is None for extent in gone)):
        return "a ledger that may be open was removed"
    if any(extent.ledger_id not in (*after.deleting, *after.ledger_ids) for extent in gone):
        return "a ledger was removed and nothing says that it has to be deleted"
    for old in stays:
        new = kept[old.seq]
        if new.ledger_id != old.ledger_id or new.first < old.first or old.last not in (None, new.last):
            return f"extent {old.seq} was changed"
    added = [extent for extent in after.extents if extent.seq >= before.next_seq]
    if len(added) + len(stays) != len(after.extents):
        return "an extent came back"
    if any(extent.last is None for extent in added) and len(added) > 1:
        return "two ledgers were opened at once"
    if after.open_ledgers and any(extent.last is not None for extent in added):
        return "a transaction behind a ledger that may be open"
    opened = [extent for extent in before.extents if extent.last is None]
    if after.epoch > before.epoch and any(kept[extent.seq].last is None for extent in opened if extent.seq in kept):
        return "taken over before every end was decided"
    rows = sum(_rows_left(extent) for extent in gone if extent.last is not None)
    rows += sum(kept[extent.seq].first - extent.first for extent in stays)
    rows = after.rows_truncated - before.rows_truncated - rows
    if rows < 0 or (rows > 0 and all(extent.last is not None for extent in gone)):
        return "rows of the log got other numbers"
    return ""


# -- the record ------------------------------------------------------------------------------------------------------


def check_log_name(name: str) -> str:
    """The name. Raises `InvalidArgument` unless it is 1 to 200 letters, digits, `-`, `.`, `_`, and begins with none of
    the latter three.
    """
    if not 1 <= len(name) <= NAME_LENGTH_MAX or not _NAME_CHARACTERS.issuperset(name) or name[0] in "-._":
        raise InvalidArgument(
            f"{name!r} is no name of a log: 1 to {NAME_LENGTH_MAX} letters, digits, - . _ , "
            "the first one a letter or a digit"
        )
    return name


_EXTENT_FIELDS = {"seq": "seq", "ledger": "ledger_id", "first": "first", "last": "last"} | {
    name: name for name in ("rows", "bytes", "txn")
}
_FIELDS = frozenset(
    (
        "format",
        "token",
        "created_ms",
        "ensemble",
        "write_quorum",
        "ack_quorum",
        "digest",
        "record_format",
        "epoch",
        "next_seq",
        "extents",
        "deleting",
        "state",
        "txns",
        "rows_truncated",
        "segments",
    )
)


def pack_manifest(manifest: Manifest) -> bytes:
    """As stored: JSON, one line. `extents` are those that are in no segment."""
    content: dict[str, Any] = {
        "format": FORMAT_SEGMENTED if manifest.segments else FORMAT,
        "token": manifest.token,
        "created_ms": manifest.created_ms,
        "ensemble": manifest.ensemble,
        "write_quorum": manifest.write_quorum,
        "ack_quorum": manifest.ack_quorum,
        "digest": manifest.digest.name.lower(),
        "epoch": manifest.epoch,
        "next_seq": manifest.next_seq,
        "extents": pack_extents(manifest.extents),
        "deleting": list(manifest.deleting),
        "txns": dict(manifest.txns),
        "state": "deleting" if manifest.is_deleting else "live",
    }
    if manifest.record_format != RAW:
        content["record_format"] = manifest.record_format
    if manifest.segments:
        content["segments"] = [segment._asdict() for segment in manifest.segments]
    if manifest.rows_truncated:
        content["rows_truncated"] = manifest.rows_truncated
    return json.dumps(content | dict(manifest.extra), separators=(",", ":")).encode()


def parse_manifest(name: str, data: bytes) -> Manifest:
    """As stored: `extents` are those that are in no segment. `name`: of the log, for the message.

    Raises `MetadataCorrupt`, `NotSupported` (written by a later version).
    """
    try:
        content = json.loads(data)
        if content["format"] > FORMAT_SEGMENTED:
            raise NotSupported(
                f"log {name} has format {content['format']}; this version of bookies reads up to {FORMAT_SEGMENTED}"
            )
        return Manifest(
            token=str(content["token"]),
            created_ms=int(content["created_ms"]),
            ensemble=int(content["ensemble"]),
            write_quorum=int(content["write_quorum"]),
            ack_quorum=int(content["ack_quorum"]),
            digest=DigestType[content["digest"].upper()],
            record_format=str(content.get("record_format", RAW)),
            epoch=int(content["epoch"]),
            next_seq=int(content["next_seq"]),
            extents=parse_extents(content["extents"]),
            segments=tuple(Segment(**row) for row in content.get("segments", ())),
            deleting=tuple(map(int, content["deleting"])),
            is_deleting=content.get("state") == "deleting",
            rows_truncated=int(content.get("rows_truncated", 0)),
            txns=dict(content["txns"]),
            extra={key: value for key, value in content.items() if key not in _FIELDS},
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise MetadataCorrupt(f"the record of log {name} cannot be read: {error!r}") from error


def pack_extents(extents: Sequence[Extent]) -> list[dict[str, Any]]:
    """As they stand in a record."""
    rows = []
    for extent in extents:
        row = {key: getattr(extent, name) for key, name in _EXTENT_FIELDS.items()}
        rows.append({key: value for key, value in row.items() if value is not None} | dict(extent.extra))
    return rows


def parse_extents(rows: Sequence[Mapping[str, Any]]) -> tuple[Extent, ...]:
    """Raises `ValueError`, `KeyError`, `TypeError`."""
    return tuple(map(_parse_extent, rows))


def _parse_extent(row: Mapping[str, Any]) -> Extent:
    known = {name: row[key] for key, name in _EXTENT_FIELDS.items() if key in row}
    if not all(isinstance(known[name], int) for name in ("seq", "ledger_id", "first")):
        raise ValueError(f"extent {dict(row)}")
    return Extent(**known, extra={key: value for key, value in row.items() if key not in _EXTENT_FIELDS})
