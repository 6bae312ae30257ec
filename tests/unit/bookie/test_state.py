"""The mode of a bookie: who may do what, and what is to be registered when."""

from __future__ import annotations

from random import Random

import pytest

from bookies.bookie.state import TRANSITIONS, BookieState, Phase, PhaseEvent
from bookies.model import BookieMode


def serving() -> BookieState:
    state = BookieState()
    state.started()
    state.registered(BookieMode.WRITABLE)
    return state


def test_nothing_is_allowed_before_the_start_and_after_the_end() -> None:
    state = BookieState()
    assert (state.may_serve(), state.may_add(True), state.may_write_lac()) == (False, False, False)
    assert state.registration_due() is None
    state.started()
    assert (state.may_serve(), state.may_add(False), state.may_write_lac()) == (True, True, True)
    assert state.registration_due() is BookieMode.WRITABLE
    state.stopping()
    assert (state.may_serve(), state.may_add(True), state.may_write_lac()) == (False, False, False)
    assert state.registration_due() is None


@pytest.mark.parametrize("reason", ["storage", "operator"])
def test_read_only_serves_and_takes_urgent_adds_only(reason: str) -> None:
    state = serving()
    if reason == "storage":
        state.storage_is(writable=False)
    else:
        state.hold_read_only(True)
    assert state.mode is BookieMode.READ_ONLY
    assert state.may_serve()
    assert not state.may_add(False)
    assert state.may_add(True)
    assert not state.may_write_lac()
    assert state.registration_due() is BookieMode.READ_ONLY
    state.registered(BookieMode.READ_ONLY)
    assert state.registration_due() is None


def test_the_mode_follows_facts_whatever_their_order() -> None:
    state = serving()
    state.storage_is(writable=False)
    state.storage_is(writable=False)
    state.hold_read_only(True)
    state.storage_is(writable=True)
    assert state.mode is BookieMode.READ_ONLY, "what an operator holds, only an operator lets go"
    state.hold_read_only(False)
    assert state.mode is BookieMode.WRITABLE
    assert state.registration_due() is None, "it was registered so all the time"


def test_a_lost_session_makes_the_registration_due_while_serving_goes_on() -> None:
    state = serving()
    state.registration_lost()
    assert state.may_add(False)
    assert state.registration_due() is BookieMode.WRITABLE
    state.storage_is(writable=False)
    assert state.registration_due() is BookieMode.READ_ONLY


def test_repr() -> None:
    state = BookieState()
    assert repr(state) == "<BookieState starting writable, not registered>"
    state.started()
    state.registered(BookieMode.WRITABLE)
    assert repr(state) == "<BookieState serving writable, writable>"
    assert state.phase is Phase.SERVING


# -- the table of phases ---------------------------------------------------------------------------------------------
ACTS = {
    PhaseEvent.STARTED: BookieState.started,
    PhaseEvent.FAILED: BookieState.failed,
    PhaseEvent.STOP: BookieState.stopping,
}
BEFORE: dict[Phase, list[PhaseEvent]] = {
    Phase.STARTING: [],
    Phase.SERVING: [PhaseEvent.STARTED],
    Phase.FAILED: [PhaseEvent.STARTED, PhaseEvent.FAILED],
    Phase.STOPPING: [PhaseEvent.STARTED, PhaseEvent.STOP],
}


@pytest.mark.parametrize(("phase", "event"), TRANSITIONS)
def test_every_row_of_the_table(phase: Phase, event: PhaseEvent) -> None:
    state = BookieState()
    for earlier in BEFORE[phase]:
        ACTS[earlier](state)
    assert state.phase is phase
    ACTS[event](state)
    assert state.phase is TRANSITIONS[phase, event]
    assert state.may_serve() is (state.phase is Phase.SERVING)


def test_random_events_take_rows_of_the_table_only() -> None:
    random = Random(1)
    taken = set()
    for _ in range(200):
        state = BookieState()
        for _ in range(5):
            phase, event = state.phase, random.choice(list(ACTS))
            if (phase, event) in TRANSITIONS:
                ACTS[event](state)
                taken.add((phase, event))
                assert state.phase is TRANSITIONS[phase, event]
            else:
                with pytest.raises(AssertionError, match="impossible"):
                    ACTS[event](state)
                assert state.phase is phase
    assert taken == set(TRANSITIONS)
