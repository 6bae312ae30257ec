"""`Administration`: make ledgers and the ledgers of lost bookies whole again, and list bookies.

`Client.administration` returns it. Source: client-protocol 7.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack

from bookies.client.base.arguments import (
    TimeLimit,
    any_ledger_id,
    bookie_id,
    bookie_ids,
    percentage_of,
    rate,
    switch,
)
from bookies.client.repair.bookie_recovery import BookieRecovery, RecoveryOptions, add_excluded_bookies
from bookies.client.repair.ledger_repair import LedgerRepair, Outcome, RepairRules
from bookies.client.repair.replica_tools import ReplicaTools
from bookies.client.repair.replication import Account, Move, OnProgress, RecoveryReport
from bookies.errors import BookieUnreachable, BookKeeperError, InvalidArgument, ReplicationFailed
from bookies.metadata.interface import Watch
from bookies.metadata.interface.driver import BookieSet
from bookies.model import BookieId, BookieInfo, BookieMode, LedgerMetadata
from bookies.protocol.repair import Fragment
from bookies.protocol.repair.fragments import ReplicaVerdict, is_named
from bookies.protocol.repair.repair_work import Circumstances, Loss
from bookies.protocol.repair.replicate import unknown_replicas


class Administration(ReplicaTools):
    """Operator's tools for ledgers and bookies, as `Client.administration` returns them.

    `password` and `digest_type` are used only for ledgers whose record has none. `owner`: holder's name in the ledgers'
    locks.

    Methods raise `ClientClosed` and `MetadataError` besides the errors that they name. `timeout`: seconds, then
    TimeoutError.
    """

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
        """Check a ledger and repair it: bookies that lost entries receive them again, lost bookies are replaced.

        * `percentage`: as in `check_ledger`; entries that are not checked are not repaired.
        * `lost`: bookies that are stopped and will not return. A registered bookie is never treated as lost. The
          replica of any other bookie that does not answer, or cannot determine what it has, is unknown and stays.
        * `dry_run`: only plan the moves.
        * `bytes_per_s`: limit over all copies; None: unlimited.

        Fragments that may still grow are left to the ledger's writer. The repair holds the ledger's lock of
        auto-recovery. A ledger with entries that no bookie has is marked, so auto-recovery reports the loss and repairs
        it when a bookie with them returns.

        Raises `LedgerLocked`. Raises `ReplicationFailed` if a fragment could not be repaired or a replica is unknown,
        after all others were repaired.
        """
        bytes_per_s, dry_run = rate("bytes_per_s", bytes_per_s), switch("dry_run", dry_run)
        ledger_id, absent = any_ledger_id(ledger_id), list(bookie_ids("lost", lost))
        async with TimeLimit(timeout, f"repair ledger {ledger_id}"):
            await self.record(ledger_id)
            async with AsyncExitStack() as held:
                lock = None if dry_run else await held.enter_async_context(self.locked(ledger_id))
                registered = await self._registered()
                states = Circumstances(registered, [bookie for bookie in absent if bookie not in registered])
                rules = RepairRules(
                    circumstances=lambda: states, lock=lock, percentage=percentage_of(percentage), is_dry=dry_run
                )
                repair = LedgerRepair(self, rules, Account(bytes_per_s, progress))
                outcome = await repair.run(ledger_id)
            if outcome.losses and not dry_run:
                lacking = dict.fromkeys(bookie for loss in outcome.losses for bookie, _ in loss.evidence)
                now_ms = self.access.runtime.clock.wall_ms()
                await self._driver.recovery.mark(ledger_id, list(lacking), now_ms, is_damage=True)
            failures = await self._failures_of(repair, outcome, states.lost)
        if failures:
            done = f"{len(repair.moves)} fragments {'would be' if dry_run else 'were'} repaired"
            raise ReplicationFailed(
                f"{done} and {len(failures)} could not be; repeat it when the cause is fixed. The first: {failures[0]}",
                causes=failures,
                ledger_id=ledger_id,
                moves=repair.moves,
            )
        return tuple(repair.moves)

    async def _failures_of(
        self, repair: LedgerRepair, outcome: Outcome, lost: Collection[BookieId]
    ) -> list[BookKeeperError]:
        """Return what keeps a ledger from being whole: unknown replicas, fragments not copied, lost entries."""
        with_entries = [verdict.fragment.first for verdict in outcome.verdicts]
        failures = [error for first, error in repair.failures.items() if first not in with_entries]
        for verdict in outcome.verdicts:
            fragment = verdict.fragment
            failures += [_unknown_replica(fragment, replica) for replica in unknown_replicas(verdict, lost)]
            if (error := repair.failures.get(fragment.first)) is not None and not verdict.is_ok:
                await add_excluded_bookies(self.access, fragment, error)
                failures.append(error)
            elif error is None:
                failures += [
                    _lost(fragment, loss) for loss in outcome.losses if fragment.first <= loss.first <= fragment.last
                ]
        return failures

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
        """Copy all replicas that these bookies hold, by the records, to other bookies, of every ledger or of one.

        * `ledger_id`: only this ledger; None: all.
        * `dry_run`: only plan, for bookies in any state; the report's `obstacles` list every copy that is not possible.
        * `skip_open`: leave ledgers alone that are being written. Otherwise a ledger that is being written to one of
          the bookies is recovered first, which stops its writer.
        * `skip_unrecoverable`: pass over ledgers that cannot be recovered.
        * `force`: accept writable bookies too. Without it the bookies must be down or read-only; a writable bookie
          continues to receive entries.
        * `bytes_per_s`: limit over all copies; None: unlimited. `progress`: called from time to time.

        Each ledger is copied under its lock of auto-recovery. Ledgers locked by another process are retried after all
        others, for about a minute.

        Raises `InvalidArgument` for a writable or unknown bookie, before any copy. Raises `ReplicationFailed` if
        fragments could not be copied, after all others were: repeat the call.
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
                ledgers = {ledger_id: (await self.access.read(any_ledger_id(ledger_id))).metadata}
            await self._check_recoverable(wanted, ledgers, may_be_writable=force or dry_run)
            account = Account(bytes_per_s, progress, ledgers=len(ledgers))
            registered = await self._registered()
            wanted.sort(key=lambda bookie: bookie in registered)  # Lost bookies are more urgent than drained ones.
            options = RecoveryOptions(self._owner, dry_run, skip_open, skip_unrecoverable)
            run = BookieRecovery(self, wanted, registered, options, account)
            await run.ledgers(list(ledgers))
        obstacles = sorted(run.obstacles, key=lambda obstacle: (obstacle.ledger_id, obstacle.first or 0))
        if obstacles and not dry_run:
            raise ReplicationFailed(
                f"{len(run.moves)} fragments of {', '.join(wanted)} were copied and {len(obstacles)} could "
                f"not be; repeat it when the cause is fixed. The first, of ledger {obstacles[0].ledger_id}: "
                f"{obstacles[0].error}",
                causes=[obstacle.error for obstacle in obstacles],
                moves=run.moves,
            )
        moves = sorted(run.moves, key=lambda move: (move.ledger_id, move.first))
        skipped = tuple(sorted(run.skipped))
        copied = account.totals
        return RecoveryReport(tuple(moves), skipped, copied.entries, copied.size, tuple(obstacles))

    async def _check_recoverable(
        self, bookies: Sequence[BookieId], ledgers: Mapping[int, LedgerMetadata], *, may_be_writable: bool
    ) -> None:
        """Raise `InvalidArgument` for bookies that `recover_bookies` must refuse."""
        writable = (await self._driver.bookies(BookieMode.WRITABLE)).bookies
        for bookie in bookies:
            await self._check_known(bookie, ledgers.values())
            if bookie in writable and not may_be_writable:
                raise InvalidArgument(
                    f"bookie {bookie} is registered as writable, so it continues to receive entries while its old ones "
                    "are copied: stop it or make it read-only, and wait until its registration shows that, or force it "
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
        """Copy all replicas of a stopped bookie to others, and verify that no record names it.

        `bytes_per_s`, `progress`: as in `recover_bookies`. `timeout`: seconds. Raises `InvalidArgument` while the
        bookie is registered, `ReplicationFailed`.
        """
        bookie, bytes_per_s = bookie_id(bookie), rate("bytes_per_s", bytes_per_s)
        async with TimeLimit(timeout, f"decommission {bookie}"):
            if bookie in await self._registered():
                raise InvalidArgument(f"bookie {bookie} is still registered: stop it first")
            report = await self.recover_bookies([bookie], bytes_per_s=bytes_per_s, progress=progress)
            still = await self.ledgers_on([bookie])
        for ledger_id, record in still.items():
            if is_named(record, bookie):
                raise ReplicationFailed(
                    "the ledger names the bookie again: its writer has not detected the failure yet; repeat it",
                    ledger_id=ledger_id,
                    bookie=bookie,
                )
        return report

    # -- bookies -------------------------------------------------------------------------------------------------
    async def bookies(self, mode: BookieMode | None = None) -> BookieSet:
        """List the registered bookies in a mode; None: all with a cookie, running or not."""
        return await (self._driver.all_bookies() if mode is None else self._driver.bookies(mode))

    async def bookie_info(self, bookie: BookieId) -> BookieInfo | None:
        """Return a bookie's registration; None if it is not registered."""
        return await self._driver.bookie_info(bookie)

    def watch_bookies(self, mode: BookieMode, callback: Callable[[BookieSet], None]) -> Watch:
        """Call back with the bookies in a mode: now, and after each change, until the watch is cancelled."""
        return self._driver.watch_bookies(mode, callback)


def _unknown_replica(fragment: Fragment, replica: ReplicaVerdict) -> BookKeeperError:
    why = "it does not answer" if replica.error is None else replica.error.message
    return BookieUnreachable(
        f"what {replica.bookie} has of entries {fragment.first} to {fragment.last} is unknown ({why}), so it was "
        f"left alone: wait until it answers; if it will not return, stop it and pass --lost {replica.bookie}",
        ledger_id=fragment.ledger_id,
        bookie=replica.bookie,
    )


def _lost(fragment: Fragment, loss: Loss) -> BookKeeperError:
    evidence = "; ".join(f"{bookie}: {reason}" for bookie, reason in loss.evidence)
    return BookieUnreachable(f"no bookie has {loss.entries}: {evidence}", ledger_id=fragment.ledger_id)
