"""What writers may ask of the add pipeline, and answers nobody asked for; its rules are in the scenarios `add/`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.fakes.adds import Observed

from bookies.errors import (
    BookieTimeout,
    ClientClosed,
    EntryExists,
    InvalidArgument,
    LedgerClosed,
    LedgerFenced,
    LedgerNotFound,
    NotEnoughBookies,
)
from bookies.model import BookieId, Ensemble, LedgerMetadata, LedgerState
from bookies.protocol.ledger import AddPipeline
from bookies.protocol.ledger.add import (
    TRANSITIONS,
    AddEvent,
    AddRules,
    AddState,
    ChangeEnsemble,
    CloseLedger,
    Confirmed,
    Failed,
    RetryLater,
    Send,
)
from bookies.protocol.ledger.add_advanced import ENTRY_ID_MAX, AdvancedAddPipeline
from bookies.protocol.ledger.ledger import with_ensemble


def members(names: str) -> Ensemble:
    return tuple(BookieId(name) for name in names)


A, B, C, D = members("abcd")


def record(write_quorum: int = 3) -> LedgerMetadata:
    return LedgerMetadata(7, 3, write_quorum, 2, ((0, members("abc")),))


# -- the table of states ---------------------------------------------------------------------------------------------
def confirming(changes_max: int = 9) -> Observed:
    pipeline = Observed(record(), rules=AddRules(changes_max=changes_max))
    pipeline.add(2)
    return pipeline


def changing() -> Observed:
    pipeline = confirming()
    assert pipeline.failed(0, A, range(1), BookieTimeout()) == [ChangeEnsemble(0, ((0, A),), ())]
    return pipeline


def changing_with_another_failure() -> Observed:
    pipeline = changing()
    assert pipeline.failed(1, B, range(1), BookieTimeout()) == ()
    return pipeline


def ended_changing() -> Observed:
    pipeline = changing()
    pipeline.close()
    return pipeline


REPLACED = with_ensemble(record(), 0, members("dbc"))
ROWS: list[tuple[AddState, AddEvent, Callable[[], Observed], Callable[[AddPipeline], object]]] = [
    (AddState.CONFIRMING, AddEvent.CHANGE_REQUESTED, confirming, lambda p: p.failed(2, C, range(1), BookieTimeout())),
    (
        AddState.CONFIRMING,
        AddEvent.CHANGE_REFUSED,
        lambda: confirming(changes_max=0),
        lambda p: p.failed(2, C, range(1), BookieTimeout()),
    ),
    (AddState.CONFIRMING, AddEvent.FAILED, confirming, lambda p: p.failed(2, C, range(1), LedgerFenced())),
    (AddState.CONFIRMING, AddEvent.FAILED, confirming, lambda p: p.fail(LedgerNotFound())),
    (AddState.CONFIRMING, AddEvent.CLOSED, confirming, lambda p: p.close()),
    (AddState.CONFIRMING, AddEvent.CLOSED, confirming, lambda p: p.abandon(ClientClosed())),
    (
        AddState.CHANGING,
        AddEvent.CHANGE_REQUESTED,
        changing_with_another_failure,
        lambda p: p.metadata_changed(REPLACED),
    ),
    (AddState.CHANGING, AddEvent.CHANGE_ADOPTED, changing, lambda p: p.metadata_changed(REPLACED)),
    (AddState.CHANGING, AddEvent.CHANGE_REFUSED, changing, lambda p: p.change_failed(NotEnoughBookies())),
    (
        AddState.CHANGING,
        AddEvent.CHANGE_REFUSED,
        changing,
        lambda p: p.metadata_changed(record().replace(state=LedgerState.IN_RECOVERY)),
    ),
    (AddState.CHANGING, AddEvent.FAILED, changing, lambda p: p.failed(2, C, range(1), LedgerFenced())),
    (AddState.CHANGING, AddEvent.CLOSED, changing, lambda p: p.close()),
    (AddState.ENDED_CHANGING, AddEvent.CHANGE_OBSOLETE, ended_changing, lambda p: p.metadata_changed(REPLACED)),
    (AddState.ENDED_CHANGING, AddEvent.CHANGE_OBSOLETE, ended_changing, lambda p: p.change_failed(LedgerFenced())),
]


@pytest.mark.parametrize(("state", "event", "before", "act"), ROWS)
def test_every_row_of_the_table(
    state: AddState, event: AddEvent, before: Callable[[], Observed], act: Callable[[AddPipeline], object]
) -> None:
    pipeline = before()
    pipeline.taken.clear()
    act(pipeline)
    assert pipeline.taken == [(state, event)]
    assert pipeline.state is TRANSITIONS[state, event]


def test_the_rows_are_the_table() -> None:
    assert {row[:2] for row in ROWS} == set(TRANSITIONS)


def test_reports_of_a_change_that_was_never_requested_are_refused() -> None:
    with pytest.raises(AssertionError, match="CHANGE_ADOPTED is impossible in state CONFIRMING"):
        confirming().metadata_changed(REPLACED)
    pipeline = confirming()
    pipeline.close()
    with pytest.raises(AssertionError, match="CHANGE_OBSOLETE is impossible in state ENDED"):
        pipeline.metadata_changed(REPLACED)


# -- changes switched off (2.9) --------------------------------------------------------------------------------------
def failed_while_switched_off() -> AddPipeline:
    """Entries 0 and 1; a has failed them, and is to be asked again."""
    pipeline = AddPipeline(record())
    pipeline.allows_changes = False
    pipeline.add(2)
    assert pipeline.failed(0, A, range(2), BookieTimeout()) == (RetryLater(0, A, 0),)
    return pipeline


def test_a_retry_sends_again_what_failed() -> None:
    pipeline = failed_while_switched_off()
    assert pipeline.failed(0, A, range(1), BookieTimeout()) == (), "one wait at a time"
    assert pipeline.retry(0, A) == [Send(0, A, [0, 1])]
    assert pipeline.failed(0, A, range(2), BookieTimeout()) == (RetryLater(0, A, 1),)


def test_a_retry_replaces_the_bookie_once_changes_are_allowed_again() -> None:
    pipeline = failed_while_switched_off()
    pipeline.allows_changes = True
    assert pipeline.retry(0, A) == [ChangeEnsemble(0, ((0, A),), ())]


def test_a_retry_of_a_bookie_that_was_replaced_meanwhile_is_none() -> None:
    pipeline = failed_while_switched_off()
    pipeline.allows_changes = True
    assert pipeline.failed(0, A, range(2), BookieTimeout()) == [ChangeEnsemble(0, ((0, A),), ())]
    assert pipeline.retry(0, A) == (), "the change is under way"
    assert pipeline.metadata_changed(with_ensemble(record(), 0, members("dbc"))) == [Send(0, D, range(2))]
    assert pipeline.retry(0, A) == ()


# -- late failures (2.10) --------------------------------------------------------------------------------------------
def test_a_late_failure_waits_for_the_change_that_is_under_way() -> None:
    """Entries added meanwhile do not begin another; the round after this one has both bookies."""
    pipeline = AddPipeline(record())
    pipeline.add(1)
    assert pipeline.failed(0, A, range(1), BookieTimeout()) == [ChangeEnsemble(0, ((0, A),), ())]
    assert pipeline.failed(1, B, range(1), BookieTimeout()) == ()
    assert pipeline.add(1) == [Send(0, A, range(1, 2)), Send(1, B, range(1, 2)), Send(2, C, range(1, 2))]
    again = pipeline.metadata_changed(with_ensemble(record(), 0, members("dbc")))
    assert again == [ChangeEnsemble(0, ((1, B),), (A,))]


# -- ending ----------------------------------------------------------------------------------------------------------
def test_a_reason_that_no_bookie_gave_ends_it_once() -> None:
    pipeline = AddPipeline(record())
    pipeline.add(3)
    pipeline.acknowledged(0, A, range(1))
    assert pipeline.acknowledged(1, B, range(1)) == (Confirmed(0, 0),)
    gone = LedgerNotFound()
    assert pipeline.fail(gone) == [Failed(1, 2, gone), CloseLedger(0, is_implicit=True)]
    assert pipeline.fail(LedgerClosed()) == ()
    assert pipeline.error is gone


# -- answers nobody asked for ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("ids", [range(1, 1), [], range(2, 5), [2, 4], range(7, 9), [5, 7]])
@pytest.mark.parametrize("write_quorum", [2, 3])
def test_answers_for_entries_that_were_never_sent_are_no_news(ids: range | list[int], write_quorum: int) -> None:
    """Entries 0 and 1 were sent; what is said of others must not count when they exist."""
    pipeline = AddPipeline(record(write_quorum))
    pipeline.add(2)
    for position, bookie in enumerate(members("abc")):
        assert pipeline.acknowledged(position, bookie, ids) == ()
    pipeline.add(8)
    assert (pipeline.head, pipeline.pending_count) == (-1, 10)


def test_striped_answers_count_only_for_what_the_position_stores() -> None:
    """Of 3/2/2 position 0 stores 0, 2, 3, 5, ..; entry 1 is on b and c."""
    pipeline = AddPipeline(record(2))
    pipeline.add(4)
    assert pipeline.acknowledged(0, A, [0, 1, 3, 9]) == ()
    assert pipeline.acknowledged(1, B, [0, 1]) == (Confirmed(0, 0),), "entry 1 is on b alone"
    assert pipeline.acknowledged(2, C, [1]) == (Confirmed(1, 1),)
    assert pipeline.failed(0, A, [1, 4], BookieTimeout()) == (), "nothing of its own: as late as can be"
    assert pipeline.acknowledged(0, A, [2]) == ()
    assert pipeline.acknowledged(2, C, [2]) == (Confirmed(2, 2),)


# -- ids chosen by the caller (2.14) ---------------------------------------------------------------------------------
def test_what_waits_behind_a_hole_is_pending() -> None:
    pipeline = AdvancedAddPipeline(record())
    for entry_id in (0, 2, 3):
        pipeline.write(entry_id)
    assert (pipeline.pending_count, pipeline.has_undelivered) == (3, True)
    for position, bookie in enumerate(members("ab")):
        pipeline.acknowledged(position, bookie, [0, 2, 3])
    assert (pipeline.head, pipeline.pending_count, pipeline.has_undelivered) == (0, 2, False)
    pipeline.close()
    assert pipeline.pending_count == 0


def test_ids_of_an_advanced_writer() -> None:
    pipeline = AdvancedAddPipeline(record())
    pipeline.check(ENTRY_ID_MAX)
    with pytest.raises(InvalidArgument, match=str(ENTRY_ID_MAX)):
        pipeline.check(ENTRY_ID_MAX + 1)
    pipeline.write(4)
    with pytest.raises(EntryExists):
        pipeline.check(4)
