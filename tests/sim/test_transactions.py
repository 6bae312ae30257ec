"""Jobs that commit batches to a log, restart and repeat them, beside aborts, a reaper and leaders: each batch once.

A job stands for a Spark query: a batch is written by a few tasks, then committed by a driver; a batch counts as done
when the driver has noted it in the checkpoint, which only happens after the commit. Drivers die at any await, two of
them run at once, and a batch that is not in the checkpoint is written again, in new ledgers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from itertools import count
from random import Random
from typing import Any

import pytest
from tests.sim.log_world import HEALED_DEADLINE_S, NAME, LogWorld
from tests.sim.test_logs import PLANS

from bookies.client.log import transaction_writer
from bookies.client.log.transaction import TransactionContext, abort, commit, reap
from bookies.errors import BookKeeperError, LogInUse
from bookies.lab.sim.faults import Faults
from bookies.lab.sim.faults.fault_schedule import FaultPlan, Injected
from bookies.lab.sim.world import SimClient
from bookies.lab.sim.world.sim_metadata import SimDriver
from bookies.metadata.interface.driver import LedgerAt, LedgerDeletion, RecordAt, Step
from bookies.protocol.log import log_segments
from bookies.protocol.log.log_model import parse_manifest
from bookies.protocol.log.transaction import Origin, Transaction

BATCH_COUNT = 12


class JobWorld(LogWorld):
    """With processes that are started again when they die."""

    is_over = False

    async def supervise(self, role: str, life: Callable[[SimClient], Coroutine[Any, Any, None]]) -> None:
        while not self.is_over:
            client = await self.process(role)
            try:
                await self.as_process(client, life(client))
            except asyncio.CancelledError:
                if client.participant.is_alive:
                    raise
                await asyncio.sleep(0.2)

    async def lead_for_ever(self, client: SimClient, random: Random) -> None:
        """Lead, append, roll, lose the lead, try again."""
        numbers = count()
        while not self.is_over:
            try:
                async with self.log(client).lead(roll_size=random.choice((100, 1 << 20))) as writer:
                    for _ in range(random.choice((3, 30))):
                        await self.append(client, writer, [f"{client.name}/{next(numbers)}".encode()])
                        await asyncio.sleep(random.choice((0.0, 0.01, 0.1)))
                        if random.random() < 0.05:
                            await writer.roll()
            except BookKeeperError as error:
                self.trace.note(client.name, f"stopped leading: {type(error).__name__}: {error}")
                await asyncio.sleep(random.uniform(0, 0.5))


class Job:
    """A query with a checkpoint: how many batches are noted as done."""

    def __init__(self, world: JobWorld, app: str, *, orphan_grace_ms: int, fences: bool) -> None:
        self.world = world
        self.app = app
        self.done = 0
        self.all_done = asyncio.Event()
        self._grace_ms = orphan_grace_ms
        self._fences = fences

    def payloads(self, batch: int, partition: int) -> list[bytes]:
        return [b"%s/%d/%d/%d" % (self.app.encode(), batch, partition, number) for number in range(1 + batch % 3)]

    async def drive(self, client: SimClient, random: Random) -> None:
        """One life of a driver: go on where the checkpoint says."""
        parts = client.client.transactions()
        while self.done < BATCH_COUNT and not self.world.is_over:
            batch = self.done
            try:
                await self._run(parts, batch, random)
            except BookKeeperError as error:
                self.world.trace.note(client.name, f"batch {batch} failed: {type(error).__name__}: {error}")
                await asyncio.sleep(random.uniform(0, 0.5))
                continue
            self.done = max(self.done, batch + 1)
        self.all_done.set()
        await asyncio.Event().wait()

    async def _run(self, parts: TransactionContext, batch: int, random: Random) -> None:
        written, token = [], ""
        part_count = random.choice((1, 2, 3))
        for partition in range(part_count):
            origin = Origin(self.app, batch, f"query-{self.app}", partition, f"{random.getrandbits(32):x}")
            part = await transaction_writer.open_part(parts, NAME, origin, ledger_size=random.choice((20, 1 << 20)))
            for at in range(3 * partition // part_count, 3 * (partition + 1) // part_count):
                await part.append_many(self.payloads(batch, at))
            await asyncio.sleep(random.choice((0, 0.05, 0.3)))
            written += await part.finish()
            token = part.token
        txn = Transaction(self.app, batch, f"query-{self.app}", {NAME: tuple(written)}, {NAME: token})
        try:
            await commit(parts, txn, on_open_tail="fence" if self._fences else "fail", timeout=random.choice((5, 60)))
            if random.random() < 0.1:
                raise LogInUse("the driver failed after its commit took effect")
        except BookKeeperError:
            await abort(parts, txn, timeout=5)
            raise

    async def reap(self, client: SimClient, random: Random) -> None:
        parts = client.client.transactions()
        while True:
            try:
                async for _ in reap(parts, NAME, orphan_grace_ms=self._grace_ms, replay_grace_ms=self._grace_ms // 2):
                    await asyncio.sleep(0)
            except BookKeeperError as error:
                self.world.trace.note(client.name, f"reaper failed: {type(error).__name__}: {error}")
            await asyncio.sleep(random.uniform(0, 2))


def expected(job: Job, partitions: int = 3) -> list[bytes]:
    return [each for batch in range(BATCH_COUNT) for at in range(partitions) for each in job.payloads(batch, at)]


async def play(world: JobWorld, plan: FaultPlan, jobs: list[Job], *, leaders: int, duration_s: float = 30.0) -> None:
    random = Random(f"{world.seed}/jobs")
    faults = Faults(world.cluster, f"{world.seed}/faults", plan, Injected())
    lives: list[tuple[str, Callable[[SimClient], Coroutine[Any, Any, None]]]] = []
    for job in jobs:
        for number, payload in enumerate(expected(job)):
            world.history.attempted[payload] = (job.app, number)
        for _ in range(2):
            lives.append((f"driver-{job.app}", lambda client, job=job: job.drive(client, Random(random.random()))))
    lives.append(("reaper", lambda client: jobs[0].reap(client, Random(random.random()))))
    roles = [asyncio.ensure_future(world.supervise(role, life)) for role, life in lives]
    for index in range(leaders):
        roles.append(
            asyncio.ensure_future(
                world.supervise(
                    f"leader{index}", lambda client: world.lead_for_ever(client, Random(f"{random.random()}"))
                )
            )
        )
    breaking = asyncio.ensure_future(faults.run())
    all_done = asyncio.gather(*[job.all_done.wait() for job in jobs])
    await asyncio.wait([all_done], timeout=duration_s)
    faults.stop()
    breaking.cancel()
    await world.cluster.heal()
    async with asyncio.timeout(HEALED_DEADLINE_S):
        await all_done
    world.is_over = True
    for role in roles:
        role.cancel()
    await asyncio.gather(*roles, return_exceptions=True)
    for name in list(world.cluster.clients):
        world.cluster.kill_client(name)


def run(seed: object, plan: FaultPlan, *, leaders: int = 0, apps: int = 2, grace_ms: int = 1_500) -> JobWorld:
    world = JobWorld(seed)
    jobs = [Job(world, f"app{index}", orphan_grace_ms=grace_ms, fences=leaders > 0) for index in range(apps)]

    async def main(world: JobWorld) -> None:
        await play(world, plan, jobs, leaders=leaders)

    world.run(main)
    final = [payload for _, payload in world.history.final]
    for job in jobs:
        own = [payload for payload in final if payload.startswith(job.app.encode() + b"/")]
        if own != expected(job):
            wrong = [each for each in expected(job) if own.count(each) != 1]
            world.history.problems.append(f"batches: {job.app} is not in the log as written; not once: {wrong[:5]}")
    return world


def assert_sound(world: JobWorld) -> None:
    assert not world.history.problems, "\n".join([*world.history.problems[:10], *world.trace.tail(50)])


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("plan", PLANS)
def test_two_jobs_a_reaper_and_no_leader(plan: str, seed: int) -> None:
    assert_sound(run(f"transactions/{plan}/{seed}", PLANS[plan]))


@pytest.mark.parametrize("plan", ["calm", "clients"])
def test_a_job_and_a_leader_take_the_log_from_each_other(plan: str) -> None:
    assert_sound(run(f"transactions/leader/{plan}", PLANS[plan], leaders=1, apps=1))


@pytest.mark.parametrize("plan", ["calm", "clients"])
def test_lists_in_segments(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, and with every few ledgers older extents go to records of their own."""
    monkeypatch.setattr(log_segments, "HEAD_EXTENTS_MAX", 6)
    monkeypatch.setattr(log_segments, "HEAD_EXTENTS_KEPT", 3)
    monkeypatch.setattr(log_segments, "SEGMENT_EXTENTS_MAX", 10)
    for seed in range(2):
        world = run(f"segments/{plan}/{seed}", PLANS[plan], leaders=seed)
        assert_sound(world)
        heads = [parse_manifest(NAME, each.after) for each in world.cluster.store.record_commits[f"logs/{NAME}"]]
        assert max(len(head.segments) for head in heads) > 1
        assert max(len(head.extents) for head in heads) <= 6


