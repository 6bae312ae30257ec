"""`Log` for callers without asyncio: the same methods, without await. See `client/log/log.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Self

from bookies.client.base import Entry, EntryBatch
from bookies.client.blocking.blocking_iteration import BlockingBatches, BlockingEntries, Caller
from bookies.client.blocking.blocking_lease import Lease
from bookies.client.blocking.delegation import Blocking, BlockingHandle, delegates, followed, iterates, opens, waits
from bookies.client.log import LogReader as AsyncLogReader
from bookies.client.log import LogWriter as AsyncLogWriter
from bookies.client.log import log as asynchronous
from bookies.client.log.consumers import LogConsumer as AsyncLogConsumer
from bookies.client.log.consumers.consumer import consumed
from bookies.client.log.records import SetAppend
from bookies.client.log.records.log_records import LogEntries, records_of, sets_of
from bookies.client.log.sequenced import SequencedWriter as AsyncSequencedWriter
from bookies.client.log.transaction_writer import LogTransaction as AsyncLogTransaction
from bookies.client.write.writer import Payload
from bookies.encoding.envelope import Record
from bookies.encoding.record_sets import RecordSet
from bookies.errors import BookKeeperError
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.log_model import Address
from bookies.protocol.log.records import Decoder, Headers, LogRecord


class LogWriter(BlockingHandle[AsyncLogWriter]):
    """The leader of a log. See `bookies.client.log.log_writer.LogWriter`."""

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def epoch(self) -> int:
        """Return the epoch, which grows with every leader, and every time this one continues after a failure."""
        return self._inner.epoch

    @property
    def ledger_id(self) -> int:
        """Return the ledger that receives entries at present."""
        return self._inner.ledger_id

    @property
    def manifest(self) -> Manifest:
        """Return the list of ledgers as this writer knows it."""
        return self._inner.manifest

    append = waits(AsyncLogWriter.append)
    roll = waits(AsyncLogWriter.roll)
    truncate = waits(AsyncLogWriter.truncate)
    close = waits(AsyncLogWriter.close)
    abandon = waits(AsyncLogWriter.abandon)

    def append_many(
        self,
        payloads: Iterable[Payload | Record],
        *,
        producer: str | None = None,
        sequence: int | None = None,
        timeout: float | None = None,
    ) -> Position:
        """Append entries one after the other and return the last position, once all are durable."""
        appending = self._inner.append_many(list(payloads), producer=producer, sequence=sequence, timeout=timeout)
        return self._thread.call(appending)

    append_entries = waits(AsyncLogWriter.append_entries)
    wait_writable = waits(AsyncLogWriter.wait_writable)
    flush = waits(AsyncLogWriter.flush)

    def append_nowait(
        self,
        payload: Payload | Record,
        *,
        key: Payload | None = None,
        headers: Headers | None = None,
        timestamp: float | None = None,
    ) -> Future[Position]:
        """Add a record to the open record set. The future becomes the position of its entry, or raises as `append`.

        It may be awaited from any thread. Raises `BookieBusy` if too many sets are in flight: call `wait_writable`,
        then repeat. `append_many` is faster: it hands over all its records in one call to the client's thread.
        """

        async def start() -> SetAppend:
            return self._inner.append_nowait(payload, key=key, headers=headers, timestamp=timestamp)

        return self._thread.call(followed(start))


class BlockingLogEntries(BlockingEntries):
    """An iteration over the entries of a log. After a `TimeoutError` it may be repeated."""

    def __init__(self, thread: Caller, entries: LogEntries) -> None:
        super().__init__(BlockingBatches(thread, entries.batches()))
        self._decode = entries.decode
        self._start = entries.start

    def records(self) -> BlockingRecords:
        """Return the same iteration by records. Entries of batches that were already delivered are not repeated.

        A record has position, value, key, headers and time; in a raw log a position and the value only. An entry that
        is no record raises `LogRecordCorrupt`. It names the position, and the iteration may be continued after it.
        """
        return BlockingRecords(self._batches, self._decode, self._start)

    def sets(self) -> Iterator[tuple[Position, RecordSet]]:
        """Return the same iteration by record sets, each with the position of its entry: the fast way to read a log.

        A damaged set raises `LogRecordCorrupt`, and the iteration may be continued after it. Raises `NotSupported` for
        other record formats.
        """
        return _Sets(self._batches, self._decode.of_sets())


class BlockingRecords(Iterator[LogRecord]):
    """An iteration over the records of a log. After an error it may be repeated."""

    def __init__(self, batches: Iterator[EntryBatch], decode: Decoder, start: Address | None) -> None:
        self._batches = batches
        self._start = start
        self._decode = decode
        self._items: Iterator[LogRecord] = iter(())

    def __next__(self) -> LogRecord:
        while True:
            for record in self._items:
                return record
            self._items = records_of(next(self._batches), self._decode, self._start)


class _Sets(Iterator[tuple[Position, RecordSet]]):
    """An iteration over the record sets of a log. After an error it may be repeated."""

    def __init__(self, batches: Iterator[EntryBatch], decode: Decoder) -> None:
        self._batches = batches
        self._decode = decode
        self._items: Iterator[tuple[Position, RecordSet]] = iter(())

    def __next__(self) -> tuple[Position, RecordSet]:
        while True:
            for item in self._items:
                return item
            self._items = sets_of(next(self._batches), self._decode)


class LogReader(BlockingHandle[AsyncLogReader]):
    """A log open for reading. See `bookies.client.log.base.log_reader.LogReader`."""

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def manifest(self) -> Manifest:
        """Return the list of ledgers as last read."""
        return self._inner.manifest

    refresh = waits(AsyncLogReader.refresh)
    read = delegates(AsyncLogReader.read, BlockingLogEntries, BlockingLogEntries)
    tail = delegates(AsyncLogReader.tail, BlockingLogEntries, BlockingLogEntries)
    close = waits(AsyncLogReader.close)


class LogConsumer(BlockingHandle[AsyncLogConsumer], Iterator[Entry]):
    """Entries of a log for one named consumer. See `bookies.client.log.consumers.LogConsumer`.

    The calling thread is not interrupted when the lease is lost: the next step raises `LeaseLost`.
    """

    def __init__(self, thread: Caller, inner: AsyncLogConsumer) -> None:
        super().__init__(thread, inner)
        self._batches = BlockingBatches(thread, inner.batches())
        self._entries: Iterator[Entry] = iter(())
        self._records = _Consumed(inner, self._batches)

    @property
    def lease(self) -> Lease:
        """The lease of the consumer's name. Its token grows with every consumer."""
        return Lease(self._thread, self._inner.lease)

    def __next__(self) -> Entry:
        for entry in self._entries:
            return entry
        self._entries = self._inner.progress.entries(next(self._batches))
        return next(self._entries)

    def records(self) -> Iterator[LogRecord]:
        """Return the same iteration by records, with value, key, headers and time: see `LogEntries.records`."""
        return self._records

    def batches(self) -> Iterator[EntryBatch]:
        """Return the same iteration by batches. A batch counts as handled when the next one is asked for."""
        return self._batches

    commit = waits(AsyncLogConsumer.commit)
    lag = waits(AsyncLogConsumer.lag)
    close = waits(AsyncLogConsumer.close)


