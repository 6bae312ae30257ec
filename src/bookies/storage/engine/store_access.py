"""Ordered access to a ledger: its header is read before the ledger is answered for or changed.

The loop decides about a ledger in the order of the calls. Calls for a ledger whose header has to be read wait in one
queue, and reads wait after them.

Source: storage 5.7.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping

from bookies.config import BookieConfig
from bookies.errors import BookKeeperError, StorageError
from bookies.runtime.events import Events
from bookies.runtime.histogram import Distribution
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import Tasks
from bookies.storage.engine.lac_watchers import LacWatchers
from bookies.storage.engine.storage_parts import StorageParts
from bookies.storage.index.index_format import IndexHeader
from bookies.storage.index.index_ledger import Ledger
from bookies.storage.journal.journal import Done

Failures = Mapping[int, BookKeeperError]  # by ledger


class StoreAccess(ABC):
    """The common base of reads and writes of a bookie's storage. Owned by the loop's thread."""

    def __init__(self, runtime: Runtime, config: BookieConfig) -> None:
        self._runtime = runtime
        self._config = config
        self._events = Events("storage", runtime.clock)
        self._tasks = Tasks(self._fail)
        self._parts: StorageParts | None = None
        self._failure: BaseException | None = None
        self._is_stopping = False
        self._waiting: dict[int, list[tuple[Callable[..., None], Done, tuple[object, ...]]]] = {}
        self._watchers = LacWatchers()
        self._found_open: set[int] = set()  # former ledgers, until their next add
        self.log_reads = Distribution()

    @abstractmethod
    def _fail(self, error: BaseException) -> None:
        """Stop the storage after a failure that leaves the content of the disks unknown."""

    def _open(self) -> StorageParts:
        if self._parts is None or self._failure is not None or self._is_stopping:
            raise StorageError(f"the storage {'has failed' if self._failure else 'is not running'}")
        return self._parts

    def _with_header(
        self, ledger_id: int, done: Done, call: Callable[..., None], *arguments: object, is_needed: bool = True
    ) -> None:
        """Call `call(ledger_id, done, *arguments)` now or, in order of arrival, when the ledger's header has been read.

        In the latter case its exceptions go to `done`. Without `is_needed` the call does not cause the read, but waits
        for calls before it that do.
        """
        if ledger_id not in self._waiting:
            index = self._open().index
            if not is_needed or index.get(ledger_id) is not None or not index.is_known(ledger_id):
                call(ledger_id, done, *arguments)
                return
            self._start_load((ledger_id,))
        self._waiting[ledger_id].append((call, done, arguments))

    def _start_load(self, ledger_ids: Collection[int], first: Callable[[Failures], None] = lambda _: None) -> None:
        """Read the headers of ledgers for which no call waits, then call `first`, then those that wait by then."""
        self._waiting |= {ledger_id: [] for ledger_id in ledger_ids}
        self._tasks.start(self._load(ledger_ids, first), "load of ledgers")

    async def _load(self, ledger_ids: Collection[int], first: Callable[[Failures], None]) -> None:
        try:
            failures = await self._open().index.load_all(ledger_ids)
        except StorageError as error:
            failures = dict.fromkeys(ledger_ids, error)
        calls = [(ledger_id, self._waiting.pop(ledger_id)) for ledger_id in ledger_ids]
        first(failures)
        for ledger_id, waiting in calls:
            for call, done, arguments in waiting:
                try:
                    if (failure := failures.get(ledger_id)) is not None:
                        raise failure
                    call(ledger_id, done, *arguments)
                except BookKeeperError as error:
                    done(error)

    async def _ledger(self, ledger_id: int) -> tuple[StorageParts, Ledger]:
        """Return the ledger after all calls that wait for its header. Raises: LedgerUnknownToBookie, ReadFailed."""
        parts = self._open()
        while ledger_id in self._waiting:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._with_header(ledger_id, _resolver(turn), _call_done)
            await turn
            parts = self._open()
        return parts, await parts.index.load(ledger_id)

    async def header(self, ledger_id: int) -> IndexHeader:
        """Return a ledger's header after all calls that wait for it. Raises: LedgerUnknownToBookie, ReadFailed."""
        _, ledger = await self._ledger(ledger_id)
        return ledger.header

    def resident_header(self, ledger_id: int) -> IndexHeader | None:
        """Return the header of a ledger that is in memory."""
        ledger = None if self._parts is None else self._parts.index.get(ledger_id)
        return None if ledger is None else ledger.header


def _call_done(ledger_id: int, done: Done) -> None:
    done(None)


def _resolver(future: asyncio.Future[None]) -> Done:
    """Return a callback that resolves the future for every outcome of the load; the reader detects a failure itself."""

    def done(error: BaseException | None) -> None:
        if not future.done():
            future.set_result(None)

    return done
