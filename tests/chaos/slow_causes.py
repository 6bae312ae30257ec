"""Ten causes of slow requests made on purpose, and what `bk why slow` answers to each: `make slow-causes`.

Each one runs on a bookie of its own, with a client that keeps its slow appends. The exit status is 0 if the right cause
comes first in at least nine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from typing import Any

import bookies
from bookies.metadata.uri import connect
from bookies.runtime import aio

MIB = 1 << 20
BOUND_MS = 100
RIGHT_MIN = 9
FAST = {"disk": (2e9, 0.0)}


class Stage:
    """One bookie with its devices, and its client."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.data = directory / "bk-data"
        self.uri = f"file:{self.data / 'metadata'}"
        self._log = (directory / "bookie.log").open("wb")
        self.bookie: asyncio.subprocess.Process | None = None
        self.reports: list[str] = []
        self.since = "10m"

    async def start(self, devices: dict[str, tuple[float, float]] = FAST, **settings: Any) -> None:
        """Start the bookie. With one device, journal and ledgers share it."""
        driver = connect(self.uri, aio.runtime(), may_create=True)
        await driver.open()
        await driver.initialize_cluster()
        await driver.close()
        places = {str(self.data / "b1" / kind): kind if kind in devices else "disk" for kind in ("journal", "ledgers")}
        facts = {
            "metadata": self.uri,
            "devices": devices,
            "places": places,
            "settings": {
                "bookie_id": "b1",
                "port": 0,
                "journal_directories": [str(self.data / "b1" / "journal")],
                "ledger_directories": [str(self.data / "b1" / "ledgers")],
                "journal_preallocate_size": MIB,
                "slow_request_ms": BOUND_MS,
            }
            | settings,
        }
        self.bookie = await asyncio.create_subprocess_exec(
            sys.executable,
            str(pathlib.Path(__file__).parent / "slow_bookie.py"),
            json.dumps(facts),
            stdout=asyncio.subprocess.PIPE,
            stderr=self._log.fileno(),
        )
        assert self.bookie.stdout is not None
        line = await self.bookie.stdout.readline()
        assert line, (self.directory / "bookie.log").read_text()
        self.port = json.loads(line)["port"]

    @contextlib.asynccontextmanager
    async def client(self, **settings: Any) -> AsyncIterator[bookies.Client]:
        """Connect a client, and keep its report."""
        settings = {"slow_request_ms": BOUND_MS, "add_timeout_ms": 20_000} | settings
        async with bookies.connect(self.uri, **settings) as client:
            try:
                yield client
            finally:
                if settings["slow_request_ms"]:
                    path = self.directory / f"client{len(self.reports)}.json"
                    path.write_text(json.dumps(client.slow_report()))
                    self.reports.append(str(path))

    def signal(self, number: int) -> None:
        assert self.bookie is not None
        self.bookie.send_signal(number)

    async def stop(self) -> None:
        if self.bookie is not None:
            with contextlib.suppress(ProcessLookupError):
                self.signal(signal.SIGCONT)
                self.signal(signal.SIGTERM)
            await self.bookie.wait()
        self._log.close()

    def ask(self, *arguments: str) -> str:
        """Run `bk` and return what it prints."""
        command = [sys.executable, "-m", "bookies.admin.cli", *arguments]
        return subprocess.run(command, cwd=self.directory, capture_output=True, text=True, check=True).stdout


