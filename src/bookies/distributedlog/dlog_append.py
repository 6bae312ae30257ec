"""Outcomes of appends: one object for each record, one future at most for each task that waits."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Generator
from typing import Any

from bookies.distributedlog.formats.dlsn import Dlsn
from bookies.errors import BookKeeperError
from bookies.kernels import SlotAppend

Place = tuple[int, int]  # sequence number of the segment, entry


class DlogAppend(SlotAppend):
    """Outcome of one record: await it for its position, or the error of `append`.

    Several tasks may await it; the cancellation of one leaves the others alone. It need not be awaited: `flush` raises
    the failure, and records are acknowledged in their order.
    """

    __slots__ = ()
    entry: EntryOutcome

    def __await__(self) -> Generator[Any, None, Dlsn]:
        return self.entry.future(self.slot).__await__()

    def done(self) -> bool:
        """Report whether the outcome is known."""
        return self.entry.is_known

    def result(self) -> Dlsn:
        """Return the position. Raises the error, and `asyncio.InvalidStateError` while the outcome is not known."""
        return self.entry.result(self.slot)

    def add_done_callback(self, callback: Callable[[DlogAppend], object]) -> None:
        """Call back with this object once the outcome is known, before a `flush` that waits for it returns."""
        self.entry.add_callback(callback, self)


class EntryOutcome:
    """Outcome of the records that share an entry."""

    __slots__ = ("_callbacks", "_futures", "_outcome")

    def __init__(self) -> None:
        self._outcome: Place | BookKeeperError | None = None
        self._futures: list[tuple[asyncio.Future[Dlsn], int]] = []
        self._callbacks: list[tuple[Callable[[DlogAppend], object], DlogAppend]] = []

    @property
    def is_known(self) -> bool:
        return self._outcome is not None

    def future(self, slot: int) -> asyncio.Future[Dlsn]:
        """Return a future of the position of the record in a slot."""
        future: asyncio.Future[Dlsn] = asyncio.get_running_loop().create_future()
        if self._outcome is None:
            self._futures.append((future, slot))
        else:
            self._resolve(future, slot)
        return future

    def result(self, slot: int) -> Dlsn:
        """Return the position of the record in a slot. Raises its error, or `InvalidStateError`."""
        if self._outcome is None:
            raise asyncio.InvalidStateError("the outcome of the append is not known yet: await it")
        if isinstance(self._outcome, BookKeeperError):
            raise copy.copy(self._outcome)
        return Dlsn(*self._outcome, slot)

    def add_callback(self, callback: Callable[[DlogAppend], object], append: DlogAppend) -> None:
        """Call back with `append`, in a later iteration of the event loop."""
        self._callbacks.append((callback, append))
        if self._outcome is not None and len(self._callbacks) == 1:
            asyncio.get_running_loop().call_soon(self._call_back)

    def settle(self, outcome: Place | BookKeeperError) -> None:
        """End the wait. The first outcome holds: an entry in flight may be stored after its writer has ended."""
        if self._outcome is not None:
            return
        self._outcome = outcome
        if self._callbacks:
            asyncio.get_running_loop().call_soon(self._call_back)
        futures, self._futures = self._futures, []
        for future, slot in futures:
            if not future.done():
                self._resolve(future, slot)

    def _resolve(self, future: asyncio.Future[Dlsn], slot: int) -> None:
        try:
            future.set_result(self.result(slot))
        except BookKeeperError as error:
            future.set_exception(error)

    def _call_back(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback, append in callbacks:
            try:
                callback(append)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as the event loop does with other callbacks
                context = {"message": f"callback {callback!r} of an append has failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
