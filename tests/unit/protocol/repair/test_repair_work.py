"""What is done about a marked ledger: unknown is not missing, losses are said, growing fragments are left alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest
from msgspec.structs import replace

from bookies.errors import (
    BookieBusy,
    BookieTimeout,
    BookieUnreachable,
    BookKeeperError,
    DataUnknown,
    DigestMismatch,
    EntryNotFound,
    LedgerUnknownToBookie,
)
from bookies.model import BookieId, Ensemble, LedgerMetadata, LedgerState
from bookies.protocol.repair import Fragment, FragmentVerdict
from bookies.protocol.repair.fragments import FragmentCheck
from bookies.protocol.repair.repair_work import (
    Assessment,
    Cause,
    Circumstances,
    Job,
    Loss,
    RepairState,
    Wait,
    assess,
    jobs_without,
    judge_entry,
    most_urgent_first,
)

A, B, C, D, E = (BookieId(name) for name in "abcde")
LEDGER = 7
NO_ENTRY = EntryNotFound("no such entry")
TIMEOUT = BookieTimeout("no answer in time")


def verdict_of(
    errors: Mapping[BookieId, BookKeeperError],
    ensemble: Ensemble = (A, B, C),
    write_quorum: int = 3,
    *,
    away: Collection[BookieId] = (),
    first: int = 0,
    last: int = 9,
    is_finished: bool = True,
) -> FragmentVerdict:
    """What a check says when these bookies answer with errors, and those away are not registered."""
    fragment = Fragment(LEDGER, first, last, ensemble, write_quorum, is_finished)
    check = FragmentCheck(fragment, [each for each in ensemble if each not in away], 0, lambda count: 0)
    for ask in check.asks:
        if ask.bookie in errors:
            check.failed(ask.position, ask.entry_ids[0], errors[ask.bookie])
        else:
            check.held(ask.position)
    return check.verdict()


def record_of(ensemble: Ensemble = (A, B, C), write_quorum: int = 3, *, is_closed: bool = True) -> LedgerMetadata:
    return LedgerMetadata(
        LEDGER,
        len(ensemble),
        write_quorum,
        1,
        ((0, ensemble),),
        state=LedgerState.CLOSED if is_closed else LedgerState.OPEN,
        last_entry_id=9 if is_closed else -1,
    )


def assessed(
    verdict: FragmentVerdict,
    *,
    lost: Collection[BookieId] = (),
    away: Collection[BookieId] = (),
    excused: Collection[BookieId] = (),
    leaving: Collection[BookieId] = (),
    claimed: Collection[BookieId] = (),
) -> Assessment:
    registered = [each for each in (A, B, C, D, E) if each not in (*lost, *away, *excused)]
    circumstances = Circumstances(registered, lost, excused, leaving, claimed=claimed)
    record = record_of(verdict.fragment.ensemble, is_closed=verdict.fragment.is_finished)
    return assess(record, [verdict], circumstances)


def test_a_ledger_that_is_whole_needs_nothing() -> None:
    found = assessed(verdict_of({}))
    assert found.state is RepairState.HEALTHY
    assert found.bookies == []


def test_a_lost_bookie_is_replaced() -> None:
    found = assessed(verdict_of({}, away=[B]), lost=[B])
    assert found.state is RepairState.REPAIRABLE
    [job] = found.jobs
    assert (job.renewed, job.replaced, job.good) == ((), (1,), 2)


@pytest.mark.parametrize("error", [NO_ENTRY, LedgerUnknownToBookie("no such ledger"), DigestMismatch("damaged")])
def test_a_bookie_that_has_lost_entries_gets_them_again(error: BookKeeperError) -> None:
    [job] = assessed(verdict_of({B: error})).jobs
    assert (job.renewed, job.replaced) == ((1,), ())


@pytest.mark.parametrize("error", [TIMEOUT, BookieUnreachable("refused"), BookieBusy("busy"), DataUnknown("unknown")])
def test_what_is_not_known_is_waited_for_and_not_copied(error: BookKeeperError) -> None:
    found = assessed(verdict_of({B: error}))
    assert found.state is RepairState.WAITING
    assert [(wait.cause, wait.bookie) for wait in found.waits] == [(Cause.ANSWER, B)]
    assert not found.jobs
    assert found.bookies == [B]


def test_a_bookie_away_for_less_than_the_delay_is_waited_for() -> None:
    [wait] = assessed(verdict_of({}, away=[B]), away=[B]).waits
    assert (wait.cause, wait.bookie) == (Cause.BOOKIE, B)


def test_maintenance_is_waited_for() -> None:
    [wait] = assessed(verdict_of({}, away=[B]), excused=[B]).waits
    assert (wait.cause, wait.bookie) == (Cause.MAINTENANCE, B)


def test_a_bookie_that_is_to_be_emptied_is_replaced_though_it_is_well() -> None:
    [job] = assessed(verdict_of({}), leaving=[C]).jobs
    assert (job.renewed, job.replaced, job.good) == ((), (2,), 3)


def test_lost_replicas_come_before_those_that_leave_and_the_fewest_first() -> None:
    verdict = verdict_of({}, ensemble=(A, B, C, D, E), write_quorum=2, away=[C, D])
    assert most_urgent_first(verdict, [0, 2, 3, 4], [E, A]) == [2, 3, 4, 0]
    assert most_urgent_first(verdict, [0, 1], [A, B]) == [1, 0], "an entry of b has one good replica"
    assert most_urgent_first(verdict_of({}), [0, 2, 1], [C, A]) == [2, 0, 1], "as those are named"
    worse = verdict_of({}, ensemble=(A, B, C, D, E), write_quorum=3, away=[A, D, E], last=0)
    assert most_urgent_first(worse, [4, 3, 0]) == [0, 4, 3], "the others hold nothing"


def test_a_fragment_is_worked_on_though_another_replica_is_not_known() -> None:
    found = assessed(verdict_of({C: TIMEOUT}, away=[B]), lost=[B])
    assert [job.replaced for job in found.jobs] == [(1,)]
    assert [wait.bookie for wait in found.waits] == [C]
    assert found.state is RepairState.REPAIRABLE


def test_entries_that_all_lost_bookies_had_are_lost_with_evidence() -> None:
    found = assessed(verdict_of({}, away=[A, B, C]), lost=[A, B, C])
    assert found.state is RepairState.LOST
    [loss] = found.losses
    assert (loss.first, loss.last, [bookie for bookie, _ in loss.evidence]) == (0, 9, [A, B, C])
    assert found.bookies == [A, B, C]
    assert not found.jobs


def test_one_replica_and_its_bookie_lost_is_a_state_and_no_job() -> None:
    found = assessed(verdict_of({}, (A,), 1, away=[A]), lost=[A])
    assert (found.state, found.jobs) == (RepairState.LOST, [])


def test_what_somebody_may_have_is_not_lost() -> None:
    found = assessed(verdict_of({C: TIMEOUT}, away=[A, B]), lost=[A, B])
    assert found.state is RepairState.WAITING
    assert [wait.bookie for wait in found.waits] == [C]
    assert not found.jobs  # Nobody could deliver anything.


def test_what_is_lost_by_a_mark_alone_is_waited_for() -> None:
    """It is enough for a copy, and not for saying that entries are nowhere."""
    found = assessed(verdict_of({}, away=[A, B, C]), lost=[A, B, C], claimed=[C])
    assert (found.state, found.losses, found.jobs) == (RepairState.WAITING, [], [])
    assert [(wait.cause, wait.bookie) for wait in found.waits] == [(Cause.BOOKIE, C)]
    found = assessed(verdict_of({}, away=[C]), lost=[C], claimed=[C])
    assert [job.replaced for job in found.jobs] == [(2,)]
    assert not found.waits
    answers = [(A, NO_ENTRY), (B, NO_ENTRY), (C, BookieUnreachable("gone"))]
    judged = judge_entry(FRAGMENT, 4, answers, Circumstances([A, B], [C], claimed=[C]))
    assert isinstance(judged, Wait)
    assert (judged.cause, judged.bookie) == (Cause.BOOKIE, C)


def test_of_a_striped_fragment_every_write_set_counts() -> None:
    """a and b lost of four with two replicas: entries 0, 4 and 8 were on those two alone."""
    found = assessed(verdict_of({}, (A, B, C, D), 2, away=[A, B]), lost=[A, B])
    assert found.state is RepairState.LOST
    [loss] = found.losses
    assert (loss.first, loss.last, loss.step, loss.left) == (0, 8, 4, 1)
    assert [bookie for bookie, _ in loss.evidence] == [A, B]
    assert not found.jobs
    found = assessed(verdict_of({}, (A, B, C, D), 2, away=[A, C]), lost=[A, C])
    assert [job.replaced for job in found.jobs] == [(0, 2)]


def test_beside_lost_entries_what_can_be_copied_is_copied() -> None:
    """a, b and d of five with two replicas: what a and b had may come back with them, d's entries are all somewhere."""
    found = assessed(verdict_of({}, (A, B, C, D, E), 2, away=[A, B, D], first=3, last=99), lost=[A, B, D])
    assert [(loss.first, loss.last, loss.step, loss.left) for loss in found.losses] == [(5, 95, 5, 1)]
    [job] = found.jobs
    assert (job.replaced, job.good) == ((3,), 1)
    [loss] = found.losses
    fragment = job.fragment
    assert [loss.touches(fragment, position) for position in range(5)] == [True, True, False, False, False]
    assert loss.entries == "entries 5 to 95, one in 5,"
    before, after = (replace(fragment, first=first, last=last) for first, last in ((0, 4), (96, 120)))
    assert not any(loss.touches(other, position) for other in (before, after) for position in range(5))
    assert Loss(5, 9, ()).entries == "entries 5 to 9"