async def append_for(client: bookies.Client, seconds: float, *, size: int = 1000, pause_s: float = 0.01,
                     together: int = 1) -> int:  # fmt: skip
    """Append to a new ledger for some time; return its id."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    async with client.create(ensemble=1) as ledger:
        while loop.time() < until:
            await asyncio.gather(*(ledger.append(bytes(size)) for _ in range(together)))
            await asyncio.sleep(pause_s)
        return ledger.ledger_id


async def slow_disk(stage: Stage) -> None:
    await stage.start({"disk": (200e6, 0.3)})
    async with stage.client() as client:
        await append_for(client, 6)


async def full_cache(stage: Stage) -> None:
    await stage.start({"journal": (500e6, 0.0), "ledgers": (3e6, 0.0)}, write_cache_size=4 * MIB)
    async with stage.client() as client:
        await append_for(client, 6, size=10_000, together=50)


async def paused_process(stage: Stage) -> None:
    await stage.start()
    async with stage.client() as client:
        appending = asyncio.create_task(append_for(client, 6))
        for _ in range(3):
            await asyncio.sleep(1)
            stage.signal(signal.SIGSTOP)
            await asyncio.sleep(0.8)
            stage.signal(signal.SIGCONT)
        await appending


async def lossy_link(stage: Stage) -> None:
    """Delay one piece of data in ten by the time after which TCP sends a lost packet again."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    await stage.start(advertised_port=port)
    random = Random(1)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(MIB):
                if random.random() < 0.1:
                    await asyncio.sleep(random.choice((0.2, 0.4, 0.8)))
                writer.write(data)
            writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_bookie, to_bookie = await asyncio.open_connection("127.0.0.1", stage.port)
        await asyncio.gather(pump(reader, to_bookie), pump(from_bookie, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", port)
    async with stage.client() as client:
        await append_for(client, 6)
    server.close()


async def tiny_memory_limit(stage: Stage) -> None:
    await stage.start({"disk": (500e6, 0.005)})
    async with stage.client(memory_limit=64 << 10) as client:
        await append_for(client, 6, size=10_000, together=300)


async def hot_ledger(stage: Stage) -> None:
    await stage.start({"disk": (60e6, 0.0)}, write_cache_size=512 * MIB)
    async with stage.client() as client, stage.client(slow_request_ms=0) as other:
        hot = asyncio.create_task(append_for(other, 7, size=60_000, together=200, pause_s=0))
        await append_for(client, 6)
        await hot


async def checkpoint(stage: Stage) -> None:
    await stage.start({"disk": (20e6, 0.0)}, write_cache_size=24 * MIB, checkpoint_interval_ms=600_000)
    async with stage.client() as client:
        await append_for(client, 14, size=10_000, together=6, pause_s=0.04)


async def compaction_without_rate(stage: Stage) -> None:
    settings = {
        "gc_interval_ms": 1000,
        "gc_quarantine_ms": 0,
        "gc_share_max": 100,
        "compaction_rate_size": 1 << 40,
        "minor_compaction_interval_ms": 0,
        "major_compaction_interval_ms": 0,
        "entry_log_size_max": 16 * MIB,
        "checkpoint_interval_ms": 1000,
        "write_cache_size": 8 * MIB,
    }
    await stage.start({"disk": (6e6, 0.0)}, **settings)
    async with stage.client(slow_request_ms=0) as client:
        for _ in range(6):
            both = [client.create(ensemble=1), client.create(ensemble=1)]
            async with await both[0] as kept, await both[1] as dropped:
                for _ in range(20):
                    await asyncio.gather(*(ledger.append(bytes(100_000)) for ledger in (kept, dropped)))
            await client.delete(dropped.ledger_id)
    await asyncio.sleep(3)
    stage.since = "20s"  # without the load that filled the logs
    async with stage.client() as client:
        appending = asyncio.create_task(append_for(client, 17))
        await asyncio.sleep(5)
        await asyncio.to_thread(stage.ask, "bookie", "compact", "--major", "--wait")
        await appending


async def slow_metadata_store(stage: Stage) -> None:
    """Hold the store's lock, as another transaction on a slow disk does."""
    await stage.start()
    (path,) = [path for path in (stage.data / "metadata").iterdir() if path.suffix in (".db", ".sqlite", "")][:1]
    async with stage.client() as client:
        for _ in range(3):
            other = sqlite3.connect(path, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            appending = asyncio.create_task(append_for(client, 0.5))
            await asyncio.sleep(1)
            other.execute("COMMIT")
            other.close()
            await appending


async def busy_processor(stage: Stage) -> None:
    await stage.start()
    assert stage.bookie is not None
    processor = min(os.sched_getaffinity(0))
    os.sched_setaffinity(stage.bookie.pid, {processor})
    code = f"import os\nos.sched_setaffinity(0, {{{processor}}})\nwhile True: pass"
    burners = [await asyncio.create_subprocess_exec(sys.executable, "-c", code) for _ in range(30)]
    try:
        async with stage.client() as client:
            await append_for(client, 8)
    finally:
        for burner in burners:
            burner.kill()
            await burner.wait()


SCENES: dict[str, tuple[Callable[[Stage], Awaitable[None]], tuple[str, ...]]] = {
    "slow disk": (slow_disk, ("disk",)),
    "full write cache": (full_cache, ("cache",)),
    "paused process": (paused_process, ("stopped",)),
    "lossy link": (lossy_link, ("network",)),
    "tiny memory limit": (tiny_memory_limit, ("memory",)),
    "hot ledger": (hot_ledger, ("hot ledger",)),
    "checkpoint": (checkpoint, ("checkpoint",)),
    "compaction without rate": (compaction_without_rate, ("compaction",)),
    "slow metadata store": (slow_metadata_store, ("metadata",)),
    "busy processor": (busy_processor, ("processor",)),
}


async def play(name: str, *, is_verbose: bool) -> tuple[bool, str]:
    """Run one scene. Return whether the right cause came first, and the first sentence."""
    scene, expected = SCENES[name]
    with tempfile.TemporaryDirectory() as directory:
        stage = Stage(pathlib.Path(directory))
        (stage.data / "metadata").mkdir(parents=True)
        try:
            await scene(stage)
            clients = [word for path in stage.reports for word in ("--client", path)]
            answer = json.loads(
                await asyncio.to_thread(stage.ask, "why", "slow", "--json", "--since", stage.since, *clients)
            )
        finally:
            await stage.stop()
    causes = answer["causes"]
    if is_verbose:
        for cause in causes:
            print("   ", cause["name"], cause["finding"])
    if not causes:
        return False, "no slow requests"
    return causes[0]["name"] in expected, causes[0]["finding"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="scenes to run (default: all)")
    parser.add_argument("--verbose", action="store_true", help="print every cause")
    arguments = parser.parse_args()
    right = 0
    print("| cause | right first | finding |\n|---|---|---|")
    names = arguments.names or list(SCENES)
    for name in names:
        is_right, finding = asyncio.run(play(name, is_verbose=arguments.verbose))
        right += is_right
        print(f"| {name} | {'yes' if is_right else 'no'} | {finding} |", flush=True)
    print(f"right first: {right} of {len(names)}")
    return 0 if right >= min(RIGHT_MIN, len(names)) else 1


if __name__ == "__main__":
    sys.exit(main())
