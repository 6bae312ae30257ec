"""The embedded driver: opening, the worker, heartbeats, and what happens when the store fails underneath."""

from __future__ import annotations

import asyncio
import pathlib
import threading
from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from bookies.client.base.metadata_loop import MetadataLoop
from bookies.errors import ClientClosed, DiskFull, MetadataCorrupt, MetadataError
from bookies.metadata.embedded import EmbeddedDriver
from bookies.metadata.interface.driver import BookieSet, LedgerEvent
from bookies.metadata.shared.nodes import Key, Observation, Table
from bookies.model import BookieId, BookieInfo, BookieMode, LedgerMetadata
from bookies.runtime import aio

A = BookieId("a")
RECORD = LedgerMetadata(7, 1, 1, 1, ((0, (A,)),))


def driver_of(directory: pathlib.Path) -> EmbeddedDriver:
    return EmbeddedDriver(str(directory), aio.runtime(seed=1))


def test_a_missing_directory_names_the_way_out(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        driver = driver_of(tmp_path / "nothing")
        with pytest.raises(MetadataError, match=r"no metadata store at .*nothing: `bk up` creates a cluster"):
            await driver.open()
        await driver.close()
        assert not (tmp_path / "nothing").exists()

    asyncio.run(main())


def test_a_damaged_database_is_reported_and_nothing_stays_open(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        (tmp_path / "metadata.db").write_bytes(b"garbage" * 1000)
        with pytest.raises(MetadataCorrupt, match="restore it from a backup"):
            await driver_of(tmp_path).open()

    asyncio.run(main())


def test_many_open_a_new_store_at_once(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        drivers = [driver_of(tmp_path) for _ in range(8)]
        await asyncio.gather(*(driver.open() for driver in drivers))
        ids = await asyncio.gather(*(driver.next_ledger_id() for driver in drivers))
        assert sorted(ids) == list(range(8))
        for driver in drivers:
            await driver.close()

    asyncio.run(main())


def test_everything_is_there_when_it_is_opened_again(tmp_path: pathlib.Path) -> None:
    async def write() -> tuple[str, int]:
        driver = driver_of(tmp_path)
        await driver.open()
        instance_id, last = await driver.initialize_cluster(), await driver.next_ledger_id()
        await driver.create_ledger(RECORD)
        await driver.create_cookie(A, b"cookie")
        await driver.close()
        return instance_id, last

    async def read() -> tuple[str | None, int]:
        driver = driver_of(tmp_path)
        await driver.open()
        assert (await driver.read_ledger(7)).metadata.ensembles == RECORD.ensembles
        assert (await driver.read_cookie(A))[0] == b"cookie"
        instance_id, last = await driver.instance_id(), await driver.next_ledger_id()
        await driver.close()
        return instance_id, last

    instance_id, last = asyncio.run(write())
    assert asyncio.run(read()) == (instance_id, last + 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metadata.db"]  # the last one out tidies up


class Wall:
    """A wall clock that goes where the test says."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def wall_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return 0.0


async def two_with(directory: pathlib.Path, wall: Wall) -> tuple[EmbeddedDriver, EmbeddedDriver]:
    """Two open drivers with leases of 30 ms by that clock."""
    runtime = replace(aio.runtime(seed=1), clock=wall)
    one, two = (EmbeddedDriver(str(directory), runtime, lease_ms=30) for _ in range(2))
    await one.open()
    await two.open()
    return one, two


def test_heartbeats_keep_the_registration(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        wall = Wall()
        bookie, client = await two_with(tmp_path, wall)
        bookie.on_session_expired(lambda: pytest.fail("the session is alive"))
        beats: asyncio.Queue[int] = asyncio.Queue()
        renew, loop = bookie.database.renew_session, asyncio.get_running_loop()

        def beat(session_id: int) -> bool:
            was_alive = renew(session_id)
            loop.call_soon_threadsafe(beats.put_nowait, wall.ms)
            return was_alive

        bookie.database.renew_session = beat  # type: ignore[method-assign]
        await bookie.register(A, BookieMode.WRITABLE, BookieInfo())
        for _ in range(5):  # three leases long
            wall.ms += 20
            while await beats.get() < wall.ms:
                pass
            assert (await client.bookies(BookieMode.WRITABLE)).bookies == (A,)
        await bookie.close()
        assert (await client.bookies(BookieMode.WRITABLE)).bookies == ()
        await client.close()

    asyncio.run(main())


def test_a_driver_that_stops_beating_loses_its_registration_and_hears_of_it(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        wall = Wall()
        bookie, client = await two_with(tmp_path, wall)
        expired = asyncio.Event()
        bookie.on_session_expired(expired.set)
        seen: asyncio.Queue[BookieSet] = asyncio.Queue()
        renew, bookie.database.renew_session = bookie.database.renew_session, _locked  # type: ignore[method-assign]
        await bookie.register(A, BookieMode.WRITABLE, BookieInfo())
        client.watch_bookies(BookieMode.WRITABLE, seen.put_nowait)
        assert (await seen.get()).bookies == (A,)
        wall.ms += 30
        assert (await seen.get()).bookies == ()
        assert not expired.is_set()
        bookie.database.renew_session = renew  # type: ignore[method-assign]
        await expired.wait()
        await bookie.register(A, BookieMode.WRITABLE, BookieInfo())
        assert (await seen.get()).bookies == (A,)
        await bookie.close()
        await client.close()

    asyncio.run(main())


def test_a_process_that_died_is_succeeded_after_its_lease(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        wall = Wall()
        dead, successor = await two_with(tmp_path, wall)
        dead.has_heartbeat = False
        await dead.register(A, BookieMode.WRITABLE, BookieInfo())
        wall.ms += 29
        with pytest.raises(MetadataError, match="another process keeps this bookie registered"):
            await successor.register(A, BookieMode.READ_ONLY, BookieInfo())
        wall.ms += 1
        await successor.register(A, BookieMode.READ_ONLY, BookieInfo())
        assert (await successor.bookies(BookieMode.READ_ONLY)).bookies == (A,)
        assert (await successor.bookies(BookieMode.WRITABLE)).bookies == ()
        await dead.close()
        assert (await successor.bookies(BookieMode.READ_ONLY)).bookies == (A,)
        await successor.close()

    asyncio.run(main())


def _locked(session_id: int) -> bool:
    raise MetadataError("another process kept the database locked")


def test_a_cancelled_write_may_have_happened_and_watches_still_hear_of_it(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        driver = driver_of(tmp_path)
        await driver.open()
        created = await driver.create_ledger(RECORD)
        seen: asyncio.Queue[LedgerEvent] = asyncio.Queue()
        driver.watch_ledger(7, seen.put_nowait)
        deletion = asyncio.create_task(driver.delete_ledger(7, created.version))
        await asyncio.sleep(0)
        deletion.cancel()
        assert await seen.get() is LedgerEvent.DELETED
        await driver.close()

    asyncio.run(main())


def test_own_writes_cost_no_observation_unless_they_are_watched(tmp_path: pathlib.Path) -> None:
    """An observation reads everything that is watched."""

    async def main() -> None:
        driver = driver_of(tmp_path)
        driver.poll_interval_s = 600.0
        observe, observations = driver.database.observe, list[int]()
        is_first_over = asyncio.Event()
        loop = asyncio.get_running_loop()

        def counted(keys: Sequence[Key], sets: Mapping[Table, int], is_complete: bool) -> Observation | None:
            observations.append(len(keys))
            loop.call_soon_threadsafe(is_first_over.set)
            return observe(keys, sets, is_complete)

        driver.database.observe = counted  # type: ignore[method-assign]
        await driver.open()
        version = await driver.create_record("watched", b"1")
        seen = asyncio.Event()
        driver.watch_record("watched", version, seen.set)
        async with asyncio.timeout(30):
            await is_first_over.wait()
        for number in range(50):
            await driver.create_record(f"other-{number}", b"")
        assert observations == [1]
        await driver.write_record("watched", b"2", version)
        async with asyncio.timeout(30):
            await seen.wait()
        assert observations == [1, 1]
        await driver.close()

    asyncio.run(main())


def test_a_watch_goes_on_after_the_store_failed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookies.metadata.shared.store_driver.RETRY_INTERVAL_S", 0.01)

    async def main() -> None:
        driver = driver_of(tmp_path)
        await driver.open()
        await driver.create_ledger(RECORD)
        failures = [DiskFull("full"), MetadataError("locked")]
        observe = driver.database.observe

        def failing(*arguments: object) -> object:
            if failures:
                raise failures.pop()
            return observe(*arguments)  # type: ignore[arg-type]

        driver.database.observe = failing  # type: ignore[method-assign,assignment]
        seen: asyncio.Queue[LedgerEvent] = asyncio.Queue()
        driver.watch_ledger(7, seen.put_nowait)
        await driver.delete_ledger(7)
        assert await seen.get() is LedgerEvent.DELETED
        assert failures == []
        await driver.close()

    asyncio.run(main())


def test_a_change_of_a_record_waits_for_space_on_the_disk(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        driver = driver_of(tmp_path)
        await driver.open()
        connection = driver.database._connection
        assert connection is not None
        troubles: list[MetadataError] = []

        def free_space(error: MetadataError) -> None:
            troubles.append(error)
            connection.execute(f"PRAGMA max_page_count = {1 << 20}").fetchone()

        record = await driver.create_ledger(RECORD)
        loop = MetadataLoop(aio.runtime(seed=2), driver, record, on_trouble=free_space)
        connection.execute("PRAGMA max_page_count = 1").fetchone()  # no page more than there are
        big = {"x": bytes(100_000)}
        written = await loop.update(
            lambda found: not found.custom_metadata, lambda found: found.replace(custom_metadata=big)
        )
        assert [error.retriable for error in troubles] == [True]
        assert "no space left" in str(troubles[0])
        assert written == await driver.read_ledger(7)
        await driver.close()

    asyncio.run(main())


def test_our_own_mistake_in_the_background_fails_the_driver(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        loop, reported = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(lambda _, context: reported.set())
        driver = driver_of(tmp_path)
        await driver.open()

        def broken(*arguments: object) -> object:
            raise KeyError("oops")

        expired = asyncio.Event()
        driver.on_session_expired(expired.set)
        await driver.register(A, BookieMode.WRITABLE, BookieInfo())
        driver.database.observe = broken  # type: ignore[method-assign,assignment]
        driver.watch_ledger(7, lambda _: None)
        await expired.wait()
        assert reported.is_set()
        with pytest.raises(MetadataError, match="failed: 'oops'"):
            await driver.register(A, BookieMode.WRITABLE, BookieInfo())
        await driver.close()
        with pytest.raises(ClientClosed):
            await driver.instance_id()

    asyncio.run(main())


def test_closing_while_others_wait(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        driver = driver_of(tmp_path)
        await driver.open()
        waiting = [asyncio.create_task(driver.next_ledger_id()) for _ in range(5)]
        await asyncio.sleep(0)
        await driver.close()
        assert await asyncio.gather(*waiting) == list(range(5))

    asyncio.run(main())


def test_the_database_is_used_off_the_loop_only(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        driver = driver_of(tmp_path)
        await driver.open()
        own = threading.get_ident()
        threads: list[int] = []
        guard = driver.database.guard

        def noted(*arguments: object) -> object:
            threads.append(threading.get_ident())
            return guard(*arguments)  # type: ignore[arg-type]

        driver.database.guard = noted  # type: ignore[method-assign,assignment]
        await driver.register(A, BookieMode.WRITABLE, BookieInfo())
        seen: asyncio.Queue[BookieSet] = asyncio.Queue()
        driver.watch_bookies(BookieMode.WRITABLE, seen.put_nowait)
        await seen.get()
        await driver.close()
        assert len(threads) >= 5
        assert own not in threads

    asyncio.run(main())
