"""The mutants of client-protocol 8.4, and the schedules that kill them: `python -m tests.sim.mutant_table [NAME ..]`.

Each mutant is one wrong decision in otherwise correct production code. A run of its schedule kills it, and so do
random runs of the named profile, from seed 1 on. The table shows what killed each mutant and how many seeds that
took; `--write` puts it into docs/internals/correctness.md. One mutant of 8.4 is missing: writers do not read, so no
read can raise a writer's last add confirmed.
"""

from __future__ import annotations

import argparse
import asyncio
import pathlib
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from msgspec.structs import replace
from tests.sim.healing_mutants import HEALING
from tests.sim.log_mutants import LOGS

from bookies.bookie import server
from bookies.client import client
from bookies.client.base import keys
from bookies.client.base.budget import MemoryBudget
from bookies.client.read import reader_state
from bookies.client.repair import bookie_recovery, recovery, replica_tools, replication
from bookies.client.transport.open_ledgers import NOT_ESTABLISHED, OpenLedgers, OpenProof
from bookies.client.write import LedgerWriter, adds, writer
from bookies.client.write.announcements import LedgerAnnouncements
from bookies.client.write.send_scheduler import FifoLock
from bookies.errors import BookKeeperError, DataUnknown, VersionConflict
from bookies.lab.sim.run import Result, simulate
from bookies.lab.sim.scenario import read_scenario, run_scenario
from bookies.lab.sim.scenario.scenario import ScenarioResult
from bookies.lab.sim.world.sim_metadata import SimDriver
from bookies.metadata.shared import table_store
from bookies.metadata.shared.nodes import At
from bookies.model import LedgerState
from bookies.protocol.ledger import AddPipeline, fence, recover
from bookies.protocol.ledger.add import AddState, ChangeEnsemble, CloseLedger
from bookies.protocol.ledger.add_advanced import AdvancedAddPipeline
from bookies.protocol.ledger.bookie_health import CircuitBreakers
from bookies.protocol.ledger.ledger import change_needed, with_ensemble
from bookies.protocol.quorums import IdSet
from bookies.storage.index import LedgerIndex
from bookies.storage.index.index_format import IndexHeader
from bookies.storage.store import LedgerStore

SCENARIOS = pathlib.Path(__file__).parent.parent / "scenarios"
PAGE = pathlib.Path(__file__).parent.parent.parent / "docs" / "internals" / "correctness.md"
BEGIN = "<!-- mutants: written by `make mutants` -->"
END = "<!-- end of the mutants -->"

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Mutant:
    """`what`: as 8.4 calls it; `schedules`: each of them has to kill it; `profile`: chance finds it there, None: it is
    not looked for."""

    what: str
    schedules: tuple[str, ...]
    apply: Callable[[Patch], None]
    profile: str | None


MUTANTS: list[Mutant] = []


