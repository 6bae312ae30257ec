"""Cursors of a log through the client: they hold truncations back, whoever was first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from tests.fakes.world import World, play

from bookies.client.client import Client
from bookies.client.log import Log
from bookies.errors import CursorBehind, InvalidArgument, LogNotFound, LogTruncated, MetadataError
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.interface.driver import Step
from bookies.metadata.shared.nodes import Table
from bookies.protocol.log import Position

Act = Callable[[World, Client, Log, list[Position]], Awaitable[None]]


def with_log(act: Act) -> None:
    """A log of three ledgers of two entries; their positions."""

    async def main(world: World) -> None:
        client = await world.client()
        log = client.log("orders")
        await log.create()
        positions = []
        async with log.lead() as writer:
            for number in range(3):
                positions += [await writer.append(b"%da" % number), await writer.append(b"%db" % number)]
                await writer.roll()
        await act(world, client, log, positions)

    play(main, 3)


def test_truncation_does_not_pass_a_cursor() -> None:
    async def act(world: World, client: Client, log: Log, positions: list[Position]) -> None:
        await log.move_cursor("billing", positions[2])
        await log.move_cursor("audit", positions[4])
        assert {name: each.position for name, each in (await log.cursors()).items()} == {
            "billing": positions[2], "audit": positions[4],
        }  # fmt: skip
        with pytest.raises(
            CursorBehind, match=r"cannot be truncated to 1:1, because of its cursors billing \(at 1:0\)"
        ):
            await log.truncate(positions[3])
        await log.truncate(positions[2])
        assert (await log.manifest()).rows_truncated == 2
        await log.move_cursor("billing", positions[5].next)
        async with log.lead() as writer:
            with pytest.raises(CursorBehind, match="audit"):
                await writer.truncate(positions[5])
            await writer.truncate(positions[5], force=True)
        assert (await log.manifest()).rows_truncated == 5
        await log.truncate(positions[5].next)  # What was passed by force holds nothing back.
        with pytest.raises(LogTruncated):
            await log.move_cursor("audit", positions[3])
        await log.delete_cursor("audit")
        await log.delete_cursor("audit")
        assert list(await log.cursors()) == ["billing"]
        for name, position in (("a b", positions[5].next), ("a", Position(1, -1))):
            with pytest.raises(InvalidArgument, match="no name of a cursor" if name == "a b" else "position"):
                await log.move_cursor(name, position)

    with_log(act)


@pytest.mark.parametrize("is_forced", [False, True])
def test_a_cursor_at_the_end_of_a_dropped_ledger_still_holds_truncations_back(is_forced: bool) -> None:
    async def act(world: World, client: Client, log: Log, positions: list[Position]) -> None:
        async with log.lead() as writer:
            await writer.append(b"3a")
            await log.move_cursor("billing", positions[1].next)
            await log.truncate(positions[2], force=is_forced)
            assert positions[0].ledger_id not in (await log.manifest()).ledger_ids
            with pytest.raises(CursorBehind, match="billing"):
                await log.truncate(positions[3])
            start = (await log.cursors())["billing"].position
            async with log.open() as reader:
                assert [entry.position async for entry in reader.read(start)][:4] == positions[2:]

    with_log(act)


def test_cursors_go_with_their_log() -> None:
    async def act(world: World, client: Client, log: Log, positions: list[Position]) -> None:
        await log.move_cursor("billing", positions[2])
        await log.delete()
        assert world.store.list(Table.RECORDS).items == []
        with pytest.raises(LogNotFound):
            await log.cursors()
        await log.create()
        assert await log.cursors() == {}

    with_log(act)


def test_neither_side_decides_on_what_was_true_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cursor is made between the look at the cursors and the swap; a truncation between the look and the move."""

    async def act(world: World, client: Client, log: Log, positions: list[Position]) -> None:
        transact = MemoryDriver.transact
        other = (await world.client()).log("orders")
        between = [lambda: other.move_cursor("late", positions[1])]

        async def interrupted(self: MemoryDriver, steps: Sequence[Step]) -> int:
            if between:
                await between.pop()()
            return await transact(self, steps)

        monkeypatch.setattr(MemoryDriver, "transact", interrupted)
        with pytest.raises(CursorBehind, match="late"):
            await log.truncate(positions[3])
        between.append(lambda: other.truncate(positions[3], force=True))
        with pytest.raises(LogTruncated):
            await log.move_cursor("later", positions[2])
        assert list(await log.cursors()) == ["late"]

    with_log(act)


def test_lost_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(world: World, client: Client, log: Log, positions: list[Position]) -> None:
        transact = MemoryDriver.transact
        calls = []

        async def forgetful(self: MemoryDriver, steps: Sequence[Step]) -> int:
            version = await transact(self, steps)
            calls.append(version)
            if len(calls) % 2:
                raise MetadataError("the reply was lost")
            return version

        monkeypatch.setattr(MemoryDriver, "transact", forgetful)
        await log.move_cursor("billing", positions[2])
        assert len(calls) == 1
        calls.clear()
        await log.truncate(positions[1])
        assert (await log.manifest()).rows_truncated == 1
        calls.clear()
        await asyncio.gather(*(log.move_cursor(f"c{number}", positions[2]) for number in range(5)))
        assert len(await log.cursors()) == 6

    with_log(act)
