"""Learning the last add confirmed: certain and quick reads, waits for an entry, lost watches, digests and passwords."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.fakes.world import World, in_world

from bookies.client.client import Client
from bookies.client.read import LedgerReader
from bookies.client.write import LedgerWriter
from bookies.errors import (
    BookieTimeout,
    BookieUnreachable,
    BookKeeperError,
    ClientClosed,
    DigestMismatch,
    EntryNotFound,
    InvalidArgument,
    LedgerClosed,
    LedgerNotFound,
    MetadataError,
    RecoveryFailed,
    Status,
    Unauthorized,
)
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.shared.nodes import Table
from bookies.model import BookieId
from bookies.protocol.ledger.ledger import in_recovery
from bookies.wire.messages import ReadLacRequest, ReadLacResponse, ReadRequest, ReadResponse, Request, Response

B1, B2, B3 = BookieId("b1"), BookieId("b2"), BookieId("b3")


async def written(store: Client, count: int, **options: Any) -> tuple[LedgerWriter, LedgerReader]:
    """An open ledger, written entry by entry, and a reader who opened it before."""
    writer = await store.create(**{"ensemble": 3, **options})
    reader = await store.open(writer.ledger_id)
    for number in range(count):
        await writer.append(b"%d" % number)
    return writer, reader


def polls(world: World) -> list[ReadRequest]:
    return [
        request
        for bookie in world.bookies.values()
        for request in bookie.requests
        if isinstance(request, ReadRequest) and request.previous_lac is not None
    ]


# -- asking --------------------------------------------------------------------------------------------------------


@in_world()
async def test_a_try_read_is_content_with_one_answer(world: World) -> None:
    store = await world.client(explicit_lac_interval_ms=0)
    writer, reader = await written(store, 10)
    for name in (B1, B2):
        world.bookies[name].intercept = lambda request: [] if isinstance(request, ReadRequest) else None
    begun = world.loop.time()
    assert await reader.try_read_last_add_confirmed() == 8
    assert world.loop.time() - begun < 0.5
    assert reader.last_add_confirmed == 8
    await writer.seal()
    await asyncio.sleep(10)
    assert await reader.try_read_last_add_confirmed() == 9


@in_world()
async def test_a_try_read_without_news_waits_for_everybody_and_never_goes_back(world: World) -> None:
    store = await world.client(explicit_lac_interval_ms=0, read_timeout_ms=500)
    writer, reader = await written(store, 10)
    assert await reader.read_last_add_confirmed() == 8
    for name in (B1, B2):
        world.bookies[name].ledgers.clear()  # Wiped.
    world.bookies[B3].intercept = lambda request: [] if isinstance(request, ReadRequest) else None
    assert await reader.try_read_last_add_confirmed() == 8
    await writer.close()


@in_world()
async def test_a_try_read_that_nobody_answers(world: World) -> None:
    store = await world.client(read_timeout_ms=500)
    writer, reader = await written(store, 3)
    await world.take_down(B1)
    for name in (B2, B3):
        world.bookies[name].intercept = lambda request: [] if isinstance(request, ReadRequest) else None
    with pytest.raises(RecoveryFailed, match=r"no bookie reported .*b1.*Try again") as raised:
        await reader.try_read_last_add_confirmed()
    assert raised.value.code == -10
    assert raised.value.ledger_id == writer.ledger_id
    with pytest.raises(TimeoutError):
        await reader.try_read_last_add_confirmed(timeout=0.1)
    await writer.close()


@pytest.mark.parametrize("quick", [True, False])
@in_world()
async def test_a_refusal_ends_the_question(world: World, quick: bool) -> None:
    store = await world.client()
    writer, reader = await written(store, 3)

    def refuse(request: Request) -> Sequence[Response] | None:
        if isinstance(request, ReadLacRequest):
            return [ReadLacResponse(3, request.txn_id, Status.UNAUTHORIZED, request.ledger_id)]
        if isinstance(request, ReadRequest):
            return [ReadResponse(2, request.txn_id, Status.UNAUTHORIZED, request.ledger_id, request.entry_id)]
        return None

    for bookie in world.bookies.values():
        bookie.intercept = refuse
    with pytest.raises(Unauthorized):
        await (reader.try_read_last_add_confirmed() if quick else reader.read_last_add_confirmed())
    await writer.close()


@in_world()
async def test_a_wiped_bookie_may_make_a_reader_late_but_never_take_anything_back(world: World) -> None:
    """X-51: with ack quorum = write quorum a single "no such ledger" covers the ensemble."""
    store = await world.client(explicit_lac_interval_ms=0)
    writer, reader = await written(store, 10, ack_quorum=3)
    assert await reader.read_last_add_confirmed() == 8
    for name in (B2, B3):
        world.bookies[name].delay_s = lambda request: 1.0
    world.bookies[B1].ledgers.clear()
    assert await reader.read_last_add_confirmed() == 8
    fresh = await store.open(writer.ledger_id)
    assert fresh.last_add_confirmed == -1
    await writer.close()


@in_world()
async def test_an_explicit_last_add_confirmed_counts_without_any_entry(world: World) -> None:
    """Apache's bookies then answer with an error beside the valid packet (client-protocol 3.5)."""
    store = await world.client(explicit_lac_interval_ms=100)
    writer, reader = await written(store, 5)
    await asyncio.sleep(1)
    for bookie in world.bookies.values():
        bookie.ledgers[writer.ledger_id].entries.clear()

    def apache(request: Request, answer: Any) -> Sequence[Response] | None:
        if not isinstance(request, ReadLacRequest):
            return None
        response = answer(request)
        return [ReadLacResponse(3, request.txn_id, Status.IO_ERROR, request.ledger_id, response.lac_body)]

    for bookie in world.bookies.values():
        bookie.intercept = lambda request, answer=bookie.answer: apache(request, answer)
    assert await reader.read_last_add_confirmed() == 4
    await writer.close()


