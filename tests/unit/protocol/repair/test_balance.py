"""What is moved so that every bookie holds its share, and nothing beyond that."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from bookies.model import BookieId, Ensemble
from bookies.protocol.repair.balance import (
    OFFERS_MAX,
    REFUSALS_MAX,
    BalancePlan,
    Balancer,
    Movable,
    obstacle_of,
    shares_of,
)
from bookies.protocol.repair.fragments import Fragment

B = [BookieId(f"b{number}") for number in range(1, 8)]
TOLERANCE = 0.1

Fragments = list[tuple[tuple[BookieId, ...], int]]


def planned(
    fragments: Fragments,
    room: dict[BookieId, int],
    tolerance: float = TOLERANCE,
    size_min: int = 0,
    worsens: Callable[[Fragment, Ensemble], bool] = lambda fragment, ensemble: False,
) -> BalancePlan:
    held: dict[BookieId, int] = {}
    for ensemble, size in fragments:
        for bookie in ensemble:
            held[bookie] = held.get(bookie, 0) + size
    balancer = Balancer(held, room, tolerance, size_min=size_min, worsens=worsens)
    for ledger_id, (ensemble, size) in enumerate(fragments):
        fragment = Fragment(ledger_id, 0, 9, ensemble, len(ensemble), is_finished=True)
        for position, bookie in enumerate(ensemble):
            balancer.offer(Movable(fragment, position, size), bookie)
    balancer.begin()
    moves = []
    while (move := balancer.next_move()) is not None:
        moves.append(move)
    return balancer.plan(moves)


def test_a_new_bookie_gets_its_share() -> None:
    fragments = [((B[0], B[1]), 10) for _ in range(30)]
    plan = planned(fragments, dict.fromkeys(B[:3], 1000))
    assert plan.before == {B[0]: 300, B[1]: 300, B[2]: 0}
    assert plan.shares == {B[0]: 200, B[1]: 200, B[2]: 200}
    assert plan.imbalance == 1.0
    assert all(180 <= size <= 220 for size in plan.after.values())
    assert plan.size == 180  # no more than to the edge of the tolerance
    assert len({(move.ledger_id, move.position) for move in plan.moves}) == len(plan.moves)
    ledgers = [move.ledger_id for move in plan.moves]
    assert len(set(ledgers)) == len(ledgers), "the new one takes one replica of a ledger only"
    assert plan.reasons() == {B[0]: "gives 9 replicas", B[1]: "gives 9 replicas", B[2]: "receives 18 replicas"}


def test_many_that_are_slightly_too_full_fill_an_empty_one() -> None:
    fragments = [((bookie,), 1) for bookie in B[:6] for _ in range(130)]
    room = dict.fromkeys(B[:6], 2000) | {B[6]: 1000}  # shares: 120 and 60, so no bookie exceeds its own by 10 %
    plan = planned(fragments, room)
    assert plan.after[B[6]] == 54
    assert all(120 <= plan.after[bookie] <= 122 for bookie in B[:6])


def test_small_differences_are_left() -> None:
    fragments = [((B[0],), 10) for _ in range(30)]
    plan = planned(fragments, dict.fromkeys(B[:2], 1000), size_min=150)
    assert plan.moves == []
    assert plan.reasons() == dict.fromkeys(B[:2], "holds its share, within the tolerance")
    assert planned(fragments, dict.fromkeys(B[:2], 1000), size_min=149).moves != []


def test_a_balance_begins_at_another_tolerance_than_it_ends_at() -> None:
    balancer = Balancer({B[0]: 108, B[1]: 92}, dict.fromkeys(B[:2], 1), 0.05)
    assert not balancer.deviates(0.10)
    assert balancer.deviates(0.05)


def test_a_plan_has_at_most_so_many_replicas() -> None:
    balancer = Balancer({B[0]: 4 * OFFERS_MAX}, dict.fromkeys(B[:2], 1), TOLERANCE)
    assert not balancer.plan([]).is_partial
    for ledger_id in range(OFFERS_MAX + 1):
        balancer.offer(Movable(Fragment(ledger_id, 0, 0, (B[0],), 1, is_finished=True), 0, 1), B[0])
    balancer.begin()
    moves = []
    while (move := balancer.next_move()) is not None:
        moves.append(move)
    assert len(moves) == OFFERS_MAX
    assert balancer.plan(moves).is_partial


def test_nothing_is_planned_without_bookies() -> None:
    plan = planned([((B[0],), 10)], {})
    assert (plan.moves, plan.shares, plan.imbalance) == ([], {}, 0.0)


def test_shares_are_by_room() -> None:
    assert shares_of({B[0]: 90}, {B[0]: 100, B[1]: 200}) == {B[0]: 30, B[1]: 60}
    assert shares_of({B[0]: 90}, {B[0]: 0, B[1]: 0}) == {B[0]: 45, B[1]: 45}


def test_what_is_too_large_stays() -> None:
    plan = planned([((B[0],), 100)], dict.fromkeys(B[:2], 1000))
    assert plan.moves == []
    assert plan.before == plan.after
    reasons = plan.reasons()
    assert reasons[B[0]].startswith("holds too much, but no replica can move")
    assert reasons[B[1]] == "holds too little, but no replica of another bookie can move to it"


def test_what_is_empty_stays() -> None:
    plan = planned([((B[0],), 100), ((B[0],), 0)], dict.fromkeys(B[:2], 1000))
    assert plan.moves == []
    plan = planned([((B[0],), 50), ((B[0],), 50), ((B[0],), 0)], dict.fromkeys(B[:2], 1000))
    assert [(move.size, move.target) for move in plan.moves] == [(50, B[1])]


def test_what_would_be_placed_less_well_stays() -> None:
    asked = []

    def worsens(fragment: Fragment, ensemble: Ensemble) -> bool:
        asked.append(ensemble)
        return ensemble == (B[1],)

    fragments: Fragments = [((B[0],), 1) for _ in range(3 * REFUSALS_MAX)]
    plan = planned(fragments, dict.fromkeys(B[:3], 1000), worsens=worsens)
    assert {move.target for move in plan.moves} == {B[2]}
    assert 0 < asked.count((B[1],)) <= REFUSALS_MAX * (len(plan.moves) + 2)


def test_a_replica_is_tried_once_for_a_bookie() -> None:
    """Else the steps of a plan grow with the square of the ledgers: 100,000 of them took half a minute."""
    asked: list[tuple[int, Ensemble]] = []

    def worsens(fragment: Fragment, ensemble: Ensemble) -> bool:
        asked.append((fragment.ledger_id, ensemble))
        return fragment.ledger_id % 2 == 0

    fragments: Fragments = [((B[0], B[1]), 1) for _ in range(REFUSALS_MAX)]
    plan = planned(fragments, dict.fromkeys(B[:4], 1000), worsens=worsens)
    assert len(plan.moves) > REFUSALS_MAX // 4
    assert len(set(asked)) == len(asked)


def test_replicas_that_placement_refuses_do_not_hide_the_others() -> None:
    fragments: Fragments = [((B[0],), 1) for _ in range(3 * REFUSALS_MAX)]
    first = REFUSALS_MAX // 2
    plan = planned(fragments, dict.fromkeys(B[:2], 1000), worsens=lambda fragment, _: first < fragment.ledger_id < 500)
    assert plan.imbalance == 1.0
    assert plan.after[B[0]] - plan.shares[B[0]] <= TOLERANCE * plan.shares[B[0]] + first


def test_what_stops_an_automatic_balance() -> None:
    assert obstacle_of(True, [], [], {}) is None
    assert obstacle_of(False, [B[0]], [7], {}) == "auto-recovery is disabled; `bk recovery enable` allows it"
    assert obstacle_of(True, [B[1], B[0]], [7], {}) == "ledgers lack replicas: b1, b2 not registered"
    marked = obstacle_of(True, [], [7, 8], {B[0]: "it is in maintenance"})
    assert marked == "ledger 7 is marked for a repair; `bk recovery why 7` shows it"
    assert obstacle_of(True, [], [], {B[0]: "it is in maintenance"}) == "b1: it is in maintenance"
    owing = obstacle_of(True, [], [], {}, [B[1], B[0]])
    assert owing is not None
    assert owing.startswith("ledgers lack replicas: b1 has lost entries; `bk bookie owed --bookie b1` shows how many")


@given(st.data())
def test_every_move_is_possible_and_brings_both_nearer(data: st.DataObject) -> None:
    ensembles = st.lists(st.sampled_from(B), min_size=1, max_size=3, unique=True).map(tuple)
    fragments = data.draw(st.lists(st.tuples(ensembles, st.integers(0, 1000)), max_size=40))
    room = {
        bookie: data.draw(st.integers(1, 1000))
        for bookie in data.draw(st.lists(st.sampled_from(B), min_size=1, unique=True))
    }
    plan = planned(fragments, room)
    where = {ledger_id: list(ensemble) for ledger_id, (ensemble, _) in enumerate(fragments)}
    now = dict(plan.before)
    for move in plan.moves:
        ensemble = where[move.ledger_id]
        assert ensemble[move.position] == move.source
        assert move.target not in ensemble
        ensemble[move.position] = move.target
        now[move.source] -= move.size
        now[move.target] += move.size
        assert now[move.source] >= plan.shares[move.source] - 1e-6
        assert now[move.target] <= plan.shares[move.target] + 1e-6
    assert now == plan.after
    after = [(tuple(ensemble), size) for ensemble, (_, size) in zip(where.values(), fragments, strict=True)]
    assert planned(after, room).moves == [], "a second balance moves nothing back"
