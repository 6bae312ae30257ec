"""The client: create, open, recover, delete, list, and what it refuses."""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import subprocess
import sys
from collections import Counter
from dataclasses import fields

import pytest
from tests.fakes.world import PORT, World, in_world, play

import bookies
from bookies.client.blocking import blocking
from bookies.client.client import Client
from bookies.client.connect import ClientSettings, connect
from bookies.client.transport.watcher import address_of_id
from bookies.config import ClientConfig
from bookies.errors import (
    BookieUnreachable,
    BookKeeperError,
    ClientClosed,
    ConfigError,
    InvalidArgument,
    LedgerExists,
    LedgerFenced,
    LedgerNotFound,
    MetadataCorrupt,
    NotEnoughBookies,
    NotSupported,
    Unauthorized,
)
from bookies.metadata.shared.nodes import Key, Put, Table
from bookies.model import BookieId, BookieInfo, BookieMode, DigestType, Endpoint


def objects_left() -> Counter[str]:
    """Objects of the client, and futures of this event loop, that are alive, by type."""
    gc.collect()
    loop = asyncio.get_running_loop()
    found: Counter[str] = Counter()
    for each in gc.get_objects():
        module = str(type(each).__module__)
        is_own = module == "_asyncio" and isinstance(each, asyncio.Future) and each.get_loop() is loop
        if is_own or module.startswith("bookies.client"):
            found[type(each).__qualname__] += 1
    return found


@in_world()
async def test_ledgers_and_logs_that_are_over_leave_no_objects(world: World) -> None:
    """A client that lives for months must not grow with what it has done."""
    store = await world.client()
    await store.log("log").create()

    async def live(rounds: int) -> None:
        async with store.log("log").lead(roll_size=10) as log:
            for _ in range(rounds):
                async with store.create() as ledger:
                    await ledger.append_many([b"one", b"two"])
                abandoned = await store.create()
                await abandoned.append(b"three")
                await abandoned.close()
                async with store.open(ledger.ledger_id) as reader:
                    assert [entry async for entry in reader.read()]
                await store.delete(ledger.ledger_id)
                await store.delete(abandoned.ledger_id)
                await log.append(b"a record that fills a ledger")
                await log.roll()
                await log.truncate(await log.append(b"last"))
            for bookie in world.bookies.values():
                bookie.requests.clear()
        await asyncio.sleep(60)  # Timers and time-outs are over.

    await live(10)  # All connections exist.
    before = objects_left()
    await live(40)
    assert not objects_left() - before


@in_world()
async def test_create_append_seal_open_read(world: World) -> None:
    store = await world.client()
    async with store.create(password=b"s3cret", labels={"app": "demo", "raw": b"\xff"}) as ledger:
        assert await ledger.append(b"hello") == 0
        assert await ledger.append_many([b"a", b"b"]) == 2
    assert ledger.metadata.is_closed
    async with store.open(ledger.ledger_id, password=b"s3cret") as reader:
        assert [entry.payload async for entry in reader.read()] == [b"hello", b"a", b"b"]
        assert reader.labels == {"app": "demo", "raw": "\ufffd"}
        assert reader.is_sealed
    record = await store.metadata(ledger.ledger_id)
    assert (record.ensemble_size, record.write_quorum, record.ack_quorum) == (3, 3, 2)
    assert record.digest_type is DigestType.CRC32C
    assert record.custom_metadata == {"app": b"demo", "raw": b"\xff"}
    assert record.creator_token == 0, "belongs to its first version, as Apache's"
    assert record.ctime_ms is not None
    assert not record.stores_ctime, "the store knows it, as Apache's"


@in_world()
async def test_the_caller_names_the_bookies(world: World) -> None:
    store = await world.client()
    *_, last, first = [status.id for status in await store.bookies()]
    async with store.create(bookies=[first, last], ack_quorum=1) as ledger:
        await ledger.append(b"here")
    record = await store.metadata(ledger.ledger_id)
    assert (record.last_ensemble, record.write_quorum, record.ack_quorum) == ((first, last), 2, 1)
    for wrong in ([], "b1", [first, first]):
        with pytest.raises(InvalidArgument, match="different bookie ids"):
            store.create(bookies=wrong)


