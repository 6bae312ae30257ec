"""The mutants of auto-recovery, for `mutant_table.py`: wrong decisions of those who find, lock, copy, swap and unmark.

Each is (what, the schedules that have to kill it, how to make it, the profile in which chance looks for it, or None
where the harm is nothing but work in vain, which only a schedule counts).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from bookies.client.base import keys, locations
from bookies.client.base.metadata_loop import MetadataLoop
from bookies.client.repair import Administration, administration, ledger_repair, replica_tools, replication
from bookies.client.repair.ledger_repair import LedgerRepair, Outcome
from bookies.errors import ReplicationFailed, VersionConflict
from bookies.kernels import scan_records
from bookies.lab.sim.world.loop import current_participant
from bookies.metadata.interface.recovery_store import LedgerLock
from bookies.metadata.shared.recovery import SharedRecovery
from bookies.protocol.repair import fragments, repair_work
from bookies.protocol.repair import replicate as protocol_replicate
from bookies.protocol.repair.absence import Absence
from bookies.protocol.repair.agenda import Agenda
from bookies.protocol.repair.fragments import ReplicaState
from bookies.protocol.repair.replicate import FragmentCopy, Replacement
from bookies.replication.auditor import automatic_balance
from bookies.replication.operator import Drain
from bookies.replication.repair import Worker, balance

Patch = pytest.MonkeyPatch


def time_outs_are_losses(patch: Patch) -> None:
    for module in (fragments, repair_work):
        patch.setattr(module, "state_of", lambda error: ReplicaState.MISSING)


def swap_without_copy(patch: Patch) -> None:
    patch.setattr(FragmentCopy, "is_done", property(lambda self: True))


def copy_unverified(patch: Patch) -> None:
    def verify_records(data, start, end, *_):  # type: ignore[no-untyped-def]
        return scan_records(data, start, end, end)[0], ""

    patch.setattr(keys, "verify_records", verify_records)


def swap_blindly(patch: Patch) -> None:
    """What was made of the record that was read first is written, whatever is there by now."""
    original = MetadataLoop.update

    async def update(self, needed, transform):  # type: ignore[no-untyped-def]
        asking = current_participant()
        if asking is None or not asking.name.startswith("replicator"):
            return await original(self, needed, transform)
        record = transform(self.current.metadata)
        while True:
            found = await self._driver.read_ledger(record.ledger_id)
            try:
                self.current = await self._driver.write_ledger(record, found.version)
                return self.current
            except VersionConflict:
                continue

    patch.setattr(MetadataLoop, "update", update)


def unmark_whatever_came_of_it(patch: Patch) -> None:
    original = LedgerRepair.run

    async def run(self, ledger_id, known=()):  # type: ignore[no-untyped-def]
        await original(self, ledger_id, known)
        return Outcome(ledger_repair.RepairState.HEALTHY)

    patch.setattr(LedgerRepair, "run", run)


def unmark_without_looking_again(patch: Patch) -> None:
    """What was copied and swapped is taken for whole."""
    original = LedgerRepair.work

    class Done(Exception):
        pass

    async def work(self, jobs, found):  # type: ignore[no-untyped-def]
        outcomes = await original(self, jobs, found)
        if not any(outcomes):
            raise Done
        return outcomes

    rounds = LedgerRepair._rounds

    async def mutant_rounds(self, ledger_id, known):  # type: ignore[no-untyped-def]
        try:
            return await rounds(self, ledger_id, known)
        except Done:
            return Outcome(ledger_repair.RepairState.HEALTHY)

    patch.setattr(LedgerRepair, "work", work)
    patch.setattr(LedgerRepair, "_rounds", mutant_rounds)


def delete_any_version_of_a_mark(patch: Patch) -> None:
    async def done(self, lock):  # type: ignore[no-untyped-def]
        try:
            return await self.nodes.delete(self._places.mark(lock.ledger_id), None)
        finally:
            await self.unlock(lock)

    patch.setattr(SharedRecovery, "done", done)


def keep_the_lock_when_cancelled(patch: Patch) -> None:
    original = SharedRecovery.unlock

    async def unlock(self, lock):  # type: ignore[no-untyped-def]
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            await original(self, lock)

    patch.setattr(SharedRecovery, "unlock", unlock)


def work_without_the_lock(patch: Patch) -> None:
    original = SharedRecovery.lock

    async def lock(self, ledger_id, owner, **options):  # type: ignore[no-untyped-def]
        taken = await original(self, ledger_id, owner, **options)
        mark = await self.mark_of(ledger_id) if taken is None else None
        if taken is None and mark is not None and self.nodes.session is not None:
            self._held[ledger_id] = self.nodes.session
            return LedgerLock(ledger_id, owner, mark.version, self.nodes.session)
        return taken

    patch.setattr(SharedRecovery, "lock", lock)


def ignore_the_delay(patch: Patch) -> None:
    patch.setattr(Absence, "lost_at", lambda self, bookie: self._since.get(bookie))


def ignore_maintenance(patch: Patch) -> None:
    original = Absence.observe

    def observe(self, registered, now, maintenance=None):  # type: ignore[no-untyped-def]
        original(self, registered, now, {})

    patch.setattr(Absence, "observe", observe)


def leave_no_grace(patch: Patch) -> None:
    patch.setattr(Worker, "_grace_left", lambda self, found: 0.0)


def seal_for_an_earlier_fragment(patch: Patch) -> None:
    original = ledger_repair.assess

    def assess(record, verdicts, circumstances):  # type: ignore[no-untyped-def]
        found = original(record, verdicts, circumstances)
        named = [bookie for _, ensemble in record.ensembles for bookie in ensemble]
        found.wants_sealing |= not record.is_closed and any(each in circumstances.lost for each in named)
        return found

    patch.setattr(ledger_repair, "assess", assess)


def collect_under_the_lock(patch: Patch) -> None:
    """Bookies look at no lock, and take none."""
    locks, lock = SharedRecovery.locks, SharedRecovery.lock

    def is_bookie() -> bool:
        asking = current_participant()
        return asking is not None and asking.name.startswith("b")

    async def mutant_locks(self):  # type: ignore[no-untyped-def]
        return {} if is_bookie() else await locks(self)

    async def mutant_lock(self, ledger_id, owner, **options):  # type: ignore[no-untyped-def]
        return LedgerLock(ledger_id, owner, None, -1) if is_bookie() else await lock(self, ledger_id, owner, **options)

    patch.setattr(SharedRecovery, "locks", mutant_locks)
    patch.setattr(SharedRecovery, "lock", mutant_lock)


def copy_to_a_member(patch: Patch) -> None:
    def choose_some_targets(fragment, positions, candidates, exclude=()):  # type: ignore[no-untyped-def]
        members = fragment.ensemble
        return tuple(Replacement(each, members[each], members[each - 1]) for each in positions)

    patch.setattr(replication, "choose_some_targets", choose_some_targets)
    patch.setattr(protocol_replicate, "_check_replacements", lambda *_: None)

    def apply(self, record):  # type: ignore[no-untyped-def]
        changed = [
            tuple({each.old: each.new for each in self.replacements}.get(bookie, bookie) for bookie in ensemble)
            if first == self.fragment.first
            else ensemble
            for first, ensemble in record.ensembles
        ]
        pairs = zip(record.ensembles, changed, strict=True)
        return replace(record, ensembles=tuple((first, ensemble) for (first, _), ensemble in pairs))

    patch.setattr(protocol_replicate.Swap, "apply", apply)


def forget_a_bookie_that_is_needed(patch: Patch) -> None:
    original = Drain.remove

    async def remove(self):  # type: ignore[no-untyped-def]
        async def visit_records(visit):  # type: ignore[no-untyped-def]
            return []

        self._visit_records = visit_records
        await original(self)

    patch.setattr(Drain, "remove", remove)


def _postponed(patch: Patch, change: Callable[[dict[str, object]], None]) -> None:
    original = Agenda.postpone

    def postpone(self, ledger_id, now, **options):  # type: ignore[no-untyped-def]
        change(options)
        return original(self, ledger_id, now, **options)

    patch.setattr(Agenda, "postpone", postpone)


def try_what_is_lost_again(patch: Patch) -> None:
    _postponed(patch, lambda options: options.update(is_lost=False))


def try_again_at_once(patch: Patch) -> None:
    _postponed(patch, lambda options: options.update(is_lost=False, for_s=0.5))


def repair_nothing(patch: Patch) -> None:
    async def repair_ledger(self, ledger_id, **options):  # type: ignore[no-untyped-def]
        return ()

    patch.setattr(Administration, "repair_ledger", repair_ledger)


def balance_during_repairs(patch: Patch) -> None:
    for module in (balance, automatic_balance):
        patch.setattr(module, "obstacle_of", lambda *circumstances: None)


def renew_one_entry(patch: Patch) -> None:
    original = replica_tools.renew

    async def renew(access, record, fragment, position, ids, account):  # type: ignore[no-untyped-def]
        return await original(access, record, fragment, position, ids[:1], account)

    patch.setattr(replica_tools, "renew", renew)


def decommission_in_spite_of_failures(patch: Patch) -> None:
    original = Administration.recover_bookies

    async def recover_bookies(self, bookies, **options):  # type: ignore[no-untyped-def]
        try:
            return await original(self, bookies, **options)
        except ReplicationFailed:
            return None

    patch.setattr(Administration, "recover_bookies", recover_bookies)
    patch.setattr(administration, "is_named", lambda record, bookie: False)


def leave_names_without_entries(patch: Patch) -> None:
    patch.setattr(repair_work, "fragments_without_entries", lambda record: [])


def take_the_rule_for_a_wish(patch: Patch) -> None:
    original = locations.policy_of
    patch.setattr(locations, "policy_of", lambda *parts: replace(original(*parts), is_rule=False))


HEALING: list[tuple[str, tuple[str, ...], Callable[[Patch], None], str | None]] = [
    ("a bookie that does not answer has lost its entries", ("heal-unknown",), time_outs_are_losses, None),
    ("a repair swaps and does not copy", ("heal-worker", "heal-auditor"), swap_without_copy, "recovery"),
    ("a repair copies what it has not verified", ("heal-digest",), copy_unverified, None),
    ("a swap overwrites what others have changed", ("heal-writer",), swap_blindly, None),
    (
        "a mark is deleted regardless of the outcome of its repair",
        ("heal-target", "heal-unknown"),
        unmark_whatever_came_of_it,
        "recovery",
    ),
    ("a mark goes without another look", ("heal-return",), unmark_without_looking_again, "recovery"),
    ("a mark goes although it was renewed", ("heal-worker",), delete_any_version_of_a_mark, None),
    ("a lock is kept by a worker that is told to end", ("heal-worker",), keep_the_lock_when_cancelled, None),
    ("workers do not care who has the lock", ("heal-lock",), work_without_the_lock, "recovery"),
    ("the delay is ignored", ("heal-delay",), ignore_the_delay, None),
    ("maintenance is ignored", ("heal-maintenance",), ignore_maintenance, None),
    ("writers have no grace period", ("heal-open",), leave_no_grace, None),
    ("a ledger is sealed for an earlier fragment", ("heal-open",), seal_for_an_earlier_fragment, None),
    ("surplus replicas are collected during a copy", ("heal-collect",), collect_under_the_lock, None),
    ("a copy goes to a bookie that is a member already", ("heal-worker",), copy_to_a_member, "recovery"),
    ("a bookie is forgotten that is needed", ("heal-drain",), forget_a_bookie_that_is_needed, None),
    (
        "a lost bookie stays in records of ledgers without entries",
        ("heal-empty",),
        leave_names_without_entries,
        "recovery-small",
    ),
    ("what is lost is tried again like everything else", ("heal-lost",), try_what_is_lost_again, None),
    ("what failed is tried again at once", ("heal-target", "heal-lost"), try_again_at_once, "recovery"),
    ("a repair of a ledger does nothing", (), repair_nothing, "operations"),
    ("a renewal writes one entry", (), renew_one_entry, "operations"),
    ("a decommission succeeds in spite of failures", (), decommission_in_spite_of_failures, "operations"),
    ("the balance goes on during repairs", (), balance_during_repairs, "balance"),
    ("`placement_rule` is a wish", (), take_the_rule_for_a_wish, "operations"),
]
