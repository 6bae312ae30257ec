"""The power fails at every single disk call; whatever was acknowledged must be there afterwards.

Each test runs a script once to count its disk calls, and then once for each of them with the crash there. What was not
synced is lost in one of several ways in turn. Names in brackets are those of the rules and flaws in storage 10.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from bookies.errors import LedgerFenced
from bookies.lab.sim.world.disk import LOSSES, NOTHING_SURVIVES, PROCESS_DIES, Loss
from bookies.storage.entry_log import entry_log
from bookies.storage.store import LedgerStore

Body = Callable[..., bytes]
Script = Callable[[LedgerStore, Any], Any]
WAYS = (*LOSSES, PROCESS_DIES)
BOTH_INDEXES_BUT = {
    "test_a_checkpoint_with_two_journals_and_two_ledger_directories",
    "test_one_flipped_bit_in_one_copy_of_a_mark",
    "test_two_checkpoints_of_which_the_first_fails",  # a failed write to a database ends the process
}
ALSO_SPLIT = {"test_rolls_of_journal_and_entry_log", "test_a_checkpoint_while_adds_go_on"}


def sweep(
    machine: Any,
    script: Script,
    *,
    prepare: Script | None = None,
    step: int = 1,
    mean_ms: float = 0.05,
    only_process_dies: bool = False,
    **settings: Any,
) -> int:
    """Crash at each (or each `step`-th) disk call of a life with `script`, after a life with `prepare`.

    `only_process_dies`: the power fails a life later, when that one has found what the first had not yet synced.
    """

    prepared = machine("sweep", **settings)
    prepared.mean_ms = mean_ms
    if prepare is not None:
        assert prepared.live(prepare, stops=False)
        prepared.crash(PROCESS_DIES)
    before = prepared.disk.call_count
    victims = prepared.victims(script, step=step)
    count: int = prepared.disk.call_count - before
    prepared.check()
    checked: set[bytes] = set()
    for number, fresh in victims:
        victim = fresh()
        way = PROCESS_DIES if only_process_dies else WAYS[number % len(WAYS)]
        victim.crash(way)
        if number % 3 == 0 and not only_process_dies:  # and once more while it comes back
            victim.live(lambda store, promises: promises.check(store), crash_at=1 + number * 7 % 60)
            victim.crash(WAYS[number // 3 % len(WAYS)])
        if only_process_dies:
            assert victim.live(lambda store, promises: asyncio.sleep(0), stops=False)
            victim.crash(NOTHING_SURVIVES)
        lives = 2 if number % 5 == 0 else 1
        state = pickle.dumps((lives, victim.lives, victim.disk._directories, victim.promises))
        if state in checked:  # The same lives would follow: no loss draws from the disk's chance any more.
            continue
        checked.add(state)
        try:
            victim.check(lives=lives)
        except BaseException as error:
            error.add_note(f"crash at disk call {number} of {count}, {way}")
            raise
    return count


@pytest.fixture
def load(body: Body) -> Script:
    """Entries of several kinds, fences, explicit LACs; some of it is waited for, some is not."""

    async def run(store: LedgerStore, promises: Any) -> None:
        waits = [promises.add(store, 1, {entry: body(1, entry) for entry in range(8)})]
        waits += [promises.add(store, 2, {entry: body(2, entry) for entry in (0, 3, 4, 9)})]
        waits += [promises.fence(store, 3), promises.write_lac(store, 4, 17)]
        await asyncio.gather(*waits)
        promises.add(store, 1, {entry: body(1, entry) for entry in range(8, 16)})
        promises.add(store, 2, {entry: body(2, entry) for entry in (7, 2, 30)})
        await promises.fence(store, 2)
        await promises.add(store, 2, {3: body(2, 3, version=1), 4: body(2, 4, version=1)}, is_recovery=True)
        promises.write_lac(store, 4, 18)

    return run


def test_a_checkpoint(machine: Any, load: Script, body: Body) -> None:
    """[R-1, R-2, R-11, R-12]"""

    async def script(store: LedgerStore, promises: Any) -> None:
        await load(store, promises)
        await store.checkpoint()
        await promises.add(store, 1, {entry: body(1, entry) for entry in range(16, 20)})
        await promises.fence(store, 1)
        await store.checkpoint()

    assert sweep(machine, script) > 60


@pytest.mark.parametrize("journals", [1, 2])
def test_entries_of_many_ledgers_in_one_run(
    machine: Any, body: Body, journals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[R-1, R-2, R-9] Mixed runs, copies of what is in runs of its own, and the other way round; several flushes."""
    monkeypatch.setattr(entry_log, "MIXED_SIZE", 600)  # a few entries

    async def script(store: LedgerStore, promises: Any) -> None:
        for first in (0, 3):
            waits = []
            for entry in range(first, first + 3):
                ids = [(ledger, entry) for ledger in range(12)] + [(3, 100 + entry)]
                waits.append(promises.add_mixed(store, {each: body(*each) for each in ids}))
            await asyncio.gather(*waits, promises.add(store, 5, {entry: body(5, entry) for entry in range(40, 44)}))
            waits = [promises.add(store, 7, {first + at: body(7, first + at, version=1) for at in range(2)})]
            waits.append(promises.add_mixed(store, {(ledger, first): body(ledger, first, 2) for ledger in range(10)}))
            await asyncio.gather(*waits)
            await promises.check(store)
            if not first:
                await store.checkpoint()
        await promises.fence(store, 3)
        promises.fences[3] = False  # Its keeping is what other tests are about: here it only meets mixed runs.
        with pytest.raises(LedgerFenced):
            await promises.add_mixed(store, {(ledger, 9): body(ledger, 9) for ledger in range(12)})

    assert sweep(machine, script, step=3, write_cache_size=8 << 10, journals=journals) > 60


