"""Carry out what `protocol/repair/replicate.py` decides: copy fragments, swap bookies in the record, for many ledgers.

Cancelling is safe anywhere: until all copies of a fragment are durable its record is what it was. All copying to
bookies that the record does not name is done under the ledger's lock, see `ledger_lock.py`.
Source: client-protocol 7.3 and 7.4.
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
from bookies.protocol.placement.placement_proof import some
from bookies.protocol.repair import Fragment, FragmentVerdict, RateLimit
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

COPIED_AT_ONCE = 8  # ledgers; most are small, so that each is mostly waiting


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """How far a long operation is. `entries`, `size`: copied so far, in entries and in bytes of all copies.

    `locked`: ledgers that are waited for, and who has their locks. `trouble`: of the metadata store, since it answered
    last.
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
    """Entries first..last of a ledger, and which bookies take whose place. `needs_sealing`: the ledger is sealed
    first, and only then is it known how far it reaches."""

    ledger_id: int
    first: int
    last: int
    replacements: tuple[Replacement, ...]
    needs_sealing: bool = False


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Entries first..last of a ledger that cannot be copied, and why; `first` None: nothing of the ledger can be."""

    ledger_id: int
    first: int | None
    last: int | None
    error: BookKeeperError


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What `recover_bookies` did or, if dry, would do. `skipped`: ledgers left alone because they asked for it.
    `obstacles`: what it could not do; only a dry run gets so far as to say, others raise."""

    moves: tuple[Move, ...]
    skipped: tuple[int, ...]
    entries: int
    size: int
    obstacles: tuple[Obstacle, ...] = ()


OnProgress = Callable[[CopyProgress], None]
Choose = Callable[[Fragment, Sequence[int], Collection[BookieId]], Sequence[Replacement]]
"""Bookies for some of the positions of a fragment at least, among all but those given last."""


class Account:
    """The running totals of one operation, the pace it keeps, and who is told.

    `pace`: shared with other operations; bytes a second of this one alone, None: as fast as it goes.
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
        """The metadata store does not answer while a record is to be changed. None: it does again."""
        trouble = None if error is None else str(error)
        if trouble != self.trouble:
            self.trouble = trouble
            self.report(ledger_id)


async def replicate_in_turn(
    access: LedgerAccess,
    fragment: Fragment,
    positions: Sequence[int],
    choose: Choose,
    update: MetadataLoop | None,
    account: Account,
    moves: list[Move],
) -> None:
    """Copy what these positions store, as many at a time as `choose` finds bookies for, and add each copy to `moves`.

    So a fragment that lacks two replicas gets one where there is room for one. `update`: as in `replicate_anywhere`;
    None: only say what would be done. Raises as it does, `NotEnoughBookies` for the positions that are left.
    """
    refusals: dict[BookieId, BookKeeperError] = {}
    await access.locate()
    while positions:
        plan = partial(choose, fragment, positions)
        if update is None:
            move = Move(fragment.ledger_id, fragment.first, fragment.last, tuple(plan([])))
        else:
            move = await replicate_anywhere(access, fragment, plan, update, account, refusals)
        moves.append(move)
        done = [each.position for each in move.replacements]
        positions = [each for each in positions if each not in done]
        fragment = replaced_in(fragment, move.replacements)


async def replicate_anywhere(
    access: LedgerAccess,
    fragment: Fragment,
    plan: Callable[[Collection[BookieId]], Sequence[Replacement]],
    update: MetadataLoop,
    account: Account,
    refusals: dict[BookieId, BookKeeperError] | None = None,
) -> Move:
    """Copy to the bookies of a plan, and to others as long as one of them refuses. The caller holds the ledger's lock.

    `update`: with the lock, and when that is lost the copy breaks off. `plan`: chooses among all but those that are
    given to it. `refusals`: who has refused already, and how; added to. Raises as it and `replicate` do; when nobody is
    left, what the first one answered, with what the others did.
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
            if others:  # Its class stays, which says what can be done about it.
                said = some([f"{bookie} ({each.message})" for bookie, each in others])
                first[1].args = (f"{first[1].message}; refused, too, by {said}",)
            raise first[1] from error
        try:
            return await replicate(access, fragment, replacements, update, account)
        except CopyRefused as refused:
            if isinstance(refused.error, ClientClosed) or refused.bookie in refusals:
                raise refused.error from refused
            access.pool.copy_turns.refused(refused.error)
            refusals[refused.bookie] = refused.error


