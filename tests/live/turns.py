"""Processes that take turns, until they are killed.

Arguments: `leader URI LOG NAME`, `consumer URI LOG NAME`, `shared URI LOG NAME`, `lock URI NAME`.

They print what they do on stdout, a line each.
"""

from __future__ import annotations

import asyncio
import sys

import bookies as bk

TTL_S = 4.0  # a busy machine may keep a process waiting for a second or two


async def lead(store: bk.Client, log: str, name: str) -> None:
    async with store.log(log).lead(wait=True) as writer:
        print("epoch", writer.epoch, flush=True)
        number = 0
        while True:
            await writer.append(f"{name} {number}".encode())
            print("appended", number, flush=True)
            number += 1
            await asyncio.sleep(0.02)


async def consume(store: bk.Client, log: str, name: str) -> None:
    async with store.log(log).consumer(name, commit_interval=0.2, ttl=TTL_S) as rows:
        print("token", rows.lease.token, flush=True)
        async for entry in rows:
            print("handled", entry.payload.decode(), flush=True)
            await asyncio.sleep(0.02)


async def share(store: bk.Client, log: str, name: str) -> None:
    rows = store.log(log).consumer(name, shared=True, claim_size=20, commit_interval=0.2, ttl=TTL_S)
    async with rows as entries:
        print("token", entries.lease.token, flush=True)
        async for entry in entries:
            print("handled", entry.payload.decode(), flush=True)
            await asyncio.sleep(0.005)


async def lock(store: bk.Client, name: str) -> None:
    async with store.lock(name, ttl=TTL_S) as lease:
        print("token", lease.token, flush=True)
        await asyncio.Event().wait()


async def main(act: str, uri: str, *words: str) -> None:
    async with bk.connect(uri) as store:
        try:
            await {"leader": lead, "consumer": consume, "shared": share, "lock": lock}[act](store, *words)
        except bk.LeaseLost as error:
            print("lost", error, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
