"""`Administration`: look at ledgers and bookies as a whole, and copy what a lost bookie held to others.

Made by `Client.administration`. Needs no password for ledgers whose record has it (all since format 2), for digests
are checked with the stored one. Everything may be cancelled anywhere: a record names a bookie only once all copies are
there, so what was interrupted is repeated, never undone. The shell of `protocol/fragments.py` and
`protocol/replicate.py`. Source: client-protocol 7.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass

from bookies.client.entries import EntryBatch
from bookies.client.ledger_access import LedgerAccess
from bookies.client.metadata_loop import MetadataLoop
from bookies.client.pool import BookiePool
from bookies.client.reader import LedgerReader
from bookies.client.replicas import LedgerReplicas
from bookies.client.replication import Account, BookieRecovery, Move, OnProgress, RecoveryReport, renew, replicate
from bookies.client.scan import ReplicaScan, scan, scan_list
from bookies.client.watcher import BookieWatcher
from bookies.config import ClientConfig
from bookies.errors import (
    BookieUnreachable,
    BookKeeperError,
    ClientClosed,
    EntryNotFound,
    InvalidArgument,
    LedgerNotFound,
    LedgerUnknownToBookie,
    ReadFailed,
    ReplicationFailed,
)
from bookies.metadata.driver import BookieSet, MetadataDriver, Versioned, Watch
from bookies.model import BookieId, BookieInfo, BookieMode, DigestType, LedgerMetadata
from bookies.protocol.fragments import (
    Fragment,
    FragmentCheck,
    FragmentVerdict,
    fragments_on,
    fragments_to_check,
    is_stored_on,
    missing_runs,
    stored_in,
)
from bookies.protocol.quorum import write_set
from bookies.protocol.replicate import Pace, check_finished, choose_targets, renewals, repairs
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import all_of

LISTED_AT_ONCE = 32  # records that a listing reads at a time
COPIED_AT_ONCE = 8  # ledgers; most are small, so that each is mostly waiting


@dataclass(frozen=True, slots=True)
class LedgerCheck:
    """What `check_ledger` found: a verdict per fragment that holds entries."""

    metadata: LedgerMetadata
    fragments: tuple[FragmentVerdict, ...]

    @property
    def is_ok(self) -> bool:
        """Whether every replica of every fragment is known to be good."""
        return all(fragment.is_ok for fragment in self.fragments)

    @property
    def fewest_replicas(self) -> int | None:
        """Good replicas of the entry that is worst off; None for a ledger without entries."""
        return min((fragment.fewest_replicas for fragment in self.fragments), default=None)


class Administration:
    """See the module. `password` and `digest_type` count only for ledgers whose record has none.

    Methods raise `ClientClosed` and `MetadataError` beside what they name. `timeout`: seconds, then TimeoutError.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: ClientConfig,
        pool: BookiePool,
        driver: MetadataDriver,
        watcher: BookieWatcher,
        *,
        password: bytes = b"",
        digest_type: DigestType = DigestType.CRC32,
    ) -> None:
        self._random = runtime.random
        self._pool = pool
        self._driver = driver
        self._access = LedgerAccess(
            runtime, config, pool, driver, watcher.candidates, password=password, digest_type=digest_type
        )

    # -- ledgers -------------------------------------------------------------------------------------------------
    async def open(self, ledger_id: int, *, timeout: float | None = None) -> LedgerReader:
        """Open a ledger for reading, whatever its password; never disturbs its writer. Raises as `Client.open`."""
        async with asyncio.timeout(timeout):
            return await self._access.reader(await self._access.read(ledger_id))

    async def recover(self, ledger_id: int, *, timeout: float | None = None) -> LedgerMetadata:
        """Fence a ledger's writer, find its last entry, seal it, whatever its password. Raises as `Client.recover`."""
        async with asyncio.timeout(timeout):
            return (await self._access.sealed(ledger_id)).metadata

    async def read_stored(self, ledger_id: int, first: int = 0, last: int = -1) -> AsyncIterator[tuple[int, bytes]]:
        """(id, body) of entries first..last as they are stored: header, digest, payload; verified.

        `last` -1: up to the last add confirmed, or to where an open ledger's entries end before that. Raises what
        reading raises, `EntryNotFound` only with a `last`.
        """
        found = await self._access.read(ledger_id)
        record = found.metadata
        confirmed = await self._access.last_add_confirmed(found)
        replicas = self._access.replicas(record)
        end = confirmed if last == -1 else min(last, confirmed)
        entry_id = first
        while entry_id <= end:
            ensemble = record.ensemble_at(entry_id)
            holders = [ensemble[each] for each in write_set(entry_id, len(ensemble), record.write_quorum)]
            try:
                [body] = await replicas.read_from_any(self._pool.health.order(holders), [entry_id])
            except EntryNotFound:
                if last == -1:
                    return
                raise
            yield entry_id, body
            entry_id += 1
        if last > confirmed:
            raise EntryNotFound(f"behind the last add confirmed, {confirmed}", ledger_id=ledger_id, entry_id=entry_id)

    async def record(self, ledger_id: int) -> Versioned:
        """A ledger's record and its version in the metadata store. Raises `LedgerNotFound`."""
        return await self._access.read(ledger_id)

    async def ledger_ids(self) -> AsyncIterator[Sequence[int]]:
        """The ids of all ledgers, ascending, in pages. Complete for every ledger that exists during all of it."""
        async for ids in self._driver.ledger_ids():
            yield ids

    async def ledgers_on(
        self, bookies: Collection[BookieId], *, timeout: float | None = None
    ) -> dict[int, LedgerMetadata]:
        """The ledgers, in any state, that have any of these bookies in any fragment, by ascending id."""
        found = {}
        async with asyncio.timeout(timeout):
            async for ids in self._driver.ledger_ids():
                for start in range(0, len(ids), LISTED_AT_ONCE):
                    for record in await all_of(map(self._record_or_none, ids[start : start + LISTED_AT_ONCE])):
                        if record and any(each in ensemble for _, ensemble in record.ensembles for each in bookies):
                            found[record.ledger_id] = record
        return found

    async def _record_or_none(self, ledger_id: int) -> LedgerMetadata | None:
        try:
            return (await self._access.read(ledger_id)).metadata
        except LedgerNotFound:
            return None  # Deleted since it was listed.

    # -- checking ------------------------------------------------------------------------------------------------
    async def check_ledger(self, ledger_id: int, *, percentage: float = 0, timeout: float | None = None) -> LedgerCheck:
        """Look whether every replica of a ledger is there, by reading its first and last entry of each fragment.

        `percentage`: also so many of the entries between, 100: all, which verifies every copy of every entry.
        `timeout`: seconds. Raises `LedgerNotFound`; a bookie that does not answer is a verdict, not an error.
        """
        if not 0 <= percentage <= 100:
            raise InvalidArgument(f"percentage={percentage}: must be 0 to 100")
        async with asyncio.timeout(timeout):
            record, fragments = await self.fragments(ledger_id)
            known = await self._registered()
            replicas = self._access.replicas(record)
            verdicts = [await self._check(fragment, known, percentage, replicas) for fragment in fragments]
            return LedgerCheck(record, tuple(verdicts))

    async def fragments(self, ledger_id: int) -> tuple[LedgerMetadata, list[Fragment]]:
        """A ledger's record, and its fragments that hold entries, in order. Raises `LedgerNotFound`.

        Of a ledger that is not sealed its bookies are asked where it ends; when they cannot say, its last fragment is
        taken to end where it begins.
        """
        found = await self._access.read(ledger_id)
        try:
            confirmed = await self._access.last_add_confirmed(found)
        except (BookieUnreachable, ReadFailed):
            confirmed = -1  # Nobody can tell, so the last fragment is judged by its first entry.
        return found.metadata, fragments_to_check(found.metadata, confirmed)

    async def scan_replica(
        self,
        record: LedgerMetadata,
        bookie: BookieId,
        ids: Sequence[int],
        *,
        visit: Callable[[EntryBatch], None] | None = None,
        pace: Pace | None = None,
        is_listing: bool = False,
    ) -> ReplicaScan:
        """Read these entries, ascending, as one bookie has them, verify each, and say which are not good.

        `visit`: called with each batch of good ones, in no particular order. `pace`: of the bytes read. `is_listing`:
        only look which are there, by the bookie's own list. A bookie that does not answer ends it; it is no error.
        """
        replicas = self._access.replicas(record)
        if is_listing:
            return await scan_list(replicas, self._pool, record.ledger_id, bookie, ids)
        return await scan(replicas, self._pool, record.ledger_id, bookie, ids, visit, pace)

    async def _check(
        self, fragment: Fragment, known: Collection[BookieId], percentage: float, replicas: LedgerReplicas
    ) -> FragmentVerdict:
        check = FragmentCheck(fragment, known, percentage, self._random.randrange)
        found = await all_of(replicas.first_bad(ask.bookie, ask.entry_ids) for ask in check.asks)
        for ask, bad in zip(check.asks, found, strict=True):
            if bad is None:
                check.held(ask.position)
            else:
                check.failed(ask.position, *bad)
        return check.verdict()

    async def list_entries(self, bookie: BookieId, ledger_id: int) -> list[range]:
        """Which entries of a ledger a bookie holds, as ranges. Raises `LedgerUnknownToBookie`, `BookieUnreachable`."""
        return await self._pool.list_entries(bookie, ledger_id)

    async def missing_entries(self, bookie: BookieId, ledger_id: int, *, timeout: float | None = None) -> list[range]:
        """Which entries a bookie ought to hold of a ledger and does not, by its own list: one request, nothing is read.

        Raises `LedgerNotFound`, `BookieUnreachable`.
        """
        async with asyncio.timeout(timeout):
            found = await self._access.read(ledger_id)
            fragments = fragments_to_check(found.metadata, await self._access.last_add_confirmed(found))
            try:
                held = await self._pool.list_entries(bookie, ledger_id)
            except LedgerUnknownToBookie:
                held = []
        missing: list[range] = []
        for fragment, positions in fragments_on([each for each in fragments if not each.is_doubtful], [bookie]):
            missing += missing_runs(fragment.stored(positions[0]), held)
        return missing

    async def are_entries_stored(self, ledger_id: int, bookie: BookieId) -> bool:
        """Whether, by its record, the bookie holds entries of a ledger or may get some. False: deleted, too."""
        try:
            return is_stored_on((await self._access.read(ledger_id)).metadata, bookie)
        except LedgerNotFound:
            return False

    # -- replication ---------------------------------------------------------------------------------------------
    async def replicate_fragment(
        self,
        fragment: Fragment,
        positions: Sequence[int],
        *,
        in_place: bool = False,
        exclude: Collection[BookieId] = (),
        bytes_per_s: float | None = None,
        progress: OnProgress | None = None,
        timeout: float | None = None,
    ) -> Move:
        """Copy what these positions of a fragment hold to other bookies, then let the record name those.

        `in_place`: copy to the very bookies that are there, which have lost entries. `exclude`: who must not be
        chosen. `fragment`, `positions`: as from `check_ledger`. `bytes_per_s`: of all copies; None: as fast as it goes.
        Raises `FragmentNotFinished`, `NotEnoughBookies`, `VersionConflict` (changed meanwhile), why entries cannot be
        read or written, and what a metadata update raises. Then the record has not been changed.
        """
        async with asyncio.timeout(timeout):
            account = Account(1, bytes_per_s, progress)
            found = await self._access.read(fragment.ledger_id)
            check_finished(fragment)
            if in_place:
                replacements = renewals(fragment, positions)
            else:
                replacements = choose_targets(
                    fragment, positions, self._access.candidates(), self._access.domains, exclude
                )
            update = MetadataLoop(self._access.runtime, self._driver, found)
            return await replicate(self._access, fragment, replacements, update, account)

    async def renew_entries(
        self,
        ledger_id: int,
        bookie: BookieId,
        entries: Sequence[range],
        *,
        bytes_per_s: float | None = None,
        progress: OnProgress | None = None,
        timeout: float | None = None,
    ) -> int:
        """Write again to a bookie those of these entries that it must hold by the record; how many were written.

        For single entries that it has lost, or holds damaged; nothing but these is copied and the record stays as it
        is. Raises `LedgerNotFound`, `FragmentNotFinished`, and why an entry cannot be read anywhere or written.
        """
        async with asyncio.timeout(timeout):
            account = Account(1, bytes_per_s, progress)
            record, fragments = await self.fragments(ledger_id)
            for fragment, positions in fragments_on(fragments, [bookie]):
                ids = stored_in(fragment.stored(positions[0]), entries)
                if ids:
                    check_finished(fragment)
                    await renew(self._access, record, fragment, positions[0], ids, account)
            return account.entries

    async def repair_ledger(
        self,
        ledger_id: int,
        *,
        percentage: float = 0,
        bytes_per_s: float | None = None,
        progress: OnProgress | None = None,
        timeout: float | None = None,
    ) -> tuple[Move, ...]:
        """Check a ledger and make whole what is bad: bookies that lost entries get them again, others are replaced.

        `percentage`: as in `check_ledger`; what it does not look at is not repaired. Fragments that may still grow
        are left to the ledger's writer. Raises `ReplicationFailed` after all that could be repaired was.
        """
        async with asyncio.timeout(timeout):
            check = await self.check_ledger(ledger_id, percentage=percentage)
            account = Account(1, bytes_per_s, progress)
            update = MetadataLoop(self._access.runtime, self._driver, await self._access.read(ledger_id))
            moves: list[Move] = []
            failures: list[BookKeeperError] = []
            for verdict in check.fragments:
                if verdict.is_ok or not verdict.fragment.is_finished:
                    continue
                try:
                    replacements = repairs(verdict, self._access.candidates(), self._access.domains)
                    moves.append(await replicate(self._access, verdict.fragment, replacements, update, account))
                except ClientClosed:
                    raise
                except BookKeeperError as error:
                    failures.append(error)
        if failures:
            raise ReplicationFailed(
                f"{len(moves)} fragments were repaired and {len(failures)} could not be; repeat it when the cause is "
                f"mended. The first: {failures[0]}",
                causes=failures,
                ledger_id=ledger_id,
            )
        return tuple(moves)

    async def recover_bookies(
        self,
        bookies: Collection[BookieId],
        *,
        ledger_id: int | None = None,
        dry_run: bool = False,
        skip_open: bool = False,
        skip_unrecoverable: bool = False,
        bytes_per_s: float | None = None,
        progress: OnProgress | None = None,
        timeout: float | None = None,
    ) -> RecoveryReport:
        """Copy all that these bookies hold, by the records, to others, of every ledger or of one.

        They have to be down or read-only, otherwise they go on receiving. A ledger that is being written to one of
        them is recovered first, which stops its writer; `skip_open` leaves it alone. `skip_unrecoverable`: pass over
        ledgers that cannot be recovered. `dry_run`: only say what would be done. `progress`: called now and then.

        Raises `ReplicationFailed` when fragments could not be copied, after all others were; repeat it.
        """
        if isinstance(bookies, str):
            raise InvalidArgument(f"recover_bookies({bookies!r}): give a list of bookies, [{bookies!r}]")
        wanted = list(dict.fromkeys(bookies))
        if not wanted:
            raise InvalidArgument("recover_bookies: name at least one bookie")
        async with asyncio.timeout(timeout):
            if ledger_id is None:
                ledger_ids = list(await self.ledgers_on(wanted))
            else:
                ledger_ids = [(await self._access.read(ledger_id)).metadata.ledger_id]
            account = Account(len(ledger_ids), bytes_per_s, progress)
            run = BookieRecovery(self._access, wanted, account, dry_run, skip_open, skip_unrecoverable)
            waiting = iter(ledger_ids)

            async def work() -> None:
                for each in waiting:
                    await run.ledger(each)
                    account.ledgers_done += 1
                    account.report(each)

            await all_of(work() for _ in range(COPIED_AT_ONCE))
        if run.failures:
            raise ReplicationFailed(
                f"{len(run.moves)} fragments of {', '.join(wanted)} were copied and {len(run.failures)} could "
                f"not be; repeat it when the cause is mended. The first: {run.failures[0]}",
                causes=run.failures,
            )
        moves = sorted(run.moves, key=lambda move: (move.ledger_id, move.first))
        return RecoveryReport(tuple(moves), tuple(sorted(run.skipped)), account.entries, account.size)

    async def decommission(
        self,
        bookie: BookieId,
        *,
        bytes_per_s: float | None = None,
        progress: OnProgress | None = None,
        timeout: float | None = None,
    ) -> RecoveryReport:
        """Copy all that a stopped bookie holds to others, and make sure that no record names it for an entry.

        Raises `InvalidArgument` while it is still registered, `ReplicationFailed`.
        """
        async with asyncio.timeout(timeout):
            if bookie in await self._registered():
                raise InvalidArgument(f"bookie {bookie} is still registered: stop it first")
            report = await self.recover_bookies([bookie], bytes_per_s=bytes_per_s, progress=progress)
            still = await self.ledgers_on([bookie])
        for ledger_id, record in still.items():
            if is_stored_on(record, bookie):
                raise ReplicationFailed(
                    "the ledger names the bookie again: its writer has not noticed yet; repeat it",
                    ledger_id=ledger_id,
                    bookie=bookie,
                )
        return report

    # -- bookies -------------------------------------------------------------------------------------------------
    async def bookies(self, mode: BookieMode | None = None) -> BookieSet:
        """The registered bookies in a mode; None: all with a cookie, whether they run or not."""
        return await (self._driver.all_bookies() if mode is None else self._driver.bookies(mode))

    async def bookie_info(self, bookie: BookieId) -> BookieInfo | None:
        """What a bookie publishes of itself; None while it is not registered."""
        return await self._driver.bookie_info(bookie)

    def watch_bookies(self, mode: BookieMode, callback: Callable[[BookieSet], None]) -> Watch:
        """Call back with the bookies in a mode: now, and after each change, until the watch is cancelled."""
        return self._driver.watch_bookies(mode, callback)

    # -- parts ---------------------------------------------------------------------------------------------------
    async def _registered(self) -> tuple[BookieId, ...]:
        writable = await self._driver.bookies(BookieMode.WRITABLE)
        return (*writable.bookies, *(await self._driver.bookies(BookieMode.READ_ONLY)).bookies)
