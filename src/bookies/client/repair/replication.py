"""Execution of `protocol/repair/replicate.py`: copy fragments, swap bookies in the record, for many ledgers.

Cancelling is safe anywhere: the record of a fragment changes only after all its copies are durable. Copies to bookies
that the record does not name are written under the ledger's lock, see `ledger_lock.py`. Source: client-protocol 7.3 and
7.4.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from bookies.client.base.ledger_lock import in_rounds, ledger_locked
from bookies.client.base.metadata_loop import MetadataLoop
from bookies.client.repair.ledger_access import LedgerAccess
from bookies.client.repair.replicas import CopyRefused
from bookies.errors import (
    BookieUnreachable,
    BookKeeperError,
    ClientClosed,
    LedgerLocked,
    LedgerNotFound,
    MetadataError,
    NotEnoughBookies,
)
from bookies.metadata.interface.driver import Versioned
from bookies.metadata.interface.recovery_store import LedgerLock
from bookies.model import BookieId, BookieMode, LedgerMetadata, LedgerState
from bookies.protocol.pacing import RateLimit
from bookies.protocol.placement.placement_proof import abbreviated
from bookies.protocol.repair import Fragment, FragmentVerdict
from bookies.protocol.repair.fragments import ReplicaVerdict, fragments_on, fragments_to_check, runs_of
from bookies.protocol.repair.repair_work import Circumstances
from bookies.protocol.repair.replicate import (
    ENTRIES_MAX,
    FragmentCopy,
    Replacement,
    choose_some_targets,
    renewals,
    repairs,
    replaced_in,
    unknown_replicas,
)
from bookies.runtime.tasks import all_of
from bookies.runtime.throttle import pause, throttle

COPIED_AT_ONCE = 8  # ledgers; most are small, so each copy mostly waits


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """Progress of a long operation. `entries`, `size`: entries and bytes copied so far, over all copies.

    `locked`: ledgers that the operation waits for, and the holders of their locks. `trouble`: error of the metadata
    store; None once it has answered again.
    """

    ledger_id: int
    ledgers_done: int
    ledgers: int
    entries: int = 0
    size: int = 0
    locked: Mapping[int, str] = field(default_factory=dict)
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """Entries first..last of a ledger, and which bookies replace which.

    `needs_sealing`: the ledger must be sealed first; its last entry is known only then.
    """

    ledger_id: int
    first: int
    last: int
    replacements: tuple[Replacement, ...]
    needs_sealing: bool = False


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Entries first..last of a ledger that cannot be copied, and why.

    `first` None: no entry of the ledger can be copied.
    """

    ledger_id: int
    first: int | None
    last: int | None
    error: BookKeeperError


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """Result of `recover_bookies`, or of its dry run.

    `skipped`: ledgers left alone, as the caller's options asked. `obstacles`: ledgers or fragments that could not be
    copied; only a dry run reports them, otherwise the call raises.
    """

    moves: tuple[Move, ...]
    skipped: tuple[int, ...]
    entries: int
    size: int
    obstacles: tuple[Obstacle, ...] = ()


OnProgress = Callable[[CopyProgress], None]
Choose = Callable[[Fragment, Sequence[int], Collection[BookieId]], Sequence[Replacement]]
"""Choose bookies for at least some of the positions of a fragment; the last argument excludes bookies."""


