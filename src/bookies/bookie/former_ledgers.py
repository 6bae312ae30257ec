"""Former ledgers: those that may be older than this bookie's directories, and the checks before their adds.

A bookie may be emptied and return under its id, and so lose the fences of ledgers that have ended. It therefore checks
the record of a former ledger before it accepts an ordinary add. A ledger that was created after the directories needs
no check: the directories have seen all its fences.

The ids are taken from the metadata store once, when the directories exist and no request is served yet: everything
below the next id of the generator, and ids above it that clients have chosen. Until that succeeds, every ledger counts.
Later others become former ledgers (`LedgerStore.note_former`): those that the bookie deletes and forgets with their
fences and, after the loss of a part of a journal, all that exist.

The first add of a former ledger causes a read of its record, and later ones wait with it, in order. One read serves all
ledgers that wait when it begins. If the record is OPEN, and names this bookie for the entry, the adds are stored like
any others, so a fence that arrived meanwhile refuses them. The bookie may have lost such a fence again before the read
ends. So a read does not count if its ledger became a former one meanwhile: the record is read again. The ledger is not
checked again while it stays in memory.

The metadata store may be unavailable. An add waits `WAIT_S` at most, and then fails so that its writer can use another
bookie. Waiting adds count as accepted input, which bounds their memory.

Source: storage 9.7 (F-44), wire-protocol 5.4.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable, Sequence

from msgspec import Struct

from bookies.config import BookieConfig
from bookies.errors import BookKeeperError, CorruptRecord, DataUnknown, StorageError
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import READ_AT_ONCE, Versioned
from bookies.model import BookieId
from bookies.protocol.ledger.ending import Record, refusal
from bookies.protocol.pacing import Backoff
from bookies.protocol.quorums import IdSet
from bookies.runtime.events import Events
from bookies.runtime.ports import Disk, Runtime
from bookies.runtime.tasks import Tasks
from bookies.storage.disks.directories import Directories
from bookies.storage.disks.durable_files import replace_bytes
from bookies.storage.identity import former_ledgers_format as layout

WAIT_S = 4.0  # less than the 5 s after which Apache's writers give up
READS_AT_ONCE = 16
RETRY_S, RETRY_S_MAX = 0.05, 1.0  # pauses after failed reads

Resume = Callable[[BookKeeperError | None], None]


class _Add(Struct, frozen=True):
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
        self._events = events
        self._waiting: dict[int, list[_Add]] = {}  # by ledger, in order of arrival
        self._due: dict[int, None] = {}  # ledgers to read
        self._valid: set[int] = set()  # ledgers with a read in progress that will count
        self._reads = 0  # in progress
        self._backoff = Backoff(RETRY_S, RETRY_S_MAX, runtime.random.uniform)
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

    def fences_lost(self, runs: Sequence[tuple[int, int]]) -> None:
        """Discard the reads in progress of these ledgers, [start, stop) of ids: a fence after their answer is lost."""
        self._valid -= {
            ledger_id for ledger_id in self._valid if any(start <= ledger_id < stop for start, stop in runs)
        }

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
        """Read the records, and decide about the adds that waited when the read began.

        After a failure the ledgers that still have adds queue up again, behind those that were not read yet.
        """
        loop = asyncio.get_running_loop()
        counts = [len(self._waiting[ledger_id]) for ledger_id in ledger_ids]
        deadline = min(self._waiting[ledger_id][0].deadline for ledger_id in ledger_ids)
        self._valid.update(ledger_ids)
        try:
            async with asyncio.timeout_at(deadline):
                records = await self._driver.current_ledgers(ledger_ids)
        except (BookKeeperError, TimeoutError) as error:
            self._events.warning("ledgers.unchecked", ledgers=len(ledger_ids), error=error)
            await asyncio.sleep(min(self._backoff.next_s(), max(0.0, deadline - loop.time())))
            self._due |= dict.fromkeys(ledger_id for ledger_id in ledger_ids if self._expire(ledger_id))
        else:
            self._backoff.reset()
            for ledger_id, count, versioned in zip(ledger_ids, counts, records, strict=True):
                if ledger_id in self._valid:
                    record = versioned.metadata if isinstance(versioned, Versioned) else versioned
                    self._decide(ledger_id, count, record)
                else:
                    self._due[ledger_id] = None
            self._valid.difference_update(ledger_ids)
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


# -- the ids ------------------------------------------------------------------------------------------------------
async def find_former_ledgers(runtime: Runtime, config: BookieConfig, driver: MetadataDriver, events: Events) -> IdSet:
    """Return the ids of former ledgers, from the files, or else from the metadata store; then write the files."""
    paths = [posixpath.join(directory, layout.FILE_NAME) for directory in Directories(runtime.disk, config).all]
    worker = runtime.workers.start("former ledgers")
    try:
        stored, is_complete, problems = await worker.run(_read, runtime.disk, paths)
        for problem in problems:
            events.warning("former_ledgers.malformed", error=problem, consequence="the file is written again")
        if is_complete:
            return stored
        try:
            ids = layout.union(await former_in(driver), ((0, stored.bound), *stored.runs))
        except BookKeeperError as error:
            consequence = "until its next start the bookie checks the record of every ledger"
            events.warning("former_ledgers.unknown", error=error, consequence=consequence)
            return IdSet(layout.ALL_LEDGERS)
        for problem in await worker.run(_write, runtime.disk, paths, layout.pack(ids)):
            events.warning("former_ledgers.not_kept", error=problem, consequence="the next start determines them again")
        events.info("former_ledgers.noted", below=ids.bound, chosen=len(ids.runs))
        return ids
    finally:
        worker.close()


async def former_in(driver: MetadataDriver) -> IdSet:
    """Return the ids of all ledgers that exist or existed, as far as the store knows. Raises: MetadataError."""
    given = await driver.given_ids()
    ids = IdSet(given.next_id)
    for first, last in given.spent:
        ids.add(first, last + 1)
    async for listed in driver.ledger_ids():
        for ledger_id in listed if listed and listed[-1] >= ids.bound else ():
            ids.add(ledger_id, ledger_id + 1)
        if len(ids.runs) > layout.RUNS_MAX:
            return IdSet(layout.ALL_LEDGERS)
    return ids


def _read(disk: Disk, paths: Sequence[str]) -> tuple[IdSet, bool, list[Exception]]:
    """Return the ids of all files together, whether none is missing or damaged, and the problems.

    The files differ only after a crash while they were written. All of them are true, and so is their union.
    """
    union = IdSet(0)
    problems: list[Exception] = []
    is_complete = True
    for path in paths:
        try:
            ids = layout.parse(disk.read_bytes(path), path=path)
        except FileNotFoundError:
            is_complete = False
        except (CorruptRecord, OSError) as error:
            problems.append(error)
        else:
            for start, stop in ((0, ids.bound), *ids.runs):
                union.add(start, stop)
    return union, is_complete and not problems, problems


def _write(disk: Disk, paths: Sequence[str], data: bytes) -> list[Exception]:
    """Write every file durably; return the failures."""
    failures: list[Exception] = []
    for path in paths:
        try:
            replace_bytes(disk, path, data)
        except (OSError, StorageError) as error:
            failures.append(error)
    return failures
