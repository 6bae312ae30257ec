"""Which copies take turns, and that those get on which do."""

from __future__ import annotations

import asyncio

from tests.fakes.world import World, in_world

from bookies.client.transport.copy_admission import KNOWN_S, LARGE, TIGHT_S, TIMES, CopyAdmission
from bookies.errors import BookieReadOnly, BookieTimeout, EntryNotFound
from bookies.model import BookieId

B1, B2, B3 = BookieId("b1"), BookieId("b2"), BookieId("b3")
TOTAL = 100 * LARGE


@in_world()
async def test_large_copies_ask_for_room_once_in_a_while_and_small_ones_never(world: World) -> None:
    free = {B1: TOTAL // 10 + TIMES * LARGE, B2: TOTAL // 10 + TIMES * LARGE - 1}
    asked: list[BookieId] = []

    async def ask(bookie: BookieId) -> tuple[int, int]:
        asked.append(bookie)
        if bookie not in free:
            raise BookieTimeout("no answer")
        return TOTAL, free[bookie]

    turns = CopyAdmission(ask)
    assert await turns.have_free_space([B1, B2], LARGE - 1)
    assert asked == []
    assert [await turns.have_free_space([each], LARGE) for each in (B1, B2, B3)] == [True, False, True]
    assert not await turns.have_free_space([B1, B2], LARGE)
    assert not await turns.have_free_space([B1], LARGE + 1)
    assert asked == [B1, B2, B3]
    await asyncio.sleep(KNOWN_S)
    free[B2] = TOTAL
    assert await turns.have_free_space([B2], LARGE)


@in_world()
async def test_after_a_refusal_for_want_of_room_all_take_turns_for_a_while(world: World) -> None:
    async def ask(bookie: BookieId) -> tuple[int, int]:
        raise AssertionError

    turns = CopyAdmission(ask)
    turns.refused(EntryNotFound("no such entry"))
    assert not turns.is_limited
    turns.refused(BookieReadOnly("full"))
    assert turns.is_limited
    await asyncio.sleep(TIGHT_S)
    assert not turns.is_limited


@in_world()
async def test_one_copy_at_a_time_goes_to_a_bookie_and_nobody_waits_for_ever(world: World) -> None:
    async def ask(bookie: BookieId) -> tuple[int, int]:
        raise AssertionError

    turns = CopyAdmission(ask)
    busy: list[BookieId] = []
    done: list[int] = []

    async def copy(number: int, *targets: BookieId) -> None:
        async with turns.turn(targets):
            assert not {*busy} & {*targets}
            busy.extend(targets)
            await asyncio.sleep(0.1)
            for each in targets:
                busy.remove(each)
        done.append(number)

    waits = asyncio.create_task(copy(0, B3, B1))
    others = [asyncio.create_task(copy(at, *targets)) for at, targets in enumerate([(B1, B2), (B2, B1), (B2, B3)], 1)]
    await asyncio.sleep(0.05)
    others[0].cancel()
    await asyncio.wait([waits, *others], timeout=10)
    assert sorted(done) == [0, 2, 3]
