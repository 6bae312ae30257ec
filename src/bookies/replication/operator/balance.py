"""Balance: moves replicas from bookies that hold more than their share to those that hold less.

The plan follows from the records and the disk sizes that bookies report; no state is stored. So a balance can be
aborted at any time, and continues with a new plan: moved replicas stay where they are. Each replica is copied, then
swapped in the record, under the ledger's lock. The source deletes its copy in its next collection of surplus replicas.
Source: pains 27.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from bookies.client.base.metadata_loop import MetadataLoop
from bookies.client.repair.replication import Account, CopyProgress
from bookies.errors import BookKeeperError, ClientClosed, LedgerNotFound, MetadataError, VersionConflict
from bookies.metadata.interface.driver import Versioned
from bookies.metadata.interface.recovery_store import LedgerLock
from bookies.metadata.shared import BookieNotes
from bookies.model import BookieId, BookieMode
from bookies.protocol.pacing import RateLimit
from bookies.protocol.repair import Fragment
from bookies.protocol.repair.balance import BalanceMove, BalancePlan, Movable, givers, plan_balance, shares_of
from bookies.protocol.repair.drain import Forecast, interleaved, portion_of
from bookies.protocol.repair.fragments import fragments_to_check
from bookies.replication.base.replication_records import Coverage, records
from bookies.replication.operator.operator_parts import Operator
from bookies.runtime.tasks import all_of

LANES = 8  # moves at a time


class BalanceProgress(Struct, frozen=True):
    """Progress of a balance. `size_done`, `size`: bytes; `remaining_s`: None while it cannot be estimated."""

    moves_done: int
    moves: int
    entries: int
    size_done: int
    size: int
    remaining_s: float | None


class BalanceResult(Struct):
    """Result of a balance. `refused`: moves not made, and why: placement rules, or a change of the ledger."""

    moves: int = 0
    entries: int = 0
    size: int = 0
    took_s: float = 0.0
    refused: list[tuple[BalanceMove, str]] = field(default_factory=list)


class _Ledger(Struct, frozen=True):
    moves: tuple[BalanceMove, ...]

    @property
    def size(self) -> int:
        return sum(move.size for move in self.moves)


class Balance:
    """Balance of a cluster."""

    def __init__(self, operator: Operator, pace: RateLimit | None = None) -> None:
        runtime, self._client, self._driver, self._owner = operator
        self._pace = pace or RateLimit(None)
        self._updating = partial(MetadataLoop, runtime, self._driver)
        self._notes = BookieNotes(self._driver, runtime.clock.wall_ms)

    async def plan(self, tolerance: float) -> BalancePlan:
        """Plan the moves; change nothing. `tolerance`: fraction of its share that a bookie may exceed it by.

        Bookies that are not writable, or in maintenance, or being drained, neither give nor take. Raises
        `MetadataError`, `BookieUnreachable` (a bookie does not report the size of its disks).
        """
        avoided = (await self._notes.read()).avoided
        writable = [
            bookie for bookie in (await self._driver.bookies(BookieMode.WRITABLE)).bookies if bookie not in avoided
        ]
        spaces = await all_of(map(self._client.bookie_space, writable))
        room = {bookie: total for bookie, (total, _) in zip(writable, spaces, strict=True)}
        reaches: dict[int, tuple[int, int]] = {}
        held: dict[BookieId, int] = {}
        async for page in records(self._driver, RateLimit(None), Coverage()):
            for replicas in await all_of(self._replicas(ledger, reaches) for ledger in page):
                for movable, bookie in replicas:
                    held[bookie] = held.get(bookie, 0) + movable.size
        giving = givers(held, shares_of(held, room), tolerance) if room else []
        by_giver: dict[BookieId, list[Movable]] = {bookie: [] for bookie in giving}
        if giving:
            async for page in records(self._driver, RateLimit(None), Coverage()):
                for replicas in await all_of(self._replicas(ledger, reaches) for ledger in page):
                    for movable, bookie in replicas:
                        if bookie in by_giver:
                            by_giver[bookie].append(movable)
        return plan_balance(held, room, by_giver, tolerance)

    async def _replicas(self, ledger: Versioned, reaches: dict[int, tuple[int, int]]) -> list[tuple[Movable, BookieId]]:
        """Return the replicas of each finished fragment, by bookie.

        Asks the bookies of an open ledger for its size, unless its only fragment is the one that grows. `reaches`: last
        entry and length of the ledgers asked for so far; extended here.
        """
        record = ledger.metadata
        last, length = record.last_entry_id, record.length
        if not record.is_closed:
            if len(record.ensembles) == 1:
                return []
            if record.ledger_id not in reaches:
                try:
                    reader = await self._client.administration().open(record.ledger_id)
                except (ClientClosed, MetadataError):
                    raise
                except BookKeeperError:
                    return []  # It was deleted, or no bookie reports its end.
                reaches[record.ledger_id] = reader.last_add_confirmed, reader.length
                await reader.close()
            last, length = reaches[record.ledger_id]
        return [
            (Movable(record.ledger_id, fragment.first, position, fragment.ensemble, size), bookie)
            for fragment in fragments_to_check(record, last)
            if fragment.is_finished
            for position, bookie in enumerate(fragment.ensemble)
            for size in (portion_of(record, [fragment], bookie, last, length).size,)
        ]

    async def run(self, plan: BalancePlan, report: Callable[[BalanceProgress], None] | None = None) -> BalanceResult:
        """Carry out the moves that placement allows. Raises `MetadataError`, `ClientClosed`."""
        loop = asyncio.get_running_loop()
        begun, result = loop.time(), BalanceResult()
        forecast = Forecast(len(plan.moves), plan.size, begun)
        by_ledger: dict[int, list[BalanceMove]] = {}
        for move in plan.moves:
            by_ledger.setdefault(move.ledger_id, []).append(move)
        waiting: Iterator[_Ledger] = iter(interleaved([_Ledger(tuple(moves)) for moves in by_ledger.values()]))

        def notify(_: CopyProgress | None = None) -> None:
            if report is not None:
                now, copied = loop.time(), account.totals
                left_s = forecast.remaining_s(result.moves, copied.size, now, self._pace.charge(0, now))
                report(BalanceProgress(result.moves, len(plan.moves), copied.entries, copied.size, plan.size, left_s))

        account = Account(self._pace, notify)

        async def lane() -> None:
            for ledger in waiting:  # One lane for all moves of a ledger, because it has one lock.
                for move in ledger.moves:
                    await self._move(move, result, list(plan.before), account)
                    notify()

        await all_of(lane() for _ in range(min(LANES, len(by_ledger))))
        result.entries, result.size, result.took_s = account.totals.entries, account.totals.size, loop.time() - begun
        return result

    async def _move(
        self, move: BalanceMove, result: BalanceResult, bookies: Sequence[BookieId], account: Account
    ) -> None:
        store = self._driver.recovery
        lock = await store.lock(move.ledger_id, self._owner, needs_mark=False)
        if lock is None:
            result.refused.append((move, "another process is repairing the ledger"))
            return
        try:
            problem = await self._copy(move, bookies, account, lock)
        finally:
            await store.unlock(lock)
        if problem is None:
            result.moves += 1
        else:
            result.refused.append((move, problem))

    async def _copy(
        self,
        move: BalanceMove,
        bookies: Sequence[BookieId],
        account: Account,
        lock: LedgerLock,
    ) -> str | None:
        """Copy a replica; return why it was not done, or None. Raises `MetadataError`, `ClientClosed`."""
        administration = self._client.administration()
        try:
            _, fragments = await administration.fragments(move.ledger_id)
            fragment = next((candidate for candidate in fragments if candidate.first == move.first), None)
            if fragment is None or fragment.ensemble[move.position] != move.source:
                return "the ledger has changed meanwhile"
            if move.target in fragment.ensemble:
                return f"{move.target} already has another position of the fragment"
            worse = await self._is_worse(fragment, move)
            if worse is not None:
                return worse
            others = [bookie for bookie in bookies if bookie != move.target]
            await administration.replicate_fragment(
                fragment,
                [move.position],
                exclude=others,
                pace=account.pace,
                progress=account.absorb(),
                update=self._updating(await administration.record(move.ledger_id), lock),
            )
        except LedgerNotFound:
            return "the ledger was deleted meanwhile"
        except VersionConflict as error:
            return error.message
        except (ClientClosed, MetadataError):
            raise
        except BookKeeperError as error:
            return str(error)
        return None

    async def _is_worse(self, fragment: Fragment, move: BalanceMove) -> str | None:
        """Return how the move would worsen the fragment's placement; None: it would not."""
        administration = self._client.administration()
        ensemble = [move.target if at == move.position else bookie for at, bookie in enumerate(fragment.ensemble)]
        before, _ = await administration.judge_placement(fragment)
        after, findings = await administration.judge_placement(replace(fragment, ensemble=tuple(ensemble)))
        return f"it would be placed less well: {'; '.join(findings)}" if after < before else None
