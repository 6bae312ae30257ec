"""Random histories of marks, locks and elections, with lost answers, lost sessions and callers that give up.

Whatever happens: no damage is forgotten that was noticed during a repair; in the end nothing is locked, nobody's vote
is left behind, and of those who stand one leads.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from tests.conformance.test_metadata import expire
from tests.unit.metadata.shared.test_recovery import Server, is_none, make, until

from bookies.errors import MetadataError, SessionExpired
from bookies.lab.sim.world.loop import SimLoop
from bookies.metadata.interface import RecoveryStore
from bookies.metadata.interface.recovery_store import Candidacy
from bookies.model import BookieId

LEDGERS = 3
STEPS = 40  # of each participant
PATIENCE_S = 60.0
_BOOKIES = [BookieId(f"bk-{number}:3181") for number in range(40)]


class World:
    """`news`: for each ledger, when marks that were new were begun and had succeeded."""

    def __init__(self, store: str, seed: int) -> None:
        self.random = Random(f"{store}/{seed}")
        self.server: Server
        self.server, self.make = make(store)
        self.loop = SimLoop()
        self.news: dict[int, list[tuple[float, float]]] = {ledger_id: [] for ledger_id in range(LEDGERS)}
        self.repaired = 0

    def play(self) -> None:
        try:
            self.loop.run(self._main(), deadline_s=3600.0)
            assert not self.loop.errors, self.loop.errors
        finally:
            self.loop.close()

    async def _main(self) -> None:
        drivers: list[Any] = [self.make() for _ in range(3)]
        for driver in drivers:
            await driver.open()
        trouble = asyncio.ensure_future(self._trouble(drivers))
        await asyncio.gather(*(self._participant(driver) for driver in drivers))
        trouble.cancel()
        self._heal()
        async with asyncio.timeout(PATIENCE_S):
            observer = self.make()
            await observer.open()
            await until(lambda: is_none(observer.recovery.locks()))
            await until(lambda: is_none(observer.recovery.auditor()))
            standing = [await _stand(driver.recovery, _BOOKIES[at]) for at, driver in enumerate(drivers)]

            async def one_leads() -> bool:
                leaders = [bookie for bookie, each in zip(_BOOKIES, standing, strict=False) if each.is_leader]
                return leaders == [await observer.recovery.auditor()]

            await until(one_leads)
            for driver in (*drivers, observer):
                await driver.close()

    def _heal(self) -> None:
        self.server.is_silent = False
        self.server.lost_requests = self.server.lost_replies = 0

    async def _trouble(self, drivers: list[Any]) -> None:
        random = self.random
        while True:
            await asyncio.sleep(random.expovariate(2.0))
            kind = random.randrange(4)
            if kind == 0:
                self.server.lost_requests = random.randint(1, 3)
            elif kind == 1:
                self.server.lost_replies = random.randint(1, 3)
            elif kind == 2:
                driver = random.choice(drivers)
                if driver.session_id is not None:
                    self._heal()
                    await expire(driver)
            else:
                self.server.is_silent = True
                await asyncio.sleep(random.uniform(0.1, 1.0))
                self.server.is_silent = False

    # -- participants --------------------------------------------------------------------------------------------
    async def _participant(self, driver: Any) -> None:
        random, recovery = self.random, driver.recovery
        candidacy: Candidacy | None = None
        for _ in range(STEPS):
            await asyncio.sleep(random.expovariate(5.0))
            kind = random.randrange(10)
            operation: Any
            if kind < 3:
                operation = self._mark(recovery, random.randrange(LEDGERS))
            elif kind < 8:
                operation = self._repair(recovery, random.randrange(LEDGERS))
            elif candidacy is None:
                operation = recovery.campaign(random.choice(_BOOKIES), lambda: None)
            else:
                operation, candidacy = candidacy.resign(), None
            found = await self._perhaps(operation)
            candidacy = found if isinstance(found, Candidacy) else candidacy
        if candidacy is not None:
            await candidacy.resign()

    async def _perhaps(self, operation: Any) -> Any:
        """Give up, now and then."""
        task = asyncio.ensure_future(operation)
        if self.random.random() < 0.2:
            await asyncio.sleep(0)
            for _ in range(self.random.randrange(12)):
                await asyncio.sleep(0)
            task.cancel()
        try:
            return await task
        except (MetadataError, asyncio.CancelledError):
            return None

    async def _mark(self, recovery: RecoveryStore, ledger_id: int) -> None:
        begun = self.loop.time()
        if await recovery.mark(ledger_id, [self.random.choice(_BOOKIES)], 1):
            self.news[ledger_id].append((begun, self.loop.time()))

    async def _repair(self, recovery: RecoveryStore, ledger_id: int) -> None:
        lock = await recovery.lock(ledger_id, "host.example", needs_mark=self.random.random() < 0.8)
        if lock is None:
            return
        locked_at = self.loop.time()
        try:
            await asyncio.sleep(self.random.expovariate(2.0))
            if lock.mark_version is not None and self.random.random() < 0.7:
                ended_at = self.loop.time()
                if await recovery.done(lock):
                    self.repaired += 1
                    forgotten = [each for each in self.news[ledger_id] if locked_at < each[0] and each[1] < ended_at]
                    assert not forgotten, f"ledger {ledger_id} was marked at {forgotten}, after {locked_at}"
        finally:
            await recovery.unlock(lock)


async def _stand(recovery: RecoveryStore, bookie: BookieId) -> Candidacy:
    try:
        return await recovery.campaign(bookie, lambda: None)
    except SessionExpired:  # It had not heard of that.
        return await recovery.campaign(bookie, lambda: None)


@pytest.mark.parametrize("store", ["memory", "zookeeper", "etcd"])
def test_histories(store: str) -> None:
    repaired = 0
    for seed in range(12):
        world = World(store, seed)
        try:
            world.play()
        except BaseException as error:
            error.add_note(f"{store}, seed {seed}")
            raise
        repaired += world.repaired
    assert repaired > 50
