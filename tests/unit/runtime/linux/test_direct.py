"""Writes that the system carries out by itself, where it can; what happens where it cannot, or fails."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import mmap
import os
import pathlib
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bookies.runtime.files import OsDisk
from bookies.runtime.linux import direct
from bookies.runtime.linux.direct import DEPTH, DirectWrites
from bookies.runtime.ports import Buffer, File, Submit, Written
from bookies.runtime.threads import ThreadWorker, ThreadWorkers
from bookies.storage.disks import DirectoryHealth
from bookies.storage.disks.observed_disk import WatchedDisk

SIZE = 4096

is_here = pytest.mark.skipif(sys.platform != "linux", reason="Linux has it, others have not")


@pytest.fixture
def path(tmp_path: pathlib.Path) -> str:
    """A file of a megabyte."""
    (tmp_path / "a").write_bytes(bytes(1 << 20))
    return str(tmp_path / "a")


def written(worker: ThreadWorker, file: File, buffers: Sequence[Buffer], offset: int) -> asyncio.Future[None]:
    """Write durably through a worker, and wait for the outcome."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: BaseException | None) -> None:
        assert threading.current_thread() is threading.main_thread()
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    worker.write_durably(file, buffers, offset, done)
    assert not future.done()
    return future


def memory(content: bytes) -> tuple[mmap.mmap, int]:
    pages = mmap.mmap(-1, len(content))
    pages[:] = content
    return pages, ctypes.addressof(ctypes.c_char.from_buffer(pages))


@is_here
def test_several_writes_at_a_time(path: str) -> None:
    """As many as there is room for; each is told of once, on the loop, with the bytes written or what went wrong."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        writes = DirectWrites.begin(loop)
        assert writes is not None
        descriptor = os.open(path, os.O_WRONLY | os.O_DSYNC)
        kept = [memory(bytes([65 + number]) * SIZE) for number in range(DEPTH + 1)]
        for round_number in range(3):
            ended: dict[int, int] = {}
            all_ended = loop.create_future()

            def note(number: int, result: int, ended: dict[int, int] = ended, done: Any = all_ended) -> None:
                assert threading.current_thread() is threading.main_thread()
                assert number not in ended
                ended[number] = result
                if len(ended) == DEPTH:
                    done.set_result(None)

            begun = [
                writes.submit(
                    descriptor, address, SIZE, number * SIZE, lambda result, number=number: note(number, result)
                )
                for number, (_, address) in enumerate(kept)
            ]
            assert not ended, "not before the call returns"
            assert begun == [True] * DEPTH + [False], round_number
            await asyncio.wait_for(all_ended, 60)
            assert ended == dict.fromkeys(range(DEPTH), SIZE)
        file = OsDisk().open(path, "r")
        expected = b"".join(bytes([65 + number]) * SIZE for number in range(DEPTH))
        assert file.pread(1 << 20, 0) == expected.ljust(1 << 20, b"\0")
        file.close()
        os.close(descriptor)
        assert not writes.submit(descriptor, kept[0][1], SIZE, 0, lambda result: None), "a descriptor that is closed"
        writes.close()
        writes.close()

    asyncio.run(main())


@is_here
def test_closing_waits_for_what_is_under_way(path: str) -> None:
    async def main() -> None:
        before = len(os.listdir("/proc/self/fd"))
        writes = DirectWrites.begin(asyncio.get_running_loop())
        assert writes is not None
        descriptor = os.open(path, os.O_WRONLY | os.O_DSYNC)
        pages, address = memory(b"x" * SIZE)
        results: list[int] = []
        assert writes.submit(descriptor, address, SIZE, 0, results.append)
        writes.close()
        assert results == [SIZE]
        assert pages[:1] == b"x"
        os.close(descriptor)
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(main())


@is_here
@pytest.mark.parametrize("is_closing", [False, True])
def test_a_system_that_gives_no_news(path: str, is_closing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is under way ends with its error, and nothing more is taken."""
    real = direct.system_call

    async def main() -> None:
        writes = DirectWrites.begin(asyncio.get_running_loop())
        assert writes is not None
        events = writes._calls[direct._IO_GETEVENTS]
        answers = iter([-errno.EINTR])

        def refusing(number: int, *arguments: int) -> int:
            return next(answers, -errno.EPERM) if number == events else real(number, *arguments)

        monkeypatch.setattr(direct, "system_call", refusing)
        descriptor = os.open(path, os.O_WRONLY | os.O_DSYNC)
        pages, address = memory(b"x" * SIZE)
        results: list[int] = []
        for number in range(2):
            assert writes.submit(descriptor, address, SIZE, number * SIZE, results.append)
        if is_closing:
            writes.close()
        else:
            os.eventfd_write(writes._eventfd, 1)
            while not results:
                writes._take()
                await asyncio.sleep(0)
            assert not writes.submit(descriptor, address, SIZE, 0, results.append)
        assert results == [-errno.EPERM] * 2
        assert pages[:1] == b"x"
        os.close(descriptor)
        writes.close()

    asyncio.run(main())


