"""Our client behind lines of JSON: what Driver.java is for Apache's. Run as a process, so that it can be killed.

A command has "id", which comes back in its answer; "do", the operation; "uri" and "wire" ("v2" or "v3"), the client
that does it; and its arguments. An answer has "ok" and results, or "error", the name of an exception, and "message".
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import bookies as bk
from bookies.metadata.uri import connect as metadata_store
from bookies.runtime import aio

PATTERN = bytes((7 * index + (index >> 8)) & 255 for index in range(1 << 17))
OFFSETS = 65521


def payload(ledger_id: int, entry_id: int, size: int) -> bytes:
    """What an entry holds follows from its place alone."""
    offset = (131 * ledger_id + 31 * entry_id) % OFFSETS
    return PATTERN[offset : offset + size]


class Writer:
    """An open ledger, and how far its writer is."""

    def __init__(self, ledger: bk.LedgerWriter) -> None:
        self.ledger = ledger
        self.next = 0
        self.confirmed = -1
        self.is_stopped = False
        self.failure = ""

    def settled(self, appended: asyncio.Future[int]) -> None:
        if error := appended.exception():
            self.failure = self.failure or type(error).__name__
        else:
            self.confirmed = max(self.confirmed, appended.result())


class Driver:
    def __init__(self) -> None:
        self._clients: dict[str, bk.Client] = {}
        self._making = asyncio.Lock()
        self._writers: list[Writer] = []

    async def answer(self, command: dict[str, Any]) -> None:
        try:
            result = {"ok": True} | (await getattr(self, f"do_{command['do']}")(command) or {})
        except Exception as error:  # noqa: BLE001  (goes into the answer)
            result = {"ok": False, "error": type(error).__name__, "message": str(error)}
        print(json.dumps(result | {"id": command["id"]}), flush=True)

    async def _client(self, command: dict[str, Any]) -> bk.Client:
        key = command["uri"] + command["wire"]
        async with self._making:
            if key not in self._clients:
                settings = command.get("settings", {})
                config = bk.ClientConfig(wire=command["wire"], explicit_lac_interval_ms=100, **settings)
                self._clients[key] = await bk.connect(command["uri"], config=config)
            return self._clients[key]

    async def _open(self, command: dict[str, Any]) -> bk.LedgerReader:
        client = await self._client(command)
        return await client.open(command["ledger"], password=command.get("password", "").encode())

    def _is_good(self, command: dict[str, Any], entry: bk.Entry, entry_id: int) -> bool:
        expected = payload(command["ledger"], entry_id, command["sizes"][entry_id % len(command["sizes"])])
        return entry.id == entry_id and entry.payload == expected

    def _progress(self, writer: Writer) -> dict[str, Any]:
        ledger = writer.ledger
        return {
            "confirmed": writer.confirmed,
            "lac": ledger.last_add_confirmed,
            "length": ledger.length,
            "failure": writer.failure,
        }

    async def do_init(self, command: dict[str, Any]) -> None:
        driver = metadata_store(command["uri"], aio.runtime())
        await driver.open()
        await driver.initialize_cluster()
        await driver.close()

    async def do_create(self, command: dict[str, Any]) -> dict[str, Any]:
        client = await self._client(command)
        ledger = await client.create(
            ensemble=command["ensemble"],
            write_quorum=command["write_quorum"],
            ack_quorum=command["ack_quorum"],
            digest=command.get("digest", "crc32c"),
            password=command.get("password", "").encode(),
            labels=command.get("labels"),
            ledger_id=command.get("ledger"),
            advanced="ledger" in command or command.get("advanced", False),
            deferred_sync=command.get("deferred_sync", False),
        )
        self._writers.append(Writer(ledger))
        return {"handle": len(self._writers) - 1, "ledger": ledger.ledger_id}

    async def do_append(self, command: dict[str, Any]) -> dict[str, Any]:
        """Append "count" entries, "window" of them at a time, until one fails or "stop" comes."""
        writer = self._writers[command["handle"]]
        sizes, window, pause = command["sizes"], command.get("window", 200), command.get("pause_ms", 0) / 1000
        writer.is_stopped = False
        pending: list[asyncio.Future[int]] = []
        for _ in range(command["count"]):
            if writer.is_stopped or writer.failure:
                break
            data = payload(writer.ledger.ledger_id, writer.next, sizes[writer.next % len(sizes)])
            if isinstance(writer.ledger, bk.AdvancedLedgerWriter):
                sent = asyncio.ensure_future(writer.ledger.write(writer.next, data))
            else:
                sent = asyncio.ensure_future(writer.ledger.append(data))
            sent.add_done_callback(writer.settled)
            pending.append(sent)
            writer.next += 1
            if len(pending) == window:
                await asyncio.wait(pending)
                pending.clear()
            if pause:
                await asyncio.sleep(pause)
        if pending:
            await asyncio.wait(pending)
        await asyncio.sleep(0)  # The last one's callback.
        return self._progress(writer)

    async def do_stop(self, command: dict[str, Any]) -> None:
        self._writers[command["handle"]].is_stopped = True

    async def do_progress(self, command: dict[str, Any]) -> dict[str, Any]:
        return self._progress(self._writers[command["handle"]])

    async def do_write(self, command: dict[str, Any]) -> dict[str, Any]:
        """Entries with "ids" of the caller's, all under way at once, in that order."""
        writer, sizes = self._writers[command["handle"]], command["sizes"]
        ledger = writer.ledger
        await asyncio.gather(
            *(ledger.write(each, payload(ledger.ledger_id, each, sizes[each % len(sizes)])) for each in command["ids"])
        )
        return self._progress(writer)

    async def do_force(self, command: dict[str, Any]) -> dict[str, Any]:
        writer = self._writers[command["handle"]]
        await writer.ledger.force()
        return self._progress(writer)

    async def do_close(self, command: dict[str, Any]) -> dict[str, Any]:
        writer = self._writers[command["handle"]]
        await writer.ledger.seal()
        return self._progress(writer)

    async def do_read(self, command: dict[str, Any]) -> dict[str, Any]:
        reader = await self._open(command)
        result = self._description(reader)
        first, last = command.get("first", 0), command.get("last", reader.last_add_confirmed)
        read = reader.read_unconfirmed if command.get("unconfirmed") else reader.read
        result |= await self._counted(command, read(first, last) if last >= first else None, first)
        await reader.close()
        return result

    def _description(self, reader: bk.LedgerReader) -> dict[str, Any]:
        return {"lac": reader.last_add_confirmed, "length": reader.length, "sealed": reader.is_sealed}

    async def _counted(
        self, command: dict[str, Any], entries: AsyncIterator[bk.Entry] | None, first: int
    ) -> dict[str, Any]:
        count = good = length = 0
        if entries is not None:
            async for entry in entries:
                good += self._is_good(command, entry, first + count)
                count += 1
                length = entry.length
        return {"count": count, "good": good, "entry_length": length}

    async def do_batch_read(self, command: dict[str, Any]) -> dict[str, Any]:
        reader = await self._open(command)
        next_id = first = command.get("first", 0)
        good = requests = 0
        while next_id <= reader.last_add_confirmed:
            batch = await reader.read_batch(
                next_id, count_max=command["count_max"], size_max=command["size_max"], timeout=30
            )
            requests += 1
            for entry in batch.entries():
                good += self._is_good(command, entry, next_id)
                next_id += 1
        await reader.close()
        return {"count": next_id - first, "good": good, "requests": requests}

    async def do_lac(self, command: dict[str, Any]) -> dict[str, Any]:
        reader = await self._open(command)
        result = self._description(reader)
        # What bookies were told beside the entries is in our one answer.
        result["read"] = result["explicit"] = await reader.read_last_add_confirmed()
        await reader.close()
        return result

    async def do_long_poll(self, command: dict[str, Any]) -> dict[str, Any]:
        reader = await self._open(command)
        entry_id = command["entry"]
        found = await reader.read_last_add_confirmed_and_entry(
            entry_id, wait=command["wait_ms"] / 1000, parallel=command.get("parallel", False)
        )
        await reader.close()
        is_good = found.entry is not None and self._is_good(command, found.entry, entry_id)
        return {"lac": found.last_add_confirmed, "found": found.entry is not None, "good": is_good}

    async def do_tail(self, command: dict[str, Any]) -> dict[str, Any]:
        reader = await self._open(command)
        count = good = 0
        async for entry in reader.tail(0, timeout=60):
            good += self._is_good(command, entry, count)
            count += 1
            if count > command["until"]:
                break
        await reader.close()
        return {"count": count, "good": good}

    async def do_recover(self, command: dict[str, Any]) -> dict[str, Any]:
        client = await self._client(command)
        reader = await client.recover(command["ledger"], password=command.get("password", "").encode())
        result = self._description(reader)
        await reader.close()
        return result

    async def do_delete(self, command: dict[str, Any]) -> None:
        await (await self._client(command)).delete(command["ledger"])

    async def do_list(self, command: dict[str, Any]) -> dict[str, Any]:
        return {"ledgers": [each.ledger_id async for each in (await self._client(command)).ledgers()]}

    async def do_bookies(self, command: dict[str, Any]) -> dict[str, Any]:
        return {each.id: each.mode for each in await (await self._client(command)).bookies()}

    async def do_check(self, command: dict[str, Any]) -> dict[str, Any]:
        """Whether every replica of every entry is there and good."""
        tools = (await self._client(command)).administration()
        found = await tools.check_ledger(command["ledger"], percentage=100)
        return {"is_ok": found.is_ok, "verdict": str(found.fragments)}

    async def do_metadata(self, command: dict[str, Any]) -> dict[str, Any]:
        record = await (await self._client(command)).metadata(command["ledger"])
        is_closed = record.state is bk.LedgerState.CLOSED
        names = {"HMAC": "MAC", "NONE": "DUMMY"}
        digest = record.digest_type.name if record.digest_type is not None else ""
        return {
            "state": record.state.name,
            "last": record.last_entry_id if is_closed else -1,
            "length": record.length if is_closed else 0,
            "ensemble": record.ensemble_size,
            "write_quorum": record.write_quorum,
            "ack_quorum": record.ack_quorum,
            "digest": names.get(digest, digest),
            "labels": {name: value.decode() for name, value in record.custom_metadata.items()},
            "fragments": {str(first): list(ensemble) for first, ensemble in record.ensembles},
        }


async def main() -> None:
    """Until standard input ends; open ledgers stay open, as after a crash of their writer."""
    driver = Driver()
    lines = asyncio.StreamReader(limit=1 << 22)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    answers: set[asyncio.Task[None]] = set()
    while line := await lines.readline():
        task = asyncio.create_task(driver.answer(json.loads(line)))
        answers.add(task)
        task.add_done_callback(answers.discard)


if __name__ == "__main__":
    aio.run(main())
