"""What is moved so that every bookie holds its share, and nothing beyond that."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookies.model import BookieId
from bookies.protocol.repair.balance import Movable, plan_balance, shares_of

B = [BookieId(f"b{number}") for number in range(1, 7)]
TOLERANCE = 0.1

Fragments = list[tuple[tuple[BookieId, ...], int]]


def planned(fragments: Fragments, room: dict[BookieId, int], tolerance: float = TOLERANCE):  # type: ignore[no-untyped-def]
    held: dict[BookieId, int] = {}
    movable: dict[BookieId, list[Movable]] = {}
    for ledger_id, (ensemble, size) in enumerate(fragments):
        for position, bookie in enumerate(ensemble):
            held[bookie] = held.get(bookie, 0) + size
            movable.setdefault(bookie, []).append(Movable(ledger_id, 0, position, ensemble, size))
    return plan_balance(held, room, movable, tolerance)


def test_a_new_bookie_gets_its_share() -> None:
    fragments = [((B[0], B[1]), 10) for _ in range(30)]
    plan = planned(fragments, dict.fromkeys(B[:3], 1000))
    assert plan.before == {B[0]: 300, B[1]: 300, B[2]: 0}
    assert plan.shares == {B[0]: 200, B[1]: 200, B[2]: 200}
    assert all(size <= 220 for size in plan.after.values())
    assert plan.size == 160  # no more than to the edge of the tolerance
    assert len({(move.ledger_id, move.position) for move in plan.moves}) == len(plan.moves)
    ledgers = [move.ledger_id for move in plan.moves]
    assert len(set(ledgers)) == len(ledgers), "the new one takes one replica of a ledger only"


def test_shares_are_by_room() -> None:
    assert shares_of({B[0]: 90}, {B[0]: 100, B[1]: 200}) == {B[0]: 30, B[1]: 60}
    assert shares_of({B[0]: 90}, {B[0]: 0, B[1]: 0}) == {B[0]: 45, B[1]: 45}


def test_what_is_too_large_stays() -> None:
    plan = planned([((B[0],), 100)], dict.fromkeys(B[:2], 1000))
    assert plan.moves == []
    assert plan.before == plan.after


def test_what_is_empty_stays() -> None:
    plan = planned([((B[0],), 100), ((B[0],), 0)], dict.fromkeys(B[:2], 1000))
    assert plan.moves == []
    plan = planned([((B[0],), 50), ((B[0],), 50), ((B[0],), 0)], dict.fromkeys(B[:2], 1000))
    assert [(move.size, move.target) for move in plan.moves] == [(50, B[1])]


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
