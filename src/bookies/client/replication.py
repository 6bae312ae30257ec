"""Carry out what `protocol/replicate.py` decides: copy fragments, swap bookies in the record, for many ledgers.

Cancelling is safe anywhere: until all copies of a fragment are durable its record is what it was.
Source: client-protocol 7.3 and 7.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from bookies.client.ledger_access import LedgerAccess
from bookies.client.metadata_loop import MetadataLoop
from bookies.client.replicas import CopyRefused
from bookies.errors import BookKeeperError, ClientClosed, LedgerNotFound, NotEnoughBookies
from bookies.metadata.driver import Versioned
from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.protocol.fragments import Fragment, fragments_on, fragments_to_check, runs_of
from bookies.protocol.placement_proof import some
from bookies.protocol.replicate import ENTRIES_MAX, FragmentCopy, Pace, Replacement, choose_targets, renewals


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """How far a long operation is. `entries`, `size`: copied so far, in entries and in bytes of all copies."""

    ledger_id: int
    ledgers_done: int
    ledgers: int
    entries: int = 0
    size: int = 0


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


class Account:
    """The running totals of one operation, the pace it keeps, and who is told.

    `pace`: shared with other operations; bytes a second of this one alone, None: as fast as it goes.
    """

    def __init__(self, ledgers: int, pace: Pace | float | None, progress: OnProgress | None) -> None:
        self.pace = pace if isinstance(pace, Pace) else Pace(pace)
        self.ledgers = ledgers
        self.ledgers_done = 0
        self.entries = 0
        self.size = 0
        self._progress = progress

    def copied(self, ledger_id: int, entries: int, size: int) -> None:
        self.entries += entries
        self.size += size
        self.report(ledger_id)

    def report(self, ledger_id: int) -> None:
        if self._progress is not None:
            self._progress(CopyProgress(ledger_id, self.ledgers_done, self.ledgers, self.entries, self.size))


async def replicate_anywhere(
    access: LedgerAccess,
    fragment: Fragment,
    plan: Callable[[Collection[BookieId]], Sequence[Replacement]],
    update: MetadataLoop,
    account: Account,
) -> Move:
    """Copy to the bookies of a plan, and to others as long as one of them refuses.

    `plan`: chooses among all but those that are given to it. Raises as it and `replicate` do; when nobody is left, what
    the first one answered, with what the others did.
    """
    refusals: dict[BookieId, BookKeeperError] = {}
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
            refusals[refused.bookie] = refused.error


async def replicate(
    access: LedgerAccess,
    fragment: Fragment,
    replacements: Sequence[Replacement],
    update: MetadataLoop,
    account: Account,
) -> Move:
    """Copy what the positions store to their new bookies, then let the record name those.

    Raises `FragmentNotFinished`, `VersionConflict` (it is another fragment now), why an entry cannot be read anywhere,
    `CopyRefused`, and what a metadata update raises.
    """
    pool, loop = access.pool, asyncio.get_running_loop()
    copy = FragmentCopy(fragment, replacements)
    copy.swap.check_unchanged(update.current.metadata)
    replicas = access.replicas(update.current.metadata)
    if (pause_s := account.pace.begins(loop.time())) > 0:
        await asyncio.sleep(pause_s)
    while not copy.is_done:
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
    return Move(fragment.ledger_id, fragment.first, fragment.last, copy.replacements)


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


class BookieRecovery:
    """One run of `recover_bookies`: ledger after ledger. Source: client-protocol 7.4."""

    def __init__(
        self,
        access: LedgerAccess,
        bookies: Sequence[BookieId],
        account: Account,
        is_dry: bool,
        skips_open: bool,
        skips_unrecoverable: bool,
    ) -> None:
        self._access = access
        self._bookies = bookies
        self._account = account
        self._is_dry = is_dry
        self._skips_open = skips_open
        self._skips_unrecoverable = skips_unrecoverable
        self.moves: list[Move] = []
        self.skipped: list[int] = []
        self.obstacles: list[Obstacle] = []

    async def ledger(self, ledger_id: int) -> None:
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
            if self._skips_unrecoverable:
                self.skipped.append(ledger_id)
            else:
                self.obstacles.append(Obstacle(ledger_id, None, None, error))
            return
        update = MetadataLoop(self._access.runtime, self._access.driver, found)
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
        access = self._access

        def plan(refusing: Collection[BookieId]) -> tuple[Replacement, ...]:
            return choose_targets(fragment, positions, access.candidates(), [*self._bookies, *refusing])

        try:
            if self._is_dry:
                await access.locate()
                needs_sealing = self._needs_sealing(update.current.metadata)
                move = Move(fragment.ledger_id, fragment.first, fragment.last, plan([]), needs_sealing)
            else:
                move = await replicate_anywhere(self._access, fragment, plan, update, self._account)
        except ClientClosed:
            raise
        except LedgerNotFound:
            return  # Deleted meanwhile.
        except BookKeeperError as error:
            self.obstacles.append(Obstacle(fragment.ledger_id, fragment.first, fragment.last, error))
        else:
            self.moves.append(move)