class Account:
    """The running totals of one operation, its rate limit, and its progress callback.

    `pace`: a limit shared with other operations, or bytes per second of this one alone; None: unlimited.
    """

    def __init__(self, ledgers: int, pace: RateLimit | float | None, progress: OnProgress | None) -> None:
        self.pace = pace if isinstance(pace, RateLimit) else RateLimit(pace)
        self.ledgers = ledgers
        self.ledgers_done = 0
        self.entries = 0
        self.size = 0
        self.locked: dict[int, str] = {}
        self.trouble: str | None = None
        self._progress = progress

    def copied(self, ledger_id: int, entries: int, size: int) -> None:
        self.entries += entries
        self.size += size
        self.report(ledger_id)

    def report(self, ledger_id: int) -> None:
        if self._progress is not None:
            counts = self.ledgers_done, self.ledgers, self.entries, self.size
            self._progress(CopyProgress(ledger_id, *counts, dict(self.locked), self.trouble))

    def store_failed(self, ledger_id: int, error: MetadataError | None) -> None:
        """Report that the metadata store does not answer while a record is being changed; None: it answers again."""
        trouble = None if error is None else str(error)
        if trouble != self.trouble:
            self.trouble = trouble
            self.report(ledger_id)


async def replicate_positions(
    access: LedgerAccess,
    fragment: Fragment,
    positions: Sequence[int],
    choose: Choose,
    update: MetadataLoop | None,
    account: Account,
    moves: list[Move],
) -> None:
    """Copy the entries of these positions, as many positions at a time as `choose` finds bookies for.

    Each copy is added to `moves`. A fragment that lacks two replicas gets one if only one can be placed. `update`: as
    in `replicate_with_fallback`; None: only plan the moves. Raises as that does, and `NotEnoughBookies` for the
    positions that are left.
    """
    refusals: dict[BookieId, BookKeeperError] = {}
    await access.locate()
    while positions:
        plan = partial(choose, fragment, positions)
        if update is None:
            move = Move(fragment.ledger_id, fragment.first, fragment.last, tuple(plan([])))
        else:
            move = await replicate_with_fallback(access, fragment, plan, update, account, refusals)
        moves.append(move)
        done = [replacement.position for replacement in move.replacements]
        positions = [position for position in positions if position not in done]
        fragment = replaced_in(fragment, move.replacements)


async def replicate_with_fallback(
    access: LedgerAccess,
    fragment: Fragment,
    plan: Callable[[Collection[BookieId]], Sequence[Replacement]],
    update: MetadataLoop,
    account: Account,
    refusals: dict[BookieId, BookKeeperError] | None = None,
) -> Move:
    """Copy to the bookies of a plan, and to others as long as one of them refuses. The caller holds the ledger's lock.

    `update`: carries the lock; the copy stops when the lock is lost. `plan`: chooses among all bookies except its
    argument. `refusals`: bookies that have refused already, with their errors; extended here. Raises as `plan` and
    `replicate` do; if no bookie is left, the first refusal, which names the others.
    """
    refusals = {} if refusals is None else refusals
    await access.locate()
    while True:
        try:
            replacements = plan(list(refusals))
        except NotEnoughBookies as error:
            if not refusals:
                raise
            first, *others = refusals.items()
            if others:  # The error's class stays: it determines what the caller can do.
                others_text = abbreviated([f"{bookie} ({refusal.message})" for bookie, refusal in others])
                first[1].args = (f"{first[1].message}; refused, too, by {others_text}",)
            raise first[1] from error
        try:
            return await replicate(access, fragment, replacements, update, account)
        except CopyRefused as refused:
            if isinstance(refused.error, ClientClosed) or refused.bookie in refusals:
                raise refused.error from refused
            access.pool.copy_admission.refused(refused.error)
            refusals[refused.bookie] = refused.error