@in_world()
async def test_an_idle_writer_is_read_to_its_last_entry(world: World) -> None:
    """X-61, with and without explicit last add confirmed."""
    for interval_ms, expected in ((200, 9), (0, 8)):
        store = await world.client(explicit_lac_interval_ms=interval_ms)
        writer, reader = await written(store, 10)
        await asyncio.sleep(0.5)
        assert await reader.read_last_add_confirmed() == expected
        entries = reader.tail(9)
        following = asyncio.ensure_future(anext(entries))
        await asyncio.sleep(3)
        assert following.done() == (interval_ms > 0)
        await writer.seal()
        assert (await following).id == 9


@in_world()
async def test_the_length_of_an_open_ledger_is_a_hint_and_of_a_sealed_one_certain(world: World) -> None:
    store = await world.client()
    writer, reader = await written(store, 10)
    assert reader.length == 0
    await reader.read_last_add_confirmed()
    assert 9 <= reader.length <= 10
    await writer.seal()
    await reader.read_last_add_confirmed()
    if not reader.is_sealed:
        await asyncio.sleep(5)
        await reader.read_last_add_confirmed()
    assert reader.length == 10


# -- waiting for an entry ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallel", [False, True])
@in_world()
async def test_a_wait_ends_with_the_entry(world: World, parallel: bool) -> None:
    store = await world.client(explicit_lac_interval_ms=0)
    writer, reader = await written(store, 5)
    known = await reader.read_last_add_confirmed_and_entry(2, parallel=parallel)
    assert known.entry is not None
    assert (known.entry.id, known.entry.payload) == (2, b"2")
    assert known.last_add_confirmed == 3
    waiting = asyncio.ensure_future(reader.read_last_add_confirmed_and_entry(4, wait=30, parallel=parallel))
    await asyncio.sleep(1)
    assert not waiting.done()
    await writer.append(b"5")
    found = await waiting
    assert found.entry is not None
    assert (found.last_add_confirmed, found.entry.payload) == (4, b"4")
    asked = len(polls(world))
    assert asked >= 3
    await writer.close()


@pytest.mark.parametrize("parallel", [False, True])
@in_world()
async def test_a_wait_without_news_ends_in_time(world: World, parallel: bool) -> None:
    store = await world.client(explicit_lac_interval_ms=0)
    writer, reader = await written(store, 5)
    for wait, least in ((3.0, 3.0), (0.0, 0.0)):
        begun = world.loop.time()
        found = await reader.read_last_add_confirmed_and_entry(5, wait=wait, parallel=parallel)
        assert (found.entry, reader.is_sealed) == (None, False)
        assert found.last_add_confirmed >= 3
        assert least <= world.loop.time() - begun < wait + 0.7
    with pytest.raises(TimeoutError):
        await reader.read_last_add_confirmed_and_entry(5, wait=10, timeout=0.5)
    await writer.close()


