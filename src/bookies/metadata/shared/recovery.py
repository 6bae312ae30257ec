"""Auto-recovery's state: the logic that all drivers share, over what each one's store can do (`NodeStore`).

Locks. `hold` puts a node into the store that goes with the session. A request whose answer was lost, or whose caller
was cancelled, may have taken a lock that nobody knows of; so this driver remembers every ledger for which it has asked,
asks for none of them twice at once, and gives back in the background what it is not known to want. A node of our own
session that is found where we hold none is such a leftover, and is taken over.

Election. A candidate watches its own vote and the one before it. The first leads. Source: metadata 8.1, 8.4, 8.5, 8.8.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

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
RETRY_S = 0.2  # after the store has not answered
NO_ANSWER = (MetadataError, StorageError)
DELAY_S_MAX = (1 << 31) - 1  # what Apache reads
_MARKED_AGAIN_MAX = 1000  # attempts to add to a mark that others keep changing


# -- what a store can do -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Node:
    """`version`: grows whenever the data is written, the same data too; never comes back, also of a node made anew."""

    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Vote:
    """`number`: in the order of voting."""

    number: int
    place: str


class NodePaths(Protocol):
    """Where things are."""

    def mark(self, ledger_id: int) -> str: ...

    def lock(self, ledger_id: int) -> str: ...

    def checked(self, kind: AuditKind) -> str: ...

    @property
    def switch(self) -> str:
        """There is a node here: switched off."""

    @property
    def delay(self) -> str: ...

    @property
    def election(self) -> str:
        """The vote of the leader, for people to look at."""


class NodeStore(Protocol):
    """One driver's way to the nodes.

    When a change was refused after an attempt whose outcome is unknown, what is there tells whether it was our own that
    succeeded. Callbacks of watches come at least once after each change, and may come for nothing.
    """

    @property
    def places(self) -> NodePaths: ...

    @property
    def session(self) -> int | None:
        """The present one; None: there is none, or nothing depends on it."""

    async def read(self, place: str) -> Node | None: ...

    async def create(self, place: str, data: bytes) -> bool:
        """False: there is a node."""

    async def write(self, place: str, data: bytes, version: int | None) -> bool:
        """False: it is missing, or has another version. None: whatever is there, and also when nothing is."""

    async def delete(self, place: str, version: int | None) -> bool:
        """False: as `write`; None: whatever is there. What is empty above goes, too, where a store has such."""

    async def hold(self, place: str, data: bytes) -> int | None:
        """Make a node that goes with the session: which one. None: another session has one. One that our own session
        has there is left as it is. Raises `SessionExpired`.
        """

    async def release(self, place: str, session: int) -> None:
        """Delete the node if it is this session's."""

    async def vote(self, data: bytes) -> Vote:
        """Make a node that goes with the session, at the end of the line."""

    async def votes(self) -> list[Vote]:
        """In order."""

    async def own_votes(self) -> list[str]:
        """Places of those of this session."""

    def marks(
        self, page_count: int, *, with_data: bool, needs: Callable[[int], bool] | None = None
    ) -> AsyncIterator[Sequence[tuple[int, Node]]]:
        """(ledger, node), ascending; see `RecoveryStore.marks`. Nodes without data may have no version either."""

    async def locks(self) -> list[tuple[int, bytes]]: ...

    async def locked_ids(self) -> list[int]: ...

    def watch(self, place: str, callback: Callable[[], None]) -> Watch: ...

    def watch_marks(self, callback: Callable[[], None]) -> Watch: ...


# -- the logic ---------------------------------------------------------------------------------------------------------


