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

from bookies.errors import BookKeeperError, EntryNotFound, LocalProtocolError
from bookies.model import BookieId, LedgerState
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
    from bookies.model import LedgerMetadata

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
    is_deferred: bool = False  # acknowledged entries are confirmed only by a force
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
        self.record_of: Callable[[int], LedgerMetadata | None] = lambda _: None  # of a ledger, now; None: deleted
        self.on_violation: Callable[[], None] | None = None
        self._trace = trace
        self._instant = 0

    def committed(self, commit: Commit) -> None:
        """A record was committed, this very moment."""
        story = self.stories.get(commit.after.ledger_id) if commit.after else None
        if self.tap is not None:
            self.tap.committed(commit)
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
        if self.tap is not None:
            self.tap.check_acknowledgement(story.ledger_id, first, last, story.seen.begun.__getitem__)
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

    def failed(self, who: str, what: str, error: BookKeeperError) -> None:
        """An operation ended with a documented error; one that accuses ourselves is a problem all the same."""
        self._trace.note(who, f"{what} failed: {type(error).__name__}: {error}")
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, LocalProtocolError):
                self.violated("errors", f"{who}: {what} failed by a mistake of its own: {cause}")
            cause = cause.__cause__

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
    deleters: int = 0
    delete_ms: float = 1_500.0  # mean, before a deletion
    deferred_probability: float = 0.1  # of a ledger whose entries are on disk only when they are forced
    overlap_probability: float = 0.0  # of an append that is under way while the writer forces
    replicators: int = 0
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
            ("deleter", self._plan.deleters, self._delete),
            ("replicator", self._plan.replicators, self._replicate),
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
            self._history.failed(client.name, "its work", error)
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
        is_deferred = random.random() < self._plan.deferred_probability
        ledger = await client.client.create(
            ensemble=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest=digest,
            password=password,
            deferred_sync=is_deferred,
        )
        story = Story(ledger.ledger_id, password, ack_quorum, client.name, is_deferred=is_deferred)
        self._history.stories[ledger.ledger_id] = story
        self._history.count("ledgers")
        try:
            goal = random.randint(self._plan.entries_min, self._plan.entries_max)
            while story.started < goal and not story.is_over and not self._is_stopping:
                await self._append_some(ledger, story)
                if story.is_deferred and random.random() < 0.5:
                    await self._force(ledger, story)
                await self._sleep(self._plan.pause_ms)
        except BookKeeperError as error:
            self._history.failed(client.name, f"append to {ledger.ledger_id}", error)
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
            self._acknowledged(story, first, last, answered)

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
        self._acknowledged(story, number, number, answered)

    def _acknowledged(self, story: Story, first: int, last: int, answered: int) -> None:
        if not story.is_deferred:
            self._history.confirmed(story, first, last, answered)
        elif answered != last:
            self._history.violated("I-3", f"ledger {story.ledger_id}: entry {last} is acknowledged as {answered}")

    async def _force(self, ledger: LedgerWriter, story: Story) -> None:
        overlapping = []
        if self._plan.overlap_probability and self._random.random() < self._plan.overlap_probability:
            overlapping = [asyncio.create_task(self._append(ledger, story)) for _ in range(2)]
        try:
            last = await ledger.force()
            if last >= story.confirmed:
                self._history.confirmed(story, story.confirmed, last, last)
        finally:
            outcomes = await asyncio.gather(*overlapping, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

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
                await self._check_seal(ledger, story)
                self._history.ended(story, client.name, ledger.last_add_confirmed, ledger.length)
                self._history.count("ledgers sealed")
        except BookKeeperError as error:
            self._history.failed(client.name, f"seal of {ledger.ledger_id}", error)
        finally:
            await ledger.close()
            for outcome in await asyncio.gather(*under_way, return_exceptions=True):
                if isinstance(outcome, BaseException) and not isinstance(outcome, BookKeeperError):
                    self._history.unexpected(client.name, "append", outcome)
            story.is_over = True
        await self._check_closed(ledger, story)

    async def _check_seal(self, ledger: LedgerWriter, story: Story) -> None:
        """I-24: the record says the same as the handle, and sealing again changes nothing."""
        own = (ledger.last_add_confirmed, ledger.length)
        record = self._history.record_of(story.ledger_id)
        if record is not None and (not record.is_closed or (record.last_entry_id, record.length) != own):
            self._history.violated("I-24", f"ledger {story.ledger_id} is sealed at {own}, but {record!r}")
        if self._random.random() < 0.3 and (again := await ledger.seal()) != own[0]:
            self._history.violated("I-24", f"ledger {story.ledger_id} is sealed at {own[0]}, and then at {again}")

    async def _check_closed(self, ledger: LedgerWriter, story: Story) -> None:
        """I-23: a handle that was let go of takes nothing more."""
        try:
            entry_id = await ledger.append(b"late")
        except BookKeeperError:
            return
        self._history.violated("I-23", f"entry {entry_id} of ledger {story.ledger_id} was acknowledged after the close")

    # -- deleting ------------------------------------------------------------------------------------------------
    async def _delete(self, client: SimClient) -> None:
        """Delete a ledger, mostly one that has its end."""
        await self._sleep(self._plan.delete_ms)
        stories = [each for each in self._history.stories.values() if each.ends or self._random.random() < 0.1]
        if not stories or self._is_stopping:
            return
        story = self._random.choice(stories)
        try:
            await client.client.delete(story.ledger_id)
            self._history.count("ledgers deleted")
        except BookKeeperError as error:
            self._history.failed(client.name, f"deletion of {story.ledger_id}", error)

    # -- replicating ---------------------------------------------------------------------------------------------
    async def _replicate(self, client: SimClient) -> None:
        """Move what a bookie holds to others, though it is well."""
        await self._sleep(self._plan.recovery_ms)
        if self._is_stopping:
            return
        bookie = BookieId(self._random.choice(list(self._cluster.bookies)))
        skips_open = self._random.random() < 0.7
        try:
            report = await client.client.administration().recover_bookies([bookie], skip_open=skips_open, force=True)
            self._history.count("fragments replicated", len(report.moves))
        except BookKeeperError as error:
            self._history.failed(client.name, f"replication of {bookie}", error)

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
                self._history.failed(client.name, f"recovery of {story.ledger_id}", error)
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
                    await self._read_somehow(client, story, ledger)
            except BookKeeperError as error:
                self._history.failed(client.name, f"read of {story.ledger_id}", error)
                self._history.count("failed reads")

    async def _read_somehow(self, client: SimClient, story: Story, ledger: LedgerReader) -> None:
        kind = self._random.choices(("all", "tail", "end", "unconfirmed"), (4, 4, 2, 1))[0]
        try:
            if kind == "all":
                await self.read_all(client, story, ledger)
            elif kind == "tail":
                await self._tail(client, story, ledger)
            elif kind == "end":
                await self._read_end(story, ledger)
            else:
                await self._read_unconfirmed(story, ledger)
        except EntryNotFound as error:
            if ledger.is_sealed and error.entry_id is not None and error.entry_id > ledger.metadata.last_entry_id:
                return
            self._check_denied(client, story, error)
            raise

    def _check_denied(self, client: SimClient, story: Story, error: EntryNotFound) -> None:
        """I-32: no such entry, if every bookie says so."""
        tap = self._history.tap
        if tap is None or error.entry_id is None or error.entry_id < 0:
            return
        if not tap.is_denied_by_all(client.name, story.ledger_id, error.entry_id):
            text = f"{client.name} reports that entry {error.entry_id} of ledger {story.ledger_id} does not exist"
            self._history.violated("I-32", f"{text}, but not all of its bookies said so")

    async def _read_end(self, story: Story, ledger: LedgerReader) -> None:
        """I-27: who asks after an entry was acknowledged learns at least what that entry carries.

        That is, when the entry is in the last fragment, which is all that is asked; and not once a recovery writes
        entries back: they then carry what it began with (D-5).
        """
        tap, acknowledged, known = self._history.tap, story.confirmed - 1, ledger.last_add_confirmed
        record = self._history.record_of(story.ledger_id)
        is_current = (
            record is not None
            and record.ensembles == ledger.metadata.ensembles
            and acknowledged >= record.last_fragment_first_entry
        )
        last = await ledger.read_last_add_confirmed()
        now = self._history.record_of(story.ledger_id)
        is_current = is_current and now is not None and now == record and now.state is LedgerState.OPEN
        if tap is not None and is_current and last < (least := tap.headers.get((story.ledger_id, acknowledged), -1)):
            self._history.violated("I-27", f"the end of {ledger!r} was read as {last}, but {least} was announced")
        if last < known:
            self._history.violated("I-17", f"LAC of {ledger!r} went back from {known} to {last}")
        story.shown = max(story.shown, last)
        if story.ends and last > story.ends[0][1]:
            self._history.violated("I-14", f"the end of {ledger!r} was read as {last}, beyond {story.ends[0][1]}")

    async def _read_unconfirmed(self, story: Story, ledger: LedgerReader) -> None:
        """What bookies hold of an open ledger; nothing behind the end of a sealed one."""
        async for entry in ledger.read_unconfirmed(0, story.started + 2):
            if ledger.is_sealed and entry.id > ledger.metadata.last_entry_id:
                self._history.violated("I-12", f"entry {entry.id} was read behind the end of {ledger!r}")
            if entry.id >= story.started or bytes(entry.payload) != payload_of(story.ledger_id, entry.id):
                self._history.violated("I-15", f"entry {entry.id} of {ledger!r}, unconfirmed, is not what was written")

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
        is_there = self._history.record_of(story.ledger_id) is not None
        if is_there and (not ledger.metadata.is_closed or expected != ledger.metadata.last_entry_id + 1):
            self._history.violated("L-3", f"the tail of {ledger!r} ended after {expected} entries")
        self._history.count("tails to the end")
