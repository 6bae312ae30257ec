"""Appends that are safe to repeat: numbered by their producer, or conditional on the last entry of the log."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from msgspec.structs import replace
from tests.fakes.bookie import FakeBookie
from tests.fakes.logs import QUICK, Act, in_log, payloads
from tests.fakes.world import World

from bookies.client.client import Client
from bookies.client.log import Log, LogWriter
from bookies.client.log.base.log_operations import take_over
from bookies.client.log.log_writer import NO_ENTRY
from bookies.encoding.envelope import parse_record
from bookies.errors import (
    AckQuorumTimeout,
    InvalidArgument,
    LedgerClosed,
    LogError,
    LogFenced,
    MetadataError,
    SequenceGap,
    WrongExpectedLast,
)
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.interface.driver import RECORD_SIZE_MAX
from bookies.model import BookieId
from bookies.protocol.log import Position
from bookies.protocol.log.log_model import pack_manifest
from bookies.protocol.log.sequences import RUNS_MAX
from bookies.wire.messages import AddRequest, AddResponses, Request, Response, Status


def with_log(act: Act, record_format: str = "raw", **settings: object) -> None:
    in_log(act, record_format, **(QUICK | {"connect_timeout_ms": 1_000} | settings))


async def values(log: Log) -> list[bytes | None]:
    return [parse_record(payload).value for payload in await payloads(log)]


class LosingDriver(MemoryDriver):
    """Loses the reply to the first write of a log's list, after `meanwhile` was done."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def write_record(self, name: str, data: bytes, expected_version: int) -> int:
        version = await super().write_record(name, data, expected_version)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
            raise MetadataError("the reply is lost")
        return version


@pytest.mark.parametrize("is_leader", [False, True])
def test_a_leader_whose_take_over_was_answered_too_late_does_not_take_its_successor_s_epoch(is_leader: bool) -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        former = await log.lead()
        runtime = world.runtime("slow")
        driver = LosingDriver(world.store, runtime)
        await driver.open()
        slow, successors = Log(client, runtime, driver, "orders", b""), []
        parts = await slow._parts()

        async def succeed() -> None:
            successors.append(await log.lead())
            await successors[0].append(b"a", producer="w", sequence=0)

        driver.meanwhile = succeed
        if is_leader:
            with pytest.raises(LogFenced, match="another process took the log over"):
                await take_over(parts, leader=former.epoch)
            await successors[0].append(b"b", producer="w", sequence=1)
        else:
            leader = await slow.lead()
            assert leader.epoch > successors[0].epoch
            with pytest.raises(LogFenced):
                await successors[0].append(b"b", producer="w", sequence=1)
            for number, value in enumerate((b"a", b"b")):  # The first one is a repeat.
                await leader.append(value, producer="w", sequence=number)
            await leader.close()
        await (await log.lead()).close()
        assert await values(log) == [b"a", b"b"]
        await driver.close()

    with_log(act, "envelope")


# -- numbered by a producer ------------------------------------------------------------------------------------------


def test_a_numbered_append_is_stored_once_by_whichever_leader() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            first = await writer.append(b"a", producer="p1", sequence=17)
            assert await writer.append(b"a", producer="p1", sequence=17, timeout=60) == first
            last = await writer.append_many([b"b", bytearray(b"c")], producer="p1", sequence=18)
            assert await writer.append_many([b"a", b"b", b"c"], producer="p1", sequence=17) == last
            with pytest.raises(SequenceGap):
                await writer.append(b"e", producer="p1", sequence=21)
            numbered = await log.sequenced(writer)
            assert numbered is await log.sequenced(writer)  # a leader has one state
        async with log.lead() as writer:
            assert await writer.append(b"c", producer="p1", sequence=19) == last
            results = await asyncio.gather(*(writer.append(b"d", producer="p1", sequence=20) for _ in range(5)))
            assert len(set(results)) == 1
        assert await values(log) == [b"a", b"b", b"c", b"d"]

    with_log(act, "envelope")


