"""Our DistributedLog under the load of dlogs.py: drive.py URI LOG SIZE COUNT WINDOW DELAY_MS. See `Dlogs.java`."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable

import bookies as bk
from bookies.distributedlog import Dlog, DlogWriter, Dlsn, Namespace, Record, open_namespace
from bookies.errors import BookieBusy

SLICE = 1_000  # records between two looks at the outcomes


def say(phase: str, since: float, *, is_measured: bool) -> None:
    if is_measured:
        print(phase, time.perf_counter() - since, flush=True)


async def write(writer: DlogWriter, payload: bytes, count: int, window: int) -> None:
    """Append one record a call, `window` in flight at most.

    Records are acknowledged in their order, so the last one of each slice is awaited for all of them.
    """
    pending: deque[Awaitable[Dlsn]] = deque()  # the last one of each slice
    append: Awaitable[Dlsn]
    for first in range(2, count + 1, SLICE):
        while len(pending) > window // SLICE - 1:
            await pending.popleft()
        for txid in range(first, min(first + SLICE, count + 1)):
            try:
                append = writer.append_nowait(payload, txid=txid)
            except BookieBusy:
                append = asyncio.ensure_future(writer.append(payload, txid=txid))
                await asyncio.wait([append])
        pending.append(append)
        await asyncio.sleep(0)
    for append in pending:
        await append


async def count_records(batches: AsyncIterator[list[Record]], count: int) -> None:
    total = 0
    async for batch in batches:
        for record in batch:
            if record.payload:
                total += 1
        if total >= count:
            return


async def measured(namespace: Namespace, name: str, size: int, count: int, window: int, delay_s: float) -> None:
    await run(namespace.log(f"{name}-warm"), size, count // 2, window, delay_s, is_measured=False)
    await run(namespace.log(name), size, count, window, delay_s, is_measured=True)


async def run(log: Dlog, size: int, count: int, window: int, delay_s: float, *, is_measured: bool) -> None:
    payload = bytes(range(1, 251)) * 5
    payload = payload[:size]
    async with log.lead(batch_delay=delay_s, roll_size=1 << 30) as writer:
        await writer.append(payload, txid=1)
        since = time.perf_counter()
        await write(writer, payload, count, window)
        say("write", since, is_measured=is_measured)
        await writer.append(payload, txid=count + 1)
        async with log.open() as reader:
            since = time.perf_counter()
            await count_records(reader.tail(Dlsn(1, 0, 0)).batches(), count)
            say("catch-up", since, is_measured=is_measured)
    async with log.open() as reader:
        since = time.perf_counter()
        await count_records(reader.read().batches(), count)
        say("read", since, is_measured=is_measured)


async def main() -> None:
    uri, name = sys.argv[1:3]
    size, count, window, delay_ms = map(int, sys.argv[3:7])
    async with open_namespace(uri) as namespace:
        await measured(namespace, name, size, count, window, delay_ms / 1000)


if __name__ == "__main__":
    bk.run(main())
