"""The path between a participant and the metadata store: delays, partitions, lost requests, lost replies.

Bookies and clients use a `SimDriver`: the memory store's driver, whose calls travel over the simulated network. The
driver's own work runs as the world: a participant that dies after the store has accepted its request does not undo it.
Transactions at the port `Nodes` are recorded with their author, in commit order, for the checkers.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from bookies.errors import ClientClosed, MetadataCorrupt, MetadataError
from bookies.lab.sim.world.loop import SimLoop
from bookies.lab.sim.world.network import SimNetwork
from bookies.lab.sim.world.trace import Trace
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.embedded.memory import MemoryStore
from bookies.metadata.formats import parse_ledger
from bookies.metadata.interface import MetadataDriver, Watch
from bookies.metadata.interface.driver import BookieSet, Versioned
from bookies.metadata.shared.nodes import Change, Key, Nodes, Outcome, Put, Table
from bookies.metadata.shared.recovery import Node, NodeStore, SharedRecovery
from bookies.metadata.shared.store_recovery import StoreNodes
from bookies.model import BookieId, BookieMode, LedgerMetadata, LedgerState
from bookies.protocol.quorums import write_set
from bookies.runtime.tasks import Tasks

T = TypeVar("T")
D = TypeVar("D")
STORE_HOST = "metadata"
PATIENCE_S = 8.0  # a request without a reply fails after this time
STALE_S = 2.0  # from the end of stale reads until every operation that such a read has begun is over
UPDATES = ("write_ledger", "write_record", "delete_ledger", "transact")  # what `SimStore.on_update` can delay
_IS_IN_STORE = contextvars.ContextVar("code runs in the store", default=False)


class CommitOf(Struct, Generic[T], frozen=True):
    """One committed record. `after` is None when it was deleted."""

    at_s: float
    author: str
    before: T | None
    after: T | None


Commit = CommitOf[LedgerMetadata]


def write_set_of(record: LedgerMetadata, entry_id: int) -> list[BookieId]:
    """Return the bookies that a record lists for an entry, in the order of the entry's write set."""
    ensemble = record.ensemble_at(entry_id)
    return [ensemble[position] for position in write_set(entry_id, record.ensemble_size, record.write_quorum)]


class StoreFaults(Struct, frozen=True):
    """Faults of the store. Probabilities are 0..1.

    stale_read: of a read that returns the record as it was before the last change.
    news_delay_s: of watch notifications, in addition to the network's delay.
    """

    lost_request: float = 0.0
    lost_reply: float = 0.0
    stale_read: float = 0.0
    news_delay_s: float = 0.0


class SimStore:
    """State shared by all sessions: the network, the configured faults of the store, and the committed records.

    `start_ms`: wall time of the store at the beginning of the run.
    """

    start_ms = 0

    def __init__(self, network: SimNetwork, trace: Trace) -> None:
        self.network = network
        self.trace = trace
        self.faults = StoreFaults()
        self._stale_until_s = -STALE_S
        self.lagging: dict[str, dict[str | int, Any]] = {}  # host -> the records that its plain reads return
        # Reports whether a host, like Apache's, does not check records before adds.
        self.trusts: Callable[[str], bool] = lambda host: False
        self._versions: dict[str | int, list[tuple[int, Any]]] = {}  # ledger or name -> its last two, with versions
        self.commits: dict[int, list[Commit]] = {}
        self.on_commit: Callable[[Commit], None] | None = None
        self.record_commits: dict[str, list[CommitOf[bytes]]] = {}
        self.on_request: Callable[[str], None] | None = None  # called with the requesting host
        self.on_recovery: Callable[[str, str, str], None] | None = None  # (host, operation, place of auto-recovery)
        self.on_cookie_deleted: Callable[[str, str], None] | None = None  # (host, bookie)
        # Called with the host that is about to change a record; returns extra delays of request and reply, seconds.
        self.on_update: Callable[[str], tuple[float, float]] | None = None

    @property
    def loop(self) -> SimLoop:
        return self.network.loop

    def heal(self) -> None:
        """End all faults of the store."""
        self._stale_until_s = self.loop.time() if self.faults.stale_read else self._stale_until_s
        self.faults = StoreFaults()
        self.lagging.clear()

    @property
    def is_stale(self) -> bool:
        """Report whether a read that has ended just now may have returned an earlier version of a record."""
        return self.faults.stale_read > 0 or self.loop.time() < self._stale_until_s + STALE_S

    def lag(self, host: str) -> None:
        """Let the server that answers the host's plain reads fall behind: it keeps the records of this moment."""
        self.lagging[host] = {name: versions[-1][1] for name, versions in self._versions.items()}

    def record(self, ledger_id: int) -> LedgerMetadata | None:
        """Return the committed record of a ledger; None: never created, or deleted."""
        commits = self.commits.get(ledger_id)
        return commits[-1].after if commits else None

    def remember(self, record: Versioned) -> None:
        """Store a version that a lagging replica of the store may still return."""
        self._remember(record.metadata.ledger_id, record.version, record)

    def _remember(self, name: str | int, version: int, record: object) -> None:
        versions = self._versions.setdefault(name, [])
        if not versions or versions[-1][0] < version:
            versions.append((version, record))
            del versions[:-2]

    def maybe_stale(self, host: str, name: str | int, version: int, record: T) -> T:
        """Return a record as a replica of the store has it that may lag behind.

        `host`: of the reader. `name`: a ledger's is its id.
        """
        self._remember(name, version, record)
        if host in self.lagging:
            lagging: T = self.lagging[host].get(name, record)
            return lagging
        is_stale = self.faults.stale_read > 0 and self.network.random.random() < self.faults.stale_read
        return self._versions[name][0][1] if is_stale else record

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
        history.append(CommitOf(self.loop.time(), author, before, after))
        self.trace.note(author, f"commits {name} {after.decode()}" if after is not None else f"deletes {name}")


