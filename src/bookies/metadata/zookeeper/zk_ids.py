"""Generation of ledger ids from the sequence numbers of ephemeral znodes, one or several at a time.

Source: metadata 3.2.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable

from bookies.errors import ClientClosed, MetadataError, NotSupported, SessionExpired
from bookies.metadata.zookeeper.zk_layout import (
    HIGH_DIRECTORIES_KEPT,
    HIGH_UNIT,
    LEDGER_ID_MAX,
    SHORT_ID_STOP,
    Manager,
    generated_number,
    high_numbers,
    parent_of,
)
from bookies.metadata.zookeeper.zk_nodes import ZkNodes
from bookies.metadata.zookeeper.zookeeper_port import (
    Acl,
    Create,
    Delete,
    NodeExists,
    NodeMissing,
    Operation,
    OutcomeUnknown,
    Refusal,
)
from bookies.runtime.tasks import Tasks

COUNTED_IDS_MAX = 100_000  # largest increase of a ZooKeeper counter, a child created and deleted for each step
COUNTED_AT_ONCE = 200  # steps in one transaction
FETCHED_IDS_MAX = 64  # in one request
QUICK_S = 0.1  # largest interval between two requests for ids in quick succession
USED_FOR_EACH = 8  # ids used in quick succession, per id that is fetched in advance


class LedgerIds:
    """Ledger ids for one driver. `require_open`: returns the tasks of an open driver; raises if it is not open.

    A fetch gets as many ids as callers wait for, or, if that is more, an eighth as many as were used in quick
    succession. So at most an eighth of the ids is skipped, plus those of a fetch whose answer was lost.
    """

    def __init__(self, nodes: ZkNodes, require_open: Callable[[], Tasks]) -> None:
        self._nodes = nodes
        self._require_open = require_open
        self._has_high: bool | None = None  # None: not read yet
        self._high: list[int] = []  # numbers of the HOB directories, as last read
        self._ready = range(0)
        self._used_count = 0  # in quick succession
        self._asked_at = -QUICK_S  # the loop's time, seconds
        self._waiting_count = 0
        self._fetch_end: asyncio.Future[Exception | None] | None = None  # of the fetch in flight, with its error

    async def next(self, manager: Manager) -> int:
        """Return an id, never the same twice while the parents of the id nodes exist."""
        now = asyncio.get_running_loop().time()
        if now - self._asked_at > QUICK_S:
            self.forget()
        self._asked_at = now
        while not self._ready:
            await self._wait_fetched(manager)
        ledger_id, self._ready = self._ready[0], self._ready[1:]
        self._used_count += 1
        return ledger_id

    def forget(self) -> None:
        """Restart with a single id. Ids that were fetched and not used are skipped."""
        self._ready, self._used_count = range(0), 0

    # -- fetching ------------------------------------------------------------------------------------------------
    async def _wait_fetched(self, manager: Manager) -> None:
        """Wait for the fetch in flight, or a new one. Raises its error, in every waiting caller."""
        end = self._fetch_end
        if end is None:
            end = asyncio.get_running_loop().create_future()
            task = self._require_open().start(self._fetch(manager, end), "new ledger ids")
            task.add_done_callback(lambda _: self._stopped(end))
            self._fetch_end = end
        self._waiting_count += 1
        try:
            failure = await asyncio.shield(end)
        finally:
            self._waiting_count -= 1
        if failure is not None:
            raise copy.copy(failure)

    async def _fetch(self, manager: Manager, end: asyncio.Future[Exception | None]) -> None:
        """Fetch ids; several only if ids have a counter of their own: in a flat layout ledgers increment it too."""
        count = max(self._used_count // USED_FOR_EACH, self._waiting_count, 1)
        count = min(count, FETCHED_IDS_MAX) if manager.has_long_ids else 1
        try:
            path, self._ready = await self._new_ids(manager, count)
        except Exception as error:  # noqa: BLE001  (every error has to reach the waiting callers)
            self._end_fetch(end, error)
            return
        self._end_fetch(end, None)
        await self._remove(path)

    def _end_fetch(self, end: asyncio.Future[Exception | None], failure: Exception | None) -> None:
        self._fetch_end = None
        end.set_result(failure)

    def _stopped(self, end: asyncio.Future[Exception | None]) -> None:
        """Fail the waiting callers of a fetch that ended because the driver was closed."""
        if not end.done():
            self._end_fetch(end, ClientClosed("the session with the metadata store was closed before it answered"))

    async def _new_ids(self, manager: Manager, count: int) -> tuple[str, range]:
        """Return the path of a new id znode and its ids, from one to `count`."""
        if manager.has_long_ids and self._has_high is None:
            self._has_high = await self._nodes.stat(self._nodes.paths.high_ids) is not None
        if not self._has_high:
            path, numbers = await self._generate(self._nodes.paths.id_prefix(manager), count)
            if numbers:
                return path, numbers
            await self._remove(path)
            if not manager.has_long_ids:
                raise MetadataError(
                    f"the 2,147,483,647 ids of the layout {manager.value} are used up; create ledgers with ids of "
                    "your own"
                )
            await self._make(self._nodes.paths.high_ids)
            self._has_high = True
        return await self._new_high_ids(count)

    async def _new_high_ids(self, count: int) -> tuple[str, range]:
        while True:
            if not self._high:
                listed = await self._nodes.children(self._nodes.paths.high_ids)
                self._high = high_numbers(listed[0] if listed is not None else [])
            if not self._high:
                await self._make(self._nodes.paths.high_directory(1))
                continue
            largest = self._high[-1]
            await self._tidy()
            path, numbers = await self._generate(self._nodes.paths.high_id_prefix(largest), count)
            if numbers:
                base = largest * HIGH_UNIT
                return path, range(base + numbers.start, base + numbers.stop)
            await self._remove(path)
            await self._make(self._nodes.paths.high_directory(largest + 1))
            self._high = []

    async def _tidy(self) -> None:
        """Delete used-up directories, except for the latest `HIGH_DIRECTORIES_KEPT`."""
        if len(self._high) <= HIGH_DIRECTORIES_KEPT:
            return
        old, self._high = self._high[:-HIGH_DIRECTORIES_KEPT], []
        for number in old:
            try:
                await self._nodes.zookeeper.delete(self._nodes.paths.high_directory(number), 0)
            except (Refusal, OutcomeUnknown, SessionExpired):
                continue

    async def _make(self, path: str) -> None:
        try:
            await self._nodes.repeat(lambda: self._nodes.create(path, b"", Acl.OPEN))
        except NodeExists:
            pass  # Another client, or our own first attempt, created it.

    async def _generate(self, prefix: str, count: int) -> tuple[str, range]:
        """Create a znode; return its path and the 31-bit numbers reserved with it; none if they are used up.

        These are the znode's number and the numbers of those that the same transaction creates and deletes again.
        """
        path = await self._nodes.repeat(lambda: self._count(prefix, count))
        number = generated_number(path)
        return path, range(0) if number is None else range(number, min(number + count, SHORT_ID_STOP))

    async def _count(self, prefix: str, count: int) -> str:
        first = Create(prefix, b"", self._nodes.acl, is_ephemeral=True, is_sequential=True)
        while True:
            try:
                return str((await self._nodes.zookeeper.multi([first, *_counted(prefix, count - 1)]))[0])
            except NodeMissing:
                await self._nodes.ensure(parent_of(prefix))

    async def _remove(self, path: str) -> None:
        """Delete a znode whose number was used."""
        try:
            await self._nodes.zookeeper.delete(path)
        except (Refusal, MetadataError):
            pass  # It ends with the session.

    # -- the counter as a whole ----------------------------------------------------------------------------------
    async def bound(self, manager: Manager) -> int:
        """Return a number larger than every id handed out so far; ids that this driver hands out later are not smaller.
        Changes nothing: a parent counts the children ever created.
        """
        self.forget()
        if manager.has_long_ids:
            listed = await self._nodes.children(self._nodes.paths.high_ids)
            numbers = high_numbers(listed[0] if listed is not None else [])
            if numbers:
                return numbers[-1] * HIGH_UNIT + await self._created(self._nodes.paths.high_directory(numbers[-1]))
        return await self._created(parent_of(self._nodes.paths.id_prefix(manager)))

    async def _created(self, parent: str) -> int:
        """Return the number of children ever created."""
        stat = await self._nodes.stat(parent)
        return 0 if stat is None else (stat.cversion + stat.children_count) // 2

    async def raise_to(self, manager: Manager, bound: int) -> None:
        """Ensure that no id below `bound` is handed out. If counting up takes too long, ids continue in the next
        directory of long ids, so ids in between may be skipped.
        """
        if await self.bound(manager) >= bound:
            return
        high, low = divmod(bound, HIGH_UNIT)
        if low > COUNTED_IDS_MAX:
            high, low = high + 1, 0
        if high and (not manager.has_long_ids or high > LEDGER_ID_MAX // HIGH_UNIT):
            raise NotSupported(
                f"in the layout {manager.value}, ZooKeeper cannot generate ids after {bound - 1:,}"
                + ("" if manager.has_long_ids else ": choose zk+hierarchical")
            )
        if high:
            await self._make(self._nodes.paths.high_directory(high))
            self._has_high, self._high = True, []
        prefix = self._nodes.paths.high_id_prefix(high) if high else self._nodes.paths.id_prefix(manager)
        parent = parent_of(prefix)
        await self._nodes.ensure(parent)
        while (created := await self._created(parent)) < low:
            try:
                await self._nodes.zookeeper.multi(_counted(prefix, min(low - created, COUNTED_AT_ONCE)))
            except (Refusal, OutcomeUnknown, SessionExpired):
                continue  # The counter shows the progress.


def _counted(prefix: str, count: int) -> list[Operation]:
    """Return operations that raise the counter of the parent. The znode is never visible."""
    path = f"{prefix}counted"
    return [Create(path, b"", Acl.OPEN), Delete(path)] * count
