"""Owed entries: those that a bookie must hold by a ledger's record and has lost, for example with a disk. Without IO.

The record names the entries, the bookie's own index tells which of them are there. Only finished fragments count: the
others are owed once the writer has continued elsewhere, or the ledger is closed. A ledger is settled when it is closed
and the bookie holds all entries that it must. Then a missing entry was never here, and may be denied again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from bookies.model import BookieId, LedgerMetadata
from bookies.protocol.repair.drain import portion_of
from bookies.protocol.repair.fragments import Fragment, fragments_on, missing_runs


class Owed(Struct, frozen=True):
    """The entries of one ledger that a bookie owes. `size`: their bytes, estimated. `is_closed`: no more can follow."""

    ledger_id: int
    runs: tuple[range, ...]
    entries: int
    size: int
    is_closed: bool

    @property
    def is_settled(self) -> bool:
        """Report whether the bookie may deny further entries of the ledger."""
        return self.is_closed and not self.runs


class OwedTotals(Struct, frozen=True):
    """Sums over ledgers. `open_ledgers`: those that are not closed."""

    ledgers: int = 0
    entries: int = 0
    size: int = 0
    open_ledgers: int = 0


class OwedCounts(Struct):
    """Entries that a bookie owes at present, has found to be owed, and has fetched since its start.

    `found_size`: bytes, estimated. `remaining_s`: forecast; None: not known yet. `describe`: returns what is owed of
    each ledger as text. `is_known`: what is left was determined. `may_lack`: returns whether a directory has failed
    since the start, so entries that are not counted may be lost.
    """

    left: OwedTotals = OwedTotals()
    found_entries: int = 0
    found_size: int = 0
    fetched_entries: int = 0
    fetched_size: int = 0
    remaining_s: float | None = None
    describe: Callable[[], Mapping[str, str]] = dict
    is_known: bool = True
    may_lack: Callable[[], bool] = bool

    @property
    def entries(self) -> int:
        """Return how many entries are owed; at least 1 while that is not known."""
        is_known = self.is_known and not self.may_lack()
        return self.left.entries if is_known else max(1, self.left.entries)

    def found(self, before: Owed | None, now: Owed) -> None:
        """Count what is owed of a ledger beyond what was owed before."""
        self.found_entries += max(0, now.entries - (0 if before is None else before.entries))
        self.found_size += max(0, now.size - (0 if before is None else before.size))

    def __str__(self) -> str:
        left = self.left
        text = f"{left.entries:,} entries of {left.ledgers:,} ledgers, about {left.size:,} bytes"
        if left.open_ledgers:
            text += f"; open ledgers, uncertain until they are closed: {left.open_ledgers:,}"
        return text if self.remaining_s is None else f"{text}; about {self.remaining_s:.0f} s left"


def owed_of(record: LedgerMetadata, fragments: Sequence[Fragment], bookie: BookieId, held: Sequence[range]) -> Owed:
    """Return what the bookie owes. `fragments`: of the record. `held`: entries that the bookie has, as runs."""
    finished = [fragment for fragment in fragments if fragment.is_finished]
    runs: list[range] = []
    for fragment, positions in fragments_on(finished, [bookie]):
        runs += missing_runs(fragment.stored(positions[0]), held)
    entries = sum(map(len, runs))
    last, length = (record.last_entry_id, record.length) if record.is_closed else (-1, 0)
    portion = portion_of(record, finished, bookie, last, length)
    size = round(portion.size * entries / portion.entries) if portion.entries else 0
    return Owed(record.ledger_id, tuple(runs), entries, size, record.is_closed)


def totals_of(owed: Iterable[Owed]) -> OwedTotals:
    """Return the sums over these ledgers."""
    ledgers = list(owed)
    return OwedTotals(
        len(ledgers),
        sum(item.entries for item in ledgers),
        sum(item.size for item in ledgers),
        sum(not item.is_closed for item in ledgers),
    )


def remaining_s(size: int, fetched_size: int, elapsed_s: float) -> float | None:
    """Return the seconds until `size` bytes are fetched at the present rate; None: the rate is not known yet."""
    return size * elapsed_s / fetched_size if fetched_size else None