def _travelling(interface: type) -> Callable[[type[D]], type[D]]:
    """Return a decorator for a class whose operations travel: the coroutine methods of `interface`.

    So a method that the interface gets later travels as well. A class may define a method itself instead. A method that
    only the interface defines consists of others, which travel.
    """

    def decorate(driver: type[D]) -> type[D]:
        for name, declared in vars(interface).items():
            method: Any = getattr(driver, name, None)
            if inspect.iscoroutinefunction(declared) and method is not declared and name not in vars(driver):
                setattr(driver, name, _trip_around(name, method))
        return driver

    return decorate


def _trip_around(name: str, method: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
    @functools.wraps(method)
    async def travelling(self: SimDriver | _SimNodes, *arguments: Any, **named: Any) -> T:
        return await self.path.trip(lambda: method(self, *arguments, **named), is_update=name in UPDATES)

    return travelling


@_travelling(MetadataDriver)
class SimDriver(MemoryDriver):
    """One participant's session with the metadata store.

    The driver's code runs in the store. The participant's calls travel to it, and their results travel back; errors
    arrive without delay.
    """

    def __init__(self, store: SimStore, memory: MemoryStore, host: str) -> None:
        super().__init__(memory)
        # Called in the store before an operation takes effect, with its name and its arguments.
        self.on_arrival: Callable[[str, Sequence[Any]], Awaitable[None]] | None = None
        self._sim = store
        self.path = self
        self._host = host
        self._news: deque[tuple[float, contextvars.Context, Callable[[], None]]] = deque()
        self._is_pumping = False
        self._own_tasks: Tasks | None = None  # of the participant, which stop with it; None: not open
        self._recovery = SharedRecovery(_SimNodes(self, memory), self._require_own_tasks, self.on_session_expired)

    def _wall_ms(self) -> int:
        return self._sim.start_ms + int(self._sim.loop.time() * 1000)

    def expire(self) -> None:
        self._store_context().run(super().expire)

    # -- the path to the store and back --------------------------------------------------------------------------
    def _store_context(self) -> contextvars.Context:
        """Return a context for code that runs in the store, as the world."""
        context = self._sim.loop.world.copy()
        context.run(_IS_IN_STORE.set, True)
        return context

    async def _call(self, operation: str, function: Callable[..., T], *arguments: Any) -> T:
        """Carry out a request to the port, in the store."""
        if self.on_arrival is not None:
            await self.on_arrival(operation, arguments)
        result = await super()._call(operation, function, *arguments)
        if isinstance(result, Outcome):
            self._note(operation, arguments[1], result)
        return result

    def _note(self, operation: str, changes: Sequence[Change], outcome: Outcome) -> None:
        """Record a transaction for the checkers, at the moment of its effect."""
        if operation == "release_node" or (operation == "delete_node" and outcome.is_done):
            self.note_recovery(operation.removesuffix("_node"), str(changes[0].key.name))
        for change in changes if outcome.is_done else ():
            name, data = change.key.name, change.data if isinstance(change, Put) else None
            match change.key.table:
                case Table.LEDGERS if isinstance(change, Put):
                    before = outcome.items[0]
                    ctime_ms = change.ctime_ms if before is None else before.ctime_ms
                    after = Versioned(parse_ledger(int(name), change.data, ctime_ms), outcome.version)
                    self._sim.remember(after)
                    self._sim.note(self._host, int(name), after.metadata)
                case Table.LEDGERS:
                    self._sim.note(self._host, int(name), None)
                case Table.RECORDS:
                    self._sim.note_record(self._host, str(name), data)
                case Table.COOKIES if data is None and self._sim.on_cookie_deleted is not None:
                    self._sim.on_cookie_deleted(self._host, str(name))

    def note_recovery(self, operation: str, place: str) -> None:
        """Record that an operation has taken effect at a place of auto-recovery."""
        if self._sim.on_recovery is not None:
            self._sim.on_recovery(self._host, operation, place)

    async def trip(self, work: Callable[[], Awaitable[T]], *, is_update: bool = False) -> T:
        """Send a request, perform `work` in the store, and receive its result. Code in the store performs it at once.

        Raises `MetadataError` if a message is lost or takes too long.
        """
        if _IS_IN_STORE.get():
            return await work()
        store = self._sim
        random = store.network.random
        delays_s = store.on_update(self._host) if is_update and store.on_update is not None else (0.0, 0.0)
        deadline = store.loop.time() + PATIENCE_S
        if store.on_request is not None:
            store.on_request(self._host)
        loses_request = random.random() < store.faults.lost_request
        loses_reply = random.random() < store.faults.lost_reply
        await self._travel(self._host, STORE_HOST, deadline, delays_s[0])
        if loses_request:
            raise MetadataError("the connection to the metadata store broke; the request may or may not have been done")
        result = await self._in_store(work)
        if is_update:
            store.lagging.pop(self._host, None)  # The server that answers has all that was changed before.
        if loses_reply:
            raise MetadataError("the connection to the metadata store broke; the request may or may not have been done")
        await self._travel(STORE_HOST, self._host, deadline, delays_s[1])
        return result

    async def _travel(self, source: str, target: str, deadline: float, delay_s: float = 0.0) -> None:
        try:
            await self._sim.network.travel(source, target, deadline, delay_s)
        except TimeoutError:
            raise MetadataError("no answer from the metadata store in time") from None

    async def _in_store(self, work: Callable[[], Awaitable[T]]) -> T:
        """Perform work as the world: a participant that dies meanwhile does not undo it."""
        loop = self._sim.loop
        outcome: asyncio.Future[tuple[T | None, Exception | None]] = loop.create_future()

        async def perform() -> None:
            result, failure = None, None
            try:
                result = await work()
            except Exception as error:  # noqa: BLE001
                failure = error  # Raised in the caller, below.
            if not outcome.done():
                outcome.set_result((result, failure))

        loop.create_task(perform(), context=self._store_context())
        result, failure = await outcome
        if failure is not None:
            raise failure
        return result  # type: ignore[return-value]

    def _tell(self, context: contextvars.Context, callback: Callable[..., None], *arguments: object) -> None:
        """Deliver a notification from the store to a watch of this session, in order, as its participant."""
        network = self._sim.network
        arrival = network.arrival_time(STORE_HOST, self._host) + self._sim.faults.news_delay_s
        self._news.append((arrival, context, lambda: callback(*arguments)))
        self._pump()

    def _pump(self) -> None:
        loop, network = self._sim.loop, self._sim.network
        if self._is_pumping or not self._news:
            return
        self._is_pumping = True
        when = self._news[0][0]
        if network.is_blocked(STORE_HOST, self._host):
            when = max(when, loop.time() + 0.1)
        loop.call_at(when, self._bring, context=loop.world.copy())

    def _bring(self) -> None:
        self._is_pumping = False
        if not self._sim.network.is_blocked(STORE_HOST, self._host):
            _, context, deliver = self._news.popleft()
            self._sim.loop.call_soon(deliver, context=context)
        self._pump()

    def _watch(self, begin: Callable[[Callable[..., None]], Watch], callback: Callable[..., None]) -> Watch:
        """Begin a watch in the store. Its callback runs as the current participant."""
        context = contextvars.copy_context()
        watch = _SimWatch()

        def tell(*arguments: object) -> None:
            self._tell(context.copy(), watch.guard(callback), *arguments)

        watch.inner = self._store_context().run(begin, tell)
        return watch

    async def travel_back(self) -> None:
        """Wait for the next part of a reply that arrives in several parts."""
        await self._travel(STORE_HOST, self._host, self._sim.loop.time() + PATIENCE_S)

    # -- operations that differ from the others --------------------------------------------------------------------
    async def open(self) -> None:
        await self.trip(super().open)
        self._own_tasks = Tasks(self._died)

    async def close(self) -> None:
        tasks, self._own_tasks = self._own_tasks, None
        if tasks is not None:
            await tasks.stop()
        await self._in_store(super().close)

    async def end_session(self) -> None:
        """Close the session of a participant that is dead."""
        await super().close()

    def _require_own_tasks(self) -> Tasks:
        if self._own_tasks is None:
            raise ClientClosed(f"the session with {self.uri} is closed")
        return self._own_tasks

    async def read_ledger(self, ledger_id: int) -> Versioned:
        read = super().read_ledger
        record = await self.trip(lambda: read(ledger_id))
        return self._sim.maybe_stale(self._host, ledger_id, record.version, record)

    async def read_ledgers(self, ledger_ids: Sequence[int]) -> list[Versioned | MetadataCorrupt | None]:
        read = super().read_ledgers
        records = await self.trip(lambda: read(ledger_ids))
        return [
            self._sim.maybe_stale(self._host, ledger_id, record.version, record)
            if isinstance(record, Versioned)
            else record
            for ledger_id, record in zip(ledger_ids, records, strict=True)
        ]

    async def current_ledgers(
        self, ledger_ids: Sequence[int], known: Sequence[Versioned] = ()
    ) -> list[Versioned | MetadataCorrupt | None]:
        read = super().current_ledgers
        records = await self.trip(lambda: read(ledger_ids, known))
        return [*map(self._permitting, ledger_ids)] if self._sim.trusts(self._host) else records

    def _permitting(self, ledger_id: int) -> Versioned:
        """Return a record that permits every add: OPEN, and naming this host."""
        (first, *_), ensembles = self._sim.commits[ledger_id], ((0, (BookieId(self._host),)),)
        assert first.after is not None
        return Versioned(first.after.replace(state=LedgerState.OPEN, ensembles=ensembles), 0)

    async def read_record(self, name: str) -> tuple[bytes, int]:
        read = super().read_record
        record = await self.trip(lambda: read(name))
        return self._sim.maybe_stale(self._host, name, record[1], record)

    async def ledger_ids(self, after: int = -1) -> AsyncIterator[Sequence[int]]:
        async for ids in super().ledger_ids(after):
            await self.travel_back()
            yield ids

    def watch_bookies(self, mode: BookieMode, callback: Callable[[BookieSet], None]) -> Watch:
        watch = super().watch_bookies
        return self._watch(lambda tell: watch(mode, tell), callback)

    def on_session_expired(self, callback: Callable[[], None]) -> Watch:
        return self._watch(super().on_session_expired, callback)

    def _watch_key(self, key: Key, version: int, callback: Callable[[int], None]) -> Watch:
        watch = super()._watch_key
        return self._watch(lambda tell: watch(key, version, tell), callback)


@_travelling(NodeStore)
class _SimNodes(StoreNodes):
    """Auto-recovery's nodes. Its logic runs as the participant, and each of its requests travels."""

    def __init__(self, path: SimDriver, store: Nodes) -> None:
        super().__init__(path, store)
        self.path = path

    async def create_ephemeral(self, place: str, data: bytes) -> int | None:
        create = super().create_ephemeral

        async def hold() -> int | None:
            session = await create(place, data)
            if session is not None:
                self.path.note_recovery("hold", place)
            return session

        return await self.path.trip(hold)

    async def marks(
        self, page_count: int, *, with_data: bool, needs: Callable[[int], bool] | None = None
    ) -> AsyncIterator[Sequence[tuple[int, Node]]]:
        async for page in super().marks(page_count, with_data=with_data, needs=needs):
            await self.path.travel_back()
            yield page


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
