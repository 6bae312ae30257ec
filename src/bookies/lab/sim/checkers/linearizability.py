"""Is there one order of everything that happened to a ledger which explains what everybody saw?

A ledger is a sequence that is appended to and closed once. Each append takes effect at one instant between its begin
and its answer, in the order of the entries; the close takes effect once, before anybody is told the end; a read shows
only what has taken effect. This looks at nothing but the times at which operations began and were answered, and knows
nothing of quorums, fences or records.

The search is greedy, and complete: an entry takes effect as early as it may, which is never worse for anything after.
Source: client-protocol 8.2 (I-1, I-3, I-4, I-5, I-14), and linearizability as Herlihy and Wing define it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Observations:
    """What was seen of one ledger. Times are any numbers that grow; all events of a run have different ones."""

    begun: dict[int, int] = field(default_factory=dict)  # entry -> when its append began
    acknowledged: dict[int, int] = field(default_factory=dict)  # entry -> when its append succeeded
    reads: list[tuple[int, int, str]] = field(default_factory=list)  # entry, when it was shown, to whom
    ends: list[tuple[int, int, str]] = field(default_factory=list)  # last entry, when it was told, to whom


def disorder(seen: Observations) -> Iterator[str]:
    """Why no order explains the observations; nothing when one does."""
    earliest: dict[int, int] = {}  # entry -> the first instant at which it can have taken effect
    instant = 0
    for entry_id in range(max(seen.begun, default=-1) + 1):
        if entry_id not in seen.begun:
            break
        instant = earliest[entry_id] = max(instant, seen.begun[entry_id])
    for entry_id, at in seen.acknowledged.items():
        if earliest.get(entry_id, at + 1) > at:
            yield f"entry {entry_id} was acknowledged before an entry in front of it was begun"
    for entry_id, at, who in seen.reads:
        if earliest.get(entry_id, at + 1) > at:
            yield f"{who} read entry {entry_id} before it can have taken effect"
    if seen.ends:
        yield from _disorder_of_end(seen, earliest)


def _disorder_of_end(seen: Observations, earliest: dict[int, int]) -> Iterator[str]:
    last, told_at, first_who = min(seen.ends, key=lambda end: end[1])
    for other, _, who in seen.ends:
        if other != last:
            yield f"the ledger ends at {last} for {first_who}, at {other} for {who}"
    if last >= 0 and earliest.get(last, told_at + 1) > told_at:
        yield f"{first_who} was told the end {last} before that entry can have taken effect"
    if late := [entry_id for entry_id in seen.acknowledged if entry_id > last]:
        yield f"entries {late} behind the end {last} were acknowledged"
    for entry_id, _, who in seen.reads:
        if entry_id > last:
            yield f"{who} read entry {entry_id} behind the end {last}"
