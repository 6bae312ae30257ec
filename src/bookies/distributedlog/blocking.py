"""DistributedLog for callers without asyncio: the same methods, without await. See `bookies.blocking`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Concatenate, ParamSpec

from bookies.client.blocking.blocking import Session, begun
from bookies.client.blocking.blocking_iteration import BlockingBatches, Caller
from bookies.client.blocking.delegation import Blocking, BlockingHandle, delegates, opens, waits
from bookies.config import ClientConfig
from bookies.distributedlog import dlog as asynchronous
from bookies.distributedlog import namespace as opening
from bookies.distributedlog.dlog_reader import DlogReader as AsyncDlogReader
from bookies.distributedlog.dlog_reader import Record
from bookies.distributedlog.dlog_reader import Records as AsyncRecords
from bookies.distributedlog.dlog_writer import DlogWriter as AsyncDlogWriter
from bookies.distributedlog.formats.dlsn import Dlsn
from bookies.distributedlog.formats.segment import Segment

P = ParamSpec("P")


class Records(Iterator[Record]):
    """An iteration over records, one call for each batch. After a `TimeoutError` it may be repeated."""

    def __init__(self, thread: Caller, records: AsyncRecords) -> None:
        self._batches = BlockingBatches(thread, records.batches())
        self._records: Iterator[Record] = iter(())

    def batches(self) -> Iterator[list[Record]]:
        """Return the same iteration, list by list. Records delivered singly, and their lists, are not repeated."""
        return self._batches

    def __next__(self) -> Record:
        while (record := next(self._records, None)) is None:
            self._records = iter(next(self._batches))
        return record


def _iterates(
    method: Callable[Concatenate[AsyncDlogReader, P], AsyncRecords],
) -> Callable[Concatenate[Blocking[AsyncDlogReader], P], Records]:
    return delegates(method, Records, Records)


class DlogWriter(BlockingHandle[AsyncDlogWriter]):
    """The leader of a log. See `bookies.distributedlog.DlogWriter`."""

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def last_txid(self) -> int:
        """The greatest transaction id so far."""
        return self._inner.last_txid

    @property
    def segment(self) -> Segment | None:
        """The segment that receives records; None: the next record starts one."""
        return self._inner.segment

    append = waits(AsyncDlogWriter.append)
    flush = waits(AsyncDlogWriter.flush)
    roll = waits(AsyncDlogWriter.roll)
    seal = waits(AsyncDlogWriter.seal)
    close = waits(AsyncDlogWriter.close)
    abandon = waits(AsyncDlogWriter.abandon)

    def append_many(self, payloads: Iterable[bytes], *, txid: int | None = None, timeout: float | None = None) -> Dlsn:
        """Append records one after the other; return the last one's position, once all are durable."""
        return self._thread.call(self._inner.append_many(list(payloads), txid=txid, timeout=timeout))

    def append_set(
        self,
        payloads: Sequence[bytes],
        *,
        txid: int | None = None,
        compression: str = "none",
        timeout: float | None = None,
    ) -> Dlsn:
        """Append records as one record set, all or none; return the last one's position."""
        return self._thread.call(
            self._inner.append_set(list(payloads), txid=txid, compression=compression, timeout=timeout)
        )


class DlogReader(BlockingHandle[AsyncDlogReader]):
    """A log open for reading. See `bookies.distributedlog.DlogReader`."""

    @property
    def name(self) -> str:
        return self._inner.name

    read = _iterates(AsyncDlogReader.read)
    tail = _iterates(AsyncDlogReader.tail)
    close = waits(AsyncDlogReader.close)


class Dlog(Blocking[asynchronous.Dlog]):
    """One log by its name. See `bookies.distributedlog.Dlog`."""

    @property
    def name(self) -> str:
        return self._inner.name

    create = waits(asynchronous.Dlog.create)
    exists = waits(asynchronous.Dlog.exists)
    segments = waits(asynchronous.Dlog.segments)
    recover = waits(asynchronous.Dlog.recover)
    delete = waits(asynchronous.Dlog.delete)
    lead = opens(asynchronous.Dlog.lead, DlogWriter, "Become the leader, who appends.")
    open = opens(asynchronous.Dlog.open, DlogReader)
    open_exclusively = opens(asynchronous.Dlog.open_exclusively, DlogReader)
    first = waits(asynchronous.Dlog.first)
    last = waits(asynchronous.Dlog.last)
    find = waits(asynchronous.Dlog.find)
    count = waits(asynchronous.Dlog.count)
    is_ended = waits(asynchronous.Dlog.is_ended)
    truncate = waits(asynchronous.Dlog.truncate)
    apply_retention = waits(asynchronous.Dlog.apply_retention)
    cursors = waits(asynchronous.Dlog.cursors)
    cursor = waits(asynchronous.Dlog.cursor)
    move_cursor = waits(asynchronous.Dlog.move_cursor)
    delete_cursor = waits(asynchronous.Dlog.delete_cursor)


class Namespace(Session[opening.Namespace]):
    """The logs of one place. See `bookies.distributedlog.Namespace`."""

    log = delegates(opening.Namespace.log, Dlog, Dlog)
    logs = waits(opening.Namespace.logs)
    rename = waits(opening.Namespace.rename)


def open_namespace(
    uri: str,
    *,
    password: bytes = b"",
    owner: str | None = None,
    config: ClientConfig | None = None,
    session_timeout: float = opening.SESSION_TIMEOUT_S,
    timeout: float | None = None,
) -> Namespace:
    """Open a namespace: `with open_namespace(uri) as namespace`. See `bookies.distributedlog.open_namespace`."""

    async def opened() -> opening.Namespace:
        return await opening.open_namespace(
            uri, password=password, owner=owner, config=config, session_timeout=session_timeout, timeout=timeout
        )

    return begun(Namespace, opened)
