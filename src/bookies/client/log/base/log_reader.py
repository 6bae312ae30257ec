"""`LogReader`: the entries of a log, ledger by ledger, in the order of its list. It disturbs no other process.

The reader moves to the next ledger only when the present one is closed and read to its end. A following ledger in the
list is no proof of that, because a leader lists the next one first. Empty ledgers are normal: leaders that wrote
nothing. A missing ledger that is not in the list any more was truncated; a missing one that is still listed is lost.

Source: client-protocol 5.5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar
from weakref import WeakValueDictionary

from bookies.client.base import EntryBatch
from bookies.client.base.arguments import TimeLimit, position, switch
from bookies.client.base.iteration import Batches
from bookies.client.log.base.log_operations import LogContext, Patience
from bookies.client.log.records.log_records import LogEntries
from bookies.client.read import LedgerReader
from bookies.client.read.kept_entries import ReadAhead, extent_batches, shared_end
from bookies.errors import BookKeeperError, LedgerClosed, LedgerNotFound, LogNotFound, LogTruncated
from bookies.protocol.ledger.read import NEGATIVE
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.log_model import Address, Extent, beginning_text
from bookies.protocol.log.records import Decoder

T = TypeVar("T")
BEFORE_THE_FIRST = Extent(-1, -1)  # stands for what was read to its end in a log without ledgers
POLL_S = 10.0  # seconds; a tail reads the list this often even without a notification: a watch may have been lost


class LogReader:
    """A log open for reading; any number of iterations at once. Made by `Log.open`."""

    def __init__(self, parts: LogContext) -> None:
        self._parts = parts
        self._is_closed = False
        self._sources: WeakValueDictionary[int, LogSource] = WeakValueDictionary()  # of its iterations, by number
        self._count = 0

    @property
    def name(self) -> str:
        return self._parts.records.name

    @property
    def manifest(self) -> Manifest:
        """Return the list of ledgers as last read."""
        return self._parts.records.current

    async def refresh(self, *, timeout: float | None = None) -> Manifest:
        """Read the list of ledgers again; cheap when it has not changed. Raises `LogNotFound`."""
        async with TimeLimit(timeout, f"read the list of log {self.name}"):
            manifest = await self._parts.records.refresh()
        if manifest.is_deleting:
            raise LogNotFound(f"log {self.name} is being deleted")
        return manifest

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<LogReader {self.name} {state} ledgers={self.manifest.ledger_ids}>"

    def read(self, start: Position | Address | None = None, *, timeout: float | None = None) -> LogEntries:
        """Iterate over the entries from `start` on (None: from the beginning) up to the entries confirmed at that
        moment.

        `async for entry in reader.read()`; `entry.position` is its position, `entry.position.next` the one to
        continue from. `.records()` gives records with value, key, headers and time instead, `.sets()` record sets,
        `.batches()` verified batches. `start`: the `address` of a record makes `.records()` begin inside a set.
        `timeout`: seconds that a step may take.

        Raises `LogTruncated` (the next entries are not in the log any more; `manifest` tells where it begins),
        `LedgerNotFound` (a ledger of the log is lost), and the errors of `LedgerReader.read`.
        """
        return self._entries(start, timeout)

    def tail(
        self, start: Position | Address | None = None, *, from_beginning: bool = False, timeout: float | None = None
    ) -> LogEntries:
        """Iterate over the entries from `start` on as they are confirmed, without an end. See `read`.

        `start` None: new ones only, or with `from_beginning` all.
        """
        from_beginning = switch("from_beginning", from_beginning)
        return self._entries(start, timeout, is_tail=True, from_beginning=from_beginning)

    def _entries(
        self,
        start: Position | Address | None,
        timeout: float | None,
        *,
        is_tail: bool = False,
        from_beginning: bool = True,
    ) -> LogEntries:
        address = start if isinstance(start, Address) else None
        start = address.position if address is not None else None if start is None else position("start", start)
        source = self._source(start, is_tail=is_tail)
        source.from_beginning = from_beginning
        return LogEntries(source, timeout, Decoder(self.name, self.manifest.record_format), address)

    def _source(self, start: Position | None, *, is_tail: bool) -> LogSource:
        """Return the batches of one iteration, which ends with this reader."""
        source = LogSource(self, self._parts, start, is_tail=is_tail)
        self._count += 1
        self._sources[self._count] = source
        return source

    async def close(self) -> None:
        """End its iterations. Idempotent."""
        self._is_closed = True
        for source in list(self._sources.values()):
            await source.stop()

    def check_open(self) -> None:
        """Raise `LedgerClosed` if the reader is closed."""
        if self._is_closed:
            raise LedgerClosed(f"the reader of log {self.name} is closed: open the log again")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


class LogSource:
    """The batches of one iteration. `_next`: the position to deliver next; None before the beginning is known.

    `from_beginning`: what None stands for at first; otherwise for the end.
    """

    def __init__(self, reader: LogReader, parts: LogContext, start: Position | None, *, is_tail: bool) -> None:
        self._reader = reader
        self._parts = parts
        self.from_beginning = True
        self._next = start
        self._is_tail = is_tail
        self._extent: Extent | None = None  # the extent being read, or read to its end
        self._end: int | None = None  # its last entry, when it was read to its end
        self._row: int | None = None  # number of the row that its entry 0 is or was; None: unknown
        self._is_whole = False  # whether the end of its readable part is its final end
        self._ledger: LedgerReader | None = None
        self._batches: Batches | None = None
        self._ahead: ReadAhead | None = None  # in a ledger that extents share
        self._patience = Patience(parts.runtime)
        self._changed = asyncio.Event()  # the list changed, or the reader was closed

    def seek(self, position: Position) -> None:
        """Continue at another position."""
        self._next, self._extent, self._batches, self._end = position, None, None, None

    def is_past(self, ledger_id: int) -> bool:
        """Report whether it has come to the end of a ledger in which it began, and the ledger has no more entries."""
        extent = self._extent
        return extent is not None and (self._end is not None or extent.ledger_id != ledger_id)

    async def next_batch(self) -> EntryBatch | None:
        while True:
            self._reader.check_open()
            if self._extent is None and not await self._begin():
                return None
            if self._end is not None and not await self._go_on():
                return None
            assert self._extent is not None
            try:
                if self._batches is None:
                    await self._checked(self._open_extent(self._extent))
                assert self._batches is not None
                batch = await self._checked(anext(self._batches, None))
            except _Rewritten as compacted:
                self._extent = compacted.extent  # The same positions, in another ledger.
                continue
            except _ReadToItsEnd as ended:
                self._end = ended.entry_id
                continue
            except BookKeeperError as error:
                if not self._is_tail:
                    raise
                await self._patience.pause(error)
                self._batches = self._ahead = None  # Begin again after the delivered entries.
                continue
            if batch is not None:
                self._patience.reset()
                self._next = Position(batch.ledger_id, batch.last_entry_id).next
                return batch
            assert self._ledger is not None
            self._end = self._ledger.last_add_confirmed if self._extent.last is None else self._extent.last
            self._batches = None
            if not self._is_whole:
                self._end = None
                await self._let_go()
                return None

    # -- which ledger --------------------------------------------------------------------------------------------
    async def _begin(self) -> bool:
        """Find the first extent; False: there is none, and no reason to wait."""
        manifest = await self._refreshed()
        if self._next is None and not self.from_beginning:
            await self._find_end(manifest)
        elif self._next is None:
            beginning = manifest.beginning
            if beginning is not None:
                self._enter(beginning)
            elif self._is_tail:
                self._extent, self._end = BEFORE_THE_FIRST, -1
            else:
                return False
        else:
            extent = manifest.find(self._next)
            if extent is None:
                raise LogTruncated(
                    f"position {self._next} is not in log {self._reader.name}, which {beginning_text(manifest)}"
                )
            if self._next.entry_id < extent.first:
                raise self._truncated(manifest)
            self._extent = extent
        self._row = manifest.row_of(self._extent.seq) if self._extent is not None else None
        return True

    async def _find_end(self, manifest: Manifest) -> None:
        """Begin after all confirmed entries: in the first ledger that is not closed."""
        end = -1
        for extent in manifest.extents:
            if extent.last is not None:
                end = extent.last
                continue
            await self._open_ledger(extent.ledger_id)
            ledger = self._ledger
            assert ledger is not None
            last = await self._persistently(ledger.read_last_add_confirmed)
            if not ledger.is_sealed:
                self._extent, self._next = extent, Position(extent.ledger_id, last).next
                return
            end = ledger.last_add_confirmed
        self._extent = manifest.extents[-1] if manifest.extents else BEFORE_THE_FIRST
        self._end = end

    def _enter(self, extent: Extent) -> None:
        self._extent, self._end = extent, None
        self._next = Position(extent.ledger_id, extent.first)

    async def _go_on(self) -> bool:
        """Move to the extent after the present, finished one; False: there is none, and no waiting."""
        assert self._extent is not None
        assert self._end is not None
        manifest = await self._refreshed()
        while (following := manifest.after(self._extent.seq)) is None:
            await self._let_go()
            if not self._is_tail:
                return False
            self._reader.check_open()
            manifest = await self._wait_for_change()
        has_lost = self._has_lost(manifest, self._end + 1)
        if has_lost or (has_lost is None and self._has_gap(manifest, following)):
            raise self._truncated(manifest)
        row = manifest.row_of(following.seq) if self._row is None else self._row + self._end + 1
        self._enter(following)
        self._row = row
        return True

    def _has_lost(self, manifest: Manifest, entry_id: int) -> bool | None:
        """Report whether rows from this entry of the present extent on were truncated; None: that is unknown.

        Rows keep their numbers, so extents without entries may go unnoticed.
        """
        return None if self._row is None else manifest.rows_truncated > self._row + entry_id

    def _has_gap(self, manifest: Manifest, following: Extent) -> bool:
        """Report whether entries between the present extent and the following one may be truncated."""
        assert self._extent is not None
        if self._extent.seq < 0 or following.seq > self._extent.seq + 1:
            return self._extent.seq >= 0
        earlier = [extent for extent in manifest.extents if extent.seq < following.seq]
        return following.first > 0 and all(extent.last is not None and extent.first > extent.last for extent in earlier)

    # -- one ledger ----------------------------------------------------------------------------------------------
    async def _open_ledger(self, ledger_id: int) -> None:
        await self._let_go()
        opening = self._parts.client.open(ledger_id, password=self._parts.password)
        self._ledger = await self._persistently(lambda: opening)

    async def _open_extent(self, extent: Extent) -> None:
        """Open the extent at the next position."""
        assert self._next is not None
        ledger, last = self._ledger, extent.last
        # A reader from before the ledger's end does not know all entries that the list has by now.
        if ledger is None or ledger.ledger_id != extent.storage or (last is not None and not ledger.is_sealed):
            await self._open_ledger(extent.storage)
        ledger, first = self._ledger, self._next.entry_id
        assert ledger is not None
        if last is None and ledger.is_sealed:
            last = ledger.last_add_confirmed
        self._is_whole = last is not None or self._is_tail  # A tail ends with its ledger.
        if last is None and not self._is_tail:
            last = await ledger.read_last_add_confirmed()
            self._is_whole = ledger.is_sealed
        if last is None:
            self._batches = ledger.tail(first).batches()
        else:
            self._batches = await self._batches_of(ledger, extent, first, last)

    async def _batches_of(self, ledger: LedgerReader, extent: Extent, first: int, last: int) -> Batches:
        """Return the entries of an extent. Those of the following ones in the same ledger are read ahead with them."""
        if extent.shift is None or extent.kept is not None or first > last:
            return await extent_batches(ledger, extent, first, last)
        start, ahead = extent.shift + first, self._ahead
        if ahead is None or (ahead.ledger_id, ahead.next) != (ledger.ledger_id, start):
            ahead = ReadAhead(ledger, start, shared_end(self._parts.records.current, extent))
        self._ahead = ahead
        return ahead.batches(extent, last)

    async def stop(self) -> None:
        """End the iteration with an error that the reader is closed."""
        self._changed.set()
        if self._ledger is not None:
            await self._ledger.close()

    async def _let_go(self) -> None:
        ledger, self._ledger, self._batches, self._ahead = self._ledger, None, None, None
        if ledger is not None:
            await ledger.close()

    # -- the list ------------------------------------------------------------------------------------------------
    async def _refreshed(self) -> Manifest:
        manifest = await self._persistently(self._parts.records.refresh)
        if manifest.is_deleting:
            raise LogNotFound(f"log {self._reader.name} was deleted")
        if self._row is None and self._extent is not None:
            self._row = manifest.row_of(self._extent.seq)
        return manifest

    async def _wait_for_change(self) -> Manifest:
        """Return the list, when it may have changed."""
        self._changed.clear()
        watch = self._parts.records.watch(self._changed.set)
        try:
            async with asyncio.timeout(POLL_S):
                await self._changed.wait()
        except TimeoutError:
            pass  # Time to read it anyway.
        finally:
            watch.cancel()
        return await self._refreshed()

    async def _checked(self, reading: Awaitable[T]) -> T:
        """Return the result of reading from a ledger that may have been truncated or replaced meanwhile."""
        try:
            return await reading
        except (LedgerNotFound, *NEGATIVE):
            await self._let_go()
            manifest = await self._refreshed()
            assert self._extent is not None
            listed = [extent for extent in manifest.extents if extent.seq == self._extent.seq]
            if not listed and self._next is not None and self._has_lost(manifest, self._next.entry_id) is False:
                raise _ReadToItsEnd(self._next.entry_id - 1) from None
            if not listed or (self._next is not None and self._next.entry_id < listed[0].first):
                raise self._truncated(manifest) from None
            if listed[0].storage != self._extent.storage:
                raise _Rewritten(listed[0]) from None
            raise

    async def _persistently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request while it fails in a way that may pass, for iterations that wait for the log to continue."""
        while True:
            try:
                result = await call()
            except BookKeeperError as error:
                if not self._is_tail:
                    raise
                await self._patience.pause(error)
            else:
                self._patience.reset()
                return result

    def _truncated(self, manifest: Manifest) -> LogTruncated:
        return LogTruncated(
            f"log {self._reader.name} {beginning_text(manifest)}: what was to be read next is before it"
        )


class _Rewritten(Exception):
    """The extent that is being read is stored in another ledger now."""

    def __init__(self, extent: Extent) -> None:
        super().__init__()
        self.extent = extent


class _ReadToItsEnd(Exception):
    """The extent that is being read was truncated after all its entries had been delivered. `entry_id`: the last."""

    def __init__(self, entry_id: int) -> None:
        super().__init__()
        self.entry_id = entry_id
