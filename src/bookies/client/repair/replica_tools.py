"""Single steps with any ledger: open it, check it, copy a fragment, renew entries.

Steps need no password for ledgers whose record contains it (all since format 2), because digests are checked with the
stored one. Cancelling is safe anywhere: a record names a bookie only after all copies are there, so an interrupted
operation is repeated, never undone. The shell of `protocol/repair/fragments.py` and `protocol/repair/replicate.py`.
`ledger_repair.py` makes a repair of them. Source: client-protocol 7.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from msgspec import Struct
from msgspec.structs import replace

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
from bookies.client.repair.copying import LedgerCopier, place_on_new_bookies
from bookies.client.repair.ledger_access import LedgerAccess
from bookies.client.repair.replicas import LedgerReplicas
from bookies.client.repair.replication import Account, Copying, Move, OnProgress, avoiding, renew, replicate_positions
from bookies.client.repair.scan import ReplicaScan, scan, scan_list
from bookies.errors import (
    BookieUnreachable,
    BookKeeperError,
    EntryNotFound,
    InvalidArgument,
    LedgerNotFound,
    LedgerUnknownToBookie,
    MetadataCorrupt,
    ReadFailed,
)
from bookies.metadata.interface.driver import READ_AT_ONCE, Versioned
from bookies.metadata.interface.recovery_store import LedgerLock
from bookies.model import BookieId, LedgerMetadata
from bookies.protocol.pacing import RateLimit
from bookies.protocol.placement.placement import fewest_changes, judge
from bookies.protocol.quorums import write_set
from bookies.protocol.repair import Fragment, FragmentVerdict
from bookies.protocol.repair.fragments import (
    FragmentCheck,
    fragments_on,
    fragments_to_check,
    is_stored_on,
    missing_runs,
    stored_in,
)
from bookies.protocol.repair.replicate import Replacement, check_finished, choose_targets, renewals
from bookies.runtime.tasks import all_of

LISTED_AT_ONCE = 32  # records that a listing reads at a time
OWNER = "a client's administration"  # holder's name in locks, shown to operators


class LedgerCheck(Struct, frozen=True):
    """Result of `check_ledger`: a verdict for each fragment that holds entries."""

    metadata: LedgerMetadata
    fragments: tuple[FragmentVerdict, ...]

    @property
    def is_ok(self) -> bool:
        """True if every replica of every fragment is known to be good."""
        return all(fragment.is_ok for fragment in self.fragments)

    @property
    def fewest_replicas(self) -> int | None:
        """Good replicas of the entry that has the fewest; None for a ledger without entries."""
        return min((fragment.fewest_replicas for fragment in self.fragments), default=None)


class ReplicaTools:
    """Operator's tools for single ledgers and fragments.

    `password` and `digest_type` are used only for ledgers whose record has none. `owner`: holder's name in the ledgers'
    locks.

    Methods raise `ClientClosed` and `MetadataError` besides the errors that they name. `timeout`: seconds, then
    TimeoutError.
    """

    def __init__(self, access: LedgerAccess, owner: str = OWNER) -> None:
        self._owner = owner
        self._random = access.runtime.random
        self._pool = access.pool
        self._driver = access.driver
        self.access = access

    # -- ledgers -------------------------------------------------------------------------------------------------
    async def open(self, ledger_id: int, *, timeout: float | None = None) -> LedgerReader:
        """Open a ledger for reading without its password; never disturbs its writer. Raises as `Client.open`."""
        async with TimeLimit(timeout, f"open ledger {ledger_id}"):
            return await self.access.reader(await self.access.read(any_ledger_id(ledger_id)))

    async def recover(self, ledger_id: int, *, timeout: float | None = None) -> LedgerMetadata:
        """Recover a ledger without its password: fence its writer, find its last entry, seal it.

        Raises as `Client.recover`.
        """
        async with TimeLimit(timeout, f"recover ledger {ledger_id}"):
            return (await self.access.sealed(any_ledger_id(ledger_id))).metadata

    def locked(self, ledger_id: int) -> AbstractAsyncContextManager[LedgerLock]:
        """Hold a ledger's lock of auto-recovery while entries are written to bookies that its record does not name yet.

        The lock keeps bookies from deleting these entries. Entering raises `LedgerLocked`.
        """
        return ledger_locked(self._driver, any_ledger_id(ledger_id), self._owner)

    async def change_record(
        self,
        ledger_id: int,
        change: Callable[[LedgerMetadata], LedgerMetadata | None],
        *,
        lock: LedgerLock | None = None,
    ) -> LedgerMetadata:
        """Change a ledger's record by compare-and-swap and return the new record.

        The caller is responsible for valid changes. `change`: returns the new record for the one that was read, or None
        if no change is left to make; called again after a conflict. `lock`: the ledger's lock, which must be held.
        Raises what `change` raises, `LedgerNotFound`, `SessionExpired` if the lock is lost.
        """
        versioned = await self.access.read(any_ledger_id(ledger_id))
        loop = MetadataLoop(self.access.runtime, self._driver, versioned, lock)

        def changed(record: LedgerMetadata) -> LedgerMetadata:
            new = change(record)
            assert new is not None
            return new

        return (await loop.update(lambda record: change(record) is not None, changed)).metadata

    async def write_entries(self, record: LedgerMetadata, batch: EntryBatch) -> None:
        """Store entries from elsewhere on the bookies that this record, stored or not, names.

        The entries are durable on return. Repeating the call does no harm. Raises the error of a bookie that refused an
        entry.
        """
        await LedgerCopier(self.access, record).write(batch)

    async def check_entries(self, record: LedgerMetadata) -> None:
        """Read all replicas of all entries from the bookies that this record, stored or not, names.

        Raises `ReplicationFailed` if one is missing or damaged.
        """
        await LedgerCopier(self.access, record).check()

    async def with_new_bookies(self, record: LedgerMetadata) -> LedgerMetadata:
        """Return the record with writable bookies in all its fragments. Raises `NotEnoughBookies`."""
        return await place_on_new_bookies(self.access, record)

    async def instance_id(self) -> str:
        """Return the id that distinguishes this cluster from every other cluster."""
        return await self._driver.instance_id() or ""

    def read_stored(self, ledger_id: int, first: int = 0, last: int = -1) -> AsyncIterator[tuple[int, bytes]]:
        """Iterate over (id, body) of entries first..last as they are stored: header, digest, payload; verified.

        `last` -1: up to the last add confirmed, or to the first missing entry of an open ledger. The iteration raises
        what reading raises, and `EntryNotFound` only if `last` is given. Raises `InvalidArgument`.
        """
        ledger_id, first, last = any_ledger_id(ledger_id), whole_number("first", first), whole_number("last", last, -1)
        if last != -1 and last < first:
            raise InvalidArgument(f"read_stored({first}, {last}): must be first <= last, or last -1 for all there are")
        return self._stored(ledger_id, first, last)

    async def _stored(self, ledger_id: int, first: int, last: int) -> AsyncIterator[tuple[int, bytes]]:
        versioned = await self.access.read(ledger_id)
        record = versioned.metadata
        confirmed = await self.access.last_add_confirmed(versioned)
        replicas = self.access.replicas(record)
        end = confirmed if last == -1 else min(last, confirmed)
        entry_id = first
        while entry_id <= end:
            ensemble = record.ensemble_at(entry_id)
            holders = [ensemble[position] for position in write_set(entry_id, len(ensemble), record.write_quorum)]
            try:
                [body] = await replicas.read_from_any(self._pool.health.order(holders), [entry_id])
            except EntryNotFound:
                if last == -1:
                    return
                raise
            yield entry_id, body
            entry_id += 1
        if last > confirmed:
            raise EntryNotFound(f"after the last add confirmed, {confirmed}", ledger_id=ledger_id, entry_id=entry_id)

    async def record(self, ledger_id: int) -> Versioned:
        """Return a ledger's record and its version in the metadata store. Raises `LedgerNotFound`."""
        return await self.access.read(ledger_id)

    async def records(self, ledger_ids: Sequence[int]) -> AsyncIterator[list[Versioned]]:
        """Iterate over the records of these ledgers, in groups; those that do not exist are left out.

        Raises `MetadataCorrupt`.
        """
        for start in range(0, len(ledger_ids), READ_AT_ONCE):
            group = []
            for stored in await self._driver.read_ledgers(ledger_ids[start : start + READ_AT_ONCE]):
                if isinstance(stored, MetadataCorrupt):
                    raise stored
                if stored is not None:
                    group.append(stored)
            yield group

    async def ledger_ids(self) -> AsyncIterator[Sequence[int]]:
        """Iterate over the ids of all ledgers, ascending, in pages.

        Includes every ledger that exists during the whole iteration.
        """
        async for ids in self._driver.ledger_ids():
            yield ids

    async def ledgers_on(
        self, bookies: Collection[BookieId], *, timeout: float | None = None
    ) -> dict[int, LedgerMetadata]:
        """Return the ledgers, in any state, that name any of these bookies in any fragment, by ascending id."""
        wanted, ledgers = bookie_ids("bookies", bookies), {}
        async with TimeLimit(timeout, f"list the ledgers on {', '.join(wanted)}"):
            async for ids in self._driver.ledger_ids():
                for start in range(0, len(ids), LISTED_AT_ONCE):
                    for record in await all_of(map(self._record_or_none, ids[start : start + LISTED_AT_ONCE])):
                        if record and any(record.names(bookie) for bookie in wanted):
                            ledgers[record.ledger_id] = record
        return ledgers

    async def _record_or_none(self, ledger_id: int) -> LedgerMetadata | None:
        try:
            return (await self.access.read(ledger_id)).metadata
        except LedgerNotFound:
            return None  # Deleted since it was listed.

    # -- checking ------------------------------------------------------------------------------------------------
    async def check_ledger(self, ledger_id: int, *, percentage: float = 0, timeout: float | None = None) -> LedgerCheck:
        """Check every replica of a ledger by reading the first and last entry of each fragment from each bookie.

        `percentage`: also read this share of the other entries; 100 verifies every copy of every entry. `timeout`:
        seconds. Raises `LedgerNotFound`. A bookie that does not answer is a verdict, not an error.
        """
        ledger_id, percentage = any_ledger_id(ledger_id), percentage_of(percentage)
        async with TimeLimit(timeout, f"check ledger {ledger_id}"):
            versioned = await self.access.read(ledger_id)
            return await self.check_record(versioned, await self._registered(), percentage=percentage)

    async def check_record(
        self, found: Versioned, registered: Collection[BookieId], *, percentage: float = 0
    ) -> LedgerCheck:
        """Check a ledger as `check_ledger` does, given its record as read and the registered bookies."""
        fragments = await self.fragments_of(found)
        replicas = self.access.replicas(found.metadata)
        verdicts = [await self._check(fragment, registered, percentage, replicas) for fragment in fragments]
        return LedgerCheck(found.metadata, tuple(verdicts))

    async def ask_holders(
        self, record: LedgerMetadata, entry_id: int, registered: Collection[BookieId]
    ) -> list[tuple[BookieId, BookKeeperError | None]]:
        """Read an entry from each bookie that must have it. Returns the error of each replica, None if it is good.

        A bookie that is not in `registered` is reported as unreachable.
        """
        ensemble, replicas = record.ensemble_at(entry_id), self.access.replicas(record)

        async def ask(bookie: BookieId) -> BookKeeperError | None:
            if bookie not in registered:
                return BookieUnreachable("it is not registered", ledger_id=record.ledger_id, bookie=bookie)
            bad = await replicas.first_bad(bookie, [entry_id])
            return None if bad is None else bad[1]

        holders = [ensemble[position] for position in write_set(entry_id, len(ensemble), record.write_quorum)]
        return list(zip(holders, await all_of(map(ask, holders)), strict=True))

    async def fragments(self, ledger_id: int) -> tuple[LedgerMetadata, list[Fragment]]:
        """Return a ledger's record and its fragments that hold entries, in order. Raises `LedgerNotFound`.

        If the ledger is not sealed, its bookies are asked for its end. If they cannot determine it, the last fragment
        is taken to end at its first entry.
        """
        versioned = await self.access.read(any_ledger_id(ledger_id))
        return versioned.metadata, await self.fragments_of(versioned)

    async def fragments_of(self, found: Versioned) -> list[Fragment]:
        """Return the fragments as `fragments` does, given a record as read."""
        try:
            confirmed = await self.access.last_add_confirmed(found)
        except (BookieUnreachable, ReadFailed):
            confirmed = -1  # The end is unknown, so the last fragment is judged by its first entry.
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
        """Read these entries, ascending, from one bookie, verify each, and report those that are missing or damaged.

        * `visit`: called with each batch of good entries, in no particular order.
        * `pace`: limits the bytes read.
        * `is_listing`: only compare the ids with the bookie's own list, without reading.

        A bookie that does not answer ends the scan; it is reported, not raised.
        """
        if not isinstance(record, LedgerMetadata):
            raise InvalidArgument(f"record={record!r}: must be a LedgerMetadata, as Client.metadata gives it")
        bookie = bookie_id(bookie)
        replicas = self.access.replicas(record)
        if is_listing:
            return await scan_list(replicas, bookie, ids)
        return await scan(replicas, bookie, ids, visit, pace)

    async def _check(
        self, fragment: Fragment, known: Collection[BookieId], percentage: float, replicas: LedgerReplicas
    ) -> FragmentVerdict:
        check = FragmentCheck(fragment, known, percentage, self._random.randrange)
        results = await all_of(replicas.first_bad(ask.bookie, ask.entry_ids) for ask in check.asks)
        for ask, bad in zip(check.asks, results, strict=True):
            if bad is None:
                check.held(ask.position)
            else:
                check.failed(ask.position, *bad)
        return check.verdict()

    async def list_entries(self, bookie: BookieId, ledger_id: int) -> list[range]:
        """List the entries of a ledger that a bookie holds, as ranges.

        Raises `LedgerUnknownToBookie`, `BookieUnreachable`.
        """
        return await self._pool.list_entries(bookie_id(bookie), whole_number("ledger_id", ledger_id))

    async def missing_entries(self, bookie: BookieId, ledger_id: int, *, timeout: float | None = None) -> list[range]:
        """List the entries that a bookie should hold of a ledger and does not, by its own list. Reads no entry.

        Raises `LedgerNotFound`, `BookieUnreachable`.
        """
        bookie, ledger_id = bookie_id(bookie), any_ledger_id(ledger_id)
        async with TimeLimit(timeout, f"list what bookie {bookie} lacks of ledger {ledger_id}"):
            versioned = await self.access.read(ledger_id)
            fragments = fragments_to_check(versioned.metadata, await self.access.last_add_confirmed(versioned))
            try:
                held = await self._pool.list_entries(bookie, ledger_id)
            except LedgerUnknownToBookie:
                held = []
        missing: list[range] = []
        for fragment, positions in fragments_on(
            [checked for checked in fragments if not checked.is_doubtful], [bookie]
        ):
            missing += missing_runs(fragment.stored(positions[0]), held)
        return missing

    async def are_entries_stored(self, ledger_id: int, bookie: BookieId) -> bool:
        """Report whether, by the ledger's record, the bookie holds entries of it or may receive some.

        False if it is deleted.
        """
        try:
            return is_stored_on((await self.access.read(any_ledger_id(ledger_id))).metadata, bookie_id(bookie))
        except LedgerNotFound:
            return False

    # -- placement -----------------------------------------------------------------------------------------------
    async def judge_placement(self, fragment: Fragment) -> tuple[int, list[str]]:
        """Return how well a fragment's bookies meet this client's placement policy, and the violations.

        1: not met, 3: less than desired, 5: fully met; the numbers are Apache's.
        """
        await self.access.locate()
        cluster = self.access.candidates().cluster
        verdict = judge(cluster.topology, cluster.policy, fragment.ensemble, fragment.write_quorum, fragment.ack_quorum)
        return int(verdict.adherence), [finding.reason for finding in verdict.findings]

    async def misplaced(self, fragment: Fragment, exclude: Collection[BookieId] = ()) -> list[int]:
        """Return the fewest positions of a fragment that need other bookies to meet the placement policy.

        `exclude`: bookies that must not be chosen. Raises `NotEnoughBookies`, which names the rule that cannot be met.
        """
        await self.access.locate()
        changes = fewest_changes(
            self.access.candidates(),
            fragment.ensemble,
            fragment.write_quorum,
            fragment.ack_quorum,
            [*bookie_ids("exclude", exclude), *self.access.avoided()],
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
        target: BookieId | None = None,
        bytes_per_s: float | None = None,
        pace: RateLimit | None = None,
        progress: OnProgress | None = None,
        update: MetadataLoop | None = None,
        timeout: float | None = None,
    ) -> Move:
        """Copy the entries of these positions of a fragment to other bookies, then name these in the record.

        * `fragment`, `positions`: as from `check_ledger`.
        * `in_place`: copy to the same bookies, which have lost entries.
        * `exclude`: bookies that must not be chosen. `target`: the only one that may be.
        * `bytes_per_s`: limit over all copies; None: unlimited. `pace`: instead, a limit shared with other operations.
        * `update`: the record's loop, for callers that already hold the ledger's lock.

        The ledger's lock of auto-recovery is held from before the first copy until after the change. If a bookie
        refuses its copy, another one is chosen. If not all positions can be placed, the first of them are copied, as
        many as possible, and the call raises.

        Raises `InvalidArgument`, `FragmentNotFinished`, `NotEnoughBookies`, `LedgerLocked`, `VersionConflict` (the
        fragment has changed), `SessionExpired` (the lock is lost), the error of an entry that cannot be read or
        written, and what a metadata update raises. Except for positions already copied, the record is unchanged then.
        """
        wanted = _positions(fragment, positions)
        bytes_per_s = rate("bytes_per_s", bytes_per_s)
        moves: list[Move] = []
        only = None if target is None else bookie_id(target)
        choose = avoiding(self.access, bookie_ids("exclude", exclude), only)
        if switch("in_place", in_place):

            def choose(now: Fragment, left: Sequence[int], refusing: Collection[BookieId]) -> Sequence[Replacement]:
                return renewals(now, left)

        async with TimeLimit(timeout, f"copy entries {fragment.first} to {fragment.last} of {fragment.ledger_id}"):
            check_finished(fragment)
            async with AsyncExitStack() as held:
                if update is None:
                    lock = await held.enter_async_context(self.locked(fragment.ledger_id))
                    versioned = await self.access.read(fragment.ledger_id)
                    update = MetadataLoop(self.access.runtime, self._driver, versioned, lock)
                copying = Copying(self.access, Account(pace or bytes_per_s, progress), update)
                await replicate_positions(copying, fragment, wanted, choose, moves)
        return replace(moves[0], replacements=tuple(replacement for move in moves for replacement in move.replacements))

    async def plan_fragment(
        self, fragment: Fragment, positions: Sequence[int], *, exclude: Collection[BookieId] = ()
    ) -> tuple[Replacement, ...]:
        """Return the bookies that `replicate_fragment` would copy to now, without copying.

        The next call may choose others.

        Raises `InvalidArgument`, and `NotEnoughBookies`, which names the reason if a position cannot be placed.
        """
        wanted = _positions(fragment, positions)
        await self.access.locate()
        excluded = [*bookie_ids("exclude", exclude), *self.access.avoided()]
        return choose_targets(fragment, wanted, self.access.candidates(), excluded)

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
        """Rewrite to a bookie those of these entries that it must hold by the record; return how many were written.

        For single entries that it has lost or damaged. No other entries are copied, and the record does not change.
        `bytes_per_s`, `pace`: as in `replicate_fragment`. `timeout`: seconds.

        Raises `LedgerNotFound`, `FragmentNotFinished`, `InvalidArgument` for a bookie that neither the cluster nor the
        ledger knows, and the error of an entry that cannot be read from any replica or cannot be written.
        """
        ledger_id, bookie = any_ledger_id(ledger_id), bookie_id(bookie)
        bytes_per_s = rate("bytes_per_s", bytes_per_s)
        async with TimeLimit(timeout, f"renew entries of ledger {ledger_id} on {bookie}"):
            account = Account(pace or bytes_per_s, progress)
            record, fragments = await self.fragments(ledger_id)
            await self._check_known(bookie, [record])
            for fragment, positions in fragments_on(fragments, [bookie]):
                ids = stored_in(fragment.stored(positions[0]), entries)
                if ids:
                    check_finished(fragment)
                    await renew(self.access, record, fragment, positions[0], ids, account)
            return account.totals.entries

    async def _check_known(self, bookie: BookieId, records: Iterable[LedgerMetadata]) -> None:
        """Raise `InvalidArgument` for a bookie that neither the cluster nor one of these ledgers knows."""
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
    """Return the checked positions for `replicate_fragment`. Raises `InvalidArgument`."""
    if not isinstance(fragment, Fragment):
        raise InvalidArgument(f"fragment={fragment!r}: must be a Fragment, as check_ledger gives them")
    if isinstance(positions, str) or not isinstance(positions, Sequence) or not positions:
        raise InvalidArgument(f"positions={positions!r}: must be a list of at least one place in the ensemble")
    wanted = [whole_number("positions", position, 0, len(fragment.ensemble) - 1) for position in positions]
    if len(set(wanted)) < len(wanted):
        raise InvalidArgument(f"positions={positions!r}: names a place in the ensemble twice")
    return wanted
