"""Small records through a log: appends a second with their delay, reads a second, and the delay of a tail.

`make bench-logs` runs `CASES` on three bookie processes of this machine, with three replicas. Another module may extend
the list: a case is a name and a coroutine that returns a row.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence

from benchmarks import many_logs
from msgspec import Struct

from bookies.admin.cluster.local_cluster import LocalCluster
from bookies.client.client import Client
from bookies.client.connect import connect
from bookies.client.log import Log
from bookies.errors import BookieBusy

SIZE = 100  # bytes of a record
SAMPLES = 2_000  # lone appends, and records of the tail
SLICE = 1_000  # records between two looks at the event loop


class Row(Struct, frozen=True):
    """Result of a case. Rates: records a second. Delays: ms; None: not measured."""

    rate: float
    p50_ms: float | None = None
    p99_ms: float | None = None


class Case(Struct, frozen=True):
    """A row of the table. `run`: of a client and the number of records."""

    name: str
    run: Callable[[Client, int], Awaitable[Row]]


def payloads(count: int) -> list[bytes]:
    """Return records like lines of an access log: about half of a line differs from the one before."""
    records = []
    for at in range(count):
        order, trace = at * 2654435761 % 2**32, at * 0x9E3779B97F4A7C15 % 2**64
        line = b'10.0.%03d.%03d GET /orders/%08x?page=%02d "%016x" 200 ' % (at % 251, at % 241, order, at % 50, trace)
        records.append(line.ljust(SIZE, b"-")[:SIZE])
    return records


async def new_log(client: Client, name: str, compression: str | None) -> Log:
    log = client.log(f"{name}-{time.time_ns()}")
    await log.create(record_format="sets", compression=compression)
    return log


def appends(compression: str | None) -> Callable[[Client, int], Awaitable[Row]]:
    """Return the case of `append_nowait` as fast as it goes. Its delay: from the call to the confirmation."""

    async def run(client: Client, count: int) -> Row:
        records, delays = payloads(count), list[float]()
        log = await new_log(client, "appends", compression)
        async with log.lead() as writer:
            loop = asyncio.get_running_loop()

            async def measure(began: float, append: Awaitable[object]) -> None:
                await append
                delays.append(1000 * (loop.time() - began))

            watched = []
            began = loop.time()
            for at in range(0, count, SLICE):
                for record in records[at : at + SLICE]:
                    try:
                        append = writer.append_nowait(record)
                    except BookieBusy:
                        await writer.wait_writable()
                        append = writer.append_nowait(record)
                watched.append(asyncio.ensure_future(measure(loop.time(), append)))
                await asyncio.sleep(0)
            await writer.flush()
            rate = count / (loop.time() - began)
            await asyncio.gather(*watched)
        return Row(rate, *quantiles(delays))

    return run


def reads(compression: str | None, *, by_record: bool = False) -> Callable[[Client, int], Awaitable[Row]]:
    """Return the case of reading all values, by sets or by single records."""

    async def run(client: Client, count: int) -> Row:
        log = await new_log(client, "reads", compression)
        async with log.lead() as writer:
            await writer.append_many(payloads(count))
        async with log.open() as reader:
            began, found = time.perf_counter(), 0
            if by_record:
                async for _ in reader.read().records():
                    found += 1
            else:
                async for _, records in reader.read().sets():
                    found += len(records.values())
            assert found == count, found
        return Row(count / (time.perf_counter() - began))

    return run


async def lone_appends(client: Client, count: int) -> Row:
    """Append one record after the other, each after the confirmation of the one before."""
    log, delays = await new_log(client, "lone", None), list[float]()
    async with log.lead() as writer:
        for record in payloads(SAMPLES):
            began = time.perf_counter()
            await writer.append(record)
            delays.append(1000 * (time.perf_counter() - began))
    return Row(1000 * len(delays) / sum(delays), *quantiles(delays))


async def tail(client: Client, count: int) -> Row:
    """Append lone records, and measure from the append to the tail that has the record."""
    log, began_at, delays = await new_log(client, "tail", None), dict[bytes, float](), list[float]()
    async with log.lead() as writer, log.open() as reader:

        async def follow() -> None:
            async for record in reader.tail(from_beginning=True).records():
                delays.append(1000 * (time.perf_counter() - began_at[record.value or b""]))
                if len(delays) == SAMPLES:
                    return

        following = asyncio.ensure_future(follow())
        for record in payloads(SAMPLES):
            began_at[record] = time.perf_counter()
            await writer.append(record)
            await asyncio.sleep(0.001)
        await following
    return Row(1000 * len(delays) / sum(delays), *quantiles(delays))


def quantiles(delays: Sequence[float]) -> tuple[float, float]:
    """Return p50 and p99."""
    ordered = sorted(delays)
    return ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]


CASES = [
    Case("append_nowait", appends(None)),
    Case("append_nowait, lz4", appends("lz4")),
    Case("append_nowait, zstd", appends("zstd")),
    Case("read, by sets", reads(None)),
    Case("read, by sets, lz4", reads("lz4")),
    Case("read, by sets, zstd", reads("zstd")),
    Case("read, by records", reads(None, by_record=True)),
    Case("lone append", lone_appends),
    Case("tail", tail),
]


async def measured(uri: str, cases: Sequence[Case], count: int, rounds: int) -> None:
    """Print a line for each case: the round whose rate is the median."""
    print(f"records of {SIZE} B, {count:,} a round, load before: {os.getloadavg()[0]:.1f}")
    print(f"{'case':<24}{'records/s':>12}{'p50, ms':>10}{'p99, ms':>10}")
    for case in cases:
        async with connect(uri) as client:
            found = sorted([await case.run(client, count) for _ in range(rounds)], key=lambda row: row.rate)
            row = found[len(found) // 2]
        delays = "".join(f"{'-' if delay is None else f'{delay:.2f}':>10}" for delay in (row.p50_ms, row.p99_ms))
        print(f"{case.name:<24}{row.rate:>12,.0f}{delays}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-logs", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", default="build/bench-logs", help="where the bookies write")
    parser.add_argument("--case", default="", help="only cases whose names contain this")
    parser.add_argument("--logs", help="instead of the cases: numbers of logs, such as 1000,3000,10000")
    arguments = parser.parse_args()
    if arguments.logs:
        many_logs.table(arguments.directory, map(int, arguments.logs.split(",")))
        return
    with LocalCluster(arguments.directory, 3) as cluster:
        cases = [case for case in CASES if arguments.case in case.name]
        asyncio.run(measured(cluster.metadata_uri, cases, arguments.records, arguments.rounds))


if __name__ == "__main__":
    main()
