"""What the users of a run's ledgers saw, and what of it breaks a promise.

Every operation of the workload is written down in the `History`, which also checks what can be checked on the spot: the
order of confirmations, the content of what is read, ends that agree, LACs that never retreat. The payload of an entry
follows from its ledger and id, so everybody knows what must be read.
"""

from __future__ import annotations

import traceback
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
    """The bytes that entry has, if it exists. Mostly below 200 bytes, sometimes none, sometimes some thousands.

    `size_min`: of every payload of the ledger; its sizes then vary by as much.
    """
    number = zlib.crc32(b"%d %d" % (ledger_id, entry_id))
    size = 4_000 + number % 3_000 if number % 61 == 0 else number % 200
    if size_min:
        size = size_min + number % size_min
    word = b"%d.%d " % (ledger_id, entry_id)
    return (word * (size // len(word) + 1))[:size]


@dataclass
class Story:
    """One ledger as its users saw it."""

    ledger_id: int
    password: bytes
    ack_quorum: int
    writer: str
    started: int = 0  # entries 0..started-1 were given to append; of an advanced ledger those of them in `seen.begun`
    confirmed: int = 0  # entries 0..confirmed-1 were acknowledged to the application
    is_over: bool = False  # an append failed, or the writer closed: nothing may be acknowledged any more
    shown: int = -1  # the highest entry that any read returned
    ends: list[tuple[str, int, int]] = field(default_factory=list)  # who, last entry, length
    lengths: list[int] = field(default_factory=list)
    seen: Observations = field(default_factory=Observations)
    is_deferred: bool = False  # acknowledged entries are confirmed only by a force
    is_advanced: bool = False  # the writer chose the ids, so the lengths do not ascend with them
    payload_size_min: int = 0
    recoveries: dict[str, int] = field(default_factory=dict)  # client -> how often it has begun to recover it
    handles: dict[str, None] = field(default_factory=dict)  # clients that have it open for reading, dead ones too

    def was_begun(self, entry_id: int) -> bool:
        """Whether an append of the entry has begun."""
        return entry_id in self.seen.begun if self.is_advanced and self.seen.begun else entry_id < self.started

    def payload(self, entry_id: int) -> bytes:
        """The bytes of the entry, if it exists."""
        return payload_of(self.ledger_id, entry_id, self.payload_size_min)

    def length_up_to(self, entry_id: int) -> int:
        """Payload bytes of entries 0..entry_id."""
        while len(self.lengths) <= entry_id:
            before = self.lengths[-1] if self.lengths else 0
            self.lengths.append(before + len(self.payload(len(self.lengths))))
        return self.lengths[entry_id] if entry_id >= 0 else 0


class History:
    """Every ledger's story, and what broke a promise."""

    def __init__(self, trace: Trace) -> None:
        self.stories: dict[int, Story] = {}
        self.violations: list[str] = []
        self.counts: dict[str, int] = {}
        self.is_over = False  # what abandoned clients do while they are cleared away does not count
        self.witness: Witness | None = None
        self.tap: WireTap | None = None
        self.terms: WriterSettingsChecker | None = None
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
        if self.terms is not None:
            self.terms.check_commit(commit)

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
        self.begins_at(story, first, count)
        return first

    def begins_at(self, story: Story, first: int, count: int = 1) -> None:
        """Entries from `first` on are about to be appended, which was nobody's idea before."""
        for entry_id in range(first, first + count):
            story.seen.begun[entry_id] = self.instant()
            if self.terms is not None:
                self.terms.begins(story.ledger_id, entry_id)
        story.started = max(story.started, first + count)

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
        if self.terms is not None:
            self.terms.check_acknowledgement(story.ledger_id, first, last)
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
        if not story.was_begun(entry.id):
            self.violated("I-15", f"{name} was never written")
        elif bytes(entry.payload) != story.payload(entry.id):
            self.violated("I-15", f"{name} is not what was written: {bytes(entry.payload)[:40]!r}")
        elif not story.is_advanced and entry.length != story.length_up_to(entry.id):
            self.violated("I-15", f"{name} has length {entry.length}, not {story.length_up_to(entry.id)}")
        self.count("entries read")

    def failed(self, who: str, what: str, error: BookKeeperError) -> None:
        """An operation ended with a documented error; one that accuses ourselves is a problem all the same."""
        self._trace.note(who, f"{what} failed: {type(error).__name__}: {error}")
        cause: BaseException | None = error
        seen: list[BaseException] = []
        while cause is not None:
            if cause in seen:
                self.violated("errors", f"{who}: {what} failed by an error that is its own cause: {cause}")
                return
            seen.append(cause)
            if isinstance(cause, LocalProtocolError):
                self.violated("errors", f"{who}: {what} failed by a mistake of its own: {cause}")
            cause = cause.__cause__

    def unexpected(self, who: str, what: str, error: BaseException) -> None:
        """An operation ended with an exception that is not in the documented tree."""
        text = "".join(traceback.format_exception(error)).rstrip()
        self.violated("errors", f"{who}: {what} raised an undocumented exception: {text}")
