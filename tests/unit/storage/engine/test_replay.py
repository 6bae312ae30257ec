"""Reading a journal for replay: what the page cache is told, and what is not read at all."""

from __future__ import annotations

from typing import Any

import pytest

from bookies.config import BookieConfig
from bookies.kernels import Records
from bookies.lab.sim.world.disk import SimDisk, SimFile
from bookies.storage.engine import replay
from bookies.storage.engine.replay import JournalReader
from bookies.storage.journal import LogMark
from bookies.storage.journal.journal import JournalWriter
from bookies.storage.journal.page_cache import SparseReader
from bookies.storage.records import Batch


def entry(ledger_id: int, entry_id: int, size: int) -> bytes:
    return ledger_id.to_bytes(8, "big") + entry_id.to_bytes(8, "big") + bytes([entry_id % 251 + 1]) * size


def test_what_was_replayed_leaves_the_page_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind what is being read, each byte once."""
    monkeypatch.setattr(replay, "READ_STEP", 10_000)
    disk = SimDisk()
    disk.make_directories("/j")
    config = BookieConfig(journal_preallocate_size=1 << 20)
    writer = JournalWriter(disk, "/j", config)
    writer.open(1)
    for number in range(200):
        records = Records.of([entry(1, number, 1000)])
        writer.commit([records.data], records.size, None)
    writer.close()
    dropped: list[tuple[int, int]] = []
    monkeypatch.setattr(SimFile, "drop_cache", lambda file, offset, size: dropped.append((offset, offset + size)))
    reader = JournalReader(disk, "/j", LogMark(1, 0), 1 << 20)
    (journal_id,) = reader.find()
    reader.open(journal_id)
    found = []
    while isinstance(item := reader.next(), Batch):
        found += [entry_id for _, entry_id in item.ids]
        assert not dropped or dropped[-1][1] <= item.offset
    reader.close()
    assert found == list(range(200))
    assert dropped[0][0] == 0
    assert [start for start, _ in dropped[1:]] == [end for _, end in dropped[:-1]]
    assert dropped[-1][1] > 180_000


@pytest.mark.parametrize("goes_on", [False, True])
def test_what_was_never_written_is_not_read(monkeypatch: pytest.MonkeyPatch, goes_on: bool) -> None:
    """Behind the last group; but a group there is found, and what is before it counts as lost."""
    disk = SimDisk(is_logging=True)
    disk.make_directories("/j")
    writer = JournalWriter(disk, "/j", BookieConfig(journal_preallocate_size=8 << 20))
    writer.open(1)
    records = Records.of([entry(1, 0, 1000)])
    mark, _, _ = writer.commit([records.data], records.size, None)
    later = 6 << 20
    if goes_on:
        writer._position = later
        writer.commit([Records.of([entry(1, 1, 1000)]).data], records.size, None)
    writer.close()
    monkeypatch.setattr(
        SimFile, "next_data", lambda file, offset: later if goes_on and offset <= later else len(file._inode.data)
    )
    reader = JournalReader(disk, "/j", LogMark(1, 0), 1 << 20)
    reader.open(reader.find()[0])
    assert isinstance(reader.next(), Batch)
    assert disk.log is not None
    disk.log.clear()
    end = reader.next()
    reader.close()
    assert not isinstance(end, Batch)
    assert end.offset == mark.offset
    assert end.next_record == (later if goes_on else None)
    read = [(call.offset, call.size) for call in disk.log if call.operation == "pread" and call.size >= 1 << 16]
    assert len(read) <= (6 if goes_on else 2)
    assert all(offset < mark.offset + (1 << 20) or offset >= later - (1 << 20) for offset, _ in read)


def test_what_the_system_read_ahead_is_no_reason_to_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a part of what was reserved has been read, the system calls the part behind it data, too."""
    disk = SimDisk(is_logging=True)
    disk.make_directories("/j")
    file = disk.open("/j/file", "w")
    file.pwrite(b"x" * 1000, 0)
    file.truncate(20 << 20)
    known = 1 << 20

    def next_data(file: SimFile, offset: int) -> int:
        return offset if offset < known else 20 << 20

    def pread(file: SimFile, size: int, offset: int, real: Any = SimFile.pread) -> bytes:
        nonlocal known
        known = max(known, offset + 2 * size)
        found: bytes = real(file, size, offset)
        return found

    monkeypatch.setattr(SimFile, "next_data", next_data)
    monkeypatch.setattr(SimFile, "pread", pread)
    reading = SparseReader(file)
    found = [reading(1 << 20, offset) for offset in range(512, 19 << 20, 1 << 20)]
    assert b"".join(found) == b"x" * 488 + bytes((19 << 20) - 488)
    assert known <= 5 << 20
    assert reading(1000, 0) == b"x" * 1000
    file.close()


def test_a_file_that_becomes_shorter_under_a_look_at_its_holes() -> None:
    class Shrinking:
        sizes = iter([20 << 20])

        def size(self) -> int:
            return next(self.sizes, 1 << 20)

        def next_data(self, offset: int) -> int:
            return offset if offset < 6 << 20 else self.size()

        def pread(self, size: int, offset: int) -> bytes:
            return b""

    file: Any = Shrinking()
    assert SparseReader(file)(1 << 20, 4 << 20) == b""
