"""The in-memory store: faults on the way, sessions that expire, stores shared by name, one loop at a time."""

from __future__ import annotations

import asyncio

import pytest

from bookies.errors import LedgerExists, MetadataError, SessionExpired, VersionConflict
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.embedded.memory import MemoryStore, shared_store
from bookies.metadata.interface.driver import BookieSet, LedgerEvent
from bookies.metadata.shared.nodes import Key, Table
from bookies.model import BookieId, BookieInfo, BookieMode, LedgerMetadata, LedgerState

A = BookieId("a")
RECORD = LedgerMetadata(7, 1, 1, 1, ((0, (A,)),), creator_token=3)


class Script:
    """Faults by script: operation -> exception raised before or after it, once."""

    def __init__(self) -> None:
        self.lose_request: dict[str, Exception] = {}
        self.lose_reply: dict[str, Exception] = {}
        self.operations: list[str] = []

    async def before(self, operation: str, driver: MemoryDriver) -> None:
        self.operations.append(operation)
        if operation in self.lose_request:
            raise self.lose_request.pop(operation)

    async def after(self, operation: str, driver: MemoryDriver) -> None:
        if operation in self.lose_reply:
            raise self.lose_reply.pop(operation)


def test_a_lost_request_has_no_effect_and_a_lost_reply_has_one() -> None:
    async def main() -> None:
        script = Script()
        driver = MemoryDriver(MemoryStore(), faults=script)
        await driver.open()
        script.lose_request["create_ledger"] = MetadataError("lost request")
        with pytest.raises(MetadataError, match="lost request"):
            await driver.create_ledger(RECORD)
        assert driver.store.get([Key(Table.LEDGERS, 7)]) == [None]
        script.lose_reply["create_ledger"] = MetadataError("lost reply")
        with pytest.raises(MetadataError, match="lost reply"):
            await driver.create_ledger(RECORD)
        created = await driver.create_ledger(RECORD)  # the token tells that it was us
        with pytest.raises(LedgerExists):
            await driver.create_ledger(RECORD.replace(creator_token=4))
        script.lose_reply["write_ledger"] = MetadataError("lost reply")
        changed = created.metadata.replace(state=LedgerState.IN_RECOVERY)
        with pytest.raises(MetadataError, match="lost reply"):
            await driver.write_ledger(changed, created.version)
        assert (await driver.read_ledger(7)).metadata == changed
        await driver.close()

    asyncio.run(main())


def test_an_injected_conflict_is_a_real_one() -> None:
    async def main() -> None:
        script = Script()
        driver = MemoryDriver(MemoryStore(), faults=script)
        await driver.open()
        created = await driver.create_ledger(RECORD)
        script.lose_request["write_ledger"] = VersionConflict()
        with pytest.raises(VersionConflict):
            await driver.write_ledger(created.metadata, created.version)
        found = await driver.read_ledger(7)
        assert found.version > created.version
        assert found.metadata == created.metadata
        script.lose_request["delete_ledger"] = VersionConflict()
        with pytest.raises(VersionConflict):
            await driver.delete_ledger(7, found.version)
        await driver.close()

    asyncio.run(main())


def test_a_watch_survives_failed_observations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookies.metadata.shared.store_driver.RETRY_INTERVAL_S", 0.001)

    async def main() -> None:
        script = Script()
        store = MemoryStore()
        writer, reader = MemoryDriver(store), MemoryDriver(store, faults=script)
        await writer.open()
        await reader.open()
        await writer.create_ledger(RECORD)
        script.lose_request["watch"] = MetadataError("lost request")
        script.lose_reply["watch"] = MetadataError("lost reply")
        seen: asyncio.Queue[LedgerEvent] = asyncio.Queue()
        sets: asyncio.Queue[BookieSet] = asyncio.Queue()
        reader.watch_ledger(7, seen.put_nowait)
        reader.watch_bookies(BookieMode.WRITABLE, sets.put_nowait)
        assert await seen.get() is LedgerEvent.CHANGED
        assert (await sets.get()).bookies == ()
        assert script.operations.count("watch") == 3
        await writer.close()
        await reader.close()

    asyncio.run(main())


