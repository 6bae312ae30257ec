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
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from bookies.errors import BookKeeperError, ConfigError, InvalidArgument, LogNotFound
from bookies.protocol.log.log_model import ENVELOPE, RAW, RECORD_FORMATS, Written, check_log_name
from bookies.spark.base import runtime
from bookies.spark.base.options import flag, metadata_uri, number, proper_names, read_password
from bookies.spark.write import unchanged
from bookies.units import parse_duration

if TYPE_CHECKING:
    import pyarrow as pa

    from bookies.client.client import Client
    from bookies.client.log.transaction import OnOpenTail, TransactionContext
    from bookies.client.log.transaction_writer import PartWriter
    from bookies.protocol.log.transaction import Origin, Transaction

logger = logging.getLogger("bookies.spark.write.sink")
logger.setLevel(logging.INFO)  # for Spark's collector: see bookies.spark.base.counters
OPTIONS = (
    "log", "topic", "path", "ensembleSize", "writeQuorum", "ackQuorum", "digestType", "maxLedgerBytes",
    "maxInFlightBytes", "txnAppId", "txnVersion", "commitTimeoutMs", "commitRetries", "onOpenTail", "orphanGrace",
    "createLog", "recordFormat", "unchangedFiles",
)  # fmt: skip
OWN_OPTIONS_OF_STREAMS = ("checkpointLocation",)  # Spark passes them along with the others
TARGETS = ("log", "topic", "path")
HEADERS = "array<struct<key:string,value:binary>>"
COLUMNS: Mapping[str, tuple[str, ...]] = {  # name -> the allowed types
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": (HEADERS,),
    "timestamp": ("timestamp",),
    "log": ("string",),
}
ENVELOPE_COLUMNS = ("key", "headers", "timestamp")
BATCH = ""  # the query of a batch job's transaction
PENDING_MAX = 2  # record batches in flight to the event loop
REAP_TIMEOUT_S = 10.0
_reaped: dict[str, None] = {}  # applications whose leftovers this process has reaped


@dataclass(frozen=True)
class Settings:
    """The checked options. `log` None: column `log` names it. Sizes in bytes."""

    uri: str
    password: bytes = field(repr=False)
    log: str | None
    columns: tuple[str, ...]
    shape: Mapping[str, Any]
    ledger_size: int
    in_flight_size: int
    app: str | None
    version: int | None
    timeout_s: float
    conflicts_max: int
    on_open_tail: OnOpenTail
    orphan_grace_ms: int
    creates_log: bool
    record_format: str | None
    files: Sequence[unchanged.Stamp] = ()  # files that the rows were read from: see `unchanged`

    @property
    def needs_envelope(self) -> bool:
        return any(name in self.columns for name in ENVELOPE_COLUMNS)


def settings_of(options: Mapping[str, str], schema: Any, *, is_stream: bool) -> Settings:
    """Check options and columns. Raises `InvalidArgument`, `ConfigError`: one sentence that names what is wrong."""
    proper = proper_names(options, (*OPTIONS, *OWN_OPTIONS_OF_STREAMS) if is_stream else OPTIONS)
    columns = checked_columns(schema)
    named = [name for name in TARGETS if proper.get(name)]
    if len(named) > 1:
        raise InvalidArgument(f"options {' and '.join(named)} both name the log: keep one of them")
    log = check_log_name(proper[named[0]]) if named else None
    if log is None and "log" not in columns:
        raise InvalidArgument("choose the log to write: option log=NAME, save(NAME), or a column `log` of names")
    app, version = _identity(proper, is_stream=is_stream)
    on_open_tail = proper.get("onOpenTail") or "fail"
    if on_open_tail not in ("fail", "fence"):
        raise InvalidArgument(f"option onOpenTail={on_open_tail!r}: expected fail or fence")
    record_format = proper.get("recordFormat") or None
    if record_format not in (None, *RECORD_FORMATS):
        raise InvalidArgument(f"option recordFormat={record_format!r}: expected one of {', '.join(RECORD_FORMATS)}")
    return Settings(
        uri=metadata_uri(proper),
        password=read_password(proper),
        log=log,
        columns=columns,
        shape=_shape(proper),
        ledger_size=number(proper, "maxLedgerBytes", 1 << 30),
        in_flight_size=number(proper, "maxInFlightBytes", 8 << 20),
        app=app,
        version=version,
        timeout_s=number(proper, "commitTimeoutMs", 120_000) / 1000,
        conflicts_max=number(proper, "commitRetries", 100),
        on_open_tail=on_open_tail,  # type: ignore[arg-type]
        orphan_grace_ms=_duration_ms(proper, "orphanGrace", 24 * 3600 * 1000),
        creates_log=flag(proper, "createLog", False),
        record_format=record_format,
        files=unchanged.parsed(proper.get("unchangedFiles") or "[]"),
    )


