"""Writer process of the demo: appends the lines of a file to a chain of ledgers, continuing after a dead writer.

Ledgers of one run carry the labels `demo` (the run's name) and `part` (their place in the chain). A ledger that is not
sealed was left by a dead writer: it is recovered to its exact last entry, and writing continues at the line after it.
Prints JSON lines to stdout: {"ledger", "part"}, {"recovered", "entries"}, {"confirmed", ...}, {"done"}.

Its parameters are one JSON object: `metadata`, `input` (the file), `run` (the run's name), `roll` (entries per ledger),
and `gates`: lines which, with those after them, are appended only after a line has arrived on stdin. The demo thus
kills a process before the file has ended.
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

from bookies.admin.shared.lines import read_lines
from bookies.errors import ClientClosed
from bookies.lab.chaos.chaos_child import run_child

if TYPE_CHECKING:
    from bookies.client.client import Client
    from bookies.client.write import LedgerWriter

LINES_PER_BATCH = 200
BATCHES_IN_FLIGHT = 10
REPORT_SECONDS = 0.1


def report(**facts: object) -> None:
    """Print one JSON line to stdout."""
    print(json.dumps(facts), flush=True)


async def chain(client: Client, run: str) -> list[tuple[int, int, int, bool]]:
    """Return the run's ledgers in order: (part, ledger id, entries, is closed)."""
    ledgers = [
        (int(record.custom_metadata["part"]), record.ledger_id, record.last_entry_id + 1, record.is_closed)
        async for record in client.ledgers(label=("demo", run))
    ]
    return sorted(ledgers)


async def take_over(client: Client, run: str) -> tuple[int, int]:
    """Seal the ledger that a dead writer left open. Return (next part, number of lines in sealed ledgers)."""
    lines = 0
    ledgers = await chain(client, run)
    for _, ledger_id, entries, is_closed in ledgers:
        if not is_closed:
            recovered = await client.recover(ledger_id)
            entries = recovered.metadata.last_entry_id + 1
            await recovered.close()
            report(recovered=ledger_id, entries=entries)
        lines += entries
    return len(ledgers), lines


class Meter:
    """Counter of confirmed lines and of each batch's latency, for the progress bar."""

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
        report(
            confirmed=self.confirmed,
            rate=round((self.confirmed - self._last_confirmed) / elapsed),
            mb_per_s=round((self.size - self._last_size) / elapsed / 1e6, 1),
            p99_ms=round(ordered[int(0.99 * (len(ordered) - 1))], 2),
        )
        self._last, self._last_confirmed, self._last_size = now, self.confirmed, self.size
        self._latencies_ms = []


class Gates:
    """Places in the file after which the writer continues only with permission."""

    def __init__(self, places: list[int]) -> None:
        self._places = deque(sorted(places))
        self._permissions = read_lines(sys.stdin.fileno())
        self._given = 0

    def are_at(self, place: int) -> bool:
        """Report whether the next gate is at or before a place."""
        return bool(self._places) and self._places[0] <= place

    def lines_before(self, place: int) -> int:
        """Return the number of lines from a place to the next gate."""
        return self._places[0] - place if self._places else sys.maxsize

    async def wait(self) -> None:
        """Wait for permission and pass the next gate. Raises `ClientClosed` if the demo has ended."""
        self._places.popleft()
        while not self._given:
            given = await anext(self._permissions, None)
            if given is None:
                raise ClientClosed("the demo has ended")
            self._given += len(given)
        self._given -= 1


async def fill(ledger: LedgerWriter, lines: list[bytes], place: int, meter: Meter, gates: Gates) -> None:
    """Append the lines with several batches in flight, and seal the ledger. `place`: of the first line in the file."""
    in_flight: deque[tuple[asyncio.Task[int], int, int, float]] = deque()

    async def settle() -> None:
        task, count, size, began = in_flight.popleft()
        await task
        meter.batch(count, size, began)

    try:
        start = 0
        while start < len(lines):
            while gates.are_at(place + start):
                while in_flight:
                    await settle()
                meter.report()
                await gates.wait()
            batch = lines[start : start + min(LINES_PER_BATCH, gates.lines_before(place + start))]
            start += len(batch)
            task = asyncio.ensure_future(ledger.append_many(batch))
            in_flight.append((task, len(batch), sum(map(len, batch)), time.monotonic()))
            # The task must run to its first await before the next batch is created, so that the batches stay in order.
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
        part, place = await take_over(client, arguments.run)
        meter, gates = Meter(place), Gates(arguments.gates)
        with open(arguments.input, "rb") as file:  # noqa: ASYNC230 - one local file, read in large pieces
            lines = itertools.islice((line.removesuffix(b"\n") for line in file), place, None)
            while chunk := list(itertools.islice(lines, arguments.roll)):
                ledger = await client.create(
                    ensemble=3,
                    write_quorum=3,
                    ack_quorum=2,
                    digest="crc32c",
                    labels={"demo": arguments.run, "part": str(part)},
                )
                report(ledger=ledger.ledger_id, part=part)
                await fill(ledger, chunk, place, meter, gates)
                part += 1
                place += len(chunk)
        meter.report()
        report(done=True)
    return 0


if __name__ == "__main__":
    run_child(write)
