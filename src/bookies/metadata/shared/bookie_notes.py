"""What operators have said of bookies: this one is in maintenance until then, that one is being drained.

Maintenance is a lease: until it ends, or is ended, nobody repairs what the bookie holds though it is away, and writers
choose others. Draining is an intent without an end: writers choose others, and what the bookie holds is copied away.

All notes are one named record, so that a client reads them at once and one watch tells of all changes; there are few at
a time. Leases that have run out are not there for whoever reads, and go with the next change. A record that cannot be
read, or is of a later version, is an error to who changes it and counts as empty for who only wants to know: notes must
never keep a cluster from working.
"""

from __future__ import annotations

import dataclasses
import json
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bookies.errors import InvalidArgument, MetadataCorrupt, RecordExists, RecordNotFound, VersionConflict
from bookies.metadata.formats.serde import is_bookie_id
from bookies.metadata.interface import MetadataDriver, Watch
from bookies.model import BookieId

T = TypeVar("T")

NAME = "bookie-notes"  # the record
FORMAT = 1
TEXT_LENGTH_MAX = 500  # of what somebody says
UNSEEN_CATEGORIES = ("Cc", "Zl", "Zp")  # of Unicode: control characters, line and paragraph separators


@dataclass(frozen=True, slots=True)
class Maintenance:
    """`until_ms`: wall clock, when it ends by itself. `by`: who said so. `reason`: for people."""

    until_ms: int
    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Draining:
    """`since_ms`: wall clock. `by`: who said so. `state`: how far it was at `state_ms`, wall clock, for people; it says
    nothing of now, for others may have gone on."""

    since_ms: int
    by: str
    state: str = ""
    state_ms: int = 0


@dataclass(frozen=True, slots=True)
class Note:
    """Of one bookie."""

    maintenance: Maintenance | None = None
    draining: Draining | None = None


@dataclass(frozen=True, slots=True)
class Notes:
    """All there are, by bookie, without what has run out. `version`: of the record, 0 if there is none."""

    by_bookie: Mapping[BookieId, Note] = field(default_factory=dict)
    version: int = 0

    @property
    def avoided(self) -> tuple[BookieId, ...]:
        """Bookies that get no new data: in maintenance, or being drained."""
        return tuple(self.by_bookie)

    @property
    def exempt(self) -> dict[BookieId, int]:
        """Bookies that are not lost though they are away, and until when, wall clock in ms."""
        return {
            bookie: note.maintenance.until_ms for bookie, note in self.by_bookie.items() if note.maintenance is not None
        }

    @property
    def draining(self) -> dict[BookieId, Draining]:
        return {bookie: note.draining for bookie, note in self.by_bookie.items() if note.draining is not None}

    @property
    def next_end_ms(self) -> int | None:
        """When the next lease runs out: then these notes are not true any more, though nobody writes them."""
        return min(self.exempt.values(), default=None)