def test_the_position_of_an_old_number_is_forgotten() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            for number in range(2 * RUNS_MAX):
                await writer.append(b"x", producer="p1", sequence=number)
                await writer.append(b"y", producer="p2", sequence=number)  # so that runs are short
            assert await writer.append(b"x", producer="p1", sequence=0) == NO_ENTRY
        assert len(await payloads(log)) == 4 * RUNS_MAX

    with_log(act, "envelope")


def test_after_an_unknown_outcome_the_lead_is_taken_again() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            await writer.append(b"a", producer="p1", sequence=0)
            for name in ("b1", "b2"):
                await world.take_down(BookieId(name))
            with pytest.raises(AckQuorumTimeout):
                await writer.append(b"b", producer="p1", sequence=1, timeout=0.1)
            for name in ("b1", "b2"):
                await world.listen(BookieId(name))
            with pytest.raises(LogError, match="the outcome of an earlier append is unknown"):
                await writer.append(b"b", producer="p1", sequence=1)
            await writer.abandon()
        async with log.lead() as writer:
            await writer.append(b"b", producer="p1", sequence=1)
        assert await values(log) == [b"a", b"b"]

    with_log(act, "envelope")


def test_numbers_that_are_refused() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        is_raw = (await log.manifest()).record_format == "raw"
        refusal = "keeps raw values" if is_raw else "belong together"
        async with log.lead() as writer:
            for options in ({"producer": "p"}, {"sequence": 1}):
                with pytest.raises(InvalidArgument, match=refusal):
                    await writer.append(b"a", **options)  # type: ignore[arg-type]
                with pytest.raises(InvalidArgument, match=refusal):
                    await writer.append_many([b"a"], **options)  # type: ignore[arg-type]
            for options, refusal in (
                ({"sequence": 0, "expected_last": NO_ENTRY}, "give expected_last, or producer"),
                ({"sequence": -1}, "sequence=-1"),
                ({"sequence": 0, "producer": 5}, "no name of a writer"),
            ):
                with pytest.raises(InvalidArgument, match="keeps raw values" if is_raw else refusal):
                    await writer.append(b"a", **{"producer": "p"} | options)  # type: ignore[arg-type]
        assert await payloads(log) == []

    for record_format in ("raw", "envelope"):
        with_log(act, record_format)


@pytest.mark.filterwarnings("error")
def test_arguments_of_an_append_that_are_refused() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            for timeout in ("x", -1):
                with pytest.raises(InvalidArgument, match="timeout="):
                    await writer.append(b"a", timeout=timeout)  # type: ignore[arg-type]
                with pytest.raises(InvalidArgument, match="timeout="):
                    await writer.append_many([b"a"], timeout=timeout)  # type: ignore[arg-type]
            for expected in (5, (1,), "ab"):
                with pytest.raises(InvalidArgument, match="expected_last"):
                    await writer.append(b"a", expected_last=expected)  # type: ignore[arg-type]
            await writer.append(b"a", expected_last=[-1, -1])  # type: ignore[arg-type]
        gc.collect()  # A coroutine that was never awaited warns then.
        assert len(await payloads(log)) == 1

    with_log(act)
    with_log(act, "envelope")