def test_what_nobody_can_say_is_no_loss_and_keeps_its_place() -> None:
    """b does not answer: of entries 0, 5, ... nothing is known, and a is not replaced; d is."""
    found = assessed(verdict_of({B: TIMEOUT}, (A, B, C, D, E), 2, away=[A, D]), lost=[A, D])
    assert not found.losses
    assert [job.replaced for job in found.jobs] == [(3,)]
    assert found.state is RepairState.REPAIRABLE


def test_a_bookie_that_has_nothing_of_a_short_fragment_is_not_missed() -> None:
    """Entries 0 and 1 of five bookies with three replicas: nothing is on the last one."""
    verdict = verdict_of({}, (A, B, C, D, E), 3, away=[E], last=1)
    assert [(wait.cause, wait.bookie) for wait in assessed(verdict, away=[E]).waits] == [(Cause.BOOKIE, E)]
    assert assessed(verdict_of({}, (A, B, C, D, E), 3, last=1)).state is RepairState.HEALTHY
    assert assessed(verdict_of({}, (A, B, C, D, E), 3, away=[D], last=1), lost=[D]).jobs


def test_a_bookie_that_has_nothing_of_a_short_fragment_is_replaced_if_it_is_lost_or_leaves() -> None:
    """Its name goes after the replicas: these come first, and its absence loses no entry."""
    ensemble = (A, B, C, D, E)
    for found in (
        assessed(verdict_of({}, ensemble, 3, away=[E], last=1), lost=[E]),
        assessed(verdict_of({}, ensemble, 3, last=1), leaving=[E]),
    ):
        assert [(job.replaced, job.good) for job in found.jobs] == [((4,), 3)]
        assert (found.waits, found.losses) == ([], [])
    verdict = verdict_of({}, ensemble, 3, away=[A, E], last=1)
    assert most_urgent_first(verdict, [4, 0]) == [0, 4]
    found = assessed(verdict_of({}, ensemble, 3, away=[A, B, C, D, E], last=1), lost=ensemble)
    assert [job.replaced for job in found.jobs] == [(4,)], "of the others nothing can be copied"
    assert [loss.entries for loss in found.losses] == ["entries 0 to 1"]
    growing = verdict_of({}, ensemble, 3, away=[E], last=1, is_finished=False)
    record = record_of(ensemble, is_closed=False).replace(ensembles=((0, ensemble), (2, (A, B, C, D, A))))
    found = assess(record, [growing], Circumstances([A, B, C, D], [E]))
    assert [(wait.cause, wait.bookie) for wait in found.waits] == [(Cause.WRITER, E)]
    [wait] = assess(record, [growing], Circumstances([A, B, C, D])).waits
    assert (wait.cause, wait.bookie) == (Cause.BOOKIE, E)


