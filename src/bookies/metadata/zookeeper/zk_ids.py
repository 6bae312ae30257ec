"""The generation of ledger ids: the numbers that ZooKeeper gives ephemeral znodes, one by one or many at once.

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
from bookies.metadata.zookeeper.zk_nodes import Nodes
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

COUNTED_IDS_MAX = 100_000  # that a counter of ZooKeeper's is raised by, a child made and deleted for each
COUNTED_AT_ONCE = 200  # in one transaction
FETCHED_IDS_MAX = 64  # at once
QUICK_S = 0.1  # between two ids that are asked for in quick succession, at most
USED_FOR_EACH = 8  # ids in quick succession, for each that is fetched before anybody wants it


class LedgerIds:
    """Ids for one driver. `require_open`: the tasks of an open driver, or raises.

    As many are fetched as are waited for; or more, when many are asked for in quick succession: an eighth as many as
    have been used in it. So no more than that are left out, besides those of a fetch whose answer was lost.
    """

    def __init__(self, nodes: Nodes, require_open: Callable[[], Tasks]) -> None:
        self._nodes = nodes
        self._require_open = require_open
        self._has_high: bool | None = None  # None: not looked yet
        self._high: list[int] = []  # numbers of the HOB directories, as last seen
        self._ready = range(0)
        self._used_count = 0  # in quick succession
        self._asked_at = -QUICK_S  # the loop's time, seconds
        self._waiting_count = 0
        self._coming: asyncio.Future[Exception | None] | None = None  # the end of a fetch, and why it failed

    async def next(self, manager: Manager) -> int:
        """Never the same twice while the parents of the id nodes exist."""
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
        """Begin anew, with a single id. Those that were fetched and not used are left out."""
        self._ready, self._used_count = range(0), 0

    # -- fetching them -------------------------------------------------------------------------------------------
    async def _wait_fetched(self, manager: Manager) -> None:
        """Raises what the fetch has failed with, as for all who wait for it."""
        coming = self._coming
        if coming is None:
            coming = asyncio.get_running_loop().create_future()
            task = self._require_open().start(self._fetch(manager, coming), "new ledger ids")
            task.add_done_callback(lambda _: self._stopped(coming))
            self._coming = coming
        self._waiting_count += 1
        try:
            failure = await asyncio.shield(coming)
        finally:
            self._waiting_count -= 1
        if failure is not None:
            raise copy.copy(failure)

    async def _fetch(self, manager: Manager, coming: asyncio.Future[Exception | None]) -> None:
        """Several only where ids have a counter of their own: in a flat layout every ledger counts, too."""
        count = max(self._used_count // USED_FOR_EACH, self._waiting_count, 1)
        count = min(count, FETCHED_IDS_MAX) if manager.has_long_ids else 1
        try:
            path, self._ready = await self._new_ids(manager, count)
        except Exception as error:  # noqa: BLE001  (whatever it is: those who wait have to know)
            self._end_fetch(coming, error)
            return
        self._end_fetch(coming, None)
        await self._remove(path)

    def _end_fetch(self, coming: asyncio.Future[Exception | None], failure: Exception | None) -> None:
        self._coming = None
        coming.set_result(failure)

    def _stopped(self, coming: asyncio.Future[Exception | None]) -> None:
        """Everybody knows the end, unless the driver was closed."""
        if not coming.done():
            self._end_fetch(coming, ClientClosed("the session with the metadata store was closed before it answered"))

    async def _new_ids(self, manager: Manager, count: int) -> tuple[str, range]:
        """At most so many, at least one; and the znode that gave them."""
        if manager.has_long_ids and self._has_high is None:
            self._has_high = await self._nodes.stat(self._nodes.paths.high_ids) is not None
        if not self._has_high:
            path, numbers = await self._generate(self._nodes.paths.id_prefix(manager), count)
            if numbers:
                return path, numbers
            await self._remove(path)
            if not manager.has_long_ids:
                raise MetadataError(
                    f"the 2,147,483,647 ids of the layout {manager.value} are used up; choose ids yourself"
                )
            await self._make(self._nodes.paths.high_ids)
            self._has_high = True
        return await self._new_high_ids(count)

    async def _new_high_ids(self, count: int) -> tuple[str, range]:
        while True:
            if not self._high:
                found = await self._nodes.children(self._nodes.paths.high_ids)
                self._high = high_numbers(found[0] if found is not None else [])
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
        """Directories that are used up go, but for the latest."""
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
            pass  # Somebody else was faster, or our own first attempt.

    async def _generate(self, prefix: str, count: int) -> tuple[str, range]:
        """A znode, and the numbers of 31 bits that are ours with it; none when they are used up.

        The znode's number, and those of the ones that the same transaction makes and deletes again.
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
        """A znode that has given its number."""
        try:
            await self._nodes.zookeeper.delete(path)
        except (Refusal, MetadataError):
            pass  # It goes with the session.

    # -- the counter as a whole ----------------------------------------------------------------------------------
    async def bound(self, manager: Manager) -> int:
        """Larger than every id handed out so far, and not larger than those that this driver hands out from here on.
        Changes nothing: a parent counts the children ever made.
        """
        self.forget()
        if manager.has_long_ids:
            found = await self._nodes.children(self._nodes.paths.high_ids)
            numbers = high_numbers(found[0] if found is not None else [])
            if numbers:
                return numbers[-1] * HIGH_UNIT + await self._made(self._nodes.paths.high_directory(numbers[-1]))
        return await self._made(parent_of(self._nodes.paths.id_prefix(manager)))

    async def _made(self, parent: str) -> int:
        stat = await self._nodes.stat(parent)
        return 0 if stat is None else (stat.cversion + stat.children_count) // 2

    async def raise_to(self, manager: Manager, bound: int) -> None:
        """Hand out no id below `bound`. What would take too long to count up to begins with the next directory of
        long ids instead, so ids between may be left out.
        """
        if await self.bound(manager) >= bound:
            return
        high, low = divmod(bound, HIGH_UNIT)
        if low > COUNTED_IDS_MAX:
            high, low = high + 1, 0
        if high and (not manager.has_long_ids or high > LEDGER_ID_MAX // HIGH_UNIT):
            raise NotSupported(
                f"in the layout {manager.value}, ZooKeeper cannot make the ids that come after {bound - 1:,}"
                + ("" if manager.has_long_ids else ": choose zk+hierarchical")
            )
        if high:
            await self._make(self._nodes.paths.high_directory(high))
            self._has_high, self._high = True, []
        prefix = self._nodes.paths.high_id_prefix(high) if high else self._nodes.paths.id_prefix(manager)
        parent = parent_of(prefix)
        await self._nodes.ensure(parent)
        while (made := await self._made(parent)) < low:
            try:
                await self._nodes.zookeeper.multi(_counted(prefix, min(low - made, COUNTED_AT_ONCE)))
            except (Refusal, OutcomeUnknown, SessionExpired):
                continue  # The count tells how far it came.


def _counted(prefix: str, count: int) -> list[Operation]:
    """What raises the counter of the znodes' parent. Nobody ever sees the znode."""
    path = f"{prefix}counted"
    return [Create(path, b"", Acl.OPEN), Delete(path)] * count