class SharedRecovery(RecoveryStore):
    """See the module. `tasks`: the driver's; raises when it is not open."""

    def __init__(
        self,
        area: NodeStore,
        tasks: Callable[[], Tasks],
        on_session_expired: Callable[[Callable[[], None]], Watch],
    ) -> None:
        self.area = area
        self.tasks = tasks
        self.on_session_expired = on_session_expired
        self._votes: dict[str, None] = {}  # places of those that candidacies of this driver have
        self._voting = asyncio.Lock()
        self._places = area.places
        self._held: dict[int, int | None] = {}  # ledger -> session; None: asked for, or being given back

    # -- marks ---------------------------------------------------------------------------------------------------
    async def mark(self, ledger_id: int, replicas: Sequence[BookieId], now_ms: int | None) -> bool:
        self.tasks()
        place = self._places.mark(ledger_id)
        wanted = tuple(dict.fromkeys(replicas))
        for _ in range(_MARKED_AGAIN_MAX):
            if await self.area.create(place, pack_mark(wanted, now_ms)):
                return True
            found = await self.area.read(place)
            if found is None:
                continue  # Repaired at this moment.
            known, _ = parse_mark(found.data)
            added = [replica for replica in wanted if replica not in known]
            if not added:
                return False
            if await self.area.write(place, pack_mark((*known, *added), now_ms), found.version):
                return True
        raise MetadataError("others keep changing the mark of this ledger", ledger_id=ledger_id)

    async def mark_of(self, ledger_id: int) -> Mark | None:
        self.tasks()
        found = await self.area.read(self._places.mark(ledger_id))
        return None if found is None else _mark(ledger_id, found)

    async def marks(self, needs: Callable[[int], bool] | None = None) -> AsyncIterator[Sequence[Mark]]:
        self.tasks()
        async for page in self.area.marks(PAGE_COUNT, with_data=True, needs=needs):
            yield [_mark(*each) for each in page]

    async def marked_ids(self) -> AsyncIterator[Sequence[int]]:
        self.tasks()
        async for page in self.area.marks(PAGE_COUNT, with_data=False):
            yield [ledger_id for ledger_id, _ in page]

    async def unmark(self, mark: Mark) -> bool:
        self.tasks()
        return await self.area.delete(self._places.mark(mark.ledger_id), mark.version)

    def watch_marks(self, callback: Callable[[], None]) -> Watch:
        self.tasks()
        return self.area.watch_marks(callback)

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
        attempt = _started(self.area.hold(place, pack_owner(owner)))
        try:
            session = await asyncio.shield(attempt)
            if session is None:
                del self._held[ledger_id]
                return None
            if mark_version is None:
                mark = await self.area.read(self._places.mark(ledger_id))
                mark_version = None if mark is None else mark.version
            if self.area.session != session:
                raise SessionExpired("the session was lost while the lock was taken", ledger_id=ledger_id)
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
        return self._held.get(lock.ledger_id) == lock.session == self.area.session

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
            return await self.area.delete(self._places.mark(lock.ledger_id), lock.mark_version)
        finally:
            await self.unlock(lock)

    async def locks(self) -> dict[int, str]:
        self.tasks()
        return {ledger_id: parse_owner(data) for ledger_id, data in sorted(await self.area.locks())}

    async def locked_ids(self) -> list[int]:
        self.tasks()
        return sorted(await self.area.locked_ids())

    def _forget_lost(self) -> None:
        """Locks that went with their session."""
        session = self.area.session
        for ledger_id in [each for each, held in self._held.items() if held not in (None, session)]:
            del self._held[ledger_id]

    def _give_back(self, ledger_id: int, attempt: asyncio.Future[int | None] | None = None) -> asyncio.Future[None]:
        """See `_release_soon`. `attempt`: to take it, which may be under way still."""
        self._held[ledger_id] = None
        return self._release_soon(self._places.lock(ledger_id), attempt, lambda: self._held.pop(ledger_id, None))

    def _release_soon(
        self, place: str, attempt: asyncio.Future[Any] | None, then: Callable[[], object]
    ) -> asyncio.Future[None]:
        """Delete what is ours at a place. Resolved when the store was asked once; the background goes on asking.

        `then`: called when it is gone for certain, or its session.
        """
        tried: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            self.tasks().start(self._release(place, attempt, tried, then), f"end of {place}")
        except (ClientClosed, MetadataError):  # closed, and with it the session; or nothing works any more
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
            session = self.area.session
            while session is not None and self.area.session == session:
                try:
                    await self.area.release(place, session)
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
        return await self.area.read(self._places.switch) is None

    async def enable(self) -> bool:
        self.tasks()
        return await self.area.delete(self._places.switch, None)

    async def disable(self) -> bool:
        self.tasks()
        return await self.area.create(self._places.switch, b"")

    def watch_switch(self, callback: Callable[[], None]) -> Watch:
        self.tasks()
        return self.area.watch(self._places.switch, callback)

    # -- how long a bookie may be away ---------------------------------------------------------------------------
    async def lost_bookie_delay_s(self) -> int | None:
        self.tasks()
        found = await self.area.read(self._places.delay)
        return None if found is None else parse_delay(found.data)

    async def set_lost_bookie_delay_s(self, delay_s: int) -> None:
        self.tasks()
        await self.area.write(self._places.delay, pack_delay(_checked_delay(delay_s)), None)

    async def init_lost_bookie_delay_s(self, delay_s: int) -> int:
        self.tasks()
        while not await self.area.create(self._places.delay, pack_delay(_checked_delay(delay_s))):
            found = await self.lost_bookie_delay_s()
            if found is not None:
                return found
        return delay_s

    def watch_lost_bookie_delay(self, callback: Callable[[], None]) -> Watch:
        self.tasks()
        return self.area.watch(self._places.delay, callback)

    # -- when checks were finished -------------------------------------------------------------------------------
    async def checked_at_ms(self, kind: AuditKind) -> int | None:
        self.tasks()
        found = await self.area.read(self._places.checked(kind))
        return None if found is None else parse_checked(found.data)

    async def set_checked_at_ms(self, kind: AuditKind, at_ms: int) -> None:
        self.tasks()
        await self.area.write(self._places.checked(kind), pack_checked(at_ms), None)

    # -- the auditor ---------------------------------------------------------------------------------------------
    async def campaign(self, bookie: BookieId, on_change: Callable[[], None]) -> Candidacy:
        candidacy = _Candidacy(self, bookie, on_change)
        await candidacy.begin()
        return candidacy

    async def vote(self, data: bytes) -> Vote:
        """Vote, and leave no other vote behind that nobody knows of."""
        async with self._voting:
            await self._drop_unknown()
            vote = await self.area.vote(data)
            self._votes[vote.place] = None
            return vote

    async def drop_unknown_votes(self) -> None:
        """After an attempt to vote that may have succeeded all the same. Asks until the store answers."""
        while True:
            try:
                async with self._voting:
                    await self._drop_unknown()
                return
            except NO_ANSWER:
                await asyncio.sleep(RETRY_S)

    async def _drop_unknown(self) -> None:
        session = self.area.session
        for place in await self.area.own_votes() if session is not None else []:
            if place not in self._votes and session is not None:
                await self.area.release(place, session)

    def take_back(self, vote: Vote) -> asyncio.Future[None]:
        """As `_release_soon`."""
        return self._release_soon(vote.place, None, lambda: self.forget(vote))

    def forget(self, vote: Vote) -> None:
        """It is gone."""
        self._votes.pop(vote.place, None)

    async def auditor(self) -> BookieId | None:
        self.tasks()
        for vote in await self.area.votes():
            if (bookie := await self._voter(vote)) is not None:
                return bookie
        return None

    async def standing(self) -> list[BookieId]:
        self.tasks()
        voters = [await self._voter(vote) for vote in await self.area.votes()]
        return [bookie for bookie in voters if bookie is not None]

    async def _voter(self, vote: Vote) -> BookieId | None:
        found = await self.area.read(vote.place)
        return None if found is None else BookieId(parse_owner(found.data))

    async def queue_position(self) -> tuple[int, int]:
        self.tasks()
        places = [vote.place for vote in await self.area.votes()] if self._votes else []
        own = [position for position, place in enumerate(places) if place in self._votes]
        return (own[0], len(places)) if own else (0, 1)


