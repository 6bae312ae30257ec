"""Which entries a replica must hold, and what its answers say of it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookies.errors import (
    BookieTimeout,
    BookieUnreachable,
    DataUnknown,
    DigestMismatch,
    EntryNotFound,
    LedgerUnknownToBookie,
    ReadFailed,
)
from bookies.model import BookieId, Ensemble, LedgerMetadata, LedgerState
from bookies.protocol.repair import Fragment, FragmentVerdict
from bookies.protocol.repair.fragments import (
    FragmentCheck,
    ReplicaState,
    fragments_on,
    fragments_to_check,
    fragments_without_entries,
    is_named,
    is_stored_on,
    missing_runs,
    sample_of,
    stored_in,
)

A, B, C, D, E = (BookieId(name) for name in "abcde")
LEDGER = 7


def record_of(
    quorums: str, ensembles: dict[int, Ensemble], *, last: int | None = None, state: LedgerState = LedgerState.OPEN
) -> LedgerMetadata:
    """`last`: closed there."""
    size, write_quorum, ack_quorum = map(int, quorums.split("/"))
    return LedgerMetadata(
        LEDGER,
        size,
        write_quorum,
        ack_quorum,
        tuple(ensembles.items()),
        state=state if last is None else LedgerState.CLOSED,
        last_entry_id=-1 if last is None else last,
    )


def fragment(first: int, last: int, ensemble: Ensemble = (A, B, C), write_quorum: int = 3, **facts: bool) -> Fragment:
    return Fragment(LEDGER, first, last, ensemble, write_quorum, **{"is_finished": True, **facts})


def spans(found: list[Fragment]) -> list[tuple[int, int, bool, bool]]:
    return [(each.first, each.last, each.is_finished, each.is_doubtful) for each in found]


# -- fragments -----------------------------------------------------------------------------------------------------


def test_fragments_of_a_closed_ledger() -> None:
    record = record_of("3/3/2", {0: (A, B, C), 10: (A, B, D), 20: (A, E, D)}, last=25)
    assert spans(fragments_to_check(record, -1)) == [(0, 9, True, False), (10, 19, True, False), (20, 25, True, False)]
    empty_last = record_of("3/3/2", {0: (A, B, C), 10: (A, B, D)}, last=9)
    assert spans(fragments_to_check(empty_last, 100)) == [(0, 9, True, False)]
    assert fragments_to_check(record_of("3/3/2", {0: (A, B, C)}, last=-1), -1) == []
    # A single entry of a closed ledger must be there.
    assert spans(fragments_to_check(record_of("3/3/2", {0: (A, B, C)}, last=0), -1)) == [(0, 0, True, False)]


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_fragments_of_an_open_ledger(state: LedgerState) -> None:
    """X-70: the fragment before the last is finished once the last add confirmed has reached the boundary."""
    record = record_of("3/3/2", {0: (A, B, C), 10: (A, B, D)}, state=state)
    assert spans(fragments_to_check(record, 15)) == [(0, 9, True, False), (10, 15, False, False)]
    assert spans(fragments_to_check(record, 10)) == [(0, 9, True, False), (10, 10, False, False)]
    assert spans(fragments_to_check(record, 9)) == [(0, 9, True, False), (10, 10, False, True)]
    assert spans(fragments_to_check(record, 8)) == [(0, 9, False, False), (10, 10, False, True)]
    assert spans(fragments_to_check(record, -1)) == [(0, 9, False, False), (10, 10, False, True)]
    assert spans(fragments_to_check(record_of("1/1/1", {0: (A,)}), -1)) == [(0, 0, False, True)]


QUORUMS = st.integers(1, 6).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size)))


@given(QUORUMS, st.integers(0, 2**33), st.integers(0, 30))
def test_bounds_agree_with_the_definition(quorums: tuple[int, int], first: int, count: int) -> None:
    size, write_quorum = quorums
    each = fragment(first, first + count, tuple(BookieId(str(n)) for n in range(size)), write_quorum)
    assert each.is_striped == (write_quorum < size)
    for position in range(size):
        ids = [e for e in range(first, first + count + 1) if (position - e) % size < write_quorum]
        stored = each.stored(position)
        assert list(stored) == ids
        assert len(stored) == len(ids)
        assert list(stored[1:7]) == ids[1:7]
        if ids:
            assert (stored[0], stored[-1]) == (ids[0], ids[-1])
        with pytest.raises(IndexError):
            stored[len(ids)]
        assert each.first_stored(position) == (ids[0] if ids else -1)
        assert each.last_stored(position) == (ids[-1] if ids else -1)
        sample = sample_of(each, position, 100, lambda n: 0)
        assert list(sample) == ids


@given(QUORUMS, st.integers(0, 1000), st.integers(0, 200), st.floats(0, 99.9), st.integers(0, 9))
def test_samples_begin_and_end_with_what_is_stored(
    quorums: tuple[int, int], first: int, count: int, percentage: float, seed: int
) -> None:
    size, write_quorum = quorums
    each = fragment(first, first + count, tuple(BookieId(str(n)) for n in range(size)), write_quorum)
    for position in range(size):
        ids = list(each.stored(position))
        sample = list(sample_of(each, position, percentage, Random(seed).randrange))
        assert sample == sorted(set(sample))
        assert set(sample) <= set(ids)
        assert sample[:1] == ids[:1]
        assert sample[-1:] == ids[-1:]
        assert len(sample) <= 2 + (count + 1) * percentage / 100


def test_samples_are_spread() -> None:
    assert list(sample_of(fragment(0, 999), 0, 0, lambda n: 0)) == [0, 999]
    assert list(sample_of(fragment(0, 999), 0, 1, lambda n: n - 1)) == [0, *range(99, 1000, 100)]
    assert list(sample_of(fragment(5, 5), 0, 50, lambda n: 0)) == [5]


def test_fragments_of_bookies() -> None:
    record = record_of("3/3/2", {0: (A, B, C), 10: (A, B, D), 20: (A, E, D)}, last=25)
    fragments = fragments_to_check(record, -1)
    assert fragments_on(fragments, [B]) == [(fragments[0], [1]), (fragments[1], [1])]
    assert fragments_on(fragments, {E, D}) == [(fragments[1], [2]), (fragments[2], [1, 2])]
    assert fragments_on(fragments, []) == []


def test_fragments_without_entries() -> None:
    empty = record_of("3/3/2", {0: (A, B, C)}, last=-1)
    [found] = fragments_without_entries(empty)
    assert (spans([found]), found.ensemble, found.ack_quorum) == ([(0, -1, True, False)], (A, B, C), 2)
    assert (list(found.stored(0)), found.first_stored(0), found.write_sets) == ([], -1, [])
    [found] = fragments_without_entries(record_of("3/2/2", {0: (A, B, C), 10: (A, B, D)}, last=9))
    assert (spans([found]), found.ensemble) == ([(10, 9, True, False)], (A, B, D))
    for record in (
        record_of("3/3/2", {0: (A, B, C), 10: (A, B, D)}, last=10),
        record_of("3/3/2", {0: (A, B, C), 10: (A, B, D)}),
        record_of("3/3/2", {0: (A, B, C)}, state=LedgerState.IN_RECOVERY),
    ):
        assert fragments_without_entries(record) == []


def test_a_name_is_one_with_or_without_entries() -> None:
    record = record_of("3/3/2", {0: (A, B, C), 10: (A, B, D)}, last=9)
    assert [is_named(record, bookie) for bookie in (A, C, D, E)] == [True, True, True, False]


def test_are_entries_stored_on_a_bookie() -> None:
    """Source: client-protocol 7.6."""
    closed = record_of("3/3/2", {0: (A, B, C), 10: (A, B, D)}, last=9)
    assert is_stored_on(closed, C)
    assert not is_stored_on(closed, D), "the last fragment is empty"
    assert not is_stored_on(closed, E)
    assert is_stored_on(record_of("3/3/2", {0: (A, B, C), 10: (A, B, D)}), D), "it may yet receive some"
    assert is_stored_on(record_of("3/3/2", {0: (A, B, C), 10: (A, B, D)}, last=10), D)
    striped = record_of("3/1/1", {0: (A, B, C)}, last=1)
    assert [is_stored_on(striped, each) for each in (A, B, C)] == [True, True, False]


# -- lists of entries ----------------------------------------------------------------------------------------------


def test_missing_runs_lie_before_between_and_behind_what_is_held() -> None:
    assert missing_runs(range(10), [range(3, 5), range(7, 8)]) == [range(3), range(5, 7), range(8, 10)]
    assert missing_runs(range(10), [range(5)]) == [range(5, 10)]
    assert missing_runs([0, 1, 4, 5], [range(1, 5)]) == [range(1), range(5, 6)]
    assert missing_runs(range(10), [range(20)]) == []
    assert missing_runs(range(10), []) == [range(10)]


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)), st.booleans())
def test_missing_runs_agree_with_sets(expected: set[int], held: set[int], as_range: bool) -> None:
    ids: list[int] | range = sorted(expected)
    if as_range and ids:
        ids = range(min(ids), max(ids) + 1)
    runs: list[range] = []
    for entry_id in sorted(held):
        if runs and runs[-1].stop == entry_id:
            runs[-1] = range(runs[-1].start, entry_id + 1)
        else:
            runs.append(range(entry_id, entry_id + 1))
    missing = missing_runs(ids, runs)
    assert [entry_id for run in missing for entry_id in run] == sorted(set(ids) - held)
    assert all(missing)
    assert stored_in(ids, runs) == sorted(set(ids) & held)
    overlapping = [range(run.start, run.stop + 3) for run in runs]
    assert stored_in(ids, overlapping) == [entry_id for entry_id in ids if any(entry_id in run for run in overlapping)]


# -- checking ------------------------------------------------------------------------------------------------------

Answers = dict[int, Exception | None]


def check(
    each: Fragment, answers: Answers, known: str = "abcde", percentage: float = 0, pick: Callable[[int], int] = int
) -> FragmentVerdict:
    """Answer each position's ask: None: all there; an error: about its first id."""
    core = FragmentCheck(each, [BookieId(name) for name in known], percentage, pick)
    assert [ask.position for ask in core.asks] == list(answers)
    for ask in core.asks:
        assert ask.bookie == each.ensemble[ask.position]
        error = answers[ask.position]
        if error is None:
            core.held(ask.position)
        else:
            core.failed(ask.position, ask.entry_ids[0], error)  # type: ignore[arg-type]
    return core.verdict()


