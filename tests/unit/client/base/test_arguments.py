"""Arguments that cannot be: refused at once, by name, with what would do; and time-outs that say what took too long."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes.world import World, in_world

import bookies
from bookies.client.base import arguments
from bookies.client.base.arguments import TimeLimit, milliseconds, moment, whole_number
from bookies.client.connect import connect
from bookies.config import BookieConfig, ClientConfig, validate
from bookies.errors import BookKeeperError, ConfigError, InvalidArgument, LedgerNotFound, NotEnoughBookies
from bookies.protocol.log import Position

NO_NUMBERS: list[Any] = ["7", "", 7.0, 7.5, True, False, b"7", [7], object()]


class Index:
    """As numpy's integers."""

    def __index__(self) -> int:
        return 3


def test_moments_and_durations() -> None:
    assert moment("t", 1.5) == 1500
    assert [moment("t", ms / 1000) for ms in (1001, 1_096_758_501_409)] == [1001, 1_096_758_501_409]
    assert moment("t", datetime.datetime(2026, 11, 27, 10, tzinfo=datetime.UTC)) == 1_795_773_600_000
    with pytest.raises(InvalidArgument, match="t=2026-11-27 00:00:00: a time without a time zone is ambiguous"):
        moment("t", datetime.datetime(2026, 11, 27))
    assert (milliseconds("age", None), milliseconds("age", 0.0001), milliseconds("age", 2)) == (None, 1, 2000)
    for wrong in ("7", True, -1, float("nan"), float("inf"), 1e300):
        with pytest.raises(InvalidArgument, match="t="):
            moment("t", wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="age="):
            milliseconds("age", wrong)  # type: ignore[arg-type]


def test_whole_numbers() -> None:
    assert whole_number("n", 0) == 0
    assert whole_number("n", Index()) == 3
    assert type(whole_number("n", Index())) is int
    assert whole_number("n", (1 << 63) - 1) == (1 << 63) - 1
    assert whole_number("n", -5, None) == -5
    for wrong in (*NO_NUMBERS, None):
        with pytest.raises(InvalidArgument, match=r"n=.*must be a whole number, not"):
            whole_number("n", wrong)
    with pytest.raises(InvalidArgument, match="n=-1: must be 0 or more"):
        whole_number("n", -1)
    with pytest.raises(InvalidArgument, match="n=1: must be 2 or more"):
        whole_number("n", 1, 2)
    for high in (5, arguments.NUMBER_MAX):
        with pytest.raises(InvalidArgument, match="must be at most"):
            whole_number("n", high + 1, 0, high)


@pytest.mark.parametrize("wrong", NO_NUMBERS)
@in_world()
async def test_no_id_is_anything_but_a_whole_number(world: World, wrong: Any) -> None:
    store = await world.client()
    tools = store.administration()
    async with store.create() as ledger, store.create(advanced=True) as advanced:
        await ledger.append(b"x")
        async with store.open(ledger.ledger_id) as reader:
            calls: list[Callable[[], Any]] = [
                lambda: store.create(ledger_id=wrong),
                lambda: store.create(ensemble=wrong),
                lambda: store.create(write_quorum=wrong),
                lambda: store.create(ack_quorum=wrong),
                lambda: store.open(wrong),
                lambda: store.recover(wrong),
                lambda: store.delete(wrong),
                lambda: store.metadata(wrong),
                lambda: store.is_sealed(wrong),
                lambda: store.list_entries(bookies.BookieId("b1"), wrong),
                lambda: store.log("l").create(ensemble=wrong),
                lambda: store.log("l").lead(roll_size=wrong),
                lambda: store.log("l").truncate(Position(wrong, 0)),
                lambda: store.log("l").truncate(Position(0, wrong)),
                lambda: reader.read(wrong),
                lambda: reader.read(0, wrong),
                lambda: reader.read_batches(wrong),
                lambda: reader.read_arrow(wrong),
                lambda: reader.read_entry(wrong),
                lambda: reader.read_batch(wrong),
                lambda: reader.read_batch(0, count_max=wrong),
                lambda: reader.read_batch(0, size_max=wrong),
                lambda: reader.read_unconfirmed(wrong, 1),
                lambda: reader.read_unconfirmed(0, wrong),
                lambda: reader.tail(wrong),
                lambda: reader.read_last_add_confirmed_and_entry(wrong),
                lambda: advanced.write(wrong, b"x"),
                lambda: tools.open(wrong),
                lambda: tools.recover(wrong),
                lambda: tools.read_stored(wrong),
                lambda: tools.read_stored(0, wrong),
                lambda: tools.read_stored(0, 0, wrong),
                lambda: tools.check_ledger(wrong),
                lambda: tools.list_entries(bookies.BookieId("b1"), wrong),
                lambda: tools.missing_entries(bookies.BookieId("b1"), wrong),
                lambda: tools.are_entries_stored(wrong, bookies.BookieId("b1")),
                lambda: tools.repair_ledger(wrong),
                lambda: tools.recover_bookies([bookies.BookieId("b1")], ledger_id=wrong),
            ]
            for number, call in enumerate(calls):
                with pytest.raises(InvalidArgument, match=r"must be a whole number|not a Position"):  # noqa: PT012
                    result = call()
                    await result
                    pytest.fail(f"call {number} took {wrong!r}")


