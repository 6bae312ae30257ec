"""What every metadata driver must do, whatever it stores its records in. Source: metadata 5.1, 6, 7.2 and 11."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace
from tests.fakes import etcd as fake_etcd
from tests.fakes.zookeeper import FakeZooKeeper, Server, end_session

from bookies.errors import (
    ClientClosed,
    CookieExists,
    CookieNotFound,
    InvalidArgument,
    LedgerExists,
    LedgerNotFound,
    MetadataCorrupt,
    MetadataError,
    NotSupported,
    RecordExists,
    RecordNotFound,
    SessionExpired,
    VersionConflict,
)
from bookies.metadata.embedded import EmbeddedDriver, MemoryDriver
from bookies.metadata.embedded.memory import MemoryStore
from bookies.metadata.etcd import EtcdDriver
from bookies.metadata.interface.driver import (
    RECORD_SIZE_MAX,
    BookieSet,
    GivenIds,
    LedgerAt,
    LedgerDeletion,
    LedgerEvent,
    RecordAt,
    RecordWrite,
    Step,
    Versioned,
)
from bookies.metadata.shared.store_driver import StoreDriver
from bookies.metadata.zookeeper import ZkCluster, ZooKeeperDriver
from bookies.metadata.zookeeper.zk_layout import Manager
from bookies.model import BookieId, BookieInfo, BookieMode, Endpoint, LedgerMetadata, LedgerState
from bookies.runtime import aio

T = TypeVar("T")
A, B = BookieId("bk-a:3181"), BookieId("bk-b:3181")
INFO_A = BookieInfo((Endpoint("bookie", "127.0.0.1", 3181, "bookie-rpc"),))
INFO_B = BookieInfo((Endpoint("bookie", "127.0.0.1", 4000, "bookie-rpc"),), {"rack": "/r1"})
WRITABLE, READ_ONLY = BookieMode.WRITABLE, BookieMode.READ_ONLY
Driver = StoreDriver | ZooKeeperDriver | EtcdDriver
PATIENCE_S = 20.0  # before a test that waits for something gives up


class Cluster:
    """A store, and any number of open drivers of it."""

    def __init__(self, make: Callable[[], Driver]) -> None:
        self._make = make
        self._drivers: list[Driver] = []

    async def driver(self) -> Driver:
        driver = self._make()
        await driver.open()
        self._drivers.append(driver)
        return driver

    async def close(self) -> None:
        for driver in self._drivers:
            await driver.close()


class StoppedClock:
    """No lease runs out by itself, however slow the machine."""

    def wall_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return 0.0


class PromptDriver(EmbeddedDriver):
    """An embedded store that notices changes of other processes soon, so that no test waits for its next poll."""

    poll_interval_s = 0.01


class Kind:
    """One kind of driver: how a test gets a new store of it."""

    def __init__(self, name: str, directory: pathlib.Path) -> None:
        self.name = name
        self._directory = directory

    def _maker(self, lease_ms: int) -> Callable[[], Driver]:
        runtime = replace(aio.runtime(seed=1), clock=StoppedClock())
        if self.name == "memory":
            store = MemoryStore()
            return lambda: MemoryDriver(store, runtime)
        if self.name == "etcd":
            etcd = fake_etcd.Server("/ledgers")
            return lambda: EtcdDriver(
                "etcd://fake/ledgers", fake_etcd.FakeEtcd(etcd), runtime, "/ledgers", lease_ms=lease_ms
            )
        if self.name.startswith("zookeeper"):
            server, manager = Server("/ledgers"), Manager(self.name.partition("-")[2])
            return lambda: ZooKeeperDriver(
                "zk://fake/ledgers",
                FakeZooKeeper(server),
                runtime,
                ZkCluster("/ledgers", manager),
                lease_ms=lease_ms,
            )
        return lambda: PromptDriver(str(self._directory), runtime, lease_ms=lease_ms)

    def run(
        self,
        body: Callable[[Cluster], Coroutine[Any, Any, T]],
        *,
        lease_ms: int = 10_000,
        patience_s: float = PATIENCE_S,
    ) -> T:
        async def main() -> T:
            cluster = Cluster(self._maker(lease_ms))
            try:
                async with asyncio.timeout(patience_s):
                    return await body(cluster)
            finally:
                await cluster.close()

        return asyncio.run(main())


NAMES = ["memory", "embedded", "zookeeper-hierarchical", "zookeeper-longhierarchical", "zookeeper-flat", "etcd"]


@pytest.fixture(params=NAMES)
def kind(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Kind:
    return Kind(request.param, tmp_path)


class Seen:
    """Collects what a watch delivers, and waits for it."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._news = asyncio.Event()

    def __call__(self, value: object = None) -> None:
        self.values.append(value)
        self._news.set()

    async def wait_for(self, condition: Callable[[list[Any]], bool]) -> list[Any]:
        while not condition(self.values):
            self._news.clear()
            await self._news.wait()
        return self.values


def ledger(ledger_id: int, **changes: Any) -> LedgerMetadata:
    return LedgerMetadata(ledger_id, 2, 2, 1, ((0, (A, B)),), **changes)


# -- the store and the session --------------------------------------------------------------------------------------