def mutant(
    what: str, *schedules: str, profile: str | None = "races"
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def declare(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
        MUTANTS.append(Mutant(what, schedules, apply, profile))
        return apply

    return declare


# -- ledgers that ended on disks that are gone -----------------------------------------------------------------------
@mutant("a writer sends on new connections without a check", "X-81", "X-82", profile="emptied-writers")
def _(patch: Patch) -> None:
    original = OpenLedgers.proof
    patch.setattr(OpenLedgers, "proof", lambda self, record, point: original(self, record, NOT_ESTABLISHED))


@mutant("a writer that was idle sends without a check", "X-84", profile=None)
def _(patch: Patch) -> None:
    patch.setattr(OpenProof, "covers", lambda self, number: number <= self.point)


@mutant("a bookie stores adds of former ledgers without a check", "X-81", "X-82", profile="emptied-bookies")
def _(patch: Patch) -> None:
    patch.setattr(LedgerStore, "_check_former", lambda self, ledger_id, entry_id: None)


@mutant("a server that lags behind answers the checks", "X-83", profile=None)
def _(patch: Patch) -> None:
    patch.setattr(SimDriver, "current_ledgers", SimDriver.read_ledgers)


@mutant("an emptied bookie takes the id generator's mark for empty", "X-81", profile="emptied-bookies")
def _(patch: Patch) -> None:
    async def none(*_: object) -> IdSet:
        return IdSet(0)

    patch.setattr(server, "find_former_ledgers", none)


@mutant("a ledger that the bookie knows needs no check", "X-81", profile="emptied-bookies")
def _(patch: Patch) -> None:
    original = LedgerStore._authorized

    def authorized(self: LedgerStore, ledger_id, master_key):  # type: ignore[no-untyped-def]
        ledger = original(self, ledger_id, master_key)
        self.note_open(ledger_id)
        return ledger

    patch.setattr(LedgerStore, "_authorized", authorized)


@mutant("a bookie forgets a deleted ledger, and that its fence is lost", "X-84", profile=None)
def _(patch: Patch) -> None:
    async def nothing(*_: object) -> None:
        return None

    patch.setattr(LedgerStore, "note_former", nothing)


# -- the writer ----------------------------------------------------------------------------------------------------
@mutant("deliver while changing", "X-31")
def _(patch: Patch) -> None:
    original = AddPipeline._deliver

    def deliver(self: AddPipeline):  # type: ignore[no-untyped-def]
        state = self.state
        self.state = AddState.CONFIRMING if self.is_open else state
        try:
            return original(self)
        finally:
            self.state = state

    patch.setattr(AddPipeline, "_deliver", deliver)


@mutant("one-phase resend: deliver before everything is undone", "X-27")
def _(patch: Patch) -> None:
    deliver, agreed = AddPipeline._deliver, AddPipeline._agreed

    def deliver_first(self: AddPipeline, ensemble):  # type: ignore[no-untyped-def]
        self.state = AddState.CONFIRMING
        delivered = deliver(self)
        self.state = AddState.CHANGING
        return [*delivered, *agreed(self, ensemble)]

    patch.setattr(AddPipeline, "_agreed", deliver_first)


@mutant("acknowledgements of replaced bookies are kept", "X-27")
def _(patch: Patch) -> None:
    original = AddPipeline._agreed

    def agreed(self: AddPipeline, ensemble):  # type: ignore[no-untyped-def]
        acked = list(self._acked)
        effects = original(self, ensemble)
        self._acked[:] = acked
        return [*effects, *self._deliver()]

    patch.setattr(AddPipeline, "_agreed", agreed)


@mutant("count acks by bookie instead of position and bookie", "X-43", profile="answers")
def _(patch: Patch) -> None:
    original = AddPipeline.acknowledged

    def acknowledged(self: AddPipeline, position, bookie, entry_ids):  # type: ignore[no-untyped-def]
        where = self.ensemble.index(bookie) if bookie in self.ensemble else position
        return original(self, where, bookie, entry_ids)

    patch.setattr(AddPipeline, "acknowledged", acknowledged)


def _start_fragment_at(patch: Patch, first_of: Callable[[AddPipeline], int]) -> None:
    original = AddPipeline._start_round

    def start_round(self: AddPipeline, failed):  # type: ignore[no-untyped-def]
        effects = original(self, failed)
        first = first_of(self)
        return [each._replace(first_entry_id=first) if isinstance(each, ChangeEnsemble) else each for each in effects]

    patch.setattr(AddPipeline, "_start_round", start_round)


@mutant("fragment start = last add pushed + 1", "X-28", "X-30")
def _(patch: Patch) -> None:
    _start_fragment_at(patch, lambda pipeline: pipeline.last_add_pushed + 1)


@mutant("fragment start = last add confirmed", "X-28", "X-30")
def _(patch: Patch) -> None:
    _start_fragment_at(patch, lambda pipeline: max(0, pipeline.last_add_confirmed))


@mutant("re-target before the store has agreed", "X-33", "X-32")
def _(patch: Patch) -> None:
    async def change(self: LedgerWriter, change: ChangeEnsemble) -> None:
        def commit(candidates):  # type: ignore[no-untyped-def]
            def transform(record):  # type: ignore[no-untyped-def]
                return with_ensemble(record, change.first_entry_id, writer.changed_ensemble(record, change, candidates))

            self._channel.metadata_changed(transform(self._record.current.metadata))
            return self._record.update(lambda record: change_needed(record, change.failed), transform)

        try:
            await writer.with_candidates(self._bookies, commit)
        except BookKeeperError as error:
            self._channel.carry_out(self._pipeline.change_failed(error))

    patch.setattr(LedgerWriter, "_change", change)


@mutant("confirm out of order", "X-64", "X-27")
def _(patch: Patch) -> None:
    original = AddPipeline._quorum_bound

    def quorum_bound(self: AddPipeline, first: int) -> int:
        return max([original(self, each) for each in range(first, self._sent_bound)], default=first)

    patch.setattr(AddPipeline, "_quorum_bound", quorum_bound)


@mutant("late failures forgotten", "X-32", profile="answers")
def _(patch: Patch) -> None:
    original = AddPipeline.failed

    def failed(self: AddPipeline, position, bookie, entry_ids, error):  # type: ignore[no-untyped-def]
        effects = original(self, position, bookie, entry_ids, error)
        self._replacement.late.clear()
        return effects

    patch.setattr(AddPipeline, "failed", failed)


@mutant("failures of a bookie that was replaced are not forgotten", "replaced", profile="answers")
def _(patch: Patch) -> None:
    original = AddPipeline._agreed

    def agreed(self: AddPipeline, ensemble):  # type: ignore[no-untyped-def]
        failed = self._failures.by_position
        self._failures.by_position = _Kept(IdSet, failed)
        try:
            return original(self, ensemble)
        finally:
            self._failures.by_position = failed

    patch.setattr(AddPipeline, "_agreed", agreed)


class _Kept(defaultdict):  # type: ignore[type-arg]
    """Loses nothing."""

    def pop(self, position, default=None):  # type: ignore[no-untyped-def]
        return default


@mutant("blind overwrite instead of compare-and-swap", "X-17", "X-14", "X-15")
def _(patch: Patch) -> None:
    original = table_store.holds

    def blind(condition, item):  # type: ignore[no-untyped-def]
        is_swap = isinstance(condition, At) and condition.version > 0
        return item is not None if is_swap else original(condition, item)

    patch.setattr(table_store, "holds", blind)


@mutant("an older record is installed after a conflict", "X-36")
def _(patch: Patch) -> None:
    from bookies.client.base.metadata_loop import MetadataLoop

    async def update(self, needed, transform):  # type: ignore[no-untyped-def]
        for _ in range(9):
            if not needed(self.current.metadata):
                break
            try:
                self.current = await self._driver.write_ledger(transform(self.current.metadata), self.current.version)
            except VersionConflict:
                self.current = await self._driver.read_ledger(self.current.metadata.ledger_id)
                record = self.current.metadata  # Whatever it is, it is taken for the state of the world.
                if record.state is LedgerState.OPEN:
                    return self.current
        return self.current

    patch.setattr(MetadataLoop, "update", update)


@mutant("force on an ack quorum instead of the ensemble", "X-54", profile="deferred")
def _(patch: Patch) -> None:
    async def force_some(pool, ledger_id, bookies):  # type: ignore[no-untyped-def]
        tasks = [asyncio.ensure_future(pool.force(bookie, ledger_id)) for bookie in bookies]
        answers = asyncio.as_completed(tasks)
        for _ in range(2):
            await next(answers)
        answers.close()

    patch.setattr(writer, "force_everywhere", force_some)


@mutant("the target of a force is taken after it", "X-54", profile="deferred")
def _(patch: Patch) -> None:
    original = LedgerWriter.force

    async def force_newest(self, **options):  # type: ignore[no-untyped-def]
        last = await original(self, **options)
        if self._pipeline.head > last:
            self._pipeline.forced(self._pipeline.head)
        return self.last_add_confirmed

    patch.setattr(LedgerWriter, "force", force_newest)


@mutant("a deferred-sync writer changes its ensemble", "X-53", profile="deferred")
def _(patch: Patch) -> None:
    original = AddPipeline.failed

    def failed(self: AddPipeline, position, bookie, entry_ids, error):  # type: ignore[no-untyped-def]
        rules, self._rules = self._rules, replace(self._rules, is_deferred_sync=False)
        try:
            return original(self, position, bookie, entry_ids, error)
        finally:
            self._rules = rules

    patch.setattr(AddPipeline, "failed", failed)


@mutant("a force counts what a bookie had acknowledged before it came back", "X-53", profile="deferred")
def _(patch: Patch) -> None:
    patch.setattr(adds.Unforced, "lost_connection", lambda self: None)


@mutant("an announcement does not wait for the force", profile="deferred")
def _(patch: Patch) -> None:
    patch.setattr(LedgerAnnouncements, "last_add_confirmed", property(lambda self: self._ledger.pipeline.head))


@mutant("an announcement does not wait for the ack quorum", profile="reads")
def _(patch: Patch) -> None:
    sent = property(lambda self: self._ledger.pipeline.last_add_pushed)
    patch.setattr(LedgerAnnouncements, "last_add_confirmed", sent)


@mutant("an explicit close at what was not forced", "unforced", profile="deferred")
def _(patch: Patch) -> None:
    original = AddPipeline.close

    def close(self: AddPipeline):  # type: ignore[no-untyped-def]
        effects = original(self)
        return [each._replace(last_entry_id=self.head) if isinstance(each, CloseLedger) else each for each in effects]

    patch.setattr(AddPipeline, "close", close)


@mutant("an id is refused by the last add confirmed only", "X-74", profile="advanced")
def _(patch: Patch) -> None:
    original = AdvancedAddPipeline.check

    def check(self, entry_id):  # type: ignore[no-untyped-def]
        if entry_id <= self.last_add_confirmed:
            original(self, entry_id)

    patch.setattr(AdvancedAddPipeline, "check", check)


@mutant("a change is not delayed until the quorum breaks", "X-39", profile="delayed")
def _(patch: Patch) -> None:
    original = client.rules_of
    patch.setattr(
        client, "rules_of", lambda config, **options: replace(original(config, **options), delays_changes=False)
    )


@mutant("what waits behind a hole outlives its client", "leaving", profile="advanced")
def _(patch: Patch) -> None:
    patch.setattr(LedgerWriter, "client_closed", lambda self: None)


@mutant("the memory limit is not enforced", "memory", profile="limits")
def _(patch: Patch) -> None:
    def try_acquire(self, size: int) -> bool:  # type: ignore[no-untyped-def]
        self.used += size
        return True

    patch.setattr(MemoryBudget, "try_acquire", try_acquire)


@mutant("memory is free again as soon as the ack quorum has answered", "memory", profile="limits")
def _(patch: Patch) -> None:
    patch.setattr(AddPipeline, "answered_bound", property(lambda self: self.head + 1))


@mutant("an entry that fits overtakes those that wait for memory", "memory", profile="limits")
def _(patch: Patch) -> None:
    def try_acquire(self, size: int) -> bool:  # type: ignore[no-untyped-def]
        fits = self.used + size <= self.limit
        self.used += size if fits else 0
        return fits

    patch.setattr(MemoryBudget, "try_acquire", try_acquire)
    patch.setattr(FifoLock, "is_empty", True)


@mutant("a circuit breaker that has opened never closes", profile="health")
def _(patch: Patch) -> None:
    patch.setattr(CircuitBreakers, "succeeded", lambda self, bookie, now: None)


# -- recovery ------------------------------------------------------------------------------------------------------
@mutant("recovery reads without fence", "X-11")
def _(patch: Patch) -> None:
    original = recovery._Recovery._ask

    async def ask(self, *arguments):  # type: ignore[no-untyped-def]
        self._key = None
        return await original(self, *arguments)

    patch.setattr(recovery._Recovery, "_ask", ask)


def _fence_first(patch: Patch, *, is_announced_first: bool) -> None:
    run, fence_all = recovery._Recovery.run, recovery._Recovery._fence

    async def mutant_run(self):  # type: ignore[no-untyped-def]
        stale = self._record.current.metadata
        early = None if is_announced_first else await fence_all(self, stale)

        async def mutant_fence(metadata):  # type: ignore[no-untyped-def]
            return early or await fence_all(self, stale)

        self._fence = mutant_fence
        return await run(self)

    patch.setattr(recovery._Recovery, "run", mutant_run)


@mutant("fence before the announcement", "X-13")
def _(patch: Patch) -> None:
    _fence_first(patch, is_announced_first=False)


@mutant("fence the stale ensemble", "X-14")
def _(patch: Patch) -> None:
    _fence_first(patch, is_announced_first=True)


@mutant("coverage by total count", "X-21")
def _(patch: Patch) -> None:
    def covered(known, write_quorum, ack_quorum):  # type: ignore[no-untyped-def]
        return sum(known) >= write_quorum - ack_quorum + 1

    patch.setattr(fence, "covered", covered)


@mutant("errors as negatives", "X-3", "X-47")
def _(patch: Patch) -> None:
    patch.setattr(recover, "NEGATIVE", (BookKeeperError,))


@mutant("limbo as negative", "X-45", profile="limbo")
def _(patch: Patch) -> None:
    patch.setattr(recover, "NEGATIVE", (*recover.NEGATIVE, DataUnknown))


@mutant("absent on fewer than Qw - Qa + 1 negatives", "X-45")
def _(patch: Patch) -> None:
    patch.setattr(recover, "negatives_needed", lambda write_quorum, ack_quorum: write_quorum - ack_quorum)


@mutant("recovery reads from the ensemble modified in memory", "X-4b")
def _(patch: Patch) -> None:
    original = recovery._Recovery._decide

    async def decide(self, metadata, *arguments):  # type: ignore[no-untyped-def]
        return await original(self, self._write_back._pipeline.metadata, *arguments)

    patch.setattr(recovery._Recovery, "_decide", decide)


@mutant("a recovery's fragments are persisted before the end", "X-4", "X-7")
def _(patch: Patch) -> None:
    run, choose = recovery._Recovery.run, recovery._WriteBack._choose
    running = []

    async def mutant_run(self):  # type: ignore[no-untyped-def]
        running.append(self)
        return await run(self)

    def mutant_choose(self, change):  # type: ignore[no-untyped-def]
        choose(self, change)
        owner = running[-1]
        ensemble = self._pipeline.ensemble

        def needed(record):  # type: ignore[no-untyped-def]
            return not record.is_closed and record.last_ensemble != ensemble

        def transform(record):  # type: ignore[no-untyped-def]
            return with_ensemble(record, change.first_entry_id, ensemble)

        owner._start(owner._record.update(needed, transform))

    patch.setattr(recovery._Recovery, "run", mutant_run)
    patch.setattr(recovery._WriteBack, "_choose", mutant_choose)


@mutant("close on a recovery's error", "X-3", "X-8")
def _(patch: Patch) -> None:
    read_tail, fence_all = recovery._Recovery._read_tail, recovery._Recovery._fence

    async def mutant_read_tail(self, metadata, start, *arguments):  # type: ignore[no-untyped-def]
        try:
            return await read_tail(self, metadata, start, *arguments)
        except BookKeeperError:
            return start

    async def mutant_fence(self, metadata):  # type: ignore[no-untyped-def]
        try:
            return await fence_all(self, metadata)
        except BookKeeperError:
            return fence.Fenced(-1, 0)

    patch.setattr(recovery._Recovery, "_read_tail", mutant_read_tail)
    patch.setattr(recovery._Recovery, "_fence", mutant_fence)


@mutant("no write-back", "X-2", "X-1")
def _(patch: Patch) -> None:
    lengths: dict[int, int] = {}

    async def add(self, entries):  # type: ignore[no-untyped-def]
        lengths.update(enumerate(entries.lengths, entries.first))

    patch.setattr(recovery._WriteBack, "add", add)
    patch.setattr(recovery._WriteBack, "length_at", lambda self, entry_id: lengths[entry_id])


@mutant("no floor under the start", "X-7", "X-6")
def _(patch: Patch) -> None:
    patch.setattr(recovery, "recovery_start", lambda metadata, last_add_confirmed: last_add_confirmed)


@mutant("close ignoring an existing CLOSED", "X-24")
def _(patch: Patch) -> None:
    patch.setattr(recovery, "recovery_close_needed", lambda record: True)


@mutant("advancing last add confirmed in what a recovery writes back", "X-24", profile="limbo")
def _(patch: Patch) -> None:
    advancing = property(lambda self: self.last_add_confirmed)
    patch.setattr(AddPipeline, "header_last_add_confirmed", advancing)


@mutant("a recovery takes the length from an answer to its fencing", "length")
def _(patch: Patch) -> None:
    async def length_at(self, metadata, end, otherwise):  # type: ignore[no-untyped-def]
        return 0 if end < 0 else otherwise

    patch.setattr(recovery._Recovery, "_length_at", length_at)


# -- re-replication ------------------------------------------------------------------------------------------------
@mutant("swap before copy", "X-72", "X-70", profile="repair")
def _(patch: Patch) -> None:
    original = replication.replicate

    async def swap_first(copying, fragment, replacements):  # type: ignore[no-untyped-def]
        update, swap = copying.update, replication.FragmentCopy(fragment, replacements).swap
        await update.update(swap.needed, swap.apply)
        moved = replace(fragment, ensemble=update.current.metadata.ensemble_at(fragment.first))
        return await original(copying, moved, [each._replace(old=each.new) for each in replacements])

    patch.setattr(replication, "replicate", swap_first)


@mutant("a fragment that may still receive entries is copied", "X-70", profile="fragments")
def _(patch: Patch) -> None:
    original = replica_tools.fragments_to_check

    def fragments_to_check(*arguments):  # type: ignore[no-untyped-def]
        return [replace(each, is_finished=True) for each in original(*arguments)]

    for user in (replica_tools, bookie_recovery):
        patch.setattr(user, "fragments_to_check", fragments_to_check)


# -- the reader ----------------------------------------------------------------------------------------------------
@mutant("digests are not checked", "X-48", profile="rot")
def _(patch: Patch) -> None:
    from bookies.kernels import scan_records

    def verify_records(data, start, end, *_):  # type: ignore[no-untyped-def]
        return scan_records(data, start, end, end)[0], ""

    patch.setattr(keys, "verify_records", verify_records)


@mutant("no clamp at the end of a closed ledger", "X-55", profile="foreign")
def _(patch: Patch) -> None:
    original = reader_state.ReaderState.refresh_last_add_confirmed

    async def refresh_last_add_confirmed(self):  # type: ignore[no-untyped-def]
        await original(self)
        await self._learn_first()
        return self.last_add_confirmed

    patch.setattr(reader_state, "is_growth_trusted", lambda record: True)
    patch.setattr(reader_state.ReaderState, "refresh_last_add_confirmed", refresh_last_add_confirmed)


@mutant("a client opens a ledger with any password", profile="passwords")
def _(patch: Patch) -> None:
    original = client.keys_of

    def keys_of(metadata, password, *arguments, **options):  # type: ignore[no-untyped-def]
        return original(replace(metadata, password=None), password, *arguments, **options)

    patch.setattr(client, "keys_of", keys_of)


# -- the bookie ----------------------------------------------------------------------------------------------------
@mutant("a fenced bookie accepts adds", "X-5", "X-11", "X-67")
def _(patch: Patch) -> None:
    patch.setattr(IndexHeader, "is_fenced", property(lambda self: False))


@mutant("answer to a fencing request before the fence is durable", "X-19", profile="crashes")
def _(patch: Patch) -> None:
    original = LedgerStore._fence

    def fence_early(self, ledger_id, done, master_key):  # type: ignore[no-untyped-def]
        original(self, ledger_id, lambda error: None, master_key)
        asyncio.get_running_loop().call_soon(done, None)

    patch.setattr(LedgerStore, "_fence", fence_early)


@mutant("an index header that changed while it was written is taken for clean", profile="checkpoints")
def _(patch: Patch) -> None:
    original = LedgerIndex._written

    def written(self, ledger, change, file_size):  # type: ignore[no-untyped-def]
        ledger.is_header_dirty = False
        return original(self, ledger, change, file_size)

    patch.setattr(LedgerIndex, "_written", written)


@mutant("a bookie accepts any password", profile="passwords")
def _(patch: Patch) -> None:
    patch.setattr(LedgerStore, "_check_key", lambda self, ledger, master_key: None)


# -- auto-recovery and logs: in files of their own -----------------------------------------------------------------
MUTANTS += [Mutant(*each) for each in (*HEALING, *LOGS)]


# -- the table -----------------------------------------------------------------------------------------------------
def expect_mistake(failures: Sequence[str]) -> None:
    """Fail if a patch does not fit the code any more: it fails by itself, instead of making its mistake."""
    broken = [text for text in failures if "TypeError" in text or "AttributeError" in text]
    assert not broken, broken[0]


def run_mutant(each: Mutant, schedule: str) -> ScenarioResult | None:
    """The first failing run of a schedule with the mutant in place; None: it survives."""
    scenario = read_scenario(SCENARIOS / f"{schedule}.txt")
    for variant in scenario.variants:
        with pytest.MonkeyPatch.context() as patch:
            each.apply(patch)
            result = run_scenario(scenario, variant)
        if result.failures:
            expect_mistake(result.failures)
            return result
    return None


def first_seed(each: Mutant, seeds: range, profile: str) -> tuple[int, Result] | None:
    """The first of these seeds whose run notices the mutant, and that run; None: it survives them all."""
    for seed in seeds:
        with pytest.MonkeyPatch.context() as patch:
            each.apply(patch)
            result = simulate(seed, profile, stops_at_first=True)
        if result.violations:
            expect_mistake(result.violations)
            return seed, result
    return None


def short(text: str, width: int) -> str:
    """The text in one line, with no sign that a table would take for its own."""
    line = " ".join(text.split()).replace("|", "/").replace("<", "(").replace(">", ")")
    return line if len(line) <= width else line[: width - 2] + " .."


def table_row(each: Mutant, seeds: range, profile: str | None) -> tuple[bool, str]:
    """Whether everything killed the mutant that should, and its row."""
    killed, marks = [], []
    for schedule in each.schedules:
        is_dead = run_mutant(each, schedule) is not None
        killed.append(is_dead)
        marks.append(f"{schedule} {'killed' if is_dead else '**survives**'}")
    where = profile or each.profile
    if where is None:
        return all(killed), f"| {each.what} | {', '.join(marks)} | | | |"
    found = first_seed(each, seeds, where)
    needed = f"{found[0] - seeds.start + 1}" if found else f"**survives {len(seeds)}**"
    noticed = short(found[1].violations[0], 90) if found else ""
    return all(killed) and found is not None, f"| {each.what} | {', '.join(marks)} | {where} | {needed} | {noticed} |"


def write_table(rows: list[str]) -> None:
    """Put the table between its markers."""
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    table = ["| mutant | schedules | profile | seeds needed | noticed as |", "|---|---|---|---|---|", *rows]
    PAGE.write_text("\n".join([before + BEGIN, *table, END + rest.split(END)[1]]))


def main(arguments: list[str] | None = None) -> int:
    """Print the table: of all mutants, or of those whose description contains one of the names."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--seeds", metavar="A-B", default="1-60", help="where chance looks for it (default 1-60)")
    parser.add_argument("--profile", help="of those seeds, instead of each mutant's own")
    parser.add_argument("--write", action="store_true", help=f"put the table of all into docs/{PAGE.name}")
    given = parser.parse_args(arguments)
    if given.write and given.names:
        parser.error("--write needs the whole table")
    first, _, last = given.seeds.partition("-")
    rows, is_complete = [], True
    for each in MUTANTS:
        if given.names and not any(name in each.what for name in given.names):
            continue
        is_dead, row = table_row(each, range(int(first), int(last or first) + 1), given.profile)
        is_complete &= is_dead
        rows.append(row)
        print(row, flush=True)
    if given.write:
        write_table(rows)
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
