"""Numbered entries of a log: each writer numbers its entries, and the log holds each number once.

A *writer* is a name that its application chooses, with a number that grows by one with each entry. Both are in a header
of the entry's record, so entry and number are stored together or not at all. The state is a pure function of the log:
the last number of each writer, and the positions of its latest entries. Five invariants make an append idempotent:

* Order. A leader appends a number only after the one before it, or as a writer's first one. It sends the entries of a
  writer one append after the other. After an append whose outcome is unknown it appends no numbered entry any more.
* Basis. A new leader reads the log up to its own first entry before it appends a numbered one. So its state contains
  each number that an earlier leader has stored, also one that was never acknowledged.
* Snapshot. The state at a position is stored in a record, before the first numbered entry and now and then afterwards.
  It is valid for ever, because entries before a position do not change. A new leader reads the snapshot, and the log
  from its position on, which is a bounded part.
* Origin. A number counts only in the log for which it was chosen, so not in entries of transactions: leaders alone
  append numbered entries, and what a transaction adds may be copied from another log.
* Guard. A cursor of the log is at the snapshot's position and moves with it, in one transaction. So truncation keeps
  what the next leader must read. A forced truncation may remove them; then repeats of them are not recognized.

Source: docs/reference/http.md, "Exactly once".
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from msgspec import Struct, field

from bookies.encoding.documents import parse_json
from bookies.encoding.envelope import Record
from bookies.errors import InvalidArgument, MetadataCorrupt, NotSupported, SequenceGap
from bookies.model import NAME_CHARACTERS
from bookies.protocol.log.log_model import Position
from bookies.protocol.log.records import LogRecord

FORMAT = 1
HEADER = "bk-sequence"  # of a numbered entry's record: WRITER:NUMBER
CURSOR = "bk-sequences"  # keeps what the next leader must read
RUNS_MAX = 16  # of a writer: positions of older entries are forgotten, their numbers are not
WRITERS_MAX = 1_000  # of a log; they share a record
WRITER_AGE_MS = 7 * 24 * 3600 * 1000  # a writer without an entry for this time makes room for others
NAME_LENGTH_MAX = 100
NUMBER_MAX = (1 << 63) - 1  # numbers are smaller
DIGITS_MAX = len(str(NUMBER_MAX))


class Run(NamedTuple):
    """Consecutive numbers in consecutive entries of one ledger, or in one record set. `total`: how many.

    `position`: of the first. `is_set`: all of them are in its entry.
    """

    first: int
    total: int
    position: Position
    is_set: bool = False

    def position_of(self, number: int) -> Position:
        """Return the position of one of its numbers."""
        ledger_id, entry_id = self.position
        return self.position if self.is_set else Position(ledger_id, entry_id + number - self.first)


class _Writer(Struct):
    """State of one writer. `runs`: the latest, ascending. `seen_ms`: wall time of its last entry.

    `first`: its first number; None: not known.
    """

    last: int
    seen_ms: int
    first: int | None
    runs: list[Run] = field(default_factory=list)


def check_writer(name: str) -> str:
    """Return the name of a writer. Raises `InvalidArgument`."""
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LENGTH_MAX or not NAME_CHARACTERS.issuperset(name):
        raise InvalidArgument(
            f"{name!r} is no name of a writer: use 1 to {NAME_LENGTH_MAX} letters, digits, and - . _ characters"
        )
    return name


def pack_number(writer: str, number: int) -> bytes:
    """Return the header's value."""
    return f"{writer}:{number}".encode()


def parse_number(value: bytes | None) -> tuple[str, int] | None:
    """Return the writer and number of a header's value; None: it is none that `pack_number` returns."""
    name, _, digits = (value or b"").decode("latin-1").partition(":")
    if not 0 < len(name) <= NAME_LENGTH_MAX or not NAME_CHARACTERS.issuperset(name):
        return None
    if not (digits.isascii() and digits.isdigit()) or len(digits) > DIGITS_MAX or int(digits) >= NUMBER_MAX:
        return None
    return name, int(digits)


def number_of(record: Record | LogRecord) -> tuple[str, int] | None:
    """Return the writer and number of a record; None: it is not numbered."""
    return parse_number(next((value for name, value in reversed(record.headers or ()) if name == HEADER), None))


def check_unnumbered(log: str, records: Iterable[LogRecord]) -> None:
    """Check that no record to append has a number, which another log has given it. Raises `InvalidArgument`."""
    for record in records:
        if (numbered := number_of(record)) is not None:
            writer, number = numbered
            raise InvalidArgument(
                f"an entry has the header {HEADER} of another log: number {number} of producer {writer} would count in "
                f"log {log}. Append its value, key and other headers as a record"
            )