@in_world()
async def test_leaving_the_block_by_an_exception_does_not_seal(world: World) -> None:
    store = await world.client()

    async def fail() -> None:
        async with store.create() as ledger:
            await ledger.append(b"x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    [ledger] = [record async for record in store.ledgers()]
    assert not ledger.is_closed
    async with store.recover(ledger.ledger_id) as reader:
        assert reader.last_add_confirmed == 0
        assert [entry.payload async for entry in reader.read()] == [b"x"]


@pytest.mark.parametrize("digest", ["crc32c", "crc32", "hmac", "none", DigestType.CRC32])
@in_world()
async def test_digests(world: World, digest: str | DigestType) -> None:
    store = await world.client()
    async with store.create(digest=digest, password=b"pw") as ledger:
        await ledger.append_many([b"%d" % number for number in range(300)])
    async with store.open(ledger.ledger_id, password=b"pw") as reader:
        assert [entry.payload async for entry in reader.read()] == [b"%d" % number for number in range(300)]


@in_world(5)
async def test_quorum_defaults_follow_the_ensemble(world: World) -> None:
    store = await world.client()
    for given, expected in [
        ({"ensemble": 1}, (1, 1, 1)),
        ({"ensemble": 2}, (2, 2, 2)),
        ({"ensemble": 5}, (5, 5, 3)),
        ({"ensemble": 5, "write_quorum": 3}, (5, 3, 2)),
        ({"ensemble": 3, "write_quorum": 2, "ack_quorum": 1}, (3, 2, 1)),
    ]:
        writer = await store.create(**given)  # type: ignore[arg-type]
        record = writer.metadata
        assert (record.ensemble_size, record.write_quorum, record.ack_quorum) == expected
        await writer.close()


@in_world()
async def test_what_create_refuses_says_what_to_do(world: World) -> None:
    store = await world.client()
    with pytest.raises(InvalidArgument, match="must be ensemble >= write_quorum"):
        store.create(ensemble=3, write_quorum=4)
    with pytest.raises(InvalidArgument, match="ack_quorum >= 1"):
        store.create(ack_quorum=0)
    with pytest.raises(InvalidArgument, match="must be one of crc32c"):
        store.create(digest="md5")
    with pytest.raises(InvalidArgument, match=r"\.encode"):
        store.create(password="text")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="labels"):
        store.create(labels={"n": 3})  # type: ignore[dict-item]
    with pytest.raises(
        NotEnoughBookies, match=r"ensemble=5 needs 5 writable bookies, only 3 registered \(b1, b2, b3\)"
    ):
        await store.create(ensemble=5)
    assert [record async for record in store.ledgers()] == []


@in_world(4)
async def test_what_is_in_the_way_of_an_ensemble_is_the_rule_and_not_the_number(world: World) -> None:
    store = await world.client(placement="rack", fault_domains_min=2, fault_domains="b1=r1,b2=r2")
    with pytest.raises(NotEnoughBookies) as failure:
        await store.create(ensemble=3)
    text = str(failure.value)
    assert "only 4 registered" not in text
    assert "needs 3 writable bookies with a known location" in text
    assert "2 of the 4 writable bookies have one" in text
    assert "b3 (" in text
    assert "b4 (" in text
    with pytest.raises(NotEnoughBookies, match="ensemble=5 needs 5 writable bookies, only 4 registered"):
        await store.create(ensemble=5)


@in_world(3)
async def test_bookies_that_must_not_be_chosen_are_named_where_there_are_too_few(world: World) -> None:
    store = await world.client()
    with pytest.raises(NotEnoughBookies, match=r"only 3 registered \(b1, b2, b3\), of which b2 cannot be used now"):
        await store._watcher.choose_ensemble(3, [BookieId("b2")])


