"""`bk bench storage --growth`: cost of a bookie's storage as it grows, without network and clients.

The storage runs in this process. First many ledgers receive a few entries each. Then some thousands of ledgers are
written in turn, a few entries at a time, up to the given number. Then follow an orderly stop and start, first reads of
ledgers that were not used since, more entries, an end without a stop, and a start that replays the journal.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time
from typing import Any

from bookies.admin.shared import Progress, UsageError
from bookies.admin.shared.common import quiet_logs
from bookies.admin.shared.report import Report, Table
from bookies.config import LEDGER_INDEXES, BookieConfig
from bookies.kernels import Adds, gather_adds, pack_add_frames
from bookies.lab.bench.bench_common import data_directory, figure_text, figures
from bookies.lab.bench.bench_drive import rss_mb
from bookies.model import DigestType
from bookies.runtime import aio
from bookies.runtime.histogram import Histogram
from bookies.storage.store import LedgerStore

BATCH = 10  # entries of one add
PAYLOAD_SIZE = 64  # bytes
WINDOW = 1000  # batches in flight
COLD_READS = 1000
REPLAYED_SHARE = 0.05  # of the entries, added before the end without a stop
KEY = bytes(20)
_HEAD = bytes(24)  # packet header and master key of a frame; the storage ignores them


def run(arguments: argparse.Namespace) -> Report:
    """Measure. Return the table."""
    for name in ("ledgers", "open_ledgers", "entries"):
        if (number := getattr(arguments, name)) < 1:
            raise UsageError(f"--{name.replace('_', '-')} {number}: must be 1 or more")
    if arguments.index == "both":
        return _both(arguments)
    share = 10 if arguments.quick else 1
    with data_directory() as directory, quiet_logs(logging.ERROR):
        growth = _Growth(
            pathlib.Path(directory),
            total=max(1, arguments.ledgers // share),
            open_count=max(1, arguments.open_ledgers // share),
            entry_count=max(1, arguments.entries // share),
            index=arguments.index,
            quiet=arguments.json,
        )
        return figures(aio.run(growth.run()))


def _both(arguments: argparse.Namespace) -> Report:
    """Measure each kind of index in a process of its own, because memory is one of the figures."""
    results: dict[str, dict[str, Any]] = {}
    for index in LEDGER_INDEXES:
        command = [sys.executable, "-m", "bookies", "bench", "storage", "--growth", "--json", "--index", index]
        for name in ("ledgers", "open_ledgers", "entries"):
            command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
        output = subprocess.run([*command, *["--quick"] * arguments.quick], check=True, stdout=subprocess.PIPE).stdout
        results[index] = json.loads(output)
    names = list(results[LEDGER_INDEXES[0]])
    rows = [(name, *(figure_text(results[index][name]) for index in LEDGER_INDEXES)) for name in names]
    return Report(results, [Table(("figure", *LEDGER_INDEXES), rows, (1, 2))])


class _Growth:
    def __init__(
        self, directory: pathlib.Path, *, total: int, open_count: int, entry_count: int, index: str, quiet: bool
    ) -> None:
        self._directory = directory
        self._config = BookieConfig(
            journal_directories=(str(directory / "journal"),),
            ledger_directories=(str(directory / "ledgers"),),
            ledger_index=index,
            gc_interval_ms=0,
        )
        self._total, self._open_count, self._entry_count = total, min(open_count, total), entry_count
        self._quiet = quiet
        self._random = random.Random(1)
        self._payloads = [os.urandom(PAYLOAD_SIZE)] * BATCH
        self._next = [0] * total  # next entry id of every ledger
        self._failure: BaseException | None = None
        self._progressed = asyncio.Event()
        self._pending = 0
        self._times: list[float] = []  # durations of checkpoints, seconds
        self._store = self._new_store()

    def _new_store(self) -> LedgerStore:
        return LedgerStore(aio.runtime(), self._config, self._failed)

    def _failed(self, error: BaseException) -> None:
        self._failure = error
        self._progressed.set()

    async def run(self) -> dict[str, Any]:
        result: dict[str, Any] = {"ledgers": self._total, "of them written to": self._open_count}
        before = rss_mb(os.getpid())
        await self._store.start()
        result |= await self._fill(range(self._open_count, self._total))
        result |= await self._load()
        result["files"] = sum(len(names) for _, _, names in os.walk(self._directory))
        result["memory of the storage, MB"] = rss_mb(os.getpid()) - before
        begin = time.perf_counter()
        await self._store.stop()
        result["orderly stop, s"] = time.perf_counter() - begin
        self._store = self._new_store()
        begin = time.perf_counter()
        await self._store.start()
        result["start after it, s"] = time.perf_counter() - begin
        result |= await self._read_cold()
        return result | await self._replay()

    async def _add(self, ledger_id: int) -> None:
        """Add a batch, as soon as fewer than `WINDOW` are in flight and the storage is not congested."""
        first = self._next[ledger_id]
        self._next[ledger_id] = first + BATCH
        frames, starts, _ = pack_add_frames(
            _HEAD, ledger_id, first, first - 1, first * PAYLOAD_SIZE, self._payloads, int(DigestType.CRC32C), b""
        )
        _, table, entry_ids, records, _ = gather_adds(frames, starts, 0)
        while self._pending >= WINDOW or self._store.is_congested:
            if self._failure is not None:
                raise self._failure
            self._progressed.clear()
            if self._store.is_congested:
                self._store.when_uncongested(self._progressed.set)
            await self._progressed.wait()
        self._pending += 1
        adds = Adds(table, entry_ids, records)
        refused = self._store.add(
            adds, KEY, is_recovery=False, is_deferred_sync=False, accepted=lambda size: None, done=self._done
        )
        for part, error in refused:
            self._done(part, error)

    def _done(self, part: Adds, error: BaseException | None) -> None:
        self._pending -= 1
        self._failure = self._failure or error
        self._progressed.set()

    async def _settle(self) -> None:
        while self._pending:
            self._progressed.clear()
            await self._progressed.wait()
        if self._failure is not None:
            raise self._failure

    async def _fill(self, ledger_ids: range) -> dict[str, Any]:
        progress = Progress("ledgers", len(ledger_ids), quiet=self._quiet)
        begin = time.perf_counter()
        for count, ledger_id in enumerate(ledger_ids):
            await self._add(ledger_id)
            progress.update(count)
        await self._settle()
        progress.clear()
        created = time.perf_counter() - begin
        begin = time.perf_counter()
        await self._store.checkpoint()
        return {
            "new ledgers a second": len(ledger_ids) / created if created else 0.0,
            "checkpoint with all of them, s": time.perf_counter() - begin,
        }

    async def _load(self) -> dict[str, Any]:
        """Write to the open ledgers in turn. Return the rate and the durations of the checkpoints meanwhile."""
        progress = Progress("entries", self._entry_count, quiet=self._quiet)
        flushes = asyncio.ensure_future(self._checkpoint_times())
        begin, begin_cpu = time.perf_counter(), time.process_time()
        count = 0
        while count < self._entry_count:
            for ledger_id in range(self._open_count):
                await self._add(ledger_id)
                count += BATCH
                if count >= self._entry_count:
                    break
            progress.update(count)
        await self._settle()
        seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
        flushes.cancel()
        progress.clear()
        times = self._times or [0.0]
        begin = time.perf_counter()
        await self._store.checkpoint()
        return {
            "entries": count,
            "entries a second": count / seconds,
            "processor time of an entry, us": cpu / count * 1e6,
            "checkpoints meanwhile": len(self._times),
            "their median, s": statistics.median(times),
            "the longest, s": max(times),
            "checkpoint after it, s": time.perf_counter() - begin,
        }

    async def _checkpoint_times(self) -> None:
        while True:
            await asyncio.sleep(self._config.checkpoint_interval_ms / 1000)
            begin = time.perf_counter()
            await self._store.checkpoint()
            self._times.append(time.perf_counter() - begin)

    async def _read_cold(self) -> dict[str, Any]:
        latencies = Histogram()
        for ledger_id in self._random.sample(range(self._total), min(COLD_READS, self._total)):
            begin = time.perf_counter()
            await self._store.read(ledger_id, self._random.randrange(self._next[ledger_id]))
            latencies.record(time.perf_counter() - begin)
        figures = latencies.summary()
        return {f"first read of a ledger, {name}": figures[name] for name in ("p50_us", "p99_us", "max_us")}

    async def _replay(self) -> dict[str, Any]:
        count = 0
        while count < self._entry_count * REPLAYED_SHARE:
            for ledger_id in range(self._open_count):
                await self._add(ledger_id)
                count += BATCH
        await self._settle()
        self._store.abort()
        self._store = self._new_store()
        begin = time.perf_counter()
        await self._store.start()
        seconds = time.perf_counter() - begin
        stats = self._store.stats()
        await self._store.stop()
        return {
            "entries replayed": stats["replayed_entries"],
            "start with replay, s": seconds,
            "memory at the end, MB": rss_mb(os.getpid()),
        }
