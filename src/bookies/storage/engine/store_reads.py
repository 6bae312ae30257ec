"""Reads of a bookie's storage: single entries, runs of entries, the LAC, and the list of entries.

R-3: "no such entry" and "no such ledger" come only from a healthy index that has no mapping. Every other failure is an
I/O error or "unknown". Here both the index and the cache are asked. For an uncertain ledger a missing entry, the last
entry and the explicit LAC are `DataUnknown`.

Source: storage 5.7, 8.3.
"""

from __future__ import annotations

from collections.abc import Callable

from bookies import kernels
from bookies.errors import CorruptRecord, DataUnknown, EntryNotFound, ReadFailed
from bookies.kernels import Records
from bookies.model import LAST_ENTRY
from bookies.storage.engine.storage_parts import StorageParts
from bookies.storage.engine.store_access import StoreAccess
from bookies.storage.index.index_format import SLOT_SIZE
from bookies.storage.index.index_ledger import Ledger
from bookies.storage.index.slots import MISSING_SLOT, LeadingSlots, merged


class StoreReads(StoreAccess):
    """Reads from the write cache, or from index and entry logs. All calls on the loop's thread.

    `cache_hits`, `resident_hits`: reads answered from the write cache, and from log pages in the system's memory.
    `log_reads`: seconds of the reads that a worker did. `on_log_read`: called by each of them at its end, with the
    monotonic seconds at which it began, had found the entry in the index, and ended.
    """

    cache_hits = 0
    resident_hits = 0
    on_log_read: Callable[[float, float, float], None] | None = None

    def read_resident(self, ledger_id: int, entry_id: int) -> bytes | None:
        """Read an entry that is in memory; return None if `read` must wait for a device or may fail, and for -1."""
        parts = self._parts
        ledger = None if parts is None else self._resident_ledger(parts, ledger_id)
        if parts is None or ledger is None or entry_id < 0:
            return None
        if (body := self._cached(parts, ledger_id, entry_id)) is not None:
            return body
        if entry_id > ledger.last_entry_id:
            return None
        slots = parts.index.cached_slots(ledger, entry_id, 2)  # the second bounds the length of the first
        if not slots or slots.startswith(MISSING_SLOT):
            return None
        record = parts.readers.open_logs.read_resident(ledger_id, entry_id, slots, 0)
        if record is None:
            return None
        self.resident_hits += 1
        return record[4:]

    def read_batch_resident(self, ledger_id: int, first_entry_id: int, count_max: int, size_max: int) -> bytes | None:
        """Read a batch that is in memory; return None if `read_batch` must wait for a device or may fail."""
        parts = self._parts
        ledger = None if parts is None else self._resident_ledger(parts, ledger_id)
        if parts is None or ledger is None or first_entry_id < 0:
            return None
        count_max = max(1, count_max)
        if records := self._cached_batch(parts, ledger_id, first_entry_id, count_max, size_max):
            return records
        if first_entry_id > ledger.last_entry_id:
            return None
        count_max = parts.cache.next_held(ledger_id, first_entry_id, first_entry_id + count_max) - first_entry_id
        leading = LeadingSlots(first_entry_id, count_max, size_max, parts.index.slots_per_page)
        while leading.count:
            part = parts.index.cached_slots(ledger, leading.first, leading.count)
            if part is None:
                return None
            leading.add(part)
        if not leading.slots:
            return None
        stored = parts.readers.open_logs.read_resident(ledger_id, first_entry_id, leading.slots, size_max)
        self.resident_hits += stored is not None
        return stored

    def _cached(self, parts: StorageParts, ledger_id: int, entry_id: int) -> bytes | None:
        """Return the body of an entry in the write cache. Raises: ReadFailed."""
        body = parts.cache.read(ledger_id, entry_id)
        if body is None:
            return None
        self.cache_hits += 1
        if parts.sealer is not None and parts.sealer.seals and (body := parts.sealer.open_body(body)) is None:
            raise ReadFailed("the entry does not authenticate", ledger_id=ledger_id, entry_id=entry_id)
        return body

    def _cached_batch(
        self, parts: StorageParts, ledger_id: int, first_entry_id: int, count_max: int, size_max: int
    ) -> bytes:
        """Return records of consecutive entries in the write cache; empty for none. Raises: ReadFailed."""
        pieces = parts.cache.read_batch(ledger_id, first_entry_id, count_max, size_max)
        if not pieces:
            return b""
        self.cache_hits += 1
        records = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if parts.sealer is None or not parts.sealer.seals:
            return records
        try:
            return parts.sealer.open_records(records, path="the write cache", offset=0)
        except CorruptRecord as error:
            raise ReadFailed(str(error), ledger_id=ledger_id, entry_id=first_entry_id) from error

    def _resident_ledger(self, parts: StorageParts, ledger_id: int) -> Ledger | None:
        """Return the ledger if it is in memory and the storage is healthy."""
        if self._failure is not None or self._is_stopping or ledger_id in self._waiting:
            return None
        return parts.index.get(ledger_id)

    async def read(self, ledger_id: int, entry_id: int) -> bytes:
        """Return the body of an entry; -1: of the highest. Raises: LedgerUnknownToBookie, EntryNotFound, ReadFailed."""
        parts, ledger = await self._ledger(ledger_id)
        if entry_id == LAST_ENTRY:
            if ledger.header.is_uncertain:
                raise _unknown(ledger_id, "which entry is the last")
            entry_id = ledger.last_entry_id
        body = self._cached(parts, ledger_id, entry_id)
        if body is not None:
            return body
        return (await self._read_stored(parts, ledger, entry_id, 1, 0))[4:]

    async def read_batch(self, ledger_id: int, first_entry_id: int, count_max: int, size_max: int) -> bytes:
        """Return records of consecutive entries: at least the first, and as many others as are readable together.

        `size_max`: bytes, length words included. Raises as `read` does for the first entry.
        """
        parts, ledger = await self._ledger(ledger_id)
        if records := self._cached_batch(parts, ledger_id, first_entry_id, max(1, count_max), size_max):
            return records
        # The stored copy of an entry that was added again is older than the cached copy.
        stop = parts.cache.next_held(ledger_id, first_entry_id, first_entry_id + max(1, count_max))
        return await self._read_stored(parts, ledger, first_entry_id, stop - first_entry_id, size_max)

    async def _read_stored(
        self, parts: StorageParts, ledger: Ledger, first_entry_id: int, count_max: int, size_max: int
    ) -> bytes:
        """Read a batch from index and entry log. The cache was asked before, without an await in between."""
        began_s = found_s = self._runtime.clock.monotonic()
        with ledger:
            try:
                while True:
                    slots = b""
                    if 0 <= first_entry_id <= ledger.last_entry_id:
                        slots = await self._slots(parts, ledger, first_entry_id, count_max, size_max)
                    if not slots:
                        if ledger.header.is_uncertain:
                            raise _unknown(ledger.ledger_id, f"whether entry {first_entry_id} was here")
                        raise EntryNotFound("no such entry here", ledger_id=ledger.ledger_id, entry_id=first_entry_id)
                    found_s = self._runtime.clock.monotonic()
                    try:
                        return await parts.readers.read_records(ledger.ledger_id, first_entry_id, slots, size_max)
                    except ReadFailed:
                        # The entry may have moved while the read waited; then the index has its new place.
                        if await self._slots(parts, ledger, first_entry_id, 1, 0) == slots[:SLOT_SIZE]:
                            raise
            finally:
                ended_s = self._runtime.clock.monotonic()
                self.log_reads.record(ended_s - began_s)
                if self.on_log_read is not None:
                    self.on_log_read(began_s, found_s, ended_s)

    async def _slots(self, parts: StorageParts, ledger: Ledger, first: int, count_max: int, size_max: int) -> bytes:
        """Return slots of consecutive entries from `first` on, from as many pages as `size_max` bytes of log need."""
        leading = LeadingSlots(first, count_max, size_max, parts.index.slots_per_page)
        while leading.count:
            leading.add(await parts.index.slots(ledger, leading.first, leading.count))
        return leading.slots

    async def last_add_confirmed(self, ledger_id: int) -> int:
        """Return the greatest LAC in entries and explicit LACs, or a smaller one if the ledger is uncertain.

        Raises: LedgerUnknownToBookie, ReadFailed.
        """
        _, ledger = await self._ledger(ledger_id)
        if not ledger.is_lac_known and not ledger.header.is_uncertain:
            last = Records.of([await self.read(ledger_id, LAST_ENTRY)])
            ledger.last_add_confirmed = max(ledger.last_add_confirmed, kernels.greatest_lac(last.data, last.starts))
            ledger.is_lac_known = True
        return ledger.last_add_confirmed

    async def read_lac(self, ledger_id: int) -> tuple[bytes | None, bytes | None]:
        """Return (explicit LAC, body of the highest entry). Raises: LedgerUnknownToBookie; ReadFailed without both."""
        _, ledger = await self._ledger(ledger_id)
        if ledger.header.is_uncertain:
            raise _unknown(ledger_id, "what was last confirmed")
        explicit_lac = ledger.header.explicit_lac or None
        try:
            return explicit_lac, await self.read(ledger_id, LAST_ENTRY)
        except EntryNotFound:
            return explicit_lac, None
        except ReadFailed:
            if explicit_lac is None:
                raise
            return explicit_lac, None

    async def list_entries(self, ledger_id: int) -> list[range]:
        """Return maximal runs of entry ids, ascending. Raises: LedgerUnknownToBookie, ReadFailed."""
        parts, ledger = await self._ledger(ledger_id)
        if ledger.header.is_uncertain:
            raise _unknown(ledger_id, "which entries were here")
        cached = [run.entry_ids for run in parts.cache.runs_of(ledger_id)]
        with ledger:
            stored = await parts.index.entry_runs(ledger)
        return merged([*stored, *cached])


def _unknown(ledger_id: int, what: str) -> DataUnknown:
    return DataUnknown(f"after damage it is not known {what}", ledger_id=ledger_id)
