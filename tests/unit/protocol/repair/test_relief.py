"""Which replicas leave bookies that are read much more than others."""

from __future__ import annotations

from collections.abc import Callable

from bookies.model import BookieId, Ensemble
from bookies.protocol.pacing.read_rates import ReadLoad
from bookies.protocol.repair.balance import BalancePlan, Movable
from bookies.protocol.repair.fragments import Fragment
from bookies.protocol.repair.relief import Relief

B = [BookieId(f"b{number}") for number in range(1, 6)]


def plan_of(held: dict[BookieId, int], share: int = 100) -> BalancePlan:
    return BalancePlan([], held, held, dict.fromkeys(held, float(share)), tolerance=0.10)


def planned(
    loads: dict[BookieId, ReadLoad],
    fragments: list[tuple[int, Ensemble, int]],
    *,
    held: dict[BookieId, int] | None = None,
    rate_min: float = 0.0,
    worsens: Callable[[Fragment, Ensemble], bool] = lambda fragment, ensemble: False,
) -> list[tuple[int, BookieId, BookieId]]:
    plan = plan_of(held or dict.fromkeys(B, 100))
    relief = Relief(loads, plan, rate_min, worsens)
    for first, (ledger_id, ensemble, size) in enumerate(fragments):
        fragment = Fragment(ledger_id, first, first, ensemble, len(ensemble), is_finished=True)
        for position, bookie in enumerate(ensemble):
            relief.offer(Movable(fragment, position, size), bookie)
    moves = relief.moves()
    assert relief.is_needed or not moves
    after = dict(plan.before)
    for move in moves:
        after[move.source] -= move.size
        after[move.target] += move.size
    assert after == relief.after
    return [(move.ledger_id, move.source, move.target) for move in moves]


def test_ledgers_that_are_read_most_go_where_least_is_read() -> None:
    loads = {B[0]: ReadLoad(1_000, {1: 600, 2: 300, 3: 50}), B[1]: ReadLoad(200), B[2]: ReadLoad(100)}
    # The limit is 650: without ledger 2 it is still exceeded, without ledger 1 it is not.
    fragments = [(1, (B[0],), 5), (2, (B[0], B[2]), 5), (3, (B[0],), 5), (4, (B[0],), 5)]
    assert planned(loads, fragments) == [(2, B[0], B[1]), (3, B[0], B[2])]
    # Ledger 1 would make any other bookie hot; ledgers 2 and 3 leave until what is left is ledger 1 alone.


def test_a_bookie_that_is_not_hot_gives_nothing() -> None:
    fragments = [(1, (B[0],), 5)]
    loads = {B[0]: ReadLoad(140, {1: 60}), B[1]: ReadLoad(60)}
    assert planned(loads, fragments) == []
    loads = {B[0]: ReadLoad(1_000, {1: 300}), B[1]: ReadLoad(0)}
    assert planned(loads, fragments, rate_min=1_000) == []
    assert planned(loads, fragments, rate_min=999) == [(1, B[0], B[1])]
    assert planned({}, fragments) == []


def test_open_ledgers_stay() -> None:
    loads = {B[0]: ReadLoad(1_000, {1: 300}), B[1]: ReadLoad(0)}
    for is_closed in (False, True):
        relief = Relief(loads, plan_of({B[0]: 100, B[1]: 100}), 0.0, lambda fragment, ensemble: False)
        relief.offer(Movable(Fragment(1, 0, 0, (B[0],), 1, is_finished=True), 0, 5, is_closed), B[0])
        assert bool(relief.moves()) == is_closed


def test_a_move_keeps_both_within_their_shares() -> None:
    loads = {B[0]: ReadLoad(1_000, {1: 300}), B[1]: ReadLoad(0), B[2]: ReadLoad(1)}
    fragments = [(1, (B[0],), 8)]
    assert planned(loads, fragments) == [(1, B[0], B[1])]
    assert planned(loads, fragments, held={B[0]: 97, B[1]: 100, B[2]: 100}) == []
    assert planned(loads, fragments, held={B[0]: 100, B[1]: 103, B[2]: 100}) == [(1, B[0], B[2])]


def test_a_move_keeps_replicas_apart_and_placed() -> None:
    loads = {B[0]: ReadLoad(1_000, {1: 300}), B[1]: ReadLoad(0), B[2]: ReadLoad(1), B[3]: ReadLoad(2)}
    fragments = [(1, (B[0], B[1]), 5)]
    assert planned(loads, fragments) == [(1, B[0], B[2])]
    assert planned(loads, fragments, worsens=lambda fragment, changed: changed == (B[2], B[1])) == [(1, B[0], B[3])]
    assert planned(loads, fragments, worsens=lambda fragment, changed: True) == []
    both = {B[0]: ReadLoad(1_000, {1: 300}), B[1]: ReadLoad(990, {1: 300}), B[2]: ReadLoad(0), B[3]: ReadLoad(2)}
    assert planned(both, fragments) == [(1, B[0], B[2]), (1, B[1], B[3])]


def test_the_rate_of_a_ledger_is_divided_by_size() -> None:
    loads = {B[0]: ReadLoad(1_000, {1: 600}), B[1]: ReadLoad(200)}
    # The limit is 900, so b2 can take fragments with 150 and 450 of the 600, in this order only the first is needed.
    assert planned(loads, [(1, (B[0],), 2), (1, (B[0],), 6), (1, (B[0],), 0)]) == [(1, B[0], B[1])]
