"""Load with our client, through its public API alone: a process of its own, so that any revision can be driven.

    python drive.py MODE --metadata URI [--NAME VALUE ...]

Prints a line of JSON for each event: "ready" (of cold reads: prepared, waits for a line), "begin" and "end" of what is
measured, "result". Whoever started it watches processes meanwhile. benchmarks/apache/Drive.java is the same for
Apache's client, in the same words.

    add     --window entries in flight over --ledgers ledgers, which take turns in random order, of --size bytes or of
            --sizes in turn; --api single: append_nowait, a call and a callback an entry; many: append_many
    fill    a ledger of --entries, closed unless --close no
    read    --ledger from 0 to --last in order, again and again; --api entries: read(); batches: read_batches()
    random  single entries of --ledger, --window at a time
    tail    a writer of --rate entries a second and a reader that follows it
    recover --ledgers one after the other, each with --entries of a writer that is gone, after --warm-ledgers of them
    create  and seal ledgers, --window at a time

`--warmup` and `--seconds` say how long. `--cold yes`: what is read has not been read before, and is read once.
`--together yes` (add, read, create): after the warm-up "ready", and work goes on until the moment that a line tells, by
CLOCK_MONOTONIC, at which every driver that was told the same begins. After its result it waits for another line, so
that nobody who looks at it late finds it gone.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import functools
import itertools
import json
import math
import os
import random
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import bookies as bk
from bookies.runtime import aio

TEXTS = ("sizes", ""), ("quorums", "3,3,2"), ("api", ""), ("cold", "no"), ("close", "yes"), ("together", "no")
PAYLOADS = 64  # different ones
LOOK = 256  # entries between two looks at the clock


def percentiles(values: Sequence[float], counts: Sequence[int], shares: Sequence[float]) -> list[float]:
    """Return, for each share (0..1), the smallest value that this share of all counted ones does not exceed."""
    if not values:
        return [0.0] * len(shares)
    order = sorted(range(len(values)), key=values.__getitem__)
    ends = list(itertools.accumulate(counts[index] for index in order))
    return [values[order[bisect.bisect_left(ends, share * ends[-1])]] for share in shares]


class Drive:
    """What was asked for, and what is counted."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.is_counting = False
        self.entries = self.bytes = self.errors = 0
        self.ledger_id = -1
        # Latencies that were counted, and the entries of each.
        self._seconds, self._counts = array("d"), array("q")
        self.elapsed = self._began = 0.0
        self.until = 0.0  # when what is read now ends

    def begin(self) -> None:
        event("begin")
        self.is_counting = True
        self._began = time.perf_counter()

    def end(self) -> None:
        self.elapsed = time.perf_counter() - self._began
        self.is_counting = False
        event("end")

    async def warm_up_until(self) -> None:
        """Set `until` to the end of the warm-up, which with `--together` somebody tells while it lasts."""
        self.until = time.perf_counter() + self.arguments.warmup
        if self.arguments.together == "yes":
            self.until = math.inf
            await asyncio.sleep(self.arguments.warmup)
            self.until = float(await ready())

    def count(self, since: float, size: int, entries: int = 1) -> None:
        if self.is_counting:
            self.entries += entries
            self.bytes += size
            self._seconds.append(time.perf_counter() - since)
            self._counts.append(entries)

    def report(self) -> None:
        p50, p99 = (int(seconds * 1e6) for seconds in percentiles(self._seconds, self._counts, (0.5, 0.99)))
        event(
            "result",
            entries=self.entries,
            bytes=self.bytes,
            elapsed_s=self.elapsed,
            p50_us=p50,
            p99_us=p99,
            errors=self.errors,
            ledger=self.ledger_id,
        )

    async def create(self, client: bk.Client) -> bk.LedgerWriter:
        ensemble, write_quorum, ack_quorum = map(int, self.arguments.quorums.split(","))
        return await client.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum, digest="crc32c")

    def payloads(self) -> list[bytes]:
        sizes = [int(each) for each in (self.arguments.sizes or str(self.arguments.size)).split(",")]
        return [os.urandom(size) for size in sizes * max(1, PAYLOADS // len(sizes))]

    async def window_of_time(self, work: asyncio.Future[Any]) -> None:
        """Warm up, begin, end; sooner when `work` ends."""
        await asyncio.wait([work], timeout=self.arguments.warmup)
        if self.arguments.together == "yes":
            await asyncio.wait([work], timeout=float(await ready()) - time.perf_counter())
        if not work.done():
            self.begin()
            await asyncio.wait([work], timeout=self.arguments.seconds)
            self.end()


def event(name: str, **facts: Any) -> None:
    print(json.dumps({"event": name, **facts}), flush=True)


async def ready() -> str:
    """Tell that everything is prepared; the line that comes then."""
    event("ready")
    return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


# -- adds ----------------------------------------------------------------------------------------------------------


async def add(drive: Drive) -> None:
    arguments = drive.arguments
    async with bk.connect(arguments.metadata) as client:
        ledgers: list[bk.LedgerWriter] = []
        for start in range(0, arguments.ledgers, 32):
            count = min(32, arguments.ledgers - start)
            ledgers += await asyncio.gather(*(drive.create(client) for _ in range(count)))
        random.Random(7).shuffle(ledgers)
        if arguments.api == "many":
            stopping = asyncio.Event()
            work = asyncio.ensure_future(_add_many(drive, ledgers, stopping))
            await drive.window_of_time(work)
            stopping.set()
        else:
            adder = Adder(drive, ledgers)
            work = asyncio.ensure_future(adder.run())
            await drive.window_of_time(work)
            adder.is_stopping = True
        await asyncio.wait([work], timeout=10)
        work.cancel()
        if work.done() and not work.cancelled():
            work.result()


class Adder:
    """A call an entry: each confirmed entry is followed by the next append."""

    def __init__(self, drive: Drive, ledgers: list[bk.LedgerWriter]) -> None:
        self._drive, self._ledgers = drive, ledgers
        self._appends = itertools.cycle([ledger.append_nowait for ledger in ledgers])
        self._payloads = itertools.cycle(drive.payloads())
        self._pending = 0
        self._held = 0  # appends that wait until the client takes more
        self._wake = asyncio.Event()
        self.is_stopping = False

    async def run(self) -> None:
        for _ in range(self._drive.arguments.window):
            self._submit()
        while self._pending or self._held:
            await self._wake.wait()
            self._wake.clear()
            held, self._held = self._held, 0
            if held and not self.is_stopping:
                await self._ledgers[0].wait_writable()
                for _ in range(held):
                    self._submit()

    def _submit(self) -> None:
        payload = next(self._payloads)
        since = time.perf_counter()
        try:
            future = next(self._appends)(payload)
        except bk.BookieBusy:
            self._held += 1
            self._wake.set()
            return
        self._pending += 1
        future.add_done_callback(functools.partial(self._done, since, len(payload)))

    def _done(self, since: float, size: int, future: asyncio.Future[int]) -> None:
        self._pending -= 1
        error = future.exception()
        if error is None:
            self._drive.count(since, size)
            if not self.is_stopping:
                self._submit()
                return
        else:
            failed(self._drive, error)
            self.is_stopping = True
        if not self._pending:
            self._wake.set()


def failed(drive: Drive, error: BaseException) -> None:
    if not drive.errors:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    drive.errors += 1


async def _add_many(drive: Drive, ledgers: list[bk.LedgerWriter], stopping: asyncio.Event) -> None:
    """A batch a call; ten batches are in flight, or one a ledger."""
    lanes = max(1, min(10, drive.arguments.window) // len(ledgers))
    share = max(1, drive.arguments.window // (lanes * len(ledgers)))
    payloads = drive.payloads()
    batch = (payloads * (share // len(payloads) + 1))[:share]
    size = sum(map(len, batch))

    async def lane(ledger: bk.LedgerWriter) -> None:
        while not stopping.is_set():
            since = time.perf_counter()
            try:
                await ledger.append_many(batch)
            except bk.BookKeeperError as error:
                failed(drive, error)
                stopping.set()
                return
            drive.count(since, size, len(batch))

    await asyncio.gather(*(lane(ledger) for ledger in ledgers for _ in range(lanes)))


async def _write(ledger: bk.LedgerWriter, count: int, payloads: list[bytes], window: int) -> None:
    """`window` entries at a time."""
    for start in range(0, count, window):
        batch = range(start, min(start + window, count))
        await asyncio.gather(*(ledger.append(payloads[each % len(payloads)]) for each in batch))


async def fill(drive: Drive) -> None:
    async with bk.connect(drive.arguments.metadata) as client:
        ledger = await drive.create(client)
        drive.ledger_id = ledger.ledger_id
        await _write(ledger, drive.arguments.entries, drive.payloads(), 1000)
        await (ledger.seal() if drive.arguments.close == "yes" else ledger.close())


# -- reads ---------------------------------------------------------------------------------------------------------


async def read(drive: Drive) -> None:
    arguments = drive.arguments
    is_cold = arguments.cold == "yes"
    one_pass = _pass_batches if arguments.api == "batches" else _pass_entries
    async with bk.connect(arguments.metadata) as client, client.open(arguments.ledger) as ledger:
        end = ledger.last_add_confirmed
        last = min(end, arguments.last) if arguments.last is not None else end
        told = asyncio.ensure_future(drive.warm_up_until())
        await asyncio.sleep(0)  # It has set `until`.
        while time.perf_counter() < drive.until:
            await one_pass(drive, ledger, last + 1 if is_cold else 0, end if is_cold else last)
        await told
        if is_cold:
            await ready()
        drive.begin()
        drive.until = time.perf_counter() + arguments.seconds
        await one_pass(drive, ledger, 0, last)
        while not is_cold and time.perf_counter() < drive.until:
            await one_pass(drive, ledger, 0, last)
        drive.end()


async def _pass_entries(drive: Drive, ledger: bk.LedgerReader, first: int, last: int) -> None:
    entries = size = 0
    async for entry in ledger.read(first, last):
        entries += 1
        size += len(entry.payload)
        if not entries % LOOK and time.perf_counter() > drive.until:
            break
    if drive.is_counting:
        drive.entries += entries
        drive.bytes += size


async def _pass_batches(drive: Drive, ledger: bk.LedgerReader, first: int, last: int) -> None:
    async for batch in ledger.read_batches(first, last):
        if drive.is_counting:
            drive.entries += len(batch)
        if time.perf_counter() > drive.until:
            break


async def read_at_random(drive: Drive) -> None:
    arguments = drive.arguments
    is_cold = arguments.cold == "yes"
    async with bk.connect(arguments.metadata) as client, client.open(arguments.ledger) as ledger:
        end = ledger.last_add_confirmed
        last = min(end, arguments.last) if arguments.last is not None else end
        ids = random.Random(7)

        async def reader(low: int, high: int, until: float) -> None:
            while time.perf_counter() < until:
                since = time.perf_counter()
                entry = await ledger.read_entry(ids.randint(low, high))
                drive.count(since, len(entry.payload))

        async def readers(low: int, high: int, until: float) -> None:
            await asyncio.gather(*(reader(low, high, until) for _ in range(arguments.window)))

        warm_until = time.perf_counter() + arguments.warmup
        await readers(last + 1 if is_cold else 0, end if is_cold else last, warm_until)
        if is_cold:
            await ready()
        drive.begin()
        await readers(0, last, time.perf_counter() + arguments.seconds)
        drive.end()


# -- tail ----------------------------------------------------------------------------------------------------------


async def tail(drive: Drive) -> None:
    """The writer and the reader have a client each."""
    arguments = drive.arguments
    count = int((arguments.warmup + arguments.seconds) * arguments.rate)
    submitted: list[float] = []
    payloads = drive.payloads()

    async def write(ledger: bk.LedgerWriter) -> None:
        start = time.perf_counter()
        for number in range(count):
            if (delay := start + number / arguments.rate - time.perf_counter()) > 0:
                await asyncio.sleep(delay)
            submitted.append(time.perf_counter())
            ledger.append_nowait(payloads[number % len(payloads)])
        await ledger.seal()

    async with bk.connect(arguments.metadata) as writing, bk.connect(arguments.metadata) as reading:
        ledger = await drive.create(writing)
        async with reading.open(ledger.ledger_id) as reader:
            work = asyncio.ensure_future(write(ledger))
            counted_from = int(arguments.warmup * arguments.rate)
            async for entry in reader.tail(0):
                if entry.id >= counted_from:
                    if not drive.is_counting:
                        drive.begin()
                    drive.count(submitted[entry.id], len(entry.payload))
            drive.end()
            await work


# -- ledgers -------------------------------------------------------------------------------------------------------


async def recover(drive: Drive) -> None:
    arguments = drive.arguments
    payloads, left = drive.payloads(), []
    # A writer that dies with entries in flight has had no time to announce anything.
    interval_ms = 0 if arguments.window > 1 else None
    async with bk.connect(arguments.metadata, explicit_lac_interval_ms=interval_ms) as writing:
        for _ in range(arguments.warm_ledgers + arguments.ledgers):
            ledger = await drive.create(writing)
            await _write(ledger, arguments.entries, payloads, arguments.window)
            left.append(ledger)
        if arguments.window == 1:
            await asyncio.sleep(1)  # The last writer is idle too.
        for ledger in left:
            await ledger.close()
    async with bk.connect(arguments.metadata) as client:
        for number, ledger in enumerate(left):
            if number == arguments.warm_ledgers:
                drive.begin()
            since = time.perf_counter()
            async with client.recover(ledger.ledger_id) as found:
                drive.errors += found.last_add_confirmed != arguments.entries - 1
            drive.count(since, 0)
        drive.end()


async def create(drive: Drive) -> None:
    arguments = drive.arguments
    async with bk.connect(arguments.metadata) as client:
        is_stopping = False

        async def creator() -> None:
            while not is_stopping:
                since = time.perf_counter()
                await (await drive.create(client)).seal()
                drive.count(since, 0)

        work = asyncio.gather(*(creator() for _ in range(arguments.window)))
        await drive.window_of_time(work)
        is_stopping = True
        await work


MODES: dict[str, Callable[[Drive], Any]] = {
    "add": add,
    "fill": fill,
    "read": read,
    "random": read_at_random,
    "tail": tail,
    "recover": recover,
    "create": create,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--metadata", required=True)
    for name, default in (("size", 1024), ("window", 1000), ("ledgers", 1), ("entries", 200_000), ("rate", 1000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--ledger", type=int)
    parser.add_argument("--last", type=int)
    parser.add_argument("--warm-ledgers", type=int, default=30)
    for name, default_text in TEXTS:
        parser.add_argument(f"--{name}", default=default_text)
    parser.add_argument("--warmup", type=float, default=3.0)
    parser.add_argument("--seconds", type=float, default=8.0)
    drive = Drive(parser.parse_args())
    aio.run(MODES[drive.arguments.mode](drive))
    drive.report()
    if drive.arguments.together == "yes":
        sys.stdin.readline()
    return 0


if __name__ == "__main__":
    sys.exit(main())
