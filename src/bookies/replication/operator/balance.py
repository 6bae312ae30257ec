"""Move replicas from bookies that hold more than their share to those that hold less.

The plan is made of the records and of what bookies say of their disks; nothing is kept anywhere. So it can be broken
off at any time, and is gone on with by making another plan: what was moved is where it is. Each replica is copied, then
swapped in the record, under the ledger's lock; the bookie that had it deletes its copy in its next collection of
surplus replicas. Source: pains 27.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from bookies.client.base.metadata_loop import MetadataLoop
from bookies.client.client import Client
from bookies.client.repair.replication import CopyProgress
from bookies.errors import BookKeeperError, ClientClosed, LedgerNotFound, MetadataError, VersionConflict
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import Versioned
from bookies.metadata.interface.recovery_store import LedgerLock
from bookies.metadata.shared import BookieNotes
from bookies.model import BookieId, BookieMode
from bookies.protocol.repair import Fragment, RateLimit
from bookies.protocol.repair.balance import BalanceMove, BalancePlan, Movable, givers, plan_balance, shares_of
from bookies.protocol.repair.drain import Forecast, interleaved, portion_of
from bookies.protocol.repair.fragments import fragments_to_check
from bookies.replication.base.replication_records import Coverage, records
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import all_of

LANES = 8  # moves at a time


@dataclass(frozen=True, slots=True)
class BalanceProgress:
    """How far it is. `size_done`, `size`: bytes; `remaining_s`: None while nobody can tell."""

    moves_done: int
    moves: int
    entries: int
    size_done: int
    size: int
    remaining_s: float | None


@dataclass(slots=True)
class BalanceResult:
    """`refused`: moves that were not made, and why: by the rules of placement, or because the ledger has changed."""

    moves: int = 0
    entries: int = 0
    size: int = 0
    took_s: float = 0.0
    refused: list[tuple[BalanceMove, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Ledger:
    moves: tuple[BalanceMove, ...]

    @property
    def size(self) -> int:
        return sum(move.size for move in self.moves)


class Balance:
    """`owner`: of locks, for people."""

    def __init__(
        self, runtime: Runtime, client: Client, driver: MetadataDriver, owner: str, pace: RateLimit | None = None
    ) -> None:
        self._client = client
        self._driver = driver
        self._owner = owner
        self._pace = pace or RateLimit(None)
        self._updating = partial(MetadataLoop, runtime, driver)
        self._notes = BookieNotes(driver, runtime.clock.wall_ms)

    async def plan(self, tolerance: float) -> BalancePlan:
        """What to move where; changes nothing. `tolerance`: above its share, a fraction of it, that a bookie may be.

        Bookies that are not writable, or in maintenance, or being emptied, neither give nor take. Raises
        `MetadataError`, `BookieUnreachable` when a bookie does not say how large its disks are.
        """
        avoided = (await self._notes.read()).avoided
        writable = [each for each in (await self._driver.bookies(BookieMode.WRITABLE)).bookies if each not in avoided]
        spaces = await all_of(map(self._client.bookie_space, writable))
        room = {bookie: total for bookie, (total, _) in zip(writable, spaces, strict=True)}
        reaches: dict[int, tuple[int, int]] = {}
        held: dict[BookieId, int] = {}
        async for page in records(self._driver, RateLimit(None), Coverage()):
            for replicas in await all_of(self._replicas(each, reaches) for each in page):
                for movable, bookie in replicas:
                    held[bookie] = held.get(bookie, 0) + movable.size
        giving = givers(held, shares_of(held, room), tolerance) if room else []
        by_giver: dict[BookieId, list[Movable]] = {bookie: [] for bookie in giving}
        if giving:
            async for page in records(self._driver, RateLimit(None), Coverage()):
                for replicas in await all_of(self._replicas(each, reaches) for each in page):
                    for movable, bookie in replicas:
                        if bookie in by_giver:
                            by_giver[bookie].append(movable)
        return plan_balance(held, room, by_giver, tolerance)

    async def _replicas(self, found: Versioned, reaches: dict[int, tuple[int, int]]) -> list[tuple[Movable, BookieId]]:
        """What each bookie has of each finished fragment. The bookies of an open ledger are asked how much that is.

        Unless it has no other fragment than the one that grows. `reaches`: last entry and length of those that were
        asked for before; added to.
        """
        record = found.metadata
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
                    return []  # It is gone, or nobody says how far it reaches.
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
        """Move, as far as placement allows. Raises `MetadataError`, `ClientClosed`."""
        loop = asyncio.get_running_loop()
        begun, result = loop.time(), BalanceResult()
        forecast = Forecast(len(plan.moves), plan.size, begun)
        by_ledger: dict[int, list[BalanceMove]] = {}
        for move in plan.moves:
            by_ledger.setdefault(move.ledger_id, []).append(move)
        waiting: Iterator[_Ledger] = iter(interleaved([_Ledger(tuple(moves)) for moves in by_ledger.values()]))

        def tell() -> None:
            if report is not None:
                now = loop.time()
                left_s = forecast.remaining_s(result.moves, result.size, now, self._pace.spent(0, now))
                report(BalanceProgress(result.moves, len(plan.moves), result.entries, result.size, plan.size, left_s))

        async def lane() -> None:
            for each in waiting:  # One lane for all of a ledger, for it has one lock.
                for move in each.moves:
                    await self._move(move, result, plan, tell)
                    tell()

        await all_of(lane() for _ in range(min(LANES, len(by_ledger))))
        result.took_s = loop.time() - begun
        return result

    async def _move(
        self, move: BalanceMove, result: BalanceResult, plan: BalancePlan, tell: Callable[[], None]
    ) -> None:
        store = self._driver.recovery
        lock = await store.lock(move.ledger_id, self._owner, needs_mark=False)
        if lock is None:
            result.refused.append((move, "somebody is repairing the ledger"))
            return
        entries = size = 0

        def count(progress: CopyProgress) -> None:
            nonlocal entries, size
            result.entries += progress.entries - entries
            result.size += progress.size - size
            entries, size = progress.entries, progress.size
            tell()

        try:
            problem = await self._copy(move, list(plan.before), count, lock)
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
        count: Callable[[CopyProgress], None],
        lock: LedgerLock,
    ) -> str | None:
        """None: done; otherwise why not. Raises `MetadataError`, `ClientClosed`."""
        administration = self._client.administration()
        try:
            _, fragments = await administration.fragments(move.ledger_id)
            fragment = next((each for each in fragments if each.first == move.first), None)
            if fragment is None or fragment.ensemble[move.position] != move.source:
                return "the ledger has changed meanwhile"
            if move.target in fragment.ensemble:
                return f"{move.target} has another position of the fragment by now"
            worse = await self._is_worse(fragment, move)
            if worse is not None:
                return worse
            others = [each for each in bookies if each != move.target]
            await administration.replicate_fragment(
                fragment,
                [move.position],
                exclude=others,
                pace=self._pace,
                progress=count,
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
        """In which way the fragment would be placed less well than it is."""
        administration = self._client.administration()
        ensemble = [move.target if at == move.position else each for at, each in enumerate(fragment.ensemble)]
        before, _ = await administration.judge_placement(fragment)
        after, findings = await administration.judge_placement(replace(fragment, ensemble=tuple(ensemble)))
        return f"it would be placed less well: {'; '.join(findings)}" if after < before else None
