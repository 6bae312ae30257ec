"""Ledgers that a transaction appends to a log later; and a whole transaction by one process.

`PartWriter` is the share of one task: it creates ledgers with the settings of the log's record, labelled with their
log and transaction, and closes them. They are invisible until the commit; the reaper deletes those of dead tasks.

Source: spark 4.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self, TypedDict, Unpack

from msgspec.structs import replace

from bookies.client.log.transaction import OnOpenTail, TransactionContext, abort, commit, read_head
from bookies.client.write.ledger_series import LedgerSeries
from bookies.encoding.envelope import Record
from bookies.encoding.record_sets import codec_of, pack_sets
from bookies.errors import BookKeeperError, InvalidArgument, LedgerClosed, LogNotFound
from bookies.protocol.log import Manifest
from bookies.protocol.log.log_model import ENVELOPE, SETS, Written
from bookies.protocol.log.records import Headers, entry_of, record_of, value_of
from bookies.protocol.log.transaction import Origin, Transaction, labels_of

if TYPE_CHECKING:
    from bookies.client.write import LedgerWriter
    from bookies.client.write.writer import Payload
    from bookies.model import DigestType

LEDGER_SIZE = 1 << 30  # payload bytes after which a task continues in another ledger


class PartWriter:
    """Appends to ledgers of its own for one log. Made by `open_part`. `manifest`: the log's list when it began."""

    def __init__(
        self,
        parts: TransactionContext,
        log: str,
        manifest: Manifest,
        origin: Origin,
        ledger_size: int,
    ) -> None:
        self.log = log
        self.token = manifest.token
        self.record_format = manifest.record_format
        self._parts = parts
        self._manifest = manifest
        self._origin = origin
        self._ledgers = LedgerSeries(self._create, parts.client.delete, ledger_size)

    async def append_many(self, payloads: Iterable[Payload]) -> None:
        """Append entries of the log's record format. They are durable when `finish` returns.

        Raises like `LedgerWriter.append_many`.
        """
        batch = list(payloads)
        if batch:
            async with self._ledgers.turn:
                ledger = await self._ledgers.room(sum(map(len, batch)))
                await ledger.push_many(batch)

    def sets_of(self, records: Sequence[Record]) -> list[Payload]:
        """Return records as record sets with the log's compression."""
        time_us = next((record.timestamp_us for record in records if record.timestamp_us is not None), 0)
        return [entry for _, entry in pack_sets(records, codec_of(self._manifest.compression), time_us)]

    async def append_packed(self, data: bytes, offsets: Sequence[int]) -> None:
        """Append the contiguous entries in `data`. `offsets`: their starts, and the last end."""
        if len(offsets) > 1:
            async with self._ledgers.turn:
                ledger = await self._ledgers.room(offsets[-1] - offsets[0])
                await ledger.push_many([data[start:end] for start, end in pairwise(offsets)])

    async def _create(self) -> LedgerWriter:
        like = self._manifest
        now_ms = self._parts.runtime.clock.wall_ms()
        return await self._parts.client.create(
            ensemble=like.ensemble,
            write_quorum=like.write_quorum,
            ack_quorum=like.ack_quorum,
            digest=like.digest,
            password=self._parts.password,
            labels=labels_of(self._origin, self.log, self.token, now_ms),
        )

    async def finish(self) -> tuple[Written, ...]:
        """Wait until everything is durable, and close the last ledger. Raises the first failure of an append."""
        return await self._ledgers.finish()

    async def discard(self) -> None:
        """Delete the written ledgers. Best effort: a remaining one is labelled, for the reaper."""
        await self._ledgers.discard()


class CommitOptions(NamedTuple):
    """The options of `Log.transaction` that its commit uses. `timeout`: seconds."""

    is_replacing: bool
    on_open_tail: OnOpenTail
    timeout: float | None


