"""A bookie whose disks are slower than those of this machine: a child of `slow_causes.py`.

A device has a bandwidth and a latency. Writes fill its queue, and a sync or a read waits until the queue is empty, as
on a real device: so a large flush delays the syncs of a journal on the same device.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from bookies.bookie.main import configure_logging
from bookies.bookie.server import BookieServer
from bookies.config import BookieConfig
from bookies.metadata.uri import connect
from bookies.runtime import aio


class Device:
    """A device of `rate` bytes per second, on which a sync takes `latency_s` more."""

    def __init__(self, rate: float, latency_s: float = 0.0) -> None:
        self._rate = rate
        self._latency_s = latency_s
        self._idle_at_s = 0.0
        self._lock = threading.Lock()

    def write(self, size: int) -> None:
        with self._lock:
            self._idle_at_s = max(self._idle_at_s, time.monotonic()) + size / self._rate

    def wait(self, latency_s: float | None = None) -> None:
        latency_s = self._latency_s if latency_s is None else latency_s
        time.sleep(latency_s + max(0.0, self._idle_at_s - time.monotonic()))


class SlowFile:
    """A file of the system on a device."""

    def __init__(self, file: Any, device: Device) -> None:
        self._file = file
        self._device = device

    def pwrite(self, data: Any, offset: int) -> None:
        self._device.write(len(data))
        self._file.pwrite(data, offset)

    def pwritev(self, buffers: Sequence[Any], offset: int) -> None:
        self._device.write(sum(map(len, buffers)))
        self._file.pwritev(buffers, offset)

    def write_durably(self, buffers: Sequence[Any], offset: int) -> None:
        self.pwritev(buffers, offset)
        self.fdatasync()

    def begin_read(self, *arguments: object) -> bool:
        return False

    def begin_durable(self, *arguments: object) -> bool:
        return False

    def fdatasync(self) -> None:
        self._device.wait()
        self._file.fdatasync()

    def fsync(self) -> None:
        self._device.wait()
        self._file.fsync()

    def pread(self, size: int, offset: int) -> bytes:
        data: bytes = self._file.pread(size, offset)
        self._device.write(len(data))
        self._device.wait(0.0)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class SlowDisk:
    """The system's files, each on the device whose directory its path begins with."""

    def __init__(self, disk: Any, devices: dict[str, Device]) -> None:
        self._disk = disk
        self._devices = devices

    def open(self, path: str, mode: str) -> Any:
        file = self._disk.open(path, mode)
        device = next((device for directory, device in self._devices.items() if path.startswith(directory)), None)
        return file if device is None else SlowFile(file, device)

    def sync_many(self, files: Sequence[Any], directories: Sequence[str]) -> None:
        for file in files:
            file.fsync()
        for directory in directories:
            self._disk.sync_directory(directory)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


async def main(facts: dict[str, Any]) -> None:
    """Run the bookie until SIGTERM."""
    configure_logging()
    runtime = aio.runtime()
    devices: dict[str, Device] = {}
    by_name = {name: Device(*numbers) for name, numbers in facts["devices"].items()}
    for directory, name in facts["places"].items():
        devices[directory] = by_name[name]
    runtime = replace(runtime, disk=SlowDisk(runtime.disk, devices))
    settings = {name: tuple(value) if isinstance(value, list) else value for name, value in facts["settings"].items()}
    driver = connect(facts["metadata"], runtime)
    await driver.open()
    server = BookieServer(runtime, BookieConfig(**settings), driver)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await server.start()
    print(json.dumps({"port": server.address[1]}), flush=True)
    await stop.wait()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(server.abort(), 5.0)
    await driver.close()


if __name__ == "__main__":
    aio.run(main(json.loads(sys.argv[1])))