@pytest.mark.parametrize("parallel", [False, True])
@in_world()
async def test_a_wait_for_an_entry_behind_the_end_says_that_the_ledger_has_ended(world: World, parallel: bool) -> None:
    store = await world.client()
    writer, reader = await written(store, 5)
    waiting = asyncio.ensure_future(reader.read_last_add_confirmed_and_entry(5, wait=60, parallel=parallel))
    await asyncio.sleep(1)
    await writer.seal()
    found = await waiting
    assert (found.last_add_confirmed, found.entry, reader.is_sealed) == (4, None, True)
    assert world.loop.time() < 30
    before = len(polls(world))
    assert (await reader.read_last_add_confirmed_and_entry(7)).entry is None
    assert len(polls(world)) == before
    for bad in ({"entry_id": -1}, {"entry_id": 0, "wait": -1}):
        with pytest.raises(InvalidArgument):
            await reader.read_last_add_confirmed_and_entry(**bad)
    await reader.close()
    with pytest.raises(LedgerClosed):
        await reader.read_last_add_confirmed_and_entry(7)


@pytest.mark.parametrize("write_quorum", [3, 2])
@pytest.mark.parametrize("parallel", [False, True])
@in_world()
async def test_news_that_only_the_last_bookie_has_are_found(world: World, parallel: bool, write_quorum: int) -> None:
    """X-60: those asked first hold their answers back until the time is up; no false end."""
    store = await world.client(explicit_lac_interval_ms=0, read_timeout_ms=1000)
    writer, reader = await written(store, 6, write_quorum=write_quorum, ack_quorum=2)
    before = reader.last_add_confirmed
    ensemble = writer.metadata.last_ensemble
    wanted = before + 1
    for offset in (0, 1):
        name = ensemble[(wanted + offset) % 3]
        world.bookies[name].ledgers[writer.ledger_id].last_add_confirmed = before
    if write_quorum == 2:
        world.bookies[ensemble[(wanted + 2) % 3]].ledgers[writer.ledger_id].entries.pop(wanted, None)
    found = await reader.read_last_add_confirmed_and_entry(wanted, wait=4, parallel=parallel)
    assert not reader.is_sealed
    assert found.entry is not None
    assert found.entry.id == wanted
    assert world.loop.time() < 8
    await writer.close()


@in_world()
async def test_a_silent_bookie_times_out_and_the_next_brings_the_entry(world: World) -> None:
    store = await world.client(explicit_lac_interval_ms=0, read_timeout_ms=300)
    writer, reader = await written(store, 5)
    for name in (B1, B2):
        world.bookies[name].intercept = lambda request: (
            [] if isinstance(request, ReadRequest) and request.previous_lac is not None else None
        )
    waiting = asyncio.ensure_future(reader.read_last_add_confirmed_and_entry(4, wait=3))
    await asyncio.sleep(1)
    await writer.append(b"5")
    found = await waiting
    assert found.entry is not None
    assert found.entry.payload == b"4"
    assert world.loop.time() < 3
    await writer.close()


@in_world()
async def test_a_corrupt_entry_with_the_news_is_read_from_another(world: World) -> None:
    store = await world.client(explicit_lac_interval_ms=0)
    writer, reader = await written(store, 5)
    for name in (B1, B2):
        world.bookies[name].corrupt(writer.ledger_id, 4)
    waiting = asyncio.ensure_future(reader.read_last_add_confirmed_and_entry(4, wait=5))
    await asyncio.sleep(0.1)
    await writer.append(b"5")
    found = await waiting
    assert found.entry is not None
    assert found.entry.payload == b"4"
    await writer.close()


@in_world()
async def test_a_wait_of_which_every_bookie_fails_says_why(world: World) -> None:
    store = await world.client(read_timeout_ms=300)
    writer, reader = await written(store, 5)
    for name in world.bookies:
        await world.take_down(name)
    with pytest.raises((BookieUnreachable, BookieTimeout)):
        await reader.read_last_add_confirmed_and_entry(9, wait=1)
    await writer.close()


@in_world()
async def test_a_wait_for_an_entry_of_a_ledger_that_no_bookie_knows(world: World) -> None:
    store = await world.client()
    writer, reader = await written(store, 0)
    for parallel in (False, True):
        with pytest.raises(BookKeeperError) as raised:
            await reader.read_last_add_confirmed_and_entry(0, wait=1, parallel=parallel)
        assert raised.value.code in (-7, -13)
    await writer.close()


