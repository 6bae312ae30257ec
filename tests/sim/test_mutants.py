"""The checkers can fail: break one rule at a time, and the simulator has to notice within a few seeds.

The comment behind each mutant names the promise by which it was caught when this was written. Schedules for each
mutant of client-protocol 8.4 are in `mutant_table.py`; here nothing but random ones. The museum has more of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace
from tests.sim.mutant_table import expect_mistake

from bookies.client.base import keys
from bookies.client.read.reader_state import ReaderState
from bookies.client.repair import recovery
from bookies.client.transport import BookieWatcher
from bookies.client.write.quorum_timeout import QuorumTimeout
from bookies.errors import BookKeeperError
from bookies.kernels import Adds, scan_records
from bookies.kernels.adds import COLUMNS
from bookies.lab.sim.run import Simulation, mixed, simulate
from bookies.lab.sim.world.disk import SimDisk, SimFile
from bookies.metadata.shared import table_store
from bookies.metadata.shared.nodes import At
from bookies.protocol.ledger import AddPipeline, fence, recover
from bookies.protocol.ledger.add import ChangeEnsemble
from bookies.protocol.ledger.offload import is_given_up, offload_of
from bookies.protocol.repair.owed import Owed
from bookies.storage.cache.write_cache import AddRun, Generation
from bookies.storage.gc import deleted_ledgers
from bookies.storage.index import LedgerIndex
from bookies.storage.index.index_format import IndexHeader
from bookies.storage.store import LedgerStore

SEEDS_MAX = 20

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]


# -- the writer ----------------------------------------------------------------------------------------------------


def acknowledge_after_one_copy(patch: Patch) -> None:  # I-9
    original = AddPipeline._quorum_bound

    def mutant(self: AddPipeline, first: int) -> int:
        quorums = self._quorums
        self._quorums = quorums if self._write_back is not None else replace(quorums, ack_quorum=1)
        try:
            return original(self, first)
        finally:
            self._quorums = quorums

    patch.setattr(AddPipeline, "_quorum_bound", mutant)


def keep_acknowledgements_of_replaced_bookies(patch: Patch) -> None:  # I-9; X-27
    original = AddPipeline._agreed

    def mutant(self: AddPipeline, ensemble):  # type: ignore[no-untyped-def]
        acked = list(self._acked)
        effects = original(self, ensemble)
        self._acked[:] = acked
        return effects

    patch.setattr(AddPipeline, "_agreed", mutant)


def start_fragment_behind_what_was_pushed(patch: Patch) -> None:  # I-9, I-2
    original = AddPipeline._start_round

    def mutant(self: AddPipeline, failed):  # type: ignore[no-untyped-def]
        effects = original(self, failed)
        first = self.last_add_pushed + 1
        return [each._replace(first_entry_id=first) if isinstance(each, ChangeEnsemble) else each for each in effects]

    patch.setattr(AddPipeline, "_start_round", mutant)


def write_metadata_blindly(patch: Patch) -> None:  # I-5, I-4, I-7
    original = table_store.holds

    def blind(condition, item):  # type: ignore[no-untyped-def]
        is_swap = isinstance(condition, At) and condition.version > 0
        return item is not None if is_swap else original(condition, item)

    patch.setattr(table_store, "holds", blind)


def change_ensembles_when_forbidden(patch: Patch) -> None:  # off
    patch.setattr(AddPipeline, "allows_changes", property(lambda self: True, lambda self, allowed: None), raising=False)


def never_lose_patience(patch: Patch) -> None:  # I-19, stall
    patch.setattr(QuorumTimeout, "watch", lambda self: None)


def lose_patience_early(patch: Patch) -> None:  # stall
    original = QuorumTimeout.__init__

    def mutant(self: QuorumTimeout, limit_s: float, *parts) -> None:  # type: ignore[no-untyped-def]
        original(self, limit_s / 2, *parts)

    patch.setattr(QuorumTimeout, "__init__", mutant)


def count_no_domains(patch: Patch) -> None:  # domains
    patch.setattr(AddPipeline, "_spans_domains", lambda self, entry_id: True)


def take_fewer_bookies_than_there_are(patch: Patch) -> None:  # striping
    original = BookieWatcher.choose_ensemble

    async def mutant(self, size, exclude=(), *, size_min=None, **quorums):  # type: ignore[no-untyped-def]
        return await original(self, size if size_min is None else size_min, exclude, **quorums)

    patch.setattr(BookieWatcher, "choose_ensemble", mutant)


# -- readers -------------------------------------------------------------------------------------------------------


def go_beyond_what_is_confirmed(patch: Patch) -> None:  # I-12, I-15, I-14
    async def check_confirmed(self, last: int) -> None:  # type: ignore[no-untyped-def]
        self.last_add_confirmed = max(self.last_add_confirmed, last)

    patch.setattr(ReaderState, "check_confirmed", check_confirmed)


def believe_less_than_before(patch: Patch) -> None:  # I-17
    def learn(self, last_add_confirmed: int) -> int:  # type: ignore[no-untyped-def]
        if not self.is_sealed:
            self.last_add_confirmed = last_add_confirmed
        return self.last_add_confirmed

    patch.setattr(ReaderState, "learn", learn)


# -- recovery ------------------------------------------------------------------------------------------------------


def read_without_fencing(patch: Patch) -> None:  # I-6; X-11
    async def mutant(self, bookie, entry_id, is_batch):  # type: ignore[no-untyped-def]
        try:
            body, header = await self._read(bookie, entry_id, None)
        except BookKeeperError as error:
            return error
        return recovery._Entries(entry_id, [body[header.payload_offset :]], [header.length])

    patch.setattr(recovery._Recovery, "_ask", mutant)


def take_any_answers_for_coverage(patch: Patch) -> None:  # I-5; X-21
    patch.setattr(fence, "covered", lambda known, write_quorum, ack_quorum: any(known))


def fence_nobody(patch: Patch) -> None:  # I-5
    async def mutant(self, bookie):  # type: ignore[no-untyped-def]
        try:
            return (await self._read(bookie, -1, None))[1]
        except BookKeeperError as error:
            return error

    patch.setattr(recovery._Recovery, "_ask_last", mutant)
    read_without_fencing(patch)


def take_errors_for_negatives(patch: Patch) -> None:  # I-5, I-1; X-3
    patch.setattr(recover, "NEGATIVE", (BookKeeperError,))


def end_at_the_first_negative(patch: Patch) -> None:  # I-5, I-1; X-45
    patch.setattr(recover, "negatives_needed", lambda write_quorum, ack_quorum: 1)


def believe_every_digest(patch: Patch) -> None:  # I-15; X-48
    def verify_records(data: bytes, start: int, end: int, *_: object) -> tuple[Sequence[int], str]:
        return scan_records(data, start, end, end)[0], ""

    patch.setattr(keys, "verify_records", verify_records)


# -- the bookie ----------------------------------------------------------------------------------------------------


def accept_adds_when_fenced(patch: Patch) -> None:  # I-28
    patch.setattr(IndexHeader, "is_fenced", property(lambda self: False))


def answer_before_the_journal(patch: Patch) -> None:  # B-1, I-1, I-2
    original = LedgerStore._journal

    def mutant(self: LedgerStore, ledger, record, size, done):  # type: ignore[no-untyped-def]
        original(self, ledger, record, size, None)
        asyncio.get_running_loop().call_soon(done, None)

    patch.setattr(LedgerStore, "_journal", mutant)


def sync_nothing(patch: Patch) -> None:  # B-1, I-1, L-2
    patch.setattr(SimFile, "fdatasync", lambda self: None)


def sync_no_directory(patch: Patch) -> None:  # B-1, I-1
    patch.setattr(SimDisk, "sync_directory", lambda self, path: None)


# -- adds of many ledgers on one connection, which the bookie stores as one batch -----------------------------------


def give_a_confirmed_end_to_another_ledger(patch: Patch) -> None:  # L-3, I-14
    original = LedgerStore.add

    def mutant(self: LedgerStore, adds: Adds, *arguments, **rest):  # type: ignore[no-untyped-def]
        table, lacs = adds.table[:], adds.lacs
        table[2::COLUMNS] = lacs[1:] + lacs[:1]
        return original(self, Adds(table, adds.entry_ids, adds.records), *arguments, **rest)

    patch.setattr(LedgerStore, "add", mutant)


def answer_many_ledgers_before_the_sync(patch: Patch) -> None:  # B-1
    original = LedgerStore.add

    def mutant(self: LedgerStore, adds: Adds, *arguments, done, **rest):  # type: ignore[no-untyped-def]
        if adds.stretch_count == 1:
            return original(self, adds, *arguments, done=done, **rest)
        refused = original(self, adds, *arguments, done=lambda part, error: None, **rest)
        for part in adds.parts():
            if all(part.ledger_ids != other.ledger_ids for other, _ in refused):
                asyncio.get_running_loop().call_soon(done, part, None)
        return refused

    patch.setattr(LedgerStore, "add", mutant)


def store_entries_in_the_wrong_ledger(patch: Patch) -> None:  # B-1, I-27
    original = Generation._add_mixed

    def mutant(self: Generation, run: AddRun) -> None:
        ids = run.ledger_ids
        original(self, AddRun(ids[1:] + ids[:1], run.entry_ids, run.records))

    patch.setattr(Generation, "_add_mixed", mutant)


# -- ledgers in files ----------------------------------------------------------------------------------------------


def forget_what_has_a_copy(patch: Patch) -> None:  # I-29
    patch.setattr(
        deleted_ledgers, "may_be_forgotten", lambda record: record.is_closed and offload_of(record) is not None
    )


def forget_what_is_being_restored(patch: Patch) -> None:  # I-29
    patch.setattr(deleted_ledgers, "may_be_forgotten", is_given_up)


# -- lost disks ----------------------------------------------------------------------------------------------------


def deny_what_was_on_a_lost_disk(patch: Patch) -> None:  # B-1
    async def mark_all_uncertain(self: LedgerIndex, text: str, *_: object) -> None:
        self.catalog.add_hole(text)

    patch.setattr(LedgerIndex, "mark_all_uncertain", mark_all_uncertain)


def deny_before_all_is_fetched(patch: Patch) -> None:  # B-1
    patch.setattr(Owed, "is_settled", property(lambda self: self.is_closed))


def deny_what_an_open_ledger_may_owe(patch: Patch) -> None:  # B-1
    patch.setattr(Owed, "is_settled", property(lambda self: not self.runs))


MUTANTS: list[tuple[Mutant, str, int]] = [  # what, profile, first seed: one that caught it, so that it is quick
    (acknowledge_after_one_copy, "races", 1),
    (keep_acknowledgements_of_replaced_bookies, "races", 1),
    (start_fragment_behind_what_was_pushed, "races", 1),
    (write_metadata_blindly, "races", 5),
    (change_ensembles_when_forbidden, "delayed", 3),
    (never_lose_patience, "delayed", 2),
    (lose_patience_early, "delayed", 1),
    (count_no_domains, "delayed", 2),
    (take_fewer_bookies_than_there_are, "delayed", 3),
    (go_beyond_what_is_confirmed, "reads", 3),
    (believe_less_than_before, "reads", 4),
    (read_without_fencing, "small", 2),
    (take_any_answers_for_coverage, "small", 2),
    (fence_nobody, "races", 1),
    (take_errors_for_negatives, "races", 17),
    (end_at_the_first_negative, "races", 2),
    (accept_adds_when_fenced, "races", 1),
    (believe_every_digest, "rot", 6),
    (believe_every_digest, "hostile", 3),
    (answer_before_the_journal, "crashes", 12),
    (sync_nothing, "crashes", 5),
    (sync_no_directory, "crashes", 1),
    (give_a_confirmed_end_to_another_ledger, "many-ledgers", 1),
    (answer_many_ledgers_before_the_sync, "many-ledgers", 1),
    (store_entries_in_the_wrong_ledger, "many-ledgers", 5),
    (forget_what_has_a_copy, "offloading", 1),
    (forget_what_is_being_restored, "offloading", 1),
    (deny_what_was_on_a_lost_disk, "lost-disks", 1),
    (deny_before_all_is_fetched, "lost-disks", 1),
    (deny_what_an_open_ledger_may_owe, "lost-disks", 1),
]


@pytest.mark.parametrize(
    ("mutant", "profile", "first_seed"), MUTANTS, ids=[f"{mutant.__name__}-{profile}" for mutant, profile, _ in MUTANTS]
)
def test_mutant_is_caught(mutant: Mutant, profile: str, first_seed: int, monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    for seed in range(first_seed, first_seed + SEEDS_MAX):
        if violations := simulate(seed, profile, stops_at_first=True).violations:
            expect_mistake(violations)
            return
    pytest.fail(f"{mutant.__name__} survived {SEEDS_MAX} seeds of {profile}")


def test_adds_of_many_ledgers_are_stored_as_one_batch_and_watched() -> None:
    """Without it the three mutants of such batches would survive, because their code would not run."""
    counts: list[int] = []

    async def scenario(simulation: Simulation) -> None:
        await mixed(simulation)
        assert simulation.cluster.witness is not None
        counts.append(simulation.cluster.witness.mixed_count)

    result = simulate(2, "many-ledgers", scenario=scenario)
    assert not result.violations, result.report()
    assert counts[0] > 100
