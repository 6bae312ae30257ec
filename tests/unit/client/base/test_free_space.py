"""Free space of bookies: asked in the background, kept for a while, and what a client makes of it."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.fakes.world import World, in_world

from bookies.client.base.free_space import RETRY_S, FreeSpace
from bookies.errors import BookieUnreachable
from bookies.model import BookieId

B1, B2, B3 = BookieId("b1"), BookieId("b2"), BookieId("b3")
ALL = (B1, B2, B3)


@in_world()
async def test_answers_are_good_for_a_while_and_silence_for_a_shorter_one(world: World) -> None:
    answers: dict[BookieId, int] = {B1: 10, B2: 40}
    asked: Counter[BookieId] = Counter()

    async def ask(bookie: BookieId) -> tuple[int, int]:
        asked[bookie] += 1
        if bookie not in answers:
            raise BookieUnreachable("down", bookie=bookie)
        return 100, answers[bookie]

    space = FreeSpace(ask, 300.0, 0)
    assert space.weights(ALL) == {}
    assert space.due(ALL) == [B1, B2, B3]
    await space.learn(ALL)
    assert space.weights(ALL) == {B1: 0.25, B2: 1.0, B3: 0.25}
    assert space.due(ALL) == []
    await asyncio.sleep(RETRY_S)
    assert space.due(ALL) == [B3]
    answers[B3] = 20
    await space.learn([B3])
    assert space.weights(ALL) == {B1: 0.25, B2: 1.0, B3: 0.5}
    assert space.weights(ALL) is space.weights(ALL)
    await asyncio.sleep(300)
    assert space.due(ALL) == [B1, B2, B3]
    assert asked == {B1: 1, B2: 1, B3: 2}


@in_world()
async def test_a_client_prefers_bookies_with_room(world: World) -> None:
    store = await world.client(disk_weights=True)

    async def ask(bookie: BookieId) -> tuple[int, int]:
        return 100, 1 if bookie == B1 else 50

    store._pool.bookie_info = ask  # type: ignore[method-assign]
    store._watcher.candidates()
    await asyncio.sleep(1)
    firsts = Counter(store._watcher.candidates()[0] for _ in range(300))
    assert firsts[B1] < 20
    assert min(firsts[B2], firsts[B3]) > 100


@in_world()
async def test_a_client_sends_new_ledgers_to_bookies_with_less_to_do(world: World) -> None:
    store = await world.client()
    ledger = await store.create(ensemble=1)
    (busy,) = ledger.metadata.last_ensemble
    world.bookies[busy].intercept = lambda request: []
    unanswered = asyncio.create_task(ledger.append(b"x"))
    await asyncio.sleep(0.1)
    others = [(await store.create(ensemble=1)).metadata.last_ensemble for _ in range(30)]
    assert (busy,) not in others
    unanswered.cancel()
    await ledger.close()
