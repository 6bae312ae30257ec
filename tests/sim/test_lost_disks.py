"""Disks that are lost with all files: single ones, a journal, or all of a bookie, under load and with crashes.

Nothing that was acknowledged is denied, and after the healing everything is where the records place it. The sweep
crashes the first start after a loss at every `BK_SWEEP_STEP`-th call.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bookies.errors import DataUnknown, DiskFull, EntryNotFound, LedgerUnknownToBookie
from bookies.lab.sim.run import simulate
from bookies.lab.sim.world.disk import NOTHING_SURVIVES, PROCESS_DIES, Loss
from bookies.storage.engine import opening
from bookies.storage.identity import lost_directories
from bookies.storage.identity.cookie import Cookie
from bookies.storage.store import LedgerStore

from .conftest import entry_body
from .test_failing_directory import check_half

COOKIE = Cookie("b1", "/journal0", ("/ledgers0",), "cluster").pack()
STEP = int(os.environ.get("BK_SWEEP_STEP", "17"))
CASES = {
    "one of three": ["/ledgers1"],
    "that of the catalog": ["/ledgers0"],
    "two of three": ["/ledgers0", "/ledgers2"],
    "all ledger directories": ["/ledgers0", "/ledgers1", "/ledgers2"],
    "the journal": ["/journal0"],
    "everything": ["/journal0", "/ledgers0", "/ledgers1", "/ledgers2"],
}
ALL = CASES["everything"]


@pytest.mark.long
def test_ten_disks_are_lost_under_load() -> None:
    result = simulate(7, "lost-disks")
    assert not result.violations, result.report()
    assert sum(" loses /" in line for line in result.lines) >= 10
    assert 0 < result.statistics["owed entries fetched"] <= 1.05 * result.statistics["entries owed"]


@pytest.fixture
def bookie(machine: Any) -> Callable[..., Any]:
    return lambda seed=0: machine(seed, ledgers=3, entry_log_size_max=1 << 13, checkpoint_interval_ms=500)


async def write(store: LedgerStore, promises: Any) -> None:
    for ledger_id in range(12):
        await promises.add(store, ledger_id, {entry: entry_body(ledger_id, entry, size=400) for entry in range(8)})
    await promises.fence(store, 3)
    await store.checkpoint()
    for ledger_id in range(6, 15):
        await promises.add(store, ledger_id, {entry: entry_body(ledger_id, entry, size=400) for entry in range(8, 12)})


def lose(made: Any, paths: Sequence[str], *, is_replaced: bool) -> None:
    """Lose these directories, and note it as a start with the operator's consent does."""
    for path in paths:
        made.disk.lose_directory(path, is_empty=is_replaced)
    kept = [path for path in ALL if path not in paths]
    losses = tuple(lost_directories.Loss(path, "mark", is_replaced=is_replaced) for path in paths)
    uses = lost_directories.Uses(losses, False, (), (*paths,) if is_replaced else ())
    lost_directories.write(made.disk, COOKIE, kept, uses)
    if not is_replaced:
        left = tuple(path for path in made.config.ledger_directories if path not in paths)
        made.config = dataclasses.replace(made.config, ledger_directories=left)


async def check(store: LedgerStore, promises: Any) -> None:
    """Nothing is denied; of what is held for certain every entry can be read; adds go on with new ledgers."""
    await check_half(store, promises)
    for ledger_id in {ledger_id for ledger_id, _ in promises.acknowledged}:
        try:
            runs = await store.held_entries(ledger_id)
        except DataUnknown:
            assert store.has_unknown_ledgers
            continue
        for entry_id in (entry_id for run in runs for entry_id in run):
            assert await store.read(ledger_id, entry_id) in promises.submitted[ledger_id, entry_id]


LEFT_OUT = ("one of three", "that of the catalog", "two of three")  # the bookie can do without the others


@pytest.mark.parametrize(
    ("case", "is_replaced"), [*((case, True) for case in CASES), *((case, False) for case in LEFT_OUT)]
)
def test_a_start_after_a_loss_denies_nothing_wherever_it_crashes(
    bookie: Callable[..., Any], case: str, *, is_replaced: bool
) -> None:
    begun = bookie(case)
    assert begun.live(write, stops=False)
    begun.crash(PROCESS_DIES)
    lose(begun, CASES[case], is_replaced=is_replaced)
    victims = begun.victims(check, step=STEP, stops=False)
    for number, victim in [*victims, (0, lambda: begun)]:  # the last one has ended
        made = victim()
        made.crash((PROCESS_DIES, NOTHING_SURVIVES, Loss(0.5))[number % 3])
        assert made.live(check)
        assert made.live(check)  # the state outlasts an orderly stop
        assert not made.failures


