"""Groups of transactions: those requested in one iteration of the event loop go to ZooKeeper in one request.

A request costs the client and the server more than its contents. Callers that get their answers together continue
together, so creating sixteen ledgers at a time needs hardly more requests than creating one, and no caller is delayed.
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

IN_FLIGHT_MAX = 4  # requests; further transactions wait
GROUP_COUNT_MAX = 64  # transactions in one request
GROUP_SIZE_MAX = 1 << 18  # bytes of a request with more than one transaction
_OPERATION_SIZE = 64  # bytes in a request besides path and data, at most


def request_size(operations: Sequence[Operation]) -> int:
    """Return an upper bound of the request's size in bytes."""
    return sum(
        len(operation.path) + _OPERATION_SIZE + (len(operation.data) if isinstance(operation, Create | SetData) else 0)
        for operation in operations
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
    """Transactions grouped into requests. `require_open`: returns the tasks of an open driver, or raises."""

    def __init__(self, zookeeper: ZooKeeper, require_open: Callable[[], Tasks]) -> None:
        self._zookeeper = zookeeper
        self._require_open = require_open
        self._waiting: deque[_Member] = deque()
        self._is_scheduled = False  # waiting transactions are sent at the end of this iteration of the event loop
        self._in_flight_count = 0

    async def multi(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Carry out a transaction like `ZooKeeper.multi`. The answer concerns these operations alone: if a group is
        refused, its transactions are sent one by one.

        Only for transactions that do not change state that others of them check. They are carried out in any order, and
        a `Check` or an unconditional `SetData` that several have in common is carried out once.
        """
        member = _Member(operations)
        self._waiting.append(member)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._send_waiting)
        return await member.answer

    def _send_waiting(self) -> None:
        """Send waiting transactions, within the limit of requests in flight."""
        self._is_scheduled = False
        while self._in_flight_count < IN_FLIGHT_MAX and (group := self._take()):
            try:
                tasks = self._require_open()
            except BookKeeperError as error:
                _fail((*group, *self._waiting), error)
                self._waiting.clear()
                return
            self._in_flight_count += 1
            task = tasks.start(self._send(group), "ledger transactions")
            task.add_done_callback(partial(self._sent, group))

    def _take(self) -> list[_Member]:
        """Take the next group, at least one transaction if any are waiting."""
        group: list[_Member] = []
        size = 0
        while self._waiting and len(group) < GROUP_COUNT_MAX:
            member = self._waiting[0]
            if not member.answer.done():  # otherwise its caller was cancelled
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
        except Exception as error:  # noqa: BLE001  (every error has to reach the waiting callers)
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
        """Send more after a request has ended. Members without an answer fail: the driver was closed."""
        self._in_flight_count -= 1
        _fail(group, ClientClosed("the session with the metadata store was closed before it answered"))
        self._send_waiting()


def _fail(members: Iterable[_Member], error: Exception) -> None:
    """Fail members, each with a copy of the error, because each raises it in another task."""
    for member in members:
        member.fail(copy.copy(error))


def _joined(group: Sequence[_Member]) -> tuple[list[Operation], list[list[int]]]:
    """Return one transaction for a group, and for each member the indices of its operations in it."""
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
