"""Requests of one connection that wait for their answers.

Adds are the bulk of the traffic, so they are tracked in runs: one `PendingAdds` per call, acknowledged from its front
as long as responses arrive in the order of the requests, which they normally do. Every other request has one future.
Its result is the response or the error, never an exception, so an abandoned read leaves no unretrieved exception.

Responses over v2 carry no request id. A response completes any request with its key, which is harmless with one
exception: the response to a plain read must not pass for the acknowledgement of a fence. `accepts_read` keeps the two
apart. Source: wire-protocol 6.1.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from bookies.client.transport.open_ledgers import OpenProof
from bookies.errors import BookKeeperError, Status
from bookies.model import BookieId
from bookies.wire.messages import AddResponses, Buffer, Response

V3_ADDS = -1  # stands for the ledger of adds over v3, which are matched by transaction id

Outcome = Response | BookKeeperError
ReadKey = tuple[int, int]  # ledger id, entry id


class AddSink(Protocol):
    """Sender of adds, which receives the outcome of each entry exactly once."""

    def on_acknowledged(self, bookie: BookieId, entry_ids: Sequence[int]) -> None: ...

    def on_failed(self, bookie: BookieId, entry_ids: Sequence[int], error: BookKeeperError) -> None: ...


class PendingAdds(Struct, eq=False):
    """Unanswered adds of one call. `keys`: match responses to entries, one per entry."""

    ledger_id: int
    keys: Sequence[int]
    entry_ids: Sequence[int]
    sink: AddSink
    deadline: float
    size: int

    def cut(self, count: int) -> PendingAdds:
        """Split off the first `count` entries, with their share of the size."""
        size = self.size * count // len(self.keys)
        front = PendingAdds(self.ledger_id, self.keys[:count], self.entry_ids[:count], self.sink, self.deadline, size)
        self.keys = self.keys[count:]
        self.entry_ids = self.entry_ids[count:]
        self.size -= size
        return front


class AddQueue(deque[PendingAdds]):
    """Unanswered adds in the order in which they were sent."""

    __slots__ = ()

    def take(self, keys: Sequence[int]) -> tuple[list[PendingAdds], Sequence[int]]:
        """Remove the adds that these keys answer. Return (parts in order, keys without a pending add)."""
        taken: list[PendingAdds] = []
        while keys and self:
            head = self[0]
            count = min(len(keys), len(head.keys))
            if not _equal(head.keys[:count], keys[:count]):
                break
            taken.append(self.popleft() if count == len(head.keys) else head.cut(count))
            keys = keys[count:]
        unknown: list[int] = []
        while keys:  # Out of order: an early failure overtook, or a response is late.
            count = self._take_from_middle(keys, taken)
            if count == 0:
                unknown.append(keys[0])
            keys = keys[count or 1 :]
        return taken, unknown

    def _take_from_middle(self, keys: Sequence[int], taken: list[PendingAdds]) -> int:
        for position, run in enumerate(self):
            if keys[0] not in run.keys:
                continue
            at = run.keys.index(keys[0])
            count = 1
            while count < len(keys) and at + count < len(run.keys) and run.keys[at + count] == keys[count]:
                count += 1
            if at:
                self.insert(position, run.cut(at))
                position += 1
            if count == len(run.keys):
                del self[position]
                taken.append(run)
            else:
                taken.append(run.cut(count))
            return count
        return 0

    def take_expired(self, now: float) -> Iterator[PendingAdds]:
        """Remove and yield runs whose deadline has passed.

        All adds of a queue use one timeout, so the first are the oldest.
        """
        while self and self[0].deadline <= now:
            yield self.popleft()


_Queues = dict[int, PendingAdds | AddQueue]


def _queue_at(queues: _Queues, where: int) -> AddQueue | None:
    """Return the queue that is kept there, a single run as a queue too, for the uncommon operations."""
    kept = queues.get(where)
    if isinstance(kept, PendingAdds):
        queues[where] = kept = AddQueue((kept,))
    return kept


class UnansweredAdds:
    """Adds without an answer, by ledger. `size`: their bytes, sent or waiting to be sent.

    A ledger's only run is kept without a queue: of ten thousand ledgers written one entry at a time, or of one.
    """

    def __init__(self) -> None:
        self.size = 0
        self._of_writers: _Queues = {}
        self._of_recoveries: _Queues = {}  # v2 only: see `_queues_for`

    def __bool__(self) -> bool:
        return bool(self._of_writers or self._of_recoveries)

    def append(self, adds: PendingAdds, where: int, *, is_recovery: bool) -> None:
        """Keep adds that were sent for this ledger, or `V3_ADDS`. `is_recovery`: over v2."""
        self.size += adds.size
        queues = self._of_recoveries if is_recovery else self._of_writers
        kept = queues.get(where)
        if kept is None:
            queues[where] = adds
        elif isinstance(kept, AddQueue):
            kept.append(adds)
        else:
            queues[where] = AddQueue((kept, adds))

    def take_run(self, where: int, keys: Sequence[int]) -> PendingAdds | None:
        """Remove and return the oldest run if a success with these keys answers exactly that: the usual case."""
        kept = self._of_writers.get(where)
        if kept is None or self._of_recoveries:
            return None
        if isinstance(kept, AddQueue):
            if not kept or kept[0].keys != keys:
                return None
            run = kept.popleft()
        elif kept.keys != keys:
            return None
        else:
            run = kept
            del self._of_writers[where]
        self.size -= run.size
        return run

    def take(self, response: AddResponses, keys: Sequence[int]) -> Iterator[PendingAdds]:
        """Remove and yield the adds that a response with these keys answers."""
        for queues, where in self._queues_for(response):
            queue = _queue_at(queues, where)
            if queue is None:
                continue
            taken, keys = queue.take(keys)
            for adds in taken:
                self.size -= adds.size
                yield adds
            if not keys:
                return

    def _queues_for(self, response: AddResponses) -> list[tuple[_Queues, int]]:
        """Return the queues in which to look up a response, first choice first.

        A writer and a recovery of one ledger in one process may both add an entry over this connection. Their responses
        look alike, but only the writer's add can be refused as fenced. So a success goes to the recovery (the entry is
        stored, whichever request stored it) and a refusal to the writer.
        """
        if response.txn_ids is not None:
            return [(self._of_writers, V3_ADDS)]
        if not self._of_recoveries:
            return [(self._of_writers, response.ledger_id)]
        order = [(self._of_writers, response.ledger_id), (self._of_recoveries, response.ledger_id)]
        return order[::-1] if response.status is Status.OK else order

    def take_expired(self, now: float) -> Iterator[PendingAdds]:
        """Remove and yield the adds whose deadline has passed."""
        for queues in (self._of_writers, self._of_recoveries):
            for where, kept in list(queues.items()):
                # A sink that hears of a failure may close the connection, which takes all adds.
                if queues.get(where) is not kept or (isinstance(kept, PendingAdds) and kept.deadline > now):
                    continue
                queue = _queue_at(queues, where)
                assert queue is not None
                for adds in queue.take_expired(now):
                    self.size -= adds.size
                    yield adds
                # Not as soon as it is empty: a ledger whose runs overlap would create a new queue each time.
                if not queue and queues.get(where) is queue:
                    del queues[where]

    def take_all(self) -> list[PendingAdds]:
        """Remove and return all adds."""
        taken: list[PendingAdds] = []
        for queues in (self._of_writers, self._of_recoveries):
            for where in list(queues):
                queue = _queue_at(queues, where) or AddQueue()
                taken += queue
                queue.clear()
            queues.clear()
        self.size = 0
        return taken


class HeldAdds:
    """Adds that wait until it is proved that their ledger is open, with their frames. `size`: bytes of the adds."""

    def __init__(self) -> None:
        self.size = 0
        self._by_proof: dict[OpenProof, deque[tuple[PendingAdds, Sequence[Buffer]]]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_proof)

    def __contains__(self, proof: OpenProof) -> bool:
        return proof in self._by_proof

    def proofs(self) -> list[OpenProof]:
        """Return the proofs for which adds wait."""
        return list(self._by_proof)

    def append(self, adds: PendingAdds, buffers: Sequence[Buffer], proof: OpenProof) -> bool:
        """Hold adds. Return whether they are the first that wait for this proof."""
        self.size += adds.size
        held = self._by_proof.get(proof)
        if held is not None:
            held.append((adds, buffers))
            return False
        self._by_proof[proof] = deque([(adds, buffers)])
        return True

    def take(self, proof: OpenProof) -> deque[tuple[PendingAdds, Sequence[Buffer]]]:
        """Remove and return the adds that wait for this proof, with their frames."""
        held = self._by_proof.pop(proof, deque())
        self.size -= sum(adds.size for adds, _ in held)
        return held

    def take_expired(self, now: float) -> Iterator[PendingAdds]:
        """Remove and yield the adds whose deadline has passed."""
        for proof, held in list(self._by_proof.items()):
            # A sink that hears of a failure may close the connection, which takes all adds.
            while self._by_proof.get(proof) is held and held and held[0][0].deadline <= now:
                adds, _ = held.popleft()
                self.size -= adds.size
                yield adds
            if not held and self._by_proof.get(proof) is held:
                del self._by_proof[proof]

    def take_all(self) -> list[PendingAdds]:
        """Remove and return all adds."""
        return [adds for proof in self.proofs() for adds, _ in self.take(proof)]


class Answer(asyncio.Future[Outcome]):
    """The outcome of a request other than an add. `waiter`: done with it; may be cancelled without giving it up."""

    __slots__ = ("waiter",)

    def __init__(self, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Wake the waiter, if there is one that waits."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class UnansweredRequest:
    """A request other than an add. `key`: None if responses are matched by transaction or request id."""

    __slots__ = ("deadline", "future", "is_fencing", "key")

    def __init__(self, future: Answer, deadline: float, key: ReadKey | None = None, is_fencing: bool = False) -> None:
        self.future = future
        self.deadline = deadline
        self.key = key
        self.is_fencing = is_fencing

    def finish(self, outcome: Outcome) -> bool:
        """Report the outcome, unless the request was given up. Return whether it was not."""
        answer = self.future
        if answer.done():
            return False
        answer.set_result(outcome)
        answer.wake()
        return True


class UnansweredRequests:
    """Requests other than adds without an answer: by transaction or request id, and the v2 reads by entry."""

    def __init__(self) -> None:
        self._next_txn_id = 1
        self._by_txn_id: dict[int, UnansweredRequest] = {}
        self._reads: dict[ReadKey, list[UnansweredRequest]] = {}  # nearly always one
        self._abandoned: dict[ReadKey, int] = {}  # v2 reads given up whose responses may still arrive

    def __bool__(self) -> bool:
        return bool(self._by_txn_id or self._reads)

    @property
    def abandoned_count(self) -> int:
        """Return for how many entries a v2 read was given up whose response may still arrive."""
        return len(self._abandoned)

    def next_txn_ids(self, count: int) -> range:
        first = self._next_txn_id
        self._next_txn_id += count
        return range(first, first + count)

    def accepts_read(self, key: ReadKey, is_fencing: bool) -> bool:
        """Report whether the response to a v2 read can be told from the responses that are still to come."""
        if is_fencing and key in self._abandoned:
            return False
        waiting = self._reads.get(key)
        return not waiting or waiting[0].is_fencing == is_fencing  # All requests of one key agree in this.

    def append(self, request: UnansweredRequest, txn_id: int | None) -> None:
        """Keep a request that was sent. `txn_id`: None for a v2 read."""
        if txn_id is not None:
            self._by_txn_id[txn_id] = request
            return
        assert request.key is not None
        self._reads.setdefault(request.key, []).append(request)

    def take(self, txn_id: int) -> UnansweredRequest | None:
        return self._by_txn_id.pop(txn_id, None)

    def take_read(self, key: ReadKey) -> UnansweredRequest | None:
        """Remove and return the oldest v2 read of this entry that was not given up."""
        waiting = self._reads.get(key)
        request: UnansweredRequest | None = None
        while waiting:
            request = waiting.pop(0)
            if not request.future.done():
                break
            self._abandon(request)
            request = None
        if request is None and (abandoned := self._abandoned.pop(key, 0)) > 1:
            self._abandoned[key] = abandoned - 1
        if not waiting:
            self._reads.pop(key, None)
        return request

    def take_expired(self, now: float) -> Iterator[UnansweredRequest]:
        """Remove and yield the requests whose deadline has passed. Forget those that were given up."""
        for txn_id, request in list(self._by_txn_id.items()):
            if request.deadline <= now or request.future.done():
                del self._by_txn_id[txn_id]
                yield request
        for key, waiting in list(self._reads.items()):
            for request in list(waiting):
                if request.deadline <= now or request.future.done():
                    waiting.remove(request)
                    self._abandon(request)
                    yield request
            if not waiting and self._reads.get(key) is waiting:
                del self._reads[key]

    def take_all(self) -> list[UnansweredRequest]:
        """Remove and return all requests."""
        requests = [request for waiting in self._reads.values() for request in waiting]
        requests += self._by_txn_id.values()
        for kept in (self._reads, self._by_txn_id, self._abandoned):
            kept.clear()
        return requests

    def _abandon(self, request: UnansweredRequest) -> None:
        assert request.key is not None
        self._abandoned[request.key] = self._abandoned.get(request.key, 0) + 1


def _equal(one: Sequence[int], other: Sequence[int]) -> bool:
    """Report whether two sequences, ranges or lists, hold the same numbers."""
    if one[0] != other[0] or one[-1] != other[-1]:
        return False
    return one == other if type(one) is type(other) else list(one) == list(other)
