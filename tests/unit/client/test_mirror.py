"""A log that is mirrored to another cluster: two worlds of fake bookies on one virtual loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from tests.fakes.world import World, play

from bookies.client import mirror as mirroring
from bookies.client.client import Client
from bookies.client.mirror import LogMirror, mirror_state, promote, ranges_text, stop_writing, whole_list
from bookies.encoding.envelope import Record, parse_record
from bookies.errors import (
    BookKeeperError,
    InvalidArgument,
    LedgerExists,
    LedgerLocked,
    LogError,
    LogExists,
    LogFenced,
    LogNotFound,
    ReadFailed,
)
from bookies.protocol.log import Position
from bookies.protocol.log.migration import end_of, is_mirror, missing_in
from bookies.wire.messages import WriteLacRequest


def play_two(act: Callable[[World, World, Client, Client], Coroutine[Any, Any, None]], bookie_count: int = 1) -> None:
    """Run `act` with two clusters and a client of each."""

    async def main(world: World) -> None:
        other = World(world.loop, bookie_count, seed=2)
        other.store.name = "other"
        await other.start()
        try:
            await act(world, other, await world.client(), await other.client())
        finally:
            await other.stop()

    play(main, bookie_count=bookie_count)


async def new_log(client: Client, name: str = "orders", **settings: Any) -> None:
    await client.log(name).create(ensemble=1, **settings)


async def append(client: Client, *values: bytes, name: str = "orders") -> Position:
    async with client.log(name).lead() as leader:
        return await leader.append_many(list(values))


async def entries(client: Client, name: str = "orders") -> list[tuple[Position, bytes]]:
    async with client.log(name).open() as reader:
        return [(entry.position, entry.payload) async for entry in reader.read()]


async def mirrored(source: Client, target: Client, steps: int = 3, **options: Any) -> None:
    async with LogMirror(source, target, "orders") as mirror:
        await mirror.begin(**options)
        for _ in range(steps):
            await mirror.step()


def test_a_mirror_has_the_same_entries_at_the_same_positions() -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        await new_log(source)
        await append(source, b"one", b"two")
        async with LogMirror(source, target, "orders") as mirror, source.log("orders").lead() as leader:
            await mirror.begin()
            last = await leader.append_many([b"three", b"four", b"five"])
            assert await mirror.step()
            assert not await mirror.step()
            with pytest.raises(LogFenced, match="it is a mirror of"):
                await append(target, b"not here")
            with pytest.raises(LogFenced, match="truncate it there"):
                await target.log("orders").truncate(last)
            await leader.close()
            await source.log("orders").move_cursor("web", last)
            mirror._due_s = 0.0
            await mirror.step()
            assert await entries(target) == await entries(source)
            assert (await target.log("orders").cursors())["web"].position == last
            state = await mirror_state(target, "orders")
            assert state is not None
            assert (state.copied, state.rows_behind, state.seconds_behind(state.at_ms)) == (last.next, 0, 0.0)
            await source.log("orders").truncate(last)
            await append(source, b"six")
            mirror._due_s = 0.0
            await mirror.step()
            assert await entries(target) == await entries(source)
            assert [record.ledger_id async for record in target.ledgers()] == [
                record.ledger_id async for record in source.ledgers()
            ]

    play_two(act)


def test_a_mirror_continues_after_a_crash_and_copies_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        await new_log(source)
        async with source.log("orders").lead() as leader:
            await leader.append_many([b"%d" % number for number in range(50)])
            await mirrored(source, target)
            written = 0
            write = mirroring.LogMirror._write

            async def counted(self: LogMirror, growing: Any, batch: Any) -> None:
                nonlocal written
                written += len(batch)
                await write(self, growing, batch)

            monkeypatch.setattr(mirroring.LogMirror, "_write", counted)
            await leader.append_many([b"more", b"last"])
            async with LogMirror(source, target, "orders") as first:
                await first.begin()
                await first.step()
                async with LogMirror(source, target, "orders") as second:
                    await second.begin()
                    with pytest.raises(LedgerLocked):
                        await second.step()
            assert written <= 3
        await mirrored(source, target)
        assert await entries(target) == await entries(source)

    play_two(act)


def test_the_lead_moves_and_comes_back() -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        await new_log(source)
        async with source.log("orders").lead() as leader:
            await leader.append_many([b"one", b"two"])
            async with LogMirror(source, target, "orders") as mirror:
                await mirror.begin()
                end = await mirror.switch_over("other")
                mirror._due_s = 0.0
                with pytest.raises(LogFenced, match="was switched over"):
                    await mirror.step()
            with pytest.raises(BookKeeperError):
                await leader.append(b"too late")
            assert end is not None
        with pytest.raises(LogFenced, match="was moved to other"):
            await append(source, b"too late")
        third = await append(target, b"three")
        assert third.ledger_id >= mirroring.IDS_APART
        async with LogMirror(target, source, "orders") as back:
            await back.begin()
            await back.step()
            assert is_mirror(await source.log("orders").manifest())
            await back.switch_over("world")
        await append(source, b"four")
        assert [value for _, value in await entries(source)] == [b"one", b"two", b"three", b"four"]
        await mirrored(source, target)
        assert await entries(target) == await entries(source)

    play_two(act)


def test_a_switch_over_waits_for_the_process_that_copies() -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        await new_log(source)
        async with LogMirror(source, target, "orders") as running, source.log("orders").lead() as leader:
            await running.begin()
            await leader.append_many([b"one", b"two", b"three"])
            copying = asyncio.ensure_future(running.run(lambda error: None))
            await asyncio.sleep(1)
            async with LogMirror(source, target, "orders") as mirror:
                await mirror.begin()
                await mirror.switch_over("other")
            with pytest.raises(LogFenced, match="was switched over"):
                await copying
        assert [value for _, value in await entries(target)] == [b"one", b"two", b"three"]

    play_two(act)


async def load(client: Client) -> bool:
    async with client.log("orders").transaction("nightly", 7) as batch:
        await batch.append_many([b"%d" % number for number in range(3)])
    return batch.was_committed_before


def test_a_batch_that_the_mirror_never_got_can_be_repeated_there() -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        await new_log(source)
        await append(source, b"before")
        await mirrored(source, target)
        assert not await load(source)
        await mirrored(source, target, steps=0)  # It has seen the source's list, and copied no ledger.
        await promote(target, "orders")
        assert not await load(target)
        assert await load(target)
        assert [value for _, value in await entries(target)] == [b"before", b"0", b"1", b"2"]

    play_two(act)


def test_rows_that_the_log_goes_on_without_stay_readable() -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        await new_log(source)
        await append(source, b"before")
        await mirrored(source, target)
        await load(source)
        await promote(target, "orders")
        await append(target, b"there")
        await mirrored(target, source, drops=True)
        async with LogMirror(target, source, "orders") as back:
            await back.begin()
            await back.switch_over("here")
        [left] = [record.ledger_id async for record in source.ledgers(label=("sink.app", "nightly"))]
        reaped = [row async for row in source.log("orders").reap(orphan_grace=0, replay_grace=0)]
        assert [(row.ledger_id, row.outcome) for row in reaped] == [(left, "left out")]
        async with source.open(left) as reader:
            assert [entry.payload async for entry in reader.read()] == [b"0", b"1", b"2"]

    play_two(act)


def test_a_log_that_another_cluster_continues_moves_nowhere_and_its_copy_stays_open() -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        await new_log(source)
        async with source.log("orders").lead() as leader, LogMirror(source, target, "orders") as mirror:
            await mirror.begin()
            await leader.append_many([b"one", b"two"])
            await mirror.step()
            [growing] = (await target.log("orders").manifest()).open_ledgers
            with pytest.raises(LogFenced, match=r"it is a mirror of .*\. Only that one may continue it"):
                await stop_writing(target, "orders", "file:/third")
            assert not (await target.metadata(growing)).is_closed
        await stop_writing(source, "orders", "file:/second")
        assert (await stop_writing(source, "orders", "file:/second")).held
        with pytest.raises(LogFenced, match="it was moved to file:/second"):
            await stop_writing(source, "orders", "file:/third")

    play_two(act)


def test_a_mirror_that_is_started_again_does_not_undo_the_switch_over() -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        await new_log(source)
        await append(source, b"one")
        async with LogMirror(source, target, "orders") as mirror:
            await mirror.begin()
            await mirror.step()
        await promote(target, "orders")
        async with target.log("orders").lead() as leader:
            async with LogMirror(source, target, "orders") as again:
                with pytest.raises(LogFenced, match="was switched over: it is a log of its own"):
                    await again.begin()
            await leader.append(b"two")
        async with LogMirror(source, target, "orders") as again:
            await again.begin(drops=True)
            await again.switch_over("other")
        async with LogMirror(source, target, "orders") as again:
            with pytest.raises(LogFenced, match="was switched over"):
                await again.begin()
        assert [value for _, value in await entries(target)] == [b"one"]

    play_two(act)


def test_a_log_moves_to_one_cluster_only() -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        third = World(world.loop, 1, seed=3)
        third.store.name = "third"
        await third.start()
        await new_log(source)
        await append(source, b"one")
        third_client = await third.client()
        async with (
            LogMirror(source, target, "orders") as first,
            LogMirror(source, third_client, "orders") as second,
        ):
            await first.begin()
            await second.begin()
            await first.switch_over("other")
            with pytest.raises(LogFenced, match=r"it was moved to other\. Only that one"):
                await second.switch_over("third")
            assert is_mirror(await third_client.log("orders").manifest())
        await third.stop()

    play_two(act)


def test_what_a_lost_source_had_is_named_to_the_entry() -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        await new_log(source)
        leader = await source.log("orders").lead()
        last = await leader.append_many([b"one", b"two", b"three"])
        await mirrored(source, target)
        await leader.append_many([b"lost", b"too"])
        await leader.close()
        later = await append(source, b"in another ledger")
        await promote(target, "orders")
        with pytest.raises(LogExists, match="is no mirror"):
            await promote(target, "orders")
        await append(target, b"next")
        copied = [value for _, value in await entries(target)]
        assert copied in ([b"one", b"two", b"next"], [b"one", b"two", b"three", b"next"])
        first = len(copied) - 1
        missing = missing_in(await whole_list(source, "orders"), await whole_list(target, "orders"))
        assert [tuple(one) for one in missing] == [
            (last.ledger_id, first, 4),
            (later.ledger_id, 0, 0),
        ]
        async with LogMirror(target, source, "orders") as back:
            with pytest.raises(LogExists, match=rf"only it has {6 - first} entries .*{later.ledger_id}:0.*--drop"):
                await back.begin()
            assert not (await source.log("orders").manifest()).held  # refused, and not stopped
            await back.begin(drops=True)
            await back.step()
        await mirrored(target, source)
        assert await entries(source) == await entries(target)
        async with source.open(later.ledger_id) as reader:
            assert [entry.payload async for entry in reader.read()] == [b"in another ledger"]

    play_two(act)


def test_entries_that_were_acknowledged_and_not_announced_are_named_too() -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        await new_log(source)
        async with source.log("orders").lead() as leader:
            last = await leader.append_many([b"one", b"two", b"three"])
            await mirrored(source, target)
            await promote(target, "orders")
            await leader.append_many([b"lost", b"too"])
            own = await whole_list(source, "orders", with_unconfirmed=True)
            assert (await whole_list(source, "orders")).extents[-1].last in (2, 3)  # not announced yet
            [missing] = missing_in(own, await whole_list(target, "orders"))
            assert (missing.ledger_id, missing.last) == (last.ledger_id, 4)
            async with LogMirror(target, source, "orders") as back:
                with pytest.raises(LogExists, match=r"only it has .* entries"):
                    await back.begin()
            assert not (await source.log("orders").manifest()).held  # refused, and not stopped

    play_two(act)


def test_a_bookie_of_a_lost_source_that_stays_away_hides_no_loss_and_keeps_no_log_from_coming_back() -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        await source.log("orders").create(ensemble=3, ack_quorum=2)
        async with source.log("orders").lead() as leader:
            last = await leader.append_many([b"one", b"two", b"three"])
            await mirrored(source, target)
            await promote(target, "orders")
            await leader.append_many([b"lost", b"too"])
            first, second, _ = (await source.metadata(last.ledger_id)).last_ensemble
            await world.take_down(first)
            own = await whole_list(source, "orders", with_unconfirmed=True)
            assert own.extents[-1].last == 4
            async with LogMirror(target, source, "orders") as back:
                with pytest.raises(LogExists, match=r"only it has .* entries"):
                    await back.begin()
            await world.take_down(second)
            with pytest.raises(ReadFailed):  # one cannot know whether the others have another entry
                await whole_list(source, "orders", with_unconfirmed=True)
            await world.listen(second)
            async with LogMirror(target, source, "orders") as back:
                await back.begin(drops=True)

    play_two(act, bookie_count=4)


def test_a_mirror_that_runs_while_it_is_released_ends() -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        await new_log(source)
        async with source.log("orders").lead() as leader, LogMirror(source, target, "orders") as mirror:
            await mirror.begin()
            await leader.append_many([b"one", b"two"])
            await mirror.step()
            await promote(target, "orders")
            await leader.append_many([b"three", b"four"])
            mirror._due_s = 0.0
            with pytest.raises(LogFenced, match="was switched over"):
                await mirror.step()
        await append(target, b"own")
        assert [value for _, value in await entries(target)][-1] == b"own"

    play_two(act)


def test_numbers_of_writers_are_known_after_the_switch_over() -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        await new_log(source, record_format="envelope")
        async with source.log("orders").lead() as leader:
            writer = await source.log("orders").sequenced(leader)
            await writer.append("shop", 1, [Record(b"one"), Record(b"two")])
        async with LogMirror(source, target, "orders") as mirror:
            await mirror.begin()
            await mirror.switch_over("other")
        async with target.log("orders").lead() as leader:
            writer = await target.log("orders").sequenced(leader)
            appended = await writer.append("shop", 2, [Record(b"two"), Record(b"three")])
            assert appended.repeated == 1
        assert len(await entries(target)) == 3

    play_two(act)


async def lose(world: World) -> None:
    for name in list(world.bookies):
        await world.take_down(name)


async def repeated(client: Client, number: int, text: bytes) -> int:
    """Append an entry of writer shop; return how many were there before."""
    async with client.log("orders").lead() as leader:
        return (await (await client.log("orders").sequenced(leader)).append("shop", number, [Record(text)])).repeated


@pytest.mark.parametrize("is_announced", [False, True])
def test_a_mirror_knows_no_number_of_an_entry_that_it_never_got(is_announced: bool) -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        await new_log(source, record_format="envelope")
        for bookie in world.bookies.values():  # An entry is announced by the next one only.
            bookie.intercept = lambda request: [] if isinstance(request, WriteLacRequest) else None
        leader = await source.log("orders").lead()
        writer = await source.log("orders").sequenced(leader)
        await writer.append("shop", 1, [Record(b"one")])
        async with LogMirror(source, target, "orders") as mirror:
            await mirror.begin()
            await mirror.step()
            await asyncio.sleep(mirroring.SAVE_S)
            await writer.append("shop", 2, [Record(b"two")])
            await writer.save()
            await mirror.step()  # is due
            if is_announced:
                await asyncio.sleep(mirroring.SAVE_S)
                await writer.append("shop", 3, [Record(b"three")])
                await writer.save()
                await mirror.step()  # puts the numbers of the step before
            await lose(world)
        await promote(target, "orders")
        assert await repeated(target, 1, b"one") == 1
        assert await repeated(target, 2, b"two") == is_announced
        assert await repeated(target, 3, b"three") == 0
        assert [parse_record(entry).value for _, entry in await entries(target)] == [b"one", b"two", b"three"]
        await leader.abandon()

    play_two(act)


def test_a_mirror_that_got_no_numbers_reads_them_in_the_log() -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        await new_log(source, record_format="envelope")
        async with LogMirror(source, target, "orders") as mirror:
            await mirror.begin()
            await mirror.step()
            for number in (1, 2):
                assert await repeated(source, number, b"%d" % number) == 0
            await mirror.step()  # is not due
            await lose(world)
        await promote(target, "orders")
        assert [await repeated(target, number, b"%d" % number) for number in (1, 2, 3)] == [1, 1, 0]

    play_two(act)


def test_a_former_source_forgets_the_numbers_of_what_it_drops() -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        await new_log(source, record_format="envelope")
        await append(source, b"without a number")
        await mirrored(source, target)
        await repeated(source, 1, b"lost")
        await promote(target, "orders")
        await append(target, b"own")
        async with LogMirror(target, source, "orders") as back:
            await back.begin(drops=True)
            await back.step()
        await lose(other)
        await promote(source, "orders")
        assert [await repeated(source, 1, b"lost") for _ in range(2)] == [0, 1]

    play_two(act)


def test_a_bookie_of_the_target_is_replaced() -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        await new_log(source)
        async with source.log("orders").lead() as leader, LogMirror(source, target, "orders") as mirror:
            await mirror.begin()
            await leader.append_many([b"one", b"two"])
            await mirror.step()
            [ledger_id] = (await target.log("orders").manifest()).ledger_ids
            [bookie] = (await target.metadata(ledger_id)).last_ensemble
            await other.take_down(bookie)
            await leader.append_many([b"three", b"four"])
            await leader.close()
            await mirror.step()
            fragments = (await target.metadata(ledger_id)).ensembles
            assert fragments[-1][1] != (bookie,)

    play_two(act, bookie_count=2)


def test_logs_that_cannot_be_mirrored_are_refused() -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        with pytest.raises(LogNotFound):
            await LogMirror(source, target, "orders").begin()
        await new_log(source)
        with pytest.raises(InvalidArgument, match="the same cluster"):
            await LogMirror(source, source, "orders").begin()
        await new_log(target)
        with pytest.raises(LogExists, match="another log of this name"):
            await LogMirror(source, target, "orders").begin()
        await target.log("orders").delete()
        async with target.create(ensemble=1, ledger_id=0) as writer:
            await writer.append(b"its own")
        await append(source, b"one")
        async with LogMirror(source, target, "orders") as mirror:
            await mirror.begin()
            with pytest.raises(LedgerExists, match="creates no ledgers of its own"):
                await mirror.step()
        with pytest.raises(LogExists, match="mirror that one, or switch over"):
            await LogMirror(target, source, "orders").begin()

    play_two(act)


def test_a_copy_that_was_ended_by_others_is_copied_again_when_it_was_deleted() -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        await new_log(source)
        async with source.log("orders").lead() as leader:
            await leader.append_many([b"one", b"two"])
            await mirrored(source, target)
            [ledger_id] = (await target.log("orders").manifest()).ledger_ids
            await target.administration().recover(ledger_id)
            await leader.append_many([b"three", b"four"])
        async with LogMirror(source, target, "orders") as mirror:
            await mirror.begin()
            with pytest.raises(LogError, match=f"ledger {ledger_id} of the mirror was ended after entry"):
                await mirror.step()
            await target.delete(ledger_id)
            await mirror.close()
            await mirror.step()
        assert await entries(target) == await entries(source)

    play_two(act)


def test_a_mirror_without_its_last_ledger_continues_when_the_source_is_lost() -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        await new_log(source)
        first = await append(source, b"kept")
        async with source.log("orders").lead() as leader:
            last = await leader.append_many([b"one", b"two"])
            await mirrored(source, target)
            await target.administration().recover(last.ledger_id)
            await target.delete(last.ledger_id)
        released = await promote(target, "orders")
        assert end_of(released) == Position(last.ledger_id, 0)
        await append(target, b"next")
        assert [value for _, value in await entries(target)] == [b"kept", b"next"]
        missing = missing_in(await whole_list(source, "orders"), await whole_list(target, "orders"))
        assert [tuple(one) for one in missing] == [(last.ledger_id, 0, 1)]
        assert first.ledger_id != last.ledger_id
        async with LogMirror(target, source, "orders") as back:
            await back.begin(drops=True)
            await back.step()
        await mirrored(target, source)
        assert await entries(source) == await entries(target)

    play_two(act)


def test_a_lost_last_ledger_gets_the_password_of_its_log() -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        log = source.log("orders", password=b"secret")
        await log.create(ensemble=1)
        async with log.lead() as leader:
            await leader.append(b"kept")
        async with log.lead() as leader:
            last = await leader.append(b"one")
            await mirrored(source, target)
            await target.administration().recover(last.ledger_id)
            await target.delete(last.ledger_id)
        await promote(target, "orders")
        copy = target.log("orders", password=b"secret")
        async with copy.lead() as leader:
            await leader.append(b"next")
        async with copy.open() as reader:
            assert [entry.payload async for entry in reader.read()] == [b"kept", b"next"]

    play_two(act)


@pytest.mark.parametrize("is_due", [False, True])
def test_a_copy_that_others_ended_under_a_running_mirror_is_not_taken_for_whole(is_due: bool) -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        await new_log(source)
        async with LogMirror(source, target, "orders") as mirror, source.log("orders").lead() as leader:
            await mirror.begin()
            await leader.append_many([b"one", b"two"])
            await mirror.step()
            [ledger_id] = (await target.log("orders").manifest()).ledger_ids
            await target.administration().recover(ledger_id)
            await leader.append_many([b"three", b"four"])
            if not is_due:
                await leader.close()
            mirror._due_s = 0.0 if is_due else mirror._due_s + 100
            with pytest.raises(LogError, match=f"ledger {ledger_id} of the mirror was ended after entry"):
                await mirror.step()
            await target.delete(ledger_id)
            await mirror.close()
            await mirror.step()
            await leader.close()
            await mirror.step()
        assert await entries(target) == await entries(source)

    play_two(act)


def test_a_deleted_source_leaves_its_mirror() -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        await new_log(source)
        await append(source, b"one")
        async with LogMirror(source, target, "orders") as mirror:
            await mirror.begin()
            await mirror.step()
            await source.log("orders").delete()
            with pytest.raises(LogNotFound):
                await mirror.step()
        assert [value for _, value in await entries(target)] == [b"one"]

    play_two(act)


def test_ranges_are_text() -> None:
    from bookies.protocol.log.migration import MissingRange

    assert ranges_text([MissingRange(5, 2, 2)]) == "1 entry (5:2 to 5:2)"
    assert ranges_text([MissingRange(5, 0, 9)] * 21).startswith("210 entries (5:0 to 5:9, ")
    assert ranges_text([MissingRange(5, 0, 9)] * 21).endswith(", ...)")


def test_a_mirror_that_begins_again_keeps_the_part_of_a_ledger_that_the_source_has_replaced() -> None:
    """Its readers wait for the rest instead of going on behind it."""

    async def act(world: World, other: World, source: Client, target: Client) -> None:
        await new_log(source)
        async with source.log("orders").lead() as leader:
            for number in range(4):
                await leader.append(b"%d" % number)
            await mirrored(source, target)
        before = await entries(target)
        await append(source, b"next")
        assert (await source.log("orders").roll_up()).merged == 2
        async with target.log("orders").open() as reader, LogMirror(source, target, "orders") as again:
            tail = reader.tail(from_beginning=True)
            found = [row.position for row in [await anext(tail) for _ in before]]
            waiting = asyncio.ensure_future(anext(tail))
            await asyncio.sleep(1)
            await again.begin()
            assert await entries(target) == before
            await asyncio.sleep(30)
            await again.step()
            whole = await entries(source)
            found += [row.position for row in [await waiting, *[await anext(tail) for _ in whole[len(found) + 1 :]]]]
            assert found == [position for position, _ in whole]
            assert await entries(target) == whole
            assert 0 < len(before) < 4

    play_two(act)


async def lived(source: Client, target: Client, rng: Random) -> LogMirror:
    """Appends, leaders, rolls, truncations, compactions, roll-ups, and processes of the mirror that stop anywhere."""
    await new_log(source, record_format="envelope", compaction="key")
    log = source.log("orders")
    mirror = LogMirror(source, target, "orders")
    await mirror.begin()
    leader: Any = None
    for number in range(60):
        choice = rng.choice(["append", "append", "step", "step", "crash", "truncate", "compact", "roll-up"])
        if choice == "append":
            records = [Record(b"%d-%d" % (number, each), key=b"%d" % rng.randrange(4)) for each in range(3)]
            if leader is None or rng.random() < 0.2:  # Another leader takes over.
                leader = await log.lead(roll_size=rng.choice([200, 1 << 20]))
            last = await leader.append_many(records)
            if rng.random() < 0.3:
                await log.move_cursor("web", last)
        elif choice == "step":
            mirror._due_s = rng.choice([0.0, mirror._due_s])
            await mirror.step()
        elif choice == "crash":
            if rng.random() < 0.5:
                await task_stopped(mirror.step(), rng.randrange(1, 60))
            await mirror.close()
            mirror = LogMirror(source, target, "orders")
            await mirror.begin()
        elif choice == "truncate" and (listed := await entries(source)):
            await log.truncate(rng.choice(listed[: len(listed) // 2 + 1])[0], force=True)
        elif choice == "compact":
            await log.compact()
        elif choice == "roll-up":
            await log.roll_up(below=rng.choice([500, 1 << 20]))
    return mirror


async def ledger_ids(client: Client) -> set[int]:
    return {record.ledger_id async for record in client.ledgers()}


@pytest.mark.parametrize("seed", range(8))
def test_a_mirror_follows_whatever_happens_to_the_log(seed: int) -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        mirror = await lived(source, target, Random(seed))
        await mirror.switch_over("other")
        assert await entries(target) == await entries(source)
        here, there = await source.log("orders").manifest(), await target.log("orders").manifest()
        assert [extent.seq for extent in there.extents] == [extent.seq for extent in here.extents]
        assert await source.log("orders").cursors() == await target.log("orders").cursors()
        assert await ledger_ids(target) == {*there.storages}
        await append(target, b"next")

    play_two(act)


@pytest.mark.parametrize("seed", range(8))
def test_a_source_that_is_lost_at_any_moment_is_compared_to_the_entry(seed: int) -> None:
    async def act(world: World, other: World, source: Client, target: Client) -> None:
        mirror = await lived(source, target, Random(seed))
        await mirror.close()
        await promote(target, "orders")
        there = {position for position, _ in await entries(target)}
        missing = missing_in(await whole_list(source, "orders"), await whole_list(target, "orders"))
        lost = {position for position, _ in await entries(source)} - there
        named = {Position(one.ledger_id, entry_id) for one in missing for entry_id in range(one.first, one.last + 1)}
        assert lost <= named
        assert not named & there
        await append(target, b"own")
        async with LogMirror(target, source, "orders") as back:
            await back.begin(drops=True)
            await back.switch_over("world")
        assert await entries(source) == await entries(target)
        await append(source, b"here again")

    play_two(act)


async def task_stopped(coroutine: Coroutine[Any, Any, Any], turns: int) -> None:
    """Cancel it after some turns of the loop."""
    task = asyncio.ensure_future(coroutine)
    for _ in range(turns):
        await asyncio.sleep(0.0005)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
