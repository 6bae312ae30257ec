"""The writer process of the demo: lines of a file into a chain of ledgers, going on where a dead writer stopped.

Ledgers of one run carry the labels `demo` (the run's name) and `part` (their place in the chain). A ledger that is
not sealed was left by a writer that died: it is recovered to its exact last entry, and the file is taken up at the
line after it. Speaks JSON lines on stdout: {"ledger", "part"}, {"recovered", "entries"}, {"confirmed", ...}, {"done"}.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from collections import deque
from typing import TYPE_CHECKING

from bookies.admin.common import run_async

if TYPE_CHECKING:
    from bookies.client.client import Client
    from bookies.client.writer import LedgerWriter

LINES_PER_BATCH = 200
BATCHES_IN_FLIGHT = 10
REPORT_SECONDS = 0.1


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


async def chain(client: Client, run: str) -> list[tuple[int, int, int, bool]]:
    """The run's ledgers in order: (part, ledger id, entries, is closed)."""
    found = [
        (int(each.custom_metadata["part"]), each.ledger_id, each.last_entry_id + 1, each.is_closed)
        async for each in client.ledgers(label=("demo", run))
    ]
    return sorted(found)


async def take_over(client: Client, run: str) -> tuple[int, int]:
    """Seal what a dead writer left. Returns (next part, lines that are safely in ledgers)."""
    lines = 0
    ledgers = await chain(client, run)
    for _, ledger_id, entries, is_closed in ledgers:
        if not is_closed:
            recovered = await client.recover(ledger_id)
            entries = recovered.metadata.last_entry_id + 1
            await recovered.close()
            say(recovered=ledger_id, entries=entries)
        lines += entries
    return len(ledgers), lines


class Meter:
    """Confirmed lines, and the latency of each batch, for the progress bar."""

    def __init__(self, confirmed: int) -> None:
        self.confirmed = self._last_confirmed = confirmed
        self.size = 0
        self._last_size = 0
        self._latencies_ms: list[float] = []
        self._last = time.monotonic()

    def batch(self, count: int, size: int, began: float) -> None:
        self.confirmed += count
        self.size += size
        self._latencies_ms.append(1000 * (time.monotonic() - began))
        if time.monotonic() - self._last >= REPORT_SECONDS:
            self.report()

    def report(self) -> None:
        now = time.monotonic()
        elapsed = max(now - self._last, 1e-6)
        ordered = sorted(self._latencies_ms) or [0.0]
        say(
            confirmed=self.confirmed,
            rate=round((self.confirmed - self._last_confirmed) / elapsed),
            mb_per_s=round((self.size - self._last_size) / elapsed / 1e6, 1),
            p99_ms=round(ordered[int(0.99 * (len(ordered) - 1))], 2),
        )
        self._last, self._last_confirmed, self._last_size = now, self.confirmed, self.size
        self._latencies_ms = []


async def fill(ledger: LedgerWriter, lines: list[bytes], meter: Meter) -> None:
    """Append the lines with several batches in flight, and seal the ledger."""
    in_flight: deque[tuple[asyncio.Task[int], int, int, float]] = deque()

    async def settle() -> None:
        task, count, size, began = in_flight.popleft()
        await task
        meter.batch(count, size, began)

    try:
        for start in range(0, len(lines), LINES_PER_BATCH):
            batch = lines[start : start + LINES_PER_BATCH]
            task = asyncio.ensure_future(ledger.append_many(batch))
            in_flight.append((task, len(batch), sum(map(len, batch)), time.monotonic()))
            # The task has to run up to its first wait before the next batch is made, so that they keep their order.
            await asyncio.sleep(0)
            if len(in_flight) >= BATCHES_IN_FLIGHT:
                await settle()
        while in_flight:
            await settle()
    finally:
        for task, *_ in in_flight:
            task.cancel()
        await asyncio.gather(*(task for task, *_ in in_flight), return_exceptions=True)
    await ledger.seal()


async def write(arguments: argparse.Namespace) -> int:
    from bookies.client.connect import connect

    async with connect(arguments.metadata) as client:
        part, done = await take_over(client, arguments.run)
        meter = Meter(done)
        with open(arguments.input, "rb") as file:  # noqa: ASYNC230 - one local file, read in large pieces
            lines = itertools.islice((line.removesuffix(b"\n") for line in file), done, None)
            while chunk := list(itertools.islice(lines, arguments.roll)):
                ledger = await client.create(
                    ensemble=3,
                    write_quorum=3,
                    ack_quorum=2,
                    digest="crc32c",
                    labels={"demo": arguments.run, "part": str(part)},
                )
                say(ledger=ledger.ledger_id, part=part)
                await fill(ledger, chunk, meter)
                part += 1
        meter.report()
        say(done=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("metadata", "input", "run"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--roll", type=int, default=50_000, help="entries of one ledger")
    arguments = parser.parse_args()
    return run_async(lambda: write(arguments))


if __name__ == "__main__":
    sys.exit(main())
