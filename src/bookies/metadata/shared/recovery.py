"""Auto-recovery's state: the logic that all drivers share, over the operations of one store (`NodeStore`).

Locks. A lock is an ephemeral node: it ends with the session. A request whose answer was lost, or whose caller was
cancelled, may have taken a lock without the caller's knowledge. So this driver remembers every ledger for which it has
requested a lock, never has two requests for one ledger in flight, and releases stray locks in the background. A node
of our own session where this driver holds no lock is such a stray, and the next request takes it over.

Election. A candidate watches its own vote and the one before it. The first vote leads.
Source: metadata 8.1, 8.4, 8.5, 8.8.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from bookies.errors import ClientClosed, InvalidArgument, MetadataError, SessionExpired, StorageError
from bookies.metadata.formats.recovery_formats import (
    pack_checked,
    pack_delay,
    pack_mark,
    pack_owner,
    parse_checked,
    parse_delay,
    parse_mark,
    parse_owner,
)
from bookies.metadata.interface import RecoveryStore, Watch
from bookies.metadata.interface.recovery_store import AuditKind, Candidacy, LedgerLock, Mark
from bookies.model import BookieId
from bookies.runtime.tasks import Tasks

T = TypeVar("T")

PAGE_COUNT = 500  # marks in one page
RETRY_S = 0.2  # after a request that the store did not answer
NO_ANSWER = (MetadataError, StorageError)
DELAY_S_MAX = (1 << 31) - 1  # the largest value that Apache reads
_MARKED_AGAIN_MAX = 1000  # attempts to add to a mark that others keep changing


# -- what a store can do -----------------------------------------------------------------------------------------------


class Node(Struct, frozen=True):
    """A node's data and version. `version` grows with every write, also of equal data, and never returns to an earlier
    value, even if the node is deleted and recreated.
    """

    data: bytes
    version: int


class Vote(Struct, frozen=True):
    """A candidate's vote for auditor. `number`: ascends in the order of voting."""

    number: int
    place: str


class RecoveryPlaces(Protocol):
    """Places of auto-recovery's nodes in the store."""

    def mark(self, ledger_id: int) -> str: ...

    def lock(self, ledger_id: int) -> str: ...

    def checked(self, kind: AuditKind) -> str: ...

    @property
    def switch(self) -> str:
        """Node that exists while auto-recovery is disabled."""

    @property
    def delay(self) -> str: ...

    @property
    def election(self) -> str:
        """Copy of the leader's vote, for operators to read."""


class NodeStore(Protocol):
    """One driver's access to the nodes.

    If a change is refused after an attempt whose outcome is unknown, the implementation reads the node to find out
    whether its own attempt succeeded. A watch calls back at least once after each change, and may call without one.
    """

    @property
    def places(self) -> RecoveryPlaces: ...

    @property
    def session(self) -> int | None:
        """The current session; None: there is none, or nothing depends on it."""

    async def read(self, place: str) -> Node | None: ...

    async def create(self, place: str, data: bytes) -> bool:
        """Create a node. False: it exists."""

    async def write(self, place: str, data: bytes, version: int | None) -> bool:
        """Write the node if it has `version`; None: write or create it unconditionally.

        False: it is missing, or has another version.
        """

    async def delete(self, place: str, version: int | None) -> bool:
        """Delete the node if it has `version`; None: any version. False: it is missing, or has another version.

        Also deletes parent nodes that become empty, if the store has parents.
        """

    async def create_ephemeral(self, place: str, data: bytes) -> int | None:
        """Create a node that ends with the session; return the session. None: another session's node is there.

        A node of our own session stays as it is. Raises `SessionExpired`.
        """

    async def release(self, place: str, session: int) -> None:
        """Delete the node if it belongs to `session`."""

    async def vote(self, data: bytes) -> Vote:
        """Create a node that ends with the session, after all other votes."""

    async def votes(self) -> list[Vote]:
        """Return all votes in the order of voting."""

    async def own_votes(self) -> list[str]:
        """Return the places of this session's votes."""

    def marks(
        self, page_count: int, *, with_data: bool, needs: Callable[[int], bool] | None = None
    ) -> AsyncIterator[Sequence[tuple[int, Node]]]:
        """Yield pages of (ledger, node), ascending by ledger; see `RecoveryStore.marks`.

        A node listed without its data may also lack its version.
        """

    async def locks(self) -> list[tuple[int, bytes]]: ...

    async def locked_ids(self) -> list[int]: ...

    def watch(self, place: str, callback: Callable[[], None]) -> Watch: ...

    def watch_marks(self, callback: Callable[[], None]) -> Watch: ...


