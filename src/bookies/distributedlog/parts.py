"""Parts that the writer, the readers and the operations of one log share: its context, scans, recovery."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from msgspec import Struct

from bookies.client.base.metadata_loop import repeated
from bookies.client.log.base.ledger_client import LedgerClient
from bookies.client.read import LedgerReader
from bookies.distributedlog.formats.entries import CONTROL, END_OF_STREAM, SlotRecord, parse_entry
from bookies.distributedlog.formats.segment import Segment
from bookies.distributedlog.model.segment_list import LastRecord, Segments, completed, readable
from bookies.distributedlog.store.log_store import LogStore
from bookies.distributedlog.store.ownership import Ownership
from bookies.errors import LedgerNotFound, LogRecordCorrupt
from bookies.runtime.ports import Runtime

SCAN_MAX = 16  # entries that a scan for the last record reads at a time


class LogParts(Struct, frozen=True):
    """`password`: of the log's ledgers. `owner`: the name under which locks are taken; `has_locks`: the store can."""

    client: LedgerClient
    runtime: Runtime
    store: LogStore
    password: bytes
    first_lssn: int
    owner: str
    has_locks: bool

    @property
    def name(self) -> str:
        return self.store.name

    async def exists(self) -> bool:
        """Report whether the log exists."""
        return await repeated(self.runtime, self.store.exists)

    async def segments(self, watch: Callable[[], None] | None = None) -> Segments:
        """Return the list. The watch is called after its next change. Raises `LogNotFound`, `MetadataCorrupt`."""
        return await repeated(self.runtime, partial(self.store.segments, watch))

    async def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger; a missing one counts as success."""
        await self.client.delete(ledger_id)

    @asynccontextmanager
    async def reading(self, segment: Segment) -> AsyncIterator[LedgerReader]:
        """Open a segment's ledger, without disturbing its writer."""
        async with self.client.open(segment.ledger_id, password=self.password) as ledger:
            yield ledger


def records_of(segment: Segment, entry_id: int, payload: bytes) -> list[SlotRecord]:
    """Return an entry's records. Raises `LogRecordCorrupt`, which names the place."""
    try:
        return parse_entry(payload, is_enveloped=segment.is_enveloped)
    except LogRecordCorrupt as error:
        raise LogRecordCorrupt(
            f"segment {segment.lssn}: {error.message}", ledger_id=segment.ledger_id, entry_id=entry_id
        ) from None


async def last_record(
    segment: Segment,
    ledger: LedgerReader,
    last_entry: int,
    *,
    ignored: int = 0,
    damage: list[LogRecordCorrupt] | None = None,
) -> tuple[int, SlotRecord] | None:
    """Return the last record up to an entry, and its entry's id; None: there is none.

    `ignored`: flags of records that do not count. `damage`: collects the errors of damaged entries, which are skipped;
    None: they are raised. Reads backwards, twice as many entries each time.
    """
    count = 2
    while last_entry >= 0:
        first = max(0, last_entry - count + 1)
        entries = [entry async for entry in ledger.read(first, last_entry)]
        for entry in reversed(entries):
            try:
                records = records_of(segment, entry.id, entry.payload)
            except LogRecordCorrupt as error:
                if damage is None:
                    raise
                damage.append(error)
                continue
            for record in reversed(records):
                if not record.flags & ignored:
                    return entry.id, record
        last_entry, count = first - 1, min(2 * count, SCAN_MAX)
    return None


async def end_to_read(segment: Segment, ledger: LedgerReader) -> int:
    """Return the last entry of a segment. Entries after the end of a completed one are damaged, or hold no record."""
    return segment.last_entry if segment.is_completed else await ledger.read_last_add_confirmed()


async def last_user_record(segment: Segment, ledger: LedgerReader) -> tuple[int, SlotRecord] | None:
    """Return the last record that an application wrote, and its entry's id; None: there is none."""
    last_entry = await end_to_read(segment, ledger)
    return await last_record(segment, ledger, last_entry, ignored=CONTROL | END_OF_STREAM)


async def last_of(parts: LogParts) -> tuple[Segment, int, SlotRecord] | None:
    """Return the last visible record that an application wrote, with its segment and entry. Fences no writer."""
    for segment in reversed(readable(await parts.segments())):
        async with parts.reading(segment) as ledger:
            last = await last_user_record(segment, ledger)
        if last is not None:
            return segment, *last
    return None


async def recover(parts: LogParts, ownership: Ownership, damage: list[LogRecordCorrupt] | None = None) -> None:
    """Complete every segment in progress, in order: its writer is fenced. Source: distributedlog 4.2.

    `damage`: collects the errors of damaged entries at the end of a segment, which then ends before them; None: they
    are raised, as Java's writers do. A segment without an intact record has no such end: its positions were given out,
    so its number cannot be used again.

    Raises `LogFenced` (another process changes the list as well), `LogRecordCorrupt`, `RecoveryFailed`.
    """
    while True:
        segments = await parts.segments()
        segment = next((segment for segment in segments if not segment.is_completed), None)
        if segment is None:
            return
        try:
            end = await _end_of(parts, segment, damage)
        except LogRecordCorrupt as error:
            way_out = f"end it before the damage: bk log recover {parts.name} --namespace URI --skip-damaged"
            if damage is not None:
                way_out = (
                    "no record of that segment is intact, so the log cannot end there: copy the rest and delete it"
                )
            raise LogRecordCorrupt(
                f"log {parts.name} accepts no writer, because its end is damaged: {error.message}; {way_out}",
                ledger_id=error.ledger_id,
                entry_id=error.entry_id,
            ) from error
        if end is None:  # Nothing was acknowledged in it. Its number will be used again.
            await parts.delete_ledger(segment.ledger_id)
            await ownership.remove(segment)
            continue
        await ownership.complete(segment, completed(segments, segment, end, parts.runtime.clock.wall_ms()))


async def _end_of(parts: LogParts, segment: Segment, damage: list[LogRecordCorrupt] | None) -> LastRecord | None:
    """Fence a segment's ledger and return its end; None: it is empty, or was deleted as empty."""
    try:
        ledger = await parts.client.recover(segment.ledger_id, password=parts.password)
    except LedgerNotFound:
        return None
    try:
        if ledger.last_add_confirmed < 0:
            return None
        last = await last_record(segment, ledger, ledger.last_add_confirmed, damage=damage)
    finally:
        await ledger.close()
    if last is None:
        raise LogRecordCorrupt(f"segment {segment.lssn} has no entry with records", ledger_id=segment.ledger_id)
    entry_id, record = last
    return LastRecord(record.txid, entry_id, record.slot, record.position)


async def pause(changed: asyncio.Event, seconds: float) -> None:
    """Wait for the event, at most some seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await changed.wait()
