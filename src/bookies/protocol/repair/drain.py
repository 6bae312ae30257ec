"""Figures for a drain or a maintenance of a bookie: what depends on it, how much to copy, how long it takes.

Pure functions of records. The number of a ledger's entries is exact. Bytes are estimated from the length of the whole
ledger, since a record has no length of a part; they are exact if all entries have the same size.

A forecast extrapolates the progress so far. That requires that the finished part is like the rest, so the ledgers are
processed in interleaved size order: any prefix is a representative sample (`interleaved`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar

from msgspec import Struct

from bookies.model import ENTRY_HEADER_SIZE, BookieId, LedgerMetadata, fragments_of
from bookies.protocol.ledger.offload import is_given_up
from bookies.protocol.quorums.quorum import write_sets_of
from bookies.protocol.repair.fragments import Fragment

GOLDEN = 0.6180339887498949  # its multiples, modulo 1, fill the unit interval evenly, however many are taken
LEDGER_SIZE = 4096  # bytes; overhead of a ledger beside its entries, so that empty ones count too
FORECAST_AFTER_S = 3.0
FORECAST_AFTER = 0.05  # of the work


def replicas_elsewhere(record: LedgerMetadata, away: Collection[BookieId]) -> int:
    """Return how many replicas, by the record, the entry with the fewest has left when these bookies are away.

    Entries that a writer may yet add count. A ledger without entries, or in files, has its write quorum left.
    """
    if is_given_up(record):
        return record.write_quorum
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


class Portion(Struct, frozen=True):
    """A bookie's part of one ledger. `size`: bytes to copy, estimated; `needs_sealing`: its writer may add to it."""

    ledger_id: int
    fragments: int
    entries: int
    size: int
    needs_sealing: bool = False


def portion_of(
    record: LedgerMetadata, fragments: Sequence[Fragment], bookie: BookieId, last: int, length: int
) -> Portion:
    """Return a bookie's part of a ledger.

    fragments: fragments of the ledger; those without the bookie are ignored.
    last, length: the ledger's last entry, and the bytes of all its payloads.
    """
    count = entries = 0
    for fragment in fragments:
        if bookie in fragment.ensemble:
            count += 1
            entries += len(fragment.stored(fragment.ensemble.index(bookie)))
    digest_size = record.digest_type.size if record.digest_type is not None else 0
    entry_size = ENTRY_HEADER_SIZE + digest_size + (length / (last + 1) if last >= 0 else 0.0)
    needs_sealing = not record.is_closed and bookie in record.last_ensemble
    return Portion(record.ledger_id, count, entries, round(entries * entry_size), needs_sealing)


class _Sized(Protocol):
    @property
    def size(self) -> int:
        """Return the bytes to process."""


S = TypeVar("S", bound=_Sized)


def interleaved(items: Sequence[S]) -> list[S]:
    """Return the items in an order in which any prefix has about the size distribution of the whole."""
    ordered = sorted(items, key=lambda item: item.size)
    return [item for _, item in sorted(enumerate(ordered), key=lambda pair: (pair[0] * GOLDEN) % 1.0)]


class Forecast:
    """Forecast of the remaining time at the speed so far. Sizes in bytes, times in seconds of one clock."""

    def __init__(self, ledgers: int, size: int, now: float) -> None:
        self._begun = now
        self.set_work(ledgers, size)

    def set_work(self, ledgers: int, size: int) -> None:
        """Set the total work, finished or not, without ledgers that wait for something: their time is unknown."""
        self._work = size + LEDGER_SIZE * ledgers

    def idled(self, seconds: float) -> None:
        """Exclude idle seconds, in which no work was possible, from the speed."""
        self._begun += seconds

    def share(self, ledgers_done: float, size_done: int) -> float:
        """Return the finished fraction of the work. `ledgers_done`: with fractions of those in progress."""
        done = size_done + LEDGER_SIZE * ledgers_done
        return min(1.0, done / self._work) if self._work else 1.0

    def remaining_s(self, ledgers_done: float, size_done: int, now: float, owed_s: float = 0.0) -> float | None:
        """Return the remaining seconds; None: too little is finished. `owed_s`: seconds that the rate limit adds."""
        share, elapsed_s = self.share(ledgers_done, size_done), now - self._begun
        if share >= 1.0:
            return owed_s
        if elapsed_s < FORECAST_AFTER_S or share < FORECAST_AFTER:
            return None
        return (elapsed_s + owed_s) * (1.0 - share) / share + owed_s


def assumed_s(ledgers: int, size: int, bytes_per_s: float) -> float:
    """Return the seconds that a copy takes at an assumed rate, before any was measured."""
    return (size + LEDGER_SIZE * ledgers) / bytes_per_s