@in_world(0)
async def test_no_bookie_at_all(world: World) -> None:
    driver = world.store
    assert driver is not None
    store = await world.client()
    with pytest.raises((NotEnoughBookies, BookKeeperError)):
        await store.create()


@in_world()
async def test_an_id_that_is_taken_leads_to_another(world: World) -> None:
    store = await world.client()
    await (await store.create()).close()
    world.store._next_ledger_id = 0
    writer = await store.create()
    assert writer.ledger_id == 1
    await writer.close()


@in_world()
async def test_recover_fences_the_writer_and_keeps_what_was_confirmed(world: World) -> None:
    store, other = await world.client(), await world.client()
    writer = await store.create(password=b"pw")
    await writer.append_many([b"one", b"two"])
    with pytest.raises(Unauthorized):
        await other.recover(writer.ledger_id)
    async with other.recover(writer.ledger_id, password=b"pw") as reader:
        assert reader.is_sealed
        assert [entry.payload async for entry in reader.read()] == [b"one", b"two"]
    with pytest.raises(LedgerFenced):
        await writer.append(b"three")
    again = await other.recover(writer.ledger_id, password=b"pw")
    assert again.last_add_confirmed == 1
    await writer.close()
    with pytest.raises(LedgerNotFound):
        await store.recover(77)
    with pytest.raises(LedgerNotFound):
        await store.recover(-1)


def test_recovery_in_the_writers_own_process() -> None:
    """Both share the connections, and their answers look alike."""

    async def act(world: World) -> None:
        store = await world.client()
        writer = await store.create()
        confirmed = 0

        async def append_until_fenced() -> None:
            nonlocal confirmed
            for number in itertools.count():
                confirmed = await writer.append(b"%d" % number)

        appending = asyncio.ensure_future(append_until_fenced())
        await asyncio.sleep(0.02)
        reader = await store.recover(writer.ledger_id)
        with pytest.raises(LedgerFenced):
            await appending
        entries = [entry.payload async for entry in reader.read()]
        assert len(entries) > confirmed > 0
        assert entries == [b"%d" % number for number in range(len(entries))]
        await writer.close()

    for seed in range(5):
        play(act, seed=seed)


@in_world()
async def test_delete_is_idempotent(world: World) -> None:
    store = await world.client()
    async with store.create() as ledger:
        await ledger.append(b"x")
    await store.delete(ledger.ledger_id)
    await store.delete(ledger.ledger_id)
    with pytest.raises(LedgerNotFound):
        await store.metadata(ledger.ledger_id)
    with pytest.raises(InvalidArgument):
        await store.delete(-1)


@in_world()
async def test_listing_with_and_without_a_label(world: World) -> None:
    store = await world.client()
    for number in range(70):
        await (await store.create(labels={"parity": "odd" if number % 2 else "even"})).close()
    assert [record.ledger_id async for record in store.ledgers()] == list(range(70))
    odd = [record.ledger_id async for record in store.ledgers(label=("parity", "odd"))]
    assert odd == list(range(1, 70, 2))
    assert [record async for record in store.ledgers(label=("parity", "neither"))] == []


@in_world()
async def test_a_record_that_cannot_be_read_hides_no_other(world: World) -> None:
    store = await world.client()
    for _ in range(3):
        await (await store.create()).seal()
    world.store.commit([], [Put(Key(Table.LEDGERS, 1), b"nonsense")])
    with pytest.raises(MetadataCorrupt):
        [record async for record in store.ledgers()]
    unreadable: list[MetadataCorrupt] = []
    assert [record.ledger_id async for record in store.ledgers(unreadable=unreadable)] == [0, 2]
    assert [error.ledger_id for error in unreadable] == [1]


