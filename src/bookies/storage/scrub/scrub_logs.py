"""The scrub of one entry log: every record against its digest, and every place that is in doubt against the index.

A record that proves itself needs nobody's word. Everything else is in doubt: a digest that does not match, bytes that
are no record, an entry whose digest cannot be checked here and that the index has elsewhere. Doubts are gathered as
spans of the file and settled together: the index says which live entries begin in them, and these are looked at one by
one. So only damage that costs something is found, and damage of a record's own ids or length is found as well.

Where the framing is lost the scan goes on at the next place that the index names.

On the loop's thread; the file is read by the scrub's worker. Source: storage 3.5, 5.8.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from bookies.errors import BookKeeperError, CorruptRecord, DataUnknown, LedgerNotFound, LedgerUnknownToBookie
from bookies.model import DigestType
from bookies.runtime.ports import Disk, Runtime, Worker
from bookies.storage.disks.rate_limit import DiskRateLimit
from bookies.storage.engine import StorageParts
from bookies.storage.engine.log_check import Kinds, Part, Place, Proof, check, check_places, read_part
from bookies.storage.engine.log_pieces import Piece, current_slots, matching_parts
from bookies.storage.entry_log import entry_log_format as layout
from bookies.storage.entry_log.log_usage import find_logs
from bookies.storage.gc.deleted_ledgers import LedgerRecords
from bookies.storage.index import slot_scans
from bookies.storage.records.record_scan import CHUNK_SIZE
from bookies.storage.scrub.scrub_format import Counts, Finding
from bookies.storage.scrub.scrub_plan import Spans, merged

SETTLE_SIZE = 128 << 20  # bytes of a log after which doubts are settled, and progress is noted
GROUP_SIZE = 32 << 20  # bytes of spans whose live entries are gathered at once
PLACES_MAX = 1000  # looked at by one call of the worker
UNREADABLE = 64 << 10  # bytes that are passed over at least, behind which a log may be readable again
METADATA_S = 10.0  # for one operation of the metadata store
METADATA_PAUSE_S = 60.0  # after one that failed; until then nothing is known of ledgers that were not asked for yet
OFFSET_MAX = 1 << 32  # of a place in a log
KINDS_MAX = 100_000  # ledgers whose digest type is remembered

T = TypeVar("T")
Settled = Callable[[int, list[Finding]], Awaitable[None]]


class DigestKinds:
    """Which digest each ledger's entries have, says the metadata. `unknown_count`: times that it could not be asked."""

    def __init__(self, records: LedgerRecords, rate: float) -> None:
        self.unknown_count = 0
        self._records = records
        self._throttle = DiskRateLimit(rate)
        self._known: dict[int, DigestType | None] = {}
        self._ask_from = 0.0

    async def of(self, ledger_ids: Iterable[int]) -> dict[int, DigestType | None]:
        """None: nobody knows, as the ledger is gone, too old to say, or the store does not answer now."""
        found: dict[int, DigestType | None] = {}
        for ledger_id in ledger_ids:
            if ledger_id in self._known:
                found[ledger_id] = self._known[ledger_id]
            elif ledger_id not in found:
                found[ledger_id] = await self._ask(ledger_id)
        return found

    async def _ask(self, ledger_id: int) -> DigestType | None:
        loop = asyncio.get_running_loop()
        kind: DigestType | None = None
        if loop.time() < self._ask_from:
            self.unknown_count += 1
            return None
        await self._throttle.take(1)
        try:
            async with asyncio.timeout(METADATA_S):
                kind = (await self._records.read_ledger(ledger_id)).metadata.digest_type
        except LedgerNotFound:
            pass  # Whoever deleted it does not want to know.
        except (BookKeeperError, TimeoutError):
            self.unknown_count += 1
            self._ask_from = loop.time() + METADATA_PAUSE_S
            return None
        if len(self._known) >= KINDS_MAX:
            self._known.clear()
        self._known[ledger_id] = kind
        return kind

    def forget(self) -> None:
        """Ask again."""
        self._known.clear()


