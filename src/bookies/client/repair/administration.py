"""`Administration`: look at ledgers and bookies as a whole, and copy what a lost bookie held to others.

Made by `Client.administration`. Needs no password for ledgers whose record has it (all since format 2), for digests
are checked with the stored one. Everything may be cancelled anywhere: a record names a bookie only once all copies are
there, so what was interrupted is repeated, never undone. The shell of `protocol/repair/fragments.py` and
`protocol/repair/replicate.py`. Source: client-protocol 7.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from bookies.client.base import EntryBatch
from bookies.client.base.arguments import (
    TimeLimit,
    any_ledger_id,
    bookie_id,
    bookie_ids,
    percentage_of,
    rate,
    switch,
    whole_number,
)
from bookies.client.base.ledger_lock import ledger_locked
from bookies.client.base.metadata_loop import MetadataLoop
from bookies.client.read import LedgerReader
from bookies.client.repair.copying import LedgerCopier, on_new_bookies
from bookies.client.repair.ledger_access import LedgerAccess
from bookies.client.repair.replicas import LedgerReplicas
from bookies.client.repair.replication import (
    Account,
    BookieRecovery,
    LedgerMending,
    Move,
    OnProgress,
    RecoveryReport,
    renew,
    replicate_in_turn,
)
from bookies.client.repair.scan import ReplicaScan, scan, scan_list
from bookies.client.transport import BookiePool, BookieWatcher
from bookies.config import ClientConfig
from bookies.errors import (
    BookieUnreachable,
    BookKeeperError,
    EntryNotFound,
    InvalidArgument,
    LedgerNotFound,
    LedgerUnknownToBookie,
    ReadFailed,
    ReplicationFailed,
)
from bookies.metadata.interface import MetadataDriver, Watch
from bookies.metadata.interface.driver import BookieSet, Versioned
from bookies.metadata.interface.recovery_store import LedgerLock
from bookies.model import BookieId, BookieInfo, BookieMode, DigestType, LedgerMetadata
from bookies.protocol.placement.placement import fewest_changes, judge
from bookies.protocol.quorums import write_set
from bookies.protocol.repair import Fragment, FragmentVerdict, RateLimit
from bookies.protocol.repair.fragments import (
    FragmentCheck,
    fragments_on,
    fragments_to_check,
    is_stored_on,
    missing_runs,
    stored_in,
)
from bookies.protocol.repair.replicate import Replacement, check_finished, choose_some_targets, choose_targets, renewals
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import all_of

LISTED_AT_ONCE = 32  # records that a listing reads at a time
OWNER = "a client's administration"  # of locks, for people


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
    """See the module. `password` and `digest_type` count only for ledgers whose record has none. `owner`: of locks.

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
        owner: str = OWNER,
    ) -> None:
        self._owner = owner
        self._random = runtime.random
        self._pool = pool
        self._driver = driver
        self._access = LedgerAccess(
            runtime,
            config,
            pool,
            driver,
            watcher.candidates,
            watcher.locate,
            password=password,
            digest_type=digest_type,
        )

    # -- ledgers -------------------------------------------------------------------------------------------------
    async def open(self, ledger_id: int, *, timeout: float | None = None) -> LedgerReader:
        """Open a ledger for reading, whatever its password; never disturbs its writer. Raises as `Client.open`."""
        async with TimeLimit(timeout, f"open ledger {ledger_id}"):
            return await self._access.reader(await self._access.read(any_ledger_id(ledger_id)))

    async def recover(self, ledger_id: int, *, timeout: float | None = None) -> LedgerMetadata:
        """Fence a ledger's writer, find its last entry, seal it, whatever its password. Raises as `Client.recover`."""
        async with TimeLimit(timeout, f"recover ledger {ledger_id}"):
            return (await self._access.sealed(any_ledger_id(ledger_id))).metadata

    def locked(self, ledger_id: int) -> AbstractAsyncContextManager[LedgerLock]:
        """Hold a ledger's lock of auto-recovery: for those who write entries to bookies that its record does not name
        yet, so that no bookie deletes them. Entering it raises `LedgerLocked`."""
        return ledger_locked(self._driver, any_ledger_id(ledger_id), self._owner)

    async def change_record(
        self,
        ledger_id: int,
        change: Callable[[LedgerMetadata], LedgerMetadata | None],
        *,
        lock: LedgerLock | None = None,
    ) -> LedgerMetadata:
        """Change a ledger's record by compare-and-swap; the record as it is then. For those who know
        what may be changed.

        `change`: from the record that was read to the one to write, None when there is nothing to change; asked again
        after a conflict. `lock`: of the ledger, which has to be held. Raises what `change` raises, `LedgerNotFound`,
        `SessionExpired` when the lock is lost.
        """
        found = await self._access.read(any_ledger_id(ledger_id))
        loop = MetadataLoop(self._access.runtime, self._driver, found, lock)

        def changed(record: LedgerMetadata) -> LedgerMetadata:
            new = change(record)
            assert new is not None
            return new

        return (await loop.update(lambda record: change(record) is not None, changed)).metadata

    async def write_entries(self, record: LedgerMetadata, batch: EntryBatch) -> None:
        """Store entries that come from elsewhere on the bookies that this record, stored or not, names. Durable, and
        harmless when done again. Raises why a bookie did not take one."""
        await LedgerCopier(self._access, self._pool, record).write(batch)

    async def check_entries(self, record: LedgerMetadata) -> None:
        """Read all replicas of all entries from the bookies that this record, stored or not, names.

        Raises `ReplicationFailed` when one is not there or not good.
        """
        await LedgerCopier(self._access, self._pool, record).check()

    async def with_new_bookies(self, record: LedgerMetadata) -> LedgerMetadata:
        """The record with writable bookies in all its fragments. Raises `NotEnoughBookies`."""
        return await on_new_bookies(self._access, record)

    async def instance_id(self) -> str:
        """The cluster's own, which tells it from every other cluster."""
        return await self._driver.instance_id() or ""

    def read_stored(self, ledger_id: int, first: int = 0, last: int = -1) -> AsyncIterator[tuple[int, bytes]]:
        """(id, body) of entries first..last as they are stored: header, digest, payload; verified.

        `last` -1: up to the last add confirmed, or to where an open ledger's entries end before that. The iteration
        raises what reading raises, `EntryNotFound` only with a `last`. Raises `InvalidArgument`.
        """
        ledger_id, first, last = any_ledger_id(ledger_id), whole_number("first", first), whole_number("last", last, -1)
        if last != -1 and last < first:
            raise InvalidArgument(f"read_stored({first}, {last}): must be first <= last, or last -1 for all there are")
        return self._stored(ledger_id, first, last)

    async def _stored(self, ledger_id: int, first: int, last: int) -> AsyncIterator[tuple[int, bytes]]:
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
        wanted, found = bookie_ids("bookies", bookies), {}
        async with TimeLimit(timeout, f"list the ledgers on {', '.join(wanted)}"):
            async for ids in self._driver.ledger_ids():
                for start in range(0, len(ids), LISTED_AT_ONCE):
                    for record in await all_of(map(self._record_or_none, ids[start : start + LISTED_AT_ONCE])):
                        if record and any(record.names(each) for each in wanted):
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
        ledger_id, percentage = any_ledger_id(ledger_id), percentage_of(percentage)
        async with TimeLimit(timeout, f"check ledger {ledger_id}"):
            found = await self._access.read(ledger_id)
            return await self.check_record(found, await self._registered(), percentage=percentage)

    async def check_record(
        self, found: Versioned, registered: Collection[BookieId], *, percentage: float = 0
    ) -> LedgerCheck:
        """As `check_ledger`, of a record as it was read, for those who know which bookies are registered."""
        fragments = await self.fragments_of(found)
        replicas = self._access.replicas(found.metadata)
        verdicts = [await self._check(fragment, registered, percentage, replicas) for fragment in fragments]
        return LedgerCheck(found.metadata, tuple(verdicts))

    async def ask_holders(
        self, record: LedgerMetadata, entry_id: int, registered: Collection[BookieId]
    ) -> list[tuple[BookieId, BookKeeperError | None]]:
        """Have each registered bookie that must have an entry deliver it; what is wrong with its replica, None:
        nothing."""
        ensemble, replicas = record.ensemble_at(entry_id), self._access.replicas(record)

        async def ask(bookie: BookieId) -> BookKeeperError | None:
            if bookie not in registered:
                return BookieUnreachable("it is not registered", ledger_id=record.ledger_id, bookie=bookie)
            bad = await replicas.first_bad(bookie, [entry_id])
            return None if bad is None else bad[1]

        holders = [ensemble[position] for position in write_set(entry_id, len(ensemble), record.write_quorum)]
        return list(zip(holders, await all_of(map(ask, holders)), strict=True))

    async def fragments(self, ledger_id: int) -> tuple[LedgerMetadata, list[Fragment]]:
        """A ledger's record, and its fragments that hold entries, in order. Raises `LedgerNotFound`.

        Of a ledger that is not sealed its bookies are asked where it ends; when they cannot say, its last fragment is
        taken to end where it begins.
        """
        found = await self._access.read(any_ledger_id(ledger_id))
        return found.metadata, await self.fragments_of(found)

    async def fragments_of(self, found: Versioned) -> list[Fragment]:
        """As `fragments`, of a record as it was read."""
        try:
            confirmed = await self._access.last_add_confirmed(found)
        except (BookieUnreachable, ReadFailed):
            confirmed = -1  # Nobody can tell, so the last fragment is judged by its first entry.
        return fragments_to_check(found.metadata, confirmed)

    async def scan_replica(
        self,
        record: LedgerMetadata,
        bookie: BookieId,
        ids: Sequence[int],
        *,
        visit: Callable[[EntryBatch], None] | None = None,
        pace: RateLimit | None = None,
        is_listing: bool = False,
    ) -> ReplicaScan:
        """Read these entries, ascending, as one bookie has them, verify each, and say which are not good.

        `visit`: called with each batch of good ones, in no particular order. `pace`: of the bytes read. `is_listing`:
        only look which are there, by the bookie's own list. A bookie that does not answer ends it; it is no error.
        """
        if not isinstance(record, LedgerMetadata):
            raise InvalidArgument(f"record={record!r}: must be a LedgerMetadata, as Client.metadata gives it")
        bookie = bookie_id(bookie)
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
        return await self._pool.list_entries(bookie_id(bookie), whole_number("ledger_id", ledger_id))

    async def missing_entries(self, bookie: BookieId, ledger_id: int, *, timeout: float | None = None) -> list[range]:
        """Which entries a bookie ought to hold of a ledger and does not, by its own list: one request, nothing is read.

        Raises `LedgerNotFound`, `BookieUnreachable`.
        """
        bookie, ledger_id = bookie_id(bookie), any_ledger_id(ledger_id)
        async with TimeLimit(timeout, f"list what bookie {bookie} lacks of ledger {ledger_id}"):
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
            return is_stored_on((await self._access.read(any_ledger_id(ledger_id))).metadata, bookie_id(bookie))
        except LedgerNotFound:
            return False

    # -- placement -----------------------------------------------------------------------------------------------
    async def judge_placement(self, fragment: Fragment) -> tuple[int, list[str]]:
        """How well a fragment's bookies meet the placement policy of this client, and why not better.

        1: not, 3: less than desired, 5: fully; the numbers are Apache's.
        """
        await self._access.locate()
        cluster = self._access.candidates().cluster
        found = judge(cluster.topology, cluster.policy, fragment.ensemble, fragment.write_quorum, fragment.ack_quorum)
        return int(found.adherence), [finding.reason for finding in found.findings]

    async def misplaced(self, fragment: Fragment, exclude: Collection[BookieId] = ()) -> list[int]:
        """The fewest positions of a fragment that need other bookies for it to meet the placement policy.

        `exclude`: who must not be chosen. Raises `NotEnoughBookies`, which says what stands in the way.
        """
        await self._access.locate()
        changes = fewest_changes(
            self._access.candidates(),
            fragment.ensemble,
            fragment.write_quorum,
            fragment.ack_quorum,
            bookie_ids("exclude", exclude),
        )
        return [change.position for change in changes]

    # -- replication ---------------------------------------------------------------------------------------------
    async def replicate_fragment(
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
        """Copy what these positions of a fragment hold to other bookies, then let the record name those.

        `in_place`: copy to the very bookies that are there, which have lost entries. `exclude`: who must not be
        chosen. `fragment`, `positions`: as from `check_ledger`. `bytes_per_s`: of all copies; None: as fast as it goes.
        `pace`: shared with other operations, in its place. The ledger's lock of auto-recovery is held from before the
        first copy until after the change. `update`: of those who hold it already and have read the record. A bookie
        that refuses its copy is passed over for another one.
        Raises `InvalidArgument`, `FragmentNotFinished`, `NotEnoughBookies`, `LedgerLocked`, `VersionConflict` (changed
        meanwhile), why entries cannot be read or written, and what a metadata update raises; `SessionExpired`, too,
        when the lock is lost. Then the record has not been changed, but for some of several positions if there is room
        for those: the first ones of `positions`, as many as can be.
        """
        wanted = _positions(fragment, positions)
        unwanted = bookie_ids("exclude", exclude)
        in_place, bytes_per_s = switch("in_place", in_place), rate("bytes_per_s", bytes_per_s)

        moves: list[Move] = []

        def choose(now: Fragment, left: Sequence[int], refusing: Collection[BookieId]) -> tuple[Replacement, ...]:
            if in_place:
                return renewals(now, left)
            return choose_some_targets(now, left, self._access.candidates(), [*unwanted, *refusing])

        async with TimeLimit(timeout, f"copy entries {fragment.first} to {fragment.last} of {fragment.ledger_id}"):
            check_finished(fragment)
            account = Account(1, pace or bytes_per_s, progress)
            if update is not None:
                await replicate_in_turn(self._access, fragment, wanted, choose, update, account, moves)
            else:
                async with ledger_locked(self._driver, fragment.ledger_id, self._owner) as lock:
                    found = await self._access.read(fragment.ledger_id)
                    update = MetadataLoop(self._access.runtime, self._driver, found, lock)
                    await replicate_in_turn(self._access, fragment, wanted, choose, update, account, moves)
        return replace(moves[0], replacements=tuple(each for move in moves for each in move.replacements))

    async def plan_fragment(
        self, fragment: Fragment, positions: Sequence[int], *, exclude: Collection[BookieId] = ()
    ) -> tuple[Replacement, ...]:
        """The bookies that `replicate_fragment` would copy to now; the next call may choose others. Copies nothing.

        Raises `InvalidArgument`, and `NotEnoughBookies`, which says what stands in the way of having one for each.
        """
        wanted = _positions(fragment, positions)
        await self._access.locate()
        return choose_targets(fragment, wanted, self._access.candidates(), bookie_ids("exclude", exclude))

    async def renew_entries(
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
        """Write again to a bookie those of these entries that it must hold by the record; how many were written.

        For single entries that it has lost, or holds damaged; nothing but these is copied and the record stays as it
        is. `pace`: as in `replicate_fragment`. Raises `LedgerNotFound`, `FragmentNotFinished`, `InvalidArgument` for a
        bookie that neither the cluster nor the ledger knows, and why an entry cannot be read anywhere or written.
        """
        ledger_id, bookie = any_ledger_id(ledger_id), bookie_id(bookie)
        bytes_per_s = rate("bytes_per_s", bytes_per_s)
        async with TimeLimit(timeout, f"renew entries of ledger {ledger_id} on {bookie}"):
            account = Account(1, pace or bytes_per_s, progress)
            record, fragments = await self.fragments(ledger_id)
            await self._check_known(bookie, [record])
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
        lost: Collection[BookieId] = (),
        dry_run: bool = False,
        bytes_per_s: float | None = None,
        progress: OnProgress | None = None,
        timeout: float | None = None,
    ) -> tuple[Move, ...]:
        """Check a ledger and make whole what is bad: bookies that lost entries get them again, lost ones are replaced.

        `percentage`: as in `check_ledger`; what it does not look at is not repaired. `lost`: bookies that are stopped
        and will not come back; while one is registered it is not lost. Of another one that does not answer, or cannot
        tell, it is not known what it has, so it stays. `dry_run`: only what would be done. Fragments that may still
        grow are left to the ledger's writer. It is done under the ledger's lock of auto-recovery.
        Raises `LedgerLocked`; `ReplicationFailed` after all that could be repaired was, also when it is not known what
        a bookie has.
        """
        bytes_per_s, dry_run = rate("bytes_per_s", bytes_per_s), switch("dry_run", dry_run)
        ledger_id, gone = any_ledger_id(ledger_id), list(bookie_ids("lost", lost))
        async with TimeLimit(timeout, f"repair ledger {ledger_id}"):
            if gone:
                registered = await self._registered()
                gone = [each for each in gone if each not in registered]
            work = LedgerMending(self._access, gone, Account(1, bytes_per_s, progress), dry_run)
            if dry_run:
                await work.mend((await self.check_ledger(ledger_id, percentage=percentage)).fragments, None)
            else:
                async with ledger_locked(self._driver, ledger_id, self._owner) as lock:
                    await work.mend((await self.check_ledger(ledger_id, percentage=percentage)).fragments, lock)
        if work.failures:
            raise ReplicationFailed(work.summary, causes=work.failures, ledger_id=ledger_id, moves=work.moves)
        return tuple(work.moves)

    async def recover_bookies(
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
        """Copy all that these bookies hold, by the records, to others, of every ledger or of one.

        They have to be down or read-only, otherwise they go on receiving; `force`: even so. A ledger that is being
        written to one of them is recovered first, which stops its writer; `skip_open` leaves it alone.
        `skip_unrecoverable`: pass over ledgers that cannot be recovered. `dry_run`: only say what would be done, of
        bookies in any state, with everything that could not be among the report's `obstacles`. `progress`: called now
        and then. Each ledger is copied under its lock of auto-recovery; those that somebody else has locked are taken
        up again when all others are done, for about a minute.

        Raises `InvalidArgument` for a bookie that is writable, or that nobody knows, before anything is done;
        `ReplicationFailed` when fragments could not be copied, after all others were: repeat it.
        """
        wanted = bookie_ids("bookies", bookies)
        if not wanted:
            raise InvalidArgument("recover_bookies: name at least one bookie")
        dry_run, skip_open = switch("dry_run", dry_run), switch("skip_open", skip_open)
        skip_unrecoverable, force = switch("skip_unrecoverable", skip_unrecoverable), switch("force", force)
        bytes_per_s = rate("bytes_per_s", bytes_per_s)
        async with TimeLimit(timeout, f"recover {', '.join(wanted)}"):
            if ledger_id is None:
                ledgers = await self.ledgers_on(wanted)
            else:
                ledgers = {ledger_id: (await self._access.read(any_ledger_id(ledger_id))).metadata}
            await self._check_recoverable(wanted, ledgers, may_be_writable=force or dry_run)
            account = Account(len(ledgers), bytes_per_s, progress)
            registered = await self._registered()
            wanted.sort(key=lambda bookie: bookie in registered)  # What is lost is more urgent than what is emptied.
            run = BookieRecovery(self._access, wanted, account, self._owner, dry_run, skip_open, skip_unrecoverable)
            await run.ledgers(list(ledgers))
        obstacles = sorted(run.obstacles, key=lambda each: (each.ledger_id, each.first or 0))
        if obstacles and not dry_run:
            raise ReplicationFailed(
                f"{len(run.moves)} fragments of {', '.join(wanted)} were copied and {len(obstacles)} could "
                f"not be; repeat it when the cause is mended. The first, of ledger {obstacles[0].ledger_id}: "
                f"{obstacles[0].error}",
                causes=[each.error for each in obstacles],
                moves=run.moves,
            )
        moves = sorted(run.moves, key=lambda move: (move.ledger_id, move.first))
        skipped = tuple(sorted(run.skipped))
        return RecoveryReport(tuple(moves), skipped, account.entries, account.size, tuple(obstacles))

    async def _check_recoverable(
        self, bookies: Sequence[BookieId], ledgers: Mapping[int, LedgerMetadata], *, may_be_writable: bool
    ) -> None:
        """Raises `InvalidArgument` for bookies that `recover_bookies` must not be asked to recover."""
        writable = (await self._driver.bookies(BookieMode.WRITABLE)).bookies
        for bookie in bookies:
            await self._check_known(bookie, ledgers.values())
            if bookie in writable and not may_be_writable:
                raise InvalidArgument(
                    f"bookie {bookie} is registered as writable, so it goes on receiving entries while its old ones "
                    "are copied: stop it or make it read-only, and wait until that is noticed, or force it "
                    "(force=True, --force)"
                )

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
        bookie, bytes_per_s = bookie_id(bookie), rate("bytes_per_s", bytes_per_s)
        async with TimeLimit(timeout, f"decommission {bookie}"):
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

    async def _check_known(self, bookie: BookieId, records: Iterable[LedgerMetadata]) -> None:
        """Raises `InvalidArgument` for a bookie that neither the cluster nor one of these ledgers knows."""
        known = [*(await self._registered()), *(await self._driver.all_bookies()).bookies]
        if bookie in known or any(record.names(bookie) for record in records):
            return
        raise InvalidArgument(
            f"there is no bookie {bookie}, and no ledger names it: the cluster has "
            f"{', '.join(sorted(dict.fromkeys(known))) or 'none'}"
        )

    # -- parts ---------------------------------------------------------------------------------------------------
    async def _registered(self) -> tuple[BookieId, ...]:
        return tuple(await self._driver.modes())


def _positions(fragment: object, positions: object) -> list[int]:
    """Checked arguments of `replicate_fragment`. Raises `InvalidArgument`."""
    if not isinstance(fragment, Fragment):
        raise InvalidArgument(f"fragment={fragment!r}: must be a Fragment, as check_ledger gives them")
    if isinstance(positions, str) or not isinstance(positions, Sequence) or not positions:
        raise InvalidArgument(f"positions={positions!r}: must be a list of at least one place in the ensemble")
    wanted = [whole_number("positions", each, 0, len(fragment.ensemble) - 1) for each in positions]
    if len(set(wanted)) < len(wanted):
        raise InvalidArgument(f"positions={positions!r}: names a place in the ensemble twice")
    return wanted