def test_a_bookie_is_replaced_in_fragments_without_entries() -> None:
    empty = record_of().replace(last_entry_id=-1)
    found = assess(empty, [], Circumstances([A, C, D], [B], leaving=[C]))
    assert found.state is RepairState.REPAIRABLE
    [job] = found.jobs
    assert (job.renewed, job.replaced) == ((), (1, 2))
    assert (job.fragment.first, job.fragment.last) == (0, -1)
    assert job.verdict.bad_positions == [1]
    [wait] = assess(empty, [], Circumstances([A, C, D])).waits
    assert (wait.cause, wait.bookie) == (Cause.BOOKIE, B), "it may come back"
    assert assess(empty, [], Circumstances([A, B, C])).state is RepairState.HEALTHY
    last = record_of().replace(ensembles=((0, (A, B, C)), (10, (A, B, D))))
    found = assess(last, [verdict_of({}, away=[B])], Circumstances([A, C, D], [B]))
    assert [(job.fragment.first, job.replaced) for job in found.jobs] == [(0, (1,)), (10, (1,))]


def test_the_worst_fragment_comes_first() -> None:
    one = verdict_of({}, away=[B], first=0, last=4)
    two = verdict_of({}, away=[A, B], first=5, last=9)
    found = assess(record_of(), [one, two], Circumstances([C, D, E], [A, B]))
    assert [job.fragment.first for job in found.jobs] == [5, 0]