# -- the logic ---------------------------------------------------------------------------------------------------------


class SharedRecovery(RecoveryStore):
    """A driver's `RecoveryStore`. `tasks`: returns the driver's tasks; raises if the driver is not open."""

    def __init__(
        self,
        nodes: NodeStore,
        tasks: Callable[[], Tasks],
        on_session_expired: Callable[[Callable[[], None]], Watch],
    ) -> None:
        self.nodes = nodes
        self.tasks = tasks
        self.on_session_expired = on_session_expired
        self._votes: dict[str, None] = {}  # places of the votes of this driver's candidacies
        self._voting = asyncio.Lock()
        self._places = nodes.places
        self._held: dict[int, int | None] = {}  # ledger -> session; None: requested, or being released

    # -- marks ---------------------------------------------------------------------------------------------------
    async def mark(
        self,
        ledger_id: int,
        replicas: Sequence[BookieId],
        now_ms: int | None,
        *,
        is_damage: bool = False,
        stands_ms: int | None = None,
    ) -> bool:
        self.tasks()
        place = self._places.mark(ledger_id)
        missing = tuple(dict.fromkeys(replicas))
        # The lock is read before the mark: a repair that deletes the mark does so before it releases the lock.
        may_stand = stands_ms is not None and await self.nodes.read(self._places.lock(ledger_id)) is None
        for _ in range(_MARKED_AGAIN_MAX):
            if await self.nodes.create(place, pack_mark(missing, now_ms)):
                return True
            node = await self.nodes.read(place)
            if node is None:
                continue  # Repaired at this moment.
            known, known_ms = parse_mark(node.data)
            added = [replica for replica in missing if replica not in known]
            if not added and (not is_damage or (may_stand and known_ms == stands_ms)):
                return False
            if await self.nodes.write(place, pack_mark((*known, *added), now_ms), node.version):
                return True
        raise MetadataError(
            f"the ledger cannot be marked: other processes changed its mark during {_MARKED_AGAIN_MAX:,} attempts; "
            "retry",
            ledger_id=ledger_id,
        )

    async def mark_of(self, ledger_id: int) -> Mark | None:
        self.tasks()
        node = await self.nodes.read(self._places.mark(ledger_id))
        return None if node is None else _mark(ledger_id, node)

    async def marks(self, needs: Callable[[int], bool] | None = None) -> AsyncIterator[Sequence[Mark]]:
        self.tasks()
        async for page in self.nodes.marks(PAGE_COUNT, with_data=True, needs=needs):
            yield [_mark(ledger_id, node) for ledger_id, node in page]

    async def marked_ids(self) -> AsyncIterator[Sequence[int]]:
        self.tasks()
        async for page in self.nodes.marks(PAGE_COUNT, with_data=False):
            yield [ledger_id for ledger_id, _ in page]

    async def unmark(self, mark: Mark) -> bool:
        self.tasks()
        return await self.nodes.delete(self._places.mark(mark.ledger_id), mark.version)

    def watch_marks(self, callback: Callable[[], None]) -> Watch:
        self.tasks()
        return self.nodes.watch_marks(callback)

    # -- locks ---------------------------------------------------------------------------------------------------
    async def lock(
        self, ledger_id: int, owner: str, *, needs_mark: bool, mark_version: int | None = None
    ) -> LedgerLock | None:
        self.tasks()
        self._forget_lost()
        if ledger_id in self._held:
            return None
        self._held[ledger_id] = None
        place = self._places.lock(ledger_id)
        attempt = _started(self.nodes.create_ephemeral(place, pack_owner(owner)))
        try:
            session = await asyncio.shield(attempt)
            if session is None:
                del self._held[ledger_id]
                return None
            if mark_version is None:
                mark = await self.nodes.read(self._places.mark(ledger_id))
                mark_version = None if mark is None else mark.version
            if self.nodes.session != session:
                raise SessionExpired("the session was lost while the lock was being acquired", ledger_id=ledger_id)
        except BaseException:
            self._give_back(ledger_id, attempt)
            raise
        if mark_version is None and needs_mark:
            await asyncio.shield(self._give_back(ledger_id))
            return None
        self._held[ledger_id] = session
        return LedgerLock(ledger_id, owner, mark_version, session)

    def is_held(self, lock: LedgerLock) -> bool:
        self.tasks()
        return self._held.get(lock.ledger_id) == lock.session == self.nodes.session

    async def unlock(self, lock: LedgerLock) -> None:
        if self._held.get(lock.ledger_id) == lock.session:
            await asyncio.shield(self._give_back(lock.ledger_id))

    async def done(self, lock: LedgerLock) -> bool:
        if lock.mark_version is None:
            raise InvalidArgument("the lock was taken without a mark, so there is none to delete")
        self.tasks()
        try:
            if not self.is_held(lock):
                return False
            return await self.nodes.delete(self._places.mark(lock.ledger_id), lock.mark_version)
        finally:
            await self.unlock(lock)

    async def locks(self) -> dict[int, str]:
        self.tasks()
        return {ledger_id: parse_owner(data) for ledger_id, data in sorted(await self.nodes.locks())}

    async def locked_ids(self) -> list[int]:
        self.tasks()
        return sorted(await self.nodes.locked_ids())

    def _forget_lost(self) -> None:
        """Forget the locks that ended with their session."""
        session = self.nodes.session
        for ledger_id in [ledger_id for ledger_id, held in self._held.items() if held not in (None, session)]:
            del self._held[ledger_id]

    def _give_back(self, ledger_id: int, attempt: asyncio.Future[int | None] | None = None) -> asyncio.Future[None]:
        """Release a lock, see `_release_soon`. `attempt`: the request for it, perhaps still in flight."""
        self._held[ledger_id] = None
        return self._release_soon(self._places.lock(ledger_id), attempt, lambda: self._held.pop(ledger_id, None))

    def _release_soon(
        self, place: str, attempt: asyncio.Future[Any] | None, then: Callable[[], object]
    ) -> asyncio.Future[None]:
        """Delete our session's node at a place. The future resolves after the first request; a task keeps retrying.

        `then`: called once the node is known to be deleted, or its session to have ended.
        """
        tried: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def ended(_: asyncio.Task[None]) -> None:
            if not tried.done():  # The task was cancelled before its first step, so its `finally` was not reached.
                then()
                tried.set_result(None)

        try:
            task = self.tasks().start(self._release(place, attempt, tried, then), f"end of {place}")
            task.add_done_callback(ended)
        except (ClientClosed, MetadataError):  # The driver is closed, and its session with it, or it has failed.
            tried.set_result(None)
            then()
        return tried

    async def _release(
        self,
        place: str,
        attempt: asyncio.Future[Any] | None,
        tried: asyncio.Future[None],
        then: Callable[[], object],
    ) -> None:
        try:
            if attempt is not None:
                await asyncio.wait([attempt])
            session = self.nodes.session
            while session is not None and self.nodes.session == session:
                try:
                    await self.nodes.release(place, session)
                    break
                except NO_ANSWER:
                    _resolve(tried)
                await asyncio.sleep(RETRY_S)
        finally:
            then()
            _resolve(tried)

    # -- the switch ----------------------------------------------------------------------------------------------
    async def is_enabled(self) -> bool:
        self.tasks()
        return await self.nodes.read(self._places.switch) is None

    async def enable(self) -> bool:
        self.tasks()
        return await self.nodes.delete(self._places.switch, None)

    async def disable(self) -> bool:
        self.tasks()
        return await self.nodes.create(self._places.switch, b"")

    def watch_switch(self, callback: Callable[[], None]) -> Watch:
        self.tasks()
        return self.nodes.watch(self._places.switch, callback)

    # -- the lost-bookie delay -----------------------------------------------------------------------------------
    async def lost_bookie_delay_s(self) -> int | None:
        self.tasks()
        node = await self.nodes.read(self._places.delay)
        return None if node is None else parse_delay(node.data)

    async def set_lost_bookie_delay_s(self, delay_s: int) -> None:
        self.tasks()
        await self.nodes.write(self._places.delay, pack_delay(_checked_delay(delay_s)), None)

    async def init_lost_bookie_delay_s(self, delay_s: int) -> int:
        self.tasks()
        while not await self.nodes.create(self._places.delay, pack_delay(_checked_delay(delay_s))):
            stored_s = await self.lost_bookie_delay_s()
            if stored_s is not None:
                return stored_s
        return delay_s

    def watch_lost_bookie_delay(self, callback: Callable[[], None]) -> Watch:
        self.tasks()
        return self.nodes.watch(self._places.delay, callback)

    # -- times of checks -----------------------------------------------------------------------------------------
    async def checked_at_ms(self, kind: AuditKind) -> int | None:
        self.tasks()
        node = await self.nodes.read(self._places.checked(kind))
        return None if node is None else parse_checked(node.data)

    async def set_checked_at_ms(self, kind: AuditKind, at_ms: int) -> None:
        self.tasks()
        await self.nodes.write(self._places.checked(kind), pack_checked(at_ms), None)

    # -- the auditor ---------------------------------------------------------------------------------------------
    async def campaign(self, bookie: BookieId, on_change: Callable[[], None]) -> Candidacy:
        candidacy = _Candidacy(self, bookie, on_change)
        await candidacy.begin()
        return candidacy

    async def vote(self, data: bytes) -> Vote:
        """Vote, after deleting stray votes of this session."""
        async with self._voting:
            await self._drop_strays()
            vote = await self.nodes.vote(data)
            self._votes[vote.place] = None
            return vote

    async def drop_stray_votes(self) -> None:
        """Delete the vote of an attempt whose outcome is unknown. Retries until the store answers."""
        while True:
            try:
                async with self._voting:
                    await self._drop_strays()
                return
            except NO_ANSWER:
                await asyncio.sleep(RETRY_S)

    async def _drop_strays(self) -> None:
        session = self.nodes.session
        for place in await self.nodes.own_votes() if session is not None else []:
            if place not in self._votes and session is not None:
                await self.nodes.release(place, session)

    def take_back(self, vote: Vote) -> asyncio.Future[None]:
        """Delete a vote, see `_release_soon`."""
        return self._release_soon(vote.place, None, lambda: self.forget(vote))

    def forget(self, vote: Vote) -> None:
        """Drop a vote that no longer exists."""
        self._votes.pop(vote.place, None)

    async def auditor(self) -> BookieId | None:
        self.tasks()
        for vote in await self.nodes.votes():
            if (bookie := await self._voter(vote)) is not None:
                return bookie
        return None

    async def candidates(self) -> list[BookieId]:
        self.tasks()
        voters = [await self._voter(vote) for vote in await self.nodes.votes()]
        return [bookie for bookie in voters if bookie is not None]

    async def _voter(self, vote: Vote) -> BookieId | None:
        node = await self.nodes.read(vote.place)
        return None if node is None else BookieId(parse_owner(node.data))

    async def queue_position(self) -> tuple[int, int]:
        self.tasks()
        places = [vote.place for vote in await self.nodes.votes()] if self._votes else []
        own = [position for position, place in enumerate(places) if place in self._votes]
        return (own[0], len(places)) if own else (0, 1)