@in_world()
async def test_ids_out_of_range_are_of_no_ledger(world: World) -> None:
    store = await world.client()
    for call in (store.open, store.recover, store.metadata, store.administration().open):
        with pytest.raises(LedgerNotFound):
            await call(-1)  # type: ignore[operator]
        with pytest.raises(InvalidArgument, match="at most"):
            await call(1 << 63)  # type: ignore[operator]


@in_world()
async def test_switches_times_and_shares(world: World) -> None:
    store = await world.client()
    tools = store.administration()
    async with store.create() as ledger:
        await ledger.append(b"x")
        b1 = ledger.metadata.last_ensemble[0]
        for text in ("no", "", 1, None):
            for switched in (
                lambda text=text: store.allow_ensemble_changes(text),
                lambda text=text: ledger.allow_ensemble_changes(text),
                lambda text=text: store.create(advanced=text),
                lambda text=text: store.create(deferred_sync=text),
            ):
                with pytest.raises(InvalidArgument, match="must be True or False"):
                    switched()
        for timeout in ("1", -1, -0.5, True, float("nan")):
            for timed in (
                lambda timeout=timeout: store.open(0, timeout=timeout),
                lambda timeout=timeout: store.metadata(0, timeout=timeout),
                lambda timeout=timeout: ledger.append(b"x", timeout=timeout),
                lambda timeout=timeout: ledger.seal(timeout=timeout),
                lambda timeout=timeout: ledger.force(timeout=timeout),
                lambda timeout=timeout: tools.check_ledger(0, timeout=timeout),
            ):
                with pytest.raises(InvalidArgument, match=r"timeout=.*: must be a number of seconds"):
                    await timed()
        for percentage in (-1, 101, "5", True, float("nan")):
            with pytest.raises(InvalidArgument, match="percentage="):
                await tools.check_ledger(0, percentage=percentage)  # type: ignore[arg-type]
        for pace in (0, -1, "fast", True):
            with pytest.raises(InvalidArgument, match=r"bytes_per_s=.*above 0"):
                await tools.repair_ledger(0, bytes_per_s=pace)  # type: ignore[arg-type]
        for bookie in ("", None, 5):
            with pytest.raises(InvalidArgument, match="must be a bookie id"):
                await store.bookie_space(bookie)  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument, match="must be a bookie id"):
                await tools.ledgers_on([b1, bookie])  # type: ignore[list-item]
        for names in (b1, None):
            with pytest.raises(InvalidArgument, match="must be a list of bookies"):
                await tools.ledgers_on(names)  # type: ignore[arg-type]
        for position in (3, "34", None, (1,), (1, 2, 3)):
            with pytest.raises(InvalidArgument, match="must be a Position"):
                await store.log("l").truncate(position)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="wait='2'"):
            async with store.open(ledger.ledger_id) as reader:
                await reader.read_last_add_confirmed_and_entry(0, wait="2")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="digest=3: must be one of"):
            store.create(digest=3)  # type: ignore[arg-type]


def test_what_connect_refuses() -> None:
    for uri in (None, 5, b"memory:", ["memory:"]):
        with pytest.raises(InvalidArgument, match=r"uri=.*must be text"):
            connect(uri)  # type: ignore[arg-type]
    for config in (BookieConfig(), {"wire": "v3"}, "v3"):
        with pytest.raises(InvalidArgument, match=r"config=.*must be a ClientConfig"):
            connect("memory:", config=config)  # type: ignore[arg-type]


def test_a_hedge_cannot_begin_after_its_end() -> None:
    with pytest.raises(ConfigError, match="hedge_delay_min_ms = 300 is more than hedge_delay_max_ms = 250"):
        validate(ClientConfig(hedge_delay_min_ms=300))
    assert validate(ClientConfig(hedge_delay_min_ms=250))


@pytest.mark.parametrize(
    ("domains", "live", "quorums", "may"),
    [
        ("b1=r1,b2=r1,b3=r2", [1, 2], (2, 2, 1), False),
        ("b1=r1,b2=r1,b3=r2", [1, 2, 3], (2, 2, 1), True),
        ("b1=r1,b2=r1,b3=r2", [1, 2, 3], (3, 2, 2), False),  # some entry would be on b1 and b2 only
        ("b1=r1,b2=r1,b3=r2,b4=r3,b5=r1", [1, 2, 3, 4], (4, 2, 2), True),  # in some orders
        ("b1=r1,b2=r1,b3=r2", [1], (1, 1, 1), True),  # as many as there are replicas
    ],
)
@in_world(5)
async def test_an_ensemble_spans_enough_fault_domains(
    world: World, domains: str, live: list[int], quorums: tuple[int, int, int], may: bool
) -> None:
    """Otherwise nothing could ever be confirmed: better said at once than after the add quorum timeout."""
    for number, driver in enumerate(world._drivers, 1):
        if number not in live:
            await driver.unregister(bookies.BookieId(f"b{number}"))
    store = await world.client(fault_domains=domains, fault_domains_min=2)
    ensemble, write_quorum, ack_quorum = quorums
    for _ in range(5):
        creating = store.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)
        if not may:
            with pytest.raises(NotEnoughBookies, match=r"2 needs 2 racks.* in /r1.*start bookies"):
                await creating
            continue
        async with creating as ledger:
            await ledger.append_many([b"x"] * 8, timeout=1)


