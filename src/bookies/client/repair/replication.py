"""Execution of `protocol/repair/replicate.py`: copy fragments, swap bookies in the record.

Cancelling is safe anywhere: the record of a fragment changes only after all its copies are durable. Copies to bookies
that the record does not name are written under the ledger's lock, see `ledger_lock.py`. Source: client-protocol 7.3 and
7.4.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec import Struct, field

from bookies.client.base.metadata_loop import MetadataLoop
from bookies.client.repair.ledger_access import LedgerAccess
from bookies.client.repair.replicas import CopyRefused
from bookies.errors import (
    BookKeeperError,
    ClientClosed,
    MetadataError,
    NotEnoughBookies,
)
from bookies.model import BookieId, LedgerMetadata
from bookies.protocol.pacing import RateLimit
from bookies.protocol.placement.placement_proof import abbreviated
from bookies.protocol.repair import Fragment
from bookies.protocol.repair.fragments import runs_of
from bookies.protocol.repair.replicate import (
    ENTRIES_MAX,
    STRIPED_ENTRIES_MAX,
    FragmentCopy,
    Replacement,
    choose_some_targets,
    renewals,
    replaced_in,
)
from bookies.runtime.histogram import Stages
from bookies.runtime.tasks import pause, throttle

STAGES = ("claim", "check", "read", "write", "rate", "metadata")  # of a repair
COPIED_AT_ONCE = 8  # ledgers; most are small, so each copy mostly waits


class CopyProgress(Struct, frozen=True):
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


class Move(Struct, frozen=True):
    """Entries first..last of a ledger, and which bookies replace which.

    `needs_sealing`: the ledger must be sealed first; its last entry is known only then.
    """

    ledger_id: int
    first: int
    last: int
    replacements: tuple[Replacement, ...]
    needs_sealing: bool = False


class Obstacle(Struct, frozen=True):
    """Entries first..last of a ledger that cannot be copied, and why.

    `first` None: no entry of the ledger can be copied.
    """

    ledger_id: int
    first: int | None
    last: int | None
    error: BookKeeperError


class RecoveryReport(Struct, frozen=True):
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


def avoiding(access: LedgerAccess, unwanted: Collection[BookieId], target: BookieId | None = None) -> Choose:
    """Return the ordinary choice: the best placed of the writable bookies, without the unwanted ones.

    Invariant: no copy begins to a bookie that is known to be drained or in maintenance. The client watches these
    announcements, and each choice respects them, so a drain needs not wait for the end of work that began before it.

    `target`: the only bookie that may be chosen.
    """

    def choose(fragment: Fragment, positions: Sequence[int], refusing: Collection[BookieId]) -> Sequence[Replacement]:
        candidates = access.candidates()
        others = [bookie for bookie in candidates.cluster.bookies if target not in (None, bookie)]
        excluded = [*unwanted, *access.avoided(), *refusing, *others]
        return choose_some_targets(fragment, positions, candidates, excluded)

    return choose


class Totals(Struct):
    """Totals of repairs. `entries`, `size` in bytes: of all copies.

    `renewed`: the entries that were copied to bookies that already had the position.
    """

    ledgers: int = 0
    fragments: int = 0
    sealed: int = 0
    entries: int = 0
    renewed: int = 0
    size: int = 0


class Account:
    """The running totals of one operation, its rate limit, and its progress callback.

    `pace`: a limit shared with other operations, or bytes per second of this one alone; None: unlimited. `ledgers`: how
    many the operation has to do. `totals`: shared with other operations. `stages`: durations, of a ledger for claim and
    check, of a part of a copy for read, write and rate (the wait for the rate limit), of a fragment for metadata.
    """

    def __init__(
        self,
        pace: RateLimit | float | None = None,
        progress: OnProgress | None = None,
        *,
        ledgers: int = 1,
        totals: Totals | None = None,
    ) -> None:
        self.pace = pace if isinstance(pace, RateLimit) else RateLimit(pace)
        self.totals = totals or Totals()
        self.stages = Stages(*STAGES)
        self.ledgers = ledgers
        self.ledgers_done = 0
        self.locked: dict[int, str] = {}
        self.trouble: str | None = None
        self._progress = progress

    def copied(self, ledger_id: int, entries: int, size: int) -> None:
        self.totals.entries += entries
        self.totals.size += size
        self.report(ledger_id)

    def absorb(self) -> OnProgress:
        """Return a progress callback for one copy, which adds that copy to the totals."""
        entries = size = 0

        def add(news: CopyProgress) -> None:
            nonlocal entries, size
            self.copied(news.ledger_id, news.entries - entries, news.size - size)
            entries, size = news.entries, news.size

        return add

    def report(self, ledger_id: int) -> None:
        if self._progress is not None:
            counts = self.ledgers_done, self.ledgers, self.totals.entries, self.totals.size
            self._progress(CopyProgress(ledger_id, *counts, dict(self.locked), self.trouble))

    def store_failed(self, ledger_id: int, error: MetadataError | None) -> None:
        """Report that the metadata store does not answer while a record is being changed; None: it answers again."""
        trouble = None if error is None else str(error)
        if trouble != self.trouble:
            self.trouble = trouble
            self.report(ledger_id)


class Copying(NamedTuple):
    """Means of the copies of one ledger. The caller holds the ledger's lock.

    `update`: changes the record and carries the lock; a copy stops when the lock is lost. None: moves are only planned.
    """

    access: LedgerAccess
    account: Account
    update: MetadataLoop | None


async def replicate_positions(
    copying: Copying, fragment: Fragment, positions: Sequence[int], choose: Choose, moves: list[Move]
) -> None:
    """Copy the entries of these positions, as many positions at a time as `choose` finds bookies for.

    Each copy is added to `moves`. A fragment that lacks two replicas gets one if only one can be placed. Raises as
    `replicate_with_fallback` does, and `NotEnoughBookies` for the positions that are left.
    """
    refusals: dict[BookieId, BookKeeperError] = {}
    await copying.access.locate()
    while positions:
        plan = partial(choose, fragment, positions)
        if copying.update is None:
            move = Move(fragment.ledger_id, fragment.first, fragment.last, tuple(plan([])))
        else:
            move = await replicate_with_fallback(copying, fragment, plan, refusals)
        moves.append(move)
        done = [replacement.position for replacement in move.replacements]
        positions = [position for position in positions if position not in done]
        fragment = replaced_in(fragment, move.replacements)


async def replicate_with_fallback(
    copying: Copying,
    fragment: Fragment,
    plan: Callable[[Collection[BookieId]], Sequence[Replacement]],
    refusals: dict[BookieId, BookKeeperError],
) -> Move:
    """Copy to the bookies of a plan, and to others as long as one of them refuses.

    `plan`: chooses among all bookies except its argument. `refusals`: bookies that have refused already, with their
    errors; extended here. Raises as `plan` and `replicate` do; if no bookie is left, the first refusal, which names the
    others.
    """
    await copying.access.locate()
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
            return await replicate(copying, fragment, replacements)
        except CopyRefused as refused:
            if isinstance(refused.error, ClientClosed) or refused.bookie in refusals:
                raise refused.error from refused
            copying.access.pool.copy_admission.refused(refused.error)
            refusals[refused.bookie] = refused.error


async def replicate(copying: Copying, fragment: Fragment, replacements: Sequence[Replacement]) -> Move:
    """Copy the entries of the positions to their new bookies, then name these in the record.

    Invariant: the record does not begin to name a bookie that is known to be drained, since its drain may have listed
    the records already. A copy may take hours, so this is checked before each part and each write of the record.

    Raises `FragmentNotFinished`, `VersionConflict` (the fragment has changed), the error
    of an entry that no replica delivers, `CopyRefused`, `SessionExpired` (the lock is lost), and what a metadata update
    raises.
    """
    access, account, update = copying
    assert update is not None

    def check_targets() -> None:
        for target in targets:
            if target in access.leaving() and target not in fragment.ensemble:
                raise CopyRefused(target, BookKeeperError("it is to be emptied since the copy began", bookie=target))

    def named(record: LedgerMetadata) -> LedgerMetadata:
        check_targets()
        return copy.swap.apply(record)

    pool, stages, loop = access.pool, account.stages, asyncio.get_running_loop()
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
            check_targets()
            ids = copy.next_ids(account.pace.part_size)
            begun = loop.time()
            if fragment.is_striped:
                bodies = await replicas.read_each(
                    [(pool.health.order(copy.sources(entry_id)), entry_id) for entry_id in ids]
                )
            else:
                bodies = await replicas.read_from_any(pool.health.order(copy.sources(ids[0])), ids)
            ids = ids[: len(bodies)]
            shares = copy.shares(ids)
            begun = stages.end("read", begun, loop.time())
            await replicas.write(shares, ids, bodies)
            written = stages.end("write", begun, loop.time())
            account.pace.observe_copy(written - begun, written)
            size = sum(map(len, bodies))
            copy.copied(ids[-1], len(ids), size)
            account.copied(fragment.ledger_id, sum(len(share) for _, share in shares), size * len(shares))
            await throttle(account.pace, size * len(shares))
            stages.end("rate", written, loop.time())
    begun = loop.time()
    await update.update(copy.swap.needed, named)
    stages.end("metadata", begun, loop.time())
    account.store_failed(fragment.ledger_id, None)
    return Move(fragment.ledger_id, fragment.first, fragment.last, copy.replacements)


def _size_of(fragment: Fragment, record: LedgerMetadata) -> int:
    """Estimate the bytes of one replica of a fragment; 0: it has no entries, or the ledger is not closed."""
    if not record.is_closed or fragment.last < fragment.first:
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
    copy, order = FragmentCopy(fragment, renewals(fragment, [position])), access.pool.health.order
    at, count = 0, STRIPED_ENTRIES_MAX
    while at < len(ids):
        if fragment.is_striped:  # The next entry is on other bookies.
            share = ids[at : at + count]
            try:
                bodies = await replicas.read_each([(order(copy.sources(entry_id)), entry_id) for entry_id in share])
            except BookKeeperError:
                if len(share) == 1:
                    raise
                count = 1  # The entries before the one that no replica delivers are renewed.
                continue
        else:
            run = next(runs_of(ids[at : at + ENTRIES_MAX]))
            bodies = await replicas.read_from_any(order(copy.sources(run.start)), run)
            share = run[: len(bodies)]
        try:
            await replicas.write([(bookie, share)], share, bodies)
        except CopyRefused as refused:
            raise refused.error from refused  # Only this bookie needs them.
        size = sum(map(len, bodies))
        account.copied(fragment.ledger_id, len(bodies), size)
        at += len(bodies)
        await throttle(account.pace, size)