class _Candidacy(Candidacy):
    """A candidacy with a task that checks the votes whenever its own vote, or the one before it, may have changed."""

    def __init__(self, recovery: SharedRecovery, bookie: BookieId, on_change: Callable[[], None]) -> None:
        self._recovery = recovery
        self._nodes = recovery.nodes
        self._data = pack_owner(bookie)
        self._on_change = on_change
        self._vote: Vote | None = None
        self._is_leader = False
        self._news = asyncio.Event()
        self._watched: dict[str, Watch] = {}  # by place: our vote, and the one before it
        self._expiry: Watch | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_leader(self) -> bool:
        return self._is_leader

    async def begin(self) -> None:
        """Vote, and determine whether this candidate leads."""
        tasks = self._recovery.tasks()
        self._expiry = self._recovery.on_session_expired(self._session_lost)
        try:
            await self._check_votes()
        except BaseException:
            await self.resign()
            raise
        self._task = tasks.start(self._run(), "candidacy for auditor")

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._check_votes()
            except NO_ANSWER:
                self._news.set()
                await asyncio.sleep(RETRY_S)

    async def _check_votes(self) -> None:
        places = [vote.place for vote in await self._nodes.votes()]
        if self._vote is None or self._vote.place not in places:
            self._lose_vote()
            self._vote = await self._cast_vote()
            places = [vote.place for vote in await self._nodes.votes()]
        own = self._vote
        if own is None or own.place not in places:
            self._news.set()  # The session was lost again, or another client has deleted the vote.
            return
        position = places.index(own.place)
        self._watch(places[max(0, position - 1) : position + 1])
        if position == 0 and not self._is_leader:
            await self._nodes.write(self._nodes.places.election, self._data, None)
            if self._vote is own:  # otherwise the session was lost meanwhile
                self._set_leader(True)

    async def _cast_vote(self) -> Vote:
        """Vote. If the store does not answer, or this call is cancelled, the vote is deleted again."""
        attempt = _started(self._recovery.vote(self._data))
        try:
            return await asyncio.shield(attempt)
        except BaseException:
            attempt.add_done_callback(self._clear_up)
            raise

    def _clear_up(self, attempt: asyncio.Future[Vote]) -> None:
        if not attempt.cancelled() and attempt.exception() is None:
            self._recovery.take_back(attempt.result())
            return
        with contextlib.suppress(ClientClosed, MetadataError):  # as in `_release_soon`
            self._recovery.tasks().start(self._recovery.drop_stray_votes(), "votes left behind")

    def _watch(self, places: Sequence[str]) -> None:
        for place in [watched for watched in self._watched if watched not in places]:
            self._watched.pop(place).cancel()
        for place in places:
            if place not in self._watched:
                self._watched[place] = self._nodes.watch(place, self._news.set)

    def _session_lost(self) -> None:
        self._lose_vote()
        self._news.set()

    def _lose_vote(self) -> None:
        vote, self._vote = self._vote, None
        if vote is not None:
            self._recovery.forget(vote)
        self._set_leader(False)

    def _set_leader(self, is_leader: bool) -> None:
        if is_leader is not self._is_leader:
            self._is_leader = is_leader
            asyncio.get_running_loop().call_soon(self._on_change)

    async def resign(self) -> None:
        expiry, self._expiry = self._expiry, None
        if expiry is None:
            return
        expiry.cancel()
        self._watch([])
        task, self._task = self._task, None
        if task is not None:
            task.cancel()  # A vote that the task is about to get is deleted, see `_cast_vote`.
        vote, self._vote = self._vote, None
        self._set_leader(False)
        if vote is not None:
            await asyncio.shield(self._recovery.take_back(vote))


def _mark(ledger_id: int, node: Node) -> Mark:
    return Mark(ledger_id, *parse_mark(node.data), node.version)


def _checked_delay(delay_s: int) -> int:
    if not 0 <= delay_s <= DELAY_S_MAX:
        raise InvalidArgument(f"the delay for lost bookies is {delay_s:,} s; it must be 0 to {DELAY_S_MAX:,}")
    return delay_s


def _started(operation: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """Start a request that continues when its caller is cancelled; a failure after that is ignored."""
    task = asyncio.ensure_future(operation)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return task


def _resolve(future: asyncio.Future[None]) -> None:
    """Resolve the future, unless it is resolved already."""
    if not future.done():
        future.set_result(None)
