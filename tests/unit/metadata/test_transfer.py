"""Moving a cluster between stores: all of it arrives, again and again, after interruptions, and nothing else is hit."""

from __future__ import annotations

import asyncio
import itertools
import json
import pathlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from msgspec.structs import replace
from tests.fakes.zookeeper import FakeZooKeeper, Server

from bookies.errors import LedgerExists, MetadataCorrupt, MetadataError
from bookies.metadata import transfer
from bookies.metadata.embedded import EmbeddedDriver, MemoryDriver
from bookies.metadata.embedded.memory import MemoryStore
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import GivenIds
from bookies.metadata.interface.recovery_store import AuditKind
from bookies.metadata.shared.nodes import INSTANCE_ID, Key, Put, Table
from bookies.metadata.survey import objections, survey
from bookies.metadata.transfer import (
    MARK,
    Damaged,
    Difference,
    Filling,
    Item,
    StoredCookie,
    TakenOver,
    copy,
    differences,
    read_items,
)
from bookies.metadata.zookeeper import ZkCluster, ZooKeeperDriver
from bookies.metadata.zookeeper.zk_layout import Manager
from bookies.model import BookieId, BookieInfo, BookieMode, LedgerMetadata, LedgerState
from bookies.runtime import aio

A, B = BookieId("bk-a:3181"), BookieId("b")
LEDGERS = 70
T = TypeVar("T")


def record(ledger_id: int, **changes: object) -> LedgerMetadata:
    made = LedgerMetadata(
        ledger_id, 2, 2, 1, ((0, (A, B)), (5, (B, A))), LedgerState.CLOSED, last_entry_id=9, length=ledger_id
    )
    return replace(made, **changes)


async def fill(driver: MetadataDriver) -> None:
    """A cluster with a bit of everything."""
    await driver.initialize_cluster()
    for bookie in (A, B):
        await driver.create_cookie(bookie, b"5\ncookie of " + bookie.encode())
    for count in range(LEDGERS):
        ledger_id = await driver.next_ledger_id()
        changes: dict[str, object] = {"custom_metadata": {"app": b"\xff\x00", "n": str(count).encode()}}
        if count % 3 == 1:
            changes = {"format_version": 2, "password": b"s3cret\xff"}
        elif count % 3 == 2:
            changes = {"format_version": 1, "ack_quorum": 2, "digest_type": None, "password": None}
        await driver.create_ledger(record(ledger_id, **changes))
        if count % 10 == 0:
            await driver.delete_ledger(ledger_id)
    await driver.create_ledger(record(1 << 40, state=LedgerState.OPEN, last_entry_id=-1, length=0, creator_token=77))
    await driver.create_record("logs/events", b'{"format": 1}')
    await driver.create_record("binary", bytes(range(256)))
    for ledger_id, replicas in ((5, [A, B]), (1 << 40, [])):
        await driver.recovery.mark(ledger_id, replicas, 1_700_000_000_000 if replicas else None)
    await driver.recovery.disable()
    await driver.recovery.set_lost_bookie_delay_s(600)
    await driver.recovery.set_checked_at_ms(AuditKind.REPLICAS, 1_700_000_000_001)


def memory(store: MemoryStore | None = None) -> MetadataDriver:
    return MemoryDriver(store or MemoryStore(), aio.runtime(seed=3))


def zookeeper(server: Server, manager: Manager | None = Manager.HIERARCHICAL) -> MetadataDriver:
    client = FakeZooKeeper(server)
    return ZooKeeperDriver(
        "zk://fake/ledgers", client, aio.runtime(seed=4), ZkCluster("/ledgers", manager), lease_ms=10_000
    )


async def contents(driver: MetadataDriver) -> list[Item]:
    return [each async for each in read_items(driver)][1:]


async def moved(source: MetadataDriver, target: MetadataDriver) -> list[Difference]:
    instance_id = await source.instance_id()
    assert instance_id is not None
    return await copy(source, target, Filling(target, instance_id, source.uri))


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await body()

    asyncio.run(main())