class Sequences:
    """The numbers that a log holds, by writer."""

    def __init__(self) -> None:
        self._writers: dict[str, _Writer] = {}

    def stored(self, writer: str, first: int, count: int) -> int:
        """Return how many of the entries `first`, `first + 1`, ... the log holds; these are the front ones.

        Raises `SequenceGap` if the number before `first` is missing, `InvalidArgument` if the writer began after it.
        """
        state = self._writers.get(writer)
        if state is None:
            return 0
        if state.first is not None and first < state.first:
            # The log has no earlier number, so it must not report one as stored.
            raise InvalidArgument(
                f"the first number of writer {writer} is {state.first}, so {first} cannot be appended any more: give "
                f"it the next number, {state.last + 1}, or another writer's name"
            )
        if first > state.last + 1:
            raise SequenceGap(
                f"the last number of writer {writer} is {state.last}, so {first} leaves a gap: append {state.last + 1}",
                expected=state.last + 1,
            )
        return min(count, state.last + 1 - first)

    def make_room(self, writer: str, now_ms: int) -> None:
        """Make room for a writer that may be new. Raises `InvalidArgument` if the log has too many active ones."""
        if writer in self._writers or len(self._writers) < WRITERS_MAX:
            return
        for name in [name for name, state in self._writers.items() if now_ms - state.seen_ms > WRITER_AGE_MS]:
            del self._writers[name]
        if len(self._writers) >= WRITERS_MAX:
            raise InvalidArgument(
                f"the log has {len(self._writers):,} writers with numbers, the most that it can have: reuse their "
                f"names; one without an entry for {WRITER_AGE_MS // 86_400_000} days makes room"
            )

    def add(self, writer: str, run: Run, now_ms: int, *, is_complete: bool = True) -> None:
        """Note entries of a writer, in the log's order. Numbers that it holds already are left out.

        `is_complete`: no earlier entry of the log is missing here, so the first number of a new writer is known.
        """
        state = self._writers.get(writer)
        if state is None:
            state = self._writers[writer] = _Writer(run.first - 1, now_ms, run.first if is_complete else None)
        known = max(0, state.last + 1 - run.first)
        if known >= run.total:
            return
        first = run.first + known
        run = Run(first, run.total - known, run.position_of(first), run.is_set)
        state.last = run.first + run.total - 1
        state.seen_ms = max(state.seen_ms, now_ms)
        if state.runs and _follows(state.runs[-1], run):
            before = state.runs[-1]
            state.runs[-1] = before._replace(total=before.total + run.total)
        else:
            state.runs.append(run)
            del state.runs[:-RUNS_MAX]

    def position_of(self, writer: str, number: int) -> Position | None:
        """Return the position of an entry; None: not known any more."""
        state = self._writers.get(writer)
        for run in state.runs if state is not None else ():
            if run.first <= number < run.first + run.total:
                return run.position_of(number)
        return None

    def ends(self) -> list[Position]:
        """Return the positions after the last entries of the writers."""
        last = [(state.runs[-1], state.last) for state in self._writers.values() if state.runs]
        return [run.position_of(number).next for run, number in last]

    # -- the snapshot ------------------------------------------------------------------------------------------------
    def pack(self, token: str, position: Position) -> bytes:
        """Return the stored record: JSON, one line. `token`: of the log. `position`: up to which it was read."""
        writers = {
            name: [state.last, state.seen_ms, list(map(_row_of, state.runs))]
            for name, state in sorted(self._writers.items())
        }
        firsts = {name: state.first for name, state in sorted(self._writers.items()) if state.first is not None}
        content = {"format": FORMAT, "token": token, "position": position, "writers": writers, "firsts": firsts}
        return json.dumps(content, separators=(",", ":")).encode()


def _row_of(run: Run) -> list[int]:
    return [run.first, run.total, *run.position, *([1] if run.is_set else [])]


def _follows(before: Run, run: Run) -> bool:
    following = before.first + before.total
    return run.first == following and (run.position, run.is_set) == (before.position_of(following), before.is_set)


def parse_sequences(log: str, token: str, data: bytes) -> tuple[Sequences, Position] | None:
    """Return a snapshot and its position; None: it belongs to another log of that name.

    Raises `MetadataCorrupt`, `NotSupported` (a later format).
    """
    try:
        content: dict[str, Any] = parse_json(data)
        if content["format"] > FORMAT:
            raise NotSupported(f"the numbers of log {log} have format {content['format']}: this version reads {FORMAT}")
        if content["token"] != token:
            return None
        sequences, firsts = Sequences(), content.get("firsts", {})
        for name, (last, seen_ms, runs) in content["writers"].items():
            rows = [Run(int(row[0]), int(row[1]), Position(int(row[2]), int(row[3])), bool(row[4:])) for row in runs]
            first = None if (number := firsts.get(name)) is None else int(number)
            sequences._writers[str(name)] = _Writer(int(last), int(seen_ms), first, rows)
        ledger_id, entry_id = content["position"]
        return sequences, Position(int(ledger_id), int(entry_id))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise MetadataCorrupt(f"the numbers of log {log} cannot be read: {error!r}") from error
