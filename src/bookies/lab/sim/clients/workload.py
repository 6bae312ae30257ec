"""Workload on ledgers: writers, recoveries at any time and several at once, readers, and other clients.

Every operation goes through the public client and is recorded in the `History`. The acts of writers are in
`writing.py`, those of readers in `reading.py`, and those of clients without the password in `wrong_password.py`. This
file adds recoveries, deletions, re-replication of healthy bookies, and entries that another client's recovery has left
after the end of a ledger (D-5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random

from bookies.client.read import LedgerReader
from bookies.errors import BookKeeperError, FragmentNotFinished
from bookies.lab.sim.checkers import History, Story
from bookies.lab.sim.clients.emptying import EMPTIER, Emptiers
from bookies.lab.sim.clients.final_checks import check_ledgers, recover_ledgers
from bookies.lab.sim.clients.healing import HEALER, LAST_HEALER, Healers
from bookies.lab.sim.clients.offloading import OFFLOADER, Offloaders, plant
from bookies.lab.sim.clients.operating import OPERATOR, Operators
from bookies.lab.sim.clients.plan import Plan
from bookies.lab.sim.clients.reading import Readers
from bookies.lab.sim.clients.roles import Roles
from bookies.lab.sim.clients.writing import Writers
from bookies.lab.sim.clients.wrong_password import Intruders
from bookies.lab.sim.world import SimClient, SimCluster
from bookies.model import BookieId

PLACEMENT = ("placement", "placement_rule", "fault_domains")  # also of the last healer, which has other time-outs
PLANTED_MAX = 3  # entries after an end
OWED_SHARE = 1.05  # of the entries owed, that bookies may fetch
OWED_S = 120.0  # virtual time until bookies must have fetched what they owe


class Workload(Roles):
    """All clients of one run with ledgers. Runs the plan until `stop`."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, plan: Plan) -> None:
        super().__init__(cluster, history, random, is_replaced=plan.is_replaced)
        self._plan = plan
        self._writers = Writers(self, plan)
        self.readers = Readers(self, plan)
        self._intruders = Intruders(self)
        self._healers = Healers(cluster, history, plan)
        self._operators = Operators(self, cluster, history, plan.operate_ms, repairs=plan.repairs)
        self._offloaders = Offloaders(self, cluster, history, self.readers, plan.offload_ms)
        self._emptiers = Emptiers(self, cluster, history, plan.empty_ms)
        if plan.trusting:
            cluster.store.trusts = lambda host: host.startswith(plan.trusting)
        self._waiting: list[asyncio.Future[None]] = []  # recoveries that have not begun

    def start(self) -> None:
        plan = self._plan
        self.fill("writer", plan.writers, self._writers.write_ledgers, plan.writer_settings)
        self.fill("writer-veteran", plan.veterans, self._writers.serve)
        self.fill("recoverer", plan.recoverers, self._recover)
        self.fill("reader", plan.readers, partial(self._visit, self.readers.read), plan.reader_settings)
        self.fill("deleter", plan.deleters, self._delete)
        self.fill("replicator", plan.replicators, self._replicate)
        self.fill("foreigner", plan.foreigners, self._plant)
        self.fill("intruder", plan.intruders, partial(self._visit, self._intruders.intrude))
        self.fill(HEALER, plan.healers, self._healers.heal)
        self.fill(OPERATOR, plan.operators, self._operators.operate)
        self.fill(EMPTIER, plan.emptiers, self._emptiers.empty)
        self._offloading = self.fill(OFFLOADER, plan.offloaders, self._offloaders.offload)

    async def check(self) -> None:
        """Recover and read every ledger and check its replicas, while the clients finish their work."""
        self.healed.set()
        finishing = asyncio.create_task(self.finish())
        if self._plan.healers:
            await self._wait_healed()
        if self._plan.offloaders:
            await self._restore_all()
        if self.cluster.fetches_owed:
            await self._wait_fetched()
        await check_ledgers(self.cluster, self.history, self.readers)
        await finishing
        if self._plan.healers:
            self._healers.check_thrift()
            await self._healers.check_nothing_left()

    async def _wait_healed(self) -> None:
        """Seal every ledger, and let auto-recovery repair the damage that the faults have left."""
        rule = {name: self.cluster.client_settings[name] for name in PLACEMENT if name in self.cluster.client_settings}
        healer, judge = self.cluster.new_client(LAST_HEALER, rule), self.cluster.new_client("judge", rule)
        await healer.participant.create_task(self.cluster.open_client(healer))
        healing = healer.participant.create_task(self._healers.heal(healer), name="the last healer")

        async def watch() -> None:
            await self.cluster.open_client(judge)
            await recover_ledgers(self.cluster, judge, self.history)
            await self._operators.settle(judge)
            await self._healers.check(judge)

        await judge.participant.create_task(watch(), name="judge")
        self._healers.is_over.set()
        await healing

    async def _wait_fetched(self) -> None:
        """Seal every ledger, and let the bookies fetch what they owe ("owed")."""
        judge = self.cluster.new_client("judge", {})

        async def watch() -> None:
            await self.cluster.open_client(judge)
            loop = asyncio.get_running_loop()
            deadline = loop.time() + OWED_S
            is_over = False
            while not is_over:
                await recover_ledgers(self.cluster, judge, self.history, skips_sealed=True)
                await asyncio.sleep(1.0)
                is_over = not self._owe_sealed_ledgers() or loop.time() > deadline

        await judge.participant.create_task(watch(), name="judge of owed entries")
        if names := self._owe_sealed_ledgers():
            text = f"{', '.join(names)} still owe entries {OWED_S:.0f} s after the healing"
            self.history.violated("owed", text)
        lives = [counts for bookie in self.cluster.bookies.values() for counts in bookie.owed]
        owed, fetched = sum(life.found_entries for life in lives), sum(life.fetched_entries for life in lives)
        self.history.count("entries owed", owed)
        self.history.count("owed entries fetched", fetched)
        if fetched > OWED_SHARE * owed:
            self.history.violated("thrift", f"bookies have fetched {fetched} entries, and owed {owed}")

    def _owe_sealed_ledgers(self) -> list[str]:
        """Return the bookies that may owe entries of sealed ledgers. A ledger whose creator was killed stays open."""
        record_of, names = self.cluster.store.record, list[str]()
        for name in self.cluster.owing:
            server = self.cluster.bookies[name].server
            is_settled = server is not None and not server.store.has_unknown_ledgers
            records = [record_of(number) for number in server.store.limbo] if server is not None else []
            if not is_settled or any(record is not None and record.is_closed for record in records):
                names.append(name)
        return names

    async def _restore_all(self) -> None:
        """Restore what the bookies were allowed to delete, so that the final checks find it on them."""
        for task in self._offloading:
            await asyncio.shield(task)
        last = self.cluster.new_client(f"{OFFLOADER}0")

        async def restore() -> None:
            await self.cluster.open_client(last)
            await self._offloaders.settle(last)

        await last.participant.create_task(restore(), name="the last restores")

    def stop(self) -> None:
        super().stop()
        self._emptiers.stop()

    def nudge(self) -> None:
        """Let the planned recoveries that wait for their time begin now."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def departed(self, client: SimClient) -> None:
        await self._writers.departed(client)

    async def _sleep_or_nudge(self, mean_ms: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            async with asyncio.timeout(self.random.expovariate(1 / mean_ms) / 1000):
                await future
        except TimeoutError:
            return

    def _choose(self) -> Story | None:
        """Choose one of the six youngest ledgers."""
        stories = list(self.history.stories.values())
        return self.random.choice(stories[-6:]) if stories else None

    async def _visit(self, act: Callable[[SimClient, Story], Awaitable[None]], client: SimClient) -> None:
        """Act on some ledgers, one after the other."""
        for _ in range(self.random.randint(1, self._plan.reads_max)):
            await self.sleep(self._plan.read_ms)
            story = self._choose()
            if story is not None and not self.is_stopping:
                await act(client, story)

    # -- deleting ------------------------------------------------------------------------------------------------
    async def _delete(self, client: SimClient) -> None:
        """Delete a ledger, mostly one that has ended."""
        await self.sleep(self._plan.delete_ms)
        stories = [story for story in self.history.stories.values() if story.ends or self.random.random() < 0.1]
        if not stories or self.is_stopping:
            return
        story = self.random.choice(stories)
        try:
            await client.client.delete(story.ledger_id)
            self.history.count("ledgers deleted")
        except BookKeeperError as error:
            self.history.failed(client.name, f"deletion of {story.ledger_id}", error)

    # -- replicating ---------------------------------------------------------------------------------------------
    async def _replicate(self, client: SimClient) -> None:
        """Move the data of a healthy bookie to other bookies, or one fragment."""
        await self.sleep(self._plan.recovery_ms)
        if self.is_stopping:
            return
        if self._plan.fragment_probability and self.random.random() < self._plan.fragment_probability:
            await self._move_fragment(client)
            return
        bookie = BookieId(self.random.choice(list(self.cluster.bookies)))
        skips_open = self.random.random() < 0.7
        try:
            report = await client.client.administration().recover_bookies([bookie], skip_open=skips_open, force=True)
            self.history.count("fragments replicated", len(report.moves))
        except BookKeeperError as error:
            self.history.failed(client.name, f"replication of {bookie}", error)

    async def _move_fragment(self, client: SimClient) -> None:
        """Copy one fragment of a ledger to other bookies, or again to its own.

        Prefer a ledger that is being written, and the fragment before its last one.
        """
        stories = list(self.history.stories.values())
        if not stories:
            return
        story = self.random.choice([story for story in stories if not story.is_over][-3:] or stories[-6:])
        administration = client.client.administration()
        try:
            verdicts = (await administration.check_ledger(story.ledger_id)).fragments
            if not verdicts:
                return
            fragment = self.random.choice((*verdicts, *verdicts[-2:-1] * len(verdicts))).fragment
            positions = range(len(fragment.ensemble))
            chosen = sorted(self.random.sample(positions, self.random.randint(1, min(2, len(positions)))))
            await administration.replicate_fragment(fragment, chosen, in_place=self.random.random() < 0.2)
            self.history.count("fragments moved")
            if not fragment.is_finished:
                self.history.violated("I-18", f"{fragment} was copied, although it may still receive entries")
        except FragmentNotFinished:
            self.history.count("unfinished fragments")
        except BookKeeperError as error:
            self.history.failed(client.name, f"replication of a fragment of {story.ledger_id}", error)

    # -- planting ------------------------------------------------------------------------------------------------
    async def _plant(self, _: SimClient) -> None:
        """Leave entries after the end of a ledger, as a recovery of another client that lost the race. The header of
        each announces the entry before it as confirmed (D-5).

        A reader that has the ledger open and does not know its end would accept them. So only ledgers without a living
        reader are chosen.
        """
        await self.sleep(self._plan.recovery_ms)
        closed = [
            story
            for story in self.history.stories.values()
            if story.ends and not any(reader in self.cluster.clients for reader in story.handles)
        ]
        if not closed or self.is_stopping:
            return
        story = self.random.choice(closed[-6:])
        record = self.history.record_of(story.ledger_id)
        if record is None or not record.is_closed:
            return
        for entry_id in range(record.last_entry_id + 1, record.last_entry_id + 1 + self.random.randint(1, PLANTED_MAX)):
            for name in record.last_ensemble:
                if self.random.random() < 0.8:
                    plant(self.cluster.bookies[name], record, story, entry_id, entry_id - 1)
                    self.history.count("entries behind an end")

    # -- recovering ----------------------------------------------------------------------------------------------
    async def _recover(self, client: SimClient) -> None:
        for _ in range(self.random.randint(1, self._plan.recoveries_max)):
            await self._sleep_or_nudge(self._plan.recovery_ms)
            story = self._choose()
            if story is None or self.is_stopping:
                continue
            acknowledged = story.confirmed
            story.recoveries[client.name] = story.recoveries.get(client.name, 0) + 1
            try:
                ledger = await client.client.recover(story.ledger_id, password=story.password)
            except BookKeeperError as error:
                self.history.failed(client.name, f"recovery of {story.ledger_id}", error)
                self.history.count("failed recoveries")
                continue
            self.history.count("recoveries")
            self._note_end(client, story, ledger, acknowledged)
            await ledger.close()

    def _note_end(self, client: SimClient, story: Story, ledger: LedgerReader, acknowledged: int) -> None:
        if not ledger.metadata.is_closed:
            self.history.violated("I-26", f"recovery of ledger {story.ledger_id} succeeded, but it is not closed")
        if ledger.last_add_confirmed < acknowledged - 1:
            self.history.violated("I-26", f"ledger {story.ledger_id} recovered to {ledger.last_add_confirmed}")
        self.history.ended(story, client.name, ledger.metadata.last_entry_id, ledger.metadata.length)