def test_a_checkpoint_while_adds_go_on(machine: Any, load: Script, body: Body) -> None:
    """[R-1, R-9] What arrives after the cut is not covered by the mark, and a page that changes stays dirty."""

    async def script(store: LedgerStore, promises: Any) -> None:
        await load(store, promises)
        for start in (16, 32):
            checkpoint = asyncio.ensure_future(store.checkpoint())
            for entry in range(start, start + 16):
                await promises.add(
                    store, 1 + entry % 2, {100 + entry: body(1 + entry % 2, 100 + entry)}, is_recovery=True
                )
                if entry == start + 8:
                    await promises.fence(store, start)
            await checkpoint

    for mean_ms in (0.05, 0.2):
        assert sweep(machine, script, step=5, mean_ms=mean_ms, write_cache_size=8 << 10) > 60


def test_a_checkpoint_of_a_process_that_dies_before_the_machine_does(machine: Any, body: Body) -> None:
    """What the next life finds on the disk is not durable for that; it must not conclude that it is. [R-8]"""

    async def some(store: LedgerStore, promises: Any, first: int) -> None:
        for ledger_id, size in ((20, 700), (21, 60)):
            bodies = {entry: body(ledger_id, entry, size=size, has_digest=False) for entry in range(first, first + 4)}
            await promises.add(store, ledger_id, bodies)

    async def script(store: LedgerStore, promises: Any) -> None:
        await some(store, promises, 0)
        await store.checkpoint()  # the mark is behind the keys, so the replay meets nothing but entries
        await some(store, promises, 4)
        await store.checkpoint()

    assert sweep(machine, script, only_process_dies=True) > 60


def test_a_checkpoint_with_two_journals_and_two_ledger_directories(machine: Any, load: Script) -> None:
    """[R-10, R-11]"""

    async def script(store: LedgerStore, promises: Any) -> None:
        await load(store, promises)
        await store.checkpoint()
        await load_more(store, promises)
        await store.checkpoint()

    async def load_more(store: LedgerStore, promises: Any) -> None:
        await asyncio.gather(promises.write_lac(store, 5, 3), promises.fence(store, 4))

    assert sweep(machine, script, step=2, journals=2, ledgers=2) > 60


def test_replay_and_its_flush(machine: Any, load: Script) -> None:
    """[R-8, R-13, F-38]"""
    assert sweep(machine, lambda store, promises: asyncio.sleep(0), prepare=load) > 60


def test_replay_over_a_half_finished_checkpoint(machine: Any, load: Script, body: Body) -> None:
    """Pages and headers of a checkpoint that did not get to its mark are met again by the replay."""

    async def prepare(store: LedgerStore, promises: Any) -> None:
        await load(store, promises)
        await store.checkpoint()
        await promises.add(store, 1, {entry: body(1, entry) for entry in range(16, 24)})

    async def script(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, {entry: body(1, entry, version=2) for entry in range(4, 20)})
        await store.checkpoint()

    assert sweep(machine, script, prepare=prepare) > 40


def test_rolls_of_journal_and_entry_log(machine: Any, body: Body) -> None:
    """[F-8, R-16]"""

    async def script(store: LedgerStore, promises: Any) -> None:
        for number in range(8):
            ids = range(number * 4, number * 4 + 4)
            adding = promises.add(store, number % 2, {entry: body(number % 2, entry, size=3_000) for entry in ids})
            if number % 3 == 0:
                await adding
        await adding
        await store.checkpoint()

    assert sweep(machine, script, journal_size_max=1 << 15, entry_log_size_max=1 << 15) > 60


