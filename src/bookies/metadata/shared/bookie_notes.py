"""Operators' notes on bookies: a bookie is in maintenance until a given time, or is being drained.

Maintenance is a lease: until it ends, or is ended, the bookie's replicas are not repaired although it is unavailable,
and writers choose other bookies. Draining has no end time: writers choose other bookies, and the bookie's replicas are
copied to others.

All notes are in one named record, so a client reads them in one request, and one watch reports all changes; there are
few notes at a time. Readers ignore expired leases, and the next change removes them. A record that cannot be parsed, or
is of a later version, is an error for a change, and counts as empty for a read: notes must never stop a cluster.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from bookies.encoding.documents import parse_json
from bookies.errors import InvalidArgument, MetadataCorrupt, RecordExists, RecordNotFound, VersionConflict
from bookies.metadata.formats.serde import is_bookie_id
from bookies.metadata.interface import MetadataDriver, Watch
from bookies.model import BookieId

T = TypeVar("T")

NAME = "bookie-notes"  # the record
FORMAT = 1
TEXT_LENGTH_MAX = 500  # characters of an operator's text
UNSEEN_CATEGORIES = ("Cc", "Zl", "Zp")  # of Unicode: control characters, line and paragraph separators


class Maintenance(Struct, frozen=True):
    """A bookie's maintenance. `until_ms`: wall clock, when it ends automatically. `by`: the operator who began it.
    `reason`: shown to operators.
    """

    until_ms: int
    by: str
    reason: str = ""


class Draining(Struct, frozen=True):
    """A bookie's draining. `since_ms`: wall clock. `by`: the operator who began it. `state`: progress at `state_ms`,
    wall clock, shown to operators; another process may have made progress since.
    """

    since_ms: int
    by: str
    state: str = ""
    state_ms: int = 0


class Note(Struct, frozen=True):
    """The notes on one bookie."""

    maintenance: Maintenance | None = None
    draining: Draining | None = None

    @property
    def why_avoided(self) -> str:
        """Why the bookie gets no new data."""
        return "it is to be emptied" if self.draining is not None else "it is in maintenance"


class Notes(Struct, frozen=True):
    """All notes by bookie, without expired leases. `version`: of the record, 0 if there is none."""

    by_bookie: Mapping[BookieId, Note] = field(default_factory=dict)
    version: int = 0

    @property
    def exempt(self) -> dict[BookieId, int]:
        """Bookies in maintenance, which do not count as lost while unavailable, with its end, wall clock in ms."""
        return {
            bookie: note.maintenance.until_ms for bookie, note in self.by_bookie.items() if note.maintenance is not None
        }

    @property
    def draining(self) -> dict[BookieId, Draining]:
        return {bookie: note.draining for bookie, note in self.by_bookie.items() if note.draining is not None}

    @property
    def next_end_ms(self) -> int | None:
        """End of the next lease, wall clock in ms. These notes are outdated then, although the record is unchanged."""
        return min(self.exempt.values(), default=None)


class BookieNotes:
    """The notes in one metadata store. `wall_ms`: the clock. Changes are compare-and-swap, and can be repeated."""

    def __init__(self, driver: MetadataDriver, wall_ms: Callable[[], int]) -> None:
        self._driver = driver
        self._wall_ms = wall_ms

    async def read(self) -> Notes:
        """Return the current notes; none if the record cannot be parsed. Raises `MetadataError` without an answer."""
        try:
            return await self._read()
        except MetadataCorrupt:
            return Notes()

    async def _read(self) -> Notes:
        """Return the current notes. Raises `MetadataCorrupt`."""
        try:
            data, version = await self._driver.read_record(NAME)
        except RecordNotFound:
            return Notes()
        return Notes(_present(parse(data), self._wall_ms()), version)

    def watch(self, notes: Notes, callback: Callable[[], None]) -> Watch:
        """Call back soon after the record differs from these notes; see `MetadataDriver.watch_record`.

        The end of a lease causes no call: see `Notes.next_end_ms`.
        """
        return self._driver.watch_record(NAME, notes.version, callback)

    # -- maintenance ---------------------------------------------------------------------------------------------
    async def begin_maintenance(self, bookie: BookieId, until_ms: int, by: str, reason: str = "") -> Maintenance:
        """Begin, prolong or shorten a maintenance. Raises `InvalidArgument` for a time in the past."""
        if until_ms <= self._wall_ms():
            raise InvalidArgument(f"maintenance of {bookie} would end before it begins: give a later time")
        wanted = Maintenance(until_ms, _text("by", by), _text("reason", reason))
        await self._change(bookie, lambda note: (replace(note, maintenance=wanted), None))
        return wanted

    async def end_maintenance(self, bookie: BookieId) -> bool:
        """End a bookie's maintenance. False: it was not in maintenance."""
        return await self._change(bookie, lambda note: (replace(note, maintenance=None), note.maintenance is not None))

    # -- draining ------------------------------------------------------------------------------------------------
    async def begin_draining(self, bookie: BookieId, by: str) -> Draining:
        """Begin draining a bookie. An existing note is kept, so that an interrupted draining continues."""
        new = Draining(self._wall_ms(), _text("by", by))

        def begin(note: Note) -> tuple[Note, Draining]:
            draining = note.draining or new
            return replace(note, draining=draining), draining

        return await self._change(bookie, begin)

    async def set_draining_state(self, bookie: BookieId, state: str) -> bool:
        """Record the progress of draining. False: draining was cancelled, or has ended."""
        _text("state", state)

        def change(note: Note) -> tuple[Note, bool]:
            if note.draining is None:
                return note, False
            draining = replace(note.draining, state=state, state_ms=self._wall_ms())
            return replace(note, draining=draining), True

        return await self._change(bookie, change)

    async def end_draining(self, bookie: BookieId) -> bool:
        """End draining, finished or cancelled. False: the bookie was not being drained."""
        return await self._change(bookie, lambda note: (replace(note, draining=None), note.draining is not None))

    async def _change(self, bookie: BookieId, change: Callable[[Note], tuple[Note, T]]) -> T:
        """Change one bookie's note. `change`: returns the new note and the result of this call.

        Raises `MetadataCorrupt`, `InvalidArgument`.
        """
        if not is_bookie_id(bookie):
            raise InvalidArgument(f"{bookie!r} is not a bookie id: letters, digits, - . _ : only")
        while True:
            stored = await self._read()
            before = stored.by_bookie.get(bookie, Note())
            after, result = change(before)
            if after == before:
                return result
            notes = {**stored.by_bookie, bookie: after}
            data = pack({name: note for name, note in notes.items() if note != Note()})
            try:
                if stored.version:
                    await self._driver.write_record(NAME, data, stored.version)
                else:
                    await self._driver.create_record(NAME, data)
            except (VersionConflict, RecordExists, RecordNotFound):
                continue
            return result


