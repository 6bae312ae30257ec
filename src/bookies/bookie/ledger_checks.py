"""Checks of records before ordinary adds to former ledgers (`former_ledgers.py`): the adds wait, in order.

The first add of a ledger causes a read of its record, and later ones wait with it. One read serves all ledgers that
wait when it begins. If the record is OPEN, and names this bookie for the entry, the adds are stored like any others, so
a fence that arrived meanwhile refuses them. The ledger is not checked again while it stays in memory.

The metadata store may be unavailable. An add waits `WAIT_S` at most, and then fails so that its writer can use another
bookie. Waiting adds count as accepted input, which bounds their memory.

Source: storage 9.7 (F-44), wire-protocol 5.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bookies.errors import BookKeeperError, DataUnknown
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import READ_AT_ONCE, Versioned
from bookies.model import BookieId
from bookies.protocol.ledger.ending import Record, refusal
from bookies.protocol.pacing import Backoff
from bookies.runtime.events import Events
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import Tasks

WAIT_S = 4.0  # less than the 5 s after which Apache's writers give up
READS_AT_ONCE = 4
RETRY_S, RETRY_S_MAX = 0.05, 1.0  # pauses after failed reads

Resume = Callable[[BookKeeperError | None], None]


@dataclass(frozen=True, slots=True)
class _Add:
    """An add that waits. `resume`: called with None to store it, or with the reason to refuse it."""

    entry_id: int
    deadline: float  # loop time, seconds
    resume: Resume


class LedgerChecks:
    """Adds that wait for the records of their ledgers. `note_open`: called before the adds of an open ledger resume."""

    def __init__(
        self,
        driver: MetadataDriver,
        bookie: BookieId,
        note_open: Callable[[int], None],
        runtime: Runtime,
        events: Events,
    ) -> None:
        self._driver = driver
        self._bookie = bookie
        self._note_open = note_open
        self._runtime = runtime
        self._events = events
        self._waiting: dict[int, list[_Add]] = {}  # by ledger, in order of arrival
        self._due: dict[int, None] = {}  # ledgers to read
        self._reads = 0  # in progress
        self._is_stopped = False
        self._tasks = Tasks(self._died)

    def hold(self, ledger_id: int, entry_id: int, resume: Resume) -> None:
        """Let an add wait for the ledger's record."""
        if self._is_stopped:
            resume(DataUnknown("the bookie stops", ledger_id=ledger_id, entry_id=entry_id))
            return
        adds = self._waiting.setdefault(ledger_id, [])
        loop = asyncio.get_running_loop()
        adds.append(_Add(entry_id, loop.time() + WAIT_S, resume))
        if len(adds) == 1:
            self._due[ledger_id] = None
            if len(self._due) == 1:
                loop.call_soon(self._start)

    async def stop(self) -> None:
        """Refuse all waiting adds. Idempotent."""
        self._is_stopped = True
        await self._tasks.stop()
        self._refuse_all("the bookie stops")

    # -- reading ---------------------------------------------------------------------------------------------------
    def _start(self) -> None:
        while self._due and self._reads < READS_AT_ONCE and not self._is_stopped:
            ledger_ids = list(self._due)[:READ_AT_ONCE]
            for ledger_id in ledger_ids:
                del self._due[ledger_id]
            self._reads += 1
            self._tasks.start(self._check(ledger_ids), "check of ledgers")

    async def _check(self, ledger_ids: Sequence[int]) -> None:
        """Read the records, and decide about the adds that waited when the read began."""
        backoff = Backoff(RETRY_S, RETRY_S_MAX, self._runtime.random.uniform)
        loop = asyncio.get_running_loop()
        while ledger_ids:
            counts = [len(self._waiting[ledger_id]) for ledger_id in ledger_ids]
            deadline = min(self._waiting[ledger_id][0].deadline for ledger_id in ledger_ids)
            try:
                async with asyncio.timeout_at(deadline):
                    records = await self._driver.current_ledgers(ledger_ids)
            except (BookKeeperError, TimeoutError) as error:
                self._events.warning("ledgers.unchecked", ledgers=len(ledger_ids), error=error)
                await asyncio.sleep(min(backoff.next_s(), max(0.0, deadline - loop.time())))
                ledger_ids = [ledger_id for ledger_id in ledger_ids if self._expire(ledger_id)]
                continue
            for ledger_id, count, versioned in zip(ledger_ids, counts, records, strict=True):
                self._decide(ledger_id, count, versioned.metadata if isinstance(versioned, Versioned) else versioned)
            break
        self._reads -= 1
        self._start()

    def _decide(self, ledger_id: int, count: int, record: Record) -> None:
        """Resume the first `count` adds; if they show that the ledger is open, or has ended, all of them.

        Otherwise the later adds need another read: their writer may have changed the ensemble after this one.
        """
        adds = self._waiting.pop(ledger_id)
        refusals = [refusal(ledger_id, add.entry_id, record, self._bookie) for add in adds[:count]]
        is_open = None in refusals
        if is_open:
            self._note_open(ledger_id)
        elif isinstance(refusals[0], DataUnknown) and len(adds) > count:
            self._waiting[ledger_id] = adds[count:]
            self._due[ledger_id] = None
            del adds[count:]
        refusals += [None if is_open else refusals[0]] * (len(adds) - len(refusals))
        for add, error in zip(adds, refusals, strict=True):
            add.resume(error)

    def _expire(self, ledger_id: int) -> bool:
        """Refuse the adds that have waited for too long; report whether others wait."""
        now, adds = asyncio.get_running_loop().time(), self._waiting.pop(ledger_id)
        if left := [add for add in adds if add.deadline > now]:
            self._waiting[ledger_id] = left
        for add in adds[: len(adds) - len(left)]:
            problem = "the metadata store did not answer, and the ledger may have ended"
            add.resume(DataUnknown(problem, ledger_id=ledger_id, entry_id=add.entry_id))
        return bool(left)

    # -- end -------------------------------------------------------------------------------------------------------
    def _refuse_all(self, reason: str) -> None:
        waiting, self._waiting, self._due = self._waiting, {}, {}
        for ledger_id, adds in waiting.items():
            for add in adds:
                add.resume(DataUnknown(reason, ledger_id=ledger_id, entry_id=add.entry_id))

    def _died(self, cause: BaseException) -> None:
        """Refuse the adds after an unexpected error, a bug; later ones too."""
        self._is_stopped = True
        self._events.error("ledgers.check_broken", error=cause)
        self._refuse_all("the check of the ledger's record has failed")
