"""Auto-recovery among the others: processes with an auditor and a worker, and what must hold of them in the end.

They are clients like all others, so every fault that meets clients meets them: killed at any `await`, paused, cut off
from the store. When everything is healed and every ledger is sealed they have some time, and then

    healed      every entry is on all bookies of its write set, by the record, and none of those is gone for good;
                or the ledger is marked, and a process says why it could not be repaired
    tidy        nothing else is marked, and nothing is locked
    thrift      what they have copied is not more than `COPIES_MAX` times what has moved or was renewed, beside
                `BROKEN_OFF_MAX` entries of copies that broke off with those who made them

Source: client-protocol 8.2 (I-2, I-18; the rest is checked as in every run), metadata 8.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING

from bookies.client.repair.administration import LedgerCheck
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
from bookies.protocol.repair.fragments import ReplicaState, is_stored_on
from bookies.replication.daemon import AutoRecovery

if TYPE_CHECKING:
    from bookies.lab.sim.clients.plan import Plan

HEALER = "replicator-healer"  # whose commits are checked as those of replicators are
LAST_HEALER = f"{HEALER}0"  # which begins when everything else is healed
COPIES_MAX = 3
BROKEN_OFF_MAX = 300
QUIET_S = 120.0  # virtual time until everything has to be healed
LOOK_S = 2.0


class Healers:
    """The processes of one run."""

    def __init__(self, cluster: SimCluster, history: History, plan: Plan) -> None:
        self._cluster = cluster
        self._history = history
        self._config = RecoveryConfig(**plan.healer_settings)  # type: ignore[arg-type]
        self._running: dict[str, AutoRecovery] = {}
        self._settled: dict[str, int] = {}  # entries that a process had copied when it changed a record last
        self.locking = Locking(cluster, history.violated, (HEALER, OPERATOR))
        if plan.healers:
            self._listen()
        self.is_over = asyncio.Event()

    def _listen(self) -> None:
        """Hear of every commit, beside those who do already."""
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
        is_change = len(after.ensembles) > len(before.ensembles)
        if is_change and any(after.ledger_id in each.worker.busy for each in self._running.values()):
            self._history.count("ensembles changed during a repair")

    async def heal(self, client: SimClient) -> None:
        """Take part until everything is over. Called as its participant."""
        name = client.name
        recovery = AutoRecovery(client.runtime, client.client, client.driver, self._config, BookieId(name), name)
        self._running[name] = client.recovery = recovery
        client.participant.on_kill(lambda: self._killed(name))
        self._tell_copies(name, recovery)
        task = asyncio.get_running_loop().create_task(recovery.run(), name=f"auto-recovery of {name}")
        await self.is_over.wait()
        task.cancel()
        await asyncio.wait((task,))
        self._ended(name)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._history.violated("errors", f"{name}: auto-recovery ended by {error!r}")

    def _tell_copies(self, name: str, recovery: AutoRecovery) -> None:
        """Tell the cluster's `on_copy` when something was copied, and before anything else is done."""
        spent = recovery.pace.spent

        def told_spent(size: int, now: float) -> float:
            if self._cluster.on_copy is not None:
                self._cluster.on_copy(name)
            return spent(size, now)

        recovery.pace.spent = told_spent  # type: ignore[method-assign]

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
        for what, number in (
            ("ledgers repaired", recovery.worker.totals.ledgers),
            ("ledgers sealed by repairs", recovery.worker.totals.sealed),
            ("entries copied by repairs", recovery.worker.totals.entries),
            ("entries renewed by repairs", recovery.worker.totals.renewed),
        ):
            self._history.count(what, number)

    # -- the end -------------------------------------------------------------------------------------------------
    async def check(self, client: SimClient) -> None:
        """Wait until all is well, or has had time enough; then say what is not. Called as the participant."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + QUIET_S
        while await self._problems(client, are_reasons_enough=False):
            # What a writer has made meanwhile, before it ended.
            await recover_ledgers(self._cluster, client, self._history, skips_sealed=True)
            if loop.time() > deadline:
                for invariant, text in await self._problems(client, are_reasons_enough=True):
                    self._history.violated(invariant, text)
                break
            await asyncio.sleep(LOOK_S)

    async def _problems(self, client: SimClient, *, are_reasons_enough: bool) -> list[tuple[str, str]]:
        """`are_reasons_enough`: whether it is no problem that something is not done, if somebody says why. If not, the
        first problem will do."""
        store = client.driver.recovery
        marked = [ledger_id async for ids in store.marked_ids() for ledger_id in ids]
        draining = list((await BookieNotes(client.driver, client.runtime.clock.wall_ms).read()).draining)
        explained: list[int] = []
        if are_reasons_enough:
            explained = [each for recovery in self._running.values() for each in recovery.worker.reports]
        found = [("tidy", f"ledger {each} is locked by {owner}") for each, owner in await self._locks(store)]
        found += [("tidy", f"ledger {each} is marked, and nobody says why") for each in marked if each not in explained]
        for story in list(self._history.stories.values()):
            if found and not are_reasons_enough:
                break
            if self._cluster.store.record(story.ledger_id) is None:
                continue  # deleted
            try:
                check = await client.client.administration().check_ledger(story.ledger_id, percentage=100)
            except BookKeeperError as error:
                found.append(("healed", f"ledger {story.ledger_id} cannot be checked: {error}"))
                continue
            problem = self._problem_of(check, draining)
            if problem and not (story.ledger_id in marked and story.ledger_id in explained):
                found.append(("healed", f"ledger {story.ledger_id}, of which nobody says why: {problem}"))
        return found

    @staticmethod
    async def _locks(store: RecoveryStore) -> list[tuple[int, str]]:
        """Those that last: what waits for something, or is surplus, is looked at for a moment now and then."""
        found = await store.locks()
        if found:
            await asyncio.sleep(LOOK_S / 2)
            later = await store.locks()
            found = {ledger_id: owner for ledger_id, owner in found.items() if later.get(ledger_id) == owner}
        return list(found.items())

    def check_thrift(self) -> None:
        """When all processes have ended: what was copied, beside what records and bookies have got."""
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
        """When all processes have ended in the orderly way: no lock of theirs is in the store, and no vote.

        Bookies go on, and one that deletes surplus copies holds locks for a moment.
        """
        looker = MemoryDriver(self._cluster.memory)
        await looker.open()
        for ledger_id, owner in await self._locks(looker.recovery):
            self._history.violated("tidy", f"ledger {ledger_id} is still locked by {owner}")
        if (leader := await looker.recovery.auditor()) is not None:
            self._history.violated("tidy", f"{leader} is the auditor, and has ended")
        await looker.close()
        self._history.count("most requests of a process in 10 s", self.locking.most_requests)

    def _problem_of(self, check: LedgerCheck, draining: Collection[str]) -> str:
        """What a ledger lacks; nothing if it is whole."""
        if not check.metadata.is_closed:
            return "it is not sealed"
        for verdict in check.fragments:
            for replica in verdict.replicas:
                is_needed = verdict.fragment.first_stored(replica.position) != INVALID_ENTRY_ID
                if is_needed and replica.state is not ReplicaState.OK:
                    first, last = verdict.fragment.first, verdict.fragment.last
                    return f"entries {first} to {last} on {replica.bookie}: {replica.error}"
        gone = [name for name, bookie in self._cluster.bookies.items() if bookie.is_gone or name in draining]
        named = [name for name in gone if any(name in ensemble for _, ensemble in check.metadata.ensembles)]
        held = [name for name in named if is_stored_on(check.metadata, BookieId(name))]
        return f"its record names {', '.join(held)}, which is gone, or to be emptied" if held else ""


def _moved(before: LedgerMetadata, after: LedgerMetadata) -> int:
    """Entries that are to be on another bookie now."""
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
