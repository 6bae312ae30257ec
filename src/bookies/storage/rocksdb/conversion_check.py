"""Checks of an index conversion: every location leads to its entry, and no entry is lost.

A `Fingerprint` of a ledger's entry ids and locations is computed from the old and from the new index. It does not
depend on how entries are grouped in runs.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from itertools import groupby

from msgspec import Struct, field

from bookies.runtime.ports import Disk, File
from bookies.storage.disks.file_cache import FileCache
from bookies.storage.entry_log.entry_log_format import split_location
from bookies.storage.index import index_format
from bookies.storage.index.index_format import HEADER_SIZE, SLOT_SIZE, IndexHeader
from bookies.storage.index.slot_scans import extend_runs
from bookies.storage.records.record_scan import IDS, RECORD_SIZE_MIN
from bookies.storage.rocksdb.rocksdb_format import Run

OPEN_LOGS_MAX = 64
WINDOW_MIN, WINDOW_MAX = 4 << 10, 1 << 20  # bytes of a log read at once: few where entries are scattered
READ_SIZE = 1 << 20  # bytes of an index file
DAMAGED_SHOWN_MAX = 100


class Fingerprint(Struct, frozen=True):
    """Digest of a ledger's entries. `last_entry_id`: -1 without any. `pages`: the index pages that they need."""

    count: int = 0
    last_entry_id: int = -1
    pages: int = 0
    digest: bytes = b""


class Survey(Struct):
    """The contents of the old index. `damaged_count`: entries whose record cannot be read; `damaged`: the first ones.

    `orphans`: entries in databases whose ledgers the bookie had deleted. `logs_linked`, `logs_copied`, `copied_size`
    (bytes): entry logs that other directories need too. `logs_spared`: second names or copies that are no longer
    needed.
    """

    headers: dict[int, IndexHeader] = field(default_factory=dict)
    fingerprints: dict[int, Fingerprint] = field(default_factory=dict)
    entries: int = 0
    orphans: int = 0
    damaged_count: int = 0
    damaged: list[tuple[int, int]] = field(default_factory=list)
    is_dirty: bool = False  # the bookie was not shut down cleanly
    logs_linked: int = 0
    logs_copied: int = 0
    copied_size: int = 0
    logs_spared: int = 0
    problems: list[str] = field(default_factory=list)  # why no entry may be reported as missing after the conversion

    def add_damaged(self, ledger_id: int, entry_ids: list[int]) -> None:
        self.damaged_count += len(entry_ids)
        room = DAMAGED_SHOWN_MAX - len(self.damaged)
        self.damaged += [(ledger_id, entry_id) for entry_id in entry_ids[:room]]


def by_ledger(runs: Iterable[Run]) -> Iterator[tuple[int, Iterator[Run]]]:
    """Group runs that are in the order of ledgers: (ledger id, its runs)."""
    return groupby(runs, key=lambda run: run.ledger_id)


def fingerprint(runs: Iterable[Run], page_size: int) -> Fingerprint:
    """Return the fingerprint of one ledger's runs, which are ascending."""
    of_ids, of_slots = blake2b(digest_size=16), blake2b(digest_size=16)
    per_page = index_format.slots_per_page(page_size)
    count = pages = 0
    last, last_page = -1, -1
    for run in runs:
        ids = array("q", run.entry_ids)
        of_ids.update(ids.tobytes())
        of_slots.update(run.slots)
        count += len(ids)
        first_page, last = run.entry_ids[0] // per_page, run.entry_ids[-1]
        pages += last // per_page - max(first_page, last_page + 1) + 1
        last_page = last // per_page
    return Fingerprint(count, last, pages, of_ids.digest() + of_slots.digest())


def runs_of_file(disk: Disk, ledger_id: int, path: str) -> Iterator[Run]:
    """Yield the entries that have slots in an index file. Raises: OSError."""
    file = disk.open(path, "r")
    try:
        end = HEADER_SIZE + index_format.slot_count(file.size()) * SLOT_SIZE
        offset = HEADER_SIZE
        while (offset := file.next_data(offset)) < end:
            offset -= (offset - HEADER_SIZE) % SLOT_SIZE
            data = file.pread(min(READ_SIZE, end - offset), offset)
            first = (offset - HEADER_SIZE) // SLOT_SIZE
            runs: list[range] = []
            extend_runs(runs, data, first)
            for run in runs:
                yield Run(ledger_id, run, data[(run.start - first) * SLOT_SIZE : (run.stop - first) * SLOT_SIZE])
            offset += len(data)
    finally:
        file.close()


def is_same_file(disk: Disk, first: str, second: str) -> bool:
    """Report whether two files have the same bytes. Raises: OSError."""
    files = [disk.open(path, "r") for path in (first, second)]
    try:
        sizes = [file.size() for file in files]
        steps = range(0, sizes[0], READ_SIZE)
        return sizes[0] == sizes[1] and all(
            files[0].pread(READ_SIZE, at) == files[1].pread(READ_SIZE, at) for at in steps
        )
    finally:
        for file in files:
            file.close()


class RecordCheck:
    """Lookup of locations in entry logs. `logs`: log id to path. Blocks."""

    def __init__(self, disk: Disk, logs: Mapping[int, str]) -> None:
        self._logs = logs
        self._files = FileCache(disk, OPEN_LOGS_MAX)
        self._log_id = -1
        self._file: File | None = None
        self._size = 0
        self._base = 0
        self._window = b""

    def wrong(self, run: Run) -> list[int]:
        """Return the entries of the run without a complete record with their ids at their location. Raises: OSError."""
        locations = array("q", run.slots)
        if sys.byteorder == "little":
            locations.byteswap()
        head = run.ledger_id.to_bytes(8, "big")
        wrong = []
        for entry_id, location in zip(run.entry_ids, locations, strict=True):
            log_id, offset = split_location(location)
            if log_id != self._log_id:
                self._open(log_id)
            at = offset - 4 - self._base
            if at < 0 or at + 20 > len(self._window):
                self._move(offset - 4)
                at = offset - 4 - self._base
            length = int.from_bytes(self._window[at : at + 4], "big")
            ids = self._window[at + 4 : at + 4 + IDS.size]
            is_whole = RECORD_SIZE_MIN <= length <= self._size - offset and at >= 0
            if not is_whole or ids[:8] != head or int.from_bytes(ids[8:], "big") != entry_id:
                wrong.append(entry_id)
        return wrong

    def _open(self, log_id: int) -> None:
        self._log_id = log_id
        self._base, self._window, self._size = 0, b"", 0
        self._file = None
        if log_id in self._logs:
            self._file = self._files.get(self._logs[log_id], "r")
            self._size = self._file.size()

    def _move(self, offset: int) -> None:
        """Move the window to an offset. The window grows while reads are sequential, up to `WINDOW_MAX`."""
        end = self._base + len(self._window)
        follows = offset - self._base >= 0 and offset <= end + WINDOW_MIN
        size = min(max(2 * len(self._window), WINDOW_MIN), WINDOW_MAX) if follows else WINDOW_MIN
        self._base = max(offset, 0)
        self._window = self._file.pread(size, self._base) if self._file is not None else b""

    def close(self) -> None:
        self._files.close()