async def replicate(
    access: LedgerAccess,
    fragment: Fragment,
    replacements: Sequence[Replacement],
    update: MetadataLoop,
    account: Account,
) -> Move:
    """Copy the entries of the positions to their new bookies, then name these in the record.

    See `replicate_with_fallback`. Raises `FragmentNotFinished`, `VersionConflict` (the fragment has changed), the error
    of an entry that no replica delivers, `CopyRefused`, `SessionExpired` (the lock is lost), and what a metadata update
    raises.
    """
    pool, loop = access.pool, asyncio.get_running_loop()
    copy = FragmentCopy(fragment, replacements)
    copy.swap.check_unchanged(update.current.metadata)
    replicas = access.replicas(update.current.metadata)
    await pause(account.pace.start_copy(loop.time()))
    targets, admission = [replacement.new for replacement in copy.replacements], pool.copy_admission
    needs_turn = not await admission.have_free_space(targets, _size_of(fragment, update.current.metadata))
    has_turn = False
    async with contextlib.AsyncExitStack() as turn:
        while not copy.is_done:
            if not has_turn and (needs_turn or admission.is_limited):
                await turn.enter_async_context(admission.turn(targets))
                has_turn = True
            update.check_lock()
            ids = copy.next_ids()
            if fragment.is_striped:
                bodies = await replicas.read_each(
                    [(pool.health.order(copy.sources(entry_id)), entry_id) for entry_id in ids]
                )
            else:
                bodies = await replicas.read_from_any(pool.health.order(copy.sources(ids[0])), ids)
            ids = ids[: len(bodies)]
            shares = copy.shares(ids)
            begun = loop.time()
            await replicas.write(shares, ids, bodies)
            account.pace.observe_copy(loop.time() - begun, loop.time())
            size = sum(map(len, bodies))
            copy.copied(ids[-1], len(ids), size)
            account.copied(fragment.ledger_id, sum(len(share) for _, share in shares), size * len(shares))
            await throttle(account.pace, size * len(shares))
    await update.update(copy.swap.needed, copy.swap.apply)
    account.store_failed(fragment.ledger_id, None)
    return Move(fragment.ledger_id, fragment.first, fragment.last, copy.replacements)


def _size_of(fragment: Fragment, record: LedgerMetadata) -> int:
    """Estimate the bytes of one replica of a fragment; 0: unknown, because the ledger is not closed."""
    if not record.is_closed:
        return 0
    share = (fragment.last - fragment.first + 1) / (record.last_entry_id + 1)
    return round(record.length * share * record.write_quorum / record.ensemble_size)


async def renew(
    access: LedgerAccess,
    record: LedgerMetadata,
    fragment: Fragment,
    position: int,
    ids: Sequence[int],
    account: Account,
) -> None:
    """Rewrite these entries to the bookie at a position of the fragment, which has lost or damaged them.

    The record does not change. Raises the error of an entry that no replica delivers or that cannot be written.
    """
    replicas, bookie = access.replicas(record), fragment.ensemble[position]
    copy = FragmentCopy(fragment, renewals(fragment, [position]))
    for run in runs_of(ids):
        at = run.start
        while at < run.stop:
            count = 1 if fragment.is_striped else ENTRIES_MAX  # In a striped ledger the next entry is on other bookies.
            bodies = await replicas.read_from_any(
                access.pool.health.order(copy.sources(at)), range(at, min(run.stop, at + count))
            )
            share = range(at, at + len(bodies))
            try:
                await replicas.write([(bookie, share)], share, bodies)
            except CopyRefused as refused:
                raise refused.error from refused  # Only this bookie needs them.
            size = sum(map(len, bodies))
            account.copied(fragment.ledger_id, len(bodies), size)
            at = share.stop
            await throttle(account.pace, size)


