"""`bk ledger verify`, `bk ledger repair` and `bk bookie recover`: check every replica, copy lost ones.

Sizes and counts are of copies: an entry that is copied to two new bookies counts twice.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from bookies.admin.shared import Progress, Session
from bookies.admin.shared.common import print_json, report_unreadable, size_text, unreadable_lines
from bookies.admin.shared.operators import check_known, operator_name, store_reporter
from bookies.admin.shared.report import Report, Table
from bookies.admin.verbs.explain import present_membership
from bookies.client.base.ledger_lock import in_rounds
from bookies.client.repair.replication import Move
from bookies.errors import (
    BookKeeperError,
    InvalidArgument,
    LedgerLocked,
    LedgerNotFound,
    MetadataCorrupt,
    ReplicationFailed,
)
from bookies.model import BookieId
from bookies.protocol.ledger.offload import offloaded_to
from bookies.replication.base import Membership
from bookies.replication.operator.presumed_lost import PresumedLost
from bookies.replication.operator.status import ProcessStatus, witnesses
from bookies.runtime.tasks import all_of

if TYPE_CHECKING:
    from bookies.client.client import Client
    from bookies.client.repair.replica_tools import LedgerCheck
    from bookies.client.repair.replication import CopyProgress, Obstacle, RecoveryReport
    from bookies.protocol.repair import FragmentVerdict
    from bookies.protocol.repair.fragments import ReplicaVerdict

CHECKED_AT_ONCE = 8  # ledgers checked concurrently


async def verify_ledgers(client: Client, ledger_ids: Sequence[int], percentage: float, *, as_json: bool) -> int:
    """Check these ledgers, or all, and print the problems. Return 0 if there are none."""
    administration = client.administration()
    unreadable: list[MetadataCorrupt] = []
    wanted = list(ledger_ids) or [record.ledger_id async for record in client.ledgers(unreadable=unreadable)]
    progress = Progress("ledgers checked", len(wanted), quiet=as_json)
    checked = bad = offloaded = 0
    fewest: int | None = None

    async def check_one(ledger_id: int) -> LedgerCheck | None:
        try:
            return await administration.check_ledger(ledger_id, percentage=percentage)
        except LedgerNotFound:
            if ledger_ids:
                raise
            return None  # Deleted since it was listed.

    for start in range(0, len(wanted), CHECKED_AT_ONCE):
        for check in await all_of(map(check_one, wanted[start : start + CHECKED_AT_ONCE])):
            if check is None:
                continue
            checked += 1
            bad += not check.is_ok
            fewest = min((count for count in (fewest, check.fewest_replicas) if count is not None), default=None)
            place = offloaded_to(check.metadata)
            offloaded += place is not None
            if as_json:
                print_json(_described(check))
            elif place is not None and ledger_ids:
                progress.clear()
                print(f"ledger {check.metadata.ledger_id}  offloaded: its entries are in {place}")
            elif not check.is_ok:
                progress.clear()
                _print_problems(check)
        progress.update(checked)
    progress.clear()
    if not as_json:
        print(f"{_ledgers(checked)} checked, {bad:,} with problems{_offloaded(offloaded)}")
        if fewest is not None:
            print(f"fewest good replicas of an entry: {fewest or 'not known, no bookie has all entries'}")
    return report_unreadable("ledger", unreadable) or int(bool(bad))


def _offloaded(count: int) -> str:
    return f", {count:,} offloaded: no bookie needs their entries" if count else ""


def _described(check: LedgerCheck) -> dict[str, object]:
    """Return a check for JSON: stable names."""
    return {
        "ledger": check.metadata.ledger_id,
        "state": check.metadata.state.name,
        "ok": check.is_ok,
        "fewest_replicas": check.fewest_replicas,
        "offloaded": offloaded_to(check.metadata),
        "fragments": [
            {
                "first_entry": verdict.fragment.first,
                "last_entry": verdict.fragment.last,
                "replicas": [_described_replica(replica) for replica in verdict.replicas],
            }
            for verdict in check.fragments
        ],
    }


def _described_replica(replica: ReplicaVerdict) -> dict[str, object]:
    error = None if replica.error is None else replica.error.message
    return {"bookie": replica.bookie, "state": replica.state.value, "entry": replica.entry_id, "error": error}


def _print_problems(check: LedgerCheck) -> None:
    metadata = check.metadata
    quorums = f"E{metadata.ensemble_size}/Qw{metadata.write_quorum}/Qa{metadata.ack_quorum}"
    print(f"ledger {metadata.ledger_id}  {metadata.state.name}  {quorums}")
    for verdict in check.fragments:
        if not verdict.is_ok:
            print(_problem_line(verdict))
            for position in verdict.bad_positions:
                replica = verdict.replicas[position]
                where = "" if replica.entry_id is None else f" at entry {replica.entry_id:,}"
                reason = "" if replica.error is None else f": {replica.error.message}"
                print(f"    {replica.bookie}  {replica.state.value}{where}{reason}")


def _problem_line(verdict: FragmentVerdict) -> str:
    fragment, fewest = verdict.fragment, verdict.fewest_replicas
    # A bookie that lacks one entry does not count for any: entries that different bookies lack have good replicas.
    good = f"at least {fewest} good of {fragment.write_quorum}" if fewest else "no bookie has all of them"
    return f"  entries {fragment.first:,} to {fragment.last:,}  {good}"


class LedgerRepairs:
    """Run of `bk ledger repair`: check these ledgers, or all, and repair the replicas that are known to be bad.

    A bookie counts as lost as in `bk recovery repair`: by `--lost`, by a mark, or by the reports of auto-recovery's
    processes, the latter two if it stays unregistered for some seconds more.
    """

    def __init__(self, session: Session, membership: Membership, arguments: argparse.Namespace) -> None:
        self._session = session
        self._membership = membership
        self._arguments = arguments
        self._administration = session.client.administration(owner=operator_name())
        self._witnesses: list[ProcessStatus] = []
        self._moves: list[Move] = []
        self._failed: dict[int, Sequence[BaseException]] = {}

    async def run(self) -> Report:
        """Repair the ledgers. Status 0 if none is left to be repaired."""
        arguments = self._arguments
        for name in dict.fromkeys(arguments.lost):
            if await check_known(self._session, name) in self._membership.registered:
                raise InvalidArgument(
                    f"bookie {name} is registered, so it is not lost: stop it first, or empty it with "
                    f"`bk bookie drain {name}`"
                )
        self._witnesses = await witnesses(self._session.driver)
        unreadable: list[MetadataCorrupt] = []
        ledgers = self._session.client.ledgers(unreadable=unreadable)
        wanted = list(dict.fromkeys(arguments.ledgers)) or [record.ledger_id async for record in ledgers]
        progress = Progress("ledgers repaired", len(wanted), quiet=arguments.json)

        def give_up(error: LedgerLocked) -> None:
            assert error.ledger_id is not None
            self._failed[error.ledger_id] = [error]

        await one_by_one(wanted, self._repair, give_up, progress)
        left = [{"ledger": ledger_id, "errors": list(map(str, causes))} for ledger_id, causes in self._failed.items()]
        facts = {"dry_run": arguments.dry_run, "fragments": map(_described_move, self._moves), "left": left}
        status = int(bool(unreadable or self._failed))
        return Report(facts, self._text(len(wanted)), status, unreadable_lines("ledger", unreadable))

    async def _repair(self, ledger_id: int) -> None:
        """Repair one ledger. Raises `LedgerLocked`, and `LedgerNotFound` if the operator named it."""
        arguments = self._arguments
        try:
            moves = await self._administration.repair_ledger(
                ledger_id,
                percentage=arguments.percentage,
                lost=await self._lost(ledger_id),
                dry_run=arguments.dry_run,
                bytes_per_s=arguments.rate,
            )
        except LedgerNotFound:
            if arguments.ledgers:
                raise
        except ReplicationFailed as error:
            self._moves += [move for move in error.moves if isinstance(move, Move)]
            self._failed[ledger_id] = error.causes
        else:
            self._moves += moves

    async def _lost(self, ledger_id: int) -> list[BookieId]:
        """Return the bookies that count as lost now."""
        named = [BookieId(name) for name in self._arguments.lost]
        mark = await self._session.driver.recovery.mark_of(ledger_id)
        presumed = PresumedLost.of(mark, self._witnesses, named)
        await presumed.settle(self._membership)
        return list(dict.fromkeys([*named, *presumed.circumstances(self._membership).lost]))

    def _text(self, count: int) -> Iterator[str | Table]:
        moves, is_dry = self._moves, self._arguments.dry_run
        if moves:
            yield Table(("ledger", "entries", "bookies", ""), map(_move_row, moves), (0,))
        for ledger_id, causes in self._failed.items():
            for cause in causes:
                yield f"ledger {ledger_id}: {cause.message if isinstance(cause, BookKeeperError) else cause}"
        would = "would repair" if is_dry else "repaired"
        left_text = f", {_ledgers(len(self._failed))} not or only partly" if self._failed else ""
        unchanged = "; nothing was changed" if is_dry else ""
        yield f"{would} {_fragments(len(moves))} of {_ledgers(count)}{left_text}{unchanged}"


async def repair_ledgers(session: Session, arguments: argparse.Namespace) -> Report:
    """Run `bk ledger repair`. Status 1 if a ledger is left. Raises `LedgerNotFound`, `InvalidArgument`."""
    async with present_membership(session) as membership:
        return await LedgerRepairs(session, membership, arguments).run()


async def one_by_one(
    ledger_ids: Sequence[int],
    repair: Callable[[int], Awaitable[None]],
    give_up: Callable[[LedgerLocked], None],
    progress: Progress,
) -> None:
    """Repair each ledger. Retry locked ones at the end, for about a minute, then pass them to `give_up`."""
    done = 0

    async def carry_out(todo: Sequence[int], is_last: bool) -> list[int]:
        nonlocal done
        locked: list[int] = []
        for ledger_id in todo:
            try:
                await repair(ledger_id)
            except LedgerLocked as error:
                if not is_last:
                    if len(todo) == len(ledger_ids):  # the first time
                        progress.note(_locked_line(ledger_id, error.owner or "another process"))
                    locked.append(ledger_id)
                    continue
                give_up(error)
            done += 1
            progress.update(done)
        return locked

    try:
        await in_rounds(ledger_ids, carry_out)
    finally:
        progress.clear()


def _locked_line(ledger_id: int, owner: str) -> str:
    return f"ledger {ledger_id}: {owner} holds its lock; retrying at the end"


async def recover_bookies(client: Client, arguments: argparse.Namespace) -> Report:
    """Copy the replicas of the named bookies to others, or report what would be copied.

    Raises like `Administration.recover_bookies`.
    """
    progress = Progress("ledgers", None, quiet=arguments.json)
    locked: dict[int, None] = {}

    report_store = store_reporter(progress)

    def copied(news: CopyProgress) -> None:
        report_store(news.trouble)
        for locked_id, owner in news.locked.items():
            if locked_id not in locked:
                progress.note(_locked_line(locked_id, owner))
            locked[locked_id] = None
        progress.update(
            news.ledgers_done, f"of {news.ledgers:,}  {news.entries:,} entries, {size_text(news.size)} copied"
        )

    try:
        result = await client.administration(owner=operator_name()).recover_bookies(
            [BookieId(bookie) for bookie in arguments.bookies],
            ledger_id=arguments.ledger,
            dry_run=arguments.dry_run,
            skip_open=arguments.skip_open,
            skip_unrecoverable=arguments.skip_unrecoverable,
            force=arguments.force,
            bytes_per_s=arguments.rate,
            progress=copied,
        )
    finally:
        progress.clear()
    facts = {
        "dry_run": arguments.dry_run,
        "fragments": [_described_move(move) for move in result.moves],
        "skipped": list(result.skipped),
        "entries": result.entries,
        "size": result.size,
        "obstacles": [_described_obstacle(obstacle) for obstacle in result.obstacles],
    }
    return Report(facts, _recovered(result, is_dry=arguments.dry_run), int(bool(result.obstacles)))


def _recovered(result: RecoveryReport, *, is_dry: bool) -> Iterator[str | Table]:
    if result.moves:
        yield Table(("ledger", "entries", "new bookies", ""), map(_move_row, result.moves), (0,))
    for skipped in result.skipped:
        yield f"ledger {skipped} was skipped"
    for obstacle in result.obstacles:
        entries = "" if obstacle.first is None else f", entries {obstacle.first:,} to {obstacle.last:,}"
        yield f"ledger {obstacle.ledger_id}{entries} could not be copied: {obstacle.error}"
    fragments = _fragments(len(result.moves))
    if is_dry:
        but = f", but not {len(result.obstacles):,} more" if result.obstacles else ""
        yield f"would copy {fragments}{but}; nothing was changed"
    else:
        yield f"copied {fragments}: {result.entries:,} entries, {size_text(result.size)}"


def _described_obstacle(obstacle: Obstacle) -> dict[str, object]:
    return {
        "ledger": obstacle.ledger_id,
        "first_entry": obstacle.first,
        "last_entry": obstacle.last,
        "error": str(obstacle.error),
    }


def _ledgers(count: int) -> str:
    return f"{count:,} {'ledger' if count == 1 else 'ledgers'}"


def _fragments(count: int) -> str:
    return f"{count:,} {'fragment' if count == 1 else 'fragments'}"


def _described_move(move: Move) -> dict[str, object]:
    return {
        "ledger": move.ledger_id,
        "first_entry": move.first,
        "last_entry": None if move.needs_sealing else move.last,
        "needs_sealing": move.needs_sealing,
        "replaced": [{"position": position, "old": old, "new": new} for position, old, new in move.replacements],
    }


def _move_row(move: Move) -> tuple[object, ...]:
    """Return the cells of a move. The last entry of an open ledger is unknown."""
    entries = f"{move.first:,} and later" if move.needs_sealing else f"{move.first:,} to {move.last:,}"
    if move.last < move.first and not move.needs_sealing:
        entries = "none"
    bookies = ", ".join(f"{old} again" if old == new else f"{old} -> {new}" for _, old, new in move.replacements)
    return move.ledger_id, entries, bookies, "is sealed first" if move.needs_sealing else ""
