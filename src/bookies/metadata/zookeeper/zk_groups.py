"""Transactions that one driver is asked for in one turn of the event loop go to ZooKeeper together, in one request.

A request costs the client, and the server, more than what is in it. Callers who were answered together go on together,
so sixteen ledgers that are created at a time need hardly more requests than one, and nobody waits for another.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from bookies.errors import BookKeeperError, ClientClosed
from bookies.metadata.zookeeper.zookeeper_port import (
    ANY_VERSION,
    Check,
    Create,
    Operation,
    Outcome,
    Refusal,
    SetData,
    ZooKeeper,
)
from bookies.runtime.tasks import Tasks

UNDER_WAY_MAX = 4  # requests at a time; what comes meanwhile waits
GROUP_COUNT_MAX = 64  # transactions in one request
GROUP_SIZE_MAX = 1 << 18  # bytes of one request with more than one
_OPERATION_SIZE = 64  # bytes in a request besides path and data, at most


def request_size(operations: Sequence[Operation]) -> int:
    """In bytes, at most."""
    return sum(
        len(each.path) + _OPERATION_SIZE + (len(each.data) if isinstance(each, Create | SetData) else 0)
        for each in operations
    )


class _Member:
    """A transaction that waits for the next request, or is in it."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = operations
        self.size = request_size(operations)
        self.answer: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()

    def succeed(self, outcomes: list[Outcome]) -> None:
        if not self.answer.done():  # otherwise cancelled
            self.answer.set_result(outcomes)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class Groups:
    """See the module. `require_open`: the tasks of an open driver, or raises."""

    def __init__(self, zookeeper: ZooKeeper, require_open: Callable[[], Tasks]) -> None:
        self._zookeeper = zookeeper
        self._require_open = require_open
        self._waiting: deque[_Member] = deque()
        self._is_going = False  # those who wait are sent at the end of this turn
        self._under_way_count = 0

    async def multi(self, operations: Sequence[Operation]) -> list[Outcome]:
        """As `ZooKeeper.multi`, and the answer is to these operations alone: a group that is refused is taken apart.

        Only for transactions that do not change what others of them check: those come in any order, and a `Check` or
        an unconditional `SetData` that several have in common is done once.
        """
        member = _Member(operations)
        self._waiting.append(member)
        if not self._is_going:
            self._is_going = True
            asyncio.get_running_loop().call_soon(self._go_on)
        return await member.answer

    def _go_on(self) -> None:
        """Send what has come."""
        self._is_going = False
        while self._under_way_count < UNDER_WAY_MAX and (group := self._take()):
            try:
                tasks = self._require_open()
            except BookKeeperError as error:
                _fail((*group, *self._waiting), error)
                self._waiting.clear()
                return
            self._under_way_count += 1
            task = tasks.start(self._send(group), "ledger transactions")
            task.add_done_callback(partial(self._sent, group))

    def _take(self) -> list[_Member]:
        """Who goes next, at least one if any are left."""
        group: list[_Member] = []
        size = 0
        while self._waiting and len(group) < GROUP_COUNT_MAX:
            member = self._waiting[0]
            if not member.answer.done():  # otherwise nobody waits for it any more
                size += member.size
                if group and size > GROUP_SIZE_MAX:
                    break
                group.append(member)
            self._waiting.popleft()
        return group

    async def _send(self, group: list[_Member]) -> None:
        operations, places = _joined(group)
        try:
            outcomes = await self._zookeeper.multi(operations)
        except Refusal:
            await asyncio.gather(*map(self._send_alone, group))
        except Exception as error:  # noqa: BLE001  (whatever it is: those who wait have to know)
            _fail(group, error)
        else:
            for member, indices in zip(group, places, strict=True):
                member.succeed([outcomes[index] for index in indices])

    async def _send_alone(self, member: _Member) -> None:
        try:
            member.succeed(await self._zookeeper.multi(member.operations))
        except Exception as error:  # noqa: BLE001  (as above)
            member.fail(error)

    def _sent(self, group: list[_Member], _: asyncio.Task[None]) -> None:
        """Everybody has an answer, unless the driver was closed."""
        self._under_way_count -= 1
        _fail(group, ClientClosed("the session with the metadata store was closed before it answered"))
        self._go_on()


def _fail(members: Iterable[_Member], error: Exception) -> None:
    """Each with an error of its own, since each is raised in another task."""
    for member in members:
        member.fail(copy.copy(error))


def _joined(group: Sequence[_Member]) -> tuple[list[Operation], list[list[int]]]:
    """One transaction of several, and where the operations of each are in it."""
    operations: list[Operation] = []
    places: list[list[int]] = []
    common: dict[Operation, int] = {}
    for member in group:
        indices = []
        for operation in member.operations:
            index = common.get(operation, len(operations))
            if index == len(operations):
                operations.append(operation)
                if isinstance(operation, Check) or (
                    isinstance(operation, SetData) and operation.version == ANY_VERSION
                ):
                    common[operation] = index
            indices.append(index)
        places.append(indices)
    return operations, places
