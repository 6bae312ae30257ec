"""Count of the replicas of each entry of a sealed ledger: every bookie is asked for its list of entries."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from bookies.errors import BookieError, LedgerUnknownToBookie
from bookies.model import BookieId, LedgerMetadata, fragments_of

if TYPE_CHECKING:
    from bookies.client.client import Client


async def count_replicas(client: Client, metadata: LedgerMetadata) -> Mapping[int, int]:
    """Return the number of entries by their number of replicas. An unreachable bookie counts as having no entry."""
    held: dict[BookieId, list[range]] = {}
    counts: Counter[int] = Counter()
    for first, last, ensemble in fragments_of(metadata, metadata.last_entry_id):
        for bookie in ensemble:
            if bookie not in held:
                held[bookie] = await _entries_of(client, bookie, metadata.ledger_id)
        counts += count_overlaps(first, last, [held[bookie] for bookie in ensemble])
    return counts


async def _entries_of(client: Client, bookie: BookieId, ledger_id: int) -> list[range]:
    try:
        return list(await client.list_entries(bookie, ledger_id))
    except (BookieError, LedgerUnknownToBookie):
        return []


def count_overlaps(first: int, last: int, holders: Iterable[Iterable[range]]) -> Counter[int]:
    """Count the ids of first..last by the number of holders whose ranges (step 1) contain them.

    The work is per range, not per id.
    """
    changes: Counter[int] = Counter({first: 0, last + 1: 0})
    for ranges in holders:
        for held in ranges:
            low, high = max(held.start, first), min(held.stop, last + 1)
            if low < high:
                changes[low] += 1
                changes[high] -= 1
    counts: Counter[int] = Counter()
    level = 0
    bounds = sorted(changes)
    for low, high in itertools.pairwise(bounds):
        level += changes[low]
        counts[level] += high - low
    return counts