# -- transactions that land late -------------------------------------------------------------------------------------
# What a commit or an abort has checked may be long ago when its conditional write reaches the store; a reaper that
# waits for nothing makes the most of it.


def land_late(patch: pytest.MonkeyPatch, seed: int, leaves_out: Callable[[Step], bool] = lambda step: False) -> None:
    original, random = SimDriver.transact, Random(f"late/{seed}")

    async def transact(self: SimDriver, steps: Sequence[Step]) -> int:
        await asyncio.sleep(random.choice((0, 0.01, 0.1, 0.3)))
        kept = [step for step in steps if not leaves_out(step)]
        if kept != list(steps) and isinstance(kept[0], LedgerDeletion):
            for step in kept:
                assert isinstance(step, LedgerDeletion)
                await self.delete_ledger(step.ledger_id)
            return 0
        return await original(self, kept)

    patch.setattr(SimDriver, "transact", transact)


@pytest.mark.parametrize("seed", range(3))
def test_conditional_writes_that_land_late(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    land_late(monkeypatch, seed)
    assert_sound(run(f"late/{seed}", PLANS["calm"], grace_ms=100))


def do_not_check_the_ledgers(step: Step) -> bool:
    return isinstance(step, LedgerAt)


def do_not_check_the_list_before_deleting(step: Step) -> bool:
    return isinstance(step, RecordAt)


@pytest.mark.parametrize(
    "leaves_out",
    [do_not_check_the_ledgers, do_not_check_the_list_before_deleting],
    ids=lambda leaves_out: str(leaves_out.__name__),
)
def test_mutants_are_found(leaves_out: Callable[[Step], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Either half of the condition is needed."""

    def is_found(seed: int) -> bool:
        with monkeypatch.context() as patch:
            land_late(patch, seed, leaves_out)
            return bool(run(f"late/{seed}", PLANS["calm"], grace_ms=100).history.problems)

    assert any(map(is_found, range(6)))