def _present(notes: Mapping[BookieId, Note], now_ms: int) -> dict[BookieId, Note]:
    """Return the notes without expired leases and without notes that are empty then; sorted by bookie."""
    present: dict[BookieId, Note] = {}
    for bookie, note in sorted(notes.items()):
        if note.maintenance is not None and note.maintenance.until_ms <= now_ms:
            note = replace(note, maintenance=None)
        if note != Note():
            present[bookie] = note
    return present


def _text(name: str, text: str) -> str:
    if len(text) > TEXT_LENGTH_MAX:
        raise InvalidArgument(f"{name} has {len(text):,} characters; use at most {TEXT_LENGTH_MAX} characters")
    if any(unicodedata.category(character) in UNSEEN_CATEGORIES for character in text):
        raise InvalidArgument(f"{name}={text!r} has line breaks or control characters: write one line of plain text")
    return text


# -- bytes -------------------------------------------------------------------------------------------------------------


def pack(notes: Mapping[BookieId, Note]) -> bytes:
    """Return the record, one JSON object: `{"format": 1, "bookies": {"bk-1:3181": {"maintenance": {...}}}}`."""
    bookies = {
        bookie: {name: value for name, value in to_builtins(note).items() if value is not None}
        for bookie, note in sorted(notes.items())
    }
    return json.dumps({"format": FORMAT, "bookies": bookies}, ensure_ascii=False).encode("utf-8")


def parse(data: bytes) -> dict[BookieId, Note]:
    """Read the record; unknown fields are ignored. Raises `MetadataCorrupt`."""
    try:
        record = parse_json(data)
        if record["format"] != FORMAT:
            raise MetadataCorrupt(
                f"the notes of bookies, the record {NAME}, have format {record['format']}, which a later version of "
                "bookies wrote: use that version"
            )
        return {BookieId(bookie): _note(note) for bookie, note in record["bookies"].items()}
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