@in_world()
async def test_bookies_and_what_they_hold(world: World) -> None:
    store = await world.client()
    async with store.create(ensemble=3, write_quorum=2) as ledger:
        await ledger.append_many([b"x"] * 6)
    driver = world._drivers[1]
    await driver.unregister(BookieId("b2"))
    info = BookieInfo((Endpoint("bookie", "b3", 3181, "bookie-rpc"),), {"rack": "r1"})
    await world._drivers[2].register(BookieId("b3"), BookieMode.READ_ONLY, info)
    found = await store.bookies()
    assert [(each.id, each.mode, each.address) for each in found] == [
        ("b1", "writable", "b1:3181"),
        ("b2", "down", None),
        ("b3", "read-only", "b3:3181"),
    ]
    assert found[2].properties == {"rack": "r1"}
    assert await store.bookie_space(BookieId("b1")) == (1000, 400)
    held = [await store.list_entries(name, ledger.ledger_id) for name in ("b1", "b3")]
    assert all(held)


@in_world(3)
async def test_a_damaged_registration_hides_no_other_bookie(world: World) -> None:
    store = await world.client()
    world.store.commit([], [Put(Key(Table.WRITABLE, "b3"), b"\xff\xfegarbage")])
    assert [(each.id, each.mode, each.address) for each in await store.bookies()][1:] == [
        ("b2", "writable", "b2:3181"),
        ("b3", "writable", None),
    ]
    with pytest.raises(BookieUnreachable, match="its address cannot be looked up"):
        await store.bookie_space(BookieId("b3"))


@in_world(4)
async def test_bookies_that_failed_lately_are_the_last_choice(world: World) -> None:
    store = await world.client(add_timeout_ms=200, connect_timeout_ms=200)
    await world.take_down(BookieId("b4"))
    for _ in range(20):  # Until the dead one was chosen once, and replaced.
        writer = await store.create()
        await writer.append(b"x")
        await writer.seal()
    chosen = [record.ensembles[0][1] async for record in store.ledgers()]
    assert sum("b4" in ensemble for ensemble in chosen) <= 1
    await asyncio.sleep(60)
    writer = await store.create(ensemble=4)
    assert "b4" in writer.metadata.last_ensemble
    await writer.close()


@in_world()
async def test_a_bookie_that_moved_is_found_again(world: World) -> None:
    store = await world.client()
    async with store.create(ensemble=1) as ledger:
        await ledger.append(b"x")
    name = ledger.metadata.last_ensemble[0]
    async with store.open(ledger.ledger_id) as reader:
        assert (await reader.read_entry(0)).payload == b"x"
        await world.take_down(name)
        listener = await world.network.port("elsewhere").listen("elsewhere", 9999, world.bookies[name].accept)
        info = BookieInfo((Endpoint("bookie", "elsewhere", 9999, "bookie-rpc"),))
        number = int(name[1:]) - 1
        await world._drivers[number].register(name, BookieMode.WRITABLE, info)
        await asyncio.sleep(1)
        assert (await reader.read_entry(0)).payload == b"x"
        listener.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1:3181", ("10.0.0.1", 3181)),
        ("[::1]:3181", ("::1", 3181)),
        ("host.example:1", ("host.example", 1)),
        ("b1", None),
        ("b1:", None),
        (":3181", None),
        ("b1:x", None),
        ("b1:0", None),
        ("b1:70000", None),
    ],
)
def test_address_of_an_id(text: str, expected: tuple[str, int] | None) -> None:
    assert address_of_id(BookieId(text)) == expected


@in_world()
async def test_the_address_in_a_name_may_be_anothers_by_now(world: World) -> None:
    """A bookie that keeps its old address as its name is down, and another one has taken that address."""
    store = await world.client()
    free, taken = BookieId("b1:4000"), BookieId(f"b1:{PORT}")
    assert await store._watcher.resolve(free) == ("b1", 4000)
    with pytest.raises(BookieUnreachable, match="not registered, and b1 listens at the address in its name"):
        await store._watcher.resolve(taken)


