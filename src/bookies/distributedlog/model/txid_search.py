"""The search for a transaction id in a segment: which entries to probe next. Source: distributedlog 5.2.

Pure: a generator that yields entry ids, and is sent the probe of each. It assumes that transaction ids do not decrease.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple

from bookies.distributedlog.formats.entries import SlotRecord

WAYS = 4  # entries that are read at once


class Probe(NamedTuple):
    """One record of an entry: the first whose transaction id is large enough, else the last one."""

    txid: int
    entry: int
    slot: int


Search = Generator[Sequence[int], Sequence[Probe], Probe | None]


def probe_of(entry: int, records: Sequence[SlotRecord], txid: int) -> Probe:
    """Return the probe of an entry. It has a record at least."""
    chosen = next((record for record in records if record.txid >= txid), records[-1])
    return Probe(chosen.txid, entry, chosen.slot)


def search(last_entry: int, txid: int, ways: int = WAYS) -> Search:
    """Search entries 0 to `last_entry`; return the first record with at least this transaction id, None: there is none.

    A record in slot 0 may be preceded by an equal one in the entry before, so that entry is probed too.
    """
    if last_entry < 0:
        return None
    low, high, best = 0, last_entry, None
    while low <= high:
        step = -(-(high - low + 1) // ways)
        entries = sorted({*range(low, high + 1, step), high})
        probes = yield entries
        index = next((at for at, probe in enumerate(probes) if probe.txid >= txid), None)
        if index is None:
            return best  # The range ends just before `best`, or at the end of the segment.
        best = probes[index]
        if best.slot != 0 or index == 0:
            return best
        low, high = entries[index - 1] + 1, entries[index] - 1
    return best
