"""Linearizability check: one order of all operations on a ledger must explain every client's observations.

A ledger is a sequence that clients append to and close once. Each append takes effect at one instant between its begin
and its answer, in the order of the entries. The close takes effect once, before any client learns the end. A read
returns only entries that have taken effect. The check uses only the times at which operations began and were answered.
It does not depend on quorums, fences or records.

The search is greedy and complete: an entry takes effect as early as possible, which never restricts later operations.
Source: client-protocol 8.2 (I-1, I-3, I-4, I-5, I-14), and linearizability as Herlihy and Wing define it.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field


class Observations(Struct):
    """All observations of one ledger. Times are increasing numbers; all events of a run have different ones."""

    begun: dict[int, int] = field(default_factory=dict)  # entry -> when its append began
    acknowledged: dict[int, int] = field(default_factory=dict)  # entry -> when its append succeeded
    reads: list[tuple[int, int, str]] = field(default_factory=list)  # entry, when a client received it, client
    ends: list[tuple[int, int, str]] = field(default_factory=list)  # last entry, when a client learned it, client


def disorder(seen: Observations) -> Iterator[str]:
    """Yield the reasons why no order explains the observations; none if one does."""
    earliest: dict[int, int] = {}  # entry -> the first instant at which it can have taken effect
    instant = 0
    for entry_id in range(max(seen.begun, default=-1) + 1):
        if entry_id not in seen.begun:
            break
        instant = earliest[entry_id] = max(instant, seen.begun[entry_id])
    for entry_id, at in seen.acknowledged.items():
        if earliest.get(entry_id, at + 1) > at:
            yield f"entry {entry_id} was acknowledged before an entry in front of it was begun"
    for entry_id, at, client in seen.reads:
        if earliest.get(entry_id, at + 1) > at:
            yield f"{client} read entry {entry_id} before it can have taken effect"
    if seen.ends:
        yield from _disorder_of_end(seen, earliest)


def _disorder_of_end(seen: Observations, earliest: dict[int, int]) -> Iterator[str]:
    last, learned_at, first_client = min(seen.ends, key=lambda end: end[1])
    for other, _, client in seen.ends:
        if other != last:
            yield f"the ledger ends at {last} for {first_client}, at {other} for {client}"
    if last >= 0 and earliest.get(last, learned_at + 1) > learned_at:
        yield f"{first_client} was told the end {last} before that entry can have taken effect"
    if late := [entry_id for entry_id in seen.acknowledged if entry_id > last]:
        yield f"entries {late} behind the end {last} were acknowledged"
    for entry_id, _, client in seen.reads:
        if entry_id > last:
            yield f"{client} read entry {entry_id} behind the end {last}"
