"""The table of a rebuild: the code takes no other transition, and every row is one that a ledger can take."""

from __future__ import annotations

import itertools

import pytest

from bookies.storage.index.index_format import IndexHeader
from bookies.storage.index.index_ledger import Ledger
from bookies.storage.index.rebuild_states import TRANSITIONS, RebuildEvent, RebuildState

IMPOSSIBLE = {(RebuildState.SAVING, RebuildEvent.FREEZE)}  # two writes never overlap


@pytest.mark.parametrize(("state", "event"), list(itertools.product(RebuildState, RebuildEvent)))
def test_every_pair(state: RebuildState, event: RebuildEvent) -> None:
    ledger = Ledger(7, IndexHeader(b""), rebuild=state)
    if (state, event) in IMPOSSIBLE:
        with pytest.raises(KeyError):
            ledger.take(event)
        assert ledger.rebuild is state
    else:
        ledger.take(event)
        assert ledger.rebuild is TRANSITIONS[state, event]
        assert ledger.lacks_entries == (ledger.rebuild is RebuildState.DOUBTED)


def test_slots_that_were_found_become_durable_before_the_file_counts_as_complete() -> None:
    """Every way from a doubt to a complete file leads through a read of the logs, and a write that began after it."""
    assert not [pair for pair in IMPOSSIBLE if pair in TRANSITIONS]
    to_complete = {pair for pair, state in TRANSITIONS.items() if state is RebuildState.COMPLETE}
    assert {state for state, _ in to_complete} == {RebuildState.COMPLETE, RebuildState.SAVING}
    assert (RebuildState.SAVING, RebuildEvent.WRITTEN) in to_complete
    assert {pair for pair, state in TRANSITIONS.items() if state is RebuildState.SAVING} == {
        (RebuildState.FOUND, RebuildEvent.FREEZE)
    }
    assert all(TRANSITIONS[state, RebuildEvent.DOUBT] is RebuildState.DOUBTED for state in RebuildState)
