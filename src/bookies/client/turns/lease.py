"""`Lease`: this process's turn, among several that use one name: a lock, an election, a leader, a consumer.

`protocol/log/lease.py` decides and proves; here are the requests to the metadata store, the timers, and the end of the
work when the lease is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from msgspec import Struct

from bookies.client.base import Opening
from bookies.client.base.arguments import TimeLimit, switch
from bookies.client.base.metadata_loop import back_off, repeated
from bookies.errors import (
    BookKeeperError,
    CursorMoved,
    InvalidArgument,
    LeaseHeld,
    LeaseLost,
    LogError,
    MetadataError,
    RecordExists,
    RecordNotFound,
    VersionConflict,
)
from bookies.metadata.interface import MetadataDriver, Watch
from bookies.metadata.interface.driver import RecordWrite, Step
from bookies.protocol.log.lease import (
    PARTICIPANTS_MAX,
    Candidate,
    LeaseQueue,
    Participant,
    check_text,
    check_ttl,
    pack_queue,
    parse_queue,
)
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import Tasks

LOCKS, ELECTIONS = "locks/", "elections/"  # prefixes of the records' names
LEADERS, CONSUMERS = "leaders/", "consumers/"  # of logs, followed by the log's name
TTL_S = 10.0
LEAVE_S = 5.0  # seconds for a release; then the others wait for the end of the `ttl`
FAILURES_MAX = 4  # that lengthen the pause between two attempts; a renewal has little time


class Contest(Struct, frozen=True):
    """The record of a lease, which processes compete for. `title`: what it is, for messages."""

    runtime: Runtime
    driver: MetadataDriver
    record: str
    title: str

    async def queue(self) -> tuple[LeaseQueue, int]:
        """Return the holder and those who wait, and the version of the record; 0: there is none."""
        try:
            data, version = await self.driver.read_record(self.record)
        except RecordNotFound:
            return LeaseQueue(), 0
        return parse_queue(self.record, data), version

    async def write(self, queue: LeaseQueue, version: int) -> int:
        """Write the record, which must have this version; return the new one. Raises `VersionConflict`."""
        try:
            if version == 0:
                return await self.driver.create_record(self.record, pack_queue(queue))
            return await self.driver.write_record(self.record, pack_queue(queue), version)
        except (RecordExists, RecordNotFound) as error:
            raise VersionConflict(f"record {self.record} has been created or deleted meanwhile") from error

    async def ending(self) -> Sequence[Step]:
        """Return what ends the turns of all holders, for a transaction."""
        try:
            queue, version = await self.queue()
        except InvalidArgument:
            return []  # The names of log and consumer are too long together, so none can have a turn.
        ended = queue.ended()
        return [] if ended is None else [RecordWrite(self.record, pack_queue(ended), version)]

    def ended(self) -> BookKeeperError:
        """Return the error of a process whose turn was ended: its cursor was deleted."""
        return CursorMoved(
            f"the cursor of {self.title} was deleted while its consumer used it: nothing more is committed. Begin to "
            "consume again"
        )

    def opening(
        self, ttl: float = TTL_S, wait: bool = True, text: str | None = None, timeout: float | None = None
    ) -> Opening[Lease]:
        """Return what waits for the turn: see `Client.lock`. Raises `InvalidArgument`."""
        name = own_text() if text is None else check_text(text)
        ttl, wait = check_ttl(ttl), switch("wait", wait)

        async def enter() -> Lease:
            return await Lease.enter(self, Candidate(new_id(self.runtime), name, ttl, waits=wait))

        return Opening(enter, timeout, f"wait for {self.title}")


def own_text() -> str:
    """Return the text of this process: its host and its process id."""
    return f"{os.uname().nodename}:{os.getpid()}"


def new_id(runtime: Runtime) -> str:
    """Return the id of a candidate."""
    return f"{runtime.random.getrandbits(64):016x}"


class Lease:
    """A turn that this process has, for the `async with` block or until `release`.

    A process can be suspended between `check` and the work that follows. So let what the lease protects compare
    `token`, and refuse one that is smaller than it has seen.
    """

    def __init__(self, contest: Contest, candidate: Candidate) -> None:
        self._contest = contest
        self._candidate = candidate
        self._clock = contest.runtime.clock
        self._token = 0
        self._changed = asyncio.Event()
        self._attempts = asyncio.Lock()  # one at a time, as each begins with what the one before has read
        self._tasks = Tasks(self._failed)
        self._timer: asyncio.TimerHandle | None = None
        self._error: BookKeeperError | None = None  # what ended it; `LeaseLost` also after `release`
        self._on_lost: list[Callable[[], None]] = []
        self._block: tuple[asyncio.Task[object], int] | None = None  # the task of the block, its cancellations before

    @classmethod
    async def enter(cls, contest: Contest, candidate: Candidate) -> Lease:
        """Wait for the turn, and keep it from then on. Raises `LeaseHeld`."""
        lease = cls(contest, candidate)
        try:
            await lease._wait()
        except BaseException:
            await lease.release()
            raise
        lease._token = candidate.token
        lease._expire()
        lease._tasks.start(lease._keep(), f"keep {contest.title}")
        return lease

    # -- what it is ----------------------------------------------------------------------------------------------
    @property
    def token(self) -> int:
        """The fencing token: larger than that of every earlier holder."""
        return self._token

    @property
    def is_held(self) -> bool:
        """Report whether no other process can have it at this moment."""
        return self._error is None and self._clock.monotonic() < self._candidate.held_until_s

    @property
    def left_s(self) -> float:
        """Seconds until it ends unless it is renewed; below 0: it has ended."""
        return self._candidate.held_until_s - self._clock.monotonic()

    def check(self) -> None:
        """Raise `LeaseLost` if it is not held any more."""
        if self._error is not None:
            raise self._error
        if not self.is_held:
            raise self._lost()

    def __repr__(self) -> str:
        return f"<Lease {self._contest.title} token={self._token} {'held' if self.is_held else 'not held'}>"

    def _lost(self) -> LeaseLost:
        return LeaseLost(
            f"{self._contest.title} was not renewed in time: another process may have it. Stop the work, or enter again"
        )

    # -- waiting and keeping ---------------------------------------------------------------------------------------
    async def _wait(self) -> None:
        while True:
            await self._synchronize()
            refusal = self._candidate.refusal
            if refusal is not None:
                raise self._refused(refusal)
            if self._clock.monotonic() < self._candidate.held_until_s:
                return
            await self._pause()

    def _refused(self, holder: Participant) -> LeaseHeld:
        held = f"{self._contest.title} is held by {holder.text}"
        if self._candidate.waits:
            return LeaseHeld(
                f"{held}, and {PARTICIPANTS_MAX} processes wait for it, the most that can: try again later"
            )
        return LeaseHeld(f"{held}: wait for it, or end that process")

    async def _synchronize(self) -> None:
        """Read the record and write what is due, until that succeeds or the lease ends. Raises permanent errors."""
        failures = 0
        while self._error is None:
            try:
                async with self._attempts:
                    await self._attempt()
                return
            except MetadataError as error:
                if not error.retriable:
                    raise
            failures = min(failures + 1, FAILURES_MAX)
            await back_off(self._contest.runtime, failures)

    async def _attempt(self) -> None:
        candidate, now = self._candidate, self._clock.monotonic
        queue, version = await self._contest.queue()
        candidate.seen(queue, now())
        if self._token and candidate.token != self._token:
            self._end(self._lost())  # Others removed it. It must not enter again under this lease.
            return
        if self._token and candidate.is_ended:
            self._end(self._contest.ended())
            return
        changed = candidate.change(now())
        if changed is not None:
            version = await self._contest.write(changed, version)
            candidate.seen(changed, now())
        self._version = version

    async def _pause(self) -> None:
        """Wait until the record has changed, or something is due."""
        self._changed.clear()
        watch: Watch | None = None
        if self._candidate.watches:
            watch = self._contest.driver.watch_record(self._contest.record, self._version, self._changed.set)
        now_s = self._clock.monotonic()
        try:
            async with asyncio.timeout(max(0.0, self._candidate.next_s(now_s) - now_s)):
                await self._changed.wait()
        except TimeoutError:
            pass
        finally:
            if watch is not None:
                watch.cancel()

    async def _keep(self) -> None:
        while self.is_held:
            await self._pause()
            await self._synchronize()
        self._end(self._lost())

    def _expire(self) -> None:
        """End the lease when it was not renewed in time, also while a request waits for the store."""
        if self.left_s <= 0:
            self._end(self._lost())
        else:
            self._timer = asyncio.get_running_loop().call_later(self.left_s, self._expire)

    def _failed(self, cause: BaseException) -> None:
        if isinstance(cause, LogError):
            self._end(cause)  # of a log that the lease protects, such as a deleted cursor
            return
        error = self._lost()
        error.__cause__ = cause
        self._end(error)

    # -- the end -----------------------------------------------------------------------------------------------------
    def on_lost(self, callback: Callable[[], None]) -> None:
        """Call back once, on the event loop, when the lease is lost, before another process can have it."""
        self._on_lost.append(callback)

    def fail(self, error: BookKeeperError) -> None:
        """End the lease, and the work that depends on it, with an error of that work."""
        self._end(error)

    def _end(self, error: BookKeeperError) -> None:
        if self._error is not None:
            return
        self._error = error
        if self._timer is not None:
            self._timer.cancel()
        for callback in self._on_lost:
            callback()
        if self._block is not None:
            self._block[0].cancel()

    async def release(self, *, timeout: float | None = LEAVE_S) -> None:
        """Give the turn to the next process. Idempotent.

        If the store does not answer within `timeout` (seconds), the next one has it after the `ttl`.
        """
        self._block, self._on_lost = None, []
        self._end(LeaseLost(f"{self._contest.title} was released"))
        await self._tasks.stop()
        with contextlib.suppress(BookKeeperError, TimeoutError):
            async with TimeLimit(timeout, f"release {self._contest.title}"):
                while not await self._leave():
                    await back_off(self._contest.runtime, 1)

    async def _leave(self) -> bool:
        """Remove this process from the queue; False: the record has changed meanwhile."""
        try:
            queue, version = await self._contest.queue()
            changed = self._candidate.left(queue)
            if changed is not None:
                await self._contest.write(changed, version)
        except MetadataError as error:
            if not error.retriable:
                raise
            return False
        return True

    async def __aenter__(self) -> Self:
        self.check()
        task = asyncio.current_task()
        assert task is not None, "an `async with` block runs in a task"
        self._block = task, task.cancelling()
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release it. A block that was cancelled because the lease was lost raises `LeaseLost`."""
        block, reason = self._block, self._error
        await self.release()
        if block is not None and reason is not None:
            task, before = block
            if task.uncancel() <= before and error_type is asyncio.CancelledError:
                raise reason from error


class Election:
    """An election by its name. Made by `Client.election`, which sends no request."""

    def __init__(self, contest: Contest) -> None:
        self._contest = contest

    def __repr__(self) -> str:
        return f"<Election {self._contest.record.removeprefix(ELECTIONS)}>"

    def lead(
        self, *, ttl: float = TTL_S, wait: bool = True, text: str | None = None, timeout: float | None = None
    ) -> Opening[Lease]:
        """Become a candidate, and wait until this process leads: `async with election.lead() as lease`.

        `text`: what `leader` returns while it leads; default: host and process id. The rest is as in `Client.lock`.
        """
        return self._contest.opening(ttl, wait, text, timeout)

    async def leader(self, *, timeout: float | None = None) -> str | None:
        """Return the text of the present leader, None if there is none. A leader that died counts until it is removed.

        `timeout`: seconds.
        """
        async with TimeLimit(timeout, f"read the leader of {self._contest.title}"):
            queue, _ = await repeated(self._contest.runtime, self._contest.queue)
        return None if queue.holder is None else queue.holder.text
