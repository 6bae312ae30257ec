"""`Administration` for callers without asyncio: the same methods, without await. See `client/repair/administration.py`.

CopyProgress is reported on the client's own thread: a callback must be quick, and must not call the client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from bookies.client.base import EntryBatch
from bookies.client.base.metadata_loop import MetadataLoop
from bookies.client.blocking.blocking_iteration import Caller, next_or_none, run
from bookies.client.blocking.blocking_ledger import LedgerReader
from bookies.client.repair import administration as asynchronous
from bookies.client.repair.administration import LedgerCheck
from bookies.client.repair.replication import Move, OnProgress, RecoveryReport
from bookies.client.repair.scan import ReplicaScan
from bookies.errors import BookKeeperError, ClientClosed
from bookies.metadata.interface import Watch
from bookies.metadata.interface.driver import BookieSet, Versioned
from bookies.metadata.interface.recovery_store import LedgerLock
from bookies.model import BookieId, BookieInfo, BookieMode, LedgerMetadata
from bookies.protocol.pacing import RateLimit
from bookies.protocol.repair import Fragment
from bookies.protocol.repair.replicate import Replacement

T = TypeVar("T")


class Administration:
    """See `bookies.client.repair.administration.Administration`."""

    def __init__(self, thread: Caller, administration: asynchronous.Administration) -> None:
        self._thread = thread
        self._administration = administration

    def open(self, ledger_id: int, *, timeout: float | None = None) -> LedgerReader:
        """Open a ledger for reading without its password; never disturbs its writer."""
        return LedgerReader(self._thread, self._thread.call(self._administration.open(ledger_id, timeout=timeout)))

    def recover(self, ledger_id: int, *, timeout: float | None = None) -> LedgerMetadata:
        """Fence the ledger's writer, find its last entry, seal it. Needs no password."""
        return self._thread.call(self._administration.recover(ledger_id, timeout=timeout))

    @contextmanager
    def locked(self, ledger_id: int) -> Iterator[LedgerLock]:
        """Hold a ledger's lock of auto-recovery, for writes to bookies that its record does not name yet."""
        held = self._administration.locked(ledger_id)
        lock = self._thread.call(held.__aenter__())
        try:
            yield lock
        finally:
            self._thread.call(held.__aexit__(None, None, None))

    def change_record(
        self,
        ledger_id: int,
        change: Callable[[LedgerMetadata], LedgerMetadata | None],
        *,
        lock: LedgerLock | None = None,
    ) -> LedgerMetadata:
        """Change a ledger's record by compare-and-swap. For callers that know the legal changes."""
        return self._thread.call(self._administration.change_record(ledger_id, change, lock=lock))

    def write_entries(self, record: LedgerMetadata, batch: EntryBatch) -> None:
        """Store entries from another source on the bookies that this record, stored or not, names."""
        self._thread.call(self._administration.write_entries(record, batch))

    def check_entries(self, record: LedgerMetadata) -> None:
        """Read all replicas of all entries from the bookies that this record, stored or not, names."""
        self._thread.call(self._administration.check_entries(record))

    def with_new_bookies(self, record: LedgerMetadata) -> LedgerMetadata:
        """Return the record with writable bookies in all its fragments."""
        return self._thread.call(self._administration.with_new_bookies(record))

    def instance_id(self) -> str:
        """Return the cluster's instance id, which distinguishes it from every other cluster."""
        return self._thread.call(self._administration.instance_id())

    def read_stored(self, ledger_id: int, first: int = 0, last: int = -1) -> Iterator[tuple[int, bytes]]:
        """Iterate over (id, body) of entries as they are stored; `last` -1: to the end."""
        entries = self._administration.read_stored(ledger_id, first, last)  # raises argument errors at once
        return _iterate(self._thread, entries)

    def record(self, ledger_id: int) -> Versioned:
        """Return a ledger's record with its version in the metadata store."""
        return self._thread.call(self._administration.record(ledger_id))

    def ledger_ids(self) -> Iterator[Sequence[int]]:
        """Iterate over the ids of all ledgers, ascending, in pages."""
        return _iterate(self._thread, self._administration.ledger_ids())

    def ledgers_on(self, bookies: Collection[BookieId], *, timeout: float | None = None) -> dict[int, LedgerMetadata]:
        """Iterate over the ledgers that have any of these bookies in any fragment, by ascending id."""
        return self._thread.call(self._administration.ledgers_on(bookies, timeout=timeout))

    def check_ledger(self, ledger_id: int, *, percentage: float = 0, timeout: float | None = None) -> LedgerCheck:
        """Check whether every replica of a ledger exists. `percentage`: of entries to read, 100: all."""
        return self._thread.call(self._administration.check_ledger(ledger_id, percentage=percentage, timeout=timeout))

    def check_record(self, found: Versioned, registered: Collection[BookieId], *, percentage: float = 0) -> LedgerCheck:
        """Check a record that was read before, like `check_ledger`, with known registered bookies."""
        return self._thread.call(self._administration.check_record(found, registered, percentage=percentage))

    def ask_holders(
        self, record: LedgerMetadata, entry_id: int, registered: Collection[BookieId]
    ) -> list[tuple[BookieId, BookKeeperError | None]]:
        """Return the problem of each replica of an entry; None: no problem."""
        return self._thread.call(self._administration.ask_holders(record, entry_id, registered))

    def judge_placement(self, fragment: Fragment) -> tuple[int, list[str]]:
        """Return how well a fragment's bookies meet the placement policy (1: not, 5: fully), and why not better."""
        return self._thread.call(self._administration.judge_placement(fragment))

    def misplaced(self, fragment: Fragment, exclude: Collection[BookieId] = ()) -> list[int]:
        """Return the fewest positions of a fragment that need other bookies for it to meet the placement policy."""
        return self._thread.call(self._administration.misplaced(fragment, exclude))

    def fragments(self, ledger_id: int) -> tuple[LedgerMetadata, list[Fragment]]:
        """Return a ledger's record, and its fragments that hold entries, in order."""
        return self._thread.call(self._administration.fragments(ledger_id))

    def fragments_of(self, found: Versioned) -> list[Fragment]:
        """Return the fragments of a record that was read before, like `fragments`."""
        return self._thread.call(self._administration.fragments_of(found))

    def plan_fragment(
        self, fragment: Fragment, positions: Sequence[int], *, exclude: Collection[BookieId] = ()
    ) -> tuple[Replacement, ...]:
        """Return the bookies that `replicate_fragment` would copy to now. Copies nothing."""
        return self._thread.call(self._administration.plan_fragment(fragment, positions, exclude=exclude))

    def scan_replica(
        self,
        record: LedgerMetadata,
        bookie: BookieId,
        ids: Sequence[int],
        *,
        visit: Callable[[EntryBatch], None] | None = None,
        pace: RateLimit | None = None,
        is_listing: bool = False,
    ) -> ReplicaScan:
        """Read these entries, ascending, from one bookie, verify each, and return the bad ones.

        `visit` is called on the client's own thread: it must be quick, and must not call the client.
        """
        return self._thread.call(
            self._administration.scan_replica(record, bookie, ids, visit=visit, pace=pace, is_listing=is_listing)
        )

    def renew_entries(
        self,
        ledger_id: int,
        bookie: BookieId,
        entries: Sequence[range],
        *,
        bytes_per_s: float | None = None,
        pace: RateLimit | None = None,
        progress: OnProgress | None = None,
        timeout: float | None = None,
    ) -> int:
        """Write again the entries that a bookie must hold by the record; return how many were written."""
        return self._thread.call(
            self._administration.renew_entries(
                ledger_id, bookie, entries, bytes_per_s=bytes_per_s, pace=pace, progress=progress, timeout=timeout
            )
        )

    def list_entries(self, bookie: BookieId, ledger_id: int) -> list[range]:
        """Return the entries of a ledger that a bookie holds, as ranges."""
        return self._thread.call(self._administration.list_entries(bookie, ledger_id))

    def missing_entries(self, bookie: BookieId, ledger_id: int, *, timeout: float | None = None) -> list[range]:
        """Return the entries of a ledger that a bookie ought to hold and does not, by its own list."""
        return self._thread.call(self._administration.missing_entries(bookie, ledger_id, timeout=timeout))

    def are_entries_stored(self, ledger_id: int, bookie: BookieId) -> bool:
        """Report whether, by its record, the bookie holds entries of a ledger or may get some."""
        return self._thread.call(self._administration.are_entries_stored(ledger_id, bookie))

    def replicate_fragment(
        self,
        fragment: Fragment,
        positions: Sequence[int],
        *,
        in_place: bool = False,
        exclude: Collection[BookieId] = (),
        bytes_per_s: float | None = None,
        pace: RateLimit | None = None,
        progress: OnProgress | None = None,
        update: MetadataLoop | None = None,
        timeout: float | None = None,
    ) -> Move:
        """Copy the entries of these positions of a fragment to other bookies, then let the record name those."""
        return self._thread.call(
            self._administration.replicate_fragment(
                fragment,
                positions,
                in_place=in_place,
                exclude=exclude,
                bytes_per_s=bytes_per_s,
                pace=pace,
                progress=progress,
                update=update,
                timeout=timeout,
            )
        )

    def repair_ledger(
        self,
        ledger_id: int,
        *,
        percentage: float = 0,
        lost: Collection[BookieId] = (),
        dry_run: bool = False,
        bytes_per_s: float | None = None,
        progress: OnProgress | None = None,
        timeout: float | None = None,
    ) -> tuple[Move, ...]:
        """Check a ledger and repair it: lost entries are copied again, lost bookies replaced."""
        return self._thread.call(
            self._administration.repair_ledger(
                ledger_id,
                percentage=percentage,
                lost=lost,
                dry_run=dry_run,
                bytes_per_s=bytes_per_s,
                progress=progress,
                timeout=timeout,
            )
        )

    def recover_bookies(
        self,
        bookies: Collection[BookieId],
        *,
        ledger_id: int | None = None,
        dry_run: bool = False,
        skip_open: bool = False,
        skip_unrecoverable: bool = False,
        force: bool = False,
        bytes_per_s: float | None = None,
        progress: OnProgress | None = None,
        timeout: float | None = None,
    ) -> RecoveryReport:
        """Copy all entries that these bookies hold, by the records, to others, of every ledger or of one."""
        return self._thread.call(
            self._administration.recover_bookies(
                bookies,
                ledger_id=ledger_id,
                dry_run=dry_run,
                skip_open=skip_open,
                skip_unrecoverable=skip_unrecoverable,
                force=force,
                bytes_per_s=bytes_per_s,
                progress=progress,
                timeout=timeout,
            )
        )

    def decommission(
        self,
        bookie: BookieId,
        *,
        bytes_per_s: float | None = None,
        progress: OnProgress | None = None,
        timeout: float | None = None,
    ) -> RecoveryReport:
        """Copy all entries that a stopped bookie holds to others, and check that no record names it for an entry."""
        return self._thread.call(
            self._administration.decommission(bookie, bytes_per_s=bytes_per_s, progress=progress, timeout=timeout)
        )

    def bookies(self, mode: BookieMode | None = None) -> BookieSet:
        """Return the registered bookies in a mode; None: all with a cookie, running or not."""
        return self._thread.call(self._administration.bookies(mode))

    def bookie_info(self, bookie: BookieId) -> BookieInfo | None:
        """Return the information that a bookie publishes; None while it is not registered."""
        return self._thread.call(self._administration.bookie_info(bookie))

    def watch_bookies(self, mode: BookieMode, callback: Callable[[BookieSet], None]) -> Watch:
        """Call back with the bookies in a mode: now, and after each change, until the watch is cancelled.

        On the client's own thread: the callback must be quick, and must not call the client.
        """
        watch = self._thread.call(run(lambda: self._administration.watch_bookies(mode, callback)))
        return BlockingWatch(self._thread, watch)


def _iterate(thread: Caller, items: AsyncIterator[T]) -> Iterator[T]:
    while (item := thread.call(next_or_none(items))) is not None:
        yield item


class BlockingWatch(Watch):
    """A watch that any thread may cancel, also after the client was closed."""

    def __init__(self, thread: Caller, watch: Watch) -> None:
        self._thread = thread
        self._watch = watch

    def cancel(self) -> None:
        """Cancel the watch. No call comes after this."""
        with suppress(ClientClosed):
            self._thread.call(run(self._watch.cancel))
