"""Pages of entries, and tails by Server-Sent Events, of logs and of ledgers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from typing import Protocol

from bookies.client.base import EntryBatch
from bookies.client.base.iteration import Batches
from bookies.errors import BookKeeperError, LedgerClosed, LogRecordCorrupt
from bookies.protocol.log.record_json import row_of
from bookies.protocol.log.records import Decoder, LogRecord
from bookies.web.data.forms import Page
from bookies.web.messages import Problem, Request, Response

LIMIT, LIMIT_MAX = 100, 1_000  # entries of a page
SIZE, SIZE_MAX = 1 << 20, 4 << 20  # bytes of a page's entries
READS_MAX = 16  # pages that are read at a time; other requests wait
HEARTBEAT_S = 15.0
EVENTS_SIZE = 32 << 10  # bytes of events that are sent together
TAIL = "text/event-stream; charset=utf-8"

PositionText = Callable[[int, int, int], str]  # (ledger, entry, slot)


class Reader(Protocol):
    """A ledger or a log that is open for reading."""

    async def close(self) -> None:
        """End its iterations with `LedgerClosed`."""


class Reading:
    """Reads of one gateway, which bound the memory that they need together. `entries`: read so far."""

    def __init__(self, tails_max: int) -> None:
        self.entries = 0
        self.tails: dict[Tail, None] = {}
        self.turns = asyncio.Semaphore(READS_MAX)
        self._tails_max = tails_max

    async def page(
        self, request: Request, batches: Batches, text: PositionText, decode: Decoder, slot: int = 0
    ) -> Page:
        """Read a page of the size that a request asks for. It ends before an entry that is no record.

        `slot`: of the first record in the first entry.

        Raises `Problem`, the errors of reading, and `LogRecordCorrupt` if that entry is the first.
        """
        limit = bounded(request, "limit", LIMIT, LIMIT_MAX)
        size_left = bounded(request, "max_bytes", SIZE, SIZE_MAX)
        rows: list[tuple[str, LogRecord]] = []
        following = ""
        async for batch in batches:
            records = decode.records(batch.ledger_id, batch.entry_ids, batch.payloads(), slot)
            slot = 0
            while True:
                try:
                    record = next(records, None)
                except LogRecordCorrupt:
                    if not rows:
                        raise
                    return self._part(rows, following)
                if record is None:
                    break
                ledger_id, entry_id = record.position
                address = text(ledger_id, entry_id, record.slot)
                size_left -= len(record.value or b"")
                if len(rows) == limit or (rows and size_left < 0):
                    return self._part(rows, address)
                rows.append((address, record))
                following = (
                    text(ledger_id, entry_id, record.slot + 1) if decode.is_sets else text(ledger_id, entry_id + 1, 0)
                )
            following = text(batch.ledger_id, batch.last_entry_id + 1, 0)
        self.entries += len(rows)
        return Page(rows, following, is_end=True)

    def _part(self, rows: Sequence[tuple[str, LogRecord]], following: str) -> Page:
        self.entries += len(rows)
        return Page(rows, following, is_end=False)

    def check_tails(self) -> None:
        """Raise `Problem` if there are too many tails."""
        if len(self.tails) >= self._tails_max:
            text = f"{len(self.tails):,} tails run, as many as gateway_tails_max allows"
            raise Problem(429, text, headers={"Retry-After": "10"})

    async def stop(self) -> None:
        """End the tails. Their clients continue elsewhere, from the last id that they have received."""
        for tail in list(self.tails):
            await tail.reader.close()


class Tail:
    """Body of an answer that follows a log or a ledger. A client that does not read stops it, without more memory."""

    def __init__(
        self, reading: Reading, reader: Reader, batches: Batches, text: PositionText, decode: Decoder, slot: int = 0
    ) -> None:
        self.reader = reader
        self._reading = reading
        self._batches = batches
        self._text = text
        self._decode = decode
        self._slot = slot  # of the first record in the first entry
        self._pieces = self._events()
        reading.tails[self] = None

    def response(self) -> Response:
        return Response(200, self, TAIL)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces

    async def __anext__(self) -> bytes:
        return await anext(self._pieces)

    async def aclose(self) -> None:
        """Release the reader."""
        self._reading.tails.pop(self, None)
        await self._pieces.aclose()
        await self.reader.close()

    async def _events(self) -> AsyncGenerator[bytes, None]:
        yield b"retry: 1000\n\n"
        while True:
            try:
                batch = await anext(self._batches)
            except StopAsyncIteration:
                yield b"event: end\ndata: the ledger is sealed\n\n"
                return
            except TimeoutError:
                yield b": nothing new\n\n"
                continue
            except LedgerClosed:
                return  # The gateway stops.
            except BookKeeperError as error:
                yield f"event: error\ndata: {json.dumps(str(error))}\n\n".encode()
                return
            self._reading.entries += len(batch)
            for piece in self._encoded(batch):
                yield piece

    def _encoded(self, batch: EntryBatch) -> Iterator[bytes]:
        parts: list[str] = []
        size = 0
        records = self._decode.records(batch.ledger_id, batch.entry_ids, batch.payloads(), self._slot)
        self._slot = 0
        while True:
            try:
                record = next(records, None)
                if record is None:
                    break
                position = self._text(*record.position, record.slot)
                content = f"data: {json.dumps(row_of(position, record))}"
            except LogRecordCorrupt as error:  # One event of its own, with an id: clients continue after it.
                position = self._text(batch.ledger_id, error.entry_id or 0, error.slot or 0)
                content = f"event: error\ndata: {json.dumps(str(error))}"
            parts.append(f"id: {position}\n{content}\n\n")
            size += len(parts[-1])
            if size >= EVENTS_SIZE:
                yield "".join(parts).encode()
                parts, size = [], 0
        if parts:
            yield "".join(parts).encode()


def bounded(request: Request, name: str, default: int, high: int) -> int:
    """Return a number of the query from 1 to `high`. Raises `Problem`."""
    value = request.number(name, default)
    if not 1 <= value <= high:
        raise Problem(400, f"{name}={value}: must be 1 to {high:,}")
    return value