def checked_columns(schema: Any) -> tuple[str, ...]:
    """Return the names of the columns. Raises `InvalidArgument` for columns that a log does not accept."""
    for column in schema.fields:
        if column.name not in COLUMNS:
            raise InvalidArgument(
                f"column {column.name!r}: a log accepts the columns {', '.join(COLUMNS)}; select those"
            )
        type_name = column.dataType.simpleString()
        if type_name not in COLUMNS[column.name]:
            allowed = " or ".join(name.upper() for name in COLUMNS[column.name])
            raise InvalidArgument(f"column {column.name!r} is {type_name.upper()}; a log accepts {allowed}: cast it")
    names = tuple(column.name for column in schema.fields)
    if "value" not in names:
        raise InvalidArgument(
            f"column 'value', which holds the entry's payload, is missing; the columns are {', '.join(names)}"
        )
    if len(set(names)) < len(names):
        raise InvalidArgument(f"a column is repeated: {', '.join(names)}; keep one of each")
    return names


def _identity(proper: Mapping[str, str], *, is_stream: bool) -> tuple[str | None, int | None]:
    app, version = proper.get("txnAppId") or None, proper.get("txnVersion") or None
    if is_stream:
        if version is not None:
            raise InvalidArgument("option txnVersion is for batch writes: a stream's version is its batch number")
        return app, None
    if (app is None) != (version is None):
        raise InvalidArgument("options txnAppId and txnVersion belong together: the job, and a number that grows")
    if version is not None and not (version.isascii() and version.isdigit()):
        raise InvalidArgument(f"option txnVersion={version!r}: expected a whole number of 0 or more")
    return app, None if version is None else int(version)