@is_here
@pytest.mark.parametrize("submission_s", [0.001, 0.01])
@pytest.mark.parametrize("sleeps", [0, 1])
def test_a_file_system_that_does_it_all_at_the_submission(
    path: str, submission_s: float, sleeps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop must not wait for the device: after some of these, threads do, for a while.

    `submission_s`: of 11 ms in all. `sleeps`: during each; without one it was interrupted and has not waited.
    """
    now_s, sleep_count = 0.0, 0

    def wait(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    real = direct.system_call

    def system_call(number: int, *arguments: int) -> int:
        nonlocal sleep_count
        if number == direct._CALLS[direct.platform.machine()][direct._IO_SUBMIT]:
            wait(submission_s)
            sleep_count += sleeps
        return real(number, *arguments)

    monkeypatch.setattr(direct, "system_call", system_call)
    monkeypatch.setattr(direct, "perf_counter", lambda: now_s)
    monkeypatch.setattr(direct, "_sleep_count", lambda: sleep_count)

    async def main() -> None:
        writes = DirectWrites.begin(asyncio.get_running_loop())
        assert writes is not None
        descriptor = os.open(path, os.O_WRONLY | os.O_DSYNC)
        pages, address = memory(b"x" * SIZE)

        async def write_some() -> int:
            for count in range(50):
                ended = asyncio.get_running_loop().create_future()
                if not writes.submit(descriptor, address, SIZE, 0, ended.set_result):
                    return count
                wait(0.011 - submission_s)
                assert await asyncio.wait_for(ended, 60) == SIZE
            return 50

        is_blocking = submission_s > 0.005 and sleeps > 0
        for _ in range(2):
            assert await write_some() == (direct.BLOCKING_MAX + 1 if is_blocking else 50)
            assert await write_some() == (0 if is_blocking else 50)
            wait(direct.PAUSE_S)
        assert pages[:1] == b"x"
        os.close(descriptor)
        writes.close()

    asyncio.run(main())


@pytest.mark.parametrize("reason", ["machine", "refused", "descriptors", "loop", "library"])
def test_where_there_is_no_such_thing_a_thread_writes(reason: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason == "machine":
        monkeypatch.setattr(direct.platform, "machine", lambda: "pdp11")
    elif reason == "refused":
        monkeypatch.setattr(direct, "system_call", lambda *arguments: -errno.EPERM)
    elif reason == "loop":

        def cannot_watch(*arguments: object) -> None:
            raise NotImplementedError

        monkeypatch.setattr(asyncio.SelectorEventLoop, "add_reader", cannot_watch)
    elif reason == "library":
        monkeypatch.setitem(sys.modules, "bookies.runtime.linux.direct", None)
    else:

        def none_left(*arguments: int) -> int:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(os, "eventfd", none_left, raising=False)

    async def main() -> None:
        worker = ThreadWorkers().start("plain")
        file = OsDisk().open(path, "r+")
        for number in range(3):
            await written(worker, file, [b"abc", bytes([number]) * 509], number * 512)
        assert file.pread(4, 1024) == b"abc\2"
        worker.close()
        file.close()
        with pytest.raises(RuntimeError, match="closed"):
            await written(worker, file, [bytes(512)], 0)

    asyncio.run(main())


def test_files_are_written_through_a_worker(path: str) -> None:
    """Whatever way each takes: aligned or not, small or large, one after the other; and after the worker was closed."""

    async def main() -> None:
        worker = ThreadWorkers().start("journal")
        file = OsDisk().open(path, "r+")
        expected = bytearray(1 << 20)
        sizes = (512, 100, 4096, 64 << 10, 65 << 10, 511, 1024)
        offset = 0
        for size in sizes * 3:
            half = os.urandom(size // 2)
            await written(worker, file, [half, memoryview(os.urandom(0)), half.ljust(size - size // 2, b"?")], offset)
            expected[offset : offset + size] = half + half.ljust(size - size // 2, b"?")
            offset += -(-size // 512) * 512 if size != 511 else 513  # the next ones do not begin at a block
        assert file.pread(1 << 20, 0) == bytes(expected)[: file.size()]
        last = written(worker, file, [b"z" * 512], 0)
        worker.close()
        await last
        assert file.pread(512, 0) == b"z" * 512
        file.close()

    asyncio.run(main())


class Stub:
    """A file whose direct write ends as told; `calls`: how it was written."""

    path = "stub"

    def __init__(self, outcome: bool | Exception | None, failure: Exception | None = None) -> None:
        self.calls: list[str] = []
        self._outcome = outcome
        self._failure = failure

    def begin_durable(self, submit: Submit, buffers: Sequence[Buffer], offset: int, done: Written) -> bool:
        self.calls.append("begin")
        if isinstance(self._outcome, TypeError):
            raise self._outcome
        if self._outcome is None:
            return False
        asyncio.get_running_loop().call_soon(done, self._outcome)
        return True

    def write_durably(self, buffers: Sequence[Buffer], offset: int) -> None:
        self.calls.append("write")
        if self._failure is not None:
            raise self._failure


@is_here
@pytest.mark.parametrize(
    ("outcome", "failure", "calls", "raised"),
    [
        (True, None, ["begin"], None),
        (None, None, ["begin", "write"], None),
        (False, None, ["begin", "write"], None),
        (False, OSError(errno.EIO, "no"), ["begin", "write"], OSError),
        (OSError(errno.EIO, "no"), None, ["begin"], OSError),
        (TypeError("a mistake of ours"), None, ["begin"], TypeError),
    ],
)
def test_every_end_of_a_write_is_told(
    outcome: bool | Exception | None, failure: Exception | None, calls: list[str], raised: type[Exception] | None
) -> None:
    async def main() -> None:
        worker = ThreadWorkers().start("stub")
        stub: Any = Stub(outcome, failure)
        if raised is None:
            await asyncio.wait_for(written(worker, stub, [b"x"], 0), 60)
        else:
            with pytest.raises(raised):
                await asyncio.wait_for(written(worker, stub, [b"x"], 0), 60)
        assert stub.calls == calls
        worker.close()

    asyncio.run(main())


def ending_with(result: int) -> Submit:
    def submit(descriptor: int, address: int, size: int, offset: int, ended: Callable[[int], None]) -> bool:
        assert ctypes.string_at(address, size) == b"y" * size
        asyncio.get_running_loop().call_soon(ended, size if result == 0 else result)
        return True

    return submit


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="no direct writes here")
@pytest.mark.parametrize("result", [0, 100, -errno.EINVAL, -errno.EINTR, -errno.EAGAIN, -errno.EIO, -errno.ENOSPC])
def test_what_the_device_says_of_a_file_and_its_directory(result: int, tmp_path: pathlib.Path) -> None:
    """Everything written; a part; blocks that are too small for it; a device that fails; no room left."""

    async def main() -> None:
        directories = [str(tmp_path / name) for name in "ab"]
        OsDisk().make_directories(*directories)
        health = DirectoryHealth(directories, directories, keeps_going=True)
        file = WatchedDisk(OsDisk(), health).open(f"{directories[0]}/f", "x+")
        outcomes: list[bool | Exception] = []

        def begin() -> bool:
            return file.begin_durable(ending_with(result), [b"y" * 512], 0, outcomes.append)

        if not begin():
            pytest.skip("this file system has no direct writes")
        await asyncio.sleep(0)
        (outcome,) = outcomes
        if result == -errno.ENOSPC:
            assert type(outcome).__name__ == "DiskFull"
        elif result == -errno.EIO:
            assert isinstance(outcome, OSError)
            assert (outcome.errno, outcome.filename) == (errno.EIO, f"{directories[0]}/f")
        else:
            assert outcome is (result == 0)
        assert list(health.failed) == ([directories[0]] if result == -errno.EIO else [])
        assert begin() is (result not in (-errno.EINVAL, -errno.EIO)), "it is not tried again where it cannot be"
        await asyncio.sleep(0)
        file.close()

    asyncio.run(main())