def test_ledgers_leave_limbo_when_their_entries_are_back(bookie: Callable[..., Any]) -> None:
    made = bookie()
    assert made.live(write)
    lose(made, ["/ledgers1"], is_replaced=True)

    async def fetch(store: LedgerStore, promises: Any) -> None:
        assert len(store.limbo) == 15
        with pytest.raises(DataUnknown):
            await store.read(500, 0)  # any ledger may have been there
        assert await store.settle_unknown_ledgers([*range(15), 20]) == 1
        with pytest.raises(LedgerUnknownToBookie):
            await store.read(500, 0)
        missing = 0
        for ledger_id in range(15):
            held = [entry_id for run in await store.held_entries(ledger_id) for entry_id in run]
            lost = [entry for owner, entry in promises.acknowledged if owner == ledger_id and entry not in held]
            missing += len(lost)
            for entry_id in lost:
                body = {entry_id: promises.acknowledged[ledger_id, entry_id]}
                await promises.add(store, ledger_id, body, is_recovery=True)
        assert 0 < missing < len(promises.acknowledged)
        await store.end_limbo({each: store.limbo.doubts.get(each, 0) for each in (*range(15), 20, 999)})

    assert made.live(fetch)
    made.crash(NOTHING_SURVIVES)

    async def whole(store: LedgerStore, promises: Any) -> None:
        assert len(store.limbo) == 0
        assert not store.has_unknown_ledgers
        for (ledger_id, entry_id), body in promises.acknowledged.items():
            assert await store.read(ledger_id, entry_id) == body
            assert any(entry_id in run for run in await store.list_entries(ledger_id))
        with pytest.raises(EntryNotFound):
            await store.read(0, 100)

    assert made.live(whole)


@pytest.mark.parametrize("path", ["/ledgers1", "/journal0"])
def test_a_journal_without_room_does_not_repeat_the_loss(
    bookie: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    made = bookie()
    assert made.live(write)
    lose(made, [path], is_replaced=True)

    def refuse(*arguments: object) -> None:
        raise DiskFull("no room")

    async def settle(store: LedgerStore, promises: Any) -> None:
        assert store.has_unknown_ledgers
        await store.settle_unknown_ledgers(range(15))

    async def compare(store: LedgerStore, promises: Any) -> None:
        assert not store.has_unknown_ledgers
        assert store.is_writable

    with monkeypatch.context() as patch:
        patch.setattr(opening, "note_place", refuse)
        assert made.live(settle)
    assert made.live(compare)


def test_a_loss_without_room_for_its_note_is_noted_before_records_are_accepted(
    bookie: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next start puts the ledgers into limbo again, also those that were written since."""
    made = bookie()
    assert made.live(write)
    lose(made, ["/journal0"], is_replaced=True)

    def refuse(*arguments: object, **options: object) -> None:
        raise DiskFull("no room")

    async def settle(store: LedgerStore, promises: Any) -> None:
        assert "no free space for the note of a lost directory" in store.read_only_reason
        patch.undo()
        writable = asyncio.Event()
        store.on_mode_change(writable.set)
        await writable.wait()
        await store.settle_unknown_ledgers(range(15))
        await promises.add(store, 700, {entry: entry_body(700, entry, size=400) for entry in range(5)})

    async def compare(store: LedgerStore, promises: Any) -> None:
        assert not store.has_unknown_ledgers
        assert 700 not in store.limbo

    with monkeypatch.context() as patch:
        patch.setattr(opening, "note_applied", refuse)
        assert made.live(settle, stops=False)
    made.crash(PROCESS_DIES)
    assert made.live(compare)


def test_a_bookie_serves_while_a_lost_directory_has_no_new_disk(bookie: Callable[..., Any]) -> None:
    made = bookie()
    assert made.live(write)
    lose(made, ["/ledgers1"], is_replaced=False)

    async def serve(store: LedgerStore, promises: Any) -> None:
        await store.settle_unknown_ledgers(range(15))
        await promises.add(store, 700, {entry: entry_body(700, entry, size=400) for entry in range(50)})
        await store.checkpoint()
        await check(store, promises)
        assert not made.disk.is_directory("/ledgers1")

    assert made.live(serve)
    assert made.live(check)


@pytest.mark.parametrize("kept", [[], ["/ledgers0"]])
def test_slots_of_lost_logs_are_told_from_those_of_later_ones(machine: Any, kept: Sequence[str]) -> None:
    """The index has a disk of its own. No directory that is left tells which logs there were: all are lost, or the
    disk of the other was full when ids were given."""
    made = machine("own index", ledgers=2, index_directories=("/index",), entry_log_size_max=1 << 13)
    assert made.live(write)
    paths = [path for path in made.config.ledger_directories if path not in kept]
    for path in paths:
        made.disk.lose_directory(path, is_empty=True)
    for path in kept:
        made.disk.put(f"{path}/current/lastId", b"0\n")
        for name in made.disk.list(f"{path}/current"):
            if name.endswith(".log"):
                made.disk.unlink(f"{path}/current/{name}")
    losses = tuple(lost_directories.Loss(path, "mark", is_replaced=True) for path in paths)
    uses = lost_directories.Uses(losses, False, (), tuple(paths))
    lost_directories.write(made.disk, COOKIE, ["/journal0", "/index", *kept], uses)

    async def compare(store: LedgerStore, promises: Any) -> None:
        for ledger_id in range(700, 720):  # into logs that come after the lost ones
            await promises.add(store, ledger_id, {entry: entry_body(ledger_id, entry, size=400) for entry in range(9)})
        await store.checkpoint()
        await check(store, promises)
        assert not any([await store.held_entries(ledger_id) for ledger_id in range(12)])

    def still(store: LedgerStore, promises: Any) -> Any:
        return check(store, promises)

    assert made.live(lambda store, promises: store.settle_unknown_ledgers([]))
    assert made.live(compare)
    assert made.live(still)
