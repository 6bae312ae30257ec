"""What this machine allows, measured beside the systems: the disk's sync latency and bandwidth, loopback, copying.

Three writers at a time, because three bookies share the disk. Their files hold zeros before they are measured: no file
system does better than writing into blocks that are there.
"""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

WRITERS = 3  # bookies of a cluster
REPLICAS = 3
GROUP_SIZE = 1 << 20  # bytes of a write whose bandwidth is measured
CHUNK_SIZE = 1 << 16  # bytes of a send, and of a copy
BLOCK = 4096  # bytes; smaller writes cost as much


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
    """Measure all of it, about six times `seconds`; files go to a directory of its own in `directory`."""
    with tempfile.TemporaryDirectory(prefix="limits-", dir=directory) as name:
        root = pathlib.Path(name)
        syncs = {count: _sync(root, BLOCK, count, seconds) for count in (1, WRITERS)}
        groups = _sync(root, GROUP_SIZE, WRITERS, seconds)
    return Limits(
        {count: (percentile(times, 0.5) * 1e6, percentile(times, 0.99) * 1e6) for count, times in syncs.items()},
        sum(GROUP_SIZE for _ in groups) / 1e6 / seconds,
        _loopback(seconds),
        _copying(seconds),
    )


def percentile(values: list[float], share: float) -> float:
    """The smallest value that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def _sync(directory: pathlib.Path, size: int, writers: int, seconds: float) -> list[float]:
    """Seconds of each write of `size` bytes with its sync, by so many processes at a time."""
    paths = [directory / f"writer-{number}" for number in range(writers)]
    for path in paths:
        path.write_bytes(bytes(64 << 20))
        with open(path, "rb+") as file:
            os.fsync(file.fileno())
    command = [sys.executable, "-I", "-S", __file__, "sync", str(size), str(seconds)]
    processes = [subprocess.Popen([*command, str(path)], stdout=subprocess.PIPE, text=True) for path in paths]
    return [each for process in processes for each in json.loads(process.communicate()[0])]


def _sync_main(size: int, seconds: float, path: str) -> None:
    block, room = os.urandom(size), 64 << 20
    times: list[float] = []
    file = os.open(path, os.O_WRONLY)
    end = time.perf_counter() + seconds
    offset = 0
    while (started := time.perf_counter()) < end:
        os.pwrite(file, block, offset)
        os.fdatasync(file)
        times.append(time.perf_counter() - started)
        offset = (offset + size) % (room - size)
    print(json.dumps(times))


def _loopback(seconds: float) -> float:
    """MB/s from one process to another, a chunk a call."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-I", "-S", __file__, "drain", str(server.getsockname()[1])]
        process = subprocess.Popen(command)
        connection, _ = server.accept()
    sent, block = 0, bytes(CHUNK_SIZE)
    began = time.perf_counter()
    with connection:
        while time.perf_counter() < began + seconds:
            connection.sendall(block)
            sent += len(block)
    process.wait()
    return sent / 1e6 / (time.perf_counter() - began)


def _drain_main(port: int) -> None:
    buffer = bytearray(1 << 20)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while connection.recv_into(buffer):
            pass


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


if __name__ == "__main__":
    if sys.argv[1] == "sync":
        _sync_main(int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
    else:
        _drain_main(int(sys.argv[2]))