class LedgerRepairRun:
    """One run of `repair_ledger`: repairs the bad replicas of one ledger, fragment by fragment.

    `lost`: bookies that will not return. `is_dry`: only plan the moves.
    """

    def __init__(self, access: LedgerAccess, lost: Collection[BookieId], account: Account, is_dry: bool) -> None:
        self._access = access
        self._lost = lost
        self._account = account
        self._is_dry = is_dry
        self.moves: list[Move] = []
        self.failures: list[BookKeeperError] = []

    async def run(self, verdicts: Sequence[FragmentVerdict], lock: LedgerLock | None) -> None:
        """Repair the fragments that a check under the lock found bad. Failures are collected, except `ClientClosed`."""
        bad = [verdict for verdict in verdicts if not verdict.is_ok and verdict.fragment.is_finished]
        if not bad:
            return
        access = self._access
        versioned = await access.read(bad[0].fragment.ledger_id)
        on_trouble = partial(self._account.store_failed, versioned.metadata.ledger_id)
        update = MetadataLoop(access.runtime, access.driver, versioned, lock, on_trouble)
        for verdict in bad:
            unknown = unknown_replicas(verdict, self._lost)
            self.failures += [_unknown_replica(verdict.fragment, replica) for replica in unknown]
            if len(unknown) == len(verdict.bad_positions):
                continue
            try:
                await self._fragment(verdict, [replica.position for replica in unknown], update)
            except ClientClosed:
                raise
            except BookKeeperError as error:
                self.failures.append(await _with_excluded_bookies(access, verdict.fragment, error))

    async def _fragment(self, verdict: FragmentVerdict, unknown: Collection[int], update: MetadataLoop) -> None:
        access, fragment = self._access, verdict.fragment
        positions = [position for position in verdict.bad_positions if position not in unknown]

        def choose(
            fragment: Fragment, positions: Sequence[int], refusing: Collection[BookieId]
        ) -> tuple[Replacement, ...]:
            left = tuple(replica for replica in verdict.replicas if replica.position in positions)
            return repairs(FragmentVerdict(fragment, left), access.candidates(), refusing, self._lost)

        to_change = None if self._is_dry else update
        await replicate_positions(access, fragment, positions, choose, to_change, self._account, self.moves)

    @property
    def summary(self) -> str:
        """Summary of the failures."""
        done = f"{len(self.moves)} fragments {'would be' if self._is_dry else 'were'} repaired"
        again = f"{len(self.failures)} could not be; repeat it when the cause is fixed"
        return f"{done} and {again}. The first: {self.failures[0]}"


async def _with_excluded_bookies(access: LedgerAccess, fragment: Fragment, error: BookKeeperError) -> BookKeeperError:
    """Extend the error of a copy without a target: name the read-only bookies that were excluded."""
    is_refused = error.bookie is not None and error.bookie not in fragment.ensemble
    if isinstance(error, NotEnoughBookies) or is_refused:
        with contextlib.suppress(MetadataError):
            read_only = (await access.driver.bookies(BookieMode.READ_ONLY)).bookies
            exclusions = Circumstances(read_only, read_only=read_only).left_out(fragment.ensemble)
            error.args = (f"{error.message}{exclusions}",)
    return error


def _unknown_replica(fragment: Fragment, replica: ReplicaVerdict) -> BookKeeperError:
    why = "it does not answer" if replica.error is None else replica.error.message
    return BookieUnreachable(
        f"what {replica.bookie} has of entries {fragment.first} to {fragment.last} is unknown ({why}), so it was "
        f"left alone: wait until it answers; if it will not return, stop it and pass --lost {replica.bookie}",
        ledger_id=fragment.ledger_id,
        bookie=replica.bookie,
    )


