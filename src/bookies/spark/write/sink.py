"""The sink `bookkeeper`: rows of a DataFrame become entries of logs, each batch exactly once.

A task writes its own ledgers, closes them, and reports them in its message; no reader sees them yet. The driver's
`commit` appends the ledgers of all tasks to their logs with one conditional write, under the name (application,
version): a stream's query and batch, or `txnAppId` and `txnVersion` of a batch job. A batch that is repeated after a
crash is recognised as committed. `protocol/log/transaction.py` explains why that is safe.

Spark calls the methods of this module in processes of its choice. State passes from one call to the next only in the
writer object of a batch job and in the messages.

Source: spark 4; the order of calls: spark 1.3.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from bookies.encoding.envelope import Record
from bookies.errors import BookKeeperError, ConfigError, InvalidArgument, LogNotFound
from bookies.protocol.log.log_model import ENVELOPE, RAW, SETS, Written, check_log_name
from bookies.protocol.log.records import RESERVED
from bookies.protocol.log.sequences import HEADER
from bookies.spark.base import runtime
from bookies.spark.write import dlog_batches, unchanged
from bookies.spark.write.reaping import reap_once
from bookies.spark.write.write_settings import ENVELOPE_COLUMNS, Settings, settings_of

if TYPE_CHECKING:
    import pyarrow as pa

    from bookies.client.client import Client
    from bookies.client.log import Log
    from bookies.client.log.transaction import TransactionContext
    from bookies.client.log.transaction_writer import PartWriter
    from bookies.distributedlog import Namespace
    from bookies.distributedlog.batches import PartWriter as DlogPart
    from bookies.protocol.log.transaction import Origin, Transaction

logger = logging.getLogger("bookies.spark.write.sink")
logger.setLevel(logging.INFO)  # for Spark's collector: see bookies.spark.base.counters
BATCH = ""  # the query of a batch job's transaction
PENDING_MAX = 2  # record batches in flight to the event loop


# -- messages --------------------------------------------------------------------------------------------------------


class Share(Struct):
    """Ledgers that a task wrote for one log."""

    log: str
    token: str
    written: tuple[Written, ...]


@dataclass
class TaskMessage(WriterCommitMessage):
    """Report of an accepted task to the driver."""

    app: str
    version: int
    query: str
    partition: int
    attempt: str
    shares: tuple[Share, ...]


def transaction_of(
    identity: tuple[str, int, str],
    messages: Sequence[TaskMessage],
    log: str | None,
    *,
    is_kept: bool,
    is_replacing: bool,
    is_consecutive: bool = False,
) -> Transaction:
    """Return the transaction of all shares, in the order of partitions. `log`: included even without rows."""
    from bookies.protocol.log.transaction import Transaction

    ledgers: dict[str, tuple[Written, ...]] = {log: ()} if log is not None else {}
    tokens: dict[str, str] = {}
    for message in sorted(messages, key=lambda message: message.partition):
        named = (message.app, message.version, message.query)
        if named != identity:
            raise InvalidArgument(f"tasks of one batch have different names for it: {named} and {identity}")
        for share in message.shares:
            ledgers[share.log] = (*ledgers.get(share.log, ()), *share.written)
            tokens[share.log] = share.token
    return Transaction(
        *identity, ledgers, tokens, is_kept=is_kept, is_replacing=is_replacing, is_consecutive=is_consecutive
    )


# -- the driver's part -----------------------------------------------------------------------------------------------


def _with_parts(settings: Settings, act: Any) -> Any:
    """Run `act(parts)` with its own client."""

    async def main() -> Any:
        async with _client(settings) as client:
            return await act(client.transactions(password=settings.password))

    return runtime.worker().run(main())


def _client(settings: Settings) -> Client:
    from bookies.config import ClientConfig

    return runtime.worker().new_client(settings.uri, ClientConfig(memory_limit=settings.in_flight_size))


async def record_format_of(parts: TransactionContext, settings: Settings, log: str) -> str:
    """Return the format of a log, created first if option createLog is set. Raises `LogNotFound`, `InvalidArgument`."""
    from bookies.client.log.transaction import read_head

    manifest = await read_head(parts.driver, log)
    if manifest is None and settings.creates_log:
        new_format = settings.record_format or (ENVELOPE if settings.needs_envelope else RAW)
        compression = settings.compression
        await _log(parts, log).create(
            record_format=new_format, compression=compression, exist_ok=True, **settings.shape
        )
        manifest = await read_head(parts.driver, log)
    if manifest is None:
        raise LogNotFound(f"there is no log {log}: create it with `bk log create {log}`, or set option createLog=true")
    if settings.record_format not in (None, manifest.record_format):
        raise InvalidArgument(f"log {log} has record format {manifest.record_format}, not {settings.record_format}")
    if manifest.record_format == RAW and settings.needs_envelope:
        names = ", ".join(name for name in ENVELOPE_COLUMNS if name in settings.columns)
        raise InvalidArgument(
            f"log {log} keeps raw values, without {names}: drop the column, or create a log with record format envelope"
        )
    return manifest.record_format


def _log(parts: TransactionContext, name: str) -> Log:
    from bookies.client.log import Log

    return Log(parts.client, parts.runtime, parts.driver, name, parts.password)


def _commit(settings: Settings, txn: Transaction) -> None:
    from bookies.client.log.transaction import commit

    async def act(parts: TransactionContext) -> bool:
        is_new = await commit(
            parts,
            txn,
            on_open_tail=settings.on_open_tail,
            timeout=settings.timeout,
            conflicts_max=settings.conflicts_max,
        )
        if txn.is_kept:
            await reap_once(txn.app, _leftovers(parts, settings, txn))
        return is_new

    if not txn.ledgers:
        return  # There are no rows, and no option names a log.
    is_new = _with_parts(settings, act) if settings.namespace is None else dlog_batches.commit(settings, txn)
    logger.info(
        json.dumps(
            {
                "event": "commit" if is_new else "was committed before",
                "transaction": txn.name,
                "logs": list(txn.ledgers),
                "ledgers": len(txn.ledger_ids),
            }
        )
    )


async def _leftovers(
    parts: TransactionContext, settings: Settings, txn: Transaction
) -> AsyncIterator[tuple[str, int, str]]:
    """Delete leftovers of earlier runs of this application."""
    from bookies.client.log.transaction import reap

    for log in txn.ledgers:
        async for leftover in reap(parts, log, app=txn.app, orphan_grace_ms=round(settings.orphan_grace * 1000)):
            yield log, leftover.ledger_id, leftover.outcome


def _abort(settings: Settings, txn: Transaction) -> None:
    """Delete what the transaction wrote. Never raises: the reaper deletes the rest."""
    from bookies.client.log.transaction import abort

    try:
        if settings.namespace is None:
            _with_parts(settings, lambda parts: abort(parts, txn, timeout=settings.timeout))
        else:
            dlog_batches.abort(settings, txn)
    except (BookKeeperError, OSError) as error:
        logger.warning(json.dumps({"event": "abort failed", "transaction": txn.name, "error": str(error)}))


class BatchWriter(DataSourceArrowWriter):
    """Writer of `df.write.format("bookkeeper")`. The tasks and the driver have pickled copies of the same object."""

    def __init__(self, options: Mapping[str, str], schema: Any, overwrite: bool) -> None:
        self._settings = settings_of(options, schema, is_stream=False)
        self._is_replacing = overwrite
        self._is_kept = self._settings.app is not None
        app = self._settings.app or f"batch-{uuid.uuid4().hex}"
        self._identity = (app, self._settings.version or 0, BATCH)
        self._settings = _planned(self._settings, is_replacing=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        return _write(self._settings, self._identity, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        unchanged.check(self._settings.files)
        _commit(self._settings, self._transaction(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._settings, self._transaction(messages))

    def _transaction(self, messages: list[WriterCommitMessage | None]) -> Transaction:
        return transaction_of(
            self._identity,
            [message for message in messages if isinstance(message, TaskMessage)],
            self._settings.log,
            is_kept=self._is_kept,
            is_replacing=self._is_replacing,
        )


# Spark 4.0 has no base for it, and `source` does not offer it there.
class StreamWriter(getattr(datasource, "DataSourceStreamArrowWriter", object)):  # type: ignore[misc]
    """Writer of `df.writeStream.format("bookkeeper")`. Every batch gets new ones, one to plan and one to commit."""

    def __init__(self, options: Mapping[str, str], schema: Any, overwrite: bool) -> None:
        self._settings = settings_of(options, schema, is_stream=True)
        self._is_replacing = overwrite
        self._settings = _planned(self._settings, is_replacing=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        batch = None if context is None else context.getLocalProperty("streaming.sql.batchId")
        if not query or batch is None:
            raise ConfigError("Spark does not report the query and the batch, so exactly-once writing is impossible")
        return _write(self._settings, (self._settings.app or query, int(batch), query), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._end(_commit, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._end(_abort, messages, batchId)

    def _end(self, act: Any, messages: list[WriterCommitMessage | None], batch: int) -> None:
        """Call `act` with the batch's transaction. Only tasks' messages have its identity; without one do nothing."""
        known = [message for message in messages if isinstance(message, TaskMessage)]
        if not known:
            return
        identity = (known[0].app, batch, known[0].query)
        log = self._settings.log
        # Spark commits every number, also of a batch without rows. A log of column `log` gets those with rows for it.
        # Output that replaces all that was there misses nothing.
        is_compared = log is not None and not self._is_replacing and self._settings.on_batch_gap == "fail"
        txn = transaction_of(
            identity, known, log, is_kept=True, is_replacing=self._is_replacing, is_consecutive=is_compared
        )
        act(self._settings, txn)


def _planned(settings: Settings, *, is_replacing: bool) -> Settings:
    """Check before any task starts that the log exists and accepts these columns. Return the settings of the tasks."""
    if settings.namespace is not None:
        return dlog_batches.planned(settings, is_replacing=is_replacing)
    if settings.log is None:
        return settings
    log = settings.log
    _with_parts(settings, lambda parts: record_format_of(parts, settings, log))
    if settings.payload is None:
        return settings
    from bookies.spark.write.payload_writing import with_schema_kept

    return with_schema_kept(settings, lambda act: _with_parts(settings, lambda parts: act(_log(parts, log))))


# -- a task's part ---------------------------------------------------------------------------------------------------


def _write(settings: Settings, identity: tuple[str, int, str], batches: Iterator[pa.RecordBatch]) -> TaskMessage:
    """Write this task's rows, and report their ledgers to the driver."""
    from pyspark import TaskContext

    from bookies.protocol.log.transaction import Origin

    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    attempt = str(0 if context is None else context.taskAttemptId())
    task = _Task(settings, Origin(*identity, partition, attempt))
    try:
        for batch in batches:
            task.row_count += batch.num_rows  # An entry of Arrow has many.
            for log, columns in _routed(batch, settings):
                task.append(log, columns)
        shares = task.finish()
    except BaseException:
        task.discard()
        raise
    finally:
        task.close()
    ledgers = sum(len(share.written) for share in shares)
    counts = {
        "partition": partition,
        "attempt": attempt,
        "rows": task.row_count,
        "bytes": task.size,
        "ledgers": ledgers,
    }
    logger.info(json.dumps({"event": "write", **counts}))
    return TaskMessage(*identity, partition, attempt, shares)


