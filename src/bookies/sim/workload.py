"""What is asked of the cluster: writers, recoveries that come at any time and several at once, readers and tailers.

Every operation goes through the public client and is written down in the `History`, which also checks what can be
checked on the spot: the order of confirmations, the content of what is read, ends that agree, LACs that never retreat.
The payload of an entry follows from its ledger and id, so everybody knows what must be read.
"""

from __future__ import annotations

import asyncio
import traceback
import zlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from bookies.errors import BookKeeperError
from bookies.sim.cluster import SimClient, SimCluster
from bookies.sim.metadata import Commit
from bookies.sim.order import Observations
from bookies.sim.tap import Tap
from bookies.sim.trace import Trace
from bookies.sim.witness import Witness

if TYPE_CHECKING:
    from bookies.client.entries import Entry
    from bookies.client.reader import LedgerReader
    from bookies.client.writer import LedgerWriter

PASSWORDS = (b"", b"s3cret")


def payload_of(ledger_id: int, entry_id: int) -> bytes:
    """The bytes that entry has, if it exists. Mostly below 200 bytes, sometimes none, sometimes some thousands."""
    number = zlib.crc32(b"%d %d" % (ledger_id, entry_id))
    size = 4_000 + number % 3_000 if number % 61 == 0 else number % 200
    word = b"%d.%d " % (ledger_id, entry_id)
    return (word * (size // len(word) + 1))[:size]


@dataclass
class Story:
    """One ledger as its users saw it."""

    ledger_id: int
    password: bytes
    ack_quorum: int
    writer: str
    started: int = 0  # entries 0..started-1 were given to append
    confirmed: int = 0  # entries 0..confirmed-1 were acknowledged to the application
    is_over: bool = False  # an append failed, or the writer closed: nothing may be acknowledged any more
    shown: int = -1  # the highest entry that any read returned
    ends: list[tuple[str, int, int]] = field(default_factory=list)  # who, last entry, length
    lengths: list[int] = field(default_factory=list)
    seen: Observations = field(default_factory=Observations)
    is_advanced: bool = False  # the writer chose the ids, so the lengths do not ascend with them

    def length_up_to(self, entry_id: int) -> int:
        """Payload bytes of entries 0..entry_id."""
        while len(self.lengths) <= entry_id:
            before = self.lengths[-1] if self.lengths else 0
            self.lengths.append(before + len(payload_of(self.ledger_id, len(self.lengths))))
        return self.lengths[entry_id] if entry_id >= 0 else 0


class History:
    """Every ledger's story, and what broke a promise."""

    def __init__(self, trace: Trace) -> None:
        self.stories: dict[int, Story] = {}
        self.violations: list[str] = []
        self.counts: dict[str, int] = {}
        self.is_over = False  # what abandoned clients do while they are cleared away does not count
        self.witness: Witness | None = None
        self.tap: Tap | None = None
        self.on_violation: Callable[[], None] | None = None
        self._trace = trace
        self._instant = 0

    def committed(self, commit: Commit) -> None:
        """A record was committed, this very moment."""
        story = self.stories.get(commit.after.ledger_id) if commit.after else None
        if self.witness is not None:
            self.witness.check_commit(commit, story.confirmed if story else 0)

    def violated(self, invariant: str, text: str) -> None:
        line = f"{invariant}: {text}"
        if line not in self.violations and not self.is_over:
            self.violations.append(line)
            if self.on_violation is not None:
                self.on_violation()
            self._trace.note("CHECKER", line)

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def instant(self) -> int:
        """A time of its own for each thing that is seen: the order of events."""
        self._instant += 1
        return self._instant

    def begins(self, story: Story, count: int) -> int:
        """The next `count` entries are about to be appended; the first one."""
        first = story.started
        story.started += count
        for entry_id in range(first, story.started):
            story.seen.begun[entry_id] = self.instant()
        return first

    def confirmed(self, story: Story, first: int, last: int, answered: int) -> None:
        """Entries first..last were acknowledged; `answered`: the id that the client returned."""
        name = f"ledger {story.ledger_id}"
        if answered != last:
            self.violated("I-3", f"{name}: the append of entry {last} was acknowledged as entry {answered}")
        if first != story.confirmed:
            self.violated("I-3", f"{name}: entry {first} was acknowledged after entry {story.confirmed - 1}")
        if story.is_over:
            self.violated("I-23", f"{name}: entry {first} was acknowledged after a failed append or a close")
        if self.stories.get(story.ledger_id) is story and story.ends and last > story.ends[0][1]:
            self.violated("I-5", f"{name}: entry {last} was acknowledged beyond the end {story.ends[0][1]}")
        if self.witness is not None:
            self.witness.check_acknowledgement(story.ledger_id, first, last)
        for entry_id in range(first, last + 1):
            story.seen.acknowledged[entry_id] = self.instant()
        story.confirmed = max(story.confirmed, last + 1)
        self.count("entries acknowledged", last - first + 1)

    def ended(self, story: Story, who: str, last_entry_id: int, length: int) -> None:
        """`who` was told that the ledger is closed at this end."""
        story.ends.append((who, last_entry_id, length))
        story.seen.ends.append((last_entry_id, self.instant(), who))
        first_who, first_last, first_length = story.ends[0]
        if (first_last, first_length) != (last_entry_id, length):
            self.violated(
                "I-4",
                f"ledger {story.ledger_id} ends at {first_last} ({first_length} bytes) for {first_who}, "
                f"at {last_entry_id} ({length} bytes) for {who}",
            )
        if story.confirmed > last_entry_id + 1:
            self.violated(
                "I-1",
                f"ledger {story.ledger_id}: closed at {last_entry_id}, but {story.confirmed - 1} was acknowledged",
            )
        if story.shown > last_entry_id:
            self.violated(
                "I-14", f"ledger {story.ledger_id}: closed at {last_entry_id}, but {story.shown} was read before"
            )

    def read(self, story: Story, who: str, entry: Entry) -> None:
        """`who` was shown an entry as a confirmed one."""
        story.shown = max(story.shown, entry.id)
        story.seen.reads.append((entry.id, self.instant(), who))
        name = f"entry {entry.id} of ledger {story.ledger_id}, read by {who},"
        if story.ends and entry.id > story.ends[0][1]:
            self.violated("I-12", f"{name} lies beyond the end {story.ends[0][1]}")
        if entry.id >= story.started:
            self.violated("I-15", f"{name} was never written")
        elif bytes(entry.payload) != payload_of(story.ledger_id, entry.id):
            self.violated("I-15", f"{name} is not what was written: {bytes(entry.payload)[:40]!r}")
        elif not story.is_advanced and entry.length != story.length_up_to(entry.id):
            self.violated("I-15", f"{name} has length {entry.length}, not {story.length_up_to(entry.id)}")
        self.count("entries read")

    def unexpected(self, who: str, what: str, error: BaseException) -> None:
        """An operation ended with an exception that is not in the documented tree."""
        text = "".join(traceback.format_exception(error)).rstrip()
        self.violated("errors", f"{who}: {what} raised an undocumented exception: {text}")


@dataclass(frozen=True)
class Plan:
    """How much is asked. `quorums`: (ensemble, write quorum, ack quorum) to choose from.

    `digests`: without one ("dummy") nobody can tell a replica that a power failure tore from a good one.
    `is_replaced`: a client that is killed, or has done its work, is followed by another in its role.
    `ledgers_max`, `recoveries_max`, `reads_max`: how many each client does at most.
    """

    writers: int = 2
    recoverers: int = 2
    readers: int = 2
    quorums: tuple[tuple[int, int, int], ...] = ((3, 3, 2), (3, 2, 2), (4, 3, 2), (3, 2, 1), (1, 1, 1), (2, 2, 2))
    digests: tuple[str, ...] = ("crc32c", "crc32", "hmac")
    entries_min: int = 0  # per ledger
    entries_max: int = 50
    pause_ms: float = 100.0  # mean, between two actions of a writer
    spread_ms: float = 1.0  # mean, between appends that overlap
    recovery_ms: float = 400.0  # mean, before a recovery
    read_ms: float = 200.0  # mean, before a read
    in_flight_max: int = 8  # appends that a writer has begun and that are not done
    ledgers_max: int = 3
    recoveries_max: int = 4
    reads_max: int = 4
    is_replaced: bool = True


class Workload:
    """Runs the plan until it is stopped. Killed clients are replaced by new ones."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, plan: Plan) -> None:
        self._cluster = cluster
        self._history = history
        self._random = random
        self._plan = plan
        self._is_stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting: list[asyncio.Future[None]] = []  # of recoveries that have not begun

    def start(self) -> None:
        for role, count, act in (
            ("writer", self._plan.writers, self._write_ledgers),
            ("recoverer", self._plan.recoverers, self._recover),
            ("reader", self._plan.readers, self._read),
        ):
            for number in range(1, count + 1):
                slot = self._keep_running(f"{role}{number}", act)
                self._tasks.append(asyncio.get_running_loop().create_task(slot, name=f"{role}{number}"))

    def stop(self) -> None:
        """Let every client finish what it is doing, and no more."""
        self._is_stopping = True

    async def finish(self) -> None:
        """Wait until every client has finished, which needs `stop` when they are replaced."""
        assert self._is_stopping or not self._plan.is_replaced
        for task in self._tasks:
            await asyncio.shield(task)

    def nudge(self) -> None:
        """Let the recoveries that wait for their time begin now."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def _keep_running(self, role: str, act: Callable[[SimClient], Coroutine[Any, Any, None]]) -> None:
        """One client after the other in a role: each until it has done its work, or is killed."""
        life = 0
        while not self._is_stopping:
            life += 1
            client = self._cluster.new_client(f"{role}.{life}")
            over = asyncio.get_running_loop().create_future()

            def end(*_: object, over: asyncio.Future[None] = over) -> None:
                if not over.done():
                    over.set_result(None)

            client.participant.on_kill(end)
            task = client.participant.create_task(self._live(client, act), name=f"{role}.{life}")
            task.add_done_callback(end, context=self._cluster.loop.world.copy())
            await over
            if not self._plan.is_replaced:
                return
            await self._sleep(20)

    async def _live(self, client: SimClient, act: Callable[[SimClient], Coroutine[Any, Any, None]]) -> None:
        try:
            await self._cluster.open_client(client)
            await act(client)
        except BookKeeperError as error:
            self._cluster.trace.note(client.name, f"gives up: {type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001
            self._history.unexpected(client.name, "its work", error)
        await self._cluster.close_client(client)

    async def _sleep(self, mean_ms: float) -> None:
        await asyncio.sleep(self._random.expovariate(1 / mean_ms) / 1000)

    async def _sleep_or_nudge(self, mean_ms: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            async with asyncio.timeout(self._random.expovariate(1 / mean_ms) / 1000):
                await future
        except TimeoutError:
            return

    # -- writing -------------------------------------------------------------------------------------------------
    async def _write_ledgers(self, client: SimClient) -> None:
        for _ in range(self._random.randint(1, self._plan.ledgers_max)):
            if self._is_stopping:
                return
            await self._write_ledger(client)
        if not self._plan.is_replaced:
            self.nudge()

    async def _write_ledger(self, client: SimClient) -> None:
        random = self._random
        sizes = [each for each in self._plan.quorums if each[0] <= len(self._cluster.bookies)]
        ensemble, write_quorum, ack_quorum = random.choice(sizes)
        password, digest = random.choice(PASSWORDS), random.choice(self._plan.digests)
        ledger = await client.client.create(
            ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum, digest=digest, password=password
        )
        story = Story(ledger.ledger_id, password, ack_quorum, client.name)
        self._history.stories[ledger.ledger_id] = story
        self._history.count("ledgers")
        try:
            goal = random.randint(self._plan.entries_min, self._plan.entries_max)
            while story.started < goal and not story.is_over and not self._is_stopping:
                await self._append_some(ledger, story)
                await self._sleep(self._plan.pause_ms)
        except BookKeeperError as error:
            self._cluster.trace.note(
                client.name, f"append to {ledger.ledger_id} failed: {type(error).__name__}: {error}"
            )
            self._history.count("failed appends")
        await self._let_go(client, ledger, story)

    async def _append_some(self, ledger: LedgerWriter, story: Story) -> None:
        """One append, many that overlap, or a batch."""
        kind = self._random.choice((0, 1, 1, 2))
        if kind == 0:
            await self._append(ledger, story)
        elif kind == 1:
            await self._append_overlapping(ledger, story, self._random.randint(2, 2 * self._plan.in_flight_max))
        else:
            first = self._history.begins(story, self._random.randint(2, self._plan.in_flight_max))
            last = story.started - 1
            payloads = [payload_of(story.ledger_id, number) for number in range(first, last + 1)]
            try:
                answered = await ledger.append_many(payloads)
            except BaseException:
                story.is_over = True
                raise
            self._history.confirmed(story, first, last, answered)

    async def _append_overlapping(self, ledger: LedgerWriter, story: Story, count: int) -> None:
        """Always as many under way as are allowed."""
        appends: list[asyncio.Task[None]] = []
        try:
            for number in range(count):
                if number >= self._plan.in_flight_max:
                    await appends[number - self._plan.in_flight_max]
                if self._random.random() < 0.5:
                    await self._sleep(self._plan.spread_ms)
                appends.append(asyncio.create_task(self._append(ledger, story)))
        finally:
            outcomes = await asyncio.gather(*appends, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _append(self, ledger: LedgerWriter, story: Story) -> None:
        number = self._history.begins(story, 1)
        try:
            answered = await ledger.append(payload_of(story.ledger_id, number))
        except BaseException:
            story.is_over = True
            raise
        self._history.confirmed(story, number, number, answered)

    async def _let_go(self, client: SimClient, ledger: LedgerWriter, story: Story) -> None:
        """Seal, or only close; now and then with appends still under way."""
        under_way = []
        if self._random.random() < 0.3 and not story.is_over:
            under_way = [
                asyncio.create_task(self._append(ledger, story)) for _ in range(min(3, self._plan.in_flight_max))
            ]
            await asyncio.sleep(0)
        try:
            if self._random.random() < 0.6:
                await ledger.seal()
                self._history.ended(story, client.name, ledger.last_add_confirmed, ledger.length)
                self._history.count("ledgers sealed")
        except BookKeeperError as error:
            self._cluster.trace.note(client.name, f"seal of {ledger.ledger_id} failed: {type(error).__name__}: {error}")
        finally:
            await ledger.close()
            for outcome in await asyncio.gather(*under_way, return_exceptions=True):
                if isinstance(outcome, BaseException) and not isinstance(outcome, BookKeeperError):
                    self._history.unexpected(client.name, "append", outcome)
            story.is_over = True

    # -- recovering ----------------------------------------------------------------------------------------------
    def _choose(self) -> Story | None:
        """Some ledger, rather a young one."""
        stories = list(self._history.stories.values())
        return self._random.choice(stories[-6:]) if stories else None

    async def _recover(self, client: SimClient) -> None:
        for _ in range(self._random.randint(1, self._plan.recoveries_max)):
            await self._sleep_or_nudge(self._plan.recovery_ms)
            story = self._choose()
            if story is None or self._is_stopping:
                continue
            acknowledged = story.confirmed
            try:
                ledger = await client.client.recover(story.ledger_id, password=story.password)
            except BookKeeperError as error:
                text = f"recovery of {story.ledger_id} failed: {type(error).__name__}: {error}"
                self._cluster.trace.note(client.name, text)
                self._history.count("failed recoveries")
                continue
            self._history.count("recoveries")
            self._note_end(client, story, ledger, acknowledged)
            await ledger.close()

    def _note_end(self, client: SimClient, story: Story, ledger: LedgerReader, acknowledged: int) -> None:
        if not ledger.metadata.is_closed:
            self._history.violated("I-26", f"recovery of ledger {story.ledger_id} succeeded, but it is not closed")
        if ledger.last_add_confirmed < acknowledged - 1:
            self._history.violated("I-26", f"ledger {story.ledger_id} recovered to {ledger.last_add_confirmed}")
        self._history.ended(story, client.name, ledger.metadata.last_entry_id, ledger.metadata.length)

    # -- reading -------------------------------------------------------------------------------------------------
    async def _read(self, client: SimClient) -> None:
        for _ in range(self._random.randint(1, self._plan.reads_max)):
            await self._sleep(self._plan.read_ms)
            story = self._choose()
            if story is None or self._is_stopping:
                continue
            try:
                async with client.client.open(story.ledger_id, password=story.password) as ledger:
                    if self._random.random() < 0.5:
                        await self.read_all(client, story, ledger)
                    else:
                        await self._tail(client, story, ledger)
            except BookKeeperError as error:
                self._cluster.trace.note(client.name, f"read of {story.ledger_id}: {type(error).__name__}: {error}")
                self._history.count("failed reads")

    async def read_all(self, client: SimClient, story: Story, ledger: LedgerReader) -> int:
        """Read what is confirmed, checking each entry. Returns how many there were."""
        lac = ledger.last_add_confirmed
        expected = 0
        async for entry in ledger.read(first=0):
            if entry.id != expected:
                self._history.violated("I-15", f"ledger {story.ledger_id}: read {entry.id} instead of {expected}")
            expected = entry.id + 1
            self._history.read(story, client.name, entry)
            if ledger.last_add_confirmed < lac:
                self._history.violated("I-17", f"LAC of {ledger!r} went back from {lac}")
            lac = ledger.last_add_confirmed
        return expected

    async def _tail(self, client: SimClient, story: Story, ledger: LedgerReader) -> None:
        """Follow a ledger to its end, which comes with the end of the run at the latest; or only for a while."""
        patience = self._random.choice((0.5, 3.0, None))
        expected = 0
        try:
            async with asyncio.timeout(patience):
                async for entry in ledger.tail(first=0):
                    if entry.id != expected:
                        self._history.violated("I-15", f"ledger {story.ledger_id}: tailed {entry.id}, not {expected}")
                    expected = entry.id + 1
                    self._history.read(story, client.name, entry)
        except TimeoutError:
            return
        if not ledger.metadata.is_closed or expected != ledger.metadata.last_entry_id + 1:
            self._history.violated("L-3", f"the tail of {ledger!r} ended after {expected} entries")
        self._history.count("tails to the end")