class BookieNotes:
    """The notes in one metadata store. `wall_ms`: the clock. Changes are compare-and-swap, and can be repeated."""

    def __init__(self, driver: MetadataDriver, wall_ms: Callable[[], int]) -> None:
        self._driver = driver
        self._wall_ms = wall_ms

    async def read(self) -> Notes:
        """Those of now; none if the record cannot be understood. Raises `MetadataError` without an answer."""
        try:
            return await self._read()
        except MetadataCorrupt:
            return Notes()

    async def _read(self) -> Notes:
        """Raises `MetadataCorrupt`."""
        try:
            data, version = await self._driver.read_record(NAME)
        except RecordNotFound:
            return Notes()
        return Notes(_present(parse(data), self._wall_ms()), version)

    def watch(self, notes: Notes, callback: Callable[[], None]) -> Watch:
        """Called soon after there are others than these; see `MetadataDriver.watch_record`. Leases run out silently:
        see `Notes.next_end_ms`.
        """
        return self._driver.watch_record(NAME, notes.version, callback)

    # -- maintenance ---------------------------------------------------------------------------------------------
    async def begin_maintenance(self, bookie: BookieId, until_ms: int, by: str, reason: str = "") -> Maintenance:
        """Begin, prolong or shorten. Raises `InvalidArgument` for a time that is over."""
        if until_ms <= self._wall_ms():
            raise InvalidArgument(f"maintenance of {bookie} would end before it begins")
        wanted = Maintenance(until_ms, _text("by", by), _text("reason", reason))
        await self._change(bookie, lambda note: (dataclasses.replace(note, maintenance=wanted), None))
        return wanted

    async def end_maintenance(self, bookie: BookieId) -> bool:
        """False: it was not in maintenance."""
        return await self._change(
            bookie, lambda note: (dataclasses.replace(note, maintenance=None), note.maintenance is not None)
        )

    # -- draining ------------------------------------------------------------------------------------------------
    async def begin_draining(self, bookie: BookieId, by: str) -> Draining:
        """What is there stays as it is, so that an interrupted one is gone on with."""
        new = Draining(self._wall_ms(), _text("by", by))

        def begin(note: Note) -> tuple[Note, Draining]:
            draining = note.draining or new
            return dataclasses.replace(note, draining=draining), draining

        return await self._change(bookie, begin)

    async def set_draining_state(self, bookie: BookieId, state: str) -> bool:
        """False: it is not being drained any more: somebody has cancelled that."""
        _text("state", state)

        def change(note: Note) -> tuple[Note, bool]:
            if note.draining is None:
                return note, False
            draining = dataclasses.replace(note.draining, state=state, state_ms=self._wall_ms())
            return dataclasses.replace(note, draining=draining), True

        return await self._change(bookie, change)

    async def end_draining(self, bookie: BookieId) -> bool:
        """Finished, or cancelled. False: it was not being drained."""
        return await self._change(
            bookie, lambda note: (dataclasses.replace(note, draining=None), note.draining is not None)
        )

    async def _change(self, bookie: BookieId, change: Callable[[Note], tuple[Note, T]]) -> T:
        """Change one bookie's note, and what is to be said of it. Raises `MetadataCorrupt`, `InvalidArgument`."""
        if not is_bookie_id(bookie):
            raise InvalidArgument(f"{bookie!r} is not a bookie id: letters, digits, - . _ : only")
        while True:
            found = await self._read()
            before = found.by_bookie.get(bookie, Note())
            after, result = change(before)
            if after == before:
                return result
            notes = {**found.by_bookie, bookie: after}
            data = pack({each: note for each, note in notes.items() if note != Note()})
            try:
                if found.version:
                    await self._driver.write_record(NAME, data, found.version)
                else:
                    await self._driver.create_record(NAME, data)
            except (VersionConflict, RecordExists, RecordNotFound):
                continue
            return result


def _present(notes: Mapping[BookieId, Note], now_ms: int) -> dict[BookieId, Note]:
    """Without leases that have run out, and what is empty then; sorted."""
    found: dict[BookieId, Note] = {}
    for bookie, note in sorted(notes.items()):
        if note.maintenance is not None and note.maintenance.until_ms <= now_ms:
            note = dataclasses.replace(note, maintenance=None)
        if note != Note():
            found[bookie] = note
    return found


def _text(name: str, text: str) -> str:
    if len(text) > TEXT_LENGTH_MAX:
        raise InvalidArgument(f"{name} has {len(text):,} characters; {TEXT_LENGTH_MAX} are enough")
    if any(unicodedata.category(each) in UNSEEN_CATEGORIES for each in text):
        raise InvalidArgument(f"{name}={text!r} has line breaks or control characters: say it in one line")
    return text


# -- bytes -------------------------------------------------------------------------------------------------------------


def pack(notes: Mapping[BookieId, Note]) -> bytes:
    """One object of JSON: `{"format": 1, "bookies": {"bk-1:3181": {"maintenance": {"until_ms": ...}}}}`."""
    bookies = {
        bookie: {name: value for name, value in dataclasses.asdict(note).items() if value is not None}
        for bookie, note in sorted(notes.items())
    }
    return json.dumps({"format": FORMAT, "bookies": bookies}, ensure_ascii=False).encode("utf-8")


def parse(data: bytes) -> dict[BookieId, Note]:
    """Fields that are not known are left out. Raises `MetadataCorrupt`."""
    try:
        found = json.loads(data)
        if found["format"] != FORMAT:
            raise MetadataCorrupt(f"the notes of bookies have format {found['format']}, of a later version of bookies")
        return {BookieId(bookie): _note(note) for bookie, note in found["bookies"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetadataCorrupt(f"the notes of bookies, the record {NAME}, cannot be read: {error!r}") from error


def _note(note: Mapping[str, Any]) -> Note:
    maintenance, draining = note.get("maintenance"), note.get("draining")
    return Note(
        None
        if maintenance is None
        else Maintenance(int(maintenance["until_ms"]), str(maintenance["by"]), str(maintenance.get("reason", ""))),
        None
        if draining is None
        else Draining(
            int(draining["since_ms"]),
            str(draining["by"]),
            str(draining.get("state", "")),
            int(draining.get("state_ms", 0)),
        ),
    )