# -- unfinished ledgers --------------------------------------------------------------------------------------------


def test_a_lost_bookie_of_a_growing_fragment_asks_for_sealing_and_not_for_copies() -> None:
    found = assessed(verdict_of({}, away=[B], is_finished=False), lost=[B])
    assert found.wants_sealing
    assert not found.jobs
    assert found.state is RepairState.REPAIRABLE


@pytest.mark.parametrize(
    ("errors", "away", "cause"),
    [({B: NO_ENTRY}, [], Cause.WRITER), ({B: TIMEOUT}, [], Cause.ANSWER), ({}, [B], Cause.BOOKIE)],
)
def test_nothing_else_ends_a_writer(
    errors: Mapping[BookieId, BookKeeperError], away: Collection[BookieId], cause: Cause
) -> None:
    found = assessed(verdict_of(errors, away=away, is_finished=False), away=away)
    assert not found.wants_sealing
    assert not found.jobs
    assert [wait.cause for wait in found.waits] == [cause]


def test_a_growing_fragment_on_a_bookie_to_be_emptied_waits_for_its_writer() -> None:
    found = assessed(verdict_of({}, is_finished=False), leaving=[A])
    assert [wait.cause for wait in found.waits] == [Cause.WRITER]


def test_a_lost_bookie_that_the_writer_has_replaced_ends_no_writer() -> None:
    """Of three bookies with two replicas c has nothing of entry 0, but the record names it, and it is lost."""
    record = replace(record_of(write_quorum=2, is_closed=False), ensembles=((0, (A, B, C)), (1, (A, D, E))))
    earlier = verdict_of({}, write_quorum=2, away=[B, C], last=0, is_finished=False)
    found = assess(record, [earlier], Circumstances([A, D, E], [B, C]))
    assert (found.wants_sealing, found.state) == (False, RepairState.WAITING)
    assert [(wait.cause, wait.bookie) for wait in found.waits] == [(Cause.WRITER, B), (Cause.WRITER, C)]
    wait = found.waits[0]
    assert wait.reason.startswith("it is lost; whether the last add confirmed")


