"""The path between a participant and the metadata store: delays, partitions, lost requests, lost replies.

Bookies and clients use a `SimDriver`, which wraps a session of the memory store's driver. The store's own work runs as
the world: a participant that dies after the store has accepted its request does not undo it. The store records every
commit of a ledger's record with its author, in commit order, for the checkers.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from bookies.errors import ClientClosed, MetadataCorrupt, MetadataError
from bookies.lab.sim.world.loop import SimLoop
from bookies.lab.sim.world.network import SimNetwork
from bookies.lab.sim.world.sim_recovery import SimArea
from bookies.lab.sim.world.trace import Trace
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.interface import MetadataDriver, RecoveryStore, Watch
from bookies.metadata.interface.driver import (
    BookieSet,
    GivenIds,
    LedgerDeletion,
    LedgerEvent,
    RecordWrite,
    Step,
    Versioned,
)
from bookies.metadata.interface.recovery_store import LedgerLock
from bookies.metadata.shared.recovery import SharedRecovery
from bookies.model import BookieId, BookieInfo, BookieMode, LedgerMetadata
from bookies.runtime.tasks import Tasks

T = TypeVar("T")
STORE_HOST = "metadata"
PATIENCE_S = 8.0  # a request without a reply fails after this time


@dataclass(frozen=True, slots=True)
class Commit:
    """One committed record of a ledger. `after` is None when it was deleted."""

    at_s: float
    author: str
    before: LedgerMetadata | None
    after: LedgerMetadata | None


class SimStore:
    """State shared by all sessions: the network, the configured faults of the store, and the committed records."""

    def __init__(self, loop: SimLoop, network: SimNetwork, trace: Trace) -> None:
        self.loop = loop
        self.network = network
        self.trace = trace
        self.lost_request_probability = 0.0
        self.lost_reply_probability = 0.0
        self.stale_read_probability = 0.0  # of a read that returns the record as it was before the last change
        self.news_delay_s = 0.0  # of watch notifications, in addition to the network's delay
        self._versions: dict[int, list[Versioned]] = {}  # the last two of each ledger's record
        self._named: dict[str, list[tuple[bytes, int]]] = {}  # the last two of each named record
        self.commits: dict[int, list[Commit]] = {}
        self.on_commit: Callable[[Commit], None] | None = None
        self.record_commits: dict[str, list[RecordCommit]] = {}
        self.on_request: Callable[[str], None] | None = None  # called with the requesting host
        self.on_recovery: Callable[[str, str, str], None] | None = None  # (host, operation, place of auto-recovery)
        self.on_cookie_deleted: Callable[[str, str], None] | None = None  # (host, bookie)
        # Called with the host that is about to change a record; returns extra delays of request and reply, seconds.
        self.on_update: Callable[[str], tuple[float, float]] | None = None

    def heal(self) -> None:
        """End all faults of the store."""
        self.lost_request_probability = self.lost_reply_probability = self.stale_read_probability = 0.0
        self.news_delay_s = 0.0

    def record(self, ledger_id: int) -> LedgerMetadata | None:
        """Return the committed record of a ledger; None: never created, or deleted."""
        commits = self.commits.get(ledger_id)
        return commits[-1].after if commits else None

    def remember(self, record: Versioned) -> None:
        """Store a version that a lagging replica of the store may still return."""
        versions = self._versions.setdefault(record.metadata.ledger_id, [])
        if not versions or versions[-1].version < record.version:
            versions.append(record)
            del versions[:-2]

    def maybe_stale(self, record: Versioned) -> Versioned:
        """Return a ledger's record as a replica has it that may lag behind by one change."""
        self.remember(record)
        is_stale = self.stale_read_probability > 0 and self.network.random.random() < self.stale_read_probability
        return self._versions[record.metadata.ledger_id][0] if is_stale else record

    def maybe_stale_record(self, name: str, record: tuple[bytes, int]) -> tuple[bytes, int]:
        """Return a named record as a replica has it that may lag behind by one change."""
        versions = self._named.setdefault(name, [])
        if not versions or versions[-1][1] < record[1]:
            versions.append(record)
            del versions[:-2]
        is_stale = self.stale_read_probability > 0 and self.network.random.random() < self.stale_read_probability
        return versions[0] if is_stale else record

    def note(self, author: str, ledger_id: int, after: LedgerMetadata | None) -> None:
        """Record the commit of a ledger's record. `after`: None if the record was deleted."""
        history = self.commits.setdefault(ledger_id, [])
        before = history[-1].after if history else None
        if after == before:
            return  # A retried creation that found its own record, or a deletion that found no record.
        history.append(Commit(self.loop.time(), author, before, after))
        if self.on_commit is not None:
            self.on_commit(history[-1])
        self.trace.note(author, f"commits {after!r}" if after else f"deletes ledger {ledger_id}")

    def note_record(self, author: str, name: str, after: bytes | None) -> None:
        """Record the commit of a named record. `after`: None if the record was deleted."""
        history = self.record_commits.setdefault(name, [])
        before = history[-1].after if history else None
        history.append(RecordCommit(self.loop.time(), author, before, after))
        self.trace.note(author, f"commits {name} {after.decode()}" if after is not None else f"deletes {name}")


