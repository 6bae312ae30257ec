"""End of a ledger by its writer: wait for pending entries, force if necessary, determine the end and write it.

A ledger ends in two ways: in order, by `seal`, or because an append failed permanently; then the record is closed
before the first failed entry, unless another client closed it first. Either way the end is written once, and every
caller gets the same outcome. An end that was not written only because the metadata store was unavailable can be written
again (D-25).

Source: client-protocol 2.10 to 2.13.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from bookies.client.base.metadata_loop import MetadataLoop
from bookies.client.write.adds import AddChannel
from bookies.client.write.send_scheduler import FifoLock
from bookies.errors import AckQuorumTimeout, BookKeeperError, ClientClosed, LedgerFenced, MetadataError, VersionConflict
from bookies.protocol.ledger import AddPipeline
from bookies.protocol.ledger.add import CloseLedger
from bookies.protocol.ledger.ledger import close_needed, closed
from bookies.runtime.tasks import Tasks

SETTLE_S = 1.0  # of a client that closes, for the replicas of ledgers that it has sealed


class ClosingWriter(Protocol):
    """The members of a writer that its closer needs."""

    @property
    def ledger_id(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def pending_count(self) -> int: ...

    async def force(self) -> int: ...


class OpenLedger(NamedTuple):
    """A ledger that is being written: its record, what was decided and sent, and the background work."""

    record: MetadataLoop
    pipeline: AddPipeline
    channel: AddChannel
    tasks: Tasks


class LedgerCloser:
    """Closes one ledger. `appends`: held by the append that waits for memory; `flush`: sends the queued entries.

    `is_sealing`: no more entries are accepted. `is_abandoned`: set by `close`; after it no end is written.
    """

    def __init__(
        self,
        writer: ClosingWriter,
        ledger: OpenLedger,
        appends: FifoLock,
        flush: Callable[[], None],
        *,
        is_deferred_sync: bool,
    ) -> None:
        self.is_sealing = False
        self.is_abandoned = False
        self._writer = writer
        self._record, self._pipeline, self._channel, self._tasks = ledger
        self._appends = appends
        self._flush = flush
        self._is_deferred_sync = is_deferred_sync
        self._loop = asyncio.get_running_loop()
        self.waiters: list[asyncio.Future[None]] = []  # callers that wait for entries, or for the end to be written
        self._is_in_order = False  # ended by `seal`, not by a failure
        self._written: asyncio.Future[BookKeeperError | None] | None = None  # outcome of writing CLOSED

    # -- in order ------------------------------------------------------------------------------------------------
    async def seal(self, force: bool, timeout: float | None) -> int:
        """See `LedgerWriter.seal`."""
        if timeout is None:
            return await self._seal(force)
        try:
            async with asyncio.timeout(timeout):
                return await self._seal(force)
        except TimeoutError:
            if self._written is None:
                count = self._writer.pending_count
                cause = f"{count} entries were not confirmed" if count else "acknowledged entries were not forced"
                raise AckQuorumTimeout(
                    f"{cause} within {timeout:g} s; the ledger is not sealed, call seal() again",
                    ledger_id=self._writer.ledger_id,
                ) from None
            raise MetadataError(
                f"the metadata store did not answer within {timeout:g} s; the ledger may or may not be sealed, call "
                "seal() again",
                ledger_id=self._writer.ledger_id,
            ) from None

    async def _seal(self, force: bool) -> int:
        async with self._appends:  # Appends that wait for memory came first.
            self._flush()
            if force and self._is_deferred_sync and self._pipeline.is_open and not self.is_sealing:
                await self._wait_idle()
                if self._pipeline.is_open:
                    await self._force()
            self.is_sealing = True
        try:
            await self._wait_idle()
        except asyncio.CancelledError:
            self.is_sealing = False
            raise
        if self._pipeline.is_open:
            self._is_in_order = True
            self._channel.carry_out(self._pipeline.close())
        elif self._may_write_again():
            self.begin(CloseLedger(self._pipeline.last_add_confirmed, is_implicit=not self._is_in_order))
        outcome = await self.wait_written()
        failure = outcome if self._is_in_order else self._pipeline.error
        if failure is not None:
            raise copy.copy(failure)
        return self._pipeline.last_add_confirmed

    async def _force(self) -> None:
        try:
            await self._writer.force()
        except BookKeeperError as error:
            about = copy.copy(error)
            about.args = (
                f"acknowledged entries could not be forced ({error.message}), so the ledger is not sealed: call "
                "seal() again, or seal(force=False), which leaves out entries that are not forced",
            )
            about.ledger_id = self._writer.ledger_id
            raise about from error

    def _may_write_again(self) -> bool:
        """Report whether the end was not written only because the store was unavailable (D-25)."""
        if self._written is None or not self._written.done() or self.is_abandoned:
            return False
        outcome = self._written.result()
        return isinstance(outcome, MetadataError) and outcome.retriable and not isinstance(outcome, VersionConflict)

    # -- waiting for pending entries -----------------------------------------------------------------------------
    async def _wait_idle(self) -> None:
        while self._pipeline.is_open and self._pipeline.has_undelivered:
            await self._woken()

    async def wait_whole(self) -> None:
        """Wait until all replicas of the ledger's entries have answered, if it was sealed."""
        while self._is_in_order and self._written is not None and self._lacks_answers:
            await self._woken()

    async def _woken(self) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        self.waiters.append(future)
        await future

    @property
    def _lacks_answers(self) -> bool:
        return self._pipeline.answered_bound <= self._pipeline.head

    def wake(self) -> None:
        """Wake the waiters: no entry is pending, none will be confirmed any more, replicas have answered, or the end is
        written.
        """
        for future in self.waiters:
            if not future.done():
                future.set_result(None)
        self.waiters.clear()

    # -- writing the end ------------------------------------------------------------------------------------------
    def begin(self, close: CloseLedger) -> None:
        """Write the end to the record, in the background."""
        written = self._written = self._loop.create_future()
        name = f"close ledger {self._writer.ledger_id}"
        task = self._tasks.start(self._write(close, self._writer.length, written), name)
        task.add_done_callback(partial(self._has_ended, written))

    def _has_ended(self, written: asyncio.Future[BookKeeperError | None], task: asyncio.Task[None]) -> None:
        """End the wait if the client was closed while the task waited to try again, or before its first step."""
        if task.cancelled() and not written.done():
            self._has_written(written, ClientClosed("the client was closed", ledger_id=self._writer.ledger_id))

    async def _write(self, close: CloseLedger, length: int, written: asyncio.Future[BookKeeperError | None]) -> None:
        last = close.last_entry_id
        outcome: BookKeeperError | None = None
        try:
            await self._record.update(
                lambda record: close_needed(record, last, length, is_implicit=close.is_implicit),
                lambda record: closed(record, last, length),
            )
        except BookKeeperError as error:
            outcome = error
        self._has_written(written, outcome)

    def _has_written(self, written: asyncio.Future[BookKeeperError | None], outcome: BookKeeperError | None) -> None:
        written.set_result(outcome)
        self.wake()

    async def wait_written(self) -> BookKeeperError | None:
        """Wait for an end that is being written; return why it could not be written."""
        if (written := self._written) is None:
            return None
        while not written.done():
            await self._woken()
        return written.result()

    def failed(self, error: BookKeeperError) -> bool:
        """Pass this error to the callers that wait for the end, if it is being written; report whether it is."""
        if self._written is None or self._written.done():
            return False
        self._has_written(self._written, error)
        return True


def unknown_outcome(error: BookKeeperError, ledger_id: int, entry_id: int) -> BookKeeperError:
    """Return the error of one pending append, which must not be mistaken for "not stored"."""
    about = copy.copy(error)
    message = error.message
    if isinstance(error, LedgerFenced):
        message = "another client recovers or has recovered the ledger, so this writer has ended"
    about.args = (f"{message}: the entry may or may not be stored",)
    about.ledger_id, about.entry_id = ledger_id, entry_id
    about.__cause__ = error
    return about