@in_world()
async def test_in_recovery_a_wait_does_not_believe_bookies(world: World) -> None:
    store = await world.client(explicit_lac_interval_ms=0)
    writer, reader = await written(store, 5)
    assert await reader.read_last_add_confirmed() == 3
    record = await store._driver.read_ledger(writer.ledger_id)
    await store._driver.write_ledger(in_recovery(record.metadata), record.version)
    await asyncio.sleep(5)
    for bookie in world.bookies.values():
        bookie.ledgers[writer.ledger_id].last_add_confirmed = 4
    found = await reader.read_last_add_confirmed_and_entry(4, wait=1.5)
    assert (found.last_add_confirmed, found.entry) == (3, None)
    recovered = await store.recover(writer.ledger_id)
    found = await reader.read_last_add_confirmed_and_entry(4, wait=5)
    assert found.entry is not None
    assert found.last_add_confirmed == recovered.last_add_confirmed == 4
    await writer.close()


# -- metadata ------------------------------------------------------------------------------------------------------


@in_world(4)
async def test_a_tail_whose_session_was_lost_reaches_the_end(world: World) -> None:
    """X-59: the writer changed the ensemble and sealed while the watch was gone."""
    store = await world.client(add_timeout_ms=300)
    writer, _ = await written(store, 5)
    other = await world.client()
    reader = await other.open(writer.ledger_id)
    tail = asyncio.ensure_future(_collect(reader))
    await asyncio.sleep(1)
    driver = other._driver
    assert isinstance(driver, MemoryDriver)
    await driver.require_session()
    ledger_watches = driver._watches._keys[Table.LEDGERS]
    for watch in [watch for watch in ledger_watches if watch.key.name == writer.ledger_id]:
        watch.cancel()  # The session takes its watches with it, as ZooKeeper's do.
    driver.expire()
    await world.take_down(writer.metadata.last_ensemble[0])
    for number in range(5, 10):
        await writer.append(b"%d" % number)
    await writer.seal()
    assert len(writer.metadata.ensembles) == 2
    assert await tail == [b"%d" % number for number in range(10)]
    assert reader.is_sealed


@in_world()
async def test_a_tail_waits_for_replicas_and_fails_with_damage(world: World) -> None:
    """What was confirmed but cannot be read: bookies may come back, damage does not go away."""
    store = await world.client(read_timeout_ms=300, explicit_lac_interval_ms=0)
    writer, _ = await written(store, 12)
    reader = await store.open(writer.ledger_id)
    for name in world.bookies:
        await world.take_down(name)
        world.bookies[name].corrupt(writer.ledger_id, 7)
    entries = reader.tail(0)
    first = asyncio.ensure_future(anext(entries))
    await asyncio.sleep(5)
    assert not first.done()
    for name in world.bookies:
        await world.listen(name)
    assert [(await first).id, *[(await anext(entries)).id for _ in range(6)]] == list(range(7))
    with pytest.raises(DigestMismatch) as raised:
        await anext(entries)
    assert raised.value.entry_id == 7
    await store.close()
    with pytest.raises(ClientClosed):
        await anext(entries)


@in_world()
async def test_a_tail_and_a_wait_end_with_the_client(world: World) -> None:
    store = await world.client()
    writer, reader = await written(store, 3)
    other = await world.client()
    for reader in (await other.open(writer.ledger_id), await other.open(writer.ledger_id)):
        assert reader.last_add_confirmed >= 1
    tail = asyncio.ensure_future(anext(reader.tail(3)))
    wait = asyncio.ensure_future(reader.read_last_add_confirmed_and_entry(3, wait=30))
    await asyncio.sleep(1)
    await other.close()
    for waiting in (tail, wait):
        with pytest.raises(ClientClosed):
            await waiting
    with pytest.raises(ClientClosed):
        await reader.try_read_last_add_confirmed()
    await writer.close()


@in_world()
async def test_metadata_that_cannot_be_read_is_asked_for_again(world: World) -> None:
    store = await world.client(explicit_lac_interval_ms=0)
    writer, reader = await written(store, 5)
    driver = store._driver
    assert isinstance(driver, MemoryDriver)

    class Down:
        async def before(self, operation: str, driver: MemoryDriver) -> None:
            raise MetadataError("the store is down")

        async def after(self, operation: str, driver: MemoryDriver) -> None: ...

    driver._faults = Down()
    reader._state.mark_stale()
    for _ in range(2):
        with pytest.raises(MetadataError):
            await reader.read_last_add_confirmed()
    for bookie in world.bookies.values():
        bookie.corrupt(writer.ledger_id, 2)
    reader._state.learn(3)
    with pytest.raises(DigestMismatch, match="no replica could deliver"):
        await reader.read_entry(2)  # Whether they have moved cannot be known: the damage is what is reported.
    tail = asyncio.ensure_future(anext(reader.tail(4)))
    await asyncio.sleep(3)
    assert not tail.done()
    driver._faults = None
    await writer.append(b"5")
    assert (await tail).id == 4
    await writer.close()


