"""What collection decides: which ledgers are garbage, whether so many can be, which logs to compact, and when.

Two proofs are needed before a ledger goes (F-31): the scan of the metadata did not list it, and a read of its own
record said "no such ledger". Anything else keeps it. And a scan that would take away much at once is not believed
without an operator's word.

No IO, no clock. Source: storage 7.2, 7.3, 7.5.
"""

from __future__ import annotations

import enum
import itertools
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bookies.errors import MetadataCorrupt
from bookies.model import LedgerMetadata
from bookies.protocol.ledger import offload
from bookies.storage.entry_log import LogUsage

SHARE_COUNT_MIN = 100  # so many may go at once whatever their share is


class Comparison:
    """Local ledgers against the ranges of a metadata scan, in one pass over both.

    `local`: ascending, and taken before the scan began: a ledger is in the metadata before anything of it is stored.
    """

    def __init__(self, local: Sequence[int]) -> None:
        self._local = local
        self._at = 0
        self._end = -1  # the last id that was listed

    def listed(self, ledger_ids: Sequence[int]) -> list[int]:
        """Local ids up to the last of this range that it has not.

        Raises MetadataCorrupt for a range that is out of order: such a scan proves nothing.
        """
        if not ledger_ids:
            return []
        if ledger_ids[0] <= self._end or any(low >= high for low, high in itertools.pairwise(ledger_ids)):
            raise MetadataCorrupt(f"the metadata store lists ledger {ledger_ids[0]} out of order")
        self._end = ledger_ids[-1]
        stop = bisect_right(self._local, self._end, lo=self._at)
        here, self._at = self._local[self._at : stop], stop
        present = set(ledger_ids)
        return [each for each in here if each not in present]

    def rest(self) -> list[int]:
        """Local ids above everything that was listed."""
        here, self._at = self._local[self._at :], len(self._local)
        return list(here)


def is_implausible(count: int, local_count: int, share_max: int) -> bool:
    """Whether so many ledgers cannot go without a word from an operator. `share_max` in percent."""
    return count > SHARE_COUNT_MIN and count * 100 > local_count * share_max


def is_surplus(metadata: LedgerMetadata, bookie: str) -> bool:
    """Whether a ledger is closed and lists this bookie nowhere. An open one may be about to (F-31), and so may one
    that is being restored from files."""
    return metadata.is_closed and not metadata.names(bookie) and not offload.is_coming_back(metadata)


class Compaction(enum.Enum):
    """The two kinds, which differ in how empty a log has to be and how often they come."""

    MINOR = "minor"
    MAJOR = "major"


@dataclass
class Schedule:
    """When compactions are due; seconds of a monotonic clock. An interval of 0 means never.

    A major one restarts the minor one's clock too, because it does its work.
    """

    minor_interval_s: float
    major_interval_s: float
    minor_from: float
    major_from: float

    def due(self, now: float) -> Compaction | None:
        """The kind that is due, the major one first."""
        if self.major_interval_s and now - self.major_from >= self.major_interval_s:
            return Compaction.MAJOR
        if self.minor_interval_s and now - self.minor_from >= self.minor_interval_s:
            return Compaction.MINOR
        return None

    def started(self, kind: Compaction, now: float) -> None:
        self.minor_from = now
        if kind is Compaction.MAJOR:
            self.major_from = now


def choose_logs(logs: Iterable[LogUsage], threshold: int) -> list[LogUsage]:
    """Logs of which less than `threshold` percent is wanted, by deciles of that, the emptiest and the oldest first."""
    chosen = [each for each in logs if each.share * 100 < threshold]
    return sorted(chosen, key=lambda each: (int(each.share * 10), each.log_id))
