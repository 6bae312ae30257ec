"""Races of logs, as single schedules. X-75 to X-80 are in `test_log_schedules.py`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.sim.log_world import LogWorld
from tests.sim.test_log_schedules import append, begin, holds, lead, outcome, run

from bookies.errors import CursorMoved, LeaseLost, LogFenced, LogNotFound, LogTruncated, MetadataError
from bookies.lab.sim.checkers.log_history import Truncation
from bookies.lab.sim.clients.log_workload import NAME
from bookies.lab.sim.world import SimClient
from bookies.lab.sim.world.sim_metadata import SimDriver
from bookies.protocol.log import Position


async def fill(world: LogWorld, client: SimClient, writer: Any, ledgers: int) -> list[Position]:
    """Fill ledgers with two entries each, and return their first positions."""
    firsts = []
    for number in range(ledgers):
        firsts.append(await append(world, client, writer, b"%d" % number))
        await append(world, client, writer, b"%d more" % number)
        await world.as_process(client, writer.roll())
    return firsts


def test_a_roll_whose_reply_is_lost_lists_one_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    async def schedule(world: LogWorld) -> None:
        one, writer = await lead(world, "A")
        await append(world, one, writer, b"a0")
        original, lost = SimDriver.write_record, []

        async def write_record(self: SimDriver, name: str, data: bytes, expected_version: int) -> int:
            version = await original(self, name, data, expected_version)
            if not lost:
                lost.append(version)
                raise MetadataError("the reply is lost")
            return version

        monkeypatch.setattr(SimDriver, "write_record", write_record)
        await world.as_process(one, writer.roll())
        await append(world, one, writer, b"a1")
        assert lost
        assert len(world.manifests()[-1].manifest.ledger_ids) == 2  # type: ignore[union-attr]
        await world.as_process(one, writer.close())

    holds(run(schedule))


def test_retention_by_two_processes_and_a_truncation_at_once() -> None:
    """Each ledger is removed once, and what one removes another does not list again."""

    async def schedule(world: LogWorld) -> None:
        one, writer = await lead(world, "A")
        firsts = await fill(world, one, writer, 6)
        others = [await world.process("retainer") for _ in range(2)]
        await world.as_process(others[0], world.log(others[0]).set_retention(rows=4))
        world.history.truncations = [Truncation(firsts[2]), Truncation(firsts[3])]
        acts = [begin(other, world.log(other).apply_retention()) for other in others]
        acts.append(begin(one, writer.truncate(firsts[2])))
        *removing, truncating = [await outcome(act) for act in acts]
        assert removing == [None, None]
        assert truncating is None or isinstance(truncating, LogTruncated)  # It was overtaken.
        manifest = world.manifests()[-1].manifest
        assert manifest is not None
        assert (manifest.beginning.ledger_id, manifest.deleting) == (firsts[3].ledger_id, ())  # type: ignore[union-attr]
        assert manifest.rows_truncated == 6
        history = await world.as_process(one, world.log(one).history())
        removed = [ledger_id for removal in history for ledger_id in removal.ledgers]
        assert len(removed) == len(set(removed))
        await world.as_process(one, writer.close())

    holds(run(schedule))


def test_a_consumer_that_was_suspended_cannot_commit_for_its_successor() -> None:
    async def schedule(world: LogWorld) -> None:
        leader, writer = await lead(world, "A")
        firsts = await fill(world, leader, writer, 3)
        one, two = await world.process("consumer"), await world.process("consumer")
        got: list[int] = []

        async def consume(client: SimClient, count: int) -> None:
            async with world.log(client).consumer("billing", ttl=1.0, commit_interval=None) as rows:
                async for entry in rows:
                    got.append(entry.position.ledger_id)
                    if len(got) % 2 == 0:
                        await asyncio.sleep(0.5)  # The first one is suspended meanwhile.
                        await rows.commit()
                    if len(got) >= count:
                        break

        first = begin(one, consume(one, 6))
        await asyncio.sleep(0.2)
        one.participant.pause()
        second = begin(two, consume(two, 5))
        await asyncio.sleep(10.0)
        one.participant.resume()
        assert isinstance(await outcome(first), LeaseLost | CursorMoved)
        assert await outcome(second) is None
        assert got[:4] == [firsts[0].ledger_id] * 4, "the successor handles again what was not committed"
        cursors = await world.as_process(two, world.log(two).cursors())
        assert cursors["billing"].position > firsts[1]
        await world.as_process(leader, writer.close())

    holds(run(schedule))


def test_a_log_that_is_deleted_under_its_leader() -> None:
    """The leader learns it, and no ledger of the log is left."""

    async def schedule(world: LogWorld) -> None:
        one, writer = await lead(world, "A")
        await append(world, one, writer, b"a0")
        other = await world.process("B")
        await world.as_process(other, world.log(other).delete())
        late = begin(one, writer.append(b"a1"))
        assert isinstance(await outcome(late), LogFenced | LogNotFound)
        store = world.cluster.store
        assert all(store.record(ledger_id) is None for ledger_id in store.commits)
        await world.as_process(one, writer.abandon())
        await world.as_process(other, world.log(other).create(ensemble=3, write_quorum=3, ack_quorum=2))
        world.history.acks.clear()  # of the log that was deleted
        world.cluster.store.record_commits[f"logs/{NAME}"] = world.cluster.store.record_commits[f"logs/{NAME}"][-1:]

    holds(run(schedule))