def _agrees(ledgers_map: Mapping[int, int], found: Mapping[int, int]) -> bool:
    """Whether a log holds what its map says. It may hold more of a ledger: after an unclean stop the map counts what a
    replay has written again only once."""
    return ledgers_map.keys() == found.keys() and all(found[each] >= size for each, size in ledgers_map.items())


class _Log:
    """A log under examination. Opened, read and closed on the worker. Raises: OSError."""

    def __init__(self, disk: Disk, log_id: int, path: str, extent: int | None) -> None:
        self.log_id = log_id
        self.path = path
        self.file = disk.open(path, "r")
        size = self.file.size()
        self.stop = size if extent is None else min(extent, size)
        self.end = OFFSET_MAX if extent is None else extent  # slots may name what is before it
        self.is_active = extent is not None
        self.problem = ""
        self.ledgers_map: dict[int, int] | None = None
        self.ledger_ids: list[int] = []  # that may have entries here
        self.sizes: dict[int, int] | None = None  # bytes by ledger, while they can be compared with the map
        self.spans = Spans()
        self.open_from: int | None = None  # the record before the reading position, unless its digest has proven it
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
        if not self.is_active and header is not None and header.map_offset:
            self.ledgers_map = layout.read_ledgers_map(self.file.pread, self.stop)
            if self.ledgers_map is None:
                self.problem = "its ledgers map is damaged, or not where the header says"
        if self.ledgers_map is not None:
            self.end = self.stop  # It is as long as it was when it was closed.


