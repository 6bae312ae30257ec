"""Decisions of garbage collection: which ledgers are garbage, when their number is implausible, which logs to compact.

F-31: delete a ledger only after an explicit "no such ledger" for its id. Two proofs are needed: the scan of the
metadata did not list the ledger, and a read of its own record returned "no such ledger". Otherwise the ledger is kept.
A scan that would remove an implausible share at once needs an operator's confirmation.

No IO, no clock. Source: storage 7.2, 7.3, 7.5.
"""

from __future__ import annotations

import enum
import itertools
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from msgspec import Struct

from bookies.errors import MetadataCorrupt
from bookies.model import LedgerMetadata
from bookies.protocol.ledger import offload
from bookies.storage.entry_log import LogUsage

SHARE_COUNT_MIN = 100  # ledgers that may be removed at once, regardless of their share


class Comparison:
    """Local ledgers compared with the ranges of a metadata scan, in one pass over both.

    `local`: ascending, and read before the scan began, because a ledger's metadata exists before any of its entries.
    """

    def __init__(self, local: Sequence[int]) -> None:
        self._local = local
        self._at = 0
        self._end = -1  # the last id that was listed

    def listed(self, ledger_ids: Sequence[int]) -> list[int]:
        """Return the local ids, up to the end of this range of the scan, that the range does not contain.

        Raises MetadataCorrupt for a range that is out of order: such a scan is no proof.
        """
        if not ledger_ids:
            return []
        if ledger_ids[0] <= self._end or any(low >= high for low, high in itertools.pairwise(ledger_ids)):
            raise MetadataCorrupt(f"the metadata store lists ledger {ledger_ids[0]} out of order")
        self._end = ledger_ids[-1]
        stop = bisect_right(self._local, self._end, lo=self._at)
        passed, self._at = self._local[self._at : stop], stop
        present = set(ledger_ids)
        return [ledger_id for ledger_id in passed if ledger_id not in present]

    def rest(self) -> list[int]:
        """Return the local ids above everything that was listed."""
        above, self._at = self._local[self._at :], len(self._local)
        return list(above)


def is_implausible(count: int, local_count: int, share_max: int) -> bool:
    """Report whether removing `count` ledgers needs an operator's confirmation. `share_max` in percent."""
    return count > SHARE_COUNT_MIN and count * 100 > local_count * share_max


def is_surplus(metadata: LedgerMetadata, bookie: str) -> bool:
    """Report whether a ledger is closed, lists this bookie nowhere, and is not being restored from files.

    F-31: an open ledger is never surplus, because its ensemble may be about to include this bookie.
    """
    return metadata.is_closed and not metadata.names(bookie) and not offload.is_coming_back(metadata)


class Compaction(enum.Enum):
    """The two levels of compaction. They differ in the share of live bytes and in the interval."""

    MINOR = "minor"
    MAJOR = "major"


class Schedule(Struct):
    """Due times of compactions, in seconds of a monotonic clock. An interval of 0 means never.

    A major compaction also restarts the interval of the minor one, because it includes its work.
    """

    minor_interval_s: float
    major_interval_s: float
    minor_from: float
    major_from: float

    def due(self, now: float) -> Compaction | None:
        """Return the compaction that is due, the major one first."""
        if self.major_interval_s and now - self.major_from >= self.major_interval_s:
            return Compaction.MAJOR
        if self.minor_interval_s and now - self.minor_from >= self.minor_interval_s:
            return Compaction.MINOR
        return None

    def started(self, level: Compaction, now: float) -> None:
        self.minor_from = now
        if level is Compaction.MAJOR:
            self.major_from = now


def choose_logs(logs: Iterable[LogUsage], threshold: int) -> list[LogUsage]:
    """Return logs with less than `threshold` percent of live bytes, by deciles of that share, then oldest first."""
    chosen = [usage for usage in logs if usage.share * 100 < threshold]
    return sorted(chosen, key=lambda usage: (int(usage.share * 10), usage.log_id))
