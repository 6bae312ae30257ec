"""Record of what the users of one log saw, and the checks of its promises at the end of a run.

Of the code under test the checks use only the log's record. They examine the acknowledgements and their times, every
committed list of ledgers, the entries that readers received, and the entries that a last reader finds.

    I-20   an acknowledged entry is in the log once, at the acknowledged position, unless it was truncated; all readers
           of a position get the same entry, and no reader misses an entry between two others; entries truncated before
           a reading began do not come back, and only truncations that were requested or are in the log's history happen
    I-21   every committed list follows from the one before, and at most the last two ledgers are open
    I-22   after a later leader has taken over, no entry after the end it found is acknowledged; entries of an earlier
           leader are before those of a later one
    I-3    no append of a writer succeeds after a failed one
    order  the entries of one process keep their order

Those of transactions, cursors and consumers are in `log_consumers.py`, those of numbered and conditional appends and of
records in `log_appends.py`, those of retention and of times in `log_times.py`.

Source: client-protocol 5.6, 8.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct, field

from bookies.client.log import LogWriter
from bookies.lab.sim.world.sim_metadata import SimStore
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.log_model import illegality

Found = tuple[Position, bytes]
Report = Callable[[str, str], None]
EXCERPT = 5  # entries that a message shows


class ListCommit(NamedTuple):
    """One committed list of ledgers. None: the log was deleted."""

    at_s: float
    author: str
    manifest: Manifest | None


class Ack(Struct, frozen=True):
    """A successful append. `position`: None for all but the last entry of a batch, the only one that is returned."""

    at_s: float
    process: str
    position: Position | None
    payload: bytes


class Reading(Struct):
    """The entries that one reader received, in order. `start`: where it began; None: at the log's beginning then.

    `is_stale`: a server of the metadata store that lags behind may have told it an earlier beginning.
    """

    began_s: float
    start: Position | None = None
    entries: list[Found] = field(default_factory=list)
    is_stale: bool = False


class Truncation(Struct):
    """A requested truncation before a position. `done_s`: when it succeeded; None: unknown whether it did."""

    before: Position
    done_s: float | None = None


class Seek(Struct):
    """A search for the position of a time. `is_stale`: a server of the store that lags behind may have answered."""

    began_s: float
    time_ms: float
    is_end: bool
    is_stale: bool
    position: Position | None = None
    ended_s: float = 0.0


class Numbered(NamedTuple):
    """An acknowledged append of numbered entries. `last`: of the last one; (-1, -1): not known any more."""

    process: str
    payloads: Sequence[bytes]
    last: Position


class Conditional(Struct):
    """An append on the condition that `expected` is the last entry. `position`: where it is. `refused`: the last entry
    instead. Neither: unknown whether it is in the log.
    """

    began_s: float
    process: str
    payload: bytes
    expected: Position
    is_stale: bool = False
    position: Position | None = None
    refused: Position | None = None


class Session(Struct):
    """One turn of a consumer. `handled`: when it had handled everything before a position. `committed`: when a commit
    of a position had succeeded.
    """

    consumer: str
    process: str
    token: int
    reading: Reading
    handled: list[tuple[float, Position]] = field(default_factory=list)
    committed: list[tuple[float, Position]] = field(default_factory=list)

    def handed_out(self, at_s: float) -> list[tuple[float, Position]]:
        """Return the position after everything that was handed out, with the time at which it is handled."""
        return [(at_s, self.reading.entries[-1][0].next)] if self.reading.entries else []


class Txn(Struct):
    """A transaction. `open_count`, `commit_count`: attempts that may still commit, and that reached their commit."""

    name: str
    payloads: list[bytes]
    open_count: int = 0
    commit_count: int = 0
    is_committed: bool = False
    is_given_up: bool = False


class LogHistory(Struct):
    """All observations of one log. `final`: the entries that a last reader received at the end of the run."""

    acks: list[Ack] = field(default_factory=list)
    attempted: dict[bytes, tuple[str, int]] = field(default_factory=dict)  # payload -> process, number of the append
    readings: list[Reading] = field(default_factory=list)
    truncations: list[Truncation] = field(default_factory=list)
    final: list[Found] = field(default_factory=list)
    outcomes: dict[LogWriter, list[tuple[int, bool]]] = field(default_factory=dict)  # (number of attempt, success)
    transactions: dict[tuple[str, int], Txn] = field(default_factory=dict)  # by application and version
    moves: dict[str, list[tuple[float, Position]]] = field(default_factory=dict)  # cursor -> successful moves forward
    begun_s: dict[bytes, float] = field(default_factory=dict)  # payload -> when its first append began
    seeks: list[Seek] = field(default_factory=list)
    numbered: list[Numbered] = field(default_factory=list)
    conditionals: list[Conditional] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    resets: list[tuple[str, str, Position]] = field(default_factory=list)  # process, cursor that was passed, its move

    def attempt(self, process: str, payloads: Sequence[bytes], at_s: float = 0.0) -> int:
        """Record that these are about to be appended in one call, perhaps again. Return the number of the attempt."""
        number = len(self.attempted)
        for payload in payloads:
            self.attempted.setdefault(payload, (process, len(self.attempted)))
            self.begun_s.setdefault(payload, at_s)
        return number

    def succeeded(
        self, at_s: float, process: str, writer: LogWriter, number: int, payloads: Sequence[bytes], last: Position
    ) -> None:
        self.outcomes.setdefault(writer, []).append((number, True))
        self.acks += [Ack(at_s, process, None, payload) for payload in payloads[:-1]]
        self.acks.append(Ack(at_s, process, last, payloads[-1]))

    def failed(self, writer: LogWriter, number: int) -> None:
        self.outcomes.setdefault(writer, []).append((number, False))


class LogCheck:
    """All checks of one history. `commits`: all of the list. `report(promise, text)` receives broken promises.

    `removals`: truncations that were not requested, but are in the log's own history.
    """

    def __init__(
        self,
        history: LogHistory,
        commits: Sequence[ListCommit],
        store: SimStore,
        report: Report,
        removals: Sequence[Truncation] = (),
    ) -> None:
        self.history = history
        self.truncations = [*history.truncations, *removals]
        self.commits = commits
        self.store = store
        self.report = report
        self._seq: dict[int, int] = {}  # ledger -> its place in the log
        for commit in commits:
            for extent in commit.manifest.extents if commit.manifest is not None else ():
                self._seq.setdefault(extent.ledger_id, extent.seq)
        self.order = sorted(self._seq, key=self._seq.__getitem__)

    def run(self) -> None:
        self._check_lists()
        self._check_content()
        self._check_readings()
        self._check_acks()
        self._check_outcomes()
        self._check_leaders()

    # -- the list ------------------------------------------------------------------------------------------------
    def _check_lists(self) -> None:
        before: Manifest | None = None
        for at_s, author, after in self.commits:
            if problem := illegality(before, after):
                self.report("I-21", f"{author} committed at {at_s:.3f}: {problem}")
            for ledger_id in after.storages[:-2] if after is not None else ():
                earlier = [commit.after for commit in self.store.commits.get(ledger_id, ()) if commit.at_s <= at_s]
                if not any(record is not None and record.is_closed for record in earlier):
                    self.report("I-21", f"ledger {ledger_id} is open, with two behind it")
            before = after
        for ledger_id in before.storages if before is not None else ():
            if self.store.record(ledger_id) is None:
                self.report("I-20", f"ledger {ledger_id} is listed and does not exist")

    # -- the entries of the log ----------------------------------------------------------------------------------
    def key(self, position: Position) -> tuple[int, int]:
        """Return the sort key of a position, by which positions ascend along the log."""
        return self._seq.get(position.ledger_id, -1), position.entry_id

    def _all_readings(self) -> Iterator[list[Found]]:
        yield from (reading.entries for reading in self._readings())
        yield self.history.final

    def _readings(self) -> Iterator[Reading]:
        yield from self.history.readings
        yield from (session.reading for session in self.history.sessions)

    def positions(self) -> dict[bytes, Position]:
        """Return the position of every entry that was ever read, by payload."""
        return {payload: position for entries in self._all_readings() for position, payload in entries}

    def _check_content(self) -> None:
        """Check I-20: one payload at each position, one position for each payload, and only appended payloads."""
        at: dict[Position, bytes] = {}
        positions: dict[bytes, Position] = {}
        for entries in self._all_readings():
            for position, payload in entries:
                if position.ledger_id not in self._seq:
                    self.report("I-20", f"{position} was read, of a ledger that was never in the list")
                if at.setdefault(position, payload) != payload:
                    self.report("I-20", f"{at[position]!r} was read at {position}, and {payload!r}")
                if positions.setdefault(payload, position) != position:
                    self.report("I-20", f"{payload!r} is at {positions[payload]} and at {position}")
                if payload not in self.history.attempted:
                    self.report("I-20", f"{payload!r} was never appended")

    def _check_readings(self) -> None:
        for reading in self._readings():
            if reading.entries:
                self.check_contiguity(reading.entries)
                first = reading.entries[0][0]
                if reading.start is None:
                    self._check_beginning(first, 0.0 if reading.is_stale else reading.began_s)
                elif first != reading.start and not self.follows(reading.start, first, reading.start.entry_id - 1):
                    self.report("I-20", f"a reader asked for {reading.start}, and got {first} first")
        self.check_contiguity(self.history.final)
        if self.history.final:
            self._check_beginning(self.history.final[0][0], float("inf"))

    def check_contiguity(self, entries: Sequence[Found]) -> None:
        for (before, _), (after, _) in pairwise(entries):
            if after != before.next and not self.follows(before, after, before.entry_id):
                self.report("I-20", f"a reader got {after} behind {before}, and misses something or has it twice")

    def follows(self, before: Position, after: Position, last: int) -> bool:
        """Report whether `after` begins a later ledger, the ledger of `before` ends at `last`, and none with entries is
        between them.
        """
        if self.end_of(before.ledger_id) != last or after.entry_id != 0 or self.key(after) <= self.key(before):
            return False
        between = self.order[self.order.index(before.ledger_id) + 1 : self.order.index(after.ledger_id)]
        return all(self.end_of(ledger_id) == -1 for ledger_id in between)

    def end_of(self, ledger_id: int) -> int | None:
        """Return the last entry of a ledger that was closed, even if it was deleted later; None: it was not closed."""
        records = [commit.after for commit in self.store.commits.get(ledger_id, ())]
        closed = [record for record in records if record and record.is_closed]
        return closed[-1].last_entry_id if closed else None

    def _check_beginning(self, first: Position, began_s: float) -> None:
        """Check I-20 for a reading that began at the beginning of the log, with `first`."""
        truncations = self.truncations
        done = [cut.before for cut in truncations if cut.done_s is not None and cut.done_s <= began_s]
        over = [position for position in done if self.key(position) > self.key(first)]
        if over:
            self.report("I-20", f"{first} was read after the log had been truncated before {max(over, key=self.key)}")
        known = [position for entries in self._all_readings() for position, _ in entries]
        known += [ack.position for ack in self.history.acks if ack.position is not None]
        missing = [position for position in dict.fromkeys(known) if self.key(position) < self.key(first)]
        asked = [truncation.before for truncation in truncations]
        wrong = [position for position in missing if not any(self.key(position) < self.key(before) for before in asked)]
        if wrong:
            self.report("I-20", f"a reading begins at {first}; {wrong[:EXCERPT]} are before it, and were not truncated")

    # -- the acknowledged entries --------------------------------------------------------------------------------
    def _check_acks(self) -> None:
        history = self.history
        at = self.positions()
        final = {payload: index for index, (_, payload) in enumerate(history.final)}
        beginning = self.key(history.final[0][0]) if history.final else (1 << 60, 0)
        for ack in history.acks:
            if ack.position is not None and at.get(ack.payload, ack.position) != ack.position:
                self.report("I-20", f"{ack.payload!r} was acknowledged at {ack.position}, and is at {at[ack.payload]}")
            is_truncated = bool(self.truncations) and (ack.position is None or self.key(ack.position) < beginning)
            if ack.payload not in final and not is_truncated:
                self.report("I-20", f"{ack.payload!r} was acknowledged at {ack.position} and is not there")
        for process in dict.fromkeys(process for process, _ in history.attempted.values()):
            own = [history.attempted[payload] for payload in final if payload in history.attempted]
            numbers = [number for author, number in own if author == process]
            if numbers != sorted(numbers):
                self.report("order", f"what {process} appended is in the log in another order")

    def _check_outcomes(self) -> None:
        for outcomes in self.history.outcomes.values():
            failed = min((number for number, is_success in outcomes if not is_success), default=1 << 60)
            late = [number for number, is_success in outcomes if is_success and number > failed]
            if late:
                self.report("I-3", f"attempts {late[:EXCERPT]} succeeded, and {failed} before them did not")

    def _check_leaders(self) -> None:
        """Check I-22: each ledger has one writer, and none of its later entries is acknowledged after a takeover."""
        listed: dict[int, tuple[int, str]] = {}  # ledger -> epoch and author of the commit that listed it
        ends: dict[int, tuple[float, str, int]] = {}  # ledger -> time of the takeover, later leader, end at that time
        for at_s, author, manifest in self.commits:
            for extent in manifest.extents if manifest is not None else ():
                assert manifest is not None
                new = listed.setdefault(extent.ledger_id, (manifest.epoch, author))
                is_over = manifest.epoch > new[0] and author != new[1]
                if is_over and extent.ledger_id not in ends:
                    last = -2 if extent.last is None else extent.last
                    ends[extent.ledger_id] = (at_s, author, last)
        for ack in self.history.acks:
            if ack.position is None:
                continue
            epoch_author = listed.get(ack.position.ledger_id)
            if epoch_author is None or epoch_author[1] != ack.process:
                self.report("I-22", f"{ack} in a ledger of {epoch_author}")
            at_s, author, last = ends.get(ack.position.ledger_id, (float("inf"), "", -1))
            if ack.at_s > at_s and ack.position.entry_id > last:
                self.report("I-22", f"{ack} after {author} took over at {at_s:.3f} with end {last}")
        order = [listed[position.ledger_id][0] for position, _ in self.history.final if position.ledger_id in listed]
        if order != sorted(order):
            self.report("I-22", "entries of an earlier leader are behind those of a later one")