def test_every_replica_is_good() -> None:
    verdict = check(fragment(0, 9), {0: None, 1: None, 2: None})
    assert verdict.is_ok
    assert verdict.bad_positions == []
    assert verdict.fewest_replicas == 3


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (EntryNotFound(), ReplicaState.MISSING),
        (LedgerUnknownToBookie(), ReplicaState.MISSING),
        (DigestMismatch(), ReplicaState.MISSING),
        (BookieUnreachable(), ReplicaState.UNAVAILABLE),
        (BookieTimeout(), ReplicaState.UNAVAILABLE),
        (ReadFailed(), ReplicaState.CANNOT_TELL),
        (DataUnknown(), ReplicaState.CANNOT_TELL),
    ],
)
def test_what_an_error_says(error: Exception, state: ReplicaState) -> None:
    verdict = check(fragment(0, 9), {0: None, 1: error, 2: None})
    assert not verdict.is_ok
    assert verdict.bad_positions == [1]
    bad = verdict.replicas[1]
    assert (bad.position, bad.bookie, bad.state, bad.entry_id, bad.error) == (1, B, state, 0, error)
    assert verdict.positions(state) == [1]
    assert verdict.fewest_replicas == 2


def test_bookies_that_are_not_registered_are_not_asked() -> None:
    verdict = check(fragment(0, 9), {0: None, 2: None}, known="ac")
    assert verdict.replicas[1].state is ReplicaState.UNAVAILABLE
    assert verdict.replicas[1].entry_id is None
    assert "not registered" in str(verdict.replicas[1].error)