def test_a_cluster_moves_through_every_kind_of_store_and_back(tmp_path: pathlib.Path) -> None:
    async def body() -> None:
        first = memory()
        await first.open()
        await fill(first)
        before = await contents(first)
        given, instance_id = await first.given_ids(), await first.instance_id()
        path = [first, EmbeddedDriver(str(tmp_path), aio.runtime(seed=1)), zookeeper(Server()), memory()]
        for source, target in itertools.pairwise(path):
            await target.open()
            assert await moved(source, target) == []
            assert await target.instance_id() == instance_id
            ids = await target.given_ids()
            assert ids.spent == given.spent
            assert await target.next_ledger_id() >= given.next_id
            with pytest.raises(LedgerExists):
                await target.create_ledger(record(0))
        assert await contents(first) == before
        assert await first.given_ids() == given
        # What arrives is what was there, with the time of creation in the record.
        assert [each for each in await contents(path[-1]) if not isinstance(each, LedgerMetadata)] == [
            each for each in before if not isinstance(each, LedgerMetadata)
        ]
        assert [each async for each in differences(first, path[-1])] == []
        assert len([each for each in await contents(path[-1]) if isinstance(each, LedgerMetadata)]) == LEDGERS - 6
        for driver in path:
            await driver.close()

    run(body)


class _Stop(Exception):
    """What a killed process leaves behind."""


class Limited(MemoryDriver):
    """A session that ends in the middle of its work."""

    def __init__(self, store: MemoryStore, changes: int) -> None:
        super().__init__(store, aio.runtime(seed=3))
        self._changes_left = changes

    async def _call(self, operation: str, function: Callable[..., T], *arguments: object) -> T:
        self._changes_left -= operation.startswith(("create", "restore", "delete", "write", "transact"))
        if self._changes_left < 0:
            raise _Stop
        return await super()._call(operation, function, *arguments)


CHANGES = 78  # of a move


@pytest.mark.parametrize("changes", [0, 1, 2, 4, 6, 8, 40, *range(CHANGES - 3, CHANGES)])
def test_an_interrupted_move_is_gone_on_with_wherever_it_stopped(changes: int) -> None:
    async def body() -> None:
        source, store = await opened(memory()), MemoryStore()
        await fill(source)
        with pytest.raises(_Stop):
            await moved(source, await opened(Limited(store, changes)))
        target = await opened(memory(store))
        instance_id = store.get([INSTANCE_ID])[0]
        if changes > CHANGES - 3:  # It is complete, and at the end only the mark is left to be removed.
            assert (instance_id is not None) is (changes == CHANGES - 1)
            assert await Filling(target, str(await source.instance_id()), source.uri).is_there()
            assert await target.instance_id() == await source.instance_id()
        else:
            assert instance_id is None
            if changes:
                with pytest.raises(MetadataError, match="half filled"):
                    await copy(source, target, Filling(target, "other", "elsewhere"))
            # Meanwhile the old store went on.
            await source.create_ledger(record(await source.next_ledger_id()))
            await source.delete_ledger(1)
            assert await moved(source, target) == []
        assert [each async for each in differences(source, target)] == []
        assert MARK not in await target.record_names("")

    run(body)


class Suspended:
    """Stops a driver before one of its operations, as Ctrl-Z does, and lets the others of its command go on."""

    def __init__(self, at: int, meanwhile: Callable[[], Awaitable[None]]) -> None:
        self.count = 0
        self._at = at
        self._meanwhile = meanwhile
        self._end = asyncio.Event()

    async def before(self, operation: str, driver: MemoryDriver) -> None:
        self.count += 1
        if self.count == self._at:
            await self._meanwhile()
            self._end.set()
        elif self.count > self._at:
            await self._end.wait()

    async def after(self, operation: str, driver: MemoryDriver) -> None: ...


def begun(ledger_id: int, more: bytes) -> LedgerMetadata:
    changes = {"last_entry_id": -1, "length": 0, "creator_token": 7, "custom_metadata": {"of": more}}
    return record(ledger_id, state=LedgerState.OPEN, **changes)


async def small(source: MetadataDriver, ledger_ids: range, more: bytes) -> None:
    """A cluster of a few items, some of which only this one has."""
    await source.initialize_cluster()
    await source.restore_ids(GivenIds(9))
    for ledger_id in ledger_ids:
        await source.create_ledger(begun(ledger_id, more))
    for name in ("both", more.decode()):
        await source.create_record(name, more)
        await source.create_cookie(BookieId(name), more)


