"""Client process of `bk chaos`: a writer, a recoverer, a reader or a tailer. Runs until its standard input ends.

Every operation uses the public client and is recorded in the history (`chaos_history`). An operation with a time-out
parameter gets a time-out. The others have the bounds below, which follow from the time-outs of single requests and the
number of consecutive requests. SIGUSR1 prints what every task waits for.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from bookies.config import ClientConfig
from bookies.lab.chaos.chaos_child import input_ends, run_child
from bookies.lab.chaos.chaos_history import History, payload_of
from bookies.model import LedgerMetadata

if TYPE_CHECKING:
    from bookies.client.base import EntryBatch
    from bookies.client.client import Client
    from bookies.client.read import LedgerReader
    from bookies.client.read.reader import Batches
    from bookies.client.write import LedgerWriter

Sizes = tuple[int, int, int]  # ensemble, write quorum, ack quorum
CONFIG = ClientConfig(add_timeout_ms=1_500, read_timeout_ms=1_500, connect_timeout_ms=1_500)
CONNECT_S, CREATE_S, APPEND_S, SEAL_S, RECOVER_S, OPEN_S, LIST_S = 20.0, 15.0, 10.0, 20.0, 30.0, 15.0, 20.0
BOUND_S = 40.0  # of an operation without a time-out
QUORUMS: tuple[Sizes, ...] = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (3, 2, 1), (1, 1, 1), (4, 3, 2), (5, 3, 3), (2, 2, 2))
LABEL = "chaos"
RECENT = 12  # ledgers that readers and recoverers mostly choose from


class ChaosClient:
    """Operations of the roles: each call of `write`, `recover`, `read` and `tail` uses one ledger."""

    def __init__(self, client: Client, history: History, choices: random.Random, sizes: Sequence[Sizes]) -> None:
        self.client = client
        self.history = history
        self.random = choices
        self.sizes = sizes
        self.stopping = asyncio.Event()

    async def pause(self, mean_s: float) -> None:
        """Sleep for a random time with this mean, but not after the request to stop."""
        try:
            async with asyncio.timeout(self.random.expovariate(1 / mean_s)):
                await self.stopping.wait()
        except TimeoutError:
            pass

    async def _ledgers(self) -> list[LedgerMetadata]:
        async with asyncio.timeout(LIST_S):
            return [record async for record in self.client.ledgers(label=(LABEL, "1"))]

    async def choose(self, *, is_open: bool = False) -> LedgerMetadata | None:
        """Return a random ledger, mostly one of the `RECENT` newest."""
        ledgers = await self.history.attempt("list", LIST_S, self._ledgers()) or []
        ledgers = [record for record in ledgers if not (is_open and record.is_closed)]
        if not ledgers:
            return None
        return self.random.choice(ledgers if self.random.random() < 0.2 else ledgers[-RECENT:])

    # -- writing -------------------------------------------------------------------------------------------------
    async def write(self) -> None:
        ensemble, write_quorum, ack_quorum = self.random.choice(self.sizes)
        creation = self.client.create(
            ensemble=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest=self.random.choice(("crc32c", "crc32", "hmac")),
            labels={LABEL: "1"},
            timeout=CREATE_S,
        )
        ledger = await self.history.attempt("create", CREATE_S, creation)
        if ledger is None:
            await self.pause(0.3)
            return
        goal, following = self.random.choice((0, 20, 200, 1000, 5000)), 0
        while following < goal and not self.stopping.is_set():
            count = self.random.choice((1, 1, 5, 50, 300))
            if not await self._append(ledger, range(following, following + count)):
                break
            following += count
            await self.pause(0.03)
        await self._release(ledger)

    async def _append(self, ledger: LedgerWriter, entry_ids: range) -> bool:
        """Append entries, concurrently one by one or as a batch. Report whether all were acknowledged."""
        self.history.write("started", ledger=ledger.ledger_id, last=entry_ids[-1])
        payloads = [payload_of(ledger.ledger_id, entry_id) for entry_id in entry_ids]
        timeout = self.random.choice((APPEND_S, None))
        bound_s = timeout or BOUND_S
        if len(payloads) == 1 or self.random.random() < 0.3:
            work = [
                self._append_one(ledger, entry_id, payloads[entry_id - entry_ids.start], timeout)
                for entry_id in entry_ids
            ]
            return all(await asyncio.gather(*work))
        last = await self.history.attempt("append many", bound_s, ledger.append_many(payloads, timeout=timeout))
        return self._acknowledged(ledger, entry_ids[0], entry_ids[-1], last)

    async def _append_one(self, ledger: LedgerWriter, entry_id: int, payload: bytes, timeout: float | None) -> bool:
        bound_s = timeout or BOUND_S
        acked_id = await self.history.attempt("append", bound_s, ledger.append(payload, timeout=timeout))
        return self._acknowledged(ledger, entry_id, entry_id, acked_id)

    def _acknowledged(self, ledger: LedgerWriter, first: int, last: int, acked_id: int | None) -> bool:
        if acked_id is None:
            return False
        self.history.write("acked", ledger=ledger.ledger_id, first=first, last=last)
        if acked_id != last:
            self.history.wrong(f"ledger {ledger.ledger_id}: entry {last} was acknowledged as {acked_id}")
        return True

    async def _release(self, ledger: LedgerWriter) -> None:
        if self.random.random() < 0.6:
            last = await self.history.attempt("seal", SEAL_S, ledger.seal(timeout=SEAL_S))
            if last is not None:
                self.history.write("end_of", ledger=ledger.ledger_id, last=last, length=ledger.length)
        await self.history.attempt("close", BOUND_S, ledger.close())

    # -- recovering ----------------------------------------------------------------------------------------------
    async def recover(self) -> None:
        await self.pause(1.0)
        chosen = await self.choose(is_open=self.random.random() < 0.8)
        if chosen is None:
            return
        opening = self.client.recover(chosen.ledger_id, timeout=RECOVER_S)
        ledger = await self.history.attempt("recover", RECOVER_S, opening)
        if ledger is None:
            return
        if not ledger.is_sealed:
            self.history.wrong(f"recovery of ledger {ledger.ledger_id} succeeded, but it is not sealed")
        self._write_end(ledger)
        await self.history.attempt("close", BOUND_S, ledger.close())

    def _write_end(self, ledger: LedgerReader) -> None:
        metadata = ledger.metadata
        self.history.write("end_of", ledger=ledger.ledger_id, last=metadata.last_entry_id, length=metadata.length)

    # -- reading -------------------------------------------------------------------------------------------------
    async def read(self) -> None:
        await self.pause(0.3)
        await self._open_and(self._read_all)

    async def tail(self) -> None:
        await self.pause(0.3)
        await self._open_and(self._tail)

    async def _open_and(self, act: Callable[[LedgerReader], Awaitable[None]]) -> None:
        chosen = await self.choose(is_open=act == self._tail)
        if chosen is None:
            return
        ledger = await self.history.attempt("open", OPEN_S, self.client.open(chosen.ledger_id, timeout=OPEN_S))
        if ledger is not None:
            await act(ledger)
            await self.history.attempt("close", BOUND_S, ledger.close())

    async def _read_all(self, ledger: LedgerReader) -> None:
        last = ledger.last_add_confirmed
        first = self.random.choice((0, max(0, last - 100)))
        if last < 0:
            return
        source = _CheckedBatches(self.history, ledger, ledger.read_batches(first, last), first)
        while source.following <= last and not self.stopping.is_set():
            has_more = await self.history.attempt("read", BOUND_S, source.advance())
            if has_more is None:
                return
            if not has_more:
                break
        if source.following <= last and not self.stopping.is_set():
            self.history.wrong(f"reading {first} to {last} of ledger {ledger.ledger_id} ended at {source.following}")

    async def _tail(self, ledger: LedgerReader) -> None:
        """Follow a ledger to its end, or for a random time."""
        source = _CheckedBatches(self.history, ledger, ledger.tail(0).batches(), 0)
        limit_s = self.random.choice((1.0, 5.0, 15.0))

        async def follow() -> bool:
            try:
                async with asyncio.timeout(limit_s):
                    while not self.stopping.is_set():
                        if not await source.advance():
                            return True
            except TimeoutError:
                pass
            return False

        if await self.history.attempt("tail", limit_s, follow()):
            self._write_end(ledger)
            if not ledger.is_sealed or source.following != ledger.metadata.last_entry_id + 1:
                self.history.wrong(f"the tail of {ledger!r} ended before entry {source.following}")


class _CheckedBatches:
    """Batches of one reader, checked: consecutive ids, content as written, last add confirmed never decreases."""

    def __init__(self, history: History, ledger: LedgerReader, batches: Batches, first: int) -> None:
        self._history = history
        self._ledger = ledger
        self._batches = batches
        self._confirmed = ledger.last_add_confirmed
        self.following = first

    async def advance(self) -> bool:
        """Read and check the next batch. Return False at the end."""
        batch = await anext(self._batches, None)
        if batch is None:
            return False
        self._check(batch)
        return True

    def _check(self, batch: EntryBatch) -> None:
        ledger_id, name = batch.ledger_id, f"ledger {batch.ledger_id}"
        if batch.first_entry_id != self.following:
            self._history.wrong(f"{name}: read entry {batch.first_entry_id} instead of {self.following}")
        for entry_id, payload in enumerate(batch.payloads(), batch.first_entry_id):
            if payload != payload_of(ledger_id, entry_id):
                self._history.wrong(f"{name}: entry {entry_id} is not what was written: {payload[:60]!r}")
        self.following = batch.last_entry_id + 1
        self._history.write("seen", ledger=ledger_id, last=batch.last_entry_id)
        if self._ledger.last_add_confirmed < self._confirmed:
            self._history.wrong(f"{name}: the last add confirmed went back from {self._confirmed}")
        self._confirmed = self._ledger.last_add_confirmed


def _print_tasks() -> None:
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stderr)


async def live(arguments: argparse.Namespace) -> int:
    """Run one client until standard input ends."""
    from bookies.client.connect import connect

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _print_tasks)
    history, choices = History(arguments.history), random.Random(arguments.seed)
    config = dataclasses.replace(CONFIG, wire=choices.choice(("v2", "v2", "v3")))
    opening = connect(arguments.metadata, config=config, timeout=CONNECT_S)
    client = None
    while client is None:
        client = await history.attempt("connect", CONNECT_S, opening)
    sizes = [
        quorums for quorums in QUORUMS if quorums[0] <= arguments.bookies and quorums[2] >= arguments.least_ack_quorum
    ]
    chaos = ChaosClient(client, history, choices, sizes)
    acts = {"writer": chaos.write, "recoverer": chaos.recover, "reader": chaos.read, "tailer": chaos.tail}
    ending = asyncio.create_task(input_ends())
    ending.add_done_callback(lambda _: chaos.stopping.set())
    while not chaos.stopping.is_set():
        await acts[arguments.role]()
    await ending
    await history.attempt("disconnect", BOUND_S, client.close())
    return 0


if __name__ == "__main__":
    run_child(live)