def test_the_entry_is_added_again_and_its_record_is_torn(machine: Any, body: Body) -> None:
    """A recovery sends an acknowledged entry again; a torn copy of it in the journal must not replace the good one."""
    for number in range(40):
        victim = machine(number)
        has_digest = number % 4 != 3

        async def prepare(
            store: LedgerStore, promises: Any, has_digest: bool = has_digest, number: int = number
        ) -> None:
            bodies = {entry: body(1, entry, size=700, has_digest=has_digest) for entry in range(6)}
            await promises.add(store, 1, bodies)
            if number % 2:
                await store.checkpoint()

        async def script(store: LedgerStore, promises: Any, has_digest: bool = has_digest) -> None:
            again = {entry: body(1, entry, version=1, size=700, has_digest=has_digest) for entry in range(6)}
            await promises.add(store, 1, again, is_recovery=True)

        assert victim.live(prepare, stops=False)
        victim.crash(PROCESS_DIES)
        calls = victim.disk.call_count
        probe = machine(number)
        assert probe.live(prepare, stops=False)
        probe.crash(PROCESS_DIES)
        probe.disk.log = []
        assert probe.live(script, stops=False)
        group = next(call for call in probe.disk.log if call.operation == "pwritev" and "/journal" in call.path)
        assert not victim.live(script, crash_at=group.number - calls + 1)  # between the write and its sync
        victim.crash(Loss(0.5, garbage=0.3 * (number % 3)))
        victim.check()


@pytest.mark.parametrize(
    ("operation", "path"), [("pwritev", ".log"), ("pwrite", ".idx"), ("pwritev", ".idx"), ("open", ".idx")]
)
@pytest.mark.parametrize("skip", range(3))
def test_two_checkpoints_of_which_the_first_fails(
    machine: Any, load: Script, body: Body, operation: str, path: str, skip: int
) -> None:
    """[F-25, R-17] What the first could not write is part of the second, whatever else was dirty meanwhile."""
    victim = machine((operation, path, skip))

    async def script(store: LedgerStore, promises: Any) -> None:
        await load(store, promises)
        await store.checkpoint()
        for ledger_id in range(10, 14):
            await promises.add(store, ledger_id, {entry: body(ledger_id, entry) for entry in range(30)})
        await promises.add(store, 1, {entry: body(1, entry) for entry in range(40, 60)})
        await promises.write_lac(store, 12, 5)
        fault = victim.disk.fail(operation, path, lambda: OSError(5, "Input/output error"), skip=skip)
        with contextlib.suppress(OSError):
            await store.checkpoint()
        assert fault.count == 0 or operation == "pwritev"
        victim.disk.faults.clear()
        await promises.fence(store, 1)
        await store.checkpoint()

    assert victim.live(script, stops=False)
    assert not victim.failures
    victim.crash(WAYS[skip])
    victim.check()


def test_meta_records_only(machine: Any) -> None:
    """[F-7, F-19, F-20, F-21] Fences and explicit LACs of ledgers without entries, before and after a checkpoint."""

    async def script(store: LedgerStore, promises: Any) -> None:
        await asyncio.gather(promises.fence(store, 7), promises.write_lac(store, 8, 3))
        await store.checkpoint()
        await asyncio.gather(promises.fence(store, 8), promises.fence(store, 9), promises.write_lac(store, 7, 4))
        await store.checkpoint()
        await promises.write_lac(store, 9, 1)

    assert sweep(machine, script) > 30


def test_a_header_changes_after_a_restart_without_a_page_in_memory(machine: Any, load: Script, body: Body) -> None:
    """[F-20, F-22] The fence of a ledger of which only the header was loaded is part of the next checkpoint."""

    async def prepare(store: LedgerStore, promises: Any) -> None:
        await load(store, promises)
        await store.checkpoint()

    async def script(store: LedgerStore, promises: Any) -> None:
        await asyncio.gather(promises.fence(store, 1), promises.write_lac(store, 2, 8))
        await store.checkpoint()

    assert sweep(machine, script, prepare=prepare) > 20


@pytest.mark.parametrize("loss", [NOTHING_SURVIVES, PROCESS_DIES])
@pytest.mark.parametrize("journals", [1, 2])
def test_one_flipped_bit_in_one_copy_of_a_mark(
    machine: Any, body: Callable[..., bytes], loss: Loss, journals: int
) -> None:
    """In the first life of a bookie, when the catalog may not have noted a mark yet."""

    async def load(store: LedgerStore, promises: Any) -> None:
        for first in (0, 10):
            for ledger_id in range(1, 5):
                entries = {entry: body(ledger_id, entry) for entry in range(first, first + 10)}
                await promises.add(store, ledger_id, entries)
            if not first:
                await store.checkpoint()

    for bit in range(9, 24):
        made = machine(f"mark {bit}", journals=journals, ledgers=2)
        assert made.live(load, stops=False)
        made.crash(loss)
        for path in [path for path in made.disk.files() if path.startswith("/ledgers0") and "lastMark" in path]:
            data = int.from_bytes(made.disk.read_bytes(path), "big") ^ (1 << bit)
            made.disk.put(path, data.to_bytes(16, "big"))
        made.check()