def test_instance_id_is_made_once(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        drivers = [await cluster.driver() for _ in range(4)]
        assert await drivers[0].instance_id() is None
        made = await asyncio.gather(*(driver.initialize_cluster() for driver in drivers))
        assert len(set(made)) == 1
        assert len(made[0]) == 36
        assert [await driver.instance_id() for driver in drivers] == made
        assert await drivers[0].initialize_cluster() == made[0]

    kind.run(body)


def test_after_close_everything_is_refused(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        driver = await cluster.driver()
        await driver.register(A, WRITABLE, INFO_A)
        await driver.close()
        await driver.close()
        for call in (
            driver.instance_id(),
            driver.next_ledger_id(),
            driver.read_ledger(1),
            driver.register(A, WRITABLE, INFO_A),
            driver.unregister(A),
            driver.bookies(WRITABLE),
        ):
            with pytest.raises(ClientClosed):
                await call
        with pytest.raises(ClientClosed):
            driver.watch_ledger(1, lambda _: None)
        with pytest.raises(ClientClosed):
            driver.watch_bookies(WRITABLE, lambda _: None)

    kind.run(body)


def test_repr_says_what_it_is(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        driver = await cluster.driver()
        assert driver.uri in repr(driver)
        await driver.close()
        assert "closed" in repr(driver)

    kind.run(body)


# -- ledgers --------------------------------------------------------------------------------------------------------


def test_create_is_exclusive(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.driver(), await cluster.driver()
        created = await one.create_ledger(ledger(7, custom_metadata={"k": b"v"}))
        assert created.metadata.ctime_ms is not None
        in_record = kind.name == "etcd"  # which keeps no times of its own
        asked = ledger(7, custom_metadata={"k": b"v"}, ctime_ms=created.metadata.ctime_ms, stores_ctime=in_record)
        assert created.metadata == asked
        with pytest.raises(LedgerExists):
            await two.create_ledger(ledger(7))
        assert await two.read_ledger(7) == created

    kind.run(body)


def test_one_of_many_creators_wins(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        drivers = [await cluster.driver() for _ in range(4)]
        attempts = [driver.create_ledger(ledger(7, creator_token=1 + at)) for at, driver in enumerate(drivers)]
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
        assert sum(isinstance(outcome, LedgerExists) for outcome in outcomes) == 3

    kind.run(body)


def test_a_repeated_create_with_the_same_token_is_the_same_create(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.driver(), await cluster.driver()
        created = await one.create_ledger(ledger(7, creator_token=5))
        assert await one.create_ledger(ledger(7, creator_token=5)) == created
        assert await two.create_ledger(ledger(7, creator_token=5)) == created
        with pytest.raises(LedgerExists):
            await one.create_ledger(ledger(7, creator_token=6))
        await one.create_ledger(ledger(8))
        with pytest.raises(LedgerExists):  # 0 is no token
            await one.create_ledger(ledger(8))
        await one.create_ledger(ledger(9, creator_token=5, format_version=2))
        with pytest.raises(LedgerExists):  # and formats before 3 keep none
            await one.create_ledger(ledger(9, creator_token=5, format_version=2))

    kind.run(body)


def test_compare_and_swap(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.driver(), await cluster.driver()
        created = await one.create_ledger(ledger(7))
        recovering = created.metadata.replace(state=LedgerState.IN_RECOVERY)
        written = await two.write_ledger(recovering, created.version)
        assert written.version > created.version
        assert await one.read_ledger(7) == written
        with pytest.raises(VersionConflict):
            await one.write_ledger(created.metadata, created.version)
        with pytest.raises(VersionConflict):
            await one.write_ledger(created.metadata, written.version + 1)
        found = await one.read_ledger(7)
        assert found.version > created.version
        assert found.metadata == recovering
        with pytest.raises(LedgerNotFound):
            await one.write_ledger(ledger(8), 1)

    kind.run(body)


def test_no_increment_is_lost(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        drivers = [await cluster.driver() for _ in range(4)]
        await drivers[0].create_ledger(ledger(7, custom_metadata={"n": b"0"}))

        async def increment(driver: Driver) -> None:
            for _ in range(10):
                while True:
                    found = await driver.read_ledger(7)
                    count = int(found.metadata.custom_metadata["n"]) + 1
                    try:
                        changed = found.metadata.replace(custom_metadata={"n": b"%d" % count})
                        await driver.write_ledger(changed, found.version)
                        break
                    except VersionConflict:
                        continue

        await asyncio.gather(*map(increment, drivers))
        assert (await drivers[0].read_ledger(7)).metadata.custom_metadata["n"] == b"40"

    kind.run(body)


def test_delete(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        driver = await cluster.driver()
        created = await driver.create_ledger(ledger(7))
        with pytest.raises(VersionConflict):
            await driver.delete_ledger(7, created.version + 1)
        await driver.delete_ledger(7, created.version)
        with pytest.raises(LedgerNotFound):
            await driver.read_ledger(7)
        await driver.delete_ledger(7)
        await driver.delete_ledger(7, created.version)
        with pytest.raises(LedgerNotFound):
            await driver.write_ledger(created.metadata, created.version)

    kind.run(body)


def test_the_id_of_a_deleted_ledger_is_spent(kind: Kind) -> None:
    """Bookies may hold its entries for ever, and its writer may go on; a ledger of this id would meet both."""

    async def body(cluster: Cluster) -> None:
        one, two = await cluster.driver(), await cluster.driver()
        await one.delete_ledger(3)  # There was none, so nothing is spent.
        order = [7, 9, 8, 3, (1 << 63) - 1, 0, 6, 2, 1]
        for ledger_id in order:
            await one.create_ledger(ledger(ledger_id, creator_token=5))
        for count, ledger_id in enumerate(order):
            for left in order[count:]:
                with pytest.raises(LedgerExists, match="is taken"):
                    await two.create_ledger(ledger(left, creator_token=6))
            await one.delete_ledger(ledger_id)
            for spent in order[: count + 1]:
                for token in (5, 6):  # also not for the one who made it, and repeats because no reply came
                    with pytest.raises(LedgerExists, match=rf"deleted.* choose another one.*\(ledger {spent}\)"):
                        await two.create_ledger(ledger(spent, creator_token=token))
        for free in (4, 5, 10, (1 << 63) - 2):
            await two.create_ledger(ledger(free))

    kind.run(body)


def test_many_records_are_read_at_once(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        driver = await cluster.driver()
        created = [await driver.create_ledger(ledger(ledger_id)) for ledger_id in (7, 9, 1 << 40)]
        before = driver.operations.total
        assert await driver.read_ledgers([1 << 40, 8, 7, -1, 1 << 70, 9]) == [
            created[2],
            None,
            created[0],
            None,
            None,
            created[1],
        ]
        assert 0 < driver.operations.total - before <= 4  # one, or one for each that can be there
        assert await driver.read_ledgers([]) == []

    kind.run(body)


def test_current_records_are_those_of_this_moment(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, other = await cluster.driver(), await cluster.driver()
        created = [await one.create_ledger(ledger(ledger_id)) for ledger_id in (7, 9)]
        assert await one.current_ledgers([9, 8, -1, 7]) == [created[1], None, None, created[0]]
        changed = await other.write_ledger(
            created[0].metadata.replace(state=LedgerState.IN_RECOVERY), created[0].version
        )
        await other.delete_ledger(9)
        assert await one.current_ledgers([7, 9]) == [changed, None]
        assert await one.current_ledgers([7, 9], created) == [changed, None]  # both copies are old
        assert await one.current_ledgers([7], [changed]) == [changed]
        assert await one.current_ledgers([]) == []

    kind.run(body)


def test_creation_time_stays(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        driver = await cluster.driver()
        created = await driver.create_ledger(ledger(7))
        written = await driver.write_ledger(created.metadata.replace(state=LedgerState.IN_RECOVERY), created.version)
        assert written.metadata.ctime_ms == created.metadata.ctime_ms
        stored = await driver.create_ledger(ledger(8, ctime_ms=12345, stores_ctime=True))
        assert stored.metadata.ctime_ms == 12345

    kind.run(body)


def test_ill_formed_records_do_not_reach_the_store(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        driver = await cluster.driver()
        with pytest.raises(MetadataCorrupt):
            await driver.create_ledger(ledger(7, password=None))
        created = await driver.create_ledger(ledger(7))
        with pytest.raises(MetadataCorrupt):
            await driver.write_ledger(created.metadata.replace(ensembles=()), created.version)
        assert await driver.read_ledger(7) == created

    kind.run(body)


def test_ids_that_cannot_exist_do_not(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        driver = await cluster.driver()
        for ledger_id in (-1, 1 << 63, 1 << 70):
            with pytest.raises(LedgerNotFound):
                await driver.read_ledger(ledger_id)
            await driver.delete_ledger(ledger_id)
        largest = (1 << 63) - 1
        await driver.create_ledger(ledger(largest))
        assert (await driver.read_ledger(largest)).metadata.ledger_id == largest

    kind.run(body)


def test_generated_ids_are_never_repeated(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        drivers = [await cluster.driver() for _ in range(4)]

        async def take(driver: Driver) -> list[int]:
            return [await driver.next_ledger_id() for _ in range(10)]

        taken = [each for some in await asyncio.gather(*map(take, drivers)) for each in some]
        assert len(set(taken)) == 40
        assert min(taken) >= 0
        await drivers[0].create_ledger(ledger(max(taken)))
        await drivers[0].delete_ledger(max(taken))
        for driver in drivers:
            await driver.close()
        assert await (await cluster.driver()).next_ledger_id() not in taken

    kind.run(body)


def test_many_ledgers_made_and_closed_at_once_by_two(kind: Kind) -> None:
    """Whatever stores do together for it: everybody has an id of their own, and the record as the others see it."""

    async def body(cluster: Cluster) -> None:
        drivers = [await cluster.driver() for _ in range(2)]

        async def make(driver: Driver) -> list[tuple[Versioned, Versioned]]:
            pairs = []
            for number in range(4):
                made = await driver.create_ledger(ledger(await driver.next_ledger_id(), creator_token=number))
                end = {"state": LedgerState.CLOSED, "last_entry_id": number, "length": 10 * number}
                pairs.append((made, await driver.write_ledger(made.metadata.replace(**end), made.version)))
            return pairs

        pairs = [each for some in await asyncio.gather(*map(make, drivers * 12)) for each in some]
        assert len({made.metadata.ledger_id for made, _ in pairs}) == 96
        for number, (made, closed) in enumerate(pairs):
            assert closed.version > made.version
            assert closed.metadata.ctime_ms == made.metadata.ctime_ms
            if number % 8 == 0:
                for driver in drivers:
                    assert await driver.read_ledger(made.metadata.ledger_id) == closed
        ids = sorted(made.metadata.ledger_id for made, _ in pairs)
        assert [each async for page in drivers[0].ledger_ids() for each in page] == ids

    kind.run(body)


def test_ranges_are_ascending_disjoint_and_complete(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookies.metadata.shared.store_driver.PAGE_COUNT", 4)
    ids = [0, 3, 4, 5, 9, 11, 12, 1 << 31, 1 << 32, (1 << 40) + 7, (1 << 63) - 1]

    async def body(cluster: Cluster) -> None:
        driver = await cluster.driver()
        assert [each async for each in driver.ledger_ids()] == []
        for ledger_id in reversed(ids):
            await driver.create_ledger(ledger(ledger_id))
        ranges = [list(each) async for each in driver.ledger_ids()]
        assert [len(each) for each in ranges] == [4, 4, 3]
        assert [each for some in ranges for each in some] == ids

    kind.run(body)


def test_iteration_sees_what_exists_all_along(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookies.metadata.shared.store_driver.PAGE_COUNT", 3)

    async def body(cluster: Cluster) -> None:
        driver = await cluster.driver()
        for ledger_id in range(0, 20, 2):
            await driver.create_ledger(ledger(ledger_id))
        seen: list[int] = []
        async for each in driver.ledger_ids():
            seen.extend(each)
            if each[0] == 0:  # a range boundary goes, new ids come before and behind it
                await driver.delete_ledger(4)
                await driver.delete_ledger(6)
                await driver.create_ledger(ledger(3))
                await driver.create_ledger(ledger(19))
        assert seen == sorted(set(seen))
        assert set(range(0, 20, 2)) - {4, 6} <= set(seen)

    kind.run(body)


def test_iteration_raises_rather_than_end_early(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookies.metadata.shared.store_driver.PAGE_COUNT", 2)

    async def body(cluster: Cluster) -> None:
        driver = await cluster.driver()
        for ledger_id in range(5):
            await driver.create_ledger(ledger(ledger_id))
        ranges = driver.ledger_ids()
        assert await anext(ranges) == [0, 1]
        await driver.close()
        with pytest.raises(ClientClosed):
            await anext(ranges)

    kind.run(body)


# -- watches of ledgers ---------------------------------------------------------------------------------------------


def test_a_watch_hears_of_changes_and_of_the_end(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.driver(), await cluster.driver()
        created = await one.create_ledger(ledger(7))
        own, others = Seen(), Seen()
        one.watch_ledger(7, own)
        await two.read_ledger(7)
        two.watch_ledger(7, others)
        await one.write_ledger(created.metadata.replace(state=LedgerState.IN_RECOVERY), created.version)
        await own.wait_for(lambda values: LedgerEvent.CHANGED in values)
        await others.wait_for(lambda values: LedgerEvent.CHANGED in values)
        await one.delete_ledger(7)
        await own.wait_for(lambda values: LedgerEvent.DELETED in values)
        await others.wait_for(lambda values: LedgerEvent.DELETED in values)
        assert others.values == [LedgerEvent.CHANGED, LedgerEvent.DELETED]

    kind.run(body)


def test_nothing_is_missed_between_the_read_and_the_watch(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.driver(), await cluster.driver()
        created = await one.create_ledger(ledger(7))
        await two.read_ledger(7)
        other = await one.create_ledger(ledger(8))
        await one.write_ledger(created.metadata.replace(state=LedgerState.IN_RECOVERY), created.version)
        seen, deleted = Seen(), Seen()
        two.watch_ledger(7, seen)
        await two.read_ledger(8)
        await one.delete_ledger(8, other.version)
        two.watch_ledger(8, deleted)
        await seen.wait_for(lambda values: values == [LedgerEvent.CHANGED])
        await deleted.wait_for(lambda values: values == [LedgerEvent.DELETED])

    kind.run(body)


def test_changes_may_coalesce_but_the_last_one_is_told(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        writer, reader = await cluster.driver(), await cluster.driver()
        record = await writer.create_ledger(ledger(7, custom_metadata={"n": b"0"}))
        reads: list[asyncio.Task[None]] = []
        seen, versions = Seen(), Seen()

        async def read() -> None:
            versions((await reader.read_ledger(7)).version)

        def changed(event: LedgerEvent) -> None:
            reads.append(asyncio.create_task(read()))
            seen(event)

        await reader.read_ledger(7)
        reader.watch_ledger(7, changed)
        for count in range(1, 31):
            changed_record = record.metadata.replace(custom_metadata={"n": b"%d" % count})
            record = await writer.write_ledger(changed_record, record.version)
        await versions.wait_for(lambda values: record.version in values)
        await asyncio.gather(*reads)
        assert 1 <= len(seen.values) <= 30

    kind.run(body)


def test_several_watches_of_one_ledger_and_a_cancelled_one(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.driver(), await cluster.driver()
        record = await one.create_ledger(ledger(7))
        await two.read_ledger(7)
        first, second, third = Seen(), Seen(), Seen()
        watch = two.watch_ledger(7, first)
        two.watch_ledger(7, second)
        watch.cancel()
        watch.cancel()
        record = await one.write_ledger(record.metadata.replace(state=LedgerState.IN_RECOVERY), record.version)
        await second.wait_for(bool)
        await two.read_ledger(7)
        two.watch_ledger(7, third)
        await one.delete_ledger(7)
        await third.wait_for(bool)
        await second.wait_for(lambda values: len(values) == 2)
        assert first.values == []
        assert third.values == [LedgerEvent.DELETED]

    kind.run(body)


def test_watching_again_after_the_last_watch_was_cancelled(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.driver(), await cluster.driver()
        for ledger_id in range(3):
            record = await one.create_ledger(ledger(ledger_id))
            await two.read_ledger(ledger_id)
            seen = Seen()
            watch = two.watch_ledger(ledger_id, seen)
            await one.delete_ledger(ledger_id, record.version)
            await seen.wait_for(bool)
            watch.cancel()

    kind.run(body)


# -- bookies --------------------------------------------------------------------------------------------------------


def test_registration_and_discovery(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.driver(), await cluster.driver()
        before = await two.bookies(WRITABLE)
        assert before.bookies == ()
        assert await two.bookie_info(A) is None
        await one.register(B, WRITABLE, INFO_B)
        await one.register(A, WRITABLE, INFO_A)
        found = await two.bookies(WRITABLE)
        assert found.bookies == (A, B)
        assert found.version > before.version
        assert (await two.bookies(READ_ONLY)).bookies == ()
        assert await two.bookie_info(A) == INFO_A
        assert await two.bookie_info(B) == INFO_B
        await one.register(A, WRITABLE, INFO_A)  # again, unchanged
        assert await two.bookies(WRITABLE) == found
        await one.register(A, WRITABLE, INFO_B)  # its address changed
        assert await two.bookie_info(A) == INFO_B
        assert (await two.bookies(WRITABLE)).version > found.version
        await one.unregister(A)
        await one.unregister(A)
        assert (await two.bookies(WRITABLE)).bookies == (B,)
        assert await two.bookie_info(A) is None
        await two.unregister(B)  # not its own
        assert (await two.bookies(WRITABLE)).bookies == (B,)
        await one.close()
        assert (await two.bookies(WRITABLE)).bookies == ()

    kind.run(body)


def test_a_name_that_is_no_bookie_id_is_refused(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        driver = await cluster.driver()
        for name in ("", "readonly", "a/b"):
            with pytest.raises(InvalidArgument):
                await driver.register(BookieId(name), WRITABLE, INFO_A)

    kind.run(body)


def test_a_change_of_mode_never_leaves_the_bookie_out(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        bookie, client = await cluster.driver(), await cluster.driver()
        await bookie.register(A, WRITABLE, INFO_A)
        writable, read_only = Seen(), Seen()
        client.watch_bookies(WRITABLE, writable)
        client.watch_bookies(READ_ONLY, read_only)
        absent = 0
        for mode in (READ_ONLY, WRITABLE, READ_ONLY):
            change = asyncio.create_task(bookie.register(A, mode, INFO_A))
            while not change.done():
                if await client.bookie_info(A) is None:
                    absent += 1
            await change
            assert (await client.bookies(mode)).bookies == (A,)
        assert absent == 0
        await read_only.wait_for(lambda values: bool(values) and values[-1].bookies == (A,))
        await writable.wait_for(lambda values: bool(values) and values[-1].bookies == ())

    kind.run(body)


def test_a_watch_delivers_the_present_set_and_then_each_latest(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        bookie, client = await cluster.driver(), await cluster.driver()
        empty, seen = Seen(), Seen()
        client.watch_bookies(READ_ONLY, empty)
        assert (await empty.wait_for(bool))[0].bookies == ()
        await bookie.register(A, WRITABLE, INFO_A)
        client.watch_bookies(WRITABLE, seen)
        await seen.wait_for(lambda values: bool(values) and values[-1].bookies == (A,))
        late = Seen()
        client.watch_bookies(WRITABLE, late)
        await late.wait_for(lambda values: bool(values) and values[-1].bookies == (A,))
        await bookie.register(B, WRITABLE, INFO_B)
        await bookie.unregister(A)
        await seen.wait_for(lambda values: values[-1].bookies == (B,))
        await late.wait_for(lambda values: values[-1].bookies == (B,))
        for each in (seen, late):
            versions = [found.version for found in each.values]
            assert versions == sorted(set(versions))
        assert len(empty.values) == 1

    kind.run(body)


def test_a_second_process_with_the_same_id_waits_and_then_fails(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookies.metadata.embedded.memory.SESSION_TIMEOUT_MS", 400)

    async def body(cluster: Cluster) -> None:
        one, two = await cluster.driver(), await cluster.driver()
        await one.register(A, WRITABLE, INFO_A)
        with pytest.raises(MetadataError, match="another process"):
            await two.register(A, READ_ONLY, INFO_B)
        assert await two.bookie_info(A) == INFO_A
        assert (await two.bookies(WRITABLE)).bookies == (A,)

    kind.run(body, lease_ms=400)


def test_a_successor_takes_over_when_its_predecessor_ends(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.driver(), await cluster.driver()
        await one.register(A, WRITABLE, INFO_A)
        successor = asyncio.create_task(two.register(A, WRITABLE, INFO_B))
        for _ in range(3):  # by then it has tried
            await two.instance_id()
        assert not successor.done()
        await one.close()
        await successor
        assert await two.bookie_info(A) == INFO_B

    kind.run(body)


def test_waiting_for_a_predecessor_can_be_cancelled(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.driver(), await cluster.driver()
        await one.register(A, WRITABLE, INFO_A)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await two.register(A, WRITABLE, INFO_B)
        await one.unregister(A)
        await two.register(A, WRITABLE, INFO_B)

    kind.run(body)


async def expire(driver: Driver) -> None:
    """End the session behind the driver's back, as after a long pause."""
    assert driver.session_id is not None
    if isinstance(driver, ZooKeeperDriver):
        await end_session(driver.zookeeper)
        return
    if isinstance(driver, EtcdDriver):
        await fake_etcd.end_lease(driver.etcd, driver.session_id)
        return
    await driver._call("expire", driver._store.end_session, driver.session_id)


def test_a_lost_session_is_told_once_and_begun_again(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        bookie, client = await cluster.driver(), await cluster.driver()
        lost, seen = Seen(), Seen()
        bookie.on_session_expired(lost)
        cancelled = bookie.on_session_expired(lambda: pytest.fail("was cancelled"))
        cancelled.cancel()
        client.watch_bookies(WRITABLE, seen)
        await bookie.register(A, WRITABLE, INFO_A)
        await seen.wait_for(lambda values: bool(values) and values[-1].bookies == (A,))
        await expire(bookie)
        await seen.wait_for(lambda values: values[-1].bookies == ())
        if not lost.values:  # A driver that has not noticed yet is told by its next request.
            with pytest.raises(SessionExpired):
                await bookie.register(A, WRITABLE, INFO_A)
        assert len(lost.values) == 1
        await bookie.register(A, WRITABLE, INFO_A)
        await seen.wait_for(lambda values: values[-1].bookies == (A,))
        assert len(lost.values) == 1

    kind.run(body)


def test_watches_and_reads_survive_a_lost_session(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.driver(), await cluster.driver()
        record = await one.create_ledger(ledger(7))
        await two.read_ledger(7)
        await two.register(A, WRITABLE, INFO_A)
        changes, sets = Seen(), Seen()
        two.watch_ledger(7, changes)
        two.watch_bookies(WRITABLE, sets)
        await expire(two)
        await one.delete_ledger(7, record.version)
        await one.register(B, WRITABLE, INFO_B)
        await changes.wait_for(lambda values: LedgerEvent.DELETED in values)
        await sets.wait_for(lambda values: bool(values) and values[-1].bookies == (B,))
        assert (await two.bookies(WRITABLE)).bookies == (B,)

    kind.run(body)


# -- cookies --------------------------------------------------------------------------------------------------------


def test_cookies(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.driver(), await cluster.driver()
        empty = await one.all_bookies()
        assert empty.bookies == ()
        with pytest.raises(CookieNotFound):
            await one.read_cookie(A)
        with pytest.raises(CookieNotFound):
            await one.write_cookie(A, b"x", 0)
        with pytest.raises(CookieNotFound):
            await one.delete_cookie(A, 0)
        first = await one.create_cookie(A, b"5\none")
        with pytest.raises(CookieExists):
            await two.create_cookie(A, b"other")
        assert await two.read_cookie(A) == (b"5\none", first)
        with pytest.raises(VersionConflict):
            await two.write_cookie(A, b"two", first + 1)
        second = await two.write_cookie(A, b"", first)
        assert second > first
        assert await one.read_cookie(A) == (b"", second)
        await one.create_cookie(B, b"b")
        everyone = await one.all_bookies()
        assert everyone.bookies == (A, B)
        assert everyone.version > empty.version
        with pytest.raises(VersionConflict):
            await one.delete_cookie(A, first)
        await one.delete_cookie(A, second)
        fewer = await two.all_bookies()
        assert fewer.bookies == (B,)
        assert fewer.version > everyone.version
        again = await one.create_cookie(A, b"new")
        assert again > second

    kind.run(body)


def test_cookies_outlive_sessions(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.driver(), await cluster.driver()
        await one.register(A, WRITABLE, INFO_A)
        await one.create_cookie(A, b"cookie")
        await one.close()
        assert (await two.all_bookies()).bookies == (A,)
        assert (await two.read_cookie(A))[0] == b"cookie"
        assert await two.bookies(READ_ONLY) == BookieSet((), 0)

    kind.run(body)


# -- named records --------------------------------------------------------------------------------------------------


def test_records(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.driver(), await cluster.driver()
        for operation in (
            one.read_record("logs/a"),
            one.write_record("logs/a", b"", 0),
            one.delete_record("logs/a", 0),
        ):
            with pytest.raises(RecordNotFound):
                await operation
        first = await one.create_record("logs/a", b"one")
        assert first > 0
        with pytest.raises(RecordExists):
            await two.create_record("logs/a", b"other")
        assert await two.read_record("logs/a") == (b"one", first)
        for operation in (two.write_record("logs/a", b"x", first + 1), two.delete_record("logs/a", first + 1)):
            with pytest.raises(VersionConflict):
                await operation
        second = await two.write_record("logs/a", b"", first)
        assert second > first
        assert await one.read_record("logs/a") == (b"", second)
        with pytest.raises(VersionConflict):
            await one.write_record("logs/a", b"late", first)
        await one.delete_record("logs/a", second)
        with pytest.raises(RecordNotFound):
            await two.read_record("logs/a")
        assert await two.create_record("logs/a", b"new") > second

    kind.run(body)


def test_of_writers_of_one_version_one_wins(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        drivers = [await cluster.driver() for _ in range(4)]
        version = await drivers[0].create_record("r", b"")
        writes = [driver.write_record("r", b"%d" % index, version) for index, driver in enumerate(drivers)]
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        won = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, int)]
        assert len(won) == 1
        assert sum(isinstance(outcome, VersionConflict) for outcome in outcomes) == 3
        assert await drivers[3].read_record("r") == (b"%d" % won[0], outcomes[won[0]])

    kind.run(body)


def test_a_transaction_does_all_or_nothing(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.driver(), await cluster.driver()
        ledgers = [await one.create_ledger(ledger(number)) for number in (7, 8)]
        at = [LedgerAt(each.metadata.ledger_id, each.version) for each in ledgers]
        first = await one.transact([*at, RecordWrite("log", b"7 8", 0)])
        assert await two.read_record("log") == (b"7 8", first)
        assert first > max(each.version for each in ledgers)

        sealed = ledgers[1].metadata.replace(state=LedgerState.CLOSED, last_entry_id=3, length=9)
        changed = await two.write_ledger(sealed, ledgers[1].version)
        write = RecordWrite("log", b"never", first)
        refused: list[tuple[type[Exception], list[Step]]] = [
            (VersionConflict, [*at, write]),  # ledger 8 was changed
            (LedgerNotFound, [write, LedgerAt(9, 1)]),
            (LedgerNotFound, [write, LedgerDeletion(9, 1)]),
            (VersionConflict, [write, LedgerDeletion(7, 999)]),
            (VersionConflict, [RecordAt("log", 999), LedgerDeletion(7, ledgers[0].version)]),
            (VersionConflict, [RecordAt("log", 0), LedgerDeletion(7, ledgers[0].version)]),
            (RecordNotFound, [RecordAt("none", 3), LedgerDeletion(7, ledgers[0].version)]),
            (RecordNotFound, [RecordWrite("none", b"", 3), write]),
            (RecordExists, [RecordWrite("log", b"", 0), RecordWrite("new", b"", 0)]),
            (VersionConflict, [RecordWrite("new", b"", 0), RecordWrite("log", b"", first + 1)]),
        ]
        for error, steps in refused:
            with pytest.raises(error):
                await one.transact(steps)
        assert await one.read_record("log") == (b"7 8", first)
        assert await one.record_names("") == ["log"]
        assert (await one.read_ledger(7)).version == ledgers[0].version

        both = [LedgerDeletion(7, ledgers[0].version), LedgerDeletion(8, changed.version)]
        version = await two.transact(
            [RecordAt("none", 0), *both, RecordWrite("log", b"", first), RecordWrite("new", b"n", 0)]
        )
        assert await one.read_record("log") == (b"", version)
        assert await one.read_record("new") == (b"n", version)
        for number in (7, 8):
            with pytest.raises(LedgerNotFound):
                await one.read_ledger(number)
            with pytest.raises(LedgerExists, match="deleted"):
                await one.create_ledger(ledger(number))
        assert await one.transact([RecordAt("log", version)]) >= version

    kind.run(body)


def test_of_transactions_that_contradict_each_other_one_wins(kind: Kind) -> None:
    """A commit that refers to a ledger, and a deletion of it that looked at the list before."""

    async def body(cluster: Cluster) -> None:
        one, two = await cluster.driver(), await cluster.driver()
        for number in range(6):
            found = await one.create_ledger(ledger(number))
            version = await one.create_record(f"log{number}", b"")
            commit = one.transact([LedgerAt(number, found.version), RecordWrite(f"log{number}", b"refers", version)])
            reap = two.transact([RecordAt(f"log{number}", version), LedgerDeletion(number, found.version)])
            pair = (commit, reap) if number % 2 else (reap, commit)
            outcomes = await asyncio.gather(*pair, return_exceptions=True)
            assert sum(isinstance(outcome, int) for outcome in outcomes) == 1
            try:
                await one.read_ledger(number)
                is_there = True
            except LedgerNotFound:
                is_there = False
            assert ((await one.read_record(f"log{number}"))[0] == b"refers") == is_there

    kind.run(body)


def test_a_transaction_wakes_the_watches(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.driver(), await cluster.driver()
        found = await one.create_ledger(ledger(7))
        version = await one.create_record("r", b"")
        record, deleted = Seen(), Seen()
        one.watch_record("r", version, record)
        one.watch_ledger(7, deleted)
        await two.transact([LedgerDeletion(7, found.version), RecordWrite("r", b"new", version)])
        await record.wait_for(bool)
        await deleted.wait_for(lambda events: LedgerEvent.DELETED in events)

    kind.run(body)


def test_transactions_that_some_store_could_not_do_are_refused(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        driver = await cluster.driver()
        with pytest.raises(
            InvalidArgument, match=r"a transaction has 4,097 steps; a metadata store accepts at most 4,096"
        ):
            await driver.transact([LedgerAt(1, 1)] * 4097)
        with pytest.raises(InvalidArgument, match="changes r twice"):
            await driver.transact([RecordWrite("r", b"", 0), RecordWrite("r", b"", 0)])
        with pytest.raises(InvalidArgument, match="changes 7 twice"):
            await driver.transact([LedgerDeletion(7, 1), LedgerDeletion(7, 1)])
        with pytest.raises(InvalidArgument, match="is not a record name"):
            await driver.transact([RecordAt("a/", 1)])

    kind.run(body)


def test_record_names_are_listed_by_prefix(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        driver = await cluster.driver()
        assert list(await driver.record_names("")) == []
        for name in ("logs/b", "logs/a", "log", "logs_x", "Logs/a"):
            await driver.create_record(name, b"")
        assert list(await driver.record_names("logs/")) == ["logs/a", "logs/b"]
        assert list(await driver.record_names("log")) == ["log", "logs/a", "logs/b", "logs_x"]
        assert list(await driver.record_names("none")) == []
        assert list(await driver.record_names("%")) == []

    kind.run(body)


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", ".", "a/..", "a b", "a\x00", "ä", "x" * 256])
def test_names_that_some_store_could_not_hold_are_refused(kind: Kind, name: str) -> None:
    async def body(cluster: Cluster) -> None:
        driver = await cluster.driver()
        for operation in (
            driver.create_record(name, b""),
            driver.read_record(name),
            driver.write_record(name, b"", 1),
            driver.delete_record(name, 1),
        ):
            with pytest.raises(InvalidArgument, match="is not a record name"):
                await operation

    kind.run(body)


def test_records_that_some_store_could_not_hold_are_refused(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        driver = await cluster.driver()
        version = await driver.create_record("r", bytes(RECORD_SIZE_MAX))
        with pytest.raises(InvalidArgument, match="at most"):
            await driver.write_record("r", bytes(RECORD_SIZE_MAX + 1), version)
        with pytest.raises(InvalidArgument, match=r"record s would have 1,032,193 bytes"):
            await driver.create_record("s", bytes(RECORD_SIZE_MAX + 1))
        assert await driver.record_names("") == ["r"]

    kind.run(body)


def test_a_watched_record(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.driver(), await cluster.driver()
        created, changed, other = Seen(), Seen(), Seen()
        one.watch_record("r", 0, created)
        version = await two.create_record("r", b"")
        await created.wait_for(lambda values: len(values) == 1)
        one.watch_record("other", 0, other)
        stale = Seen()
        one.watch_record("r", version - 1, stale)  # What it has read is old already.
        await stale.wait_for(lambda values: len(values) == 1)
        watch = one.watch_record("r", version, changed)
        assert changed.values == []
        version = await two.write_record("r", b"new", version)
        await changed.wait_for(lambda values: len(values) == 1)
        watch.cancel()
        await two.delete_record("r", version)
        await created.wait_for(lambda values: len(values) == 3)
        assert (len(changed.values), other.values) == (1, [])

    kind.run(body)


def test_watches_of_records_end_with_the_driver(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        one = await cluster.driver()
        one.watch_record("r", 0, Seen())
        await one.close()
        with pytest.raises(ClientClosed):
            one.watch_record("r", 0, Seen())
        with pytest.raises(ClientClosed):
            await one.read_record("r")

    kind.run(body)


# -- moving a cluster --------------------------------------------------------------------------------------------------


def test_given_ids_are_told_without_giving_any(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        driver = await cluster.driver()
        await driver.initialize_cluster()
        first = await driver.next_ledger_id()
        for ledger_id in (first, await driver.next_ledger_id(), 70_000, 70_001, 70_003):
            await driver.create_ledger(ledger(ledger_id))
        for ledger_id in (70_001, 70_000, first):
            await driver.delete_ledger(ledger_id)
        given = await driver.given_ids()
        assert given == await driver.given_ids()
        assert given.next_id <= await driver.next_ledger_id()
        assert given.next_id > first + 1
        assert given.spent == ((first, first), (70_000, 70_001))

    kind.run(body)


def test_restored_ids_stay_given(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        driver = await cluster.driver()
        spent = ((2, 4), (65_530, 65_540), (1 << 30, (1 << 30) + 200_000))
        await driver.restore_ids(GivenIds(5_003, spent))
        await driver.restore_ids(GivenIds(7, ((4, 6), (8, 8))))
        await driver.create_cookie(A, b"cookie")
        with pytest.raises(MetadataError, match="interrupted"):
            await driver.initialize_cluster()
        await driver.restore_instance_id("the instance")
        await driver.restore_instance_id("the instance")
        assert await driver.initialize_cluster() == await driver.instance_id() == "the instance"
        with pytest.raises(MetadataError, match="that of cluster the instance"):
            await driver.restore_instance_id("another")
        other = await cluster.driver()
        assert await other.next_ledger_id() >= 5_003
        for ledger_id in (2, 6, 8, 65_535, 65_536, (1 << 30) + 100_000):
            with pytest.raises(LedgerExists):
                await other.create_ledger(ledger(ledger_id))
        for ledger_id in (1, 7, 65_541):
            await other.create_ledger(ledger(ledger_id))
        assert (await other.given_ids()).spent == ((2, 6), (8, 8), *spent[1:])
        await other.delete_ledger(7)
        await other.delete_ledger(1)
        assert (await other.given_ids()).spent == ((1, 8), *spent[1:])

    kind.run(body)


def test_counters_go_on_above_what_cannot_be_counted_up_to(kind: Kind) -> None:
    async def body(cluster: Cluster) -> None:
        driver = await cluster.driver()
        if kind.name.endswith("flat"):
            with pytest.raises(NotSupported, match="choose zk"):
                await driver.restore_ids(GivenIds(3_000_000_000))
            return
        for bound in (3_000_000, (5 << 32) + 1_500, (5 << 32) + 2_000_000, 127 << 56):
            await driver.restore_ids(GivenIds(bound))
            assert (await driver.given_ids()).next_id >= bound
            assert await driver.next_ledger_id() >= bound

    kind.run(body)


def test_the_record_of_a_deleted_ledger_is_made_again_once_its_id_is_allowed(kind: Kind) -> None:
    """By an operator who restores that ledger; its neighbours stay spent."""

    async def body(cluster: Cluster) -> None:
        one, two = await cluster.driver(), await cluster.driver()
        for ledger_id in (2, 3, 4):
            await one.create_ledger(ledger(ledger_id))
            await one.delete_ledger(ledger_id)
        with pytest.raises(LedgerExists):
            await two.create_ledger(ledger(3))
        await one.unspend_id(3)
        await one.unspend_id(3)
        await one.unspend_id(99)
        assert (await two.given_ids()).spent == ((2, 2), (4, 4))
        await one.restore_ids(GivenIds(0, ((3, 3),)))  # As after a creation that failed.
        assert (await two.given_ids()).spent == ((2, 4),)
        with pytest.raises(LedgerExists):
            await two.create_ledger(ledger(3))
        await one.unspend_id(3)
        await two.restore_ids(GivenIds(0, ((3, 3),)))  # What it remembers is older.
        assert (await one.given_ids()).spent == ((2, 4),)
        await one.unspend_id(3)
        for spent in (2, 4):
            with pytest.raises(LedgerExists):
                await one.create_ledger(ledger(spent))
        await one.create_ledger(ledger(3, creator_token=5))
        assert (await two.read_ledger(3)).metadata.creator_token == 5
        await two.delete_ledger(3)
        assert (await one.given_ids()).spent == ((2, 4),)

    kind.run(body)


def test_who_knows_a_record_from_before_its_deletion_cannot_change_the_one_made_again(kind: Kind) -> None:
    """A writer that slept meanwhile would move the end of a sealed ledger, and lose what was acknowledged."""

    async def body(cluster: Cluster) -> None:
        asleep, other = await cluster.driver(), await cluster.driver()
        stale = [await asleep.create_ledger(ledger(7))]
        sealed = ledger(7, state=LedgerState.CLOSED, last_entry_id=9, length=100)
        for _ in range(2):  # The second time, the first restored record is the old one.
            await other.delete_ledger(7)
            await other.unspend_id(7)
            restored = await other.create_ledger(sealed)
            for old in stale:
                with pytest.raises(VersionConflict):
                    await asleep.write_ledger(
                        ledger(7, state=LedgerState.CLOSED, last_entry_id=7, length=80), old.version
                    )
                assert await asleep.current_ledgers([7], [old]) == [restored]
            assert await asleep.read_ledger(7) == restored
            stale.append(await asleep.write_ledger(sealed, restored.version))

    kind.run(body)


def test_a_cluster_is_removed_with_all_that_it_has(kind: Kind) -> None:
    """A later cluster in the same place has nothing of it: no ledger, cookie, record, mark, lock or spent id."""

    async def body(cluster: Cluster) -> None:
        one, two = await cluster.driver(), await cluster.driver()
        instance_id = await one.initialize_cluster()
        for ledger_id in (1, 2, 3, 70_000, 1 << 30):
            await one.create_ledger(ledger(ledger_id))
        await one.delete_ledger(2)
        await one.create_cookie(A, b"cookie")
        await one.create_record("logs/events", b"record")
        await one.recovery.mark(1, [A], 5)
        await one.recovery.disable()
        await one.recovery.set_lost_bookie_delay_s(7)
        assert await one.recovery.lock(1, "test", needs_mark=True) is not None
        with pytest.raises(MetadataError, match=f"that of cluster {instance_id}, and cannot become other"):
            await two.remove_cluster("other")
        assert (await one.read_ledger(1)).metadata.ledger_id == 1
        await two.remove_cluster(instance_id)
        await two.remove_cluster(instance_id)  # as after an interruption
        assert await two.instance_id() is None
        three = await cluster.driver()
        assert await three.initialize_cluster() != instance_id or kind.name == "memory"
        assert [page async for page in three.ledger_ids()] == []
        assert (await three.all_bookies()).bookies == ()
        assert await three.record_names("") == []
        assert [page async for page in three.recovery.marked_ids()] == []
        assert await three.recovery.is_enabled()
        assert await three.recovery.lost_bookie_delay_s() is None
        assert await three.recovery.locks() == {}
        assert (await three.given_ids()).spent == ()
        await three.create_ledger(ledger(2))

    kind.run(body)
