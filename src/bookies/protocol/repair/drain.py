"""Emptying a bookie, or doing without it for a while: what depends on it, how much there is to copy, how long it takes.

Pure: records in, figures out. How much a ledger has is known exactly in entries and, of a sealed ledger, in bytes as
far as its entries are of one size: a record has the length of the whole and not that of a part.

A forecast is what was done so far, continued. That is only right if what was done is like what is left, so the ledgers
are taken in an order of which every beginning has the same share of large and of small ones (`interleaved`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from bookies.model import ENTRY_HEADER_SIZE, BookieId, LedgerMetadata, fragments_of
from bookies.protocol.quorums.quorum import write_sets_of
from bookies.protocol.repair.fragments import Fragment

GOLDEN = 0.6180339887498949  # its multiples, modulo 1, fill the unit interval evenly, however many are taken
LEDGER_SIZE = 4096  # bytes; what a ledger counts beside its own, so that empty ones count too
FORECAST_AFTER_S = 3.0
FORECAST_AFTER = 0.05  # of the work


def replicas_elsewhere(record: LedgerMetadata, away: Collection[BookieId]) -> int:
    """Of the entry that is worst off, how many replicas are left by the record when these bookies are away.

    An entry that a writer will yet add counts; of a ledger without any the write quorum is left.
    """
    size = record.ensemble_size
    # The last fragment of a ledger that is not closed may receive entries of every write set.
    end = record.last_entry_id if record.is_closed else record.ensembles[-1][0] + size - 1
    return min(
        (
            sum(ensemble[position] not in away for position in members)
            for first, last, ensemble in fragments_of(record, end)
            for members in write_sets_of(first, last, size, record.write_quorum)
        ),
        default=record.write_quorum,
    )


@dataclass(frozen=True, slots=True)
class Portion:
    """What a bookie has of one ledger. `size`: bytes as they are copied, estimated; `needs_sealing`: its writer may go
    on writing to it."""

    ledger_id: int
    fragments: int
    entries: int
    size: int
    needs_sealing: bool = False


def portion_of(
    record: LedgerMetadata, fragments: Sequence[Fragment], bookie: BookieId, last: int, length: int
) -> Portion:
    """`fragments`: of the ledger, those that have the bookie count; `last`, `length`: its last entry, and the bytes of
    all its payloads."""
    count = entries = 0
    for fragment in fragments:
        if bookie in fragment.ensemble:
            count += 1
            entries += len(fragment.stored(fragment.ensemble.index(bookie)))
    digest_size = record.digest_type.size if record.digest_type is not None else 0
    each = ENTRY_HEADER_SIZE + digest_size + (length / (last + 1) if last >= 0 else 0.0)
    needs_sealing = not record.is_closed and bookie in record.last_ensemble
    return Portion(record.ledger_id, count, entries, round(entries * each), needs_sealing)


class _Sized(Protocol):
    @property
    def size(self) -> int: ...


S = TypeVar("S", bound=_Sized)


def interleaved(items: Sequence[S]) -> list[S]:
    """The items in an order of which every beginning has about the sizes that the whole has."""
    ordered = sorted(items, key=lambda each: each.size)
    return [item for _, item in sorted(enumerate(ordered), key=lambda each: (each[0] * GOLDEN) % 1.0)]


class Forecast:
    """How long what is left will take, if it goes on as it went. Sizes in bytes, times in seconds of one clock."""

    def __init__(self, ledgers: int, size: int, now: float) -> None:
        self._begun = now
        self.set_work(ledgers, size)

    def set_work(self, ledgers: int, size: int) -> None:
        """What there is to do, done or not, without what waits for something: how long that takes nobody can tell."""
        self._work = size + LEDGER_SIZE * ledgers

    def idled(self, seconds: float) -> None:
        """Nothing could be done for so long, which says nothing about how fast the rest goes."""
        self._begun += seconds

    def share(self, ledgers_done: float, size_done: int) -> float:
        """How much of the work is done, 0 to 1. `ledgers_done`: those under way as the fraction that is done."""
        done = size_done + LEDGER_SIZE * ledgers_done
        return min(1.0, done / self._work) if self._work else 1.0

    def remaining_s(self, ledgers_done: float, size_done: int, now: float, owed_s: float = 0.0) -> float | None:
        """None: too little was done to tell. `owed_s`: for how long the pace that is kept forbids to copy more."""
        share, elapsed_s = self.share(ledgers_done, size_done), now - self._begun
        if share >= 1.0:
            return owed_s
        if elapsed_s < FORECAST_AFTER_S or share < FORECAST_AFTER:
            return None
        return (elapsed_s + owed_s) * (1.0 - share) / share + owed_s


def assumed_s(ledgers: int, size: int, bytes_per_s: float) -> float:
    """How long a copy takes at a rate that is assumed, before anything was measured."""
    return (size + LEDGER_SIZE * ledgers) / bytes_per_s
