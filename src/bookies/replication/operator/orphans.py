"""Orphaned records: closed ledgers with entries, of which no bookie has any.

They are deleted by mark and wait. A mark holds the version of the record. A record is deleted only if it still has that
version after the wait, and every bookie that could hold its entries has denied that again. A bookie that does not
answer, or is unregistered but known, keeps its ledgers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import partial

from msgspec import Struct, field

from bookies.encoding.documents import parse_json
from bookies.errors import (
    BookKeeperError,
    ClientClosed,
    LedgerUnknownToBookie,
    MetadataError,
    RecordExists,
    RecordNotFound,
    VersionConflict,
)
from bookies.metadata.interface.driver import Versioned
from bookies.model import BookieId, LedgerMetadata
from bookies.protocol.ledger.offload import is_given_up
from bookies.protocol.pacing import RateLimit
from bookies.replication.base.operator_parts import Operator
from bookies.replication.base.replication_records import Coverage, records
from bookies.runtime.tasks import all_of

NAME = "orphan-marks"  # the record
FORMAT = 1


class OrphanMark(Struct, frozen=True):
    """A mark: the version of the ledger's record, and the wall clock in milliseconds when it was marked."""

    version: int
    since_ms: int


class Orphans(Struct):
    """Result of a search. `records`: the orphaned ones. `unknown`: ledgers whose entries could not be asked for, and
    why. `coverage`: the records read.
    """

    records: dict[int, Versioned] = field(default_factory=dict)
    unknown: dict[int, str] = field(default_factory=dict)
    coverage: Coverage = field(default_factory=Coverage)


class OrphanSearch:
    """Search for orphaned records, their marks, and their deletion. `pace`: records per second."""

    def __init__(self, operator: Operator, pace: RateLimit | None = None) -> None:
        self._driver = operator.driver
        self._wall_ms = operator.runtime.clock.wall_ms
        self._administration = operator.client.administration(owner=operator.owner)
        self._pace = pace or RateLimit(None)

    async def find(self, report: Callable[[Orphans], None] = lambda result: None) -> Orphans:
        """Ask for the entries of all closed ledgers. Raises `MetadataError`, `ClientClosed`."""
        result = Orphans()
        known, registered = await self._bookies()
        async for page in records(self._driver, self._pace, result.coverage):
            await all_of(self._judge(ledger, known, registered, result) for ledger in page)
            report(result)
        return result

    async def _bookies(self) -> tuple[Collection[BookieId], Collection[BookieId]]:
        """Return (bookies that may come back, registered bookies)."""
        return (await self._driver.all_bookies()).bookies, list(await self._driver.modes())

    async def _judge(
        self, ledger: Versioned, known: Collection[BookieId], registered: Collection[BookieId], result: Orphans
    ) -> None:
        record = ledger.metadata
        if not record.is_closed or record.last_entry_id < 0 or is_given_up(record):
            return
        try:
            if not await self._is_held(record, known, registered):
                result.records[record.ledger_id] = ledger
        except (ClientClosed, MetadataError):
            raise
        except BookKeeperError as error:
            result.unknown[record.ledger_id] = str(error)

    async def _is_held(
        self, record: LedgerMetadata, known: Collection[BookieId], registered: Collection[BookieId]
    ) -> bool:
        """Report whether any bookie lists entries of the ledger: those that its record names first, then all others.

        Raises the error of a bookie that may hold some and does not answer, unless another one lists entries.
        """
        unanswered: BookKeeperError | None = None
        for bookie in dict.fromkeys((*record.bookies, *registered, *known)):
            if bookie not in registered and bookie not in known:
                continue  # It has no cookie, so it never comes back under this id.
            try:
                if await self._administration.list_entries(bookie, record.ledger_id):
                    return True
            except LedgerUnknownToBookie:
                continue
            except (ClientClosed, MetadataError):
                raise
            except BookKeeperError as error:
                unanswered = unanswered or error
        if unanswered is not None:
            raise unanswered
        return False

    # -- marks ---------------------------------------------------------------------------------------------------
    async def marks(self) -> dict[int, OrphanMark]:
        """Return the marks by ledger; none if the record cannot be parsed, which only prolongs the wait."""
        return (await self._read())[0]

    async def _read(self) -> tuple[dict[int, OrphanMark], int]:
        try:
            data, version = await self._driver.read_record(NAME)
        except RecordNotFound:
            return {}, 0
        try:
            document = parse_json(data)
            marks = document["marks"].items() if document["format"] == FORMAT else ()
            return {int(name): OrphanMark(int(mark["version"]), int(mark["since_ms"])) for name, mark in marks}, version
        except (ValueError, KeyError, TypeError, AttributeError):
            return {}, version

    async def mark(self, orphans: Orphans) -> dict[int, OrphanMark]:
        """Mark what was found and keep its earlier marks; remove the marks of all other ledgers but the unknown ones.

        Return the marks.
        """
        return await self._write(partial(self._marked, orphans))

    def _marked(self, orphans: Orphans, before: Mapping[int, OrphanMark]) -> dict[int, OrphanMark]:
        kept = {ledger_id: mark for ledger_id, mark in before.items() if ledger_id in orphans.unknown}
        for ledger_id, ledger in orphans.records.items():
            mark = before.get(ledger_id)
            is_same = mark is not None and mark.version == ledger.version
            kept[ledger_id] = mark if mark is not None and is_same else OrphanMark(ledger.version, self._wall_ms())
        return kept

    async def _write(
        self, change: Callable[[Mapping[int, OrphanMark]], dict[int, OrphanMark]]
    ) -> dict[int, OrphanMark]:
        while True:
            before, version = await self._read()
            after = change(before)
            if after == before:
                return after
            marks = {
                str(ledger_id): {"version": mark.version, "since_ms": mark.since_ms}
                for ledger_id, mark in after.items()
            }
            data = json.dumps({"format": FORMAT, "marks": marks}).encode("utf-8")
            try:
                if version:
                    await self._driver.write_record(NAME, data, version)
                else:
                    await self._driver.create_record(NAME, data)
            except (VersionConflict, RecordExists, RecordNotFound):
                continue
            return after

    # -- deletion ------------------------------------------------------------------------------------------------
    def due(self, orphans: Orphans, marks: Mapping[int, OrphanMark], wait_ms: int) -> list[int]:
        """Return the orphans whose marks are old enough and are those of their present records."""
        now_ms = self._wall_ms()
        return [
            ledger_id
            for ledger_id, ledger in orphans.records.items()
            if (mark := marks.get(ledger_id)) is not None
            and mark.version == ledger.version
            and now_ms - mark.since_ms >= wait_ms
        ]

    async def delete(self, orphans: Orphans, ledger_id: int) -> bool:
        """Delete an orphan's record, if it is the one that was found, and its mark. False: it has changed since."""
        try:
            await self._driver.delete_ledger(ledger_id, orphans.records[ledger_id].version)
        except VersionConflict:
            return False
        await self._write(lambda marks: {other: mark for other, mark in marks.items() if other != ledger_id})
        return True
