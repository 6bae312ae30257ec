"""`Administration` for callers without asyncio: the same methods, without await. See `client/repair/administration.py`.

CopyProgress is reported on the client's own thread: a callback must be quick, and must not call the client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from bookies.client.blocking.blocking_iteration import Caller, run
from bookies.client.blocking.blocking_ledger import LedgerReader
from bookies.client.blocking.delegation import Blocking, iterates, waits
from bookies.client.repair import administration as asynchronous
from bookies.errors import ClientClosed
from bookies.metadata.interface import Watch
from bookies.metadata.interface.driver import BookieSet
from bookies.metadata.interface.recovery_store import LedgerLock
from bookies.model import BookieMode


class Administration(Blocking[asynchronous.Administration]):
    """See `bookies.client.repair.administration.Administration`."""

    def open(self, ledger_id: int, *, timeout: float | None = None) -> LedgerReader:
        """Open a ledger for reading without its password; never disturbs its writer."""
        return LedgerReader(self._thread, self._thread.call(self._inner.open(ledger_id, timeout=timeout)))

    @contextmanager
    def locked(self, ledger_id: int) -> Iterator[LedgerLock]:
        """Hold a ledger's lock of auto-recovery, for writes to bookies that its record does not name yet."""
        held = self._inner.locked(ledger_id)
        lock = self._thread.call(held.__aenter__())
        try:
            yield lock
        finally:
            self._thread.call(held.__aexit__(None, None, None))

    recover = waits(asynchronous.Administration.recover)
    change_record = waits(asynchronous.Administration.change_record)
    write_entries = waits(asynchronous.Administration.write_entries)
    check_entries = waits(asynchronous.Administration.check_entries)
    with_new_bookies = waits(asynchronous.Administration.with_new_bookies)
    instance_id = waits(asynchronous.Administration.instance_id)
    read_stored = iterates(asynchronous.Administration.read_stored)
    record = waits(asynchronous.Administration.record)
    records = iterates(asynchronous.Administration.records)
    ledger_ids = iterates(asynchronous.Administration.ledger_ids)
    ledgers_on = waits(asynchronous.Administration.ledgers_on)
    check_ledger = waits(asynchronous.Administration.check_ledger)
    check_record = waits(asynchronous.Administration.check_record)
    ask_holders = waits(asynchronous.Administration.ask_holders)
    judge_placement = waits(asynchronous.Administration.judge_placement)
    misplaced = waits(asynchronous.Administration.misplaced)
    fragments = waits(asynchronous.Administration.fragments)
    fragments_of = waits(asynchronous.Administration.fragments_of)
    plan_fragment = waits(asynchronous.Administration.plan_fragment)
    scan_replica = waits(asynchronous.Administration.scan_replica)
    renew_entries = waits(asynchronous.Administration.renew_entries)
    list_entries = waits(asynchronous.Administration.list_entries)
    missing_entries = waits(asynchronous.Administration.missing_entries)
    are_entries_stored = waits(asynchronous.Administration.are_entries_stored)
    replicate_fragment = waits(asynchronous.Administration.replicate_fragment)
    repair_ledger = waits(asynchronous.Administration.repair_ledger)
    recover_bookies = waits(asynchronous.Administration.recover_bookies)
    decommission = waits(asynchronous.Administration.decommission)
    bookies = waits(asynchronous.Administration.bookies)
    bookie_info = waits(asynchronous.Administration.bookie_info)

    def watch_bookies(self, mode: BookieMode, callback: Callable[[BookieSet], None]) -> Watch:
        """Call back with the bookies in a mode: now, and after each change, until the watch is cancelled.

        On the client's own thread: the callback must be quick, and must not call the client.
        """
        watch = self._thread.call(run(lambda: self._inner.watch_bookies(mode, callback)))
        return BlockingWatch(self._thread, watch)


class BlockingWatch(Watch):
    """A watch that any thread may cancel, also after the client was closed."""

    def __init__(self, thread: Caller, watch: Watch) -> None:
        self._thread = thread
        self._watch = watch

    def cancel(self) -> None:
        """Cancel the watch. No call comes after this."""
        with suppress(ClientClosed):
            self._thread.call(run(self._watch.cancel))