# -- time-outs -----------------------------------------------------------------------------------------------------


@in_world()
async def test_a_timeout_says_what_was_not_done_in_how_long(world: World) -> None:
    store = await world.client()
    writer = await store.create()
    await writer.append(b"x")
    reader = await store.open(writer.ledger_id)
    for bookie in world.bookies:
        await world.take_down(bookie)
    begun = world.loop.time()
    with pytest.raises(TimeoutError, match=r"^the next step of an iteration: not done within 0.5 s$"):
        await anext(reader.tail(1, timeout=0.5))
    assert world.loop.time() - begun == pytest.approx(0.5)
    for call, message in [
        (lambda: reader.read_entry(0, timeout=0), "read ledger 0, entry 0: not done within 0 s"),
        (lambda: reader.read_last_add_confirmed(timeout=0), "read ledger 0, its last add confirmed: not done"),
        (lambda: store.recover(0, timeout=0), "recover ledger 0: not done within 0 s"),
        (lambda: store.metadata(0, timeout=0), "metadata of ledger 0: not done within 0 s"),
        (lambda: store.administration().check_ledger(0, timeout=0), "check ledger 0: not done within 0 s"),
    ]:
        with pytest.raises(TimeoutError, match=message):
            await call()  # type: ignore[no-untyped-call]
    await reader.close()
    await writer.close()


def test_time_limits_nest() -> None:
    async def wait(inner: float | None, outer: float | None) -> None:
        async with TimeLimit(outer, "outer"), TimeLimit(inner, "inner"):
            await asyncio.sleep(3600)

    for limits, message in [((0.0, 5.0), "^inner: not"), ((5.0, 0.0), "^outer: not"), ((None, 0.0), "^outer: not")]:
        with pytest.raises(TimeoutError, match=message):
            asyncio.run(wait(*limits))

    async def own() -> None:
        async with TimeLimit(5, "outer"):
            raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match=r"^mine$"):
        asyncio.run(own())


# -- messages ------------------------------------------------------------------------------------------------------


def test_an_error_says_once_what_it_is_about() -> None:
    inner = BookKeeperError("no answer", ledger_id=13, entry_id=4, bookie="b1:3181")
    assert str(inner) == "no answer (ledger 13, entry 4, bookie b1:3181)"
    assert str(BookKeeperError(f"the writer has ended: {inner}", ledger_id=13)) == f"the writer has ended: {inner}"
    assert str(BookKeeperError(f"it failed: {inner}", ledger_id=1)).endswith("bookie b1:3181) (ledger 1)")
    assert str(BookKeeperError("ledger 7: gone", ledger_id=7)) == "ledger 7: gone"
    assert str(BookKeeperError("ledger 70 is next", ledger_id=7)) == "ledger 70 is next (ledger 7)"


@in_world()
async def test_two_tasks_on_one_iteration(world: World) -> None:
    store = await world.client()
    async with store.create() as writer:
        await writer.append_many([b"%d" % number for number in range(10)])
    reader = await store.open(writer.ledger_id)
    entries = reader.read()
    first = asyncio.create_task(anext(entries))  # type: ignore[arg-type]
    second = asyncio.create_task(anext(entries))  # type: ignore[arg-type]
    await asyncio.wait([first, second])
    assert first.result().id == 0
    with pytest.raises(InvalidArgument, match="another task waits for this iteration"):
        second.result()
    assert [entry.id async for entry in entries] == list(range(1, 10)), "the iteration goes on all the same"
    await reader.close()


@in_world()
async def test_slices_are_of_what_a_batch_has(world: World) -> None:
    store = await world.client()
    async with store.create() as writer:
        await writer.append_many([b"%d" % number for number in range(10)])
    async with store.open(writer.ledger_id) as reader:
        batch = (await reader.read_batch(2)).slice(3, 7)
    assert [entry.payload for entry in batch.slice(4, 5).entries()] == [b"4", b"5"]
    assert batch.slice(3, 7).entry_ids == range(3, 8)
    for first, last in [(2, 5), (3, 8), (5, 4), (-1, 3), (8, 9), (7, 6)]:
        with pytest.raises(InvalidArgument, match=rf"slice\({first}, {last}\): .* 3 to 7"):
            batch.slice(first, last)
