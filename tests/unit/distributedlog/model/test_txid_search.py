"""The search by transaction id, against a scan. Source: distributedlog 5.2, I16."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookies.distributedlog.formats.entries import CONTROL, SlotRecord
from bookies.distributedlog.model.txid_search import Probe, probe_of, search

Entries = list[list[SlotRecord]]


def entries_of(steps: list[list[int]]) -> Entries:
    """Entries whose transaction ids grow by the steps; an entry without any is a control entry."""
    txid, entries = 0, []
    for step in steps:
        records = []
        for slot, growth in enumerate(step):
            txid += growth
            records.append(SlotRecord(slot, txid, 0, 0, b""))
        entries.append(records or [SlotRecord(0, txid, 0, CONTROL, b"control")])
    return entries


def found(entries: Entries, txid: int, ways: int) -> tuple[Probe | None, int]:
    """Return the result, and the number of rounds."""
    searching = search(len(entries) - 1, txid, ways)
    rounds, probes = 0, None
    while True:
        try:
            wanted = next(searching) if probes is None else searching.send(probes)
        except StopIteration as end:
            return end.value, rounds
        assert len(wanted) <= ways + 2
        probes = [probe_of(entry, entries[entry], txid) for entry in wanted]
        rounds += 1


@given(
    st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=40), st.integers(0, 40), st.sampled_from([2, 3, 4, 16])
)
def test_it_finds_what_a_scan_finds(steps: list[list[int]], txid: int, ways: int) -> None:
    entries = entries_of(steps)
    expected = next(
        (
            Probe(record.txid, entry, record.slot)
            for entry, records in enumerate(entries)
            for record in records
            if record.txid >= txid
        ),
        None,
    )
    assert found(entries, txid, ways)[0] == expected


def test_it_needs_few_rounds() -> None:
    probe, rounds = found(entries_of([[1]] * 1000), 700, 4)
    assert probe == Probe(700, 699, 0)
    assert rounds <= 7
