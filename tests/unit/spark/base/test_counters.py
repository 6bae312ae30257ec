"""Counters of the tasks of a job are added up by name."""

from __future__ import annotations

from tests.fakes.world import World, play

from bookies.spark.base.counters import Sums, work_of


def test_sums() -> None:
    sums = Sums()
    total = sums.zero({"tasks": 1})
    for counters in ({"tasks": 1, "bytes_sent": 5}, {"tasks": 1}):
        assert sums.addInPlace(total, counters) is total
    assert total == {"tasks": 2, "bytes_sent": 5}


def test_the_work_of_a_client() -> None:
    async def act(world: World) -> None:
        store = await world.client()
        async with await store.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
            await writer.append_many([b"x" * 100] * 10)
        async with await store.open(writer.ledger_id) as ledger:
            assert len([entry async for entry in ledger.read()]) == 10
        counters = work_of(store)
        assert (counters["tasks"], counters["replicas_sent"]) == (1, 30)
        assert counters["read_requests"] >= 1
        assert counters["bytes_sent"] > 3000
        assert counters["bytes_received"] > 1000
        assert counters["read_failures"] == counters["digest_failures"] == counters["timeouts"] == 0

    play(act)