class LogScrub:
    """Checks one log at a time. `pay(size)`: awaited before so many bytes are read. `counts`: of the present pass."""

    def __init__(
        self,
        runtime: Runtime,
        parts: StorageParts,
        worker: Worker,
        kinds: DigestKinds,
        pay: Callable[[int], Awaitable[None]],
        record_size_max: int,
    ) -> None:
        self.counts = Counts()
        self._clock = runtime.clock
        self._disk = runtime.disk
        self._parts = parts
        self._index = parts.index
        self._worker = worker
        self._kinds = kinds
        self._pay = pay
        self._size_max = record_size_max
        self._log: _Log | None = None

    def close_files(self) -> None:
        """On the worker: a check that was given up leaves its file open until then."""
        if self._log is not None:
            self._log.file.close()
            self._log = None

    async def check(self, log_id: int, path: str, position: int, extent: int | None, settled: Settled) -> None:
        """Check a log from `position` on. `extent`: of the log that is being written, the bytes that are synced.

        `settled(position, findings)` is awaited now and then, and at the end: all before that is decided. Raises:
        OSError when the log cannot be opened; ReadFailed when the index cannot say what is alive: then it goes on
        later, from what was settled.
        """
        await self._worker.run(self.close_files)
        self._log = log = await self._worker.run(_Log, self._disk, log_id, path, extent)
        position = since = max(position, layout.HEADER_SIZE)
        if position == layout.HEADER_SIZE and log.ledgers_map is not None:
            log.sizes = {}
        here = sorted(self._index.ledger_ids()) if log.ledgers_map is None else sorted(log.ledgers_map)
        log.ledger_ids = [each for each in here if self._index.is_known(each)]
        while position < log.stop:
            await self._pay(min(CHUNK_SIZE, log.stop - position))
            part = await self._read(log, position)
            await self._judge(log, part)
            position = part.after
            if part.problem:
                position = await self._pass_over(log, part)
            if position - since >= SETTLE_SIZE:
                since = position
                await settled(position, await self._settle(log))
        await settled(max(position, log.stop), await self._finish(log))
        await self._worker.run(self.close_files)

    async def _finish(self, log: _Log) -> list[Finding]:
        """Decide about the rest, and about the log as a whole."""
        if log.stop < log.end:
            log.spans.add(log.stop, log.end)  # Entries may be named that lie behind what is there.
        findings = await self._settle(log)
        if log.sizes is not None and not _agrees(log.ledgers_map or {}, log.sizes):
            # Either the map is damaged, or a length that nobody can check, and others are hidden behind it.
            log.spans.add(layout.HEADER_SIZE, log.stop)
            found = await self._settle(log)
            if not found:
                log.problem = "its ledgers map does not say what it holds"
            findings += found
        # Of a log in which nothing lives a crash may have left anything.
        if log.problem and await self._least(log, 0) is not None:
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

    async def _judge(self, log: _Log, part: Part) -> None:
        """What is proven, what cannot be checked, and what is in doubt."""
        kinds = await self._kinds.of(part.ledger_ids)
        checked, sizes = await self._worker.run(check, part, kinds)
        if log.sizes is not None:
            for ledger_id, size in sizes.items():
                log.sizes[ledger_id] = log.sizes.get(ledger_id, 0) + size
        for piece, proof in checked:
            if proof is Proof.PROVEN:
                self.counts.verified += part.at(piece.stop) - part.at(piece.start)
                log.open_from = None
            elif proof is Proof.FAILED:
                log.spans.failed_count += 1
                self._doubt(log, part.at(piece.start), part.at(piece.stop))
            else:
                await self._judge_open(log, part, piece)

    async def _judge_open(self, log: _Log, part: Part, piece: Piece) -> None:
        """Entries without a digest that anybody can check: they are right if the index has them here."""
        if not self._index.is_known(piece.ledger_id):
            self._doubt(log, part.at(piece.start), part.at(piece.stop))
            return
        actual = await current_slots(self._index, piece)
        at = piece.start
        for each in matching_parts(piece, part.slots_of(log.log_id, piece), actual):
            if each.start > at:
                self._doubt(log, part.at(at), part.at(each.start))
            self.counts.unchecked += part.at(each.stop) - part.at(each.start)
            self.counts.unchecked_entries += each.stop - each.start
            log.open_from = part.at(each.stop - 1)
            if log.sizes is None:
                # Nothing else would tell that a length is wrong, and others hidden behind it.
                log.spans.add(part.at(each.start), part.at(each.stop))
            at = each.stop
        if at < piece.stop:
            self._doubt(log, part.at(at), part.at(piece.stop))

    def _doubt(self, log: _Log, start: int, stop: int) -> None:
        """What is here may be what a damaged length before it has made of the bytes."""
        log.spans.add(start if log.open_from is None else log.open_from, stop)
        log.open_from = None

    async def _pass_over(self, log: _Log, part: Part) -> int:
        """Where the next live entry begins behind something that is no record; the end of the log without one."""
        behind = part.after + (0 if part.data else UNREADABLE)
        least = await self._least(log, behind + 4)
        position = log.stop if least is None else min(least - 4, log.stop)
        self._doubt(log, part.after, position)
        return position

    async def _least(self, log: _Log, behind: int) -> int | None:
        """The least offset of a body behind this one that the index names in the log."""
        offsets = [
            await self._look(ledger_id, slot_scans.least_offset, log.log_id, behind) for ledger_id in log.ledger_ids
        ]
        return min((offset for offset in offsets if offset is not None), default=None)

    async def _look(self, ledger_id: int, look: Callable[..., T], *arguments: object) -> T | None:
        """Go through the slots of a ledger; None if it was deleted meanwhile. Raises: ReadFailed."""
        if not self._index.is_known(ledger_id):
            return None
        try:
            return await self._index.scan_slots(await self._index.load(ledger_id), look, *arguments)
        except (LedgerUnknownToBookie, DataUnknown):
            return None

    async def places(self, log_id: int, ledger_ids: Iterable[int], spans: Sequence[tuple[int, int]]) -> list[Place]:
        """The live entries that begin in these spans of a log, ascending. Raises: ReadFailed."""
        found: list[Place] = []
        of_bodies = [(start + 4, stop + 4) for start, stop in spans]
        for ledger_id in ledger_ids:
            for offset, entry_id in await self._look(ledger_id, slot_scans.slots_in, log_id, of_bodies) or ():
                found.append(Place(offset - 4, ledger_id, entry_id))
        return sorted(found)

    async def _settle(self, log: _Log) -> list[Finding]:
        """Decide about everything that is in doubt. Raises: ReadFailed."""
        spans, failed_count = log.spans.take()
        findings: list[Finding] = []
        for some in _groups(spans, log.stop):
            places = await self.places(log.log_id, log.ledger_ids, some)
            for start, slice_ in _slices(places):
                following = start + len(slice_)
                follows = places[following].start if following < len(places) else log.stop
                findings += await self._look_at(log, slice_, follows)
        self.counts.dead_damaged += max(0, failed_count - len(findings))
        return findings

    async def _look_at(self, log: _Log, places: Sequence[Place], follows: int) -> list[Finding]:
        """Which of these are not what they should be. `follows`: where the next one begins."""
        kinds = await self._kinds.of(place.ledger_id for place in places)
        wrong, size = await self._worker.run(
            check_places, log.file, places, follows, log.stop, kinds, log.ledgers_map, self._size_max
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

    async def look_again(self, finding: Finding) -> list[Finding]:
        """What is left of a finding: entries that are damaged still, wherever they are now. Raises: ReadFailed."""
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
            elif problem:  # It moved while we looked: another time.
                left.append(dataclasses.replace(finding, first=entry_id, last=entry_id))
        if limit <= finding.last:
            left.append(dataclasses.replace(finding, first=limit))
        return merged(left)

    async def _place_of(self, ledger_id: int, entry_id: int) -> tuple[Place | None, int]:
        """(where readers are led to, in which log); None: nowhere, or to the write cache."""
        if not self._index.is_known(ledger_id) or self._parts.cache.read(ledger_id, entry_id) is not None:
            return None, -1
        slot = await current_slots(self._index, Piece(ledger_id, entry_id, 0, 1))
        log_id, offset = layout.split_location(int.from_bytes(slot, "big"))
        return (Place(offset - 4, ledger_id, entry_id) if offset else None), log_id

    async def _problem_at(self, log_id: int, place: Place) -> str:
        directories = self._parts.directories.ledgers
        good = self._parts.health.healthy(directories)
        paths = await self._worker.run(find_logs, self._disk, good)
        if log_id not in paths:
            return "its entry log is gone" if len(good) == len(directories) else "its directory has failed"
        kinds = await self._kinds.of([place.ledger_id])
        await self._pay(CHUNK_SIZE >> 8)
        return await self._worker.run(_look_at, self._disk, paths[log_id], place, kinds, self._size_max)

    async def is_live(self, log_id: int, place: Place) -> bool:
        """Whether readers are led to this place now: it may have moved, or have been written again."""
        return await self._place_of(place.ledger_id, place.entry_id) == (place, log_id)


def _groups(spans: Sequence[tuple[int, int]], stop: int) -> Iterator[list[tuple[int, int]]]:
    """The same spans, so many bytes at a time that the places in them fit into memory."""
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


def _slices(places: Sequence[Place]) -> Iterator[tuple[int, Sequence[Place]]]:
    for start in range(0, len(places), PLACES_MAX):
        yield start, places[start : start + PLACES_MAX]


def _look_at(disk: Disk, path: str, place: Place, kinds: Kinds, record_size_max: int) -> str:
    """What is wrong at a place, if anything is. On the worker."""
    try:
        file = disk.open(path, "r")
    except OSError as error:
        return f"its entry log cannot be opened: {error.strerror or error}"
    try:
        size = file.size()
        wrong, _ = check_places(file, [place], size, size, kinds, None, record_size_max)
        return wrong[0][1] if wrong else ""
    finally:
        file.close()
