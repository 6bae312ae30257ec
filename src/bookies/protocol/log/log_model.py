"""Log: an ordered list of ledgers in one record, changed by compare-and-swap; the legal changes of the list.

The list is the `Manifest`. Its extents, in order, are the log. One process at a time appends to it: the *leader*, which
created the last ledger of the list and is its only writer. A leader election is only a hint. Safety comes from two
facts: a ledger has one writer, which can be fenced, and the list has one next version.

* Takeover. Read the list. Recover its open ledgers, the older first: this decides their ends and stops their writers.
  Create a new ledger and append it to *that* list. If the list was changed meanwhile, there may be other open ledgers:
  start over. The new leader acknowledges no entry before the swap.
* Roll. Append a new ledger to the list, close the one before, and only then acknowledge entries of the new one;
  otherwise entries could be missing in the middle of the log. The next roll waits for the end of this one. So at most
  the last two ledgers of a list are open, and recovering two is enough.
* Commit (`protocol/log/transaction.py`). One swap appends ledgers that were written and closed beforehand. Open ledgers
  of the list are ended first, and their leader loses the leadership, as after a takeover.
* Truncation. First a swap removes extents from the list and adds their ledgers to `deleting`; then the ledgers are
  deleted; then `deleting` is cleared. A crash in between leaves the pending deletions on record, and a list never names
  a deleted ledger. A listed ledger that is missing was lost; one that is not listed was truncated.
* Compaction and roll-up (`protocol/log/compaction.py`). One swap names other ledgers as the storage of closed extents,
  and adds the ledgers that they replace to `deleting`. Positions do not change.

Every change here is a function from the list that was read to the list to write, or None when the change has been made
already. So a swap whose reply was lost needs no special case. The caller reads again: its own ledger is in the list, or
the list is unchanged and the swap is repeated, or another process has changed the list and the change is refused.

The record is JSON. A rewrite keeps fields that this version does not know, in the record and in its extents. A change
that an older version could not keep safe raises `format`. `txns` belongs to transactional writers, by application.

Source: client-protocol 5; spark 4.2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from bookies.encoding.documents import parse_json
from bookies.errors import InvalidArgument, LogFenced, LogTruncated, MetadataCorrupt, NotSupported
from bookies.model import NAME_CHARACTERS, DigestType

FORMAT = 1  # of a record that is the whole list
FORMAT_SEGMENTED = 2  # of one whose older extents are in records of their own
# A log that an earlier version would misread: of record sets, or whose extents may be stored in other ledgers.
FORMAT_GUARDED = 3
FORMAT_ROLLED_UP = 4  # of one whose extents may share a ledger
COMPACT_BY_KEY = "key"
# An entry is the bare value, a record with key, headers and time, or a set of such records.
RAW, ENVELOPE, SETS = "raw", "envelope", "sets"
RECORD_FORMATS = (RAW, ENVELOPE, SETS)
# Fields of the record of a log that was held, migrated or mirrored: see `protocol/log/migration.py`.
HELD, MIGRATED_FROM, CUT_OVER, MIRROR_OF = "held", "migrated.from", "migrated.cut-over", "mirror.of"
PARTED = "parted"  # of a released mirror: number of its last extent then, and that one's last entry
LEFT_OUT = "mirror.left-out"  # ledgers with entries that only this former source has; it deletes none of them
OPEN_MAX = 2  # ledgers at the end of a list that may be open
NAME_LENGTH_MAX = 200


class Position(NamedTuple):
    """Position of an entry in a log. Positions are ordered as in the list, not by their numbers."""

    ledger_id: int
    entry_id: int

    @property
    def next(self) -> Position:
        """Return the position after this entry; also valid after the last entry of its ledger."""
        return Position(self.ledger_id, self.entry_id + 1)

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


def parse_position(text: str) -> Position:
    """Parse `LEDGER:ENTRY`. Raises `InvalidArgument`."""
    ledger, colon, entry = text.partition(":")
    if not colon or not all(part.isascii() and part.isdigit() for part in (ledger, entry)):
        raise InvalidArgument(f"{text!r} is no position in a log: give LEDGER:ENTRY, two whole numbers")
    return Position(int(ledger), int(entry))


class Address(NamedTuple):
    """Address of a record: of its entry, and its number in the entry. `slot`: 0, unless the entry is a record set."""

    ledger_id: int
    entry_id: int
    slot: int = 0

    @property
    def position(self) -> Position:
        """Return the position of its entry."""
        return Position(self.ledger_id, self.entry_id)

    @property
    def next(self) -> Address:
        """Return the address after this record in its set; also valid after the last one."""
        return self._replace(slot=self.slot + 1)

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}:{self.slot}" if self.slot else f"{self.ledger_id}:{self.entry_id}"


def parse_address(text: str) -> Address:
    """Parse `LEDGER:ENTRY` or `LEDGER:ENTRY:SLOT`. Raises `InvalidArgument`."""
    parts = text.split(":")
    if len(parts) not in (2, 3) or not all(part.isascii() and part.isdigit() for part in parts):
        raise InvalidArgument(
            f"{text!r} is no position in a log: give LEDGER:ENTRY or LEDGER:ENTRY:SLOT, whole numbers"
        )
    return Address(*map(int, parts))


class Written(NamedTuple):
    """Closed ledger that a transaction appends to a log. `length`: its payload, bytes."""

    ledger_id: int
    last_entry_id: int
    length: int


class LedgerEnd(NamedTuple):
    """End of a closed ledger. `length`: its payload, bytes."""

    last_entry_id: int
    length: int


class Extent(Struct, frozen=True):
    """Range of entries of one ledger.

    seq: number of the extent, unique in the log and never reused.
    first: above 0 after a truncation, above `last` when no entry of the extent is left.
    last: None: the ledger may still be open; its metadata decides.
    rows, bytes: entries and payload when it was closed.
    txn: the transaction that appended it.
    committed_ms: wall time of its commit.
    stored: the ledger that holds its entries after a compaction or roll-up; None: its own. Positions have `ledger_id`.
    kept: entries that a compaction has left, which are followed by their ids there (`protocol/log/kept.py`); None: all.
    shift: entries of other extents before its own in `stored`, after a roll-up.
    created_ms: wall time at which its own ledger was created, if `stored` replaces it and `committed_ms` is unknown.
    extra: fields that this version does not know.
    """

    seq: int
    ledger_id: int
    first: int = 0
    last: int | None = None
    rows: int | None = None
    bytes: int | None = None
    txn: str | None = None
    committed_ms: int | None = None
    stored: int | None = None
    kept: int | None = None
    shift: int | None = None
    created_ms: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def storage(self) -> int:
        """Return the ledger that holds its entries."""
        return self.ledger_id if self.stored is None else self.stored

    @property
    def end(self) -> LedgerEnd | None:
        """Return the end of its ledger; None: the list has no end for it."""
        return None if self.last is None else LedgerEnd(self.last, self.bytes or 0)

    def closed(self, end: LedgerEnd) -> Extent:
        """Return this extent with the end of its ledger."""
        rows = end.last_entry_id - self.first + 1
        return replace(self, last=end.last_entry_id, rows=max(0, rows), bytes=end.length)


class Segment(NamedTuple):
    """Older extents of a log, stored in a separate record. See `protocol/log/log_segments.py`.

    first_seq, last_seq, extent_count: range of their numbers, in which some may be missing, and how many there are.
    first: `Extent.first` of the first of them.
    rows, bytes: totals.
    """

    name: str
    first_seq: int
    last_seq: int
    extent_count: int
    first: int
    rows: int
    bytes: int


class Manifest(Struct, frozen=True):
    """List of a log's ledgers, and the parameters of its new ledgers.

    token: distinguishes this log from other logs of its name.
    record_format: contents of an entry, one of `RECORD_FORMATS`; not used here.
    compression: codec of new record sets; None: none.
    epoch: counts the leaders.
    deleting: ledgers that are removed from the list and still have to be deleted.
    is_deleting: the log itself is being deleted.
    rows_truncated: rows of the log before its present beginning, so that a row's number never changes.
    segments: where the older extents are stored, as it was read.
    txns: application -> its last transaction, see `protocol/log/transaction.py`.
    retention: which entries may be removed, see `protocol/log/retention.py`.
    compaction: how the log may be compacted, `COMPACT_BY_KEY` or "".
    is_rolled_up: whether extents may share a ledger.
    """

    token: str
    created_ms: int
    ensemble: int
    write_quorum: int
    ack_quorum: int
    digest: DigestType
    record_format: str = RAW
    compression: str | None = None
    epoch: int = 0
    next_seq: int = 0
    extents: tuple[Extent, ...] = ()
    deleting: tuple[int, ...] = ()
    is_deleting: bool = False
    rows_truncated: int = 0
    segments: tuple[Segment, ...] = ()
    txns: Mapping[str, Any] = field(default_factory=dict)
    retention: Mapping[str, Any] = field(default_factory=dict)
    compaction: str = ""
    is_rolled_up: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ledger_ids(self) -> list[int]:
        """Return the ledgers that positions name."""
        return [extent.ledger_id for extent in self.extents]

    @property
    def storages(self) -> list[int]:
        """Return the ledgers that hold the entries."""
        return [extent.storage for extent in self.extents]

    @property
    def held(self) -> str:
        """Return why appends to the log are disallowed, such as a move to another cluster; empty: they are allowed."""
        return str(self.extra.get(HELD, ""))

    @property
    def open_ledgers(self) -> list[int]:
        """Return the ledgers without an end in the list, the older first: a new leader recovers them in this order."""
        return [extent.ledger_id for extent in self.extents if extent.last is None]

    @property
    def beginning(self) -> Extent | None:
        """Return the first extent that holds entries, or may receive some."""
        left = [extent for extent in self.extents if extent.last is None or extent.first <= extent.last]
        return next(iter(left or self.extents[-1:]), None)

    def find(self, position: Position) -> Extent | None:
        """Return the extent that holds a position; for a position after its ledger's end, the ledger's last extent."""
        extents = [extent for extent in self.extents if extent.ledger_id == position.ledger_id]
        for extent in extents:
            if extent.last is None or position.entry_id <= extent.last:
                return extent
        return extents[-1] if extents else None

    def after(self, seq: int) -> Extent | None:
        """Return the first extent after the one with this number, which may be removed from the list already."""
        return next((extent for extent in self.extents if extent.seq > seq), None)

    def row_of(self, seq: int) -> int | None:
        """Return the number of the row that entry 0 of an extent is or was; None: it is not in the list, or an extent
        before it has no end there."""
        row = self.rows_truncated - sum(extent.first for extent in self.extents)
        for extent in self.extents:
            if extent.seq == seq:
                return row
            if extent.last is None:
                return None
            row += extent.last + 1
        return None


# -- changes ---------------------------------------------------------------------------------------------------------


def taken_over(
    manifest: Manifest, basis: Manifest, ledger_id: int, ends: Mapping[int, LedgerEnd], *, leader: int | None = None
) -> Manifest | None:
    """Return the list with `ledger_id` as the last ledger, under a new epoch; None: it is in the list already.

    basis, ends: the list whose open ledgers were recovered, and their ends.
    leader: epoch of a leader that takes over from itself.
    Raises `LogFenced` when the list has other ledgers at its end now, so that more may be open.
    """
    if ledger_id in manifest.ledger_ids:
        return None
    check_held(manifest)
    if (manifest.epoch, manifest.next_seq, manifest.is_deleting) != (basis.epoch, basis.next_seq, False):
        raise LogFenced("another process has changed the end of the log meanwhile")
    if leader is not None:
        check_leader(manifest, leader)
    closed = _with_ends(manifest, ends)
    assert not closed.open_ledgers, "taken over before every end was decided"
    return replace(_with_ledger(closed, ledger_id), epoch=manifest.epoch + 1)


def check_leader(manifest: Manifest, epoch: int) -> None:
    """Check that the leader of this epoch is still the last one. Raises `LogFenced`."""
    if manifest.is_deleting:
        raise LogFenced("the log is being deleted")
    check_held(manifest)
    if manifest.epoch != epoch:
        raise LogFenced(f"another process took the log over: its epoch is {manifest.epoch}, this leader's was {epoch}")


def check_held(manifest: Manifest) -> None:
    """Check that appends to the log are allowed. Raises `LogFenced`."""
    if manifest.held:
        raise LogFenced(f"no entry can be appended to the log: {manifest.held}")


def rolled(
    manifest: Manifest, epoch: int, current: int, ledger_id: int, ends: Mapping[int, LedgerEnd]
) -> Manifest | None:
    """Append `ledger_id` after `current`, the ledger that the leader of `epoch` writes; None: it is in the list.

    `ends`: ends of the ledgers that this leader has closed; every one before `current` must be closed.
    Raises `LogFenced`.
    """
    check_leader(manifest, epoch)
    if ledger_id in manifest.ledger_ids:
        return None
    if not manifest.extents or manifest.extents[-1].ledger_id != current or manifest.extents[-1].last is not None:
        raise LogFenced(f"another process has ended ledger {current}, or appended a ledger after it")
    closed = _with_ends(manifest, {closed_id: end for closed_id, end in ends.items() if closed_id != current})
    assert closed.open_ledgers == [current], "rolled before the ledger of the last roll was closed"
    return _with_ledger(closed, ledger_id)


def not_in_log(position: Position, manifest: Manifest) -> LogTruncated:
    """Return the error of a position that was truncated, or is of another log."""
    begin = beginning_text(manifest)
    return LogTruncated(f"position {position} is not in the log, which {begin}: truncated already, or of another log")


def beginning_text(manifest: Manifest) -> str:
    """Return where a log begins, for messages."""
    first = manifest.beginning
    return "is empty" if first is None else f"begins at {Position(first.ledger_id, first.first)}"


def truncated(
    manifest: Manifest, before: Position, ends: Mapping[int, LedgerEnd], last_add_confirmed: int
) -> Manifest | None:
    """Return the list of the log that begins at `before`; None: it begins there or later already.

    ends: ends of closed ledgers that have no end in the list.
    last_add_confirmed: that of the ledger of `before`.
    The last two ledgers stay in the list, because a takeover checks them. Raises `InvalidArgument` (position after the
    end of the log), `LogTruncated` (ledger not in the list), `LogFenced` (the log follows another one).
    """
    is_migrated = MIGRATED_FROM in manifest.extra and CUT_OVER not in manifest.extra
    if manifest.held and (is_migrated or MIRROR_OF in manifest.extra):
        raise LogFenced("the log follows a log in another cluster until the cut-over: truncate it there")
    target = manifest.find(before)
    if target is None:
        raise not_in_log(before, manifest)
    if before.entry_id > last_add_confirmed + 1:
        known = Position(target.ledger_id, last_add_confirmed)
        raise InvalidArgument(
            f"position {before} is after {known}, the last entry known to be confirmed: give {known.next} at most"
        )
    kept: list[Extent] = []
    dropped: list[int] = []
    rows = manifest.rows_truncated
    for index, extent in enumerate(manifest.extents):
        if extent.seq < target.seq:
            closed = extent if extent.last is not None else _closed_or_none(extent, ends)
            if closed is None or closed.last is None:
                raise InvalidArgument(f"ledger {extent.ledger_id}, which is before {before}, is still being written")
            first = max(extent.first, closed.last + 1)
            rows += first - extent.first
            if index < len(manifest.extents) - OPEN_MAX:
                dropped.append(extent.storage)
            else:
                kept.append(replace(closed, first=first))
        elif extent.seq == target.seq:
            first = max(extent.first, before.entry_id)
            rows += first - extent.first
            kept.append(replace(extent, first=first))
        else:
            kept.append(extent)
    listed = [extent.storage for extent in kept]
    removed = [ledger_id for ledger_id in dict.fromkeys(dropped) if ledger_id not in listed]
    changed = replace(manifest, extents=tuple(kept), deleting=(*manifest.deleting, *removed), rows_truncated=rows)
    return None if changed == manifest else changed


def last_position(manifest: Manifest, ends: Mapping[int, LedgerEnd]) -> Position | None:
    """Return the last entry of ledgers whose end is known; None: there is none. `ends`: ends that the list lacks."""
    for extent in reversed(manifest.extents):
        end = extent.end or ends.get(extent.ledger_id)
        if end is not None and end.last_entry_id >= 0:
            return Position(extent.ledger_id, end.last_entry_id)
    return None


def appended(
    manifest: Manifest,
    written: Sequence[Written],
    ends: Mapping[int, LedgerEnd],
    txn: str,
    *,
    is_replacing: bool = False,
    now_ms: int | None = None,
) -> Manifest:
    """Return the list with the closed ledgers of a transaction appended, or with `is_replacing` in place of all others.

    ends: ends of ledgers that have none in the list; the leader that had them open loses the leadership.
    txn: the name of the transaction.
    now_ms: the wall time of its commit.
    """
    closed = _with_ends(manifest, ends)
    assert not closed.open_ledgers, "committed after an end that is not decided"
    extents = tuple(
        Extent(seq, ledger.ledger_id, 0, ledger.last_entry_id, ledger.last_entry_id + 1, ledger.length, txn, now_ms)
        for seq, ledger in enumerate(written, manifest.next_seq)
    )
    is_over = is_replacing or bool(manifest.open_ledgers)
    replaced = closed.extents if is_replacing else ()
    return replace(
        closed,
        extents=(*closed.extents[len(replaced) :], *extents),
        deleting=(*manifest.deleting, *dict.fromkeys(extent.storage for extent in replaced)),
        rows_truncated=manifest.rows_truncated + sum(map(_rows_left, replaced)),
        next_seq=manifest.next_seq + len(extents),
        epoch=manifest.epoch + 1 if is_over else manifest.epoch,
    )


def ended(manifest: Manifest, ends: Mapping[int, LedgerEnd]) -> Manifest | None:
    """Return the list with the ends of closed ledgers; None: it has them already."""
    changed = _with_ends(manifest, ends)
    return None if changed == manifest else changed


def swept(manifest: Manifest, deleted: Sequence[int]) -> Manifest | None:
    """Return the list without these deleted ledgers in `deleting`; None: it does not name them."""
    left = tuple(ledger_id for ledger_id in manifest.deleting if ledger_id not in deleted)
    return None if left == manifest.deleting else replace(manifest, deleting=left)


def emptied(manifest: Manifest) -> Manifest | None:
    """Return the last list of a log: all its ledgers are to be deleted, and it has no leader; None: it is so."""
    if manifest.is_deleting:
        return None
    deleting = dict.fromkeys((*manifest.deleting, *manifest.storages))
    return replace(manifest, extents=(), deleting=tuple(deleting), is_deleting=True, epoch=manifest.epoch + 1)


def _rows_left(extent: Extent) -> int:
    """Return the number of rows left in a closed extent."""
    assert extent.last is not None
    return max(0, extent.last - extent.first + 1)


def _with_ledger(manifest: Manifest, ledger_id: int) -> Manifest:
    extent = Extent(manifest.next_seq, ledger_id)
    return replace(manifest, extents=(*manifest.extents, extent), next_seq=manifest.next_seq + 1)


def _with_ends(manifest: Manifest, ends: Mapping[int, LedgerEnd]) -> Manifest:
    extents = [
        _closed_or_none(extent, ends) or extent if extent.last is None else extent for extent in manifest.extents
    ]
    return replace(manifest, extents=tuple(extents))


def _closed_or_none(extent: Extent, ends: Mapping[int, LedgerEnd]) -> Extent | None:
    end = ends.get(extent.ledger_id)
    return None if end is None else extent.closed(end)


# -- checking --------------------------------------------------------------------------------------------------------


def illegality(before: Manifest | None, after: Manifest | None) -> str:
    """Return why `after` must not be committed over `before`; empty when it may. None: no record (I-21)."""
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
        missing = [ledger_id for ledger_id in before.storages if ledger_id not in after.deleting]
        return f"forgot to delete {missing}" if missing else ""
    return _list_illegality(before, after)


def _list_illegality(before: Manifest, after: Manifest) -> str:
    """Check that only a prefix moved to `deleting`, new ledgers are at the end, and kept extents only shrank."""
    kept = {extent.seq: extent for extent in after.extents}
    stays = [extent for extent in before.extents if extent.seq in kept]
    removed = before.extents[: len(before.extents) - len(stays)]
    if tuple(stays) != before.extents[len(removed) :]:
        return "an extent was removed from the middle"
    # A transaction that replaces all ledgers leaves no leader, so no takeover needs the last two of them.
    is_replaced = after.epoch > before.epoch and not stays and not after.open_ledgers
    kept_count_min = 0 if is_replaced else min(OPEN_MAX, len(before.extents))
    if len(stays) < kept_count_min or (not is_replaced and any(extent.last is None for extent in removed)):
        return "a ledger that may be open was removed"
    if any(extent.storage not in (*after.deleting, *after.storages) for extent in removed):
        return "a ledger was removed and nothing says that it has to be deleted"
    for old in stays:
        new = kept[old.seq]
        if new.ledger_id != old.ledger_id or new.first < old.first or old.last not in (None, new.last):
            return f"extent {old.seq} was changed"
        is_rolled_up = new.shift is not None and new.kept == old.kept and after.is_rolled_up
        is_compacted = new.shift is None and new.kept is not None and bool(before.compaction)
        if new.storage != old.storage and (old.last is None or not (is_compacted or is_rolled_up)):
            return f"extent {old.seq} was rewritten, which is not allowed"
        if old.storage not in (*after.deleting, *after.storages):
            return f"extent {old.seq} was rewritten, and nothing says that ledger {old.storage} has to be deleted"
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
    rows = sum(_rows_left(extent) for extent in removed if extent.last is not None)
    rows += sum(kept[extent.seq].first - extent.first for extent in stays)
    rows = after.rows_truncated - before.rows_truncated - rows
    if rows < 0 or (rows > 0 and all(extent.last is not None for extent in removed)):
        return "rows of the log got other numbers"
    return ""


# -- the record ------------------------------------------------------------------------------------------------------


def check_log_name(name: str, noun: str = "log") -> str:
    """Return the name of a log: 1 to 200 letters, digits, `-`, `.`, `_`; the first one a letter or a digit.

    `noun`: what else has such a name, for the message.

    Raises `InvalidArgument` for any other.
    """
    if not 1 <= len(name) <= NAME_LENGTH_MAX or not NAME_CHARACTERS.issuperset(name) or name[0] in "-._":
        raise InvalidArgument(
            f"{name!r} is no name of a {noun}: 1 to {NAME_LENGTH_MAX} letters, digits, - . _ , "
            "the first one a letter or a digit"
        )
    return name


_EXTENT_FIELDS = {"seq": "seq", "ledger": "ledger_id", "first": "first", "last": "last", "at": "committed_ms"} | {
    **{name: name for name in ("rows", "bytes", "txn", "stored", "kept", "shift")},
    "created": "created_ms",
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
        "compression",
        "epoch",
        "next_seq",
        "extents",
        "deleting",
        "state",
        "txns",
        "rows_truncated",
        "segments",
        "retention",
        "compaction",
        "rolled_up",
    )
)


def _format_of(manifest: Manifest) -> int:
    if manifest.is_rolled_up:
        return FORMAT_ROLLED_UP
    if manifest.record_format == SETS or manifest.compaction:
        return FORMAT_GUARDED
    return FORMAT_SEGMENTED if manifest.segments else FORMAT


def pack_manifest(manifest: Manifest) -> bytes:
    """Return the stored record: JSON, one line. `manifest.extents`: those that are in no segment."""
    content: dict[str, Any] = {
        "format": _format_of(manifest),
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
    if manifest.compression is not None:
        content["compression"] = manifest.compression
    if manifest.segments:
        content["segments"] = [segment._asdict() for segment in manifest.segments]
    if manifest.rows_truncated:
        content["rows_truncated"] = manifest.rows_truncated
    if manifest.retention:
        content["retention"] = dict(manifest.retention)
    if manifest.compaction:
        content["compaction"] = manifest.compaction
    if manifest.is_rolled_up:
        content["rolled_up"] = True
    return json.dumps(content | dict(manifest.extra), separators=(",", ":")).encode()


def parse_manifest(name: str, data: bytes) -> Manifest:
    """Parse a stored record; `extents` of the result are those that are in no segment. `name`: of the log, for errors.

    Raises `MetadataCorrupt`, `NotSupported` (written by a later version).
    """
    try:
        content = parse_json(data)
        if content["format"] > FORMAT_ROLLED_UP:
            raise NotSupported(
                f"log {name} has format {content['format']}; this version of bookies reads up to {FORMAT_ROLLED_UP}"
            )
        return Manifest(
            token=str(content["token"]),
            created_ms=int(content["created_ms"]),
            ensemble=int(content["ensemble"]),
            write_quorum=int(content["write_quorum"]),
            ack_quorum=int(content["ack_quorum"]),
            digest=DigestType[content["digest"].upper()],
            record_format=str(content.get("record_format", RAW)),
            compression=content.get("compression"),
            epoch=int(content["epoch"]),
            next_seq=int(content["next_seq"]),
            extents=parse_extents(content["extents"]),
            segments=tuple(Segment(**row) for row in content.get("segments", ())),
            deleting=tuple(map(int, content["deleting"])),
            is_deleting=content.get("state") == "deleting",
            rows_truncated=int(content.get("rows_truncated", 0)),
            txns=dict(content["txns"]),
            retention=dict(content.get("retention", {})),
            compaction=str(content.get("compaction", "")),
            is_rolled_up=bool(content.get("rolled_up")),
            extra={key: value for key, value in content.items() if key not in _FIELDS},
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise MetadataCorrupt(f"the record of log {name} cannot be read: {error!r}") from error


def pack_extents(extents: Sequence[Extent]) -> list[dict[str, Any]]:
    """Return the rows of these extents in a record."""
    rows = []
    for extent in extents:
        row = {key: getattr(extent, name) for key, name in _EXTENT_FIELDS.items()}
        rows.append({key: value for key, value in row.items() if value is not None} | dict(extent.extra))
    return rows


def parse_extents(rows: Sequence[Mapping[str, Any]]) -> tuple[Extent, ...]:
    """Parse the rows of extents in a record. Raises `ValueError`, `KeyError`, `TypeError`."""
    return tuple(map(_parse_extent, rows))


def _parse_extent(row: Mapping[str, Any]) -> Extent:
    known = {name: row[key] for key, name in _EXTENT_FIELDS.items() if key in row}
    if not all(isinstance(known[name], int) for name in ("seq", "ledger_id", "first")):
        raise ValueError(f"extent {dict(row)}")
    return Extent(**known, extra={key: value for key, value in row.items() if key not in _EXTENT_FIELDS})