class BookieRecovery:
    """One run of `recover_bookies`: ledger after ledger. Source: client-protocol 7.4.

    `bookies`: in order of urgency, for fragments whose replicas cannot all be placed.
    """

    def __init__(
        self,
        access: LedgerAccess,
        bookies: Sequence[BookieId],
        account: Account,
        owner: str,
        is_dry: bool,
        skips_open: bool,
        skips_unrecoverable: bool,
    ) -> None:
        self._access = access
        self._bookies = bookies
        self._account = account
        self._owner = owner
        self._is_dry = is_dry
        self._skips_open = skips_open
        self._skips_unrecoverable = skips_unrecoverable
        self.moves: list[Move] = []
        self.skipped: list[int] = []
        self.obstacles: list[Obstacle] = []

    async def ledgers(self, ledger_ids: Sequence[int]) -> None:
        """Recover all of these ledgers; locked ones are retried at the end. Failures are collected, not raised."""
        await in_rounds(ledger_ids, self._round)

    async def _round(self, ledger_ids: Sequence[int], is_last: bool) -> list[int]:
        """Process the ledgers; return those that another process has locked, except in the last round."""
        waiting, locked = iter(ledger_ids), list[int]()
        account = self._account

        async def work() -> None:
            for ledger_id in waiting:
                try:
                    if self._is_dry:
                        await self._ledger(ledger_id, None)
                    else:
                        async with ledger_locked(self._access.driver, ledger_id, self._owner) as lock:
                            await self._ledger(ledger_id, lock)
                except LedgerLocked as error:
                    if not is_last:
                        account.locked[ledger_id] = error.owner or "another process"
                        locked.append(ledger_id)
                        account.report(ledger_id)
                        continue
                    self.obstacles.append(Obstacle(ledger_id, None, None, error))
                except MetadataError as error:
                    self._not_begun(ledger_id, error)
                account.locked.pop(ledger_id, None)
                account.ledgers_done += 1
                account.report(ledger_id)

        await all_of(work() for _ in range(min(COPIED_AT_ONCE, len(ledger_ids))))
        return locked

    def _not_begun(self, ledger_id: int, error: BookKeeperError) -> None:
        if self._skips_unrecoverable:
            self.skipped.append(ledger_id)
        else:
            self.obstacles.append(Obstacle(ledger_id, None, None, error))

    async def _ledger(self, ledger_id: int, lock: LedgerLock | None) -> None:
        """Copy all replicas that the bookies hold of one ledger, or plan to. Failures are collected, not raised."""
        try:
            versioned = await self._prepared(ledger_id)
            if versioned is None:
                return
            confirmed = (
                -1 if self._needs_sealing(versioned.metadata) else await self._access.last_add_confirmed(versioned)
            )
        except ClientClosed:
            raise
        except LedgerNotFound:
            return  # Deleted meanwhile.
        except BookKeeperError as error:
            self._not_begun(ledger_id, error)
            return
        on_trouble = partial(self._account.store_failed, ledger_id)
        update = MetadataLoop(self._access.runtime, self._access.driver, versioned, lock, on_trouble)
        for fragment, positions in fragments_on(fragments_to_check(versioned.metadata, confirmed), self._bookies):
            await self._fragment(fragment, positions, update)

    async def _prepared(self, ledger_id: int) -> Versioned | None:
        """Return the record once its writer cannot be using any of the bookies; None: leave the ledger alone."""
        versioned = await self._access.read(ledger_id)
        if self._skips_open and versioned.metadata.state is LedgerState.OPEN:
            self.skipped.append(ledger_id)
            return None
        if not self._is_dry and self._needs_sealing(versioned.metadata):
            # The writer has not replaced the bookie yet: its next change must not race with the copy of the tail.
            return await self._access.sealed(ledger_id)
        return versioned

    def _needs_sealing(self, record: LedgerMetadata) -> bool:
        return not record.is_closed and any(bookie in record.last_ensemble for bookie in self._bookies)

    async def _fragment(self, fragment: Fragment, positions: Sequence[int], update: MetadataLoop) -> None:
        access, moves = self._access, list[Move]()

        def choose(
            fragment: Fragment, positions: Sequence[int], refusing: Collection[BookieId]
        ) -> tuple[Replacement, ...]:
            return choose_some_targets(fragment, positions, access.candidates(), [*self._bookies, *refusing])

        to_change = None if self._is_dry else update
        positions = sorted(positions, key=lambda at: self._bookies.index(fragment.ensemble[at]))
        try:
            await replicate_positions(access, fragment, positions, choose, to_change, self._account, moves)
        except ClientClosed:
            raise
        except LedgerNotFound:
            return  # Deleted meanwhile.
        except BookKeeperError as error:
            error = await _with_excluded_bookies(access, fragment, error)
            self.obstacles.append(Obstacle(fragment.ledger_id, fragment.first, fragment.last, error))
        needs_sealing = self._is_dry and self._needs_sealing(update.current.metadata)
        self.moves += [replace(move, needs_sealing=needs_sealing) for move in moves]