@in_world()
async def test_a_tail_reads_the_metadata_now_and_then_without_being_told(world: World) -> None:
    store = await world.client()
    writer, reader = await written(store, 5)
    tail = asyncio.ensure_future(_collect(reader))
    await asyncio.sleep(1)
    reader._state._stop_watching()  # As if the store had forgotten about us.
    await writer.seal()
    await asyncio.sleep(60)
    assert tail.done()
    assert len(await tail) == 5


async def _collect(reader: LedgerReader) -> list[bytes]:
    return [entry.payload async for entry in reader.tail(0)]


@in_world()
async def test_a_tail_has_a_time_out_and_may_be_continued(world: World) -> None:
    store = await world.client()
    writer, reader = await written(store, 3)
    entries = reader.tail(3, timeout=1)
    with pytest.raises(TimeoutError):
        await anext(entries)
    await writer.append(b"3")
    await writer.seal()
    assert [entry.payload async for entry in entries] == [b"3"]


@in_world()
async def test_whether_a_ledger_has_ended_is_known_to_the_metadata_store(world: World) -> None:
    store = await world.client()
    writer, _ = await written(store, 3)
    assert not await store.is_sealed(writer.ledger_id)
    await writer.seal()
    for bookie in world.bookies.values():
        bookie.requests.clear()
    assert await store.is_sealed(writer.ledger_id)
    with pytest.raises(LedgerNotFound):
        await store.is_sealed(99)
    assert not any(bookie.requests for bookie in world.bookies.values())


# -- digests and passwords -----------------------------------------------------------------------------------------


@in_world()
async def test_the_digest_is_found_out_unless_that_is_switched_off(world: World) -> None:
    store = await world.client()
    strict = await world.client(digest_autodetection=False)
    for digest in ("crc32c", "crc32", "hmac", "none"):
        async with store.create(digest=digest, password=b"secret") as writer:
            await writer.append(b"x")
        reader = await store.open(writer.ledger_id, password=b"secret", digest="crc32")
        assert (await reader.read_entry(0)).payload == b"x"
        for given in (digest, None):
            reader = await strict.open(writer.ledger_id, password=b"secret", digest=given)
            assert (await reader.read_entry(0)).payload == b"x"
        with pytest.raises(DigestMismatch, match="leave digest= out"):
            await strict.open(writer.ledger_id, password=b"secret", digest="crc32" if digest == "hmac" else "hmac")
        for wrong in (b"", b"Secret"):
            with pytest.raises(Unauthorized, match="wrong password"):
                await store.open(writer.ledger_id, password=wrong)


@in_world()
async def test_an_empty_ledger_has_no_last_entry(world: World) -> None:
    store = await world.client()
    _, reader = await written(store, 0)
    with pytest.raises(EntryNotFound):
        await reader.read_last()
    assert await reader.try_read_last_add_confirmed() == -1


@in_world()
async def test_a_ledger_in_recovery_opens_as_far_as_it_is_confirmed(world: World) -> None:
    store = await world.client(explicit_lac_interval_ms=0)
    writer, _ = await written(store, 5)
    record = await store._driver.read_ledger(writer.ledger_id)
    await store._driver.write_ledger(in_recovery(record.metadata), record.version)
    reader = await store.open(writer.ledger_id)
    assert (reader.last_add_confirmed, reader.is_sealed) == (3, False)
    assert [entry.payload async for entry in reader.read()] == [b"0", b"1", b"2", b"3"]
    await writer.close()


@in_world()
async def test_a_tail_of_a_ledger_that_no_bookie_knows_yet_asks_again_at_once(world: World) -> None:
    """Bookies delay such an answer; a tail that paused as well would be late for the first entry."""
    store = await world.client()
    writer = await store.create(ensemble=3)
    reader = await store.open(writer.ledger_id)
    for bookie in world.bookies.values():
        bookie.delay_s = lambda request: 0.5 if isinstance(request, ReadRequest) and request.previous_lac == -1 else 0
    following = asyncio.ensure_future(anext(reader.tail(first=0)))
    await asyncio.sleep(20)
    assert len(polls(world)) >= 50, "three in a second"
    await writer.append(b"first")
    assert (await following).payload == b"first"
    await reader.close()
    await writer.close()