def test_a_missing_entry_that_may_be_on_its_way_differs_from_one_that_does_not_verify() -> None:
    reasons = [
        wait.reason
        for error in (NO_ENTRY, DigestMismatch("damaged"))
        for wait in assessed(verdict_of({B: error}, is_finished=False)).waits
    ]
    assert reasons == [
        "it lacks entry 0, which may be on its way; a ledger that is sealed is repaired",
        "its entry 0 does not verify; a ledger that is sealed is repaired",
    ]


# -- copies without a check ----------------------------------------------------------------------------------------


def test_bookies_that_an_operator_removes_are_replaced_by_the_record_alone() -> None:
    """Those that are lost deliver nothing; the others count as good sources."""
    first = Fragment(LEDGER, 0, 4, (A, B, C), 3, is_finished=True)
    second = Fragment(LEDGER, 5, 9, (D, B, E), 3, is_finished=True)
    other = Fragment(LEDGER, 10, 19, (C, D, E), 3, is_finished=True)
    jobs = jobs_without([first, second, other], [A, B], [A])
    assert jobs == [
        Job(jobs[0].verdict, renewed=(), replaced=(0, 1), good=1),
        Job(jobs[1].verdict, renewed=(), replaced=(1,), good=1),
    ]
    assert [job.fragment for job in jobs] == [first, second]
    assert [job.verdict.bad_positions for job in jobs] == [[0], []]


def test_a_missing_target_is_explained_by_the_bookies_that_were_not_used() -> None:
    circumstances = Circumstances([A, B, C, D], unwanted={B: "it leaves", E: "it is not registered"}, read_only=[C])
    assert circumstances.left_out() == (
        "; not used: b (it leaves), c (read-only: its disks are full, or somebody wants it so); "
        "what copies that broke off have left on a full one is deleted by bk bookie gc --surplus"
    )
    assert circumstances.left_out([C]) == "; not used: b (it leaves)", "c has the entries already"
    assert circumstances.left_out([B, C]) == ""
    assert "it leaves" not in circumstances.left_out(by_word=False)
    assert Circumstances([A]).left_out() == ""


# -- evidence ------------------------------------------------------------------------------------------------------

FRAGMENT = Fragment(LEDGER, 0, 9, (A, B, C), 3, is_finished=True)


def test_an_entry_that_somebody_delivers_is_not_lost() -> None:
    circumstances = Circumstances([A, B, C])
    assert judge_entry(FRAGMENT, 4, [(A, NO_ENTRY), (B, None), (C, NO_ENTRY)], circumstances) is None


def test_an_entry_that_nobody_has_for_certain_is_lost() -> None:
    circumstances = Circumstances([A, B], [C])
    answers = [(A, NO_ENTRY), (B, DigestMismatch("the digest does not match")), (C, BookieUnreachable("gone"))]
    found = judge_entry(FRAGMENT, 4, answers, circumstances)
    assert isinstance(found, Loss)
    assert (found.first, found.last) == (4, 4)
    assert found.evidence == (
        (A, "no such entry"),
        (B, "the digest does not match"),
        (C, "it is lost: not registered"),
    )


def test_an_entry_that_somebody_may_have_is_waited_for() -> None:
    found = judge_entry(FRAGMENT, 4, [(A, NO_ENTRY), (B, TIMEOUT), (C, NO_ENTRY)], Circumstances([A, B, C]))
    assert isinstance(found, Wait)
    assert (found.cause, found.bookie, found.first, found.last) == (Cause.ANSWER, B, 4, 4)