def test_bookies_that_are_no_longer_registered_have_said_nothing() -> None:
    verdict = check(fragment(0, 9), {0: None, 1: EntryNotFound(), 2: None})
    assert verdict.without([]) == verdict
    after = verdict.without([A, B])
    assert [each.state for each in after.replicas] == [ReplicaState.UNAVAILABLE] * 2 + [ReplicaState.OK]
    assert after.replicas[1].entry_id is None
    assert after.fewest_replicas == 1


def test_a_position_without_entries_is_good_when_its_bookie_is_known() -> None:
    one = fragment(0, 0, (A, B, C), 1)
    assert check(one, {0: None}).is_ok
    assert check(one, {0: None}, known="ab").bad_positions == [2]


def test_striped_fragments_count_the_worst_entry() -> None:
    verdict = check(fragment(0, 9, (A, B, C), 2), {0: None, 1: EntryNotFound(), 2: ReadFailed()})
    assert verdict.fewest_replicas == 0
    verdict = check(fragment(0, 0, (A, B, C), 2), {0: None, 1: EntryNotFound()})
    assert verdict.fewest_replicas == 1


def test_an_entry_that_was_perhaps_never_written() -> None:
    doubtful = fragment(10, 10, is_finished=False, is_doubtful=True)
    nobody = check(doubtful, {0: EntryNotFound(), 1: LedgerUnknownToBookie(), 2: EntryNotFound()})
    assert nobody.is_ok
    somebody = check(doubtful, {0: EntryNotFound(), 1: None, 2: EntryNotFound()})
    assert somebody.bad_positions == [0, 2]
    unsure = check(doubtful, {0: EntryNotFound(), 1: ReadFailed(), 2: EntryNotFound()})
    assert unsure.bad_positions == [1]
    # A position outside the write set is good without having the entry.
    striped = fragment(10, 10, (A, B, C), 2, is_finished=False, is_doubtful=True)
    assert check(striped, {1: EntryNotFound(), 2: EntryNotFound()}).is_ok
    certain = fragment(10, 10, is_finished=False)
    assert len(check(certain, {0: EntryNotFound(), 1: EntryNotFound(), 2: EntryNotFound()}).bad_positions) == 3
