"""Reads that the system carries out by itself, where it can; what happens where it cannot, or fails."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import pathlib
import random
from collections.abc import Callable, Coroutine
from typing import ParamSpec

import pytest

from bookies.runtime.files import OsDisk
from bookies.runtime.linux import ring
from bookies.runtime.linux.ring import DEPTH, SIZE_MAX, RingReads
from bookies.runtime.ports import File
from bookies.runtime.threads import ThreadWorkers
from bookies.storage.disks import DirectoryHealth
from bookies.storage.disks.observed_disk import WatchedDisk

P = ParamSpec("P")

CONTENT = random.Random(1).randbytes(1 << 20)


def on_a_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """Run the test on an event loop of its own."""

    @functools.wraps(test)
    def run(*arguments: P.args, **keywords: P.kwargs) -> None:
        asyncio.run(test(*arguments, **keywords))

    return run


@pytest.fixture
def path(tmp_path: pathlib.Path) -> str:
    (tmp_path / "a").write_bytes(CONTENT)
    return str(tmp_path / "a")


def reads_of_loop() -> RingReads:
    reads = RingReads.begin(asyncio.get_running_loop())
    if reads is None:
        pytest.skip("this system has no io_uring, or forbids it")
    return reads


class Ends:
    """The ends of reads, by offset."""

    def __init__(self) -> None:
        self.data: dict[int, bytes | None] = {}
        self._news = asyncio.Event()

    def of(self, offset: int) -> ring.ReadEnded:
        def ended(data: bytes | None) -> None:
            assert offset not in self.data
            self.data[offset] = data
            self._news.set()

        return ended

    async def wait(self, count: int) -> None:
        while len(self.data) < count:
            self._news.clear()
            await self._news.wait()


@on_a_loop
async def test_many_reads_at_a_time_each_get_their_bytes(path: str) -> None:
    reads, ends, chosen = reads_of_loop(), Ends(), random.Random(2)
    file = os.open(path, os.O_RDONLY)
    wanted: dict[int, int] = {}
    while len(wanted) < 5 * DEPTH:  # the rings wrap
        offset, size = chosen.randrange(len(CONTENT)), chosen.randrange(1, SIZE_MAX + 1)
        if offset in wanted:
            continue
        if reads.submit(file, size, offset, ends.of(offset)):
            wanted[offset] = size
        else:
            assert len(wanted) - len(ends.data) == DEPTH
            await ends.wait(len(ends.data) + 1)
    await ends.wait(len(wanted))
    assert ends.data == {offset: CONTENT[offset : offset + size] for offset, size in wanted.items()}
    os.close(file)
    reads.close()
    reads.close()


@on_a_loop
async def test_a_read_is_of_the_file_that_was_open_then(path: str, tmp_path: pathlib.Path) -> None:
    reads, ends = reads_of_loop(), Ends()
    file = os.open(path, os.O_RDONLY)
    assert reads.submit(file, 100, 0, ends.of(0))
    os.close(file)
    (tmp_path / "b").write_bytes(bytes(1000))
    other = os.open(tmp_path / "b", os.O_RDONLY)
    assert not ends.data
    await ends.wait(1)
    assert ends.data[0] == CONTENT[:100]
    os.close(other)
    reads.close()


@on_a_loop
async def test_closing_waits_for_reads_in_progress(path: str) -> None:
    reads, ends = reads_of_loop(), Ends()
    file = os.open(path, os.O_RDONLY)
    for offset in range(0, DEPTH * 1000, 1000):
        assert reads.submit(file, 1000, offset, ends.of(offset))
    reads.close()
    assert ends.data == {offset: CONTENT[offset : offset + 1000] for offset in range(0, DEPTH * 1000, 1000)}
    os.close(file)


@on_a_loop
async def test_what_the_system_refuses_is_left_to_others(path: str) -> None:
    reads, ends = reads_of_loop(), Ends()
    file = os.open(path, os.O_RDONLY)
    assert not reads.submit(file, SIZE_MAX + 1, 0, ends.of(0))
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    assert reads.submit(-1, 10, 1, ends.of(1))
    assert reads.submit(file, 10, len(CONTENT) - 5, ends.of(2))
    assert reads.submit(file, 10, len(CONTENT), ends.of(3))
    await ends.wait(3)
    assert ends.data == {1: None, 2: CONTENT[-5:], 3: b""}
    assert reads.submit(directory, 10, 0, ends.of(4))
    await ends.wait(4)
    assert ends.data[4] is None
    for each in (file, directory):
        os.close(each)
    reads.close()


@pytest.mark.parametrize("is_forbidden", [True, False])
@on_a_loop
async def test_where_there_is_no_ring_a_worker_says_so(
    path: str, is_forbidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_forbidden:
        monkeypatch.setattr(ring, "system_call", lambda *arguments: -errno.EPERM)
    else:
        monkeypatch.setattr(ring.platform, "machine", lambda: "aarch64")
    worker = ThreadWorkers().start("a")
    ends = Ends()
    assert not worker.begin_read(OsDisk().open(path, "r"), 10, 0, ends.of(0))
    worker.close()
    assert not worker.begin_read(OsDisk().open(path, "r"), 10, 0, ends.of(0))


@on_a_loop
async def test_a_kernel_that_does_not_know_reads_is_asked_once(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "_READ", 200)  # no opcode
    reads, ends = reads_of_loop(), Ends()
    file = os.open(path, os.O_RDONLY)
    assert reads.submit(file, 10, 0, ends.of(0))
    await ends.wait(1)
    assert ends.data == {0: None}
    assert not reads.submit(file, 10, 0, ends.of(0))
    os.close(file)
    reads.close()


@on_a_loop
async def test_files_are_read_through_a_worker(path: str) -> None:
    reads_of_loop().close()
    worker = ThreadWorkers().start("a")
    disk = WatchedDisk(OsDisk(), DirectoryHealth([os.path.dirname(path)], [os.path.dirname(path)], keeps_going=True))
    ends = Ends()
    files: list[File] = [OsDisk().open(path, "r"), disk.open(path, "r")]
    for number, file in enumerate(files):
        assert worker.begin_read(file, 100, number, ends.of(number))
        file.close()
    await ends.wait(2)
    assert ends.data == {0: CONTENT[:100], 1: CONTENT[1:101]}
    worker.close()


@on_a_loop
async def test_a_system_that_does_not_wait_ends_all_reads(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, ends = reads_of_loop(), Ends()
    file = os.open(path, os.O_RDONLY)
    for offset in (0, 1000):
        assert reads.submit(file, 1000, offset, ends.of(offset))
    monkeypatch.setattr(ring, "system_call", lambda *arguments: -errno.EIO)
    reads.close()
    assert set(ends.data) == {0, 1000}
    assert all(data in (None, CONTENT[offset : offset + 1000]) for offset, data in ends.data.items())
    os.close(file)
