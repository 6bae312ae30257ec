"""Producers that number their entries and repeat appends through any leader, and appends after a known last entry.

Any process of the role may append any number of any producer, as gateways do for their clients: the application behind
a producer repeats a number until it was acknowledged. Several processes may do so at once. Promises: "numbers" and
"condition" in `checkers/log_appends.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from itertools import count
from typing import Any

from bookies.client.log import LogWriter
from bookies.client.log.log_writer import NO_ENTRY
from bookies.errors import BookKeeperError, MetadataError, SequenceGap, WrongExpectedLast
from bookies.lab.sim.checkers.log_history import Conditional, Numbered
from bookies.lab.sim.clients.roles import LogRoles
from bookies.lab.sim.world import SimClient
from bookies.protocol.log import Position

PRODUCERS = ("p1", "p2", "p3")


async def _together(appends: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait until all have ended. Raises the first error."""
    outcomes: list[BaseException | None] = await asyncio.gather(*appends, return_exceptions=True)
    for error in filter(None, outcomes):
        raise error


class LogProducers:
    """The acts of these clients."""

    def __init__(self, workload: LogRoles) -> None:
        self._workload = workload
        self._log_history = workload.log_history
        self._next = dict.fromkeys(PRODUCERS, 0)  # producer -> the lowest number that was not acknowledged

    # -- numbered entries ----------------------------------------------------------------------------------------
    async def produce(self, client: SimClient) -> None:
        """Lead the log, and append numbers of some producers at once, until one fails. Then lead again."""
        workload, random = self._workload, self._workload.random
        log = await workload.open_log(client)
        while not workload.is_stopping:
            try:
                async with log.lead(wait=workload.waits(), roll_size=random.choice((300, 1 << 20))) as writer:
                    chosen = random.sample(PRODUCERS, random.choice((1, 2, 3)))
                    await _together([self._number(client, writer, producer) for producer in chosen])
            except SequenceGap as error:
                if not workload.cluster.store.is_stale:
                    workload.history.violated("numbers", f"{client.name}: no number was left out, but: {error}")
            except BookKeeperError as error:
                workload.history.failed(client.name, "numbered appends", error)
            await workload.sleep(100)

    async def _number(self, client: SimClient, writer: LogWriter, producer: str) -> None:
        workload, random = self._workload, self._workload.random
        for _ in range(random.choice((2, 10, 30))):
            first, total = self._next[producer], random.choice((1, 1, 1, 4))
            if random.random() < 0.1:
                first = max(0, first - random.randint(1, 6))  # a repeat of acknowledged ones
            values = [f"{producer}#{number}".encode() for number in range(first, first + total)]
            self._log_history.attempt(producer, values, workload.now_s())
            given = workload.given(values)
            timeout = random.choice((None, None, None, 0.02))
            if total == 1:
                last = await writer.append(given[0], producer=producer, sequence=first, timeout=timeout)
            else:
                last = await writer.append_many(given, producer=producer, sequence=first, timeout=timeout)
            self._log_history.numbered.append(Numbered(client.name, values, last))
            self._next[producer] = max(self._next[producer], first + total)
            workload.history.count("numbered entries acknowledged", total)
            if random.random() < 0.3:
                await asyncio.sleep(random.choice((0.0, 0.01, 0.1)))
            if workload.is_stopping:
                return

    # -- conditional appends -------------------------------------------------------------------------------------
    async def decide(self, client: SimClient) -> None:
        """Lead the log, and append after the last entry as far as it is known, several times at once."""
        workload, random = self._workload, self._workload.random
        log, names = await workload.open_log(client), (f"{client.name}/{number}".encode() for number in count())
        while not workload.is_stopping:
            try:
                async with log.lead(wait=workload.waits(), roll_size=random.choice((300, 1 << 20))) as writer:
                    await self._decide_some(client, writer, names)
            except BookKeeperError as error:
                workload.history.failed(client.name, "conditional appends", error)
            await workload.sleep(100)

    async def _decide_some(self, client: SimClient, writer: LogWriter, names: Iterator[bytes]) -> None:
        workload, random = self._workload, self._workload.random
        for _ in range(random.choice((5, 30))):
            appends = [self._append_after(client, writer, next(names)) for _ in range(random.choice((1, 1, 3)))]
            if random.random() < 0.2:
                appends.insert(random.randrange(2), workload.append(client, writer, [next(names)]))
            await _together(appends)
            await asyncio.sleep(random.choice((0.0, 0.01, 0.1)))
            if workload.is_stopping:
                return

    async def _append_after(self, client: SimClient, writer: LogWriter, value: bytes) -> None:
        """Append behind the last entry that any process of the run knows, or behind none of them."""
        workload, history, store = self._workload, self._log_history, self._workload.cluster.store
        known = [ack.position for ack in history.acks[-8:] if ack.position is not None]
        known += [append.refused for append in history.conditionals[-8:] if append.refused is not None]
        expected = max(known, default=NO_ENTRY) if workload.random.random() < 0.9 else NO_ENTRY
        number = history.attempt(client.name, [value], workload.now_s())
        append = Conditional(workload.now_s(), client.name, value, expected, store.is_stale)
        history.conditionals.append(append)
        (given,) = workload.given([value])
        try:
            append.position = await writer.append(given, expected_last=expected)
        except WrongExpectedLast as error:
            append.refused = Position(*error.last)
            append.is_stale |= store.is_stale
            workload.history.count("conditional appends refused")
            return
        except BookKeeperError as error:
            if not isinstance(error, MetadataError):  # Otherwise nothing was appended, and the writer goes on.
                history.failed(writer, number)
            raise
        workload.acknowledged(client, writer, number, [value], append.position)
        workload.history.count("conditional appends")
