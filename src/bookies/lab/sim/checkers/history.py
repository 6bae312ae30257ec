"""Record of what the users of a run's ledgers saw, and the checks that are possible at once.

The workload records every operation in the `History`. It checks the order of acknowledgements, the content of entries
that are read, and that all reported ends agree. The payload of an entry follows from its ledger and id, so every client
knows the payload that it must read.
"""

from __future__ import annotations

import traceback
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct, field

from bookies.errors import BookKeeperError, LocalProtocolError
from bookies.lab.sim.checkers.linearizability import Observations
from bookies.lab.sim.checkers.wire_tap import WireTap
from bookies.lab.sim.checkers.writer_settings import WriterSettingsChecker
from bookies.lab.sim.world import Trace
from bookies.lab.sim.world.sim_metadata import Commit
from bookies.lab.sim.world.witness import Witness

if TYPE_CHECKING:
    from bookies.client.base import Entry
    from bookies.model import LedgerMetadata


def payload_of(ledger_id: int, entry_id: int, size_min: int = 0) -> bytes:
    """Return the payload of an entry. Most have less than 200 bytes; some are empty, some have 4,000 to 7,000.

    `size_min`: of every payload of the ledger, bytes; the sizes then range from `size_min` to less than twice as much.
    """
    number = zlib.crc32(b"%d %d" % (ledger_id, entry_id))
    size = 4_000 + number % 3_000 if number % 61 == 0 else number % 200
    if size_min:
        size = size_min + number % size_min
    word = b"%d.%d " % (ledger_id, entry_id)
    return (word * (size // len(word) + 1))[:size]


class Story(Struct):
    """One ledger as its users saw it."""

    ledger_id: int
    password: bytes
    ack_quorum: int
    writer: str
    started: int = 0  # entries 0..started-1 were given to append; of an advanced ledger those of them in `seen.begun`
    confirmed: int = 0  # entries 0..confirmed-1 were acknowledged to the application
    is_over: bool = False  # an append failed, or the writer closed: no further entry may be acknowledged
    shown: int = -1  # the highest entry that any read returned
    ends: list[tuple[str, int, int]] = field(default_factory=list)  # client, last entry, length
    lengths: list[int] = field(default_factory=list)
    seen: Observations = field(default_factory=Observations)
    is_deferred: bool = False  # acknowledged entries are confirmed only by a force
    is_advanced: bool = False  # the writer chose the ids, so the lengths do not ascend with them
    payload_size_min: int = 0
    recoveries: dict[str, int] = field(default_factory=dict)  # client -> recoveries that it has begun
    handles: dict[str, None] = field(default_factory=dict)  # clients with an open reader, including dead clients

    def was_begun(self, entry_id: int) -> bool:
        """Report whether an append of the entry has begun."""
        return entry_id in self.seen.begun if self.is_advanced and self.seen.begun else entry_id < self.started

    def payload(self, entry_id: int) -> bytes:
        """Return the payload of an entry."""
        return payload_of(self.ledger_id, entry_id, self.payload_size_min)

    def length_up_to(self, entry_id: int) -> int:
        """Return the sum of payload bytes of entries 0..entry_id."""
        while len(self.lengths) <= entry_id:
            before = self.lengths[-1] if self.lengths else 0
            self.lengths.append(before + len(self.payload(len(self.lengths))))
        return self.lengths[entry_id] if entry_id >= 0 else 0


class History:
    """Every ledger's story, and the broken promises of a run."""

    def __init__(self, trace: Trace) -> None:
        self.stories: dict[int, Story] = {}
        self.violations: list[str] = []
        self.counts: dict[str, int] = {}
        self.is_over = False  # the run has ended: the clean-up code of its clients is not checked
        self.witness: Witness | None = None
        self.tap: WireTap | None = None
        self.writer_settings: WriterSettingsChecker
        self.record_of: Callable[[int], LedgerMetadata | None] = lambda _: None  # of a ledger, now; None: deleted
        self.on_violation: Callable[[], None] | None = None
        self._trace = trace
        self._instant = 0

    def committed(self, commit: Commit) -> None:
        """Check a record at the moment of its commit."""
        story = self.stories.get(commit.after.ledger_id) if commit.after else None
        if self.tap is not None:
            self.tap.committed(commit)
        if self.witness is not None:
            self.witness.check_commit(commit, story.confirmed if story else 0)
        self.writer_settings.check_commit(commit)

    def violated(self, invariant: str, text: str) -> None:
        """Record a broken promise, once, also in the trace."""
        line = f"{invariant}: {text}"
        if line not in self.violations and not self.is_over:
            self.violations.append(line)
            if self.on_violation is not None:
                self.on_violation()
            self._trace.note("CHECKER", line)

    def count(self, name: str, number: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + number

    def instant(self) -> int:
        """Return the next number in the order of events. Every event has its own."""
        self._instant += 1
        return self._instant

    def begins(self, story: Story, count: int) -> int:
        """Record that the next `count` entries are about to be appended. Return the first entry's id."""
        first = story.started
        self.begins_at(story, first, count)
        return first

    def begins_at(self, story: Story, first: int, count: int = 1) -> None:
        """Record that `count` new entries from `first` on are about to be appended."""
        for entry_id in range(first, first + count):
            story.seen.begun[entry_id] = self.instant()
            self.writer_settings.begins(story.ledger_id, entry_id)
        story.started = max(story.started, first + count)

    def confirmed(self, story: Story, first: int, last: int, answered: int) -> None:
        """Record and check the acknowledgement of entries first..last. `answered`: the id that the client returned."""
        name = f"ledger {story.ledger_id}"
        if answered != last:
            self.violated("I-3", f"{name}: the append of entry {last} was acknowledged as entry {answered}")
        if first != story.confirmed:
            self.violated("I-3", f"{name}: entry {first} was acknowledged after entry {story.confirmed - 1}")
        if story.is_over:
            self.violated("I-23", f"{name}: entry {first} was acknowledged after a failed append or a close")
        if self.stories.get(story.ledger_id) is story and story.ends and last > story.ends[0][1]:
            self.violated("I-5", f"{name}: entry {last} was acknowledged beyond the end {story.ends[0][1]}")
        record = self.record_of(story.ledger_id)
        if record is not None and record.is_closed and last > record.last_entry_id:
            self.violated(
                "I-33", f"{name}: entry {last} was acknowledged, but the record ends at {record.last_entry_id}"
            )
        if self.witness is not None:
            self.witness.check_acknowledgement(story.ledger_id, first, last)
        if self.tap is not None:
            self.tap.check_acknowledgement(story.ledger_id, first, last, story.seen.begun.__getitem__)
        self.writer_settings.check_acknowledgement(story.ledger_id, first, last)
        for entry_id in range(first, last + 1):
            story.seen.acknowledged[entry_id] = self.instant()
        story.confirmed = max(story.confirmed, last + 1)
        self.count("entries acknowledged", last - first + 1)

    def ended(self, story: Story, client: str, last_entry_id: int, length: int) -> None:
        """Record and check that the ledger is closed at this end, as reported to `client`. `length`: bytes."""
        story.ends.append((client, last_entry_id, length))
        story.seen.ends.append((last_entry_id, self.instant(), client))
        first_client, first_last, first_length = story.ends[0]
        if (first_last, first_length) != (last_entry_id, length):
            self.violated(
                "I-4",
                f"ledger {story.ledger_id} ends at {first_last} ({first_length} bytes) for {first_client}, "
                f"at {last_entry_id} ({length} bytes) for {client}",
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

    def read(self, story: Story, client: str, entry: Entry) -> None:
        """Record and check an entry that `client` has read as a confirmed one."""
        story.shown = max(story.shown, entry.id)
        story.seen.reads.append((entry.id, self.instant(), client))
        name = f"entry {entry.id} of ledger {story.ledger_id}, read by {client},"
        if story.ends and entry.id > story.ends[0][1]:
            self.violated("I-12", f"{name} lies beyond the end {story.ends[0][1]}")
        if not story.was_begun(entry.id):
            self.violated("I-15", f"{name} was never written")
        elif bytes(entry.payload) != story.payload(entry.id):
            self.violated("I-15", f"{name} is not what was written: {bytes(entry.payload)[:40]!r}")
        elif not story.is_advanced and entry.length != story.length_up_to(entry.id):
            self.violated("I-15", f"{name} has length {entry.length}, not {story.length_up_to(entry.id)}")
        self.count("entries read")

    def failed(self, client: str, operation: str, error: BookKeeperError) -> None:
        """Record an operation that ended with a documented error. `LocalProtocolError` is a violation nevertheless."""
        self._trace.note(client, f"{operation} failed: {type(error).__name__}: {error}")
        cause: BaseException | None = error
        seen: list[BaseException] = []
        while cause is not None:
            if cause in seen:
                self.violated("errors", f"{client}: {operation} failed by an error that is its own cause: {cause}")
                return
            seen.append(cause)
            if isinstance(cause, LocalProtocolError):
                self.violated("errors", f"{client}: {operation} failed by a mistake of its own: {cause}")
            cause = cause.__cause__

    def unexpected(self, client: str, operation: str, error: BaseException) -> None:
        """Record an operation that ended with an undocumented exception, as a violation."""
        text = "".join(traceback.format_exception(error)).rstrip()
        self.violated("errors", f"{client}: {operation} raised an undocumented exception: {text}")
