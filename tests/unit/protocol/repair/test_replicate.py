"""What is copied from whom to whom, and how the record is changed afterwards."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.protocol.repair.test_fragments import A, B, C, D, E, fragment, record_of

from bookies.errors import (
    BookieTimeout,
    BookieUnreachable,
    EntryNotFound,
    FragmentNotFinished,
    InvalidArgument,
    NotEnoughBookies,
    VersionConflict,
)
from bookies.model import BookieId
from bookies.protocol.ledger.ledger import Author, illegality
from bookies.protocol.placement import PlacementPolicy, Topology
from bookies.protocol.placement.candidates import Candidates
from bookies.protocol.placement.topology import Kind
from bookies.protocol.repair import Fragment
from bookies.protocol.repair.fragments import FragmentCheck
from bookies.protocol.repair.replicate import (
    ENTRIES_MAX,
    SIZE_MAX,
    STRIPED_ENTRIES_MAX,
    FragmentCopy,
    Replacement,
    Swap,
    check_finished,
    choose_some_targets,
    choose_targets,
    renewals,
    replaced_in,
    unknown_replicas,
)

F = BookieId("f")


def copy_all(copy: FragmentCopy, entry_size: int = 100) -> dict[BookieId, list[int]]:
    """Carry it out; the ids each target received."""
    written: dict[BookieId, list[int]] = {}
    while not copy.is_done:
        ids = copy.next_ids()
        assert ids
        for target, share in copy.shares(ids):
            written.setdefault(target, []).extend(share)
        copy.copied(ids[-1], len(ids), entry_size * len(ids))
    return written


def test_unfinished_fragments_are_refused() -> None:
    """X-70."""
    growing = fragment(0, 9, is_finished=False)
    for attempt in (lambda: check_finished(growing), lambda: FragmentCopy(growing, [Replacement(0, A, D)])):
        with pytest.raises(FragmentNotFinished, match="can still receive") as caught:
            attempt()
        assert caught.value.code == -103
        assert caught.value.ledger_id == 7


# -- targets -------------------------------------------------------------------------------------------------------


def test_targets_are_new_distinct_and_in_order_of_preference() -> None:
    candidates = [A, E, D, F]
    assert choose_targets(fragment(0, 9), [1], candidates) == (Replacement(1, B, E),)
    assert choose_targets(fragment(0, 9), [0, 2], candidates) == (Replacement(0, A, E), Replacement(2, C, D))
    assert choose_targets(fragment(0, 9), [0, 2], candidates, [E]) == (Replacement(0, A, D), Replacement(2, C, F))
    assert choose_targets(fragment(0, 9), [], []) == (), "nobody is needed"
    with pytest.raises(NotEnoughBookies, match="start another bookie"):
        choose_targets(fragment(0, 9), [0, 2], [A, B, C, D])


def test_targets_are_in_other_fault_domains_if_possible() -> None:
    racks = Topology({A: "/r1", B: "/r2", C: "/r3", D: "/r1", E: "/r2", F: "/r3"})

    def among(*bookies: BookieId) -> Candidates:
        return Candidates.of(bookies, PlacementPolicy(Kind.RACK), racks)

    assert choose_targets(fragment(0, 9), [1], among(D, F, E)) == (Replacement(1, B, E),)
    assert choose_targets(fragment(0, 9), [0, 1], among(F, E, D)) == (Replacement(0, A, E), Replacement(1, B, D))
    assert choose_targets(fragment(0, 9), [1], among(D, F)) == (Replacement(1, B, D),), "better than none"


@pytest.mark.parametrize(
    "replacements",
    [
        [],
        [Replacement(0, B, D)],
        [Replacement(3, A, D)],
        [Replacement(-1, C, D)],
        [Replacement(0, A, B)],
        [Replacement(0, A, D), Replacement(1, B, D)],
        [Replacement(0, A, D), Replacement(0, A, E)],
    ],
)
def test_replacements_that_do_not_fit(replacements: list[Replacement]) -> None:
    with pytest.raises(InvalidArgument):
        FragmentCopy(fragment(0, 9), replacements)


def test_as_many_as_can_be_are_replaced_and_the_first_ones_first() -> None:
    assert choose_some_targets(fragment(0, 9), [0, 2], [D, E]) == (Replacement(0, A, D), Replacement(2, C, E))
    assert choose_some_targets(fragment(0, 9), [0, 2], [D]) == (Replacement(0, A, D),)
    assert choose_some_targets(fragment(0, 9), [2, 0], [B, D, E], [E]) == (Replacement(2, C, D),)
    with pytest.raises(NotEnoughBookies, match="place of a, c"):
        choose_some_targets(fragment(0, 9), [0, 2], [A, B, C])
    after = replaced_in(fragment(0, 9), [Replacement(0, A, D)])
    assert after.ensemble == (D, B, C)
    with pytest.raises(NotEnoughBookies, match=r"place of c in \[d, b, c\]"):
        choose_some_targets(after, [2], [D])


def test_a_position_for_which_a_rule_leaves_nobody_does_not_keep_another_from_its_bookie() -> None:
    """Two racks are a must: the only bookie is in the rack of c, so it takes the place of c and not that of b."""
    topology = Topology({A: "/r1", B: "/r2", C: "/r1", D: "/r1"})
    policy = PlacementPolicy(Kind.RACK, is_rule=True)
    candidates = Candidates.of([D], policy, topology)
    assert choose_some_targets(fragment(0, 9), [1, 2], candidates) == (Replacement(2, C, D),)


def test_a_replica_is_unknown_while_its_bookie_may_yet_deliver_it() -> None:
    """a lacks an entry and b does not answer; c is away, d is lost, and e has nothing of the fragment."""
    each = fragment(0, 1, (A, B, C, D, E), 3)
    check = FragmentCheck(each, [A, B], 100, lambda count: 0)
    check.failed(0, 0, EntryNotFound())
    check.failed(1, 0, BookieTimeout())
    unknown = unknown_replicas(check.verdict(), lost=[D])
    assert [replica.bookie for replica in unknown] == [B, C]
    assert [type(replica.error) for replica in unknown] == [BookieTimeout, BookieUnreachable]


# -- copying -------------------------------------------------------------------------------------------------------


@given(
    st.integers(1, 6).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size))),
    st.integers(0, 2**33),
    st.integers(0, 300),
    st.data(),
)
def test_each_target_gets_exactly_what_its_position_stores(
    quorums: tuple[int, int], first: int, count: int, data: st.DataObject
) -> None:
    """I-18 and D-22."""
    size, write_quorum = quorums
    names = tuple(BookieId(f"old{n}") for n in range(size))
    each = fragment(first, first + count, names, write_quorum)
    positions: Sequence[int] = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=size, unique=True))
    replacements = [Replacement(position, names[position], BookieId(f"new{position}")) for position in positions]
    written = copy_all(FragmentCopy(each, replacements), data.draw(st.sampled_from([1, 1000, 10 * SIZE_MAX])))
    for position, _, new in replacements:
        assert written.get(new, []) == list(each.stored(position))


def test_the_size_of_entries_sets_how_many_are_copied_at_once() -> None:
    copy = FragmentCopy(fragment(0, 1_000_000), [Replacement(0, A, D)])
    assert copy.next_ids() == range(ENTRIES_MAX)
    for _ in range(30):
        copy.copied(copy.next_ids()[-1], 1, SIZE_MAX // 10)
    assert len(copy.next_ids()) == 10
    assert len(copy.next_ids(SIZE_MAX // 5)) == 2
    for _ in range(60):
        copy.copied(copy.next_ids()[0], 1, 4 * SIZE_MAX)
    assert len(copy.next_ids()) == 1
    for _ in range(100):
        copy.copied(copy.next_ids()[0], 1, 40)
    assert len(copy.next_ids()) == ENTRIES_MAX
    striped = FragmentCopy(fragment(0, 1_000_000, (A, B, C), 2), [Replacement(0, A, D)])
    assert len(striped.next_ids()) == STRIPED_ENTRIES_MAX


def test_an_answer_may_bring_fewer() -> None:
    copy = FragmentCopy(fragment(0, 9), [Replacement(0, A, D)])
    copy.copied(3, 4, 400)
    assert copy.next_ids() == range(4, 10)
    assert not copy.is_done
    copy.copied(9, 6, 600)
    assert copy.is_done


def test_sources() -> None:
    copy = FragmentCopy(fragment(0, 9), [Replacement(0, A, D)])
    assert copy.sources(0) == [B, C, A], "who is replaced comes last, but may be the only one that has it"
    assert copy.sources(1) == [B, C, A]
    renewing = FragmentCopy(fragment(0, 9), renewals(fragment(0, 9), [1]))
    assert renewing.sources(0) == [A, C, B], "who has lost something may still have this one"
    both = FragmentCopy(fragment(0, 9), [*renewals(fragment(0, 9), [1]), Replacement(2, C, D)])
    assert both.sources(1) == [A, C, B]
    striped = FragmentCopy(fragment(0, 9, (A, B, C, D), 2), [Replacement(1, B, E)])
    assert striped.sources(0) == [A, B]
    assert striped.sources(0) == [A, B]
    assert striped.sources(1) == [C, B]


def test_a_target_that_stores_none_of_the_ids_gets_no_share() -> None:
    copy = FragmentCopy(fragment(0, 9, (A, B, C, D), 1), [Replacement(0, A, E), Replacement(2, C, F)])
    assert copy.next_ids() == [0, 2, 4, 6, 8]
    assert copy.shares([0, 2, 4]) == [(E, [0, 4]), (F, [2])]
    assert copy.shares([2]) == [(F, [2])]


def test_a_position_that_stores_nothing_needs_no_copy() -> None:
    copy = FragmentCopy(fragment(0, 0, (A, B, C), 1), [Replacement(2, C, D)])
    assert copy.is_done
    assert copy.swap.needed(record_of("3/1/1", {0: (A, B, C)}, last=0))


# -- the swap ------------------------------------------------------------------------------------------------------

ENSEMBLES = {0: (A, B, C), 10: (A, B, D), 20: (A, E, D)}


def swap_of(each: Fragment, *replacements: Replacement) -> Swap:
    return Swap(each, replacements)


def test_only_this_fragment_changes() -> None:
    record = record_of("3/3/2", ENSEMBLES, last=25)
    swap = swap_of(fragment(10, 19, (A, B, D)), Replacement(0, A, F), Replacement(1, B, C))
    assert swap.needed(record)
    changed = swap.apply(record)
    assert dict(changed.ensembles) == {**ENSEMBLES, 10: (F, C, D)}
    assert illegality(record, changed, Author.REPLICATOR) == ""
    assert not swap.needed(changed), "also when the reply of the write was lost"
    assert swap.apply(changed) == changed


def test_the_last_fragment_of_a_closed_ledger() -> None:
    record = record_of("3/3/2", ENSEMBLES, last=25)
    changed = swap_of(fragment(20, 25, (A, E, D)), Replacement(2, D, B)).apply(record)
    assert changed.last_ensemble == (A, E, B)


def test_a_finished_fragment_of_an_open_ledger() -> None:
    record = record_of("3/3/2", ENSEMBLES)
    changed = swap_of(fragment(10, 19, (A, B, D)), Replacement(0, A, F)).apply(record)
    assert illegality(record, changed, Author.REPLICATOR) == ""
    growing = swap_of(fragment(20, 25, (A, E, D)), Replacement(0, A, F))
    for attempt in (growing.needed, growing.apply):
        with pytest.raises(FragmentNotFinished):
            attempt(record)


def test_a_copy_that_others_have_made_is_kept() -> None:
    swap = swap_of(fragment(0, 9), Replacement(0, A, D), Replacement(1, B, E))
    half = record_of("3/3/2", {0: (D, B, C), 10: (A, B, D)}, last=12)
    assert swap.needed(half)
    assert swap.apply(half).ensembles[0] == (0, (D, E, C))
    done = record_of("3/3/2", {0: (F, D, C), 10: (A, B, D)}, last=12)
    assert not swap.needed(done)


@pytest.mark.parametrize("changed", [(A, B, D), (A, B, F), (F, B, C)])
def test_new_bookies_join_only_those_that_they_were_chosen_with(changed: tuple[BookieId, ...]) -> None:
    """Beside another bookie than C or D they may break the placement rule."""
    swap = swap_of(fragment(0, 9), Replacement(0, A, D), Replacement(1, B, E))
    record = record_of("3/3/2", {0: changed, 10: (A, B, D)}, last=12)
    assert swap.needed(record)
    with pytest.raises(VersionConflict, match="now instead of"):
        swap.apply(record)


@pytest.mark.parametrize("ensembles", [{0: (A, B, C), 5: (A, B, D)}, {0: (A, B, C)}])
def test_a_record_with_other_fragments(ensembles: dict[int, tuple[BookieId, ...]]) -> None:
    swap = swap_of(fragment(0, 9), Replacement(0, A, E))
    record = record_of("3/3/2", ensembles, last=12)
    for attempt in (swap.needed, swap.apply):
        with pytest.raises(VersionConflict, match="replicate it again"):
            attempt(record)


def test_a_plan_is_for_the_bookies_of_that_time() -> None:
    swap = swap_of(fragment(0, 9), Replacement(0, A, E))
    swap.check_unchanged(record_of("3/3/2", {0: (A, B, C)}, last=9))
    with pytest.raises(VersionConflict, match="other bookies"):
        swap.check_unchanged(record_of("3/3/2", {0: (A, B, D)}, last=9))


def test_renewed_copies_change_no_record() -> None:
    record = record_of("3/3/2", ENSEMBLES, last=25)
    copy = FragmentCopy(fragment(0, 9), renewals(fragment(0, 9), [1]))
    assert copy_all(copy) == {B: list(range(10))}
    assert not copy.swap.needed(record)
    assert copy.swap.apply(record) == record