@in_world()
async def test_a_closed_client_refuses_everything(world: World) -> None:
    store = await world.client()
    writer = await store.create()
    await writer.append(b"x")
    reader = await store.open(writer.ledger_id)
    tail = asyncio.ensure_future(anext(reader.tail(5)))
    await asyncio.sleep(0.1)
    assert repr(store).startswith("<Client memory:world open <BookiePool bookies=3 connections=")
    await store.close()
    await store.close()
    assert repr(store).startswith("<Client memory:world closed <BookiePool bookies=3 connections=0")
    with pytest.raises(ClientClosed):
        await tail
    with pytest.raises(ClientClosed):
        await store.create()
    with pytest.raises(ClientClosed):
        await store.open(0)
    with pytest.raises(BookKeeperError):
        await writer.append(b"y")
    await writer.close()


@in_world()
async def test_not_connected_yet(world: World) -> None:
    from bookies.metadata.embedded import MemoryDriver

    runtime = world.runtime("late")
    client = Client(runtime, MemoryDriver(world.store, runtime))
    with pytest.raises(ClientClosed, match="async with connect"):
        await client.create()
    await client.close()


@in_world()
async def test_ids_of_the_caller_on_real_bookies(world: World) -> None:
    store = await world.client()
    async with store.create(ledger_id=77, advanced=True) as ledger:
        assert ledger.ledger_id == 77
        writes = [asyncio.ensure_future(ledger.write(entry_id, b"%d" % entry_id)) for entry_id in (2, 0, 1)]
        assert await asyncio.gather(*writes) == [2, 0, 1]
    reader = await store.open(77)
    assert [entry.payload async for entry in reader.read(0)] == [b"0", b"1", b"2"]
    with pytest.raises(LedgerExists):
        await store.create(ledger_id=77)
    with pytest.raises(InvalidArgument, match="ledger_id=-1"):
        await store.create(ledger_id=-1)
    async with store.create() as ledger:
        with pytest.raises(NotSupported, match="advanced"):
            await ledger.write(5, b"x")


@pytest.mark.parametrize("wire", ["v2", "v3"])
@in_world()
async def test_deferred_sync_on_real_bookies(world: World, wire: str) -> None:
    """What is not forced is invisible to readers; a recovery keeps what it can read."""
    store = await world.client(wire=wire)
    ledger = await store.create(deferred_sync=True)
    await ledger.append_many([b"a", b"b"])
    reader = await store.open(ledger.ledger_id)
    assert await reader.read_last_add_confirmed() == -1
    assert await ledger.force() == 1
    await asyncio.sleep(1)
    assert await reader.read_last_add_confirmed() == 1
    await ledger.append(b"c")
    await ledger.close()
    assert (await store.recover(ledger.ledger_id)).last_add_confirmed == 2


@in_world()
async def test_fewer_bookies_than_asked_for_when_that_is_allowed(world: World) -> None:
    store = await world.client(opportunistic_striping=True)
    async with store.create(ensemble=5, write_quorum=2) as ledger:
        await ledger.append_many([b"x"] * 10)
        assert ledger.metadata.ensemble_size == 3
    with pytest.raises(NotEnoughBookies):
        await store.create(ensemble=5, write_quorum=4)


def test_settings_are_checked() -> None:
    with pytest.raises(InvalidArgument, match="'v2' or 'v3'"):
        play(lambda world: world.client(wire="v4"))
    with pytest.raises(ConfigError, match="memory_limit"):
        play(lambda world: world.client(memory_limit=1))
    for wrong in ({"memory_limit": "8388608"}, {"hedged_reads": "no"}, {"fault_domains": {}}, {"add_timeout_ms": 1.5}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))} = .*(must be|; write) "):
            play(lambda world, wrong=wrong: world.client(**wrong))
    for wrong, why in (
        ({"placement": "pigeon"}, "must be one of auto, random, rack, region, zone"),
        ({"placement": "random", "fault_domains_min": 2}, "fault_domains_min = 2: placement = random has no rule"),
        ({"placement": "random", "placement_rule": True}, "placement_rule = true: placement = random has no rule"),
        ({"placement": "zone", "zones_min": 4}, "zones_min = 4 is more than zones_desired = 3"),
        ({"regions_min": 2}, "regions_min = 2 needs placement = region, it is auto"),
        ({"location": "r1"}, "location = 'r1': must be a path"),
    ):
        with pytest.raises(ConfigError, match=why):
            play(lambda world, wrong=wrong: world.client(**wrong))
    with pytest.raises(InvalidArgument, match="not both"):
        connect("memory:", config=ClientConfig(), wire="v3")