def test_a_roll_of_a_writer_that_ends_meanwhile_fails() -> None:
    """It waits for another roll, which finds that there is a later leader."""

    async def act(world: World, client: Client, log: Log) -> None:
        writer = await log.lead()
        async with (await world.client()).log("orders").lead() as successor:
            outcomes = await asyncio.gather(writer.roll(), writer.roll(), return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [LogFenced] * 2
            await asyncio.gather(successor.roll(), successor.roll())  # the second one finds a fresh ledger
        assert len((await log.manifest()).extents) == 3
        await writer.abandon()

    with_log(act)


# -- conditional on the last entry -----------------------------------------------------------------------------------


def test_an_append_that_expects_the_last_entry() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            with pytest.raises(WrongExpectedLast, match=r"log orders is empty, and 0:0 was expected") as caught:
                await writer.append(b"x", expected_last=Position(0, 0))
            assert (caught.value.last, caught.value.retriable) == (NO_ENTRY, False)
            first = await writer.append(b"a", expected_last=NO_ENTRY)
            with pytest.raises(WrongExpectedLast, match=f"the last entry of log orders is {first}, and no entry was"):
                await writer.append(b"x", expected_last=NO_ENTRY)
            second = await writer.append(b"b", expected_last=first, timeout=60)
            with pytest.raises(WrongExpectedLast) as caught:
                await writer.append(b"x", expected_last=first)
            assert caught.value.last == second
            await writer.roll()
            third = await writer.append(b"c", expected_last=second)
            with pytest.raises(InvalidArgument):
                await writer.append(b"x", expected_last=Position(-1, 0))
            with pytest.raises(InvalidArgument):
                await writer.append(bytes(10 << 20), expected_last=third)
        async with log.lead(), log.lead() as writer:  # one that appends nothing
            fourth = await writer.append(b"d", expected_last=third)
            await writer.truncate(fourth.next)
            await writer.append(b"e", expected_last=fourth)
        with pytest.raises(LedgerClosed):
            await writer.append(b"x", expected_last=fourth)
        assert await payloads(log) == [b"e"]

    with_log(act)


def test_a_leader_that_was_replaced_unknowingly_steps_down_and_does_not_refuse() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        writer = await log.lead()
        await writer.append(b"a")
        async with log.lead() as successor:
            last = await successor.append(b"b")
            with pytest.raises(LogFenced, match="another process leads log orders, or has led it"):
                await writer.append(b"c", expected_last=last)  # the last entry indeed
        await writer.abandon()
        assert await payloads(log) == [b"a", b"b"]

    with_log(act)


def test_of_appends_that_expect_the_same_entry_one_succeeds_also_among_others() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            last = await writer.append(b"a")
            results = await asyncio.gather(
                *(writer.append(b"%d" % number, expected_last=last) for number in range(10)), return_exceptions=True
            )
            assert [type(each) for each in results] == [Position] + [WrongExpectedLast] * 9
            last = results[0]  # type: ignore[assignment]
            plain, conditional = await asyncio.gather(
                writer.append(b"b"), writer.append(b"x", expected_last=last), return_exceptions=True
            )
            assert isinstance(conditional, WrongExpectedLast)  # although the one before it was not durable yet
            conditional, plain = await asyncio.gather(
                writer.append(b"c", expected_last=plain), writer.append(b"d"), return_exceptions=True
            )
            assert isinstance(conditional, Position)
        assert await payloads(log) == [b"a", b"0", b"b", b"c", b"d"]

    with_log(act)


def test_an_append_to_a_list_that_is_full_meanwhile_has_an_unknown_outcome() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        writer = await log.lead()
        await writer.append(b"a")
        for bookie in world.bookies.values():
            bookie.intercept = lambda request: []
        task = asyncio.create_task(writer.append(b"b"))
        await failed(writer)
        manifest = await log.manifest()
        note = "x" * (RECORD_SIZE_MAX - len(pack_manifest(replace(manifest, extra={"note": ""}))))
        data, version = await client._driver.read_record("logs/orders")
        await client._driver.write_record(
            "logs/orders", pack_manifest(replace(manifest, extra={"note": note})), version
        )
        for bookie in world.bookies.values():
            bookie.intercept = lambda request: None
        with pytest.raises(LogError, match=r"accepts at most 1,032,192: the entry may or may not be in the log"):
            await task
        with pytest.raises(LogError, match="nothing was sent: log orders cannot be continued"):
            await writer.append(b"c")
        await writer.abandon()
        _, version = await client._driver.read_record("logs/orders")
        await client._driver.write_record("logs/orders", data, version)
        async with log.lead() as writer:
            await writer.append(b"b")
        assert await payloads(log) == [b"a", b"b"]

    with_log(act)


def test_after_a_failure_of_the_ledger_the_outcome_decides() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            last = await writer.append(b"a")
            for bookie in world.bookies.values():
                bookie.intercept = lambda request: []
            tasks = [
                asyncio.create_task(writer.append(b"b", expected_last=last)),
                asyncio.create_task(writer.append(b"c")),
            ]
            await failed(writer)
            late = asyncio.create_task(writer.append(b"x", expected_last=last))
            await asyncio.sleep(0.01)
            assert not late.done()  # it waits for the outcome of the others
            for bookie in world.bookies.values():
                bookie.intercept = lambda request: None
            positions = await asyncio.gather(*tasks)
            with pytest.raises(WrongExpectedLast):
                await late
            assert writer.epoch > 1
            await writer.append(b"d", expected_last=positions[1])
        assert await payloads(log) == [b"a", b"b", b"c", b"d"]

    with_log(act)


async def failed(writer: LogWriter) -> None:
    """Wait until the ledger of a writer has failed."""
    try:
        while writer._ledger.last_pushed() >= 0:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    except LedgerClosed:
        pass


def test_an_append_that_waits_for_memory_compares_afterwards() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async with log.lead() as writer:
            last = await writer.append(b"a")
            large = [asyncio.create_task(writer.append(bytes(20_000))) for _ in range(8)]
            conditional = asyncio.create_task(writer.append(bytes(20_000), expected_last=last))
            with pytest.raises(WrongExpectedLast):
                await conditional
            positions = await asyncio.gather(*large)
            await writer._ledger.wait_writable()
            filling = asyncio.create_task(writer.append_many([bytes(20_000)] * 2))
            await asyncio.sleep(0)
            expected = Position(positions[-1].ledger_id, positions[-1].entry_id + 2)
            await writer.append(bytes(30_000), expected_last=expected)
            await filling
        assert len(await payloads(log)) == 12

    with_log(act, memory_limit=64 << 10)


def test_appends_that_wait_for_memory_in_a_failed_ledger_keep_their_order() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        writer = await log.lead()
        first, holder = writer.ledger_id, await client.create()
        broken = True

        def answers(bookie: FakeBookie, request: Request) -> list[Response] | None:
            if not broken or not isinstance(request, AddRequest):
                return None
            responses: list[Response] = []
            for part in request.adds.parts():
                ((ledger_id, entry_ids, _),) = part.stretches()
                if ledger_id == first and not request.is_recovery:
                    failure = AddResponses(request.version, Status.IO_ERROR, ledger_id, entry_ids, request.txn_ids)
                    responses.append(failure)
                elif ledger_id != holder.ledger_id:
                    responses.append(bookie._add(request, part))
            return responses

        for bookie in world.bookies.values():
            bookie.intercept = partial(answers, bookie)
            bookie.delay_s = lambda request: 0.05
        holding = asyncio.create_task(holder.append(bytes(50_000)))  # other ledgers share its client's memory
        await asyncio.sleep(0)
        appends = [asyncio.create_task(writer.append(b"0"))]
        for number in range(1, 30):
            await asyncio.sleep(0 if number > 1 else 0.01)
            value = b"%d" % number + bytes(20_000)
            appending = writer.append(value) if number % 3 else writer.append_many([value])
            appends.append(asyncio.create_task(appending))
        while writer.ledger_id == first:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        last = asyncio.create_task(writer.append(b"30" + bytes(20_000)))
        await asyncio.sleep(0.1)
        assert not any(append.done() for append in appends[1:])
        broken = False
        await holder.close()  # Its memory becomes free.
        positions = await asyncio.gather(*appends, last)
        assert positions == sorted(positions)
        await asyncio.gather(holding, return_exceptions=True)
        await writer.close()
        assert [payload.rstrip(b"\0") for payload in await payloads(log)] == [b"%d" % number for number in range(31)]

    with_log(act, memory_limit=64 << 10, add_timeout_ms=30_000)
