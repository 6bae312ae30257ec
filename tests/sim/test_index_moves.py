"""Index files leave a directory with little room: nothing is lost on the way, wherever the power fails.

The sweep takes every `BK_SWEEP_STEP`-th disk call, counted from another one each time; 1 is all of them.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes.records import BOOKIE, FakeRecords
from tests.sim.space_world import compact, fill, forget, small_machine

from bookies.errors import DataUnknown, DiskFull, LedgerFenced
from bookies.lab.sim.world.disk import LOSSES, PROCESS_DIES
from bookies.storage.engine.quarantine_format import QuarantineState
from bookies.storage.index import index_format
from bookies.storage.store import LedgerStore

Body = Callable[..., bytes]
WAYS = (*LOSSES, PROCESS_DIES)
STEP = int(os.environ.get("BK_SWEEP_STEP", "17"))
ALL = range(1, 7)
LEFT = "/ledgers0/current"


def index_files(made: Any) -> Counter[int]:
    """Of each ledger; there is never more than one, and none on its way after a start."""
    paths = [path for path in made.disk.files() if ".idx" in path]
    found = Counter(index_format.parse_path(path) for path in paths)
    assert None not in found, paths
    return found


def left_behind(made: Any) -> list[str]:
    return [path for path in made.disk.files() if path.startswith(LEFT) and ".idx" in path]


def crowd(store: LedgerStore, directory: str = LEFT) -> None:
    store._parts.health.crowded = frozenset({directory})


def fresh(machine: Any, body: Body) -> Any:
    async def before(store: LedgerStore, promises: Any) -> None:
        for first in (0, 12):
            for ledger_id in ALL:
                entries = {entry: body(ledger_id, entry, size=90) for entry in range(first, first + 12)}
                await promises.add(store, ledger_id, entries)
            await store.checkpoint()
        await promises.fence(store, 2)
        await promises.write_lac(store, 3, 20)

    made = machine("moves a", ledgers=3)
    assert made.live(before)
    return made


def writing(body: Body, *, is_read: bool = False) -> Any:
    async def during(store: LedgerStore, promises: Any) -> None:
        crowd(store)
        adding = [
            promises.add(store, each, {entry: body(each, entry) for entry in (24, 60)}) for each in ALL if each != 2
        ]
        await asyncio.gather(*adding, promises.fence(store, 4))
        await asyncio.gather(store.checkpoint(), *([promises.check(store)] if is_read else []))

    return during


async def check_unbroken(store: LedgerStore, promises: Any) -> None:
    """No file had to be built again from the entry logs."""
    await promises.check(store)
    assert store._parts.index.damaged_count == 0


def test_files_move_while_they_are_read(machine: Any, body: Body) -> None:
    made = fresh(machine, body)
    before = left_behind(made)
    assert 1 < len(before) < len(ALL)
    assert made.live(writing(body, is_read=True))
    of_fenced = f"{LEFT}/{index_format.path_of(2)}"  # which has nothing new
    assert [path for path in left_behind(made) if path != of_fenced] == []
    assert index_files(made) == Counter(ALL)
    made.check()
    assert not made.failures


def test_a_crash_while_files_move(machine: Any, body: Body) -> None:
    copy = fresh(machine, body).copies()
    first = copy()
    begin = first.disk.call_count
    assert first.live(writing(body))
    count = first.disk.call_count - begin
    for number, victim in copy().victims(writing(body), 1 + count % STEP, STEP):
        made = victim()
        made.crash(WAYS[number % len(WAYS)])
        try:
            assert made.live(check_unbroken)
            made.check()
            assert not made.failures
            assert set(index_files(made).values()) == {1}
        except BaseException as error:
            error.add_note(f"crash at disk call {number} of {count}")
            raise
    print(f"{count} disk calls")


@pytest.mark.parametrize("operation", ["open", "pwrite", "pwritev"])
def test_no_room_where_they_go(machine: Any, body: Body, operation: str) -> None:
    """What could not move is tried again, and stays readable meanwhile."""
    made = fresh(machine, body)

    async def during(store: LedgerStore, promises: Any) -> None:
        crowd(store)
        await asyncio.gather(*(promises.add(store, each, {30: body(each, 30)}) for each in ALL if each != 2))
        made.disk.fail(operation, ".idx.new", lambda: DiskFull("no room"), count=3)
        failed = 0
        while True:
            try:
                await store.checkpoint()
                break
            except DiskFull:
                failed += 1
                await promises.check(store)
        assert failed == 3
        await promises.check(store)

    assert made.live(during)
    assert index_files(made) == Counter(ALL)
    made.check()


def unfinished(made: Any) -> list[str]:
    return [path for path in made.disk.files() if path.endswith((".new", ".rloc"))]


@pytest.mark.parametrize(("operation", "path"), [("rename", ".idx.new"), ("rename", ".idx.rloc"), ("unlink", ".idx")])
@pytest.mark.parametrize("also", [0, 2])
def test_what_a_failure_leaves_is_removed_by_the_next_write(
    machine: Any, body: Body, operation: str, path: str, also: int
) -> None:
    """`also`: so many of the removals fail too."""
    made = fresh(machine, body)

    async def during(store: LedgerStore, promises: Any) -> None:
        crowd(store)
        await asyncio.gather(*(promises.add(store, each, {30: body(each, 30)}) for each in ALL if each != 2))
        made.disk.fail(operation, path, lambda: OSError(1, "Operation not permitted"))
        with pytest.raises(OSError, match="not permitted"):
            await store.checkpoint()
        assert unfinished(made)
        assert store.stats()["index_files_stray"] >= len(unfinished(made))
        if also:
            made.disk.fail("unlink", ".idx.", lambda: OSError(1, "Operation not permitted"), count=also)
        for number in range(1 + also):
            await promises.add(store, 1, {31 + number: body(1, 31 + number)})
            await store.checkpoint()
            await promises.check(store)
        assert not unfinished(made)
        assert store.stats()["index_files_stray"] == 0
        made.disk.faults.clear()

    assert made.live(during)
    assert index_files(made) == Counter(ALL)
    made.check()
    assert not made.failures


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("is_moving", [True, False])
def test_a_file_that_has_its_name_when_another_fails_is_replaced_in_any_directory(
    machine: Any, body: Body, count: int, is_moving: bool
) -> None:
    """The next write may choose another directory. An older file there would hide entries if the catalog were lost."""
    made = fresh(machine, body)
    some = range(10, 22)

    async def during(store: LedgerStore, promises: Any) -> None:
        await asyncio.gather(*(promises.add(store, each, {30: body(each, 30)}) for each in some))
        if is_moving:
            await store.checkpoint()
            crowd(store)
            await asyncio.gather(*(promises.add(store, each, {29: body(each, 29)}) for each in some))
        made.disk.fail("rename", ".idx.new", lambda: OSError(1, "Operation not permitted"), skip=1, count=count)
        for _ in range(count):
            with pytest.raises(OSError, match="not permitted"):
                await store.checkpoint()
        await asyncio.gather(*(promises.add(store, each, {31: body(each, 31)}) for each in some))
        await store.checkpoint()
        await promises.check(store)

    assert made.live(during)
    assert index_files(made) == Counter({*ALL, *some})
    made.check()
    assert not made.failures


@pytest.mark.parametrize("then", ["checkpoint", "stop", "delete"])
@pytest.mark.parametrize("moment", [1, 50, 100, 150])
def test_files_of_a_write_that_nobody_waited_for_are_replaced(machine: Any, body: Body, moment: int, then: str) -> None:
    """Its worker goes on. A second file would hide entries that move afterwards, and bring a deleted ledger back."""
    made = fresh(machine, body)
    new, moved = range(10, 22), (1, 3, 4, 5, 6)

    async def during(store: LedgerStore, promises: Any) -> None:
        crowd(store)
        await asyncio.gather(*(promises.add(store, each, {30: body(each, 30)}) for each in (*new, *moved)))
        calls = made.disk.call_count
        task = asyncio.create_task(store.checkpoint())
        while made.disk.call_count < calls + moment and not task.done():  # noqa: ASYNC110  (virtual time)
            await asyncio.sleep(1e-6)
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        if then == "delete":
            await store._parts.removals.quarantine(new, QuarantineState.QUARANTINED, 0)
            await store._parts.removals.delete(new, 0)
            promises.acknowledged = {key: entry for key, entry in promises.acknowledged.items() if key[0] not in new}
        elif then == "checkpoint":
            await store.checkpoint()
            await promises.check(store)

    assert made.live(during)
    assert index_files(made) == Counter([*ALL, *(() if then == "delete" else new)])
    assert made.live(check_unbroken)


def test_what_a_failure_has_left_of_a_deleted_ledger_does_not_come_back(machine: Any, body: Body) -> None:
    made = fresh(machine, body)
    gone = next(number for path in left_behind(made) if (number := index_format.parse_path(path)) not in (None, 2))

    async def during(store: LedgerStore, promises: Any) -> None:
        crowd(store)
        await promises.add(store, gone, {30: body(gone, 30)})
        made.disk.fail("rename", ".idx.rloc", lambda: OSError(1, "Operation not permitted"))
        with pytest.raises(OSError, match="not permitted"):
            await store.checkpoint()
        assert [path for path in unfinished(made) if path.endswith(".rloc")]
        assert store._parts is not None
        await store._parts.removals.quarantine([gone], QuarantineState.QUARANTINED, 0)
        await store._parts.removals.delete([gone], 0)
        await store._parts.removals.forget([gone])
        assert not unfinished(made)
        for key in [key for key in promises.acknowledged if key[0] == gone]:
            del promises.acknowledged[key]

    assert made.live(during)
    assert set(index_files(made)) == set(ALL) - {gone}
    made.check()


@pytest.mark.parametrize("size", [0, 517, 1024, 1024 + 40])
def test_a_file_that_has_moved_and_is_cut_off_before_a_checkpoint_ends(machine: Any, body: Body, size: int) -> None:
    """Its pages are as they were, or as they are now: not to be there is no state that a crash may leave."""
    made = fresh(machine, body)
    moved = [number for path in left_behind(made) if (number := index_format.parse_path(path)) not in (None, 2)]

    async def during(store: LedgerStore, promises: Any) -> None:
        crowd(store)
        await asyncio.gather(*(promises.add(store, each, {30: body(each, 30)}) for each in moved))
        assert store._parts is not None
        await store._parts.checkpointer.flusher.flush_all(())
        await store._parts.checkpointer.index_writer.write()

    assert made.live(during, stops=False)
    made.crash(PROCESS_DIES)
    for path in [path for path in made.disk.files() if index_format.parse_path(path) in moved]:
        assert not path.startswith(LEFT)
        made.disk.put(path, made.disk.read_bytes(path)[:size])

    async def check(store: LedgerStore, promises: Any) -> None:
        await store.repair()
        await promises.check(store)

    assert made.live(check)
    made.check()


def put_old(made: Any, current: str, old: bytes) -> None:
    """Put an old file of ledger 1 into each other directory."""
    for directory in made.config.ledger_directories:
        path = posixpath.join(directory, "current", index_format.path_of(1))
        if path != current:
            for folder in (posixpath.dirname(posixpath.dirname(path)), posixpath.dirname(path)):
                made.disk.make_directories(folder)
            made.disk.put(path, old)


def with_two_files(machine: Any, body: Body, seed: int, *, is_catalog_lost: bool) -> Any:
    """A machine that has been off. Ledger 1 has an old file in each directory where it has no current one."""
    made = machine(f"two {seed}", ledgers=3)

    async def first(store: LedgerStore, promises: Any) -> None:
        for ledger_id in (1, 2):
            await promises.add(store, ledger_id, {entry: body(ledger_id, entry) for entry in range(10)})

    async def second(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, {entry: body(1, entry) for entry in range(10, 20)})
        await promises.fence(store, 1)

    assert made.live(first)
    name = index_format.path_of(1)
    (current,) = [path for path in made.disk.files() if path.endswith(name)]
    old = made.disk.read_bytes(current)
    assert made.live(second)
    put_old(made, current, old)
    if is_catalog_lost:
        (catalog,) = [path for path in made.disk.files() if path.endswith("/index.catalog")]
        made.disk.put(catalog, made.disk.read_bytes(catalog)[:-40] + bytes(40))
    return made


@pytest.mark.parametrize("is_catalog_lost", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_of_two_files_of_a_ledger_the_start_trusts_none(
    machine: Any, body: Body, seed: int, is_catalog_lost: bool
) -> None:
    """An orderly stop could leave two. The newer one may be the first or the last that the start finds."""
    made = with_two_files(machine, body, seed, is_catalog_lost=is_catalog_lost)

    async def check(store: LedgerStore, promises: Any) -> None:
        await store.parts.rebuilder.wait_idle()
        with pytest.raises(DataUnknown if is_catalog_lost else LedgerFenced):
            await promises.add(store, 1, {20: body(1, 20)})
        for entry in range(20):
            assert await store.read(1, entry) == body(1, entry)
        await store.checkpoint()
        assert index_files(made) == Counter((1, 2))

    assert made.live(check)
    assert made.live(check)


@pytest.mark.parametrize("is_catalog_lost", [False, True])
def test_a_crash_while_one_file_takes_the_place_of_two(machine: Any, body: Body, is_catalog_lost: bool) -> None:
    made = with_two_files(machine, body, 0, is_catalog_lost=is_catalog_lost)

    async def check(store: LedgerStore, promises: Any) -> None:
        await store.parts.rebuilder.wait_idle()
        for entry in range(20):
            assert await store.read(1, entry) == body(1, entry)
        assert await store.parts.index.load(1)
        assert store.parts.index.get(1).header.is_fenced

    number = 0
    for number, victim in made.copies()().victims(check, 1, STEP):
        crashed = victim()
        crashed.crash(WAYS[number % len(WAYS)])
        assert index_files_of(crashed, 1)
        assert crashed.live(check), number
        assert index_files(crashed) == Counter((1, 2)), number
    assert number > STEP


def index_files_of(made: Any, ledger_id: int) -> list[str]:
    return [path for path in made.disk.files() if index_format.path_of(ledger_id) in path]


def test_two_files_of_a_ledger_go_with_it(machine: Any, body: Body) -> None:
    made = with_two_files(machine, body, 1, is_catalog_lost=False)

    async def delete(store: LedgerStore, promises: Any) -> None:
        removals = store.parts.removals
        await removals.quarantine([1], QuarantineState.QUARANTINED, 0)
        assert await removals.delete([1], 0) == [1]
        assert not index_files_of(made, 1)

    assert made.live(delete)
    assert index_files(made) == Counter([2])


@pytest.mark.parametrize("seed", range(2, 4))
def test_the_older_of_two_files_names_a_log_that_a_compaction_has_removed(machine: Any, body: Body, seed: int) -> None:
    """A crash follows before a checkpoint, so the catalog accepts either file."""
    made = small_machine(machine, seed, ledgers=3, major_compaction_threshold=90)
    name, before = index_format.path_of(1), {}

    async def compacting(store: LedgerStore, promises: Any) -> None:
        await fill(store, promises, body)
        before.update({path: data for path, data in made.disk.files().items() if path.endswith(name)})
        records = FakeRecords.of(1, 5, 6)
        store.collect(records, BOOKIE)
        await compact(store)
        assert store.collector is not None
        assert store.collector.space()["logs_compacted"]
        forget(promises, 2, 3, 4)

    assert made.live(compacting, stops=False)
    made.crash(PROCESS_DIES)
    ((current, old),) = before.items()
    assert made.disk.read_bytes(current) != old
    put_old(made, current, old)

    async def check(store: LedgerStore, promises: Any) -> None:
        await store.parts.rebuilder.wait_idle()
        for (ledger_id, entry), sent in promises.acknowledged.items():
            assert await store.read(ledger_id, entry) == sent

    assert made.live(check)
    assert index_files(made)[1] == 1