def _routed(batch: pa.RecordBatch, settings: Settings) -> Iterator[tuple[str, dict[str, pa.Array]]]:
    """Yield each log and its columns of a record batch. The rows of one log keep their order."""
    import pyarrow.compute as pc

    columns = {name: batch.column(name) for name in settings.columns if name in batch.schema.names and name != "log"}
    if settings.payload is not None:
        from bookies.spark.write.payload_writing import payloads_of

        columns["value"] = payloads_of(settings, batch)
    if settings.log is not None:
        yield settings.log, columns
        return
    logs = batch.column("log")
    if logs.null_count:
        raise InvalidArgument("column 'log' is null in a row: every row needs the name of a log")
    for log in pc.unique(logs).to_pylist():
        is_of_log = pc.equal(logs, log)
        yield check_log_name(log), {name: column.filter(is_of_log) for name, column in columns.items()}


class _Task:
    """Ledgers of one task, on the event loop of its process. Spark's thread fills them."""

    def __init__(self, settings: Settings, origin: Origin) -> None:
        self._settings = settings
        self._origin = origin
        self._worker = runtime.worker()
        self._client: Client | None = None
        self._namespace: Namespace | None = None
        self._parts: dict[str, tuple[PartWriter | DlogPart, str]] = {}
        self._pending: deque[Future[None]] = deque()
        self.row_count = 0
        self.size = 0  # bytes of the entries

    def append(self, log: str, columns: Mapping[str, pa.Array]) -> None:
        """Append rows. A later call raises the errors of this one."""
        if log not in self._parts:
            self._parts[log] = self._worker.run(self._begin(log))
        part, record_format = self._parts[log]
        appending: Coroutine[Any, Any, None]
        if record_format == SETS:
            own = cast("PartWriter", part)  # logs of DistributedLog have no record format
            entries = own.sets_of(records_of(columns))
            self.size += sum(map(len, entries))
            appending = own.append_many(entries)
        else:
            data, offsets = packed(columns, record_format)
            self.size += offsets[-1] - offsets[0]
            appending = part.append_packed(data, offsets)
        while len(self._pending) >= PENDING_MAX:
            self._pending.popleft().result()
        self._pending.append(self._worker.start(appending))

    async def _begin(self, log: str) -> tuple[PartWriter | DlogPart, str]:
        from bookies.client.log.transaction_writer import open_part

        if self._settings.namespace is not None:
            self._namespace = await dlog_batches.open_namespace(self._settings)
            return dlog_batches.begin_part(self._settings, self._namespace, log, self._origin), RAW
        if self._client is None:
            self._client = await _client(self._settings).open_session()
        parts = self._client.transactions(password=self._settings.password)
        record_format = await record_format_of(parts, self._settings, log)
        part = await open_part(parts, log, self._origin, ledger_size=self._settings.ledger_size, **self._settings.shape)
        return part, record_format

    def finish(self) -> tuple[Share, ...]:
        """Wait until all entries are durable, and close the ledgers."""
        while self._pending:
            self._pending.popleft().result()
        return tuple(Share(log, part.token, self._worker.run(part.finish())) for log, (part, _) in self._parts.items())

    def discard(self) -> None:
        """Delete what was written. Best effort."""
        for future in self._pending:
            future.cancel()
        for part, _ in self._parts.values():
            self._quietly(part.discard())

    def close(self) -> None:
        for handle in (self._client, self._namespace):
            if handle is not None:
                self._quietly(handle.close())

    def _quietly(self, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            self._worker.run(coroutine)
        except (BookKeeperError, OSError) as error:
            logger.warning(json.dumps({"event": "clean-up failed", "error": str(error)}))


def packed(columns: Mapping[str, pa.Array], record_format: str) -> tuple[bytes, Sequence[int]]:
    """Return the entries of rows as one block of data, and their starts with the last end."""
    import pyarrow as pa

    from bookies.spark.base import envelope

    value = columns["value"].cast(pa.binary())
    if record_format == ENVELOPE:
        key, timestamp, headers = columns.get("key"), columns.get("timestamp"), columns.get("headers")
        value = envelope.encode(
            value,
            None if key is None else key.cast(pa.binary()),
            None if headers is None else _own_headers(headers),
            None if timestamp is None else timestamp.cast(envelope.TIMESTAMP_TYPE),
        )
    elif value.null_count:
        raise InvalidArgument(
            f"column 'value' is null in {value.null_count} of {len(value)} rows: an entry of a raw log is never null; "
            "filter them out, or write to a log with record format envelope"
        )
    _, ends, data = value.buffers()
    offsets = memoryview(ends).cast("B").cast("i")[value.offset : value.offset + len(value) + 1]
    return b"" if data is None else data.to_pybytes(), offsets


def records_of(columns: Mapping[str, pa.Array]) -> list[Record]:
    """Return rows as records."""
    import pyarrow as pa

    from bookies.spark.base import envelope

    rows = {name: columns[name].cast(data_type) for name, data_type in envelope.COLUMNS.items() if name in columns}
    if "headers" in rows:
        rows["headers"] = _own_headers(rows["headers"])
    if "timestamp" in rows:
        rows["timestamp"] = rows["timestamp"].cast(pa.int64())
    lists = [
        rows[name].to_pylist() if name in rows else repeat(None) for name in ("value", "key", "headers", "timestamp")
    ]
    return [
        Record(value, key, None if pairs is None else [(pair["key"], pair["value"]) for pair in pairs], time_us)
        for value, key, pairs, time_us in zip(*lists, strict=False)
    ]


def _own_headers(headers: pa.Array) -> pa.Array:
    """Return the headers without numbers of producers, which count only in the log that they were read from.

    Raises `InvalidArgument` for another name that is reserved.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from bookies.spark.base import envelope

    headers = headers.cast(envelope.HEADERS_TYPE)
    pairs = headers.flatten()  # Leaves out those of null rows.
    names = pairs.field("key").fill_null("")
    reserved = names.filter(pc.starts_with(names, RESERVED))
    if not len(reserved):
        return headers
    for name in pc.unique(reserved).to_pylist():
        if name != HEADER:
            raise InvalidArgument(
                f"column 'headers' has a header {name}: names that begin with {RESERVED} are reserved; rename it, or "
                "filter it out"
            )
    stays = pc.not_equal(names, HEADER)
    before = pc.list_value_length(headers).fill_null(0)
    zero = pa.array([0], pa.int64())
    bounds = pa.concat_arrays([zero, pc.cumulative_sum(before.cast(pa.int64()))])
    counts = pa.concat_arrays([zero, pc.cumulative_sum(stays.cast(pa.int64()))])
    offsets = counts.take(bounds).cast(pa.int32())
    # A record that had only a number had no headers of its own.
    is_null = pc.or_(headers.is_null(), pc.and_(pc.greater(before, 0), pc.equal(offsets[1:], offsets[:-1])))
    return pa.ListArray.from_arrays(offsets, pairs.filter(stays), envelope.HEADERS_TYPE, mask=is_null)


__all__ = ["BatchWriter", "Settings", "Share", "StreamWriter", "TaskMessage", "settings_of", "transaction_of"]