async def replicate(
    access: LedgerAccess,
    fragment: Fragment,
    replacements: Sequence[Replacement],
    update: MetadataLoop,
    account: Account,
) -> Move:
    """Copy what the positions store to their new bookies, then let the record name those. See `replicate_anywhere`.

    Raises `FragmentNotFinished`, `VersionConflict` (it is another fragment now), why an entry cannot be read anywhere,
    `CopyRefused`, `SessionExpired` (the lock is lost), and what a metadata update raises.
    """
    pool, loop = access.pool, asyncio.get_running_loop()
    copy = FragmentCopy(fragment, replacements)
    copy.swap.check_unchanged(update.current.metadata)
    replicas = access.replicas(update.current.metadata)
    if (pause_s := account.pace.begins(loop.time())) > 0:
        await asyncio.sleep(pause_s)
    targets, turns = [each.new for each in copy.replacements], pool.copy_turns
    needs_turn = not await turns.have_room(targets, _size_of(fragment, update.current.metadata))
    has_turn = False
    async with contextlib.AsyncExitStack() as turn:
        while not copy.is_done:
            if not has_turn and (needs_turn or turns.is_tight):
                await turn.enter_async_context(turns.turn(targets))
                has_turn = True
            update.check_lock()
            ids = copy.next_ids()
            if fragment.is_striped:
                bodies = await replicas.read_each([(pool.health.order(copy.sources(each)), each) for each in ids])
            else:
                bodies = await replicas.read_from_any(pool.health.order(copy.sources(ids[0])), ids)
            ids = ids[: len(bodies)]
            shares = copy.shares(ids)
            begun = loop.time()
            await replicas.write(shares, ids, bodies)
            account.pace.took(loop.time() - begun, loop.time())
            size = sum(map(len, bodies))
            copy.copied(ids[-1], len(ids), size)
            account.copied(fragment.ledger_id, sum(len(share) for _, share in shares), size * len(shares))
            pause_s = account.pace.spent(size * len(shares), loop.time())
            if pause_s > 0:
                await asyncio.sleep(pause_s)
    await update.update(copy.swap.needed, copy.swap.apply)
    account.store_failed(fragment.ledger_id, None)
    return Move(fragment.ledger_id, fragment.first, fragment.last, copy.replacements)


def _size_of(fragment: Fragment, record: LedgerMetadata) -> int:
    """About how many bytes one replica of a fragment is; 0: nobody knows, since the ledger is not closed."""
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
    """Write these entries again to the bookie that is at a position of the fragment and has lost or damaged them.

    The record stays as it is. Raises why an entry cannot be read anywhere or written.
    """
    loop = asyncio.get_running_loop()
    replicas, bookie = access.replicas(record), fragment.ensemble[position]
    copy = FragmentCopy(fragment, renewals(fragment, [position]))
    for run in runs_of(ids):
        at = run.start
        while at < run.stop:
            count = 1 if fragment.is_striped else ENTRIES_MAX  # The next entry of a striped one is on other bookies.
            bodies = await replicas.read_from_any(
                access.pool.health.order(copy.sources(at)), range(at, min(run.stop, at + count))
            )
            share = range(at, at + len(bodies))
            try:
                await replicas.write([(bookie, share)], share, bodies)
            except CopyRefused as refused:
                raise refused.error from refused  # It is this bookie that needs them.
            size = sum(map(len, bodies))
            account.copied(fragment.ledger_id, len(bodies), size)
            at = share.stop
            if (pause_s := account.pace.spent(size, loop.time())) > 0:
                await asyncio.sleep(pause_s)


class LedgerMending:
    """One run of `repair_ledger`: what is known to be bad of one ledger, fragment by fragment.

    `lost`: bookies that will not come back. `is_dry`: only say what would be done.
    """

    def __init__(self, access: LedgerAccess, lost: Collection[BookieId], account: Account, is_dry: bool) -> None:
        self._access = access
        self._lost = lost
        self._account = account
        self._is_dry = is_dry
        self.moves: list[Move] = []
        self.failures: list[BookKeeperError] = []

    async def mend(self, verdicts: Sequence[FragmentVerdict], lock: LedgerLock | None) -> None:
        """`verdicts`: of a check under the lock. Failures are kept, not raised, but for `ClientClosed`."""
        bad = [each for each in verdicts if not each.is_ok and each.fragment.is_finished]
        if not bad:
            return
        access = self._access
        found = await access.read(bad[0].fragment.ledger_id)
        told = partial(self._account.store_failed, found.metadata.ledger_id)
        update = MetadataLoop(access.runtime, access.driver, found, lock, told)
        for verdict in bad:
            unknown = unknown_replicas(verdict, self._lost)
            self.failures += [_unknown(verdict.fragment, each) for each in unknown]
            if len(unknown) == len(verdict.bad_positions):
                continue
            try:
                await self._fragment(verdict, [each.position for each in unknown], update)
            except ClientClosed:
                raise
            except BookKeeperError as error:
                self.failures.append(await _with_those_left_out(access, verdict.fragment, error))

    async def _fragment(self, verdict: FragmentVerdict, unknown: Collection[int], update: MetadataLoop) -> None:
        access, fragment = self._access, verdict.fragment
        positions = [each for each in verdict.bad_positions if each not in unknown]

        def choose(
            fragment: Fragment, positions: Sequence[int], refusing: Collection[BookieId]
        ) -> tuple[Replacement, ...]:
            left = tuple(each for each in verdict.replicas if each.position in positions)
            return repairs(FragmentVerdict(fragment, left), access.candidates(), refusing, self._lost)

        to_change = None if self._is_dry else update
        await replicate_in_turn(access, fragment, positions, choose, to_change, self._account, self.moves)

    @property
    def summary(self) -> str:
        """Of what has failed."""
        done = f"{len(self.moves)} fragments {'would be' if self._is_dry else 'were'} repaired"
        again = f"{len(self.failures)} could not be; repeat it when the cause is mended"
        return f"{done} and {again}. The first: {self.failures[0]}"