def _shape(proper: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of new ledgers that are given."""
    from bookies.client.base.keys import digest_type_of

    names = {"ensemble": "ensembleSize", "write_quorum": "writeQuorum", "ack_quorum": "ackQuorum"}
    shape: dict[str, Any] = {name: number(proper, option, 1) for name, option in names.items() if proper.get(option)}
    if proper.get("digestType"):
        shape["digest"] = digest_type_of(proper["digestType"])
    return shape


def _duration_ms(proper: Mapping[str, str], name: str, default: int) -> int:
    """Return the milliseconds of a whole number with s, m, h or d. Raises `InvalidArgument`."""
    text = (proper.get(name) or "").strip().lower()
    if not text:
        return default
    seconds = parse_duration(text)
    if seconds is None:
        raise InvalidArgument(f"option {name}={text!r}: expected a whole number and s, m, h or d, such as 24h")
    return round(seconds * 1000)


# -- messages --------------------------------------------------------------------------------------------------------


@dataclass
class Share:
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
    app, version, query = identity
    return Transaction(app, version, query, ledgers, tokens, is_kept=is_kept, is_replacing=is_replacing)


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
    from bookies.client.log import Log
    from bookies.client.log.transaction import read_head

    manifest = await read_head(parts.driver, log)
    if manifest is None and settings.creates_log:
        new_format = settings.record_format or (ENVELOPE if settings.needs_envelope else RAW)
        new_log = Log(parts.client, parts.runtime, parts.driver, log, parts.password)
        await new_log.create(record_format=new_format, exist_ok=True, **settings.shape)
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


def _commit(settings: Settings, txn: Transaction) -> None:
    from bookies.client.log.transaction import commit

    async def act(parts: TransactionContext) -> bool:
        is_new = await commit(
            parts,
            txn,
            on_open_tail=settings.on_open_tail,
            timeout=settings.timeout_s,
            conflicts_max=settings.conflicts_max,
        )
        await _reap_once(parts, settings, txn)
        return is_new

    if not txn.ledgers:
        return  # There are no rows, and no option names a log.
    is_new = _with_parts(settings, act)
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


async def _reap_once(parts: TransactionContext, settings: Settings, txn: Transaction) -> None:
    """Delete leftovers of earlier runs of this application, once per process. Best effort."""
    import asyncio

    from bookies.client.log.transaction import reap

    if not txn.is_kept or txn.app in _reaped:
        return
    _reaped[txn.app] = None
    try:
        async with asyncio.timeout(REAP_TIMEOUT_S):
            for log in txn.ledgers:
                async for leftover in reap(parts, log, app=txn.app, orphan_grace_ms=settings.orphan_grace_ms):
                    logger.info(
                        json.dumps(
                            {"event": "reaper", "log": log, "ledger": leftover.ledger_id, "is": leftover.outcome}
                        )
                    )
    except (BookKeeperError, TimeoutError) as error:
        logger.warning(json.dumps({"event": "reaper stopped", "error": str(error)}))


def _abort(settings: Settings, txn: Transaction) -> None:
    """Delete what the transaction wrote. Never raises: the reaper deletes the rest."""
    from bookies.client.log.transaction import abort

    try:
        _with_parts(settings, lambda parts: abort(parts, txn, timeout=settings.timeout_s))
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
        _check_target(self._settings)

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


class StreamWriter(DataSourceStreamArrowWriter):
    """Writer of `df.writeStream.format("bookkeeper")`. Every batch gets new ones, one to plan and one to commit."""

    def __init__(self, options: Mapping[str, str], schema: Any, overwrite: bool) -> None:
        self._settings = settings_of(options, schema, is_stream=True)
        self._is_replacing = overwrite
        _check_target(self._settings)

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
        act(
            self._settings,
            transaction_of(identity, known, log, is_kept=True, is_replacing=self._is_replacing),
        )


def _check_target(settings: Settings) -> None:
    """Check before any task starts that the log exists and accepts these columns."""
    if settings.log is not None:
        log = settings.log
        _with_parts(settings, lambda parts: record_format_of(parts, settings, log))


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

    columns = {name: batch.column(name) for name in settings.columns if name != "log"}
    if settings.log is not None:
        yield settings.log, columns
        return
    logs = batch.column("log")
    if logs.null_count:
        raise InvalidArgument("column 'log' is null in a row: every row needs the name of a log")
    for log in pc.unique(logs).to_pylist():
        is_of_log = pc.equal(logs, log)
        yield log, {name: column.filter(is_of_log) for name, column in columns.items()}


class _Task:
    """Ledgers of one task, on the event loop of its process. Spark's thread fills them."""

    def __init__(self, settings: Settings, origin: Origin) -> None:
        self._settings = settings
        self._origin = origin
        self._worker = runtime.worker()
        self._client: Client | None = None
        self._parts: dict[str, tuple[PartWriter, str]] = {}
        self._pending: deque[Future[None]] = deque()
        self.row_count = 0
        self.size = 0  # bytes of the entries

    def append(self, log: str, columns: Mapping[str, pa.Array]) -> None:
        """Append rows. A later call raises the errors of this one."""
        if log not in self._parts:
            self._parts[log] = self._worker.run(self._begin(check_log_name(log)))
        part, record_format = self._parts[log]
        data, offsets = packed(columns, record_format)
        self.row_count += len(offsets) - 1
        self.size += offsets[-1] - offsets[0]
        while len(self._pending) >= PENDING_MAX:
            self._pending.popleft().result()
        self._pending.append(self._worker.start(part.append_packed(data, offsets)))

    async def _begin(self, log: str) -> tuple[PartWriter, str]:
        from bookies.client.log.transaction_writer import open_part

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
        if self._client is not None:
            self._quietly(self._client.close())

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
        key, timestamp = columns.get("key"), columns.get("timestamp")
        value = envelope.encode(
            value,
            None if key is None else key.cast(pa.binary()),
            _plain_headers(columns.get("headers")),
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


def _plain_headers(headers: pa.Array | None) -> pa.Array | None:
    from bookies.spark.base import envelope

    return None if headers is None else headers.cast(envelope.HEADERS_TYPE)


__all__ = ["BatchWriter", "Settings", "Share", "StreamWriter", "TaskMessage", "settings_of", "transaction_of"]
