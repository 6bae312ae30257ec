"""Balance: moves replicas from bookies that hold more than their share to those that hold less.

The plan follows from the records and the disk sizes that bookies report; no state is stored. So a balance can be
aborted at any time, and continues with a new plan: moved replicas stay where they are. Each replica is copied, then
swapped in the record, under the ledger's lock. The source deletes its copy in its next collection of surplus replicas.

Operators start it, and the auditor does (`auditor/automatic_balance.py`). Source: pains 27.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from bookies.client.base.metadata_loop import MetadataLoop
from bookies.client.repair.replication import Account, CopyProgress
from bookies.errors import BookKeeperError, ClientClosed, LedgerNotFound, MetadataError, VersionConflict
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import Versioned
from bookies.metadata.interface.recovery_store import LedgerLock
from bookies.metadata.shared import BookieNotes
from bookies.model import BookieId, BookieMode, Ensemble
from bookies.protocol.ledger.offload import is_given_up
from bookies.protocol.pacing import RateLimit
from bookies.protocol.pacing.read_rates import ReadLoad
from bookies.protocol.placement.placement import judge
from bookies.protocol.repair import Fragment
from bookies.protocol.repair.balance import BalanceMove, BalancePlan, Balancer, Movable, obstacle_of
from bookies.protocol.repair.drain import Forecast, interleaved, portion_of
from bookies.protocol.repair.fragments import fragments_to_check
from bookies.protocol.repair.relief import Relief
from bookies.replication.base.operator_parts import Operator
from bookies.replication.base.replication_records import Coverage, records
from bookies.runtime.tasks import all_of

LANES = 8  # ledgers at a time
RATE_MIN = 4e6  # bytes per second that a bookie delivers easily
PLANNED_AT_ONCE = 50  # moves; then other tasks of the process may run


class BalanceProgress(Struct, frozen=True):
    """Progress of a balance. `size_done`, `size`: bytes; `remaining_s`: None while it cannot be estimated."""

    moves_done: int
    moves: int
    entries: int
    size_done: int
    size: int
    remaining_s: float | None


class BalanceResult(Struct):
    """Result of a balance. `refused`: moves not made, and why: placement rules, or a change of the ledger.

    `stopped`: why the other moves were not tried; None: all were.
    """

    moves: int = 0
    entries: int = 0
    size: int = 0
    took_s: float = 0.0
    refused: list[tuple[BalanceMove, str]] = field(default_factory=list)
    stopped: str | None = None


class Slack(Struct, frozen=True):
    """Slack of bookies.

    begin, end: deviations from their shares of data at which a balance begins and ends, as fractions of the shares.
    size_min: bytes that are no matter.
    rate_min: bytes per second that clients may read from any bookie.
    """

    begin: float
    end: float
    size_min: int = 0
    rate_min: float = RATE_MIN


class _Ledger(Struct, frozen=True):
    moves: tuple[BalanceMove, ...]

    @property
    def size(self) -> int:
        return sum(move.size for move in self.moves)


async def first_marked(driver: MetadataDriver) -> list[int]:
    """Return some of the marked ledgers, if there are any. Raises `MetadataError`."""
    async for ids in driver.recovery.marked_ids():
        if ids:
            return list(ids)
    return []


def owing_in(loads: Mapping[BookieId, ReadLoad]) -> list[BookieId]:
    """Return the bookies that may have lost entries."""
    return [bookie for bookie, load in loads.items() if load.owed_entries]


class Balance:
    """Balance of a cluster. `rate`: of records read, per second; `lanes`: ledgers at a time.

    `obstacle`: is asked before each move, and returns why no replica may move, or None.
    """

    def __init__(
        self,
        operator: Operator,
        pace: RateLimit | None = None,
        *,
        rate: float | None = None,
        lanes: int = LANES,
        obstacle: Callable[[], Awaitable[str | None]] | None = None,
    ) -> None:
        self.named: frozenset[BookieId] = frozenset()  # by records, as last planned
        runtime, self._client, self._driver, self._owner = operator
        self._pace = pace or RateLimit(None)
        self._rate = RateLimit(rate)
        self._lanes = lanes
        self._obstacle = obstacle
        self._updating = partial(MetadataLoop, runtime, self._driver)
        self._notes = BookieNotes(self._driver, runtime.clock.wall_ms)

    async def plan(self, slack: Slack) -> BalancePlan:
        """Plan the moves; change nothing. Raises `MetadataError`.

        Bookies that are not writable, do not report the size of their disks, are in maintenance or being drained
        neither give nor receive.
        """
        notes, modes = await self._notes.read(), await self._driver.modes()
        excluded = {bookie: note.why_avoided for bookie, note in notes.by_bookie.items()}
        room: dict[BookieId, int] = {}
        writable = [bookie for bookie, mode in modes.items() if mode is BookieMode.WRITABLE and bookie not in excluded]
        for bookie, space in zip(writable, await all_of(map(self._space, writable)), strict=True):
            if isinstance(space, str):
                excluded[bookie] = space
            else:
                room[bookie] = space
        reaches: dict[int, tuple[int, int]] = {}
        held: dict[BookieId, int] = {}
        named: set[BookieId] = set()

        def count(replica: Movable, bookie: BookieId) -> None:
            held[bookie] = held.get(bookie, 0) + replica.size

        await self._visit(reaches, count, named)
        self.named = frozenset(named)
        for bookie in sorted(named | modes.keys()):
            if bookie not in room and bookie not in excluded:
                excluded[bookie] = "it is read-only" if bookie in modes else "it is not registered"
        announced = {  # A bookie that is empty already does not count as being drained.
            bookie: note.why_avoided
            for bookie, note in notes.by_bookie.items()
            if note.maintenance is not None or bookie in named
        }
        loads = await self.loads(list(modes))
        obstacle = obstacle_of(
            await self._driver.recovery.is_enabled(),
            named - modes.keys(),
            await first_marked(self._driver),
            announced,
            owing_in(loads),
        )
        worsens = await self._judge()
        balancer = Balancer(held, room, slack.end, size_min=slack.size_min, worsens=worsens)
        moves = await self._moves(balancer, reaches) if balancer.deviates(slack.begin) else []
        tolerance = slack.end if moves else slack.begin
        plan = replace(balancer.plan(moves), excluded=excluded, obstacle=obstacle, tolerance=tolerance)
        loads = {bookie: load for bookie, load in loads.items() if bookie in room}
        plan = replace(plan, read_rates={bookie: load.rate for bookie, load in loads.items()})
        relief = Relief(loads, plan, slack.rate_min, worsens)
        if moves or not relief.is_needed:
            return plan
        await self._visit(reaches, relief.offer, set())
        moves = relief.moves()
        return replace(plan, moves=moves, after=relief.after, relieves=bool(moves))

    async def loads(self, bookies: Sequence[BookieId]) -> dict[BookieId, ReadLoad]:
        """Ask bookies what clients read from them and what they have lost; return the answers."""
        pool = self._client.administration().access.pool

        async def load_of(bookie: BookieId) -> ReadLoad | None:
            try:
                return await pool.bookie_load(bookie)
            except (ClientClosed, MetadataError):
                raise
            except BookKeeperError:
                return None

        answers = zip(bookies, await all_of(map(load_of, bookies)), strict=True)
        return {bookie: load for bookie, load in answers if load is not None}

    async def _space(self, bookie: BookieId) -> int | str:
        """Return the size of a bookie's disks in bytes, or why it is unknown."""
        try:
            total, _ = await self._client.bookie_space(bookie)
        except (ClientClosed, MetadataError):
            raise
        except BookKeeperError as error:
            return f"it does not report the size of its disks: {error}"
        return total or "it reports disks of 0 bytes"

    async def _judge(self) -> Callable[[Fragment, Ensemble], bool]:
        """Return a function that reports whether another ensemble would place a fragment less well than its own."""
        access = self._client.administration().access
        await access.locate()
        cluster = access.candidates().cluster

        def worsens(fragment: Fragment, ensemble: Ensemble) -> bool:
            before, after = (
                judge(cluster.topology, cluster.policy, bookies, fragment.write_quorum, fragment.ack_quorum).adherence
                for bookies in (fragment.ensemble, ensemble)
            )
            return after < before

        return worsens

    async def _moves(self, balancer: Balancer, reaches: dict[int, tuple[int, int]]) -> list[BalanceMove]:
        await self._visit(reaches, balancer.offer, set())
        balancer.begin()
        moves: list[BalanceMove] = []
        while (move := balancer.next_move()) is not None:
            moves.append(move)
            if len(moves) % PLANNED_AT_ONCE == 0:
                await asyncio.sleep(0)
        return moves

    async def _visit(
        self, reaches: dict[int, tuple[int, int]], visit: Callable[[Movable, BookieId], None], named: set[BookieId]
    ) -> None:
        """Visit the replicas of all finished fragments. `named`: receives the bookies that records name."""
        async for page in records(self._driver, self._rate, Coverage()):
            for ledger in page:
                if not is_given_up(ledger.metadata):
                    named.update(ledger.metadata.bookies)
            for replicas in await all_of(self._replicas(ledger, reaches) for ledger in page):
                for replica, bookie in replicas:
                    visit(replica, bookie)

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
            (Movable(fragment, position, size, record.is_closed), bookie)
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
                    if self._obstacle is not None and (why := await self._obstacle()) is not None:
                        result.stopped = why
                    if result.stopped is not None:
                        return
                    await self._move(move, result, account)
                    notify()

        try:
            await all_of(lane() for _ in range(min(self._lanes, len(by_ledger))))
        finally:
            copied = account.totals
            result.entries, result.size, result.took_s = copied.entries, copied.size, loop.time() - begun
        return result

    async def _move(self, move: BalanceMove, result: BalanceResult, account: Account) -> None:
        store = self._driver.recovery
        lock = await store.lock(move.ledger_id, self._owner, needs_mark=False)
        if lock is None:
            result.refused.append((move, "another process is repairing the ledger"))
            return
        try:
            problem = await self._copy(move, account, lock)
        finally:
            await store.unlock(lock)
        if problem is None:
            result.moves += 1
        else:
            result.refused.append((move, problem))

    async def _copy(self, move: BalanceMove, account: Account, lock: LedgerLock) -> str | None:
        """Copy a replica; return why it was not done, or None. Raises `MetadataError`, `ClientClosed`."""
        administration = self._client.administration()
        try:
            _, fragments = await administration.fragments(move.ledger_id)
            fragment = next((candidate for candidate in fragments if candidate.first == move.first), None)
            if fragment is None or fragment.ensemble[move.position] != move.source:
                return "the ledger has changed meanwhile"
            await administration.access.locate()
            if (why := administration.access.avoided().get(move.target)) is not None:
                return f"{move.target} gets no more data since the plan was made: {why}"
            if move.target in fragment.ensemble:
                return f"{move.target} already has another position of the fragment"
            worse = await self._is_worse(fragment, move)
            if worse is not None:
                return worse
            await administration.replicate_fragment(
                fragment,
                [move.position],
                target=move.target,
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
