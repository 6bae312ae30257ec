"""Our DistributedLog client, with the commands of `Dlog.java`. Run: python peer.py URI CLIENT_ID"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from bookies.distributedlog import Dlog, DlogWriter, Dlsn, Namespace, Record, bind, open_namespace, parse_dlsn
from bookies.distributedlog.batches import Quorums
from bookies.protocol.log.log_model import Written
from bookies.protocol.log.transaction import Origin, Transaction

SESSION_S = 2.0  # as in `Dlog.java`


def say(line: str) -> None:
    print(line, flush=True)


def show(record: Record | None) -> None:
    if record is not None:
        say(f"record {record.txid} {record.position} {record.sequence_id} {record.payload.decode()}")


class Peer:
    """One process. `options`: of `lead`."""

    def __init__(self, uri: str, owner: str) -> None:
        self._uri = uri
        self._owner = owner
        self._options: dict[str, Any] = {}
        self._namespace: Namespace
        self._log: Dlog
        self._writer: DlogWriter

    async def run(self, words: list[str]) -> None:
        await getattr(self, f"do_{words[0]}")(*words[1:])

    async def do_bind(self, servers: str, ledgers: str) -> None:
        await bind(self._uri, f"zk://{servers}{ledgers}")

    async def do_namespace(self, *settings: str) -> None:
        names: dict[str, tuple[str, Callable[[str], object]]] = {
            "maxLogSegmentBytes": ("roll_size", int),
            "compressionType": ("compression", str),
            "lockTimeoutSeconds": ("lock_timeout", float),
            "enableImmediateFlush": ("eager", lambda text: text == "true"),
        }
        for setting in settings:
            name, _, value = setting.partition("=")
            field, kind = names[name]
            self._options[field] = kind(value)
        self._namespace = await open_namespace(self._uri, owner=self._owner, session_timeout=SESSION_S)

    async def do_log(self, name: str) -> None:
        self._log = self._namespace.log(name)

    async def do_create(self, name: str) -> None:
        await self._namespace.log(name).create()

    async def do_logs(self) -> None:
        for name in await self._namespace.logs():
            say(f"name {name}")

    async def do_rename(self, old: str, new: str) -> None:
        await self._namespace.rename(old, new)

    async def do_delete(self, name: str) -> None:
        await self._namespace.log(name).delete()

    async def do_lead(self) -> None:
        self._writer = await self._log.lead(ensemble=1, **self._options)

    async def do_write(self, first: str, count: str) -> None:
        async def append(txid: int) -> None:
            position = await self._writer.append(b"v%d" % txid, txid=txid)
            say(f"acked {txid} {position}")

        appends: list[Awaitable[None]] = []
        for txid in range(int(first), int(first) + int(count)):
            appends.append(asyncio.create_task(append(txid)))
            if len(appends) == 50:
                await asyncio.gather(*appends)
                appends.clear()
        await asyncio.gather(*appends)

    async def do_set(self, txid: str, count: str, codec: str) -> None:
        payloads = [b"s%d" % number for number in range(int(count))]
        position = await self._writer.append_set(payloads, txid=int(txid), compression=codec)
        say(f"acked {txid} {position}")

    async def do_end(self) -> None:
        await self._writer.seal()

    async def do_close(self) -> None:
        await self._writer.close()

    async def do_truncate(self, before: str) -> None:
        await self._log.truncate(parse_dlsn(before))
        say("done true")

    async def do_batch(self, version: str, *counts: str) -> None:
        """Commit a batch with a part of so many records for each count."""
        batches = self._namespace.batches(self._log.name)
        txid, written = await batches.next_txid(), list[Written]()
        for partition, count in enumerate(map(int, counts)):
            part = batches.part(Origin("app", int(version), "", partition, "0"), txid, Quorums(1, 1, 1), 1 << 20)
            await part.append_packed(b"%03d" * count % tuple(range(count)), range(0, 3 * count + 1, 3))
            written += await part.finish()
        txn = Transaction("app", int(version), "", {self._log.name: tuple(written)}, {})
        say(f"done {await batches.commit(txn, is_fencing=False, timeout=5)}")

    async def do_purge(self, txid: str) -> None:
        await self._log.apply_retention(below_txid=int(txid))

    async def do_recover(self) -> None:
        await self._log.recover()

    async def do_read(self, start: str) -> None:
        async with self._log.open() as reader:
            async for record in reader.read(parse_dlsn(start)):
                show(record)

    async def do_tail(self, start: str) -> None:
        async with self._log.open() as reader:
            async for record in reader.tail(parse_dlsn(start)):
                show(record)

    async def do_first(self) -> None:
        show(await self._log.first())

    async def do_last(self) -> None:
        show(await self._log.last())

    async def do_find(self, txid: str) -> None:
        say(f"at {await self._log.find(int(txid))}")

    async def do_count(self, since: str) -> None:
        say(f"count {await self._log.count(parse_dlsn(since))}")

    async def do_segments(self) -> None:
        for segment in await self._log.segments():
            say(
                f"segment {segment.lssn} {segment.ledger_id} {segment.record_count} {segment.exposed_start_sequence_id}"
            )

    async def do_commit(self, name: str, position: str) -> None:
        await self._log.move_cursor(name, Dlsn(*parse_dlsn(position)))

    async def do_cursors(self) -> None:
        for name, position in (await self._log.cursors()).items():
            say(f"cursor {name} {position}")


async def main() -> None:
    peer = Peer(sys.argv[1], sys.argv[2])
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            await peer.run(line.split())
            say("ok")
        except Exception as error:  # noqa: BLE001
            say(f"error {type(error).__name__} {error}".replace("\n", " "))


if __name__ == "__main__":
    asyncio.run(main())
