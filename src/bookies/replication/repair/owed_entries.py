"""Fetches the entries that a bookie owes: those that it must hold and has lost, for example with a disk.

A bookie that has lost a disk puts its ledgers into limbo and denies none of their entries. This part runs in the same
process. For each ledger in limbo it compares the ledger's record with the bookie's own index, and copies exactly the
missing entries from other replicas to this bookie, with `ReplicaTools.renew_entries`. A ledger leaves limbo when it is
closed and the bookie holds all entries that it must.

The limbo of a ledger is stored with its index, and a fetched entry is stored like any other. So an interruption at any
moment costs no more than the copies in progress. What cannot be fetched stays owed, with the reason: a source is away,
another process has the ledger's lock, or a writer may still add to it. It is tried again later. A lock also keeps its
ledger in limbo: a repair may have written entries here, and names this bookie in the record only at its end.

Source: storage 10.2; pains 20.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from bookies.bookie.server import BookieServer
from bookies.client.repair.replica_tools import ReplicaTools
from bookies.client.repair.replication import Account, CopyProgress
from bookies.errors import BookKeeperError, ClientClosed, LedgerNotFound, MetadataCorrupt, MetadataError
from bookies.model import BookieId
from bookies.protocol.pacing import Backoff, RateLimit
from bookies.protocol.repair.owed import Owed, owed_of, remaining_s, totals_of
from bookies.runtime.events import Events
from bookies.runtime.tasks import all_of

SETTLE_S = 0.1  # between two looks whether the bookie knows yet which ledgers it may have had
AGAIN_S, AGAIN_S_MAX = 1.0, 30.0  # before the next attempt at ledgers that are still in limbo
LISTED_MAX, RUNS_MAX = 1_000, 20  # ledgers in a description, runs of each
DELETED, OPEN = "it is deleted; garbage collection removes it", "its writer has not closed it"
LOCKED = "another process repairs it, perhaps with this bookie"


class OwedEntries:
    """The debt of one bookie, and its repair. `pace`: limits the bytes. `at_once`: ledgers at a time.

    `owed`: by ledger, as last determined. `waits`: why a ledger could not leave limbo. The counts are `server.owed`.
    """

    def __init__(
        self, server: BookieServer, tools: ReplicaTools, pace: RateLimit, at_once: int, events: Events
    ) -> None:
        self.owed: dict[int, Owed] = {}
        self.waits: dict[int, str] = {}
        self._account = Account(pace, self._copied)
        self._counts = server.owed
        self._counts.describe = self.describe
        self._before = server.owed.fetched_entries, server.owed.fetched_size
        self._began_s: float | None = None
        self._store = server.store
        self._bookie = BookieId(server.bookie_id)
        self._tools = tools
        self._at_once = at_once
        self._doubts: dict[int, int] = {}  # those of the limbo, before what is owed was determined
        self._locked: frozenset[int] = frozenset()
        self._events = events

    async def run(self) -> None:
        """Fetch what is owed until no ledger is in limbo.

        Raises: `MetadataError`, `ClientClosed`; StorageError when the bookie has stopped.
        """
        self._counts.is_known = not len(self._store.limbo)
        backoff = Backoff(AGAIN_S, AGAIN_S_MAX, self._tools.access.runtime.random.uniform)
        while count := len(self._store.limbo):
            if self._store.has_unknown_ledgers:
                await asyncio.sleep(SETTLE_S)
                continue
            await self._run_once()
            if len(self._store.limbo) < count:
                backoff.reset()
            if len(self._store.limbo):
                await asyncio.sleep(backoff.next_s())

    def describe(self) -> dict[str, str]:
        """Return what is owed of each ledger as text, for operators."""
        return {str(ledger_id): self._text(item) for ledger_id, item in sorted(self.owed.items())[:LISTED_MAX]}

    def _text(self, item: Owed) -> str:
        runs = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in item.runs[:RUNS_MAX])
        text = f"entries {runs}{', ...' * (len(item.runs) > RUNS_MAX)}" if runs else "no entry"
        wait = self.waits.get(item.ledger_id)
        return f"{text}; waits: {wait}" if wait else text

    def _copied(self, news: CopyProgress) -> None:
        """Count copies, and forecast the rest."""
        counts = self._counts
        counts.fetched_entries, counts.fetched_size = self._before[0] + news.entries, self._before[1] + news.size
        if self._began_s is not None:
            elapsed_s = asyncio.get_running_loop().time() - self._began_s
            left = counts.left.size - (news.size - self._passed_size)
            counts.remaining_s = remaining_s(max(0, left), news.size - self._passed_size, elapsed_s)

    _passed_size = 0  # bytes that were fetched before the present pass

    async def _run_once(self) -> None:
        """Determine what is owed of every ledger in limbo, and fetch it."""
        self.owed = {ledger_id: item for ledger_id, item in self.owed.items() if ledger_id in self._store.limbo}
        self.waits.clear()
        # Before the records: a repair that has ended since has changed the record.
        self._locked = frozenset(await self._tools.access.driver.recovery.locked_ids())
        await self._each(self._determine, list(self._store.limbo))
        await self._settle()
        self._counts.is_known = True
        self._began_s, self._passed_size = asyncio.get_running_loop().time(), self._account.totals.size
        left = self._counts.left
        self._events.info("owed.found", ledgers=left.ledgers, entries=left.entries, bytes=left.size)
        await self._each(self._fetch, [ledger_id for ledger_id, item in self.owed.items() if item.runs])
        await self._settle()
        self._counts.remaining_s = None
        fetched = self._account.totals
        self._events.info("owed.fetched", entries=fetched.entries, bytes=fetched.size, waiting=len(self.waits))

    async def _settle(self) -> None:
        """Let the ledgers of which nothing is owed leave limbo."""
        settled = [
            ledger_id for ledger_id, item in self.owed.items() if item.is_settled and ledger_id not in self._locked
        ]
        await self._store.end_limbo({ledger_id: self._doubts[ledger_id] for ledger_id in settled})
        for ledger_id in settled:
            del self.owed[ledger_id], self._doubts[ledger_id]
        self._counts.left = totals_of(self.owed.values())

    async def _each(self, work: Callable[[int], Awaitable[None]], ledger_ids: Sequence[int]) -> None:
        """Do some work for each of these ledgers, several at a time. A failure lets only its ledger wait."""
        waiting = iter(ledger_ids)

        async def lane() -> None:
            for ledger_id in waiting:
                try:
                    await work(ledger_id)
                except LedgerNotFound:
                    self.waits[ledger_id] = DELETED
                except BookKeeperError as error:
                    if isinstance(error, ClientClosed | MetadataError) and not isinstance(error, MetadataCorrupt):
                        raise
                    self.waits[ledger_id] = str(error)

        await all_of(lane() for _ in range(self._at_once))

    async def _determine(self, ledger_id: int) -> None:
        """Compare the ledger's record with the bookie's own index."""
        before = self.owed.get(ledger_id)
        if before is not None and before.is_settled:
            del self.owed[ledger_id]  # This attempt may fail, and what an earlier one has found ends no limbo.
        doubts = self._store.limbo.doubts.get(ledger_id, 0)
        # A server that lags behind may not know yet that the record names the bookie.
        [record] = await self._tools.access.driver.current_ledgers([ledger_id])
        if record is None:
            raise LedgerNotFound("it is deleted", ledger_id=ledger_id)
        if isinstance(record, MetadataCorrupt):
            raise record
        fragments = await self._tools.fragments_of(record)
        held = await self._store.held_entries(ledger_id)
        item = owed_of(record.metadata, fragments, self._bookie, held)
        self._counts.found(before, item)
        self.owed[ledger_id], self._doubts[ledger_id] = item, doubts
        if not item.is_closed:
            self.waits[ledger_id] = OPEN
        elif item.is_settled and ledger_id in self._locked:
            self.waits[ledger_id] = LOCKED

    async def _fetch(self, ledger_id: int) -> None:
        """Copy the missing entries to this bookie under the ledger's lock, and look again."""
        account = self._account
        async with self._tools.locked(ledger_id):
            account.totals.renewed += await self._tools.renew_entries(
                ledger_id, self._bookie, self.owed[ledger_id].runs, pace=account.pace, progress=account.absorb()
            )
        await self._determine(ledger_id)
