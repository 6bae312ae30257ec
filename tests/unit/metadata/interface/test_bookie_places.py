"""Where bookies said they are: written when they register, read by clients that start while they are down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bookies.errors import MetadataCorrupt
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.embedded.memory import MemoryStore
from bookies.metadata.interface import bookie_places
from bookies.metadata.interface.bookie_places import BookiePlace, note_place, read_places
from bookies.model import BookieId
from bookies.runtime import aio

B1, B2 = BookieId("b1"), BookieId("10.0.0.2:3181")


def with_store(body: Callable[[MemoryStore, MemoryDriver], Awaitable[None]]) -> None:
    async def main() -> None:
        store = MemoryStore()
        driver = MemoryDriver(store, aio.runtime(seed=1))
        await driver.open()
        try:
            await body(store, driver)
        finally:
            await driver.close()

    asyncio.run(main())


def test_places_are_kept_changed_and_forgotten() -> None:
    async def body(store: MemoryStore, driver: MemoryDriver) -> None:
        assert await read_places(driver) == {}
        assert not await note_place(driver, B1, None)
        assert await driver.record_names("") == []  # Who says nothing leaves nothing.
        assert await note_place(driver, B1, BookiePlace("/r1", "10.0.0.1"))
        assert not await note_place(driver, B1, BookiePlace("/r1", "10.0.0.1"))
        assert await note_place(driver, B2, BookiePlace("/r2", "10.0.0.2"))
        assert await note_place(driver, B1, BookiePlace("/r3", "10.0.0.9"))
        places = {B1: BookiePlace("/r3", "10.0.0.9"), B2: BookiePlace("/r2", "10.0.0.2")}
        assert await read_places(driver) == places
        assert await note_place(driver, B1, None)
        assert await read_places(driver) == {B2: BookiePlace("/r2", "10.0.0.2")}

    with_store(body)


def test_what_many_note_at_once_is_all_there() -> None:
    async def body(store: MemoryStore, driver: MemoryDriver) -> None:
        bookies = [BookieId(f"b{number}") for number in range(20)]
        await asyncio.gather(*(note_place(driver, each, BookiePlace("/r", each)) for each in bookies))
        assert sorted(await read_places(driver)) == sorted(bookies)

    with_store(body)


@pytest.mark.parametrize("data", [b"", b"[]", b'{"format": 2, "bookies": {}}', b'{"format": 1, "bookies": {"b1": 7}}'])
def test_what_cannot_be_read_counts_as_empty_and_is_not_overwritten(data: bytes) -> None:
    async def body(store: MemoryStore, driver: MemoryDriver) -> None:
        await driver.create_record(bookie_places.NAME, data)
        assert await read_places(driver) == {}
        with pytest.raises(MetadataCorrupt):
            await note_place(driver, B1, BookiePlace("/r1", "h"))
        assert (await driver.read_record(bookie_places.NAME))[0] == data

    with_store(body)