def test_every_setting_is_a_keyword_of_connect() -> None:
    types = {field.name: f"{field.type} | None" for field in fields(ClientConfig)}
    assert {name: each.__forward_arg__ for name, each in ClientSettings.__annotations__.items()} == types
    for function in (connect, blocking.connect):
        parameters = inspect.signature(function).parameters
        assert list(parameters) == ["uri", "config", *types, "timeout"]
        assert types == {name: parameters[name].annotation for name in types}
        assert all(parameters[name].default is None for name in types)
        with pytest.raises(TypeError, match=r"connect\(\) got an unexpected keyword argument 'wires'"):
            function("memory:", wires="v3")


@pytest.mark.parametrize("advanced", [False, True])
@in_world()
async def test_no_ledger_has_an_id_for_the_second_time(world: World, advanced: bool) -> None:
    """The bookies hold the old entries yet, and would give them to readers of the new ledger."""
    store, other = await world.client(), await world.client()
    async with store.create(ledger_id=2, advanced=advanced) as ledger:
        await (ledger.write(0, b"old") if advanced else ledger.append(b"old"))
    with pytest.raises(LedgerExists, match=r"is taken: choose another one.*\(ledger 2\)"):
        await other.create(ledger_id=2)
    await store.delete(2)
    assert world.bookies[ledger.metadata.last_ensemble[0]].ledgers[2].entries
    for client in (store, other):
        with pytest.raises(LedgerExists, match=r"was deleted.*can never be used again: choose.*\(ledger 2\)"):
            await client.create(ledger_id=2)
    # Neither an id that was handed out, nor is one handed out that was chosen.
    made = [await store.create() for _ in range(3)]
    assert [writer.ledger_id for writer in made] == [0, 1, 3]
    for writer in made:
        await writer.close()
    await store.delete(1)
    with pytest.raises(LedgerExists, match=r"\(ledger 1\)"):
        await store.create(ledger_id=1)
    await store.delete(7)  # There is none: deleting it spends nothing.
    await (await store.create(ledger_id=7)).close()


# -- the package ---------------------------------------------------------------------------------------------------


def test_every_public_name_exists() -> None:
    for name in bookies.__all__:
        assert getattr(bookies, name) is not None
    assert set(bookies.__all__) <= set(dir(bookies))
    assert not hasattr(bookies, "nonsense")
    errors = [each for each in vars(bookies.errors).values() if isinstance(each, type)]
    missing = [
        each.__name__ for each in errors if issubclass(each, BookKeeperError) and not hasattr(bookies, each.__name__)
    ]
    assert not missing


def test_importing_the_package_loads_next_to_nothing() -> None:
    code = "import sys; before = set(sys.modules); import bookies; print(*sorted(set(sys.modules) - before))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in found if name.startswith("bookies")] == ["bookies", "bookies.errors"]
    assert not {"asyncio", "typing", "dataclasses", "socket", "sqlite3", "pyarrow"} & set(found)


@in_world(3)
async def test_an_idle_writer_tells_readers_of_its_last_entry(world: World) -> None:
    """Without a later entry or a seal the last entries would stay invisible (client-protocol 2.15)."""
    client = await world.client()
    async with client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
        await writer.append_many([b"one", b"two", b"three"])
        async with client.open(writer.ledger_id) as reader:
            entries = []
            async for entry in reader.tail(first=0):
                entries.append(entry.payload)
                if len(entries) == 3:
                    break
            assert entries == [b"one", b"two", b"three"]
            assert not reader.is_sealed