@dataclass(frozen=True, slots=True)
class RecordCommit:
    """One committed named record. `after` is None when it was deleted."""

    at_s: float
    author: str
    before: bytes | None
    after: bytes | None


class SimDriver(MetadataDriver):
    """One participant's session with the metadata store."""

    def __init__(self, store: SimStore, inner: MemoryDriver, host: str) -> None:
        self.uri = inner.uri
        self.inner = inner
        self.operations = inner.operations
        self._store = store
        self._host = host
        self._news: deque[tuple[float, contextvars.Context, Callable[[], None]]] = deque()
        self._is_pumping = False
        self._tasks: Tasks | None = None  # None: not open
        self._recovery = SharedRecovery(
            SimArea(self, inner.recovery.nodes), self._require_open, self.on_session_expired
        )

    def expire(self) -> None:
        """Expire this session."""
        self._store.loop.world.copy().run(self.inner.expire)

    # -- the path to the store and back --------------------------------------------------------------------------
    async def call(
        self,
        work: Callable[[], Awaitable[T]],
        then: Callable[[T], None] | None = None,
        delays_s: tuple[float, float] = (0.0, 0.0),
    ) -> T:
        """Send a request, perform `work` in the store, and receive its result.

        `then` is called with the result at the moment of the effect. `delays_s`: extra seconds of request and reply.
        Raises `MetadataError` if a message is lost or takes too long.
        """
        store = self._store
        random = store.network.random
        deadline = store.loop.time() + PATIENCE_S
        if store.on_request is not None:
            store.on_request(self._host)
        loses_request = random.random() < store.lost_request_probability
        loses_reply = random.random() < store.lost_reply_probability
        await self._travel(self._host, STORE_HOST, deadline, delays_s[0])
        if loses_request:
            raise MetadataError("the connection to the metadata store broke; the request may or may not have been done")
        result = await self._as_the_world(work, then)
        if loses_reply:
            raise MetadataError("the connection to the metadata store broke; the request may or may not have been done")
        await self._travel(STORE_HOST, self._host, deadline, delays_s[1])
        return result

    async def _travel(self, source: str, target: str, deadline: float, delay_s: float = 0.0) -> None:
        try:
            await self._store.network.travel(source, target, deadline, delay_s)
        except TimeoutError:
            raise MetadataError("no answer from the metadata store in time") from None

    async def _as_the_world(self, work: Callable[[], Awaitable[T]], then: Callable[[T], None] | None) -> T:
        loop = self._store.loop
        outcome: asyncio.Future[tuple[T | None, Exception | None]] = loop.create_future()

        async def perform() -> None:
            result, failure = None, None
            try:
                result = await work()
                if then is not None:
                    then(result)
            except Exception as error:  # noqa: BLE001
                failure = error  # Raised in the caller, below.
            if not outcome.done():
                outcome.set_result((result, failure))

        loop.create_task(perform(), context=loop.world.copy())
        result, failure = await outcome
        if failure is not None:
            raise failure
        return result  # type: ignore[return-value]

    def _tell(self, context: contextvars.Context, callback: Callable[..., None], *arguments: object) -> None:
        """Deliver a notification from the store to a watch of this session, in order, as its participant."""
        network = self._store.network
        arrival = network.arrival_time(STORE_HOST, self._host) + self._store.news_delay_s
        self._news.append((arrival, context, lambda: callback(*arguments)))
        self._pump()

    def _pump(self) -> None:
        loop, network = self._store.loop, self._store.network
        if self._is_pumping or not self._news:
            return
        self._is_pumping = True
        when = self._news[0][0]
        if network.is_blocked(STORE_HOST, self._host):
            when = max(when, loop.time() + 0.1)
        loop.call_at(when, self._bring, context=loop.world.copy())

    def _bring(self) -> None:
        self._is_pumping = False
        if not self._store.network.is_blocked(STORE_HOST, self._host):
            _, context, deliver = self._news.popleft()
            self._store.loop.call_soon(deliver, context=context)
        self._pump()

    def watch(self, begin: Callable[[Callable[..., None]], Watch], callback: Callable[..., None]) -> Watch:
        """Begin a watch as the world. Its callback runs as the current participant."""
        context = contextvars.copy_context()
        watch = _SimWatch()

        def tell(*arguments: object) -> None:
            self._tell(context.copy(), watch.guard(callback), *arguments)

        watch.inner = self._store.loop.world.copy().run(begin, tell)
        return watch

    # -- MetadataDriver ------------------------------------------------------------------------------------------
    async def open(self) -> None:
        await self.call(self.inner.open)
        self._tasks = Tasks(self._died)

    def _died(self, cause: BaseException) -> None:
        raise cause

    def _require_open(self) -> Tasks:
        if self._tasks is None:
            raise ClientClosed(f"the session with {self.uri} is closed")
        return self._tasks

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, None
        if tasks is not None:
            await tasks.stop()
        await self._as_the_world(self.inner.close, None)

    async def initialize_cluster(self) -> str:
        return await self.call(self.inner.initialize_cluster)

    async def instance_id(self) -> str | None:
        return await self.call(self.inner.instance_id)

    async def given_ids(self) -> GivenIds:
        return await self.call(self.inner.given_ids)

    async def restore_ids(self, ids: GivenIds) -> None:
        await self.call(lambda: self.inner.restore_ids(ids))

    async def restore_instance_id(self, instance_id: str) -> None:
        await self.call(lambda: self.inner.restore_instance_id(instance_id))

    async def next_ledger_id(self) -> int:
        return await self.call(self.inner.next_ledger_id)

    async def create_ledger(self, metadata: LedgerMetadata) -> Versioned:
        return await self.call(lambda: self.inner.create_ledger(metadata), self._note_commit)

    async def read_ledger(self, ledger_id: int) -> Versioned:
        return self._store.maybe_stale(await self.call(lambda: self.inner.read_ledger(ledger_id)))

    async def read_ledgers(self, ledger_ids: Sequence[int]) -> list[Versioned | MetadataCorrupt | None]:
        records = await self.call(lambda: self.inner.read_ledgers(ledger_ids))
        return [self._store.maybe_stale(record) if isinstance(record, Versioned) else record for record in records]

    async def write_ledger(
        self, metadata: LedgerMetadata, expected_version: int, lock: LedgerLock | None = None
    ) -> Versioned:
        delays_s = self._store.on_update(self._host) if self._store.on_update is not None else (0.0, 0.0)
        return await self.call(
            lambda: self.inner.write_ledger(metadata, expected_version, lock), self._note_commit, delays_s
        )

    def _note_commit(self, written: Versioned) -> None:
        self._store.remember(written)
        self._store.note(self._host, written.metadata.ledger_id, written.metadata)

    async def delete_ledger(self, ledger_id: int, expected_version: int | None = None) -> None:
        await self.call(
            lambda: self.inner.delete_ledger(ledger_id, expected_version),
            lambda _: self._store.note(self._host, ledger_id, None),
        )

    async def travel_back(self) -> None:
        """Wait for the next part of a reply that arrives in several parts."""
        await self._travel(STORE_HOST, self._host, self._store.loop.time() + PATIENCE_S)

    async def ledger_ids(self) -> AsyncIterator[Sequence[int]]:
        async for ids in self.inner.ledger_ids():
            await self.travel_back()
            yield ids

    def watch_ledger(self, ledger_id: int, callback: Callable[[LedgerEvent], None]) -> Watch:
        return self.watch(lambda tell: self.inner.watch_ledger(ledger_id, tell), callback)

    async def register(self, bookie: BookieId, mode: BookieMode, info: BookieInfo) -> None:
        await self.call(lambda: self.inner.register(bookie, mode, info))

    async def unregister(self, bookie: BookieId) -> None:
        await self.call(lambda: self.inner.unregister(bookie))

    async def bookies(self, mode: BookieMode) -> BookieSet:
        return await self.call(lambda: self.inner.bookies(mode))

    async def all_bookies(self) -> BookieSet:
        return await self.call(self.inner.all_bookies)

    async def bookie_info(self, bookie: BookieId) -> BookieInfo | None:
        return await self.call(lambda: self.inner.bookie_info(bookie))

    def watch_bookies(self, mode: BookieMode, callback: Callable[[BookieSet], None]) -> Watch:
        return self.watch(lambda tell: self.inner.watch_bookies(mode, tell), callback)

    def on_session_expired(self, callback: Callable[[], None]) -> Watch:
        return self.watch(self.inner.on_session_expired, callback)

    async def create_cookie(self, bookie: BookieId, data: bytes) -> int:
        return await self.call(lambda: self.inner.create_cookie(bookie, data))

    async def read_cookie(self, bookie: BookieId) -> tuple[bytes, int]:
        return await self.call(lambda: self.inner.read_cookie(bookie))

    async def write_cookie(self, bookie: BookieId, data: bytes, expected_version: int) -> int:
        return await self.call(lambda: self.inner.write_cookie(bookie, data, expected_version))

    async def delete_cookie(self, bookie: BookieId, expected_version: int) -> None:
        def note(_: None) -> None:
            if self._store.on_cookie_deleted is not None:
                self._store.on_cookie_deleted(self._host, bookie)

        await self.call(lambda: self.inner.delete_cookie(bookie, expected_version), note)

    async def create_record(self, name: str, data: bytes) -> int:
        return await self.call(lambda: self.inner.create_record(name, data), self._note_record(name, data))

    async def read_record(self, name: str) -> tuple[bytes, int]:
        return self._store.maybe_stale_record(name, await self.call(lambda: self.inner.read_record(name)))

    async def write_record(self, name: str, data: bytes, expected_version: int) -> int:
        delays_s = self._store.on_update(self._host) if self._store.on_update is not None else (0.0, 0.0)
        return await self.call(
            lambda: self.inner.write_record(name, data, expected_version), self._note_record(name, data), delays_s
        )

    async def delete_record(self, name: str, expected_version: int) -> None:
        await self.call(lambda: self.inner.delete_record(name, expected_version), self._note_record(name, None))

    async def transact(self, steps: Sequence[Step]) -> int:
        def note(_: int) -> None:
            for step in steps:
                if isinstance(step, LedgerDeletion):
                    self._store.note(self._host, step.ledger_id, None)
                elif isinstance(step, RecordWrite):
                    self._store.note_record(self._host, step.name, step.data)

        return await self.call(lambda: self.inner.transact(steps), note)

    async def record_names(self, prefix: str) -> Sequence[str]:
        return await self.call(lambda: self.inner.record_names(prefix))

    def watch_record(self, name: str, version: int, callback: Callable[[], None]) -> Watch:
        return self.watch(lambda tell: self.inner.watch_record(name, version, tell), callback)

    def note_recovery(self, operation: str, place: str) -> None:
        if self._store.on_recovery is not None:
            self._store.on_recovery(self._host, operation, place)

    @property
    def recovery(self) -> RecoveryStore:
        return self._recovery

    def _note_record(self, name: str, data: bytes | None) -> Callable[[object], None]:
        """Return a callback for the moment of the commit, which records it for the checkers of named records."""
        return lambda _: self._store.note_record(self._host, name, data)


class _SimWatch(Watch):
    """A watch that drops notifications in flight when it is cancelled."""

    inner: Watch

    def __init__(self) -> None:
        self._is_cancelled = False

    def cancel(self) -> None:
        self._is_cancelled = True
        self.inner.cancel()

    def guard(self, callback: Callable[..., None]) -> Callable[..., Any]:
        def deliver(*arguments: object) -> None:
            if not self._is_cancelled:
                callback(*arguments)

        return deliver
