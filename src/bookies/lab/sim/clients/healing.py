"""Simulated auto-recovery: processes with an auditor and a worker, and the checks of their results at the end of a run.

The processes are clients, so every fault of clients affects them: they are killed at any `await`, paused, and cut off
from the store. After the healing, when every ledger is sealed, they have some time. Then these promises must hold:

    healed      every entry is on all bookies of its write set, by the record, and none of these is lost for good;
                or the ledger is marked, and a process reports why it could not be repaired
    tidy        no other ledger is marked, and no ledger is locked
    thrift      the processes have copied at most `COPIES_MAX` times the entries that have moved or were renewed, plus
                `BROKEN_OFF_MAX` entries of copies that broke off when their process was killed. Copies of operators
                that were killed or ran out of patience do not count
    rest        the automatic balance begins no move when a ledger has been marked, or a bookie has been gone that
                ledgers name, for `REST_S`

Source: client-protocol 8.2 (I-2, I-18; the rest is checked as in every run), metadata 8.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING

from bookies.client.repair.replica_tools import LedgerCheck
from bookies.config import RecoveryConfig
from bookies.errors import BookKeeperError
from bookies.lab.sim.checkers import History
from bookies.lab.sim.checkers.locking import Locking
from bookies.lab.sim.clients.final_checks import recover_ledgers
from bookies.lab.sim.clients.operating import OPERATOR
from bookies.lab.sim.world import SimClient, SimCluster
from bookies.lab.sim.world.sim_metadata import Commit
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.interface import RecoveryStore
from bookies.metadata.shared import BookieNotes
from bookies.model import INVALID_ENTRY_ID, BookieId, LedgerMetadata, fragments_of
from bookies.protocol.quorums.quorum import stored_ids
from bookies.protocol.repair.fragments import ReplicaState, is_named
from bookies.replication.daemon import AutoRecovery

if TYPE_CHECKING:
    from bookies.lab.sim.clients.plan import Plan

HEALER = "replicator-healer"  # its commits are checked like those of replicators
LAST_HEALER = f"{HEALER}0"  # starts after the healing
COPIES_MAX = 3
BROKEN_OFF_MAX = 300
REST_S = 3.0  # longer than any message is delayed, and longer than the lease of a bookie
QUIET_S = 120.0  # virtual time until every ledger must be repaired
LOOK_S = 2.0


class Healers:
    """The auto-recovery processes of one run."""

    def __init__(self, cluster: SimCluster, history: History, plan: Plan) -> None:
        self._cluster = cluster
        self._history = history
        self._config = RecoveryConfig(**plan.healer_settings)  # type: ignore[arg-type]
        self._running: dict[str, AutoRecovery] = {}
        self._settled: dict[str, int] = {}  # process -> entries that it had copied when it last changed a record
        self.locking = Locking(cluster, history.violated, (HEALER, OPERATOR))
        if plan.healers:
            self._listen()
        self.is_over = asyncio.Event()

    def _listen(self) -> None:
        """Receive every commit, in addition to the existing listener."""
        store = self._cluster.store
        earlier = store.on_commit

        def committed(commit: Commit) -> None:
            if earlier is not None:
                earlier(commit)
            self.locking.committed(commit)
            self._count_commit(commit)

        store.on_commit = committed

    def _count_commit(self, commit: Commit) -> None:
        before, after = commit.before, commit.after
        if before is None or after is None:
            return
        if (recovery := self._running.get(commit.author)) is not None:
            self._settled[commit.author] = recovery.worker.totals.entries
            if after.ensembles != before.ensembles and after.ledger_id not in recovery.worker.busy:
                self._check_rest(commit.author, after.ledger_id)
        is_change = len(after.ensembles) > len(before.ensembles)
        if is_change and any(after.ledger_id in recovery.worker.busy for recovery in self._running.values()):
            self._history.count("ensembles changed during a repair")

    def _check_rest(self, author: str, ledger_id: int) -> None:
        """Check a move of the automatic balance: nothing else has to be repaired."""
        self._history.count("replicas moved by auditors")
        # A process may be paused in a copy; so what it has begun counts, not when it ends.
        long_ago_s = self.locking.held_since(author, ledger_id) - REST_S
        if marked := [other for other, since in self.locking.marked.items() if since < long_ago_s]:
            text = f"{author} has moved a replica of ledger {ledger_id}, and ledger {marked[0]} waits for a repair"
            self._history.violated("rest", text)
        gone = [name for name, bookie in self._cluster.bookies.items() if bookie.gone_s and bookie.gone_s < long_ago_s]
        for commits in self._cluster.store.commits.values() if gone else ():
            record = commits[-1].after
            if record is not None and any(is_named(record, BookieId(name)) for name in gone):
                text = f"{author} has moved a replica of ledger {ledger_id}, and ledger {record.ledger_id} names {gone}"
                self._history.violated("rest", text)

    async def heal(self, client: SimClient) -> None:
        """Run auto-recovery until the end of the run. Called as its participant."""
        name = client.name
        recovery = AutoRecovery(client.runtime, client.client, client.driver, self._config, BookieId(name), name)
        self._running[name] = client.recovery = recovery
        client.participant.on_kill(lambda: self._killed(name))
        self._report_copies(name, recovery)
        task = asyncio.get_running_loop().create_task(recovery.run(), name=f"auto-recovery of {name}")
        await self.is_over.wait()
        task.cancel()
        await asyncio.wait((task,))
        self._ended(name)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._history.violated("errors", f"{name}: auto-recovery ended by {error!r}")

    def _report_copies(self, name: str, recovery: AutoRecovery) -> None:
        """Call the cluster's `on_copy` directly after every copy."""

        def charged() -> None:
            if self._cluster.on_copy is not None:
                self._cluster.on_copy(name)

        recovery.pace.on_charge = charged

    def _killed(self, name: str) -> None:
        recovery = self._running.get(name)
        if recovery is not None:
            is_copying = recovery.worker.totals.entries > self._settled.get(name, 0)
            self._history.count("auditors killed", int(recovery.auditor.is_at_work))
            self._history.count("workers killed at work", int(bool(recovery.worker.busy)))
            self._history.count("workers killed in a copy", int(bool(recovery.worker.busy) and is_copying))
        self._ended(name)

    def _ended(self, name: str) -> None:
        recovery = self._running.pop(name, None)
        if recovery is None:
            return
        for counter, number in (
            ("ledgers repaired", recovery.worker.totals.ledgers),
            ("ledgers sealed by repairs", recovery.worker.totals.sealed),
            ("entries copied by repairs", recovery.worker.totals.entries + recovery.auditor.balance.moved.entries),
            ("entries renewed by repairs", recovery.worker.totals.renewed),
        ):
            self._history.count(counter, number)

    # -- the end -------------------------------------------------------------------------------------------------
    async def check(self, client: SimClient) -> None:
        """Wait until all ledgers are healed, or for `QUIET_S`; then report the problems. Called as the participant."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + QUIET_S
        while await self._problems(client, are_reasons_enough=False):
            # Writers may have created ledgers meanwhile, before they ended.
            await recover_ledgers(self._cluster, client, self._history, skips_sealed=True)
            if loop.time() > deadline:
                for invariant, text in await self._problems(client, are_reasons_enough=True):
                    self._history.violated(invariant, text)
                break
            await asyncio.sleep(LOOK_S)

    async def _problems(self, client: SimClient, *, are_reasons_enough: bool) -> list[tuple[str, str]]:
        """Return the ledgers that are not healed or not tidy, as (promise, text).

        `are_reasons_enough`: a process's report of why a ledger cannot be repaired excuses it. If False, the search
        ends at the first problem.
        """
        store = client.driver.recovery
        marked = [ledger_id async for ids in store.marked_ids() for ledger_id in ids]
        draining = list((await BookieNotes(client.driver, client.runtime.clock.wall_ms).read()).draining)
        explained: list[int] = []
        if are_reasons_enough:
            explained = [ledger_id for recovery in self._running.values() for ledger_id in recovery.worker.reports]
        problems = [
            ("tidy", f"ledger {ledger_id} is locked by {owner}") for ledger_id, owner in await self._locks(store)
        ]
        problems += [
            ("tidy", f"ledger {ledger_id} is marked without a reported reason")
            for ledger_id in marked
            if ledger_id not in explained
        ]
        for story in list(self._history.stories.values()):
            if problems and not are_reasons_enough:
                break
            if self._cluster.store.record(story.ledger_id) is None:
                continue  # deleted
            try:
                check = await client.client.administration().check_ledger(story.ledger_id, percentage=100)
            except BookKeeperError as error:
                problems.append(("healed", f"ledger {story.ledger_id} cannot be checked: {error}"))
                continue
            problem = self._problem_of(check, draining)
            if problem and not (story.ledger_id in marked and story.ledger_id in explained):
                problems.append(("healed", f"ledger {story.ledger_id}, without a reported reason: {problem}"))
        return problems

    @staticmethod
    async def _locks(store: RecoveryStore) -> list[tuple[int, str]]:
        """Return lasting locks, as (ledger, owner). Waiting or surplus ledgers are locked briefly now and then."""
        locks = await store.locks()
        if locks:
            await asyncio.sleep(LOOK_S / 2)
            later = await store.locks()
            locks = {ledger_id: owner for ledger_id, owner in locks.items() if later.get(ledger_id) == owner}
        return list(locks.items())

    def check_thrift(self) -> None:
        """Check "thrift" after all processes have ended: compare the copied entries with those moved or renewed."""
        moved = 0
        for commits in self._cluster.store.commits.values():
            for commit in commits:
                if (
                    commit.author.startswith((HEALER, OPERATOR))
                    and commit.before is not None
                    and commit.after is not None
                ):
                    moved += _moved(commit.before, commit.after)
        self._history.count("entries moved by repairs", moved)
        copied = self._history.counts.get("entries copied by repairs", 0)
        needed = moved + self._history.counts.get("entries renewed by repairs", 0)
        if copied > COPIES_MAX * needed + BROKEN_OFF_MAX:
            self._history.violated("thrift", f"repairs have copied {copied} entries, and had to copy {needed}")

    async def check_nothing_left(self) -> None:
        """Check "tidy" after all processes have ended in an orderly way: they have left no lock and no vote.

        The bookies continue, and one that deletes surplus copies holds locks briefly.
        """
        driver = MemoryDriver(self._cluster.memory)
        await driver.open()
        for ledger_id, owner in await self._locks(driver.recovery):
            self._history.violated("tidy", f"ledger {ledger_id} is still locked by {owner}")
        if (leader := await driver.recovery.auditor()) is not None:
            self._history.violated("tidy", f"{leader} is the auditor, and has ended")
        await driver.close()
        self._history.count("most requests of a process in 10 s", self.locking.most_requests)

    def _problem_of(self, check: LedgerCheck, draining: Collection[str]) -> str:
        """Return the first defect of a ledger; "" if it has none."""
        if not check.metadata.is_closed:
            return "it is not sealed"
        for verdict in check.fragments:
            for replica in verdict.replicas:
                is_needed = verdict.fragment.first_stored(replica.position) != INVALID_ENTRY_ID
                if is_needed and replica.state is not ReplicaState.OK:
                    first, last = verdict.fragment.first, verdict.fragment.last
                    return f"entries {first} to {last} on {replica.bookie}: {replica.error}"
        leaving = [name for name, bookie in self._cluster.bookies.items() if bookie.is_gone or name in draining]
        named = [name for name in leaving if is_named(check.metadata, BookieId(name))]
        return f"its record names {', '.join(named)}, which is gone, or to be emptied" if named else ""


def _moved(before: LedgerMetadata, after: LedgerMetadata) -> int:
    """Return the number of replicas that a commit moved to another bookie."""
    if not after.is_closed or not before.is_closed:
        return 0
    count = 0
    for (first, last, old), (_, _, new) in zip(
        fragments_of(before, before.last_entry_id), fragments_of(after, after.last_entry_id), strict=True
    ):
        for position in range(len(old)):
            if old[position] != new[position]:
                count += len(stored_ids(position, first, last, len(old), after.write_quorum))
    return count
