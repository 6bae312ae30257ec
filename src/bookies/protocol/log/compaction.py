"""Compaction of a log by key, and roll-up of small ledgers: what goes where, and the change of the list. Pure.

The last record of each key stays, and so does every record without a key and every entry that is no record. A record
without a value is a tombstone: the last one of its key goes when its extent has ended long enough ago and no earlier
record of its key is left, so not in the compaction that removes these. Only closed extents are scanned and rewritten.
Four rules keep the log right for everyone:

* Positions. The kept entries of an extent go to another ledger, but keep their ids (`protocol/log/kept.py`). So
  cursors, times, numbers of rows and positions that an application has stored lead to the next kept entry.
* Order. An entry goes because a later one supersedes it. Extents are swapped from the oldest on. So a tombstone is
  never gone while a record that it deletes is still there, whenever the work stops.
* Numbers. The last numbered record of each producer stays for any key, because a leader finds the numbers of
  producers in the log (`protocol/log/sequences.py`). Those that a transaction has added do not count.
* Swap. It needs the new ledgers, and each extent as it was read, unless it was truncated. It stops at the first extent
  that another compaction has changed, because a younger tombstone may stand for a record in it. A new ledger that is
  not listed then is garbage. It has the labels of a transaction that never commits, so `Log.reap` finds it.

The table of keys is bounded. When it is full, the keys are divided by their digests, and the log is read once for each
part. Marks of an earlier pass stay.

A roll-up removes no entry. It copies neighbouring extents into one ledger, one after the other, and the same swap lists
that as the storage of all of them. The *shift* of an extent is the number of entries before its own there.

Source: docs/explanation/logs.md, "Compaction", "Roll-up".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import groupby, takewhile
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from bookies.encoding.envelope import parse_record
from bookies.errors import InvalidArgument, LogFenced, MetadataCorrupt
from bookies.protocol.log.log_model import COMPACT_BY_KEY, Extent, Manifest
from bookies.protocol.log.sequences import number_of

KEYS_MAX = 1_000_000  # in the table at a time: about 200 MiB
DIGEST_SIZE = 16
MERGE_MAX = 2048  # extents of a new ledger: the record notes the ledgers that it replaces


class Part(NamedTuple):
    """Keys whose digest is `remainder` modulo `divisor`."""

    divisor: int
    remainder: int


class KeyScan:
    """Scan of the entries of closed extents: marks those that go.

    `rows`: entries from the first extent's beginning to the last one's end, by their ids. An entry's *ordinal* is its
    place among them. `expired`: tombstones with a smaller ordinal go. `keys_max`: keys in the table.
    """

    def __init__(self, rows: int, expired: int, keys_max: int = KEYS_MAX) -> None:
        self.passes = 0
        self.bytes_removed = 0
        self.entries_removed = 0
        self._goes = bytearray(rows)
        self._expired = expired
        self._keys_max = keys_max
        self._parts = [Part(1, 0)]
        self._part = Part(1, 0)
        # By the digest of the key: ordinal and size of its last record. That of a tombstone which may go is inverted.
        self._last: dict[bytes, tuple[int, int]] = {}
        self._producers: dict[str, tuple[int, int]] = {}  # ordinal and size of the last one

    def begin(self) -> bool:
        """Begin a pass over all entries; False: none is left to do."""
        if not self._parts:
            return False
        self._part = self._parts.pop()
        self._last = {}
        self.passes += 1
        return True

    def add(self, ordinal: int, entry: bytes, *, may_be_numbered: bool = True) -> None:
        """Add the next entry of the pass. `may_be_numbered`: no transaction has added it."""
        try:
            record = parse_record(entry)
        except MetadataCorrupt:
            return  # It stays: readers report it.
        if may_be_numbered and self.passes == 1 and (numbered := number_of(record)) is not None:
            self._producers[numbered[0]] = ordinal, len(entry)
        if record.key is None:
            return
        digest = blake2b(record.key, digest_size=DIGEST_SIZE).digest()
        if not _is_in(self._part, digest):
            return
        before = self._last.get(digest)
        if before is not None:
            self._mark(max(before[0], ~before[0]), before[1])
        # A reader that has read an earlier record must find the tombstone: it goes in a later compaction.
        self._last[digest] = ordinal if record.value is not None or before is not None else ~ordinal, len(entry)
        while len(self._last) > self._keys_max:
            self._divide()

    def _mark(self, ordinal: int, size: int) -> None:
        if not self._goes[ordinal]:
            self._goes[ordinal] = 1
            self.bytes_removed += size
            self.entries_removed += 1

    def _divide(self) -> None:
        """Leave half of the keys to a later pass."""
        divisor, remainder = self._part
        self._part = Part(2 * divisor, remainder)
        self._parts.append(Part(2 * divisor, remainder + divisor))
        self._last = {digest: last for digest, last in self._last.items() if _is_in(self._part, digest)}

    def end(self) -> None:
        """End a pass: mark the tombstones that are old enough."""
        for last, size in self._last.values():
            if last < 0 and ~last < self._expired:
                self._mark(~last, size)
        self._last = {}

    def finish(self) -> None:
        """Keep the last numbered record of each producer, after the last pass."""
        for ordinal, size in self._producers.values():
            if self._goes[ordinal]:
                self._goes[ordinal] = 0
                self.bytes_removed -= size
                self.entries_removed -= 1

    def goes(self, start: int, stop: int) -> Sequence[int]:
        """Return a flag for each ordinal from `start` up to `stop`: 1, its entry goes."""
        return memoryview(self._goes)[start:stop]


def _is_in(part: Part, digest: bytes) -> bool:
    return int.from_bytes(digest) % part.divisor == part.remainder


# -- the list --------------------------------------------------------------------------------------------------------


class Rewritten(Struct, frozen=True):
    """Extent whose entries are in another ledger.

    `basis`: as it was read. `kept`, `size`, `shift`: see `Extent`. `created_ms`: of the ledger that held it until now.
    """

    basis: Extent
    ledger_id: int
    kept: int | None
    size: int | None
    shift: int | None = None
    created_ms: int | None = None


def check_compaction(log: str, manifest: Manifest) -> None:
    """Check that a log may be compacted. Raises `InvalidArgument`, `LogFenced`."""
    if manifest.compaction != COMPACT_BY_KEY:
        raise InvalidArgument(
            f'log {log} keeps all records of a key: only a log that was created with compaction="{COMPACT_BY_KEY}" can '
            "be compacted"
        )
    check_rewritable(log, manifest)


def check_rewritable(log: str, manifest: Manifest) -> None:
    """Check that ledgers of a log may be replaced. Raises `LogFenced`."""
    if manifest.held or manifest.is_deleting:
        raise LogFenced(f"log {log} is not rewritten: {manifest.held or 'it is being deleted'}")


def compactable(manifest: Manifest) -> list[Extent]:
    """Return the closed extents at the beginning of the list, the oldest first."""
    return list(takewhile(lambda extent: extent.last is not None, manifest.extents))


def ordinals(extents: Iterable[Extent]) -> dict[int, int]:
    """Return the ordinal of the first entry of each closed extent, by its number, and under -1 the count of all."""
    starts, count = {}, 0
    for extent in extents:
        assert extent.last is not None
        starts[extent.seq] = count
        count += max(0, extent.last - extent.first + 1)
    return starts | {-1: count}


def expired_ordinal(
    extents: Sequence[Extent], starts: Mapping[int, int], ends: Mapping[int, int], before_ms: int
) -> int:
    """Return the ordinal before which all extents have ended before a time. `ends`: see `log_times.ended_ms`."""
    for extent in extents:
        if ends.get(extent.seq, before_ms) >= before_ms:
            return starts[extent.seq]
    return starts[-1]


def compacted(manifest: Manifest, rewritten: Sequence[Rewritten]) -> Manifest | None:
    """Return the list with the new ledgers of extents, up to the first one that is not as it was read; None: no change.

    Extents may have been truncated meanwhile, in part or as a whole. A segment with a changed extent is written again.
    """
    new = {change.basis.seq: change for change in rewritten}
    is_rolled_up = manifest.is_rolled_up or any(change.shift is not None for change in rewritten)
    extents, replaced = [], []
    for extent in manifest.extents:
        change = new.get(extent.seq)
        if change is not None and extent.storage not in (change.basis.storage, change.ledger_id):
            new, change = {}, None
        if change is not None and extent.storage == change.basis.storage:
            replaced.append(extent)
            created_ms = (
                change.created_ms if extent.stored is None and extent.committed_ms is None else extent.created_ms
            )
            extent = replace(
                extent,
                stored=change.ledger_id,
                kept=change.kept,
                shift=change.shift,
                bytes=change.size,
                created_ms=created_ms,
            )
        extents.append(extent)
    if not replaced or manifest.held or manifest.is_deleting:
        return None
    seqs = [extent.seq for extent in replaced]
    listed = {extent.storage for extent in extents}
    segments = [
        segment._replace(extent_count=0)
        if any(segment.first_seq <= seq <= segment.last_seq for seq in seqs)
        else segment
        for segment in manifest.segments
    ]
    return replace(
        manifest,
        extents=tuple(extents),
        segments=tuple(segments),
        deleting=(*manifest.deleting, *dict.fromkeys(one.storage for one in replaced if one.storage not in listed)),
        is_rolled_up=is_rolled_up,
    )


# -- roll-up ---------------------------------------------------------------------------------------------------------


def small_ledgers(extents: Iterable[Extent], below: int) -> list[list[Extent]]:
    """Return the extents of each ledger that holds less than `below` payload bytes of a log, in order.

    What extents that are not listed any more have left in a ledger does not count.
    """
    return [unit for unit in _units(extents) if _size(unit) < below]


def merged_runs(extents: Iterable[Extent], below: int, left_out: Collection[int]) -> list[list[Extent]]:
    """Return the extents of each new ledger: those of two neighbouring small ledgers or more.

    A new ledger ends as soon as it has `below` bytes, so it is never small again. The last one of a run has less, and
    does not take in the oldest ledgers that are larger than all after them together. So an entry is copied few times,
    however often a roll-up is repeated. `left_out`: ledgers that stay.
    """
    runs: list[list[list[Extent]]] = [[]]
    size = count = 0
    for unit in _units(extents):
        is_small = _size(unit) < below and unit[0].storage not in left_out
        if not is_small or count + len(unit) > MERGE_MAX:
            runs.append([])
            size = count = 0
        if is_small:
            runs[-1].append(unit)
            size, count = size + _size(unit), count + len(unit)
            if size >= below:
                runs.append([])
                size = count = 0
    worthwhile = [_worthwhile(run, below) for run in runs]
    return [[extent for unit in run for extent in unit] for run in worthwhile if len(run) > 1]


def _worthwhile(run: list[list[Extent]], below: int) -> list[list[Extent]]:
    rest = sum(map(_size, run))
    if rest >= below:
        return run
    for index, unit in enumerate(run):
        rest -= _size(unit)
        if _size(unit) <= rest:
            return run[index:]
    return []


def _units(extents: Iterable[Extent]) -> list[list[Extent]]:
    """Return neighbouring extents of one ledger together."""
    return [list(unit) for _, unit in groupby(extents, key=lambda extent: extent.storage)]


def _size(unit: Iterable[Extent]) -> int:
    return sum(extent.bytes or 0 for extent in unit)
