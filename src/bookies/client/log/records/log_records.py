"""Iterations over a log that give entries, or the records inside them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from bookies.client.base import EntryBatch
from bookies.client.base.iteration import Batches, BatchSource, Entries
from bookies.encoding.record_sets import RecordSet
from bookies.kernels import Steps
from bookies.protocol.log import Position
from bookies.protocol.log.log_model import Address
from bookies.protocol.log.records import Decoder, LogRecord


def records_of(batch: EntryBatch, decode: Decoder, start: Address | None = None) -> Iterator[LogRecord]:
    """Iterate over the records of a batch. A step that raises `LogRecordCorrupt` may be followed by others.

    `start`: where the iteration over the log began.
    """
    is_start = start is not None and start.position == (batch.ledger_id, batch.first_entry_id)
    slot = start.slot if start is not None and is_start else 0
    return decode.records(batch.ledger_id, batch.entry_ids, batch.payloads(), slot)


def sets_of(batch: EntryBatch, decode: Decoder) -> Iterator[tuple[Position, RecordSet]]:
    """Iterate over the record sets of a batch. A step that raises `LogRecordCorrupt` may be followed by others."""
    return map(decode.record_set, repeat(batch.ledger_id), batch.entry_ids, batch.payloads())


class LogEntries(Entries):
    """Asynchronous iterator over the entries of a log, for one task; `records()` returns `LogRecord`s instead.

    `decode`: makes records of entries. `start`: address of the first record; None: an entry's first one.
    """

    def __init__(
        self, source: BatchSource, timeout: float | None, decode: Decoder, start: Address | None = None
    ) -> None:
        super().__init__(source, timeout)
        self.decode = decode
        self.start = start

    def records(self) -> LogRecords:
        """Return the same iteration by records. Entries of batches that were already delivered are not repeated.

        A record has position, value, key, headers and time; in a raw log a position and the value only. An entry that
        is no record raises `LogRecordCorrupt`. It names the position, and the iteration may be continued after it.
        """
        return LogRecords(self.batches(), self.decode, self.start)

    def sets(self) -> LogSets:
        """Return the same iteration by record sets, each with the position of its entry: the fast way to read a log.

        `RecordSet.values()` returns the values of a set, `rows()` all its columns. A damaged set raises
        `LogRecordCorrupt`, and the iteration may be continued after it. Raises `NotSupported` for other record formats.
        """
        return LogSets(self.batches(), self.decode.of_sets())


class LogRecords(Steps[LogRecord]):
    """Asynchronous iterator over records, for one task. Made by `LogEntries.records`."""

    def __init__(self, batches: Batches, decode: Decoder, start: Address | None = None) -> None:
        super().__init__()
        self._batches = batches
        self._decode = decode
        self._start = start

    async def _more(self) -> LogRecord:
        while True:
            self._items = records_of(await anext(self._batches), self._decode, self._start)
            for record in self._items:  # A set may have none from the start on.
                return record


class LogSets(Steps[tuple[Position, RecordSet]]):
    """Asynchronous iterator over the record sets of a log, for one task. Made by `LogEntries.sets`."""

    def __init__(self, batches: Batches, decode: Decoder) -> None:
        super().__init__()
        self._batches = batches
        self._decode = decode

    async def _more(self) -> tuple[Position, RecordSet]:
        self._items = sets_of(await anext(self._batches), self._decode)
        return next(self._items)