class LogTransaction:
    """Entries that get into a log all at once, or not at all: `async with log.transaction("loader", 7) as txn`.

    Leaving the block commits; leaving it by an exception aborts. `was_committed_before`: known after the block; if
    True, the entries of this block are deleted.
    """

    def __init__(
        self,
        parts: TransactionContext,
        log: str,
        app: str,
        version: int,
        ledger_size: int,
        options: CommitOptions,
    ) -> None:
        if not app or version < 0:
            raise InvalidArgument(f"transaction {app!r}, version {version}: a name, and a number from 0 on")
        attempt = f"{parts.runtime.random.getrandbits(64):016x}"
        self.was_committed_before = False
        self._parts = parts
        self._log = log
        self._origin = Origin(app, version, "", 0, attempt)
        self._ledger_size = ledger_size
        self._options = options
        self._part: PartWriter | None = None

    async def append_many(self, payloads: Iterable[Payload | Record]) -> None:
        """Append entries in the log's record format; they are neither durable nor visible before the end of the block.

        Raises like `LedgerWriter.append_many`, and `InvalidArgument` for records that a raw log cannot hold.
        """
        part = self._open_part()
        entries: list[Payload]
        if part.record_format == SETS:
            now_us = self._now_us()
            entries = part.sets_of([record_of(payload, now_us) for payload in payloads])
        elif part.record_format == ENVELOPE:
            now_us = self._now_us()
            entries = [entry_of(payload, now_us) for payload in payloads]
        else:
            entries = [payload if type(payload) is bytes else value_of(self._log, payload) for payload in payloads]
        await part.append_many(entries)

    async def append(
        self,
        payload: Payload | Record,
        *,
        key: Payload | None = None,
        headers: Headers | None = None,
        timestamp: float | None = None,
    ) -> None:
        """Append one entry: see `LogWriter.append`. `append_many` costs less."""
        part = self._open_part()
        entry: Payload
        if part.record_format == SETS:
            (entry,) = part.sets_of([record_of(payload, self._now_us(), key, headers, timestamp)])
        elif part.record_format == ENVELOPE:
            entry = entry_of(payload, self._now_us(), key, headers, timestamp)
        else:
            entry = value_of(self._log, payload, key, headers, timestamp)
        await part.append_many([entry])

    async def append_entries(self, entries: Sequence[Payload]) -> None:
        """Append entries that have the log's record format already, byte for byte.

        See `LogWriter.append_entries`; numbers of producers in them are accepted here, and do not count.
        """
        await self._open_part().append_many(entries)

    def _now_us(self) -> int:
        return 1000 * self._parts.runtime.clock.wall_ms()

    def _open_part(self) -> PartWriter:
        if self._part is None:
            raise LedgerClosed("the transaction is not open: append only inside its `async with` block")
        return self._part

    async def __aenter__(self) -> Self:
        self._part = await open_part(self._parts, self._log, self._origin, ledger_size=self._ledger_size)
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        part, self._part = self._part, None
        assert part is not None
        if error_type is not None:
            await part.discard()
            return
        try:
            written = await part.finish()
        except (BookKeeperError, asyncio.CancelledError):
            await part.discard()
            raise
        app, version, query = self._origin[:3]
        is_replacing, on_open_tail, timeout = self._options
        txn = Transaction(app, version, query, {self._log: written}, {self._log: part.token}, is_replacing=is_replacing)
        try:
            is_new = await commit(self._parts, txn, on_open_tail=on_open_tail, timeout=timeout)
        except BookKeeperError:
            await abort(self._parts, txn, timeout=timeout)
            raise
        self.was_committed_before = not is_new


class LedgerShape(TypedDict, total=False):
    """Values of a log's record that the ledgers of one part do not have."""

    ensemble: int
    write_quorum: int
    ack_quorum: int
    digest: DigestType


async def open_part(
    parts: TransactionContext,
    log: str,
    origin: Origin,
    *,
    ledger_size: int = LEDGER_SIZE,
    **shape: Unpack[LedgerShape],
) -> PartWriter:
    """Begin a part of a transaction on a log. Raises `LogNotFound`."""
    manifest = await read_head(parts.driver, log)
    if manifest is None or manifest.is_deleting:
        raise LogNotFound(
            f"there is no log {log}: create it first" if manifest is None else f"log {log} is being deleted"
        )
    return PartWriter(parts, log, replace(manifest, **shape), origin, ledger_size)
