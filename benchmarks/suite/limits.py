"""What this machine allows, measured beside the systems: the disk's sync latency and bandwidth, loopback, copying.

Three writers at a time, because three bookies share the disk. Their files hold zeros before they are measured: no file
system does better than writing into blocks that are there.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.suite import ending, limit_work, processes

WRITERS = 3  # bookies of a cluster
REPLICAS = 3
GROUP_SIZE = 1 << 20  # bytes of a write whose bandwidth is measured
CHUNK_SIZE = 1 << 16  # bytes of a send, and of a copy
BLOCK = 4096  # bytes; smaller writes cost as much
START_S = 30.0  # that a process may take until it listens


@dataclass(frozen=True, slots=True)
class Limit:
    """A value in the unit of a figure, and what sets it."""

    value: float
    cause: str


@dataclass(frozen=True, slots=True)
class Limits:
    """`sync_us`: (p50, p99) of a write and its sync, microseconds, by the number of writers; the others: MB/s."""

    sync_us: dict[int, tuple[float, float]]
    disk_mb_s: float
    loopback_mb_s: float
    copying_mb_s: float

    def describe(self) -> str:
        """Lines for people."""
        syncs = "; ".join(
            f"{count} writer{'s' * (count > 1)}: p50 {p50 / 1000:.2f} ms, p99 {p99 / 1000:.2f} ms"
            for count, (p50, p99) in self.sync_us.items()
        )
        return (
            f"- write of {BLOCK} B and fdatasync: {syncs}\n"
            f"- disk, {WRITERS} writers, {GROUP_SIZE >> 20} MiB and fdatasync: {self.disk_mb_s:,.0f} MB/s in all\n"
            f"- loopback TCP, one stream: {self.loopback_mb_s:,.0f} MB/s\n"
            f"- a loop that only copies, {CHUNK_SIZE >> 10} KiB at a time: {self.copying_mb_s:,.0f} MB/s"
        )


def adds(size: int) -> Callable[[Limits], Limit]:
    """Entries a second: every replica is written to the disk once, goes through loopback, and is copied once."""

    def limit(limits: Limits) -> Limit:
        return min(
            Limit(limits.disk_mb_s * 1e6 / (REPLICAS * size), "disk"),
            Limit(limits.loopback_mb_s * 1e6 / (REPLICAS * size), "loopback"),
            Limit(limits.copying_mb_s * 1e6 / (REPLICAS * size), "copying"),
            key=lambda each: each.value,
        )

    return limit


def reads(size: int) -> Callable[[Limits], Limit]:
    """Entries a second: each goes through loopback once and is copied once."""

    def limit(limits: Limits) -> Limit:
        loopback = Limit(limits.loopback_mb_s * 1e6 / size, "loopback")
        return min(loopback, Limit(limits.copying_mb_s * 1e6 / size, "copying"), key=lambda each: each.value)

    return limit


def sync(share: float, writers: int = WRITERS, scale: float = 1.0) -> Callable[[Limits], Limit]:
    """A latency in microseconds times `scale`: that of one sync, the median or (`share` above 0.9) the p99."""

    def limit(limits: Limits) -> Limit:
        return Limit(limits.sync_us[writers][share > 0.9] * scale, "sync")

    return limit


def syncs_per_second(count: int) -> Callable[[Limits], Limit]:
    """Operations a second that each wait for so many syncs of one writer, one after the other."""

    def limit(limits: Limits) -> Limit:
        return Limit(1e6 / (count * limits.sync_us[1][0]), "sync")

    return limit


def measure(directory: pathlib.Path, seconds: float) -> Limits:
    """Measure all of it, about six times `seconds`; files go to a directory of its own in `directory`.

    A disk that does not let it: one sentence and exit status 2.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="limits-", dir=directory) as name:
            root = pathlib.Path(name)
            syncs = {count: _sync(root, BLOCK, count, seconds) for count in (1, WRITERS)}
            groups = _sync(root, GROUP_SIZE, WRITERS, seconds)
            loopback = _loopback(root, seconds)
    except OSError as error:
        size = WRITERS * limit_work.ROOM >> 20
        ending.give_up(
            f"{directory}: {error.strerror or error}; what the disk allows is measured with {size} MiB of files there: "
            "make room, or say with --directory where there is some"
        )
    return Limits(
        {count: (percentile(times, 0.5) * 1e6, percentile(times, 0.99) * 1e6) for count, times in syncs.items()},
        sum(GROUP_SIZE for _ in groups) / 1e6 / seconds,
        loopback,
        _copying(seconds),
    )


def percentile(values: list[float], share: float) -> float:
    """The smallest value that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def _sync(directory: pathlib.Path, size: int, writers: int, seconds: float) -> list[float]:
    """Seconds of each write of `size` bytes with its sync, by so many processes at a time. Raises `OSError`."""
    paths = [directory / f"writer-{number}" for number in range(writers)]
    for path in paths:
        path.write_bytes(bytes(limit_work.ROOM))
        with open(path, "rb+") as file:
            os.fsync(file.fileno())
    with contextlib.ExitStack() as stack:
        team = [stack.enter_context(_worker(directory, "sync", str(size), str(seconds), str(path))) for path in paths]
        return [each for process in team for each in _times(process)]


def _times(process: subprocess.Popen[str]) -> list[float]:
    said, _ = process.communicate()
    if process.returncode == limit_work.FAILED:
        raise OSError(int(said), os.strerror(int(said)))
    found: list[float] = json.loads(said)
    return found


@contextlib.contextmanager
def _worker(directory: pathlib.Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A process of `limit_work`, which an interrupt does not reach and which does not outlive the block."""
    command = [sys.executable, "-I", "-S", limit_work.__file__, *words]
    process = processes.spawn(command, log=directory / "limits.log", pipes=True)
    try:
        yield process
    finally:
        processes.stop(process, signal.SIGKILL)


def _loopback(directory: pathlib.Path, seconds: float) -> float:
    """MB/s from one process to another, a chunk a call."""
    sent, block = 0, bytes(CHUNK_SIZE)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        _worker(directory, "drain", str(server.getsockname()[1])) as process,
    ):
        server.settimeout(START_S)
        connection, _ = server.accept()
        began = time.perf_counter()
        with connection:
            while time.perf_counter() < began + seconds:
                connection.sendall(block)
                sent += len(block)
        process.wait()
        return sent / 1e6 / (time.perf_counter() - began)


def _copying(seconds: float) -> float:
    """MB/s of one process from one buffer into another, larger than the processor's caches."""
    chunk, room = os.urandom(CHUNK_SIZE), 256 << 20
    buffer = memoryview(bytearray(room))
    count = 0
    began = time.perf_counter()
    while time.perf_counter() < began + seconds:
        for offset in range(0, room, CHUNK_SIZE):
            buffer[offset : offset + CHUNK_SIZE] = chunk
        count += room
    return count / 1e6 / (time.perf_counter() - began)
