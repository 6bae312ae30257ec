"""`Log` for callers without asyncio: the same methods, without await. See `client/log/log.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Self

from bookies.client.base.iteration import Entries
from bookies.client.blocking.blocking_iteration import BlockingBatches, BlockingEntries, Caller, next_or_none
from bookies.client.log import LogReader as AsyncLogReader
from bookies.client.log import LogWriter as AsyncLogWriter
from bookies.client.log import log as asynchronous
from bookies.client.log.transaction import COMMIT_TIMEOUT_S, OnOpenTail, Reaped
from bookies.client.log.transaction_writer import LEDGER_SIZE
from bookies.client.log.transaction_writer import LogTransaction as AsyncLogTransaction
from bookies.client.write.writer import Payload
from bookies.model import DigestType
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.cursors import Cursor
from bookies.protocol.log.log_model import RAW
from bookies.protocol.log.transaction import ORPHAN_GRACE_MS, REPLAY_GRACE_MS


class LogWriter:
    """The leader of a log. See `bookies.client.log.log_writer.LogWriter`."""

    def __init__(self, thread: Caller, writer: AsyncLogWriter) -> None:
        self._thread = thread
        self._writer = writer

    @property
    def name(self) -> str:
        return self._writer.name

    @property
    def epoch(self) -> int:
        """Return the epoch, which grows with every leader, and every time this one continues after a failure."""
        return self._writer.epoch

    @property
    def ledger_id(self) -> int:
        """Return the ledger that receives entries at present."""
        return self._writer.ledger_id

    @property
    def manifest(self) -> Manifest:
        """Return the list of ledgers as this writer knows it."""
        return self._writer.manifest

    def __repr__(self) -> str:
        return repr(self._writer)

    def append(self, payload: Payload, *, timeout: float | None = None) -> Position:
        """Append one entry and return its position, once it is durable on the ack quorum."""
        return self._thread.call(self._writer.append(payload, timeout=timeout))

    def append_many(self, payloads: Iterable[Payload], *, timeout: float | None = None) -> Position:
        """Append entries one after the other and return the last position, once all are durable."""
        return self._thread.call(self._writer.append_many(list(payloads), timeout=timeout))

    def roll(self, *, timeout: float | None = None) -> None:
        """Continue in a new ledger, and seal the present one."""
        self._thread.call(self._writer.roll(timeout=timeout))

    def truncate(self, before: Position, *, force: bool = False, timeout: float | None = None) -> None:
        """Truncate the log before a position."""
        self._thread.call(self._writer.truncate(before, force=force, timeout=timeout))

    def close(self, *, timeout: float | None = None) -> None:
        """Wait for pending appends, seal the last ledger, and give up the lead. Idempotent."""
        self._thread.call(self._writer.close(timeout=timeout))

    def abandon(self) -> None:
        """Release the log without sealing its last ledger: the next leader does."""
        self._thread.call(self._writer.abandon())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.call(self._writer.__aexit__(error_type, error, traceback))


class LogReader:
    """A log open for reading. See `bookies.client.log.log_reader.LogReader`."""

    def __init__(self, thread: Caller, reader: AsyncLogReader) -> None:
        self._thread = thread
        self._reader = reader

    @property
    def name(self) -> str:
        return self._reader.name

    @property
    def manifest(self) -> Manifest:
        """Return the list of ledgers as last read."""
        return self._reader.manifest

    def refresh(self, *, timeout: float | None = None) -> Manifest:
        """Read the list of ledgers again; cheap when it has not changed."""
        return self._thread.call(self._reader.refresh(timeout=timeout))

    def __repr__(self) -> str:
        return repr(self._reader)

    def read(self, start: Position | None = None, *, timeout: float | None = None) -> BlockingEntries:
        """Iterate over the entries from `start` on (None: from the beginning) up to the entries confirmed at that
        moment."""
        return self._entries(self._reader.read(start, timeout=timeout))

    def tail(self, start: Position | None = None, *, timeout: float | None = None) -> BlockingEntries:
        """Iterate over the entries from `start` on (None: new ones only) as they are confirmed, without an end."""
        return self._entries(self._reader.tail(start, timeout=timeout))

    def _entries(self, entries: Entries) -> BlockingEntries:
        return BlockingEntries(BlockingBatches(self._thread, entries.batches()))

    def close(self) -> None:
        """End its iterations. Idempotent."""
        self._thread.call(self._reader.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class LogTransaction:
    """Entries that get into a log all at once. See `bookies.client.log.transaction_writer.LogTransaction`."""

    def __init__(self, thread: Caller, transaction: AsyncLogTransaction) -> None:
        self._thread = thread
        self._transaction = transaction

    @property
    def was_committed_before(self) -> bool:
        """Report whether the transaction was committed before; known after the block."""
        return self._transaction.was_committed_before

    def append(self, payload: Payload) -> None:
        """Append one entry. `append_many` costs less."""
        self._thread.call(self._transaction.append(payload))

    def append_many(self, payloads: Iterable[Payload]) -> None:
        """Append entries; they are neither durable nor visible before the end of the block."""
        self._thread.call(self._transaction.append_many(list(payloads)))

    def __enter__(self) -> Self:
        self._thread.call(self._transaction.__aenter__())
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.call(self._transaction.__aexit__(error_type, error, traceback))


class Log:
    """One log by its name. See `bookies.client.log.log.Log`."""

    def __init__(self, thread: Caller, log: asynchronous.Log) -> None:
        self._thread = thread
        self._log = log
        self.name = log.name

    def __repr__(self) -> str:
        return repr(self._log)

    def create(
        self,
        *,
        ensemble: int = 3,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        digest: str | DigestType = "crc32c",
        record_format: str = RAW,
        exist_ok: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Create the log, without entries."""
        making = self._log.create(
            ensemble=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest=digest,
            record_format=record_format,
            exist_ok=exist_ok,
            timeout=timeout,
        )
        self._thread.call(making)

    def manifest(self, *, timeout: float | None = None) -> Manifest:
        """Return the current list of its ledgers."""
        return self._thread.call(self._log.manifest(timeout=timeout))

    def lead(
        self,
        *,
        roll_size: int = 256 << 20,
        roll_age: float = 7200.0,
        is_candidate: Callable[[], bool] | None = None,
        timeout: float | None = None,
    ) -> LogWriter:
        """Become the leader, who appends. Leaving its `with` block closes it; leaving it by an exception only releases
        it.

        `is_candidate` is called on the client's own thread: it must be quick, and must not call the client.
        """
        opening = self._log.lead(roll_size=roll_size, roll_age=roll_age, is_candidate=is_candidate, timeout=timeout)
        return LogWriter(self._thread, self._thread.call(opening.begin()))

    def open(self, *, timeout: float | None = None) -> LogReader:
        """Open the log for reading and tailing."""
        return LogReader(self._thread, self._thread.call(self._log.open(timeout=timeout).begin()))

    def transaction(
        self,
        app: str,
        version: int,
        *,
        ledger_size: int = LEDGER_SIZE,
        is_replacing: bool = False,
        on_open_tail: OnOpenTail = "fail",
        timeout: float | None = COMMIT_TIMEOUT_S,
    ) -> LogTransaction:
        """Append entries all at once, or not at all: `with log.transaction("loader", 7) as txn`."""
        transaction = self._log.transaction(
            app,
            version,
            ledger_size=ledger_size,
            is_replacing=is_replacing,
            on_open_tail=on_open_tail,
            timeout=timeout,
        )
        return LogTransaction(self._thread, transaction)

    def reap(
        self,
        *,
        app: str | None = None,
        dry_run: bool = False,
        orphan_grace: float = ORPHAN_GRACE_MS / 1000,
        replay_grace: float = REPLAY_GRACE_MS / 1000,
    ) -> Iterator[Reaped]:
        """Delete ledgers that transactions wrote for this log and will not commit."""
        rows = self._log.reap(app=app, dry_run=dry_run, orphan_grace=orphan_grace, replay_grace=replay_grace)
        while (row := self._thread.call(next_or_none(rows))) is not None:
            yield row

    def truncate(self, before: Position, *, force: bool = False, timeout: float | None = None) -> None:
        """Truncate the log before a position: earlier entries cannot be read any more."""
        self._thread.call(self._log.truncate(before, force=force, timeout=timeout))

    def cursors(self, *, timeout: float | None = None) -> dict[str, Cursor]:
        """Return the named cursors: the progress of consumers. Truncation does not pass them."""
        return self._thread.call(self._log.cursors(timeout=timeout))

    def move_cursor(self, name: str, position: Position, *, timeout: float | None = None) -> None:
        """Move a cursor before an entry. A cursor that does not exist is created."""
        self._thread.call(self._log.move_cursor(name, position, timeout=timeout))

    def delete_cursor(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a cursor, which then holds no truncation back."""
        self._thread.call(self._log.delete_cursor(name, timeout=timeout))

    def delete(self, *, timeout: float | None = None) -> None:
        """Delete the log and its ledgers for ever; one that does not exist counts as deleted."""
        self._thread.call(self._log.delete(timeout=timeout))
