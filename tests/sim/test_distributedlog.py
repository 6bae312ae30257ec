"""DistributedLog under random take-overs, crashes and faults on virtual time. Source: distributedlog 9.1, 9.2.

Writers take a log over from one another, with and without the lock, roll, crash, and meet bookies that fail, requests
to ZooKeeper whose outcome is unknown, and sessions that end. Readers tail. At the end the log must hold every
acknowledged record once, at its position, in the order of its writer, and every reader must have seen the same.
An application commits batches as Spark's sink does, and repeats those that failed: each must be in the log once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from random import Random

import pytest
from tests.fakes.distributedlog import Place, in_namespace

from bookies.distributedlog import Dlog, DlogWriter, Dlsn, Record
from bookies.distributedlog.batches import Batches, Quorums
from bookies.errors import BookKeeperError
from bookies.protocol.log.log_model import Written
from bookies.protocol.log.transaction import Origin, Transaction
from bookies.wire.messages import AddRequest, Request

SEEDS = range(1 + int(os.environ.get("BK_SWEEP_SEEDS", "1")))
WRITERS, TAILS, TURNS = 3, 2, 8
BATCHES, ATTEMPTS = 6, 10


class Run:
    """One seed. `acknowledged`: positions by payload. `batches`: payloads of each; `committed`: of those that
    are in the log for certain."""

    def __init__(self, place: Place, seed: int) -> None:
        self.place = place
        self.random = Random(seed)
        self.acknowledged: dict[bytes, Dlsn] = {}
        self.batches: list[set[bytes]] = []
        self.committed: set[bytes] = set()
        self.errors: list[str] = []
        self.news = asyncio.Event()
        for bookie in place.world.bookies.values():
            bookie.delay_s = self.delay  # An entry may be stored, and its acknowledgement lost.

    def delay(self, request: Request) -> float:
        """Seconds that a bookie waits before it answers."""
        return self.random.choice([0, 0, 0.02, 0.3]) if isinstance(request, AddRequest) else 0.0

    async def write(self, number: int) -> None:
        """A process that leads again and again."""
        random = self.random
        for turn in range(TURNS):
            namespace = await self.place.namespace(f"w{number}-{turn}")
            log = namespace.log("orders")
            has_lock = self.place.server is not None and random.random() < 0.3
            try:
                options = {"roll_size": random.choice([200, 1 << 20]), "compression": random.choice(["none", "lz4"])}
                writer = await log.lead(lock=has_lock, lock_timeout=random.choice([0, 20.0]), **options, timeout=60)  # type: ignore[arg-type]
            except (BookKeeperError, TimeoutError) as error:
                self.errors.append(type(error).__name__)
                await asyncio.sleep(random.random() * 3)
                continue
            try:
                await self.use(writer, f"{number}-{turn}")
            except (BookKeeperError, TimeoutError) as error:
                self.errors.append(type(error).__name__)
            with contextlib.suppress(BookKeeperError, TimeoutError):
                await (writer.close(timeout=60) if random.random() < 0.4 else writer.abandon())
            if random.random() < 0.5:
                await namespace.close()  # Its session ends, and with it a lock that it holds.
            await asyncio.sleep(random.random())

    async def use(self, writer: DlogWriter, name: str) -> None:
        random, count = self.random, 0
        for _ in range(random.randrange(1, 6)):
            appends = []
            for _ in range(random.randrange(1, 12)):
                appends.append(asyncio.ensure_future(self.append(writer, b"%s-%d" % (name.encode(), count))))
                count += 1
            action = random.random()
            if action < 0.1:
                await writer.roll(timeout=60)
            elif action < 0.2:
                await writer.flush(timeout=60)
            try:
                await asyncio.gather(*appends)
            finally:
                await asyncio.gather(*appends, return_exceptions=True)
            await asyncio.sleep(random.choice([0, 0.01, 0.5]))

    async def append(self, writer: DlogWriter, payload: bytes) -> None:
        self.acknowledged[payload] = await writer.append(payload, timeout=60)

    async def commit_batches(self) -> None:
        """An application that commits batch after batch, and repeats one that failed."""
        for version in range(BATCHES):
            values = [b"batch%d-%d" % (version, number) for number in range(self.random.randrange(1, 9))]
            self.batches.append(set(values))
            for _ in range(ATTEMPTS):
                batches = (await self.place.namespace("spark")).batches("orders")
                try:
                    await self.commit(batches, version, values)
                except (BookKeeperError, TimeoutError) as error:
                    self.errors.append(f"batch {type(error).__name__}")
                    await asyncio.sleep(self.random.random())
                    continue
                self.committed.update(values)
                break
            await asyncio.sleep(self.random.random())

    async def commit(self, batches: Batches, version: int, values: list[bytes]) -> None:
        is_fencing = self.random.random() < 0.7
        txid = await batches.next_txid(is_fencing=is_fencing)
        written: list[Written] = []
        for partition, value in enumerate(values):
            part = batches.part(Origin("app", version, "", partition, "0"), txid, Quorums(3, 3, 2), 1 << 20)
            await part.append_packed(value, [0, len(value)])
            written += await part.finish()
        txn = Transaction("app", version, "", {"orders": tuple(written)}, {})
        try:
            await batches.commit(txn, is_fencing=is_fencing, timeout=30)
        except (BookKeeperError, TimeoutError):
            with contextlib.suppress(BookKeeperError, TimeoutError):
                await batches.abort(txn, timeout=30)
            raise

    async def tail(self, seen: list[Record]) -> None:
        log = (await self.place.namespace("tail")).log("orders")
        while True:
            start = seen[-1].position.next if seen else Dlsn(1, 0, 0)
            try:
                async with log.open() as reader:
                    async for record in reader.tail(start):
                        seen.append(record)
                        self.news.set()
            except BookKeeperError as error:
                self.errors.append(f"tail {type(error).__name__}")
                await asyncio.sleep(0.5)

    async def disturb(self) -> None:
        """Bookies fail, some or all; ZooKeeper loses answers, requests and sessions."""
        random, server = self.random, self.place.server
        while True:
            await asyncio.sleep(random.random() * 2)
            action = random.random()
            if action < 0.5:
                failing = random.sample(list(self.place.world.bookies), random.choice([1, 1, 3, 4]))
                down = []
                try:
                    for name in failing:
                        await self.place.world.take_down(name)
                        down.append(name)
                        await asyncio.sleep(random.choice([0, 0.001, 0.3]))
                    await asyncio.sleep(random.random())
                finally:
                    for name in down:
                        await self.place.world.listen(name)
            elif server is not None and action < 0.7:
                server.lost_replies += 1
            elif server is not None and action < 0.8:
                server.lost_requests += 1
            elif server is not None and action < 0.9 and server.sessions:
                server.end_session(random.choice(list(server.sessions)))


async def check(run: Run, log: Dlog, tails: list[list[Record]]) -> None:
    async with log.open() as reader:
        records = [record async for record in reader.read()]
    positions = [record.position for record in records]
    assert positions == sorted(set(positions))
    present = {record.payload: record.position for record in records}
    assert len(present) == len(records), "a record is in the log twice"
    assert {payload: present.get(payload) for payload in run.acknowledged} == run.acknowledged
    assert run.committed <= set(present)
    assert all(len(batch.intersection(present)) in (0, len(batch)) for batch in run.batches)
    assert [record.sequence_id for record in records] == list(range(len(records)))
    assert [record.txid for record in records] == sorted(record.txid for record in records)
    orders: dict[bytes, list[int]] = {}
    for record in records:
        name, _, number = record.payload.rpartition(b"-")
        orders.setdefault(name, []).append(int(number))
    assert all(numbers == sorted(numbers) for numbers in orders.values())
    segments = await log.segments()
    assert all(segment.is_completed for segment in segments)
    assert [segment.lssn for segment in segments] == list(range(1, len(segments) + 1))
    assert sum(segment.record_count for segment in segments) == len(records)
    for seen in tails:
        assert seen == records


@pytest.mark.parametrize("has_zookeeper", [True, False], ids=["zookeeper", "embedded"])
@pytest.mark.parametrize("seed", SEEDS)
def test_take_overs_under_faults(seed: int, has_zookeeper: bool) -> None:
    async def act(place: Place) -> None:
        run = Run(place, seed)
        log = await place.log()
        await log.create()
        tails: list[list[Record]] = [[] for _ in range(TAILS)]
        tailing = [asyncio.create_task(run.tail(seen)) for seen in tails]
        disturbing = asyncio.create_task(run.disturb())
        await asyncio.gather(run.commit_batches(), *(run.write(number) for number in range(WRITERS)))
        disturbing.cancel()
        await asyncio.gather(disturbing, return_exceptions=True)
        if place.server is not None:
            place.server.lost_replies = place.server.lost_requests = 0
        async with (await place.log()).lead(lock=False) as writer:
            await run.append(writer, b"last-0")
        async with asyncio.timeout(60):
            while any(not seen or seen[-1].payload != b"last-0" for seen in tails):
                run.news.clear()
                await run.news.wait()
        for task in tailing:
            task.cancel()
        await asyncio.gather(*tailing, return_exceptions=True)
        await check(run, (await place.namespace()).log("orders"), tails)
        assert len(run.acknowledged) > 20
        assert run.committed

    in_namespace(act, has_zookeeper=has_zookeeper, bookies=4)
