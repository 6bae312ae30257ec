"""Iterations over a log that give entries, or the records inside them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from bookies.client.base import EntryBatch
from bookies.client.base.iteration import Batches, BatchSource, Entries
from bookies.kernels import Steps
from bookies.protocol.log.records import Decode, LogRecord


def records_of(batch: EntryBatch, decode: Decode) -> Iterator[LogRecord]:
    """Iterate over the records of a batch. A step that raises `LogRecordCorrupt` may be followed by others."""
    return map(decode, repeat(batch.ledger_id), batch.entry_ids, batch.payloads())


class LogEntries(Entries):
    """Asynchronous iterator over the entries of a log, for one task; `records()` returns `LogRecord`s instead.

    `decode`: makes a record of an entry.
    """

    def __init__(self, source: BatchSource, timeout: float | None, decode: Decode) -> None:
        super().__init__(source, timeout)
        self.decode = decode

    def records(self) -> LogRecords:
        """Return the same iteration by records. Entries of batches that were already delivered are not repeated.

        A record has position, value, key, headers and time; in a raw log a position and the value only. An entry that
        is no record raises `LogRecordCorrupt`. It names the position, and the iteration may be continued after it.
        """
        return LogRecords(self.batches(), self.decode)


class LogRecords(Steps[LogRecord]):
    """Asynchronous iterator over records, for one task. Made by `LogEntries.records`."""

    def __init__(self, batches: Batches, decode: Decode) -> None:
        super().__init__()
        self._batches = batches
        self._decode = decode

    async def _more(self) -> LogRecord:
        self._items = records_of(await anext(self._batches), self._decode)
        return next(self._items)
