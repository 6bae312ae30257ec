"""The scrub of one entry log: checks records by their digests, and unproven places by the index.

A record with a matching digest is proven. Everything else is unproven: a digest that does not match, bytes that are no
record, an entry whose digest cannot be checked here and that the index has elsewhere. Unproven places are collected as
spans of the file and settled together: the index names the live entries that begin in them, and each of these is
checked. So only damage to live entries is found, including damage of a record's own ids or length.

Where the framing is lost the scan continues at the next place that the index names.

On the loop's thread; the scrub's worker reads the file. Source: storage 3.5, 5.8.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from bookies.errors import BookKeeperError, CorruptRecord, DataUnknown, LedgerNotFound, LedgerUnknownToBookie
from bookies.model import DigestType
from bookies.protocol.pacing import RateLimit
from bookies.protocol.pacing.rate_limit import BURST_S
from bookies.runtime.ports import Disk, Runtime, Worker
from bookies.runtime.tasks import throttle
from bookies.storage.engine import StorageParts
from bookies.storage.engine.log_check import DigestTypes, Part, Place, Proof, check, check_places, end_of, read_part
from bookies.storage.engine.log_pieces import Piece, current_slots, matching_parts
from bookies.storage.entry_log import entry_log_format as layout
from bookies.storage.entry_log.log_usage import find_logs
from bookies.storage.gc.ledger_records import LedgerRecords
from bookies.storage.index import slot_scans
from bookies.storage.records.record_scan import CHUNK_SIZE
from bookies.storage.scrub.scrub_format import Counts, Finding
from bookies.storage.scrub.scrub_plan import Spans, merged
from bookies.storage.sealing.sealer import Opener

SETTLE_SIZE = 128 << 20  # bytes of a log after which spans are settled, and progress is saved
GROUP_SIZE = 32 << 20  # bytes of spans whose live entries are collected at once
PLACES_MAX = 1000  # places checked by one call of the worker
UNREADABLE = 64 << 10  # bytes skipped at least after a read error
METADATA_S = 10.0  # time limit of one operation of the metadata store
METADATA_PAUSE_S = 60.0  # after a failed one; until then new digest types stay unknown
OFFSET_MAX = 1 << 32  # of a place in a log
DIGEST_TYPES_MAX = 100_000  # ledgers whose digest type is cached

T = TypeVar("T")
Settled = Callable[[int, list[Finding]], Awaitable[None]]


class DigestTypeCache:
    """The digest type of each ledger, read from the metadata. `unknown_count`: reads that failed or were skipped."""

    def __init__(self, records: LedgerRecords, rate: float) -> None:
        self.unknown_count = 0
        self._records = records
        self._throttle = RateLimit(rate, BURST_S)
        self._known: dict[int, DigestType | None] = {}
        self._ask_from = 0.0

    async def types_of(self, ledger_ids: Iterable[int]) -> dict[int, DigestType | None]:
        """Return the digest type of each ledger; None: deleted, too old to record it, or the store is unavailable."""
        types: dict[int, DigestType | None] = {}
        for ledger_id in ledger_ids:
            if ledger_id in self._known:
                types[ledger_id] = self._known[ledger_id]
            elif ledger_id not in types:
                types[ledger_id] = await self._read(ledger_id)
        return types

    async def _read(self, ledger_id: int) -> DigestType | None:
        loop = asyncio.get_running_loop()
        digest_type: DigestType | None = None
        if loop.time() < self._ask_from:
            self.unknown_count += 1
            return None
        await throttle(self._throttle, 1)
        try:
            async with asyncio.timeout(METADATA_S):
                digest_type = (await self._records.read_ledger(ledger_id)).metadata.digest_type
        except LedgerNotFound:
            pass  # Entries of a deleted ledger need no check.
        except (BookKeeperError, TimeoutError):
            self.unknown_count += 1
            self._ask_from = loop.time() + METADATA_PAUSE_S
            return None
        if len(self._known) >= DIGEST_TYPES_MAX:
            self._known.clear()
        self._known[ledger_id] = digest_type
        return digest_type

    def forget(self) -> None:
        """Clear the cache."""
        self._known.clear()


def _agrees(ledgers_map: Mapping[int, int], actual: Mapping[int, int]) -> bool:
    """Report whether a log holds what its map lists.

    It may hold more of a ledger: after an unclean stop the map counts entries only once that a replay has written
    again.
    """
    return ledgers_map.keys() == actual.keys() and all(
        actual[ledger_id] >= size for ledger_id, size in ledgers_map.items()
    )


class _Log:
    """A log being checked. Opened, read and closed on the worker. Raises: OSError."""

    def __init__(self, disk: Disk, log_id: int, path: str, extent: int | None) -> None:
        self.log_id = log_id
        self.path = path
        self.file = disk.open(path, "r")
        size = self.file.size()
        self.stop = size if extent is None else min(extent, size)
        self.end = OFFSET_MAX if extent is None else extent  # slots may name offsets below it
        self.is_active = extent is not None
        self.problem = ""
        self.is_encrypted = False
        self.ledgers_map: dict[int, int] | None = None
        self.possible_ids: set[int] | None = None  # ledgers whose records can be in the log; None: any
        self.ledger_ids: list[int] = []  # that may have entries in the log
        self.sizes: dict[int, int] | None = None  # bytes by ledger, while they can be compared with the map
        self.spans = Spans()
        self.unproven_from: int | None = None  # the record before the reading position, unless its digest matched
        self._read_map()

    def _read_map(self) -> None:
        try:
            header = layout.parse_header(self.file.pread(layout.HEADER_SIZE, 0), path=self.path)
        except CorruptRecord as error:
            self.problem = f"its header is damaged: {error}"
            return
        except OSError as error:
            self.problem = f"its header cannot be read: {error.strerror or error}"
            return
        self.is_encrypted = header is not None and bool(header.keys)
        if not self.is_active and header is not None and header.map_offset:
            self.ledgers_map = layout.read_ledgers_map(self.file.pread, self.stop)
            if self.ledgers_map is None:
                self.problem = "its ledgers map is damaged, or missing at the offset in the header"
        if self.ledgers_map is not None:
            self.end = self.stop  # The log has its full length.


class LogScrub:
    """The check of one log at a time. `pay(size)`: awaited before a read of `size` bytes. `counts`: of this pass."""

    def __init__(
        self,
        runtime: Runtime,
        parts: StorageParts,
        worker: Worker,
        digest_types: DigestTypeCache,
        pay: Callable[[int], Awaitable[None]],
        record_size_max: int,
    ) -> None:
        self.counts = Counts()
        self._clock = runtime.clock
        self._disk = runtime.disk
        self._parts = parts
        self._index = parts.index
        self._worker = worker
        self.digest_types = digest_types
        self._pay = pay
        self._size_max = record_size_max
        self._log: _Log | None = None

    def close_files(self) -> None:
        """Close the file that a cancelled check left open. On the worker."""
        if self._log is not None:
            self._log.file.close()
            self._log = None

    async def check(self, log_id: int, path: str, position: int, extent: int | None, settled: Settled) -> None:
        """Check a log from `position` on. `extent`: the synced bytes of the active log; None for others.

        `settled(position, findings)` is awaited every `SETTLE_SIZE` bytes, and at the end: everything before that
        position is decided. Raises: OSError when the log cannot be opened; ReadFailed when the index cannot name the
        live entries. Then a later check continues from the last settled position.
        """
        await self._worker.run(self.close_files)
        self._log = log = await self._worker.run(_Log, self._disk, log_id, path, extent)
        position = since = max(position, layout.HEADER_SIZE)
        if position == layout.HEADER_SIZE and log.ledgers_map is not None:
            log.sizes = {}
        possible = sorted(self._index.ledger_ids()) if log.ledgers_map is None else sorted(log.ledgers_map)
        log.ledger_ids = [ledger_id for ledger_id in possible if self._index.is_known(ledger_id)]
        # A map that was completed after a crash omits ledgers whose entries were all replayed into later logs.
        log.possible_ids = None if log.ledgers_map is None else {*log.ledgers_map, *self._index.ledger_ids()}
        while position < log.stop:
            await self._pay(min(CHUNK_SIZE, log.stop - position))
            part = await self._read(log, position)
            await self._check_part(log, part)
            position = part.after
            if part.problem:
                position = await self._skip_damage(log, part)
            if position - since >= SETTLE_SIZE:
                since = position
                await settled(position, await self._settle(log))
        await settled(max(position, log.stop), await self._finish(log))
        await self._worker.run(self.close_files)

    async def _finish(self, log: _Log) -> list[Finding]:
        """Decide about the remaining spans, and about the log as a whole."""
        if log.stop < log.end:
            log.spans.add(log.stop, log.end)  # Slots may name entries after the end of the file.
        findings = await self._settle(log)
        if log.sizes is not None and not _agrees(log.ledgers_map or {}, log.sizes):
            # Either the map is damaged, or the length of a record without digest, which then hides others.
            log.spans.add(layout.HEADER_SIZE, log.stop)
            damaged = await self._settle(log)
            if not damaged:
                log.problem = "its ledgers map does not match its entries"
            findings += damaged
        # A crash may have left anything in a log without live entries.
        if log.problem and await self._least_offset(log, 0) is not None:
            findings.append(Finding(log.log_id, 0, -1, 0, 0, log.problem, self._clock.wall_ms()))
        return findings

    async def _read(self, log: _Log, position: int) -> Part:
        try:
            part = await self._worker.run(read_part, log.file, position, log.stop, self._size_max)
        except OSError as error:
            return Part(position, b"", [0], [], [], position, f"it cannot be read: {error.strerror or error}")
        if not log.is_active:
            log.file.drop_cache(position, part.after - position)
        return part

    async def _check_part(self, log: _Log, part: Part) -> None:
        """Count what is proven and what cannot be checked. Add the rest to the spans."""
        digest_types = await self.digest_types.types_of(part.ledger_ids)
        checked, sizes = await self._worker.run(check, part, digest_types, self._opener(log.is_encrypted))
        if log.sizes is not None:
            for ledger_id, size in sizes.items():
                log.sizes[ledger_id] = log.sizes.get(ledger_id, 0) + size
        for piece, proof in checked:
            if proof is Proof.PROVEN:
                self.counts.verified += part.at(piece.stop) - part.at(piece.start)
                log.unproven_from = None
            elif proof is Proof.FAILED:
                log.spans.failed_count += 1
                self._add_span(log, part.at(piece.start), part.at(piece.stop))
            else:
                await self._check_without_digest(log, part, piece)

    def _opener(self, is_encrypted: bool) -> Opener | None:
        """Return the opener of a log's entries, if they are sealed."""
        return self._parts.sealer if is_encrypted else None

    async def _check_without_digest(self, log: _Log, part: Part, piece: Piece) -> None:
        """Accept entries whose digest cannot be checked if the index has them here. Add others to the spans."""
        if not self._index.is_known(piece.ledger_id):
            self._add_span(log, part.at(piece.start), part.at(piece.stop))
            return
        actual = await current_slots(self._index, piece)
        at = piece.start
        for match in matching_parts(piece, part.slots_of(log.log_id, piece), actual):
            if match.start > at:
                self._add_span(log, part.at(at), part.at(match.start))
            self.counts.unchecked += part.at(match.stop) - part.at(match.start)
            self.counts.unchecked_entries += match.stop - match.start
            log.unproven_from = part.at(match.stop - 1)
            if log.sizes is None:
                # Without a ledgers map only this check reveals a wrong length, which hides the records after it.
                log.spans.add(part.at(match.start), part.at(match.stop))
            at = match.stop
        if at < piece.stop:
            self._add_span(log, part.at(at), part.at(piece.stop))

    def _add_span(self, log: _Log, start: int, stop: int) -> None:
        """Add an unproven span. It includes the unproven record before it, whose length may be damaged."""
        log.spans.add(start if log.unproven_from is None else log.unproven_from, stop)
        log.unproven_from = None

    async def _skip_damage(self, log: _Log, part: Part) -> int:
        """Return the offset of the next live entry after bytes that are no record, or the end of the log."""
        readable = part.after + (0 if part.data else UNREADABLE)
        least = await self._least_offset(log, readable + 4)
        position = log.stop if least is None else min(least - 4, log.stop)
        self._add_span(log, part.after, position)
        return position

    async def _least_offset(self, log: _Log, after: int) -> int | None:
        """Return the least offset of a body, above `after`, that the index names in the log."""
        offsets = [
            await self._scan(ledger_id, slot_scans.least_offset, log.log_id, after) for ledger_id in log.ledger_ids
        ]
        return min((offset for offset in offsets if offset is not None), default=None)

    async def _scan(self, ledger_id: int, visit: Callable[..., T], *arguments: object) -> T | None:
        """Return the result of a scan of a ledger's slots; None if it is deleted or uncertain. Raises: ReadFailed."""
        if not self._index.is_known(ledger_id):
            return None
        try:
            return await self._index.scan_slots(await self._index.load(ledger_id), visit, *arguments)
        except (LedgerUnknownToBookie, DataUnknown):
            return None

    async def places(self, log_id: int, ledger_ids: Iterable[int], spans: Sequence[tuple[int, int]]) -> list[Place]:
        """Return the live entries that begin in these spans of a log, ascending. Raises: ReadFailed."""
        places: list[Place] = []
        bodies = [(start + 4, stop + 4) for start, stop in spans]
        for ledger_id in ledger_ids:
            for offset, entry_id in await self._scan(ledger_id, slot_scans.slots_in, log_id, bodies) or ():
                places.append(Place(offset - 4, ledger_id, entry_id))
        return sorted(places)

    async def _settle(self, log: _Log) -> list[Finding]:
        """Check the live entries in all collected spans. Raises: ReadFailed."""
        spans, failed_count = log.spans.take()
        findings: list[Finding] = []
        for group in _groups(spans, log.stop):
            places = [*await self.places(log.log_id, log.ledger_ids, group), end_of(log.stop)]
            for start in range(0, len(places) - 1, PLACES_MAX):
                findings += await self._check_places(log, places[start : start + PLACES_MAX + 1])
        self.counts.dead_damaged += max(0, failed_count - len(findings))
        return findings

    async def _check_places(self, log: _Log, places: Sequence[Place]) -> list[Finding]:
        """Return findings for the places that are damaged. The last place only ends the one before it."""
        digest_types = await self.digest_types.types_of(place.ledger_id for place in places[:-1])
        records_stop = log.stop if log.is_active else self._index.catalog.torn.get(log.log_id)
        check = functools.partial(check_places, records_stop=records_stop, opener=self._opener(log.is_encrypted))
        wrong, size = await self._worker.run(
            check, log.file, places, log.stop, digest_types, log.possible_ids, self._size_max
        )
        await self._pay(size)
        return [
            self.finding(log.log_id, place, problem)
            for place, problem in wrong
            if await self.is_live(log.log_id, place)
        ]

    def finding(self, log_id: int, place: Place, problem: str) -> Finding:
        return Finding(
            log_id,
            place.start,
            place.ledger_id,
            place.entry_id,
            place.entry_id,
            problem,
            self._clock.wall_ms(),
        )

    async def recheck(self, finding: Finding) -> list[Finding]:
        """Return what is left of a finding: entries that are still damaged, in any log. Raises: ReadFailed."""
        left: list[Finding] = []
        limit = min(finding.last + 1, finding.first + PLACES_MAX)
        for entry_id in range(finding.first, limit):
            place, log_id = await self._place_of(finding.ledger_id, entry_id)
            if place is None:
                continue
            problem = await self._problem_at(log_id, place)
            if problem and await self.is_live(log_id, place):
                left.append(
                    Finding(log_id, place.start, place.ledger_id, entry_id, entry_id, problem, finding.found_ms)
                )
            elif problem:  # It moved during the check, so the next one decides.
                left.append(replace(finding, first=entry_id, last=entry_id))
        if limit <= finding.last:
            left.append(replace(finding, first=limit))
        return merged(left)

    async def _place_of(self, ledger_id: int, entry_id: int) -> tuple[Place | None, int]:
        """Return (the place that readers use, its log); (None, -1): no place, or the write cache."""
        if not self._index.is_known(ledger_id) or self._parts.cache.read(ledger_id, entry_id) is not None:
            return None, -1
        slot = await current_slots(self._index, Piece(ledger_id, entry_id, 0, 1))
        log_id, offset = layout.split_location(int.from_bytes(slot, "big"))
        return (Place(offset - 4, ledger_id, entry_id) if offset else None), log_id

    async def _problem_at(self, log_id: int, place: Place) -> str:
        directories = self._parts.directories.ledgers
        good = self._parts.health.healthy(directories)
        paths = await self._worker.run(find_logs, self._disk, self._parts.logs, good)
        if log_id not in paths:
            return "its entry log is missing" if len(good) == len(directories) else "its directory has failed"
        digest_types = await self.digest_types.types_of([place.ledger_id])
        await self._pay(CHUNK_SIZE >> 8)
        return await self._worker.run(self._check_place, paths[log_id], place, digest_types)

    def _check_place(self, path: str, place: Place, digest_types: DigestTypes) -> str:
        """Return the problem at a place, or "". On the worker."""
        try:
            log = _Log(self._disk, 0, path, None)
        except OSError as error:
            return f"its entry log cannot be opened: {error.strerror or error}"
        try:
            check = functools.partial(check_places, opener=self._opener(log.is_encrypted))
            wrong, _ = check(log.file, [place, end_of(log.stop)], log.stop, digest_types, None, self._size_max)
            return wrong[0][1] if wrong else ""
        finally:
            log.file.close()

    async def is_live(self, log_id: int, place: Place) -> bool:
        """Report whether readers use this place now. The entry may have moved, or been written again."""
        return await self._place_of(place.ledger_id, place.entry_id) == (place, log_id)


def _groups(spans: Sequence[tuple[int, int]], stop: int) -> Iterator[list[tuple[int, int]]]:
    """Yield the same spans in groups of `GROUP_SIZE` bytes, so that the places in one group fit into memory."""
    group: list[tuple[int, int]] = []
    size = 0
    for start, end in spans:
        while start < end:
            step = min(end, start + GROUP_SIZE - size) if start < stop else end
            group.append((start, step))
            size += min(step, stop) - start
            start = step
            if size >= GROUP_SIZE:
                yield group
                group, size = [], 0
    if group:
        yield group
