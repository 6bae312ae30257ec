"""`bk chaos --soak`: hours of ordinary life at half load, then everything is verified; nothing may grow meanwhile.

Writers create ledgers and seal them; above `ledgers_max` the oldest are deleted. Logs are rolled, truncated and tailed.
Bookies collect, compact, scrub and repair in short intervals. Operators work in turn: a rolling restart, the loss of a
bookie's disks, which are emptied by the documented steps and return as a new bookie, a requested compaction. With
`--spark` a streaming query follows the logs too, and the operators kill it.

All clients are in this process, so its memory, descriptors and threads are samples of the client library.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import random
import shutil
import signal
import sqlite3
import sys
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from msgspec import Struct, field

from bookies.admin.cluster import LocalCluster
from bookies.admin.cluster.local_cluster import START_S, STOP_S, LocalBookie
from bookies.errors import BookKeeperError, CursorBehind, LedgerNotFound
from bookies.lab.bench.bench_drive import memory_kib
from bookies.lab.chaos.chaos_checker import Checker, LastCheck
from bookies.lab.chaos.chaos_history import payload_of
from bookies.lab.chaos.chaos_processes import last_line
from bookies.lab.chaos.chaos_recovery import HealingCheck, check_healing
from bookies.lab.chaos.soak.soak_log import log_number, log_payload
from bookies.lab.chaos.soak.soak_samples import Samples
from bookies.lab.chaos.soak.soak_stream import Stream
from bookies.metadata.embedded.embedded import FILE_NAME
from bookies.protocol.log import Position

if TYPE_CHECKING:
    from bookies.client.client import Client
    from bookies.client.log import LogWriter

SETTINGS: dict[str, object] = {
    "journal_preallocate_size": 1 << 20,
    "journal_size_max": 16 << 20,
    "write_cache_size": 4 << 20,
    "entry_log_size_max": 8 << 20,
    "index_cache_size": 2 << 20,
    "checkpoint_interval_ms": 2_000,
    "open_files_max": 100,
    "gc_interval_ms": 10_000,
    "gc_quarantine_ms": 5_000,
    "gc_share_max": 100,
    "minor_compaction_interval_ms": 30_000,
    "major_compaction_interval_ms": 90_000,
    "scrub_period_ms": 120_000,
    "auto_recovery": True,
    "lost_bookie_delay_s": 10,
    "audit_replicas_interval_s": 60,
    "recovery_open_ledger_grace_ms": 5_000,
}
LEASE_MS = 4_000
LABEL = ("soak", "1")
LEDGERS_MAX = 2_000
WRITERS, READERS, LOGS = 4, 1, 2
LEDGER_ENTRIES = (20, 60, 150, 400)
BATCH = 20
CALIBRATE_S = 8.0
LOAD = 0.5  # share of the measured peak
ROLL_SIZE = 256 << 10  # of a log
LOG_KEPT = 20_000  # entries of a log that truncation leaves
OPERATION_S = 60.0  # bound of one operation; none may fail for good
RETRY_S = 0.5
PAUSE_S = 5.0  # between two steps of the operators
STREAM_ROUNDS = 5  # of the operators, between two kills of the query: its memory is a sample, too
SAMPLE_S = 5.0


class Rate:
    """Paces entries: `wait` returns when the next `count` entries are due. No limit while `per_s` is 0."""

    def __init__(self) -> None:
        self.per_s = 0.0
        self._next_s = 0.0

    async def wait(self, count: int) -> None:
        if self.per_s:
            now = time.monotonic()
            self._next_s = max(self._next_s, now - 1.0) + count / self.per_s
            await asyncio.sleep(max(0.0, self._next_s - now))


class _Log(Struct):
    """A log of the run: the numbers of its first entry, before which all are truncated, and of the next one.

    `positions`: numbers of entries with their positions, ascending.
    """

    first: int = 0
    next: int = 0
    positions: deque[tuple[int, Position]] = field(default_factory=deque)


class Soak:
    """One run in `directory`. `violations` of the checker: broken promises. `samples`: also in `directory/soak.csv`."""

    def __init__(
        self,
        directory: pathlib.Path,
        seed: int,
        bookies: int,
        seconds: float,
        progress: Callable[[str], None],
        *,
        streams: bool = False,
    ) -> None:
        self.directory, self.seconds, self.progress = directory, seconds, progress
        self.checker = Checker()
        self.counts: Counter[str] = Counter()
        self.samples = Samples()
        self._random = random.Random(seed)
        self._cluster = LocalCluster(directory / "bk-data", bookies, lease_ms=LEASE_MS, settings=SETTINGS)
        self._sealed: deque[tuple[int, int]] = deque()  # (ledger, its last entry), oldest first
        self._logs = {f"soak{number}": _Log() for number in range(1, LOGS + 1)}
        self._stream = Stream(directory, self._cluster.metadata_uri, list(self._logs)) if streams else None
        self._rate = Rate()
        self._stopping = asyncio.Event()
        self.took_s = 0.0

    async def run(self) -> None:
        """Run to the end. No process is left, also after an error."""
        from bookies.client.connect import connect

        try:
            await asyncio.to_thread(self._cluster.start)
            async with connect(self._cluster.metadata_uri, timeout=OPERATION_S) as client:
                self.samples.began_s = time.monotonic()
                await self._live(client)
                await self._verify(client)
        finally:
            self.took_s = self.samples.elapsed_s
            self.samples.write(self.directory / "soak.csv")
            if self._stream is not None:
                self._stream.kill()
            await asyncio.to_thread(self._cluster.stop)

    async def _live(self, client: Client) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(WRITERS):
                group.create_task(self._write_ledgers(client, random.Random(self._random.random() + number)))
            for _ in range(READERS):
                group.create_task(self._read_ledgers(client))
            for name in self._logs:
                group.create_task(self._write_log(client, name))
                group.create_task(self._tail_log(client, name))
            await asyncio.sleep(CALIBRATE_S)
            of_logs = sum(log.next for log in self._logs.values())
            peak = (self.checker.counts["entries acknowledged"] + of_logs) / CALIBRATE_S
            self._rate.per_s = LOAD * peak
            self.progress(f"peak {peak:,.0f} entries/s; going on with {self._rate.per_s:,.0f}")
            if self._stream is not None:
                self._stream.start()
            group.create_task(self._sample())
            group.create_task(self._operate())
            await asyncio.sleep(max(0.0, self.seconds - CALIBRATE_S))
            self._stopping.set()

    async def _persist(self, what: str, work: Callable[[], Awaitable[object]]) -> bool:
        """Repeat an operation until it succeeds. It is a violation if it does not within `OPERATION_S`."""
        deadline = time.monotonic() + OPERATION_S
        while True:
            try:
                await work()
                return True
            except (BookKeeperError, TimeoutError) as error:
                self.counts[f"{what}: {type(error).__name__}"] += 1
                if what.startswith("bk "):
                    self.progress(f"{what}: {error}")
                if time.monotonic() > deadline:
                    self.checker.violated("in time", f"{what} does not succeed: {error!r}")
                    return False
            await asyncio.sleep(RETRY_S)

    async def _repeat(self, what: str, work: Callable[[], Awaitable[object]]) -> None:
        """Repeat an operation that lasts until the end of the run whenever it fails."""
        while not self._stopping.is_set():
            try:
                await work()
            except (BookKeeperError, TimeoutError) as error:
                self.counts[f"{what}: {type(error).__name__}"] += 1
                await asyncio.sleep(RETRY_S)

    # -- ledgers -------------------------------------------------------------------------------------------------
    async def _write_ledgers(self, client: Client, choices: random.Random) -> None:
        while not self._stopping.is_set():
            await self._persist("write a ledger", lambda: self._write_ledger(client, choices.choice(LEDGER_ENTRIES)))
            while len(self._sealed) > LEDGERS_MAX and not self._stopping.is_set():
                ledger_id, _ = self._sealed.popleft()
                await self._persist("delete", lambda: self._delete(client, ledger_id))  # noqa: B023

    async def _write_ledger(self, client: Client, goal: int) -> None:
        async with client.create(labels=dict([LABEL]), timeout=OPERATION_S) as ledger:
            ledger_id = ledger.ledger_id
            for first in range(0, goal, BATCH):
                last = first + BATCH - 1
                await self._rate.wait(BATCH)
                self._note("started", ledger_id, first, last)
                payloads = [payload_of(ledger_id, entry_id) for entry_id in range(first, last + 1)]
                await ledger.append_many(payloads, timeout=OPERATION_S)
                self._note("acked", ledger_id, first, last)
            last = await ledger.seal(timeout=OPERATION_S)
        self._sealed.append((ledger_id, last))

    def _note(self, event: str, ledger_id: int, first: int, last: int) -> None:
        self.checker.take("soak", [{"e": event, "ledger": ledger_id, "first": first, "last": last}])

    async def _delete(self, client: Client, ledger_id: int) -> None:
        with contextlib.suppress(LedgerNotFound):  # An attempt whose answer was lost has deleted it.
            await client.delete(ledger_id, timeout=OPERATION_S)
        self.checker.stories.pop(ledger_id, None)
        self.counts["ledgers deleted"] += 1

    async def _read_ledgers(self, client: Client) -> None:
        while not self._stopping.is_set():
            await asyncio.sleep(RETRY_S)
            if len(self._sealed) > WRITERS + 1:
                ledger_id, last = self._random.choice(list(self._sealed)[WRITERS:])
                await self._persist("read", lambda: self._read(client, ledger_id, last))  # noqa: B023

    async def _read(self, client: Client, ledger_id: int, last: int) -> None:
        following = 0
        try:
            async with client.open(ledger_id, timeout=OPERATION_S) as ledger:
                async for batch in ledger.read_batches():
                    for entry_id, payload in enumerate(batch.payloads(), batch.first_entry_id):
                        if entry_id != following or payload != payload_of(ledger_id, entry_id):
                            self.checker.violated("content", f"ledger {ledger_id}: read entry {entry_id} wrongly")
                        following = entry_id + 1
        except BookKeeperError:
            if ledger_id in self.checker.stories:
                raise
            return  # It was deleted meanwhile.
        self.counts["ledgers read"] += 1
        if following != last + 1:
            self.checker.violated("none lost", f"ledger {ledger_id} ends at entry {last}, {following} were read")

    # -- logs ----------------------------------------------------------------------------------------------------
    async def _write_log(self, client: Client, name: str) -> None:
        log = client.log(name)
        await self._create_log(client, name)

        async def lead() -> None:
            async with log.lead(roll_size=ROLL_SIZE, timeout=OPERATION_S) as writer:
                while not self._stopping.is_set():
                    await self._append_to_log(name, writer)

        await self._repeat(f"lead {name}", lead)

    async def _create_log(self, client: Client, name: str) -> None:
        await self._persist("create a log", lambda: client.log(name).create(exist_ok=True, timeout=OPERATION_S))

    async def _append_to_log(self, name: str, writer: LogWriter) -> None:
        await self._rate.wait(BATCH)
        log = self._logs[name]
        numbers = range(log.next, log.next + BATCH)
        last = await writer.append_many([log_payload(name, number) for number in numbers], timeout=OPERATION_S)
        log.next += BATCH
        positions = log.positions
        positions.append((numbers[-1], last))
        if numbers[-1] - positions[0][0] > LOG_KEPT:
            while numbers[-1] - positions[0][0] > LOG_KEPT // 2:
                number, position = positions.popleft()
            log.first = number + 1
            try:
                await writer.truncate(position.next, timeout=OPERATION_S)
            except CursorBehind:  # of the query, which has just been killed: the next truncation passes it
                self.counts["truncations held back"] += 1
            else:
                self.counts["truncations of logs"] += 1

    async def _tail_log(self, client: Client, name: str) -> None:
        """Follow a log. Entries arrive in order; only an append of unknown outcome, repeated, arrives twice."""
        seen: int = -1
        position: Position | None = None

        async def follow() -> None:
            nonlocal seen, position
            async with client.log(name).open(timeout=OPERATION_S) as reader:
                async for entry in reader.tail(position):
                    number = log_number(name, bytes(entry.payload))
                    if number is None or (seen >= 0 and number > seen + 1):
                        self.checker.violated("none lost", f"log {name}: entry {number} follows {seen}")
                    seen, position = max(seen, -1 if number is None else number), entry.position.next
                    self.counts["entries tailed"] += 1

        await self._create_log(client, name)
        tailing = asyncio.create_task(self._repeat(f"tail {name}", follow))
        await self._stopping.wait()
        tailing.cancel()
        await asyncio.wait((tailing,))
        if not tailing.cancelled():
            tailing.result()

    async def _verify_log(self, client: Client, name: str) -> None:
        """Read a log from its beginning to its end: what was acknowledged and not truncated is there, in order."""
        following, log = None, self._logs[name]
        async with client.log(name).open(timeout=OPERATION_S) as reader:
            async for entry in reader.read():
                number = log_number(name, bytes(entry.payload))
                if number is None or (following is not None and number > following):
                    self.checker.violated("none lost", f"log {name}: entry {number} is where {following} was expected")
                    return
                if following is None and number > log.first:
                    self.checker.violated("none lost", f"log {name} begins at {number}, not {log.first}")
                following = max(following or 0, number + 1)
        self.counts["entries of logs verified"] += (following or 0) - log.first
        if (following or 0) < log.next:
            text = f"log {name} ends before {following}, but {log.next:,} were acknowledged"
            self.checker.violated("none lost", text)

    async def _verify_stream(self, stream: Stream) -> None:
        """Wait until the query has delivered what was acknowledged; take over what it has found."""
        deadline = time.monotonic() + OPERATION_S
        while behind := [
            f"{name} at {seen[1]:,} of {log.next - 1:,}"
            for name, log in self._logs.items()
            if (seen := stream.state["seen"].get(name, (-1, -1)))[1] < log.next - 1
        ]:
            if time.monotonic() > deadline:
                self.checker.violated("in time", f"the query did not come to the end of the logs: {', '.join(behind)}")
                break
            await asyncio.sleep(RETRY_S)
        state = stream.state
        for text in state["violations"]:
            self.checker.violated("stream", text)
        for name in ("rows", "repeated", "failures"):
            self.counts[f"stream: {name}"] = state[name]

    # -- operators -----------------------------------------------------------------------------------------------
    async def _operate(self) -> None:
        """Work in turn: restart all bookies one after the other, lose a bookie's disks, compact."""
        while True:
            for bookie in self._cluster.bookies:
                if await self._stops_within(PAUSE_S):
                    return
                await self._restart(bookie)
            self.counts["rolling restarts"] += 1
            if await self._stops_within(PAUSE_S):
                return
            await self._replace_disks(self._random.choice(self._cluster.bookies))
            if await self._stops_within(PAUSE_S):
                return
            await self._bk("bookie", "compact", "--major", "--wait")
            self.counts["requested compactions"] += 1
            if self._stream is not None and self.counts["rolling restarts"] % STREAM_ROUNDS == 1:
                await asyncio.to_thread(self._stream.restart)
                self.counts["streams killed"] += 1

    async def _stops_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        return self._stopping.is_set()

    async def _restart(self, bookie: LocalBookie) -> None:
        await asyncio.to_thread(self._cluster.kill, bookie.id, signal.SIGTERM)
        if not await asyncio.to_thread(bookie.wait, STOP_S):
            self.checker.violated("bookies live", f"{bookie.id} does not stop within {STOP_S:g} s")
            await asyncio.to_thread(self._cluster.kill, bookie.id)
        await self._start(bookie)

    async def _start(self, bookie: LocalBookie) -> None:
        try:
            await asyncio.to_thread(self._cluster.restart, bookie.id, START_S)
        except BookKeeperError as error:
            self.checker.violated("bookies live", f"{bookie.id} does not restart: {error}")

    async def _replace_disks(self, bookie: LocalBookie) -> None:
        """Lose the files of a bookie, copy its replicas, let the cluster forget it, and start it with empty disks."""
        await asyncio.to_thread(self._cluster.kill, bookie.id)
        for name in ("journal", "ledgers"):
            await asyncio.to_thread(shutil.rmtree, bookie.directory / name)
        await self._bk("bookie", "recover", bookie.id)
        await self._bk("bookie", "format", "--bookie-id", bookie.id, "--yes")
        await self._start(bookie)
        self.counts["disks replaced"] += 1

    async def _bk(self, *words: str) -> None:
        """Run a command, as an operator does: again if it fails."""

        async def attempt() -> None:
            program = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "bookies.admin.cli", *words),
                cwd=self.directory,  # whose `bk-data` the command uses
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            output, _ = await program.communicate()
            if program.returncode:
                raise BookKeeperError(f"status {program.returncode}: {output.decode().strip()[-500:]}")

        await self._persist(f"bk {' '.join(words[:2])}", attempt)

    # -- samples -------------------------------------------------------------------------------------------------
    async def _sample(self) -> None:
        while True:
            row = await asyncio.to_thread(self._measure)
            self.samples.rows.append((self.samples.elapsed_s, row))
            self.show("")
            if await self._stops_within(SAMPLE_S):
                return
            for bookie in self._cluster.bookies:
                process = bookie.process
                if process is not None and process.poll() not in (None, 0, -signal.SIGKILL):
                    self.checker.violated("bookies live", f"{bookie.id} ended: {last_line(bookie.log)}")

    def _measure(self) -> dict[str, float]:
        bookies = [pid for pid in self._cluster.pids() if os.path.exists(f"/proc/{pid}/fd")]
        row: dict[str, float] = {"ledgers": len(self._sealed)}
        spark = [] if self._stream is None else [("spark", self._stream.pids())]
        for name, pids in (("bookies", bookies), ("client", [os.getpid()]), *spark):
            row[f"{name}: memory, MB"] = _sum(pids, lambda pid: memory_kib(pid, "VmRSS") / 1_000)
            row[f"{name}: descriptors"] = _sum(pids, lambda pid: len(os.listdir(f"/proc/{pid}/fd")))
            row[f"{name}: threads"] = _sum(pids, lambda pid: len(os.listdir(f"/proc/{pid}/task")))
        row |= self._measure_files()
        row["metadata records"] = self._metadata_records()
        return row

    def _measure_files(self) -> dict[str, float]:
        """Count without a list of all paths: it would be the largest and growing part of this process's memory."""
        folders = files = size = 0
        for bookie in self._cluster.bookies:
            for folder, _, names in os.walk(bookie.directory):
                folders += 1
                for name in names:
                    if name != "bookie.log":
                        files += 1
                        with contextlib.suppress(FileNotFoundError):
                            size += os.stat(os.path.join(folder, name)).st_size
        return {"bookies: folders": folders, "bookies: files": files, "bookies: data, MB": round(size / 1e6, 1)}

    def _metadata_records(self) -> int:
        path = self.directory / "bk-data" / "metadata" / FILE_NAME
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return sum(int(database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]) for name in tables)

    def show(self, step: str) -> None:
        counts = self.checker.counts
        self.progress(
            f"{self.samples.elapsed_s:6.0f} s  {counts['entries acknowledged']:>10,} entries acknowledged  "
            f"{len(self._sealed):>5,} ledgers  {self.counts['ledgers deleted']:>5,} deleted  "
            f"{len(self.checker.violations)} violations  {step}".rstrip()
        )

    # -- end -----------------------------------------------------------------------------------------------------
    async def _verify(self, client: Client) -> None:
        self.show(f"verifying {len(self.checker.stories):,} ledgers and {LOGS} logs")
        last_check = LastCheck(self.checker, LABEL)
        await last_check.run(client)
        for name in self._logs:
            await self._verify_log(client, name)
        if self._stream is not None:
            await self._verify_stream(self._stream)
        records = [record async for record in client.ledgers(label=LABEL)]
        await check_healing(HealingCheck(self.checker), client, self._cluster.metadata_uri, records)
        self.counts["ledgers verified"], self.counts["entries verified"] = last_check.ledgers, last_check.entries
        self.counts["ensemble changes"] = last_check.ensemble_changes
        self.counts["entries acknowledged"] = self.checker.counts["entries acknowledged"]


def _sum(items: Iterable[object], value: Callable[..., float]) -> float:
    """Return the sum over the items; those that have ended or were deleted meanwhile count as 0."""
    total = 0.0
    for item in items:
        with contextlib.suppress(OSError):
            total += value(item)
    return round(total, 1)