def test_a_run_that_was_suspended_changes_nothing_in_the_cluster_that_another_run_has_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wherever it was suspended, whether it had begun or resumed the filling, and whichever dump it had."""
    monkeypatch.setattr(transfer, "PAUSE_S", 0.001)

    async def suspended(at: int, *, begins: bool) -> bool:
        old, new, store = await opened(memory()), await opened(memory()), MemoryStore()
        await small(old, range(5), b"old")
        await small(new, range(1, 6), b"new")
        instance_id = str(await old.instance_id())
        assert instance_id == await new.instance_id()
        live = await opened(memory(store))
        if not begins:  # An earlier run was killed.
            await Filling(live, instance_id, "old").begin(GivenIds(9))
            await live.create_ledger(record(2, creator_token=7))
            await live.create_ledger(transfer.carried((await new.read_ledger(4)).metadata))
            await live.create_ledger(record(6))
            await live.create_record("surplus", b"")
            await live.create_cookie(BookieId("surplus"), b"")
        seen: list[list[Item]] = []

        async def meanwhile() -> None:
            filling = Filling(live, instance_id, "new")
            if await filling.is_there() or await copy(new, live, filling):
                return  # The suspended run had finished, or another one is needed after it.
            for ledger_id in (1, 2):
                await live.delete_ledger(ledger_id)
            stored = await live.read_ledger(3)
            await live.write_ledger(record(3), stored.version)
            await live.create_ledger(record(await live.next_ledger_id()))
            await live.delete_record("new", (await live.read_record("new"))[1])
            await live.write_record("both", b"live", (await live.read_record("both"))[1])
            seen.append(await contents(live))

        faults = Suspended(at, meanwhile)
        driver = await opened(MemoryDriver(store, aio.runtime(seed=3), faults=faults))
        try:
            await copy(old, driver, Filling(driver, instance_id, "old"))
        except MetadataError:
            assert seen
        for before in seen:
            assert [item for item in await contents(live) if not is_left(item)] == [
                item for item in before if not is_left(item)
            ]
        return faults.count >= at

    async def body() -> None:
        for begins in (True, False):
            at = 3  # Two operations open the session.
            while await suspended(at, begins=begins):
                at += 1
            assert at > 30

    run(body)


def test_a_run_ends_when_another_one_has_taken_over() -> None:
    async def body() -> None:
        store = MemoryStore()
        earlier, later = [Filling(await opened(memory(store)), "c", origin) for origin in ("a", "b")]
        await earlier.begin(GivenIds(5))
        await later.begin(GivenIds(5))
        item = transfer.NamedRecord("r", b"")
        for call in (lambda: earlier.put([item]), lambda: earlier.remove(item), earlier.finish):
            with pytest.raises(TakenOver, match="another run of"):
                await call()
        driver = await opened(memory(store))
        assert await driver.instance_id() is None
        assert await driver.record_names("") == [MARK]
        await later.finish()
        assert await driver.instance_id() == "c"
        assert await driver.record_names("") == []

    run(body)


def is_left(item: Item) -> bool:
    """Report whether a change in flight may have created the item: ids that only the old dump has, and its cookies."""
    return isinstance(item, StoredCookie) or (isinstance(item, LedgerMetadata) and item.ledger_id == 0)


async def opened(driver: MetadataDriver) -> MetadataDriver:
    await driver.open()
    return driver


def test_what_the_source_has_no_longer_is_removed_from_a_half_filled_store() -> None:
    async def body() -> None:
        source, target = await opened(memory()), await opened(memory())
        await fill(source)
        instance_id = await source.instance_id()
        mark = {"from": source.uri, "instance_id": instance_id}
        await target.create_record(MARK, json.dumps(mark).encode())
        await target.create_record("old", b"old")
        await target.create_cookie(BookieId("gone"), b"old")
        await target.create_cookie(A, b"old")
        await target.create_ledger(record(1 << 41))
        for ledger_id in (5, 6):
            await target.recovery.mark(ledger_id, [BookieId("gone")], 1)
        await target.recovery.set_lost_bookie_delay_s(1)
        await target.create_ledger(record(1, length=12345))
        assert await moved(source, target) == []
        assert [each async for each in differences(source, target)] == []

    run(body)


def test_a_store_with_something_in_it_is_left_alone() -> None:
    async def body() -> None:
        source = await opened(memory())
        await fill(source)
        for make, said in (
            (lambda driver: driver.create_cookie(A, b""), "has 1 cookie"),
            (lambda driver: driver.create_record("r", b""), "has 1 record"),
            (lambda driver: driver.create_ledger(record(3)), r"has 1 ledger \(3\)"),
        ):
            target = await opened(memory())
            await make(target)
            before = await contents(target)
            with pytest.raises(MetadataError, match=said):
                await moved(source, target)
            assert await contents(target) == before
            assert await target.record_names(MARK) == []
        other = await opened(memory())
        await other.initialize_cluster()
        filling = Filling(other, str(await source.instance_id()), source.uri)
        assert await filling.is_there()  # both are made with one seed
        with pytest.raises(MetadataError, match="and cannot become"):
            await Filling(other, "another", source.uri).is_there()

    run(body)


def test_differences_are_named() -> None:
    async def body() -> None:
        source, target = await opened(memory()), await opened(memory())
        await fill(source)
        await moved(source, target)
        await source.delete_ledger(1)
        found = await target.read_ledger(3)
        await target.write_ledger(replace(found.metadata, length=99), found.version)
        await target.delete_ledger(4)
        await target.write_record("binary", b"", (await target.read_record("binary"))[1])
        await target.delete_cookie(A, (await target.read_cookie(A))[1])
        await target.recovery.mark(5, [BookieId("c")], 1)
        await target.recovery.mark(6, [], 1)
        for mark in [await target.recovery.mark_of(1 << 40)]:
            assert mark is not None
            await target.recovery.unmark(mark)
        await target.recovery.enable()
        seen = [(each.what, each.detail) async for each in differences(source, target)]
        assert seen == [
            ("spent ids 0 to 1", "can be assigned again"),
            (f"cookie {A}", "is missing"),
            ("record binary", "is another one"),
            ("auto-recovery's switch, delay and times of checks", "differ"),
            ("mark of ledger 5", "is another one"),
            ("mark of ledger 6", "is not in the source"),
            (f"mark of ledger {1 << 40}", "is missing"),
            ("ledger 1", "is not in the source"),
            ("ledger 3", "is another one"),
            ("ledger 4", "is missing"),
        ]

    run(body)


def test_a_damaged_record_is_not_carried_over() -> None:
    async def body() -> None:
        store = MemoryStore()
        source, target = await opened(memory(store)), await opened(memory())
        await source.initialize_cluster()
        await source.create_ledger(record(5))
        store.commit([], [Put(Key(Table.LEDGERS, 5), b"nonsense")])
        assert [type(each) for each in await contents(source)] == [Damaged]
        with pytest.raises(MetadataCorrupt, match="cannot be carried over"):
            await moved(source, target)
        assert await target.instance_id() is None

    run(body)


def test_a_cluster_that_is_in_use_is_not_moved() -> None:
    async def body() -> None:
        driver = await opened(memory())
        await fill(driver)
        found = await survey(driver)
        assert found.ledgers == {"open": 1, "in_recovery": 0, "closed": LEDGERS - 7, "damaged": 0}
        assert (found.records, found.marks, found.cookies) == (2, 2, (B, A))
        assert len(objections(found)) == 1
        await driver.register(B, BookieMode.READ_ONLY, BookieInfo())
        texts = objections(await survey(driver))
        assert texts[0].startswith("1 bookie (b) registered")
        assert texts[1].startswith(f"1 ledger ({1 << 40}) not closed")

    run(body)


def test_the_layout_is_kept_by_a_store_that_was_left_half_filled() -> None:
    async def body() -> None:
        source, server = await opened(memory()), Server()
        await fill(source)
        target = await opened(zookeeper(server, Manager.LONG))
        await target.restore_ids(await source.given_ids())
        await target.close()
        again = await opened(zookeeper(server, None))
        assert again.layout == "longhierarchical"
        await again.close()

    run(body)


class Unsteady:
    """Many a request is lost, and many an answer."""

    def __init__(self) -> None:
        self._count = 0

    async def before(self, operation: str, driver: MemoryDriver) -> None:
        self._lose(operation, 0)

    async def after(self, operation: str, driver: MemoryDriver) -> None:
        self._lose(operation, 7)

    def _lose(self, operation: str, rest: int) -> None:
        if operation in ("create_ledger", "create_cookie"):
            self._count += 1
            if self._count % 12 == rest:
                raise MetadataError("lost")


def test_a_store_that_fails_now_and_then_is_filled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PAUSE_S", 0.001)

    async def body() -> None:
        source = await opened(memory())
        await fill(source)
        target = await opened(MemoryDriver(MemoryStore(), aio.runtime(seed=3), faults=Unsteady()))
        assert await moved(source, target) == []

    run(body)
