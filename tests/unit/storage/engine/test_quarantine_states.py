"""The table of a ledger's removal: `Quarantine` takes every row of it, and changes nothing for any other pair."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from bookies.errors import InvalidArgument
from bookies.lab.sim.faults import damage
from bookies.lab.sim.world.disk import SimDisk
from bookies.storage.engine.quarantine import Quarantine
from bookies.storage.engine.quarantine_format import QuarantineState
from bookies.storage.engine.quarantine_states import TRANSITIONS, QuarantineEvent, after
from bookies.storage.store import LedgerStore

LEDGER = 7


async def _found(removals: Quarantine) -> None:
    if not removals.skips(LEDGER, is_own=False):
        await removals.find(LEDGER, 1)


STATES = (None, *QuarantineState)
CALLS: dict[QuarantineEvent, Callable[[Quarantine], Awaitable[object]]] = {
    QuarantineEvent.GONE: lambda removals: removals.quarantine([LEDGER], QuarantineState.QUARANTINED, 1),
    QuarantineEvent.LEFT: lambda removals: removals.quarantine([LEDGER], QuarantineState.SURPLUS, 1),
    QuarantineEvent.RETURNED: lambda removals: removals.lift([LEDGER]),
    QuarantineEvent.PIN: lambda removals: removals.pin(LEDGER, 1),
    QuarantineEvent.DELETE: lambda removals: removals.delete([LEDGER], 1),
    QuarantineEvent.FOUND: _found,
    QuarantineEvent.FORGET: lambda removals: removals.forget([LEDGER]),
}
WAYS: dict[QuarantineState | None, tuple[QuarantineEvent, ...]] = {
    None: (),
    QuarantineState.QUARANTINED: (QuarantineEvent.GONE,),
    QuarantineState.SURPLUS: (QuarantineEvent.LEFT,),
    QuarantineState.PINNED: (QuarantineEvent.GONE, QuarantineEvent.PIN),
    QuarantineState.DELETED: (QuarantineEvent.GONE, QuarantineEvent.DELETE),
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(STATES, QuarantineEvent)))
def test_every_pair(state: QuarantineState | None, event: QuarantineEvent) -> None:
    async def script(store: LedgerStore) -> None:
        if (state, event) != (None, QuarantineEvent.FOUND):  # which the index has lost
            await damage.add(store, LEDGER, 0, damage.body_of(LEDGER, 0))
        assert store._parts is not None
        removals = store._parts.removals
        for step in WAYS[state]:
            await CALLS[step](removals)
        assert _state(removals) is state
        with contextlib.suppress(InvalidArgument):
            await CALLS[event](removals)
        expected = TRANSITIONS.get((state, event), state)
        if (state, event) == (QuarantineState.SURPLUS, QuarantineEvent.DELETE):
            expected = after(expected, QuarantineEvent.FORGET)  # at once: the ledger may be copied here again
        assert _state(removals) is expected

    damage.live(SimDisk(Random(0)), "quarantine", script, stops=True)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(STATES, QuarantineEvent)))
def test_a_transition_that_the_table_lacks_is_refused(state: QuarantineState | None, event: QuarantineEvent) -> None:
    if (state, event) not in TRANSITIONS:
        with pytest.raises(KeyError):
            after(state, event)
    else:
        assert after(state, event) is TRANSITIONS[state, event]


def _state(removals: Quarantine) -> QuarantineState | None:
    record = removals.get(LEDGER)
    return None if record is None else record.state