class _Consumed(Iterator[LogRecord]):
    """An iteration over the records of a consumer. After an error it may be repeated."""

    def __init__(self, consumer: AsyncLogConsumer, batches: Iterator[EntryBatch]) -> None:
        self._consumer = consumer
        self._batches = batches
        self._items: Iterator[LogRecord] = iter(())

    def __next__(self) -> LogRecord:
        while True:
            for record in self._items:
                return record
            self._items = consumed(self._consumer.progress, next(self._batches), self._consumer.decode)


class SequencedWriter(Blocking[AsyncSequencedWriter]):
    """Writer of numbered entries. See `bookies.client.log.sequenced.SequencedWriter`."""

    @property
    def unknown(self) -> BookKeeperError | None:
        """Return what made an outcome unknown. This writer appends nothing any more then: take the lead again."""
        return self._inner.unknown

    append = waits(AsyncSequencedWriter.append)
    save = waits(AsyncSequencedWriter.save)


class LogTransaction(BlockingHandle[AsyncLogTransaction]):
    """Entries that get into a log all at once. See `bookies.client.log.transaction_writer.LogTransaction`."""

    @property
    def was_committed_before(self) -> bool:
        """Report whether the transaction was committed before; known after the block."""
        return self._inner.was_committed_before

    append = waits(AsyncLogTransaction.append)
    append_entries = waits(AsyncLogTransaction.append_entries)

    def append_many(self, payloads: Iterable[Payload | Record]) -> None:
        """Append entries; they are neither durable nor visible before the end of the block."""
        self._thread.call(self._inner.append_many(list(payloads)))

    def __enter__(self) -> Self:
        self._thread.call(self._inner.__aenter__())
        return self


class Log(Blocking[asynchronous.Log]):
    """One log by its name. See `bookies.client.log.log.Log`."""

    def __init__(self, thread: Caller, log: asynchronous.Log) -> None:
        super().__init__(thread, log)
        self.name = log.name

    create = waits(asynchronous.Log.create)
    manifest = waits(asynchronous.Log.manifest)
    lead = opens(asynchronous.Log.lead, LogWriter, "Become the leader, who appends.")
    leader = waits(asynchronous.Log.leader)
    open = opens(asynchronous.Log.open, LogReader)

    at = waits(asynchronous.Log.at)
    begun = waits(asynchronous.Log.begun)

    def sequenced(self, leader: LogWriter, *, timeout: float | None = None) -> SequencedWriter:
        """Return the writer of numbered entries, which appends through a leader of this log."""
        return SequencedWriter(self._thread, self._thread.call(self._inner.sequenced(leader._inner, timeout=timeout)))

    transaction = delegates(asynchronous.Log.transaction, LogTransaction, LogTransaction)
    reap = iterates(asynchronous.Log.reap)
    truncate = waits(asynchronous.Log.truncate)
    cursors = waits(asynchronous.Log.cursors)
    move_cursor = waits(asynchronous.Log.move_cursor)
    delete_cursor = waits(asynchronous.Log.delete_cursor)
    set_retention = waits(asynchronous.Log.set_retention)
    retention = waits(asynchronous.Log.retention)
    retention_decision = waits(asynchronous.Log.retention_decision)
    apply_retention = waits(asynchronous.Log.apply_retention)
    history = waits(asynchronous.Log.history)
    schemas = waits(asynchronous.Log.schemas)
    add_schema = waits(asynchronous.Log.add_schema)
    compact = waits(asynchronous.Log.compact)
    roll_up = waits(asynchronous.Log.roll_up)
    consumer = opens(asynchronous.Log.consumer, LogConsumer)
    consumers = waits(asynchronous.Log.consumers)
    lag = waits(asynchronous.Log.lag)
    delete = waits(asynchronous.Log.delete)