async def _with_those_left_out(access: LedgerAccess, fragment: Fragment, error: BookKeeperError) -> BookKeeperError:
    """Of a copy for which there was no bookie: the error, which says, too, who is there and was not thought of."""
    is_refused = error.bookie is not None and error.bookie not in fragment.ensemble
    if isinstance(error, NotEnoughBookies) or is_refused:
        with contextlib.suppress(MetadataError):
            read_only = (await access.driver.bookies(BookieMode.READ_ONLY)).bookies
            said = Circumstances(read_only, read_only=read_only).left_out(fragment.ensemble)
            error.args = (f"{error.message}{said}",)
    return error


def _unknown(fragment: Fragment, replica: ReplicaVerdict) -> BookKeeperError:
    why = "it does not answer" if replica.error is None else replica.error.message
    return BookieUnreachable(
        f"what {replica.bookie} has of entries {fragment.first} to {fragment.last} is unknown ({why}), and nothing was "
        f"done about it: wait until it answers; if it will not come back, stop it and say so (--lost {replica.bookie})",
        ledger_id=fragment.ledger_id,
        bookie=replica.bookie,
    )


class BookieRecovery:
    """One run of `recover_bookies`: ledger after ledger. Source: client-protocol 7.4.

    `bookies`: where there is not room for what all of them have, the first ones come first.
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
        """All of these, and those that are locked once more at the end. Failures are kept, not raised."""
        await in_rounds(ledger_ids, self._round)

    async def _round(self, ledger_ids: Sequence[int], is_last: bool) -> list[int]:
        """Those that somebody else has locked, unless it is the last time."""
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
                        account.locked[ledger_id] = error.owner or "somebody"
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
        """Copy all that the bookies hold of one ledger, or say what would be copied. Failures are kept, not raised."""
        try:
            found = await self._prepared(ledger_id)
            if found is None:
                return
            confirmed = -1 if self._needs_sealing(found.metadata) else await self._access.last_add_confirmed(found)
        except ClientClosed:
            raise
        except LedgerNotFound:
            return  # Deleted meanwhile.
        except BookKeeperError as error:
            self._not_begun(ledger_id, error)
            return
        told = partial(self._account.store_failed, ledger_id)
        update = MetadataLoop(self._access.runtime, self._access.driver, found, lock, told)
        for fragment, positions in fragments_on(fragments_to_check(found.metadata, confirmed), self._bookies):
            await self._fragment(fragment, positions, update)

    async def _prepared(self, ledger_id: int) -> Versioned | None:
        """The record, once its writer cannot be using any of the bookies. None: leave the ledger alone."""
        found = await self._access.read(ledger_id)
        if self._skips_open and found.metadata.state is LedgerState.OPEN:
            self.skipped.append(ledger_id)
            return None
        if not self._is_dry and self._needs_sealing(found.metadata):
            # Its writer has not replaced the bookie yet: what it does next must not race with the copy of the tail.
            return await self._access.sealed(ledger_id)
        return found

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
            await replicate_in_turn(access, fragment, positions, choose, to_change, self._account, moves)
        except ClientClosed:
            raise
        except LedgerNotFound:
            return  # Deleted meanwhile.
        except BookKeeperError as error:
            error = await _with_those_left_out(access, fragment, error)
            self.obstacles.append(Obstacle(fragment.ledger_id, fragment.first, fragment.last, error))
        needs_sealing = self._is_dry and self._needs_sealing(update.current.metadata)
        self.moves += [replace(move, needs_sealing=needs_sealing) for move in moves]