def test_closing_succeeds_when_the_store_is_out_of_reach() -> None:
    async def main() -> None:
        script = Script()
        driver = MemoryDriver(MemoryStore(), faults=script)
        await driver.open()
        await driver.register(A, BookieMode.WRITABLE, BookieInfo())
        script.lose_request["close"] = MetadataError("lost request")
        await driver.close()
        assert [name for name, _ in driver.store.list(Table.WRITABLE).items] == [A]

    asyncio.run(main())


def test_an_expired_session_tells_its_owner_before_anything_else_succeeds() -> None:
    async def main() -> None:
        driver = MemoryDriver(MemoryStore())
        await driver.open()
        driver.expire()  # without a session there is nothing to lose
        order: list[str] = []
        driver.on_session_expired(lambda: order.append("expired"))
        await driver.register(A, BookieMode.WRITABLE, BookieInfo())
        driver.expire()
        assert order == ["expired"]
        assert (await driver.bookies(BookieMode.WRITABLE)).bookies == ()
        await driver.register(A, BookieMode.READ_ONLY, BookieInfo())
        assert driver.session_id is not None
        driver.store.end_session(driver.session_id)
        with pytest.raises(SessionExpired):
            await driver.register(A, BookieMode.WRITABLE, BookieInfo())
        assert order == ["expired", "expired"]
        await driver.close()

    asyncio.run(main())


def test_concurrent_registrations_share_a_session() -> None:
    async def main() -> None:
        driver = MemoryDriver(MemoryStore())
        await driver.open()
        names = [BookieId(f"b{number}") for number in range(5)]
        await asyncio.gather(*(driver.register(name, BookieMode.WRITABLE, BookieInfo()) for name in names))
        assert (await driver.bookies(BookieMode.WRITABLE)).bookies == tuple(names)
        await driver.close()
        assert driver.store.list(Table.WRITABLE).items == []

    asyncio.run(main())


def test_a_callback_that_raises_harms_no_other() -> None:
    async def main() -> None:
        errors: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
        driver = MemoryDriver(MemoryStore())
        await driver.open()
        seen: asyncio.Queue[BookieSet] = asyncio.Queue()

        def fail(_: BookieSet) -> None:
            raise KeyError("the callback's own mistake")

        driver.watch_bookies(BookieMode.WRITABLE, fail)
        driver.watch_bookies(BookieMode.WRITABLE, seen.put_nowait)
        await seen.get()
        await driver.register(A, BookieMode.WRITABLE, BookieInfo())
        assert (await seen.get()).bookies == (A,)
        assert [type(error) for error in errors] == [KeyError, KeyError]
        await driver.close()

    asyncio.run(main())


def test_stores_are_shared_by_name() -> None:
    assert shared_store("one") is shared_store("one")
    assert shared_store("one") is not shared_store("two")


def test_a_store_outlives_a_loop_but_sessions_of_the_loop_do_not() -> None:
    store = MemoryStore("x")

    async def abandon() -> None:
        driver = MemoryDriver(store)
        await driver.open()
        await driver.create_ledger(RECORD)
        await driver.register(A, BookieMode.WRITABLE, BookieInfo())

    async def look() -> None:
        driver = MemoryDriver(store)
        await driver.open()
        assert (await driver.read_ledger(7)).metadata.creator_token == 3
        assert (await driver.bookies(BookieMode.WRITABLE)).bookies == ()
        await driver.close()

    asyncio.run(abandon())
    asyncio.run(look())


def test_two_loops_at_a_time_are_refused() -> None:
    store = MemoryStore("x")
    first = MemoryDriver(store)
    with asyncio.Runner() as one, asyncio.Runner() as two:
        one.run(first.open())
        with pytest.raises(MetadataError, match=r"memory:x is in use on another event loop; use file:DIR"):
            two.run(MemoryDriver(store).open())
        one.run(first.close())
        second = MemoryDriver(store)
        two.run(second.open())
        two.run(second.close())
