"""Where bookies are: what a client learns from settings, a file, a program and registrations, and what counts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tests.fakes.world import PORT, World, in_world, play

from bookies.client.base.locations import Locations, policy_of
from bookies.config import ClientConfig
from bookies.errors import ConfigError, MetadataError, NotEnoughBookies
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.interface.bookie_places import BookiePlace, note_place
from bookies.model import BookieId, BookieInfo, BookieMode, Endpoint
from bookies.protocol.placement import PlacementPolicy, Topology
from bookies.protocol.placement.topology import Kind
from bookies.runtime.ports import Runtime

B1, B2, B3 = BookieId("b1"), BookieId("b2"), BookieId("b3")
ALL = [B1, B2, B3]


async def publish(world: World, bookie: BookieId, location: str | None, host: str | None = None) -> None:
    endpoint = Endpoint("bookie", host or bookie, PORT, "bookie-rpc")
    info = BookieInfo((endpoint,), {"location": location} if location is not None else {})
    await world._drivers[ALL.index(bookie)].register(bookie, BookieMode.WRITABLE, info)


async def begun(world: World, runtime: Runtime | None = None, **settings: Any) -> Locations:
    runtime = runtime or world.runtime("asker")
    driver = MemoryDriver(world.store, runtime)
    await driver.open()
    world._drivers.append(driver)
    found = Locations(runtime, ClientConfig(**settings), driver)
    await found.learn(ALL)
    return found


def where(found: Locations) -> list[str | None]:
    return [found.topology.location(bookie) for bookie in ALL]


@in_world()
async def test_what_was_written_down_counts_more_than_what_bookies_say(world: World) -> None:
    runtime = world.runtime("asker")
    runtime.disk.replace_bytes("racks", b"h2 /file\nb3 /file\n")
    await publish(world, B1, "/said/")
    await publish(world, B2, "/said", host="h2")
    await publish(world, B3, "/said")
    assert where(await begun(world)) == ["/said", "/said", "/said"]
    assert where(await begun(world, runtime, locations_file="racks")) == ["/said", "/file", "/file"]
    pairs = "b3=pairs"
    found = await begun(world, runtime, locations_file="racks", fault_domains=pairs)
    assert where(found) == ["/said", "/file", "/pairs"]
    assert found.topology.host(B2) == "h2"
    assert found.addresses == {bookie: (host, PORT) for bookie, host in zip(ALL, ("b1", "h2", "b3"), strict=True)}
    assert dict(found.domains) == {B1: "/said", B2: "/file", B3: "/pairs"}
    assert len(found.domains) == 3


def test_the_file_is_read_again_and_a_broken_one_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def act(world: World) -> None:
        runtime = world.runtime("asker")
        runtime.disk.replace_bytes("racks", b"b1 /r1\n")
        found = await begun(world, runtime, locations_file="racks", locations_interval_ms=1000)
        runtime.disk.replace_bytes("racks", b"b1 /r2\n")
        await found.learn(ALL)
        assert found.topology.location(B1) == "/r1", "looked at a moment ago"
        topology = found.topology
        await found.learn(ALL)
        assert found.topology is topology, "the same as long as nothing changes"
        await asyncio.sleep(1)
        await found.learn(ALL)
        assert found.topology.location(B1) == "/r2"
        runtime.disk.replace_bytes("racks", b"b1\n")
        await asyncio.sleep(1)
        await found.learn(ALL)
        assert found.topology.location(B1) == "/r2"

    with caplog.at_level(logging.WARNING):
        play(act)
    assert "placement.locations_file" in caplog.text
    assert "racks, line 1: 'b1'" in caplog.text


@pytest.mark.parametrize(
    ("data", "why"), [(None, "cannot be read"), (b"\xff", "cannot be read"), (b"", "contains no location")]
)
@in_world()
async def test_a_broken_file_at_the_beginning_is_an_error(world: World, data: bytes | None, why: str) -> None:
    runtime = world.runtime("asker")
    if data is not None:
        runtime.disk.replace_bytes("racks", data)
    with pytest.raises(ConfigError, match=why):
        await begun(world, runtime, locations_file="racks")


class Script:
    """Answers as the program would; `calls` has the hosts of each call."""

    def __init__(self, answers: dict[str, str]) -> None:
        self.answers = answers
        self.calls: list[list[str]] = []

    async def __call__(self, command: Sequence[str]) -> str:
        assert command[0] == "/topology"
        self.calls.append(list(command[1:]))
        if "broken" in self.answers:
            raise OSError("topology ended with status 1: no")
        return " ".join(self.answers[host] for host in command[1:] if host in self.answers)


def test_a_program_is_asked_for_hosts_in_shares(caplog: pytest.LogCaptureFixture) -> None:
    async def act(world: World) -> None:
        await publish(world, B2, "/said", host="h2")
        script = Script({"b1": "/r1", "h2": "/r2\n", "b3": "/r3"})
        runtime = replace(world.runtime("asker"), output_of=script)
        found = await begun(world, runtime, locations_script="/topology", locations_script_names_max=2)
        assert script.calls == [[], ["b1", "h2"], ["b3"]], "first without arguments, whether it works"
        assert where(found) == ["/r1", "/r2", "/r3"]
        found.removed([B1])
        assert not found.knows(ALL)
        await found.learn(ALL)
        assert len(script.calls) == 3, "a host stays where it is"
        del script.answers["b3"]
        found = await begun(world, runtime, locations_script="/topology", locations_script_names_max=2)
        assert where(found) == ["/r1", "/r2", None]
        script.answers["b1"] = "r1"
        found = await begun(world, runtime, locations_script="/topology", locations_script_names_max=2)
        assert where(found) == [None, "/said", None]

    with caplog.at_level(logging.WARNING):
        play(act)
    assert "it prints 0 locations for 1 hosts" in caplog.text
    assert "must be an absolute path" in caplog.text


def test_a_program_that_hangs_is_named_and_ended(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[Sequence[str]] = []

    async def hang(command: Sequence[str]) -> str:
        if not command[1:] and can_be_tried:
            return ""
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(command)
        raise AssertionError("it never ends by itself")

    async def act(world: World) -> None:
        nonlocal can_be_tried
        runtime = replace(world.runtime("asker"), output_of=hang)
        loop = asyncio.get_running_loop()
        start = loop.time()
        with pytest.raises(ConfigError, match=r"locations_script = /topology: .* had not ended after 10 s, .* killed"):
            await begun(world, runtime, locations_script="/topology")
        assert loop.time() - start == pytest.approx(10, abs=0.5)
        assert ended == [["/topology"]]
        can_be_tried = True
        found = await begun(world, runtime, locations_script="/topology", locations_script_timeout_ms=500)
        assert where(found) == [None, None, None]
        assert loop.time() - start == pytest.approx(10.5, abs=0.5)

    can_be_tried = False
    with caplog.at_level(logging.WARNING):
        play(act)
    assert "asked for 3 hosts, it had not ended after 0.5 s" in caplog.text


@in_world()
async def test_a_program_that_does_not_work_is_an_error_at_the_beginning(world: World) -> None:
    runtime = replace(world.runtime("asker"), output_of=Script({"broken": ""}))
    with pytest.raises(ConfigError, match="locations_script = /topology: topology ended with status 1: no"):
        await begun(world, runtime, locations_script="/topology")
    with pytest.raises(ConfigError, match="programs cannot be run here"):
        await begun(world, locations_script="/topology")


def test_a_bookie_that_is_nowhere_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    async def act(world: World) -> None:
        await publish(world, B1, "/r1")
        await publish(world, B2, "not a path")
        found = await begun(world)
        await found.learn(ALL)

    with caplog.at_level(logging.WARNING):
        play(act)
    text = caplog.text
    assert text.count("placement.no_location bookie=b3") == 1
    assert text.count("placement.no_location bookie=b2") == 1
    assert text.count("placement.location ") == 1
    assert "counts for no rack" in text


def test_nobody_is_warned_who_has_no_racks(caplog: pytest.LogCaptureFixture) -> None:
    async def act(world: World) -> None:
        found = await begun(world)
        assert found.policy.kind is Kind.RANDOM
        assert found.own_domains(Kind.RACK) == ()

    play(act)
    assert "placement" not in caplog.text


def test_a_store_that_does_not_answer_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    async def act(world: World) -> None:
        await publish(world, B1, "/r1")
        found = await begun(world)
        assert found.topology.location(B1) == "/r1"
        found.removed(ALL)
        driver: Any = world._drivers[-1]
        original = driver.bookie_info

        async def fail(bookie: BookieId) -> BookieInfo:
            raise MetadataError("no answer")

        driver.bookie_info = fail
        await found.learn(ALL)
        assert not found.knows(ALL)
        assert found.topology.location(B1) == "/r1", "what was known still counts"
        driver.bookie_info = original
        await world._drivers[1].unregister(B2)
        await found.learn(ALL)
        assert found.knows(ALL)

    play(act)
    assert "placement.registration bookie=b1" in caplog.text


@in_world()
async def test_a_bookie_that_is_down_is_where_it_was(world: World) -> None:
    await publish(world, B1, "/r1")
    await publish(world, B2, None)
    driver = world._drivers[0]
    await note_place(driver, B1, BookiePlace("/old", "b1"))
    await note_place(driver, B2, BookiePlace("/old", "b2"))
    await note_place(driver, B3, BookiePlace("/r3", "h3"))
    await world._drivers[2].unregister(B3)
    found = await begun(world)
    assert where(found) == ["/r1", None, "/r3"]  # A registration counts more.
    assert found.topology.host(B3) == "h3"
    assert where(await begun(world, fault_domains="h3=/given")) == ["/r1", None, "/given"]
    assert where(await begun(world, placement="random")) == [None, None, None]


@in_world()
async def test_where_the_client_is(world: World) -> None:
    found = await begun(world, location="/east/r1")
    assert found.own_domains(Kind.RACK) == ("/east/r1", "/east/r1")
    assert found.own_domains(Kind.REGION) == ("/east/r1", "/east")
    assert found.own_domains(Kind.RANDOM) == ()
    assert (await begun(world, location="/east")).own_domains(Kind.ZONE) == ("/east", "/east")


def test_the_policy_that_settings_ask_for() -> None:
    known = Topology({"b1": "/r1"})
    assert policy_of(ClientConfig(), Topology()) == PlacementPolicy(Kind.RANDOM)
    assert policy_of(ClientConfig(), known) == PlacementPolicy(Kind.RACK)
    assert policy_of(ClientConfig(placement_rule=True), Topology()) == PlacementPolicy(Kind.RACK, is_rule=True)
    least = policy_of(ClientConfig(fault_domains_min=3), known)
    assert (least.is_rule, least.racks_min) == (True, 3)
    zones = policy_of(ClientConfig(placement="zone", fault_domains_min=4), known)
    assert (zones.is_rule, zones.zones_min, zones.zones_desired) == (True, 4, 4)
    regions = policy_of(ClientConfig(placement="region", fault_domains_min=2), known)
    assert (regions.regions_min, regions.racks_min) == (2, 2)


# -- a whole client --------------------------------------------------------------------------------------------------


@in_world()
async def test_a_client_places_replicas_by_what_bookies_say_and_gives_a_receipt(world: World) -> None:
    await publish(world, B1, "/r1")
    await publish(world, B2, "/r1")
    await publish(world, B3, "/r2")
    store = await world.client()
    for _ in range(8):
        async with store.create(ensemble=2) as ledger:
            assert B3 in ledger.metadata.last_ensemble
    (fragment,) = await store.placement(ledger.ledger_id)
    assert (fragment.first_entry, fragment.adherence, fragment.findings) == (0, "strict", ())
    assert dict(fragment.replicas)[B3] == "/r2"
    assert [each.location for each in await store.bookies()] == ["/r1", "/r1", "/r2"]
    await world._drivers[2].unregister(B3)
    await asyncio.sleep(1)
    async with store.create(ensemble=2) as ledger:
        await ledger.append(b"x")
    (fragment,) = await store.placement(ledger.ledger_id)
    assert fragment.adherence == "fail"
    assert "a write quorum of 2 needs 2 racks" in fragment.findings[0]


@in_world()
async def test_a_rule_holds_for_replacements_too(world: World) -> None:
    for bookie, location in ((B1, "/r1"), (B2, "/r2"), (B3, "/r1")):
        await publish(world, bookie, location)
    store = await world.client(placement_rule=True, add_timeout_ms=500)
    ledger = await store.create(ensemble=2, ack_quorum=2)
    assert B2 in ledger.metadata.last_ensemble
    (other,) = [bookie for bookie in ledger.metadata.last_ensemble if bookie != B2]
    await world.take_down(other)
    await ledger.append(b"x", timeout=20)
    assert sorted(ledger.metadata.last_ensemble) == sorted([B2, B3 if other == B1 else B1])
    await world.take_down(B2)
    with pytest.raises(NotEnoughBookies, match=r"can take the place of b2 in .*: a write quorum of 2 needs 2 racks"):
        await ledger.append(b"y", timeout=20)
    await ledger.close()


@in_world()
async def test_a_bookie_that_comes_later_is_located_before_it_is_chosen(world: World) -> None:
    await publish(world, B1, "/r1")
    await publish(world, B2, "/r1")
    await world._drivers[2].unregister(B3)
    store = await world.client(placement_rule=True)
    with pytest.raises(NotEnoughBookies, match="the 2 writable bookies are all in /r1"):
        await store.create(ensemble=2)
    await publish(world, B3, "/r2")
    await asyncio.sleep(1)
    assert B3 in store._watcher.candidates()
    async with store.create(ensemble=2):
        pass
    await publish(world, B3, "/r3")
    assert store._watcher.topology.location(B3) == "/r2", "it was never away"


@in_world()
async def test_the_first_bookie_is_in_the_clients_rack(world: World) -> None:
    for bookie, location in ((B1, "/r1"), (B2, "/r2"), (B3, "/r3")):
        await publish(world, bookie, location)
    store = await world.client(location="/r2")
    for _ in range(5):
        async with store.create(ensemble=2) as ledger:
            assert ledger.metadata.last_ensemble[0] == B2


@in_world()
async def test_who_only_reads_asks_nobody_where_bookies_are(world: World) -> None:
    store = await world.client()
    async with store.create() as ledger:
        await ledger.append(b"x")
    reader = await world.client()
    async with await reader.open(ledger.ledger_id) as opened:
        assert [bytes(entry.payload) async for entry in opened.read()] == [b"x"]
    assert not reader._locations.knows(ALL)


@in_world()
async def test_the_place_of_the_client_itself(world: World) -> None:
    """Its setting, else what its sources have for its host, else where a bookie on its host is."""
    runtime = replace(world.runtime("asker"), host_names=("10.0.0.9", "h9"))
    runtime.disk.replace_bytes("racks", b"h9 /file/r1\nb1 /file/r1\n")
    await publish(world, B1, "/said/r1", host="h9")
    await publish(world, B2, "/said/r2")
    await publish(world, B3, None)
    for settings, own, nearness in (
        ({"location": "/said/r2"}, "/said/r2", ["region", "rack", "unknown"]),
        ({}, "/said/r1", ["host", "region", "unknown"]),
        ({"locations_file": "racks"}, "/file/r1", ["host", "other", "unknown"]),
        ({"fault_domains": "h9=/other/r1"}, "/other/r1", ["host", "other", "unknown"]),
    ):
        found = await begun(world, runtime, **settings)
        assert found.nearby.vantage.location == own
        assert [found.nearby.nearness(bookie).label for bookie in ALL] == nearness


@in_world()
async def test_the_script_is_asked_for_the_own_host_too(world: World) -> None:
    asked: list[Sequence[str]] = []

    async def run(command: Sequence[str]) -> str:
        asked.append(command[1:])
        return " ".join("/east" if host in ("10.0.0.9", "b2") else "/west" for host in command[1:])

    runtime = replace(world.runtime("asker"), host_names=("10.0.0.9", "h9"), output_of=run)
    for bookie in ALL:
        await publish(world, bookie, None)
    found = await begun(world, runtime, locations_script="topology")
    assert asked == [[], ["10.0.0.9"], ["b1", "b2", "b3"]]
    assert found.nearby.vantage.location == "/east"
    assert [found.nearby.nearness(bookie).label for bookie in ALL] == ["other", "rack", "other"]
    asked.clear()
    await begun(world, runtime, locations_script="topology", location="/west")
    assert asked == [[], ["b1", "b2", "b3"]]


@in_world()
async def test_readers_learn_only_where_it_matters(world: World) -> None:
    await publish(world, B1, "/east")
    runtime = world.runtime("asker")
    driver = MemoryDriver(world.store, runtime)
    await driver.open()
    world._drivers.append(driver)
    for settings, knows in (
        ({}, False),
        ({"location": "/east"}, True),
        ({"location": "/east", "placement": "random"}, True),
        ({"location": "/east", "near_reads": False}, False),
        ({"locations_preferred": "/east"}, True),
    ):
        found = Locations(runtime, ClientConfig(**settings), driver)
        await found.learn_for_reads([B1])
        assert (found.topology.location(B1) == "/east") is knows, settings


@in_world()
async def test_a_bookie_that_a_reader_meets_later_is_located_by_its_registration(world: World) -> None:
    await publish(world, B2, "/east")
    store = await world.client(location="/east")
    assert store._pool.nearby.nearness(B2).label == "unknown"
    await store._watcher.resolve(B2)
    assert store._pool.nearby.nearness(B2).label == "rack"
    await store._locations.learn(ALL)
    before = store._locations.topology
    info = BookieInfo((), {"location": "/west"})
    store._locations.registered(B2, info)
    assert store._locations.topology is before, "the watch tells when it moves"


@in_world()
async def test_preferences_and_bans_are_part_of_the_placement(world: World) -> None:
    found = await begun(world, placement="region", locations_preferred="/west", locations_banned="/south,/north")
    assert found.policy.banned == ("/south", "/north")
    assert found.own_domains(Kind.REGION) == ("/west",)
    assert found.own_domains(Kind.RANDOM) == ()
    assert (await begun(world, location="/east", locations_preferred="/west")).own_domains(Kind.RACK) == (
        "/east",
        "/east",
        "/west",
    )
