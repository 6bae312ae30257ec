"""Maintenance leases and drains: who sees them, until when, and that nobody's change is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookies.errors import InvalidArgument, MetadataCorrupt
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.embedded.memory import MemoryStore
from bookies.metadata.shared import BookieNotes, bookie_notes
from bookies.metadata.shared.bookie_notes import NAME, Draining, Maintenance, Note, Notes, parse
from bookies.model import BookieId

A, B = BookieId("bk-a:3181"), BookieId("bk-b:3181")
texts = st.text(max_size=40)
numbers = st.integers(0, 1 << 53)


class World:
    """Two clients, and a clock."""

    def __init__(self) -> None:
        self.now_ms = 1000
        store = MemoryStore()
        self.drivers = [MemoryDriver(store), MemoryDriver(store)]
        self.one, self.two = (BookieNotes(driver, lambda: self.now_ms) for driver in self.drivers)


def run(body: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World()
        for driver in world.drivers:
            await driver.open()
        try:
            async with asyncio.timeout(120):
                await body(world)
        finally:
            for driver in world.drivers:
                await driver.close()

    asyncio.run(main())


def test_maintenance_ends_by_itself() -> None:
    async def body(world: World) -> None:
        assert await world.two.read() == Notes()
        said = await world.one.begin_maintenance(A, 5000, "ops", "new disk")
        assert said == Maintenance(5000, "ops", "new disk")
        notes = await world.two.read()
        assert notes.by_bookie == {A: Note(maintenance=said)}
        assert (tuple(notes.by_bookie), notes.exempt, notes.draining, notes.next_end_ms) == ((A,), {A: 5000}, {}, 5000)
        world.now_ms = 4000
        await world.two.begin_maintenance(A, 9000, "ops")
        world.now_ms = 8999
        assert (await world.one.read()).exempt == {A: 9000}
        world.now_ms = 9000
        after = await world.one.read()
        assert (after.by_bookie, after.next_end_ms) == ({}, None)
        assert not await world.one.end_maintenance(A)

    run(body)


def test_maintenance_is_ended() -> None:
    async def body(world: World) -> None:
        await world.one.begin_maintenance(A, 5000, "ops")
        await world.one.begin_maintenance(B, 6000, "ops")
        assert await world.two.end_maintenance(A)
        assert not await world.two.end_maintenance(A)
        assert (await world.one.read()).exempt == {B: 6000}

    run(body)


def test_what_has_run_out_goes_with_the_next_change() -> None:
    async def body(world: World) -> None:
        await world.one.begin_maintenance(A, 2000, "ops")
        world.now_ms = 3000
        await world.one.begin_draining(B, "ops")
        assert b"bk-a" not in (await world.drivers[0].read_record(NAME))[0]

    run(body)


def test_a_drain_is_begun_once_and_gone_on_with() -> None:
    async def body(world: World) -> None:
        first = await world.one.begin_draining(A, "ops")
        assert first == Draining(1000, "ops")
        assert await world.one.set_draining_state(A, "copied 5 of 9 ledgers")
        world.now_ms = 2000
        again = await world.two.begin_draining(A, "somebody else")
        assert again == Draining(1000, "ops", "copied 5 of 9 ledgers", 1000)
        await world.two.begin_maintenance(A, 3000, "ops")
        notes = await world.one.read()
        assert notes.by_bookie == {A: Note(Maintenance(3000, "ops"), again)}
        assert notes.draining == {A: again}
        assert await world.one.end_draining(A)
        assert not await world.one.end_draining(A)
        assert not await world.two.set_draining_state(A, "copied 6 of 9 ledgers")
        assert (await world.two.read()).by_bookie == {A: Note(Maintenance(3000, "ops"))}

    run(body)


def test_how_far_a_drain_is_has_a_time() -> None:
    async def body(world: World) -> None:
        await world.one.begin_draining(A, "ops")
        world.now_ms = 5000
        await world.one.set_draining_state(A, "1 of 9")
        assert (await world.two.read()).draining == {A: Draining(1000, "ops", "1 of 9", 5000)}

    run(body)
    assert parse(b'{"format": 1, "bookies": {"b": {"draining": {"since_ms": 1, "by": "x", "state": "y"}}}}') == {
        BookieId("b"): Note(draining=Draining(1, "x", "y", 0))
    }


@pytest.mark.parametrize("text", ["new\ndisk", "new\rdisk", "\x1b[2J", "a\tb", "a\u2028b", "a\x85b"])
def test_what_would_break_a_line_is_refused(text: str) -> None:
    async def body(world: World) -> None:
        with pytest.raises(InvalidArgument, match="line breaks or control characters"):
            await world.one.begin_maintenance(A, 2000, "ops", text)
        await world.one.begin_maintenance(A, 2000, "ops", "neue Platte, 5\u00a0TB \u2013 \u65e5\u672c")

    run(body)


def test_changes_of_several_at_once_are_all_kept() -> None:
    async def body(world: World) -> None:
        bookies = [BookieId(f"bk-{number}:3181") for number in range(10)]
        await asyncio.gather(
            *(notes.begin_draining(bookie, "ops") for notes in (world.one, world.two) for bookie in bookies),
            *(world.two.begin_maintenance(bookie, 5000, "ops") for bookie in bookies),
        )
        found = (await world.one.read()).by_bookie
        assert list(found) == bookies
        assert all(note.maintenance is not None and note.draining is not None for note in found.values())

    run(body)


def test_changes_are_told() -> None:
    async def body(world: World) -> None:
        news = asyncio.Event()
        notes = await world.one.read()
        watch = world.one.watch(notes, news.set)
        await world.two.begin_maintenance(A, 5000, "ops")
        await news.wait()
        watch.cancel()

    run(body)


def test_what_cannot_be_understood_stops_nobody_but_who_changes_it() -> None:
    async def body(world: World) -> None:
        version = await world.drivers[0].create_record(NAME, b'{"format": 2, "bookies": {}}')
        for damaged in (b"", b"[]", b'{"format": 1}', b'{"format": 1, "bookies": {"a": {"draining": {}}}}', b"\xff"):
            assert await world.one.read() == Notes()
            with pytest.raises(MetadataCorrupt):
                await world.one.begin_draining(A, "ops")
            version = await world.drivers[0].write_record(NAME, damaged, version)

    run(body)


def test_nonsense_is_refused() -> None:
    async def body(world: World) -> None:
        with pytest.raises(InvalidArgument, match="before it begins"):
            await world.one.begin_maintenance(A, 1000, "ops")
        with pytest.raises(InvalidArgument, match="characters"):
            await world.one.begin_maintenance(A, 5000, "ops", "x" * 501)
        with pytest.raises(InvalidArgument, match="bookie id"):
            await world.one.begin_draining(BookieId("a/b"), "ops")

    run(body)


@given(
    st.dictionaries(
        st.sampled_from([A, B]),
        st.builds(
            Note,
            st.none() | st.builds(Maintenance, numbers, texts, texts),
            st.none() | st.builds(Draining, numbers, texts, texts),
        ),
    )
)
def test_notes_are_parsed_as_they_were_packed(notes: dict[BookieId, Note]) -> None:
    assert bookie_notes.parse(bookie_notes.pack(notes)) == notes


@pytest.mark.parametrize("until", ["1e999", "Infinity", "[" * 10_000])
def test_numbers_and_nesting_that_no_writer_has(until: str) -> None:
    note = f'{{"maintenance": {{"until_ms": {until}, "by": "x"}}}}'
    with pytest.raises(MetadataCorrupt):
        parse(f'{{"format": 1, "bookies": {{"b1:1": {note}}}}}'.encode())
