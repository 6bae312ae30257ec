"""Groups of transactions: those requested in one iteration of the event loop go to ZooKeeper in one request.

A request costs the client and the server more than its contents. Callers that get their answers together continue
together, so creating sixteen ledgers at a time needs hardly more requests than creating one, and no caller is delayed.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Callable, Sequence

from bookies.errors import BookKeeperError
from bookies.metadata.zookeeper.zookeeper_port import (
    ANY_VERSION,
    Check,
    Create,
    Denied,
    Operation,
    Outcome,
    Refusal,
    SetData,
    ZooKeeper,
)

IN_FLIGHT_MAX = 4  # requests; further transactions wait
GROUP_COUNT_MAX = 64  # transactions in one request
GROUP_SIZE_MAX = 1 << 18  # bytes of a request with more than one transaction
_OPERATION_SIZE = 64  # bytes in a request besides path and data, at most


def request_size(operations: Sequence[Operation]) -> int:
    """Return an upper bound of the request's size in bytes."""
    size = 0
    for operation in operations:
        size += _OPERATION_SIZE + len(operation.path)
        if isinstance(operation, (Create, SetData)):
            size += len(operation.data)
    return size


class _Member:
    """A transaction that waits for the next request, or is in it."""

    __slots__ = ("answer", "operations")

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = operations
        self.answer: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()

    def fail(self, error: Exception) -> None:
        if not self.answer.done():  # otherwise cancelled
            self.answer.set_exception(error)


class _Group:
    """The transactions of one request, whose answer it takes (`zookeeper_port.Answer`). `ended`: called after it."""

    __slots__ = ("_ended", "_is_done", "_members", "_places", "operations")

    def __init__(self, members: Sequence[_Member], ended: Callable[[Sequence[_Member]], None]) -> None:
        self._is_done = False
        self._members = members
        self._ended = ended
        self.operations, self._places = _joined(members)

    def done(self) -> bool:
        return self._is_done  # Callers that have given up do not count: the next requests wait for the outcome too.

    def set_result(self, outcomes: list[Outcome], /) -> None:
        self._is_done = True
        for member, indices in zip(self._members, self._places, strict=True):
            if not member.answer.done():
                member.answer.set_result([outcomes[index] for index in indices])
        self._ended(())

    def set_exception(self, error: Exception, /) -> None:
        self._is_done, is_alone = True, len(self._members) == 1
        if isinstance(error, (Refusal, Denied)) and not is_alone:
            self._ended(self._members)
            return
        for member in self._members:
            member.fail(error if is_alone else copy.copy(error))  # Each is raised in another task.
        self._ended(())


class Groups:
    """Transactions grouped into requests. `require_open`: raises if the driver is not open."""

    def __init__(self, zookeeper: ZooKeeper, require_open: Callable[[], object]) -> None:
        self._zookeeper = zookeeper
        self._require_open = require_open
        self._waiting: deque[_Member] = deque()
        self._is_scheduled = False
        self._in_flight_count = 0

    async def multi(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Carry out a transaction like `ZooKeeper.multi`. The answer concerns these operations alone: if a group is
        refused, its transactions are sent one by one.

        Only for transactions that do not change state that others of them check. They are carried out in any order, and
        a `Check` or an unconditional `SetData` that several have in common is carried out once.
        """
        member = _Member(operations)
        self._waiting.append(member)
        self._schedule()
        return await member.answer

    def _schedule(self) -> None:
        """Send the waiting transactions at the end of this iteration of the event loop."""
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._send_waiting)

    def _send_waiting(self) -> None:
        """Send waiting transactions, within the limit of requests in flight."""
        self._is_scheduled = False
        while self._in_flight_count < IN_FLIGHT_MAX and (group := self._take()):
            self._send(group)

    def _take(self) -> list[_Member]:
        """Take the next group, at least one transaction if any are waiting."""
        taken: list[_Member] = []
        size = 0
        while self._waiting and len(taken) < GROUP_COUNT_MAX:
            member = self._waiting[0]
            if not member.answer.done():  # otherwise its caller was cancelled
                if taken or len(self._waiting) > 1:
                    size += request_size(member.operations)
                if taken and size > GROUP_SIZE_MAX:
                    break
                taken.append(member)
            self._waiting.popleft()
        return taken

    def _send(self, members: Sequence[_Member]) -> None:
        try:
            self._require_open()
        except BookKeeperError as error:
            for member in members:
                member.fail(copy.copy(error))
            return
        self._in_flight_count += 1
        group = _Group(members, self._ended)
        self._zookeeper.start_multi(group.operations, group)

    def _ended(self, refused: Sequence[_Member]) -> None:
        """Send more after a request has ended: the transactions of a refused group one by one, then waiting ones."""
        for member in refused:
            if not member.answer.done():
                self._send([member])
        self._in_flight_count -= 1
        if self._waiting:
            self._schedule()


def _joined(members: Sequence[_Member]) -> tuple[Sequence[Operation], Sequence[Sequence[int]]]:
    """Return one transaction for a group, and for each member the indices of its operations in it."""
    if len(members) == 1:
        return members[0].operations, [range(len(members[0].operations))]
    operations: list[Operation] = []
    places: list[list[int]] = []
    common: dict[Operation, int] = {}
    for member in members:
        indices = []
        for operation in member.operations:
            index = len(operations)
            if isinstance(operation, Check) or (isinstance(operation, SetData) and operation.version == ANY_VERSION):
                index = common.setdefault(operation, index)
            if index == len(operations):
                operations.append(operation)
            indices.append(index)
        places.append(indices)
    return operations, places
