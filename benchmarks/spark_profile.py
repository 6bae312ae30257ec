"""Where the time of a Python worker goes that reads a log: its two threads, each under the profiler once.

The worker's own code, without Spark: the partitions are planned and read in this process, one after the other, and the
record batches are written as an Arrow stream to /dev/null, where Spark's worker writes them to a socket.
"""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import time
from typing import Any

import pyarrow as pa

from bookies.spark.base import runtime
from bookies.spark.source import BookKeeperDataSource

TOP = 14


def profile(options: dict[str, object], name: str) -> None:
    """Read everything three times: to see what it costs, and with the profiler in either thread. Prints tables."""
    loop = runtime.worker().loop
    read_all(options)  # imports, connections
    before = time.thread_time(), loop_time(loop)
    rows, seconds = read_all(options)
    reading, fetching = time.thread_time() - before[0], loop_time(loop) - before[1]
    print(
        f"\nread, {name}: {rows:,} rows, {rows / seconds:,.0f} rows/s in one worker; processor time a row: "
        f"task {1e9 * reading / rows:,.0f} ns, event loop {1e9 * fetching / rows:,.0f} ns"
    )
    profiler = cProfile.Profile(time.thread_time)
    profiler.enable()
    read_all(options)
    profiler.disable()
    show("task's thread", profiler, rows)
    profiler = cProfile.Profile(time.thread_time)
    asyncio.run_coroutine_threadsafe(switch(profiler, True), loop).result()
    read_all(options)
    asyncio.run_coroutine_threadsafe(switch(profiler, False), loop).result()
    show("event loop's thread", profiler, rows)


def read_all(options: dict[str, object]) -> tuple[int, float]:
    """Rows, and seconds without the planning."""
    source = BookKeeperDataSource({key.lower(): str(value) for key, value in options.items()})
    ddl = source.schema()
    reader: Any = source.reader(schema_of(ddl))
    rows = 0
    began = time.monotonic()
    for partition in reader.partitions():
        with pa.OSFile("/dev/null", "wb") as sink:
            writer = None
            for batch in reader.read(partition):
                writer = writer or pa.ipc.new_stream(sink, batch.schema)
                writer.write_batch(batch)
                rows += batch.num_rows
    return rows, time.monotonic() - began


def schema_of(ddl: Any) -> Any:
    """The StructType. Without a session Spark cannot parse DDL; ours knows the plain columns."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from bookies.spark.base import arrow

    if not isinstance(ddl, str):
        return ddl
    names = [part.split()[0] for part in ddl.split(", ")]
    return from_arrow_schema(pa.schema([(name, arrow.COLUMNS[name][1]) for name in names]))


def loop_time(loop: asyncio.AbstractEventLoop) -> float:
    async def now() -> float:
        return time.thread_time()

    return asyncio.run_coroutine_threadsafe(now(), loop).result()


async def switch(profiler: cProfile.Profile, on: bool) -> None:
    if on:
        profiler.enable()
    else:
        profiler.disable()


def show(title: str, profiler: cProfile.Profile, rows: int) -> None:
    """The functions with the most time of their own, with what is waiting left out."""
    found: Any = pstats.Stats(profiler)
    print(f"\n  {title}: own processor time, ns a row (the profiler makes calls dearer)")
    ordered = sorted(found.stats.items(), key=lambda item: -item[1][2])
    for (file, line, function), (_, calls, own, _, _) in ordered[:TOP]:
        place = f"{file.rpartition('bookies/')[2]}:{line} {function}" if file != "~" else function
        print(f"  {1e9 * own / rows:>9.1f}  {calls:>9,} calls  {place}")