class _Candidacy(Candidacy):
    """A task that looks at the votes whenever its own, or the one before, may have changed."""

    def __init__(self, recovery: SharedRecovery, bookie: BookieId, on_change: Callable[[], None]) -> None:
        self._recovery = recovery
        self._area = recovery.area
        self._data = pack_owner(bookie)
        self._on_change = on_change
        self._vote: Vote | None = None
        self._is_leader = False
        self._news = asyncio.Event()
        self._watched: dict[str, Watch] = {}  # by place: our vote, and the one before
        self._expiry: Watch | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_leader(self) -> bool:
        return self._is_leader

    async def begin(self) -> None:
        """Vote, and find out whether we lead."""
        tasks = self._recovery.tasks()
        self._expiry = self._recovery.on_session_expired(self._session_lost)
        try:
            await self._look()
        except BaseException:
            await self.resign()
            raise
        self._task = tasks.start(self._run(), "candidacy for auditor")

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._look()
            except NO_ANSWER:
                self._news.set()
                await asyncio.sleep(RETRY_S)

    async def _look(self) -> None:
        votes = await self._area.votes()
        if self._vote is None or self._vote.place not in [each.place for each in votes]:
            self._lose_vote()
            self._vote = await self._stand()
            votes = await self._area.votes()
        places = [each.place for each in votes]
        vote = self._vote
        if vote is None or vote.place not in places:
            self._news.set()  # The session is gone again, or somebody has deleted it.
            return
        position = places.index(vote.place)
        self._watch(places[max(0, position - 1) : position + 1])
        if position == 0 and not self._is_leader:
            await self._area.write(self._recovery.area.places.election, self._data, None)
            if self._vote is vote:  # otherwise the session was lost meanwhile
                self._set_leader(True)

    async def _stand(self) -> Vote:
        """A new vote, which does not stay behind when the store does not answer, or we are cancelled meanwhile."""
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
            self._recovery.tasks().start(self._recovery.drop_unknown_votes(), "votes left behind")

    def _watch(self, places: Sequence[str]) -> None:
        for place in [each for each in self._watched if each not in places]:
            self._watched.pop(place).cancel()
        for place in places:
            if place not in self._watched:
                self._watched[place] = self._area.watch(place, self._news.set)

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
            task.cancel()  # A vote that it is about to get is taken back: see `_stand`.
        vote, self._vote = self._vote, None
        self._set_leader(False)
        if vote is not None:
            await asyncio.shield(self._recovery.take_back(vote))


def _mark(ledger_id: int, node: Node) -> Mark:
    return Mark(ledger_id, *parse_mark(node.data), node.version)


def _checked_delay(delay_s: int) -> int:
    if not 0 <= delay_s <= DELAY_S_MAX:
        raise InvalidArgument(f"a delay of {delay_s:,} s; it is 0 to {DELAY_S_MAX:,}")
    return delay_s


def _started(operation: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """A request that goes on when its caller is cancelled, and whose failure then is nobody's concern."""
    task = asyncio.ensure_future(operation)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return task


def _resolve(future: asyncio.Future[None]) -> None:
    """Once."""
    if not future.done():
        future.set_result(None)
