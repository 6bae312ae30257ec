"""Which directories are a bookie's own: the whole start, with the metadata store, and a crash at every step of it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import pathlib
import tarfile
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from bookies.bookie.identity import admit, check_identity, identities
from bookies.config import BookieConfig
from bookies.errors import ConfigError, CookieExists, CookieMismatch, Status, StorageError
from bookies.lab.sim.world.cluster import SimClock
from bookies.lab.sim.world.disk import LOSSES, Loss, SimDisk
from bookies.lab.sim.world.loop import Crashed, Participant, SimLoop
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.embedded.memory import MemoryStore
from bookies.metadata.shared.nodes import Delete, Key, Put, Table
from bookies.model import BookieId
from bookies.runtime.events import Events
from bookies.runtime.ports import Lock
from bookies.storage.identity import cookie
from bookies.storage.identity.admission import Decision
from bookies.wire.messages import ReadRequest

from .conftest import World, adds

CONFIG = BookieConfig(
    bookie_id="b1", journal_directories=("/j",), ledger_directories=("/l",), index_directories=("/i",)
)
GROWN = BookieConfig(
    bookie_id="b1",
    journal_directories=("/j",),
    ledger_directories=("/l", "/l2"),
    index_directories=("/i", "/i2"),
    allow_storage_expansion=True,
)


GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "storage"


class Place:
    """A disk and a metadata store, and starts of a bookie on them as far as the cookies."""

    def __init__(self, seed: int = 0) -> None:
        self.disk = SimDisk(Random(seed))
        self.store = MemoryStore()
        self.after: Callable[[MemoryDriver], Coroutine[Any, Any, None]] | None = None

    def start(self, config: BookieConfig) -> Decision:
        """What the start came to; the process ends after it."""
        loop = SimLoop()

        async def main() -> Decision:
            driver = MemoryDriver(self.store)
            await driver.open()
            locks: list[Lock] = []
            try:
                if self.after is not None:
                    await self.after(driver)
                events = Events("bookie", SimClock(loop, 0))
                return (await admit(self.disk, config, driver, locks, events, "mark")).decision
            finally:
                for lock in locks:
                    lock.release()
                await driver.close()

        try:
            return loop.run(main())
        finally:
            loop.close()

    def cookie(self, bookie: str = "b1") -> bytes | None:
        found = self.store.get([Key(Table.COOKIES, bookie)])[0]
        return None if found is None else found.data


def test_a_first_start_and_others() -> None:
    place = Place()
    assert place.start(CONFIG) is Decision.NEW_BOOKIE
    assert set(place.disk.files().values()) == {place.cookie()}
    assert place.start(CONFIG) is Decision.OK
    with pytest.raises(CookieMismatch, match="/l2 is new"):
        place.start(BookieConfig(**{**vars(GROWN), "allow_storage_expansion": False}))
    assert not place.disk.exists("/l2")
    assert place.start(GROWN) is Decision.EXPANDED
    assert set(place.disk.files().values()) == {place.cookie()}
    assert place.start(GROWN) is Decision.OK
    with pytest.raises(CookieMismatch, match="/l2 is no longer configured"):
        place.start(CONFIG)


def test_only_named_bookies_become_new() -> None:
    place = Place()
    others, itself = (dataclasses.replace(CONFIG, new_bookies=names) for names in (("b2",), ("b2", "b1")))
    for config in (others, itself):
        with pytest.raises(CookieMismatch, match=r"there is no cluster at memory:.*`bk metadata init`"):
            place.start(config)
    first = dataclasses.replace(CONFIG, bookie_id="b0", journal_directories=("/j0",), ledger_directories=("/l0",))
    place.start(dataclasses.replace(first, index_directories=()))
    before = place.disk.files()
    with pytest.raises(CookieMismatch, match=r"it would be a new one.*/j, /l, /i hold no data.*`bk bookie init`"):
        place.start(others)
    assert place.disk.files() == before
    assert not place.disk.exists("/j")
    assert place.start(itself) is Decision.NEW_BOOKIE
    assert place.start(others) is Decision.OK


def test_data_without_a_cookie_is_reported_as_data() -> None:
    place = Place()
    place.start(CONFIG)
    place.disk.put("/l/current/0.log", b"data")
    place.store.commit([], [Delete(Key(Table.COOKIES, "b1"))])
    with pytest.raises(CookieMismatch, match="/l holds data of it"):
        place.start(dataclasses.replace(CONFIG, new_bookies=()))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("config", [CONFIG, GROWN])
def test_a_crash_at_every_disk_call_of_a_start(config: BookieConfig, loss: Loss) -> None:
    step = 0
    while True:
        step += 1
        place = Place(step)
        if config is GROWN:
            place.start(CONFIG)
            place.disk.put("/l/current/0.log", b"data")
        place.disk.crash_at = place.disk.call_count + step
        is_done = False
        try:
            place.start(config)
            is_done = True
        except Crashed:
            pass
        place.disk.crash(loss)
        assert place.start(config) in ({Decision.OK} if is_done else set(Decision))
        place.disk.crash(loss)
        assert place.start(config) is Decision.OK
        assert set(place.disk.files("/j").values()) == {place.cookie()}
        if is_done:
            break
    assert step > 30


@pytest.mark.parametrize("config", [CONFIG, GROWN])
def test_a_crash_between_the_directories_and_the_store(config: BookieConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()
    if config is GROWN:
        place.start(CONFIG)
        place.disk.put("/l/current/0.log", b"data")

    async def die(*arguments: object) -> int:
        raise Crashed("the store is not told any more")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryDriver, "create_cookie", die)
        patch.setattr(MemoryDriver, "write_cookie", die)
        with pytest.raises(Crashed):
            place.start(config)
    before = place.cookie()
    assert before != place.disk.read_bytes("/l/current/VERSION")
    assert place.start(config) is (Decision.EXPANDED if config is GROWN else Decision.NEW_BOOKIE)
    assert place.cookie() == place.disk.read_bytes("/l/current/VERSION")


def test_a_twin_that_was_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same name on another machine, with the same names of directories: these must stay without a stamp."""
    place = Place()

    async def create(driver: MemoryDriver, bookie: BookieId, data: bytes) -> int:
        place.store.commit([], [Put(Key(Table.COOKIES, bookie), data)])
        raise CookieExists("there is one", bookie=bookie)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryDriver, "create_cookie", create)
        with pytest.raises(CookieMismatch, match="another bookie of that name"):
            place.start(CONFIG)
    assert not place.disk.files()
    with pytest.raises(CookieMismatch, match="/j is empty: a disk is missing or was wiped"):
        place.start(CONFIG)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"bookie_id": "b1", "host": "10.0.0.7", "advertised_host": "b1.example"}, ["b1"]),
        ({"host": "10.0.0.7"}, ["10.0.0.7:3181"]),
        ({"host": "0.0.0.0", "advertised_host": "b1.example"}, ["b1.example:3181"]),
        (
            {"host": "10.0.0.7", "advertised_host": "b1.example", "advertised_port": 4000},
            ["10.0.0.7:3181", "10.0.0.7:4000", "b1.example:3181", "b1.example:4000"],
        ),
    ],
)
def test_every_name_that_a_bookie_could_have(settings: dict[str, Any], names: list[str]) -> None:
    assert identities(BookieConfig(**settings)) == names


def test_a_changed_way_of_naming_does_not_make_a_new_bookie() -> None:
    """The disks are gone as well, so only the store remembers. [Q-17]"""
    by_address = {"host": "10.0.0.7", "journal_directories": ("/j",), "ledger_directories": ("/l",)}
    place = Place()
    assert place.start(BookieConfig(**by_address)) is Decision.NEW_BOOKIE
    place.disk = SimDisk()
    with pytest.raises(CookieMismatch, match=r"keep its name: --bookie-id 10.0.0.7:3181"):
        place.start(BookieConfig(**by_address, advertised_host="b1.example"))
    assert place.cookie("b1.example:3181") is None


def test_a_missing_disk_is_not_made_up() -> None:
    place = Place()
    place.start(GROWN)
    place.disk = SimDisk()
    for config in (GROWN, BookieConfig(**{**vars(GROWN), "allow_storage_expansion": False})):
        with pytest.raises(CookieMismatch, match="/j does not exist"):
            place.start(config)
    assert not place.disk.is_directory("/l2")


def test_databases_do_not_take_more_directories() -> None:
    """Where a ledger is in them follows from the number of directories. [F-2]"""
    place = Place()
    place.start(CONFIG)
    place.disk.put("/i/current/locations/CURRENT", b"MANIFEST-1")
    before = place.disk.files()
    with pytest.raises(StorageError, match=r"RocksDB.*Nothing was changed.*convert it: bk bookie convert"):
        place.start(GROWN)
    assert place.disk.files() == before
    assert not place.disk.is_directory("/l2")


def test_one_disk_for_two_directories(caplog: pytest.LogCaptureFixture) -> None:
    place = Place()
    strict = BookieConfig(**{**vars(CONFIG), "allow_multiple_dirs_under_same_disk_partition": False})
    with pytest.raises(ConfigError, match="ledger or index directories /l and /i are on one file system"):
        place.start(strict)
    assert not place.disk.is_directory("/j")
    place.disk.devices = {"/l": 1}
    for directory in ("/l", "/i"):
        place.disk.make_directories(directory)
    assert place.start(strict) is Decision.NEW_BOOKIE
    place.disk.devices = {}
    with caplog.at_level(logging.INFO):
        assert place.start(CONFIG) is Decision.OK
    assert "bookie.shared_disk" in caplog.text


@pytest.mark.parametrize("case", ["interleaved-v6-clean", "sorted-v5-crash", "interleaved-multi-crash"])
def test_cookies_of_apaches_bookies(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their directories, and their cookie in the store, are taken as they are."""
    place = Place()
    with tarfile.open(GOLDEN / case / "data.tar.gz") as archive:
        for member in archive:
            if member.isfile() and (file := archive.extractfile(member)) is not None:
                place.disk.put(member.name.removeprefix("./"), file.read())
    files = place.disk.files()
    data = next(data for path, data in files.items() if path.endswith("/current/VERSION"))
    found = cookie.parse(data)
    config = BookieConfig(
        bookie_id=found.bookie,
        journal_directories=found.journals,
        ledger_directories=found.ledger_directories,
        index_directories=found.index_directories or (),
    )

    async def instance_id(driver: MemoryDriver) -> str | None:
        return found.instance_id

    monkeypatch.setattr(MemoryDriver, "instance_id", instance_id)
    with pytest.raises(CookieMismatch, match="holds data of it: this is another metadata store"):
        place.start(config)
    place.store.commit([], [Put(Key(Table.COOKIES, found.bookie), data)])
    assert place.start(config) is Decision.OK
    assert place.disk.files() == files


# -- whole bookies ----------------------------------------------------------------------------------------------------


def test_nothing_is_in_a_directory_before_its_cookie(world: World) -> None:
    """[Q-1] A directory with any file but no cookie is not taken for a new one, by Apache's bookie neither."""

    async def body(world: World) -> None:
        world.disk.log = []
        await world.start(control=True, gc_interval_ms=60_000)
        stamped: dict[str, None] = {}
        for call in world.disk.log:
            if call.operation == "rename" and call.target.endswith("/VERSION"):
                stamped[call.target.removesuffix("VERSION")] = None
            elif call.operation in ("open", "rename", "link"):
                for path in (call.path, call.target):
                    if "/current/" in path:
                        assert any(path.startswith(each) for each in stamped), f"{call} before the cookie"
        assert list(stamped) == ["/journal/current/", "/ledgers/current/"]

    world.run(body)


@pytest.mark.parametrize("kind", ["ledger", "index"])
def test_a_bookie_grows_by_a_directory(world: World, kind: str) -> None:
    """Written before and after, with and without leave to grow, and with a power failure in between."""
    grown: dict[str, Any] = (
        {"ledger_directories": ("/ledgers", "/more")}
        if kind == "ledger"
        else {"index_directories": ("/ledgers", "/more")}
    )

    async def fill(world: World, settings: dict[str, Any], ledgers: range) -> None:
        server = await world.start(**settings)
        client = await world.connect(server)
        for ledger_id in ledgers:
            answers = await client.add(adds(ledger_id, range(50), size=2_000))
            assert {answer.status for answer in answers} == {Status.OK}
        for ledger_id in range(ledgers.stop):
            for entry_id in (0, 49):
                assert (await client.ask(ReadRequest(2, 0, ledger_id, entry_id))).status is Status.OK
            assert (await client.ask(ReadRequest(2, 0, ledger_id, 50))).status is Status.NO_ENTRY
        assert (await client.ask(ReadRequest(2, 0, 1_000, 0))).status is Status.NO_LEDGER
        await world.on_bookie(server.stop())

    async def body(world: World) -> None:
        small = {"entry_log_size_max": 64 << 10}
        await fill(world, small, range(10))
        with pytest.raises(CookieMismatch, match=r"/more is new.*allow_storage_expansion=true"):
            await world.start(**small, **grown)
        await fill(world, small | grown | {"allow_storage_expansion": True}, range(10, 30))
        await fill(world, small | grown, range(30, 40))
        names = {path.rpartition("/")[2] for path in world.disk.files("/more/current")}
        if kind == "ledger":
            assert {"VERSION", "lastId", "lastMark"} <= names
            assert [name for name in names if name.endswith(".log")], "new logs go there too"
        assert [name for name in names if name.endswith(".idx")]
        with pytest.raises(CookieMismatch, match=r"/more is no longer configured.*bk bookie recover b1"):
            await world.start(**small)

    world.run(body)


async def start_and_crash(world: World, step: int, **settings: Any) -> bool:
    """A life of a bookie, at whose disk call `step` the power fails. Whether it came to its end before that."""
    victim, loop = world.bookie_host, world.loop
    crashed: asyncio.Future[None] = loop.create_future()
    ended: asyncio.Future[None] = loop.create_future()
    server = await world.on_bookie(world.new_server(**settings))
    _, driver = world.forget_last()

    async def life() -> None:
        await server.start()
        await server.stop()

    def crash() -> None:
        victim.kill()
        crashed.set_result(None)

    world.disk.on_crash = crash
    world.disk.crash_at = world.disk.call_count + step
    task = victim.create_task(life())
    task.add_done_callback(lambda _: ended.set_result(None), context=loop.world.copy())
    await asyncio.wait([crashed, ended], return_when=asyncio.FIRST_COMPLETED)
    world.disk.crash_at = None
    if not crashed.done():
        task.result()
        await driver.close()
        return True
    world.network.crash(victim, is_silent=False)
    world.bookie_host = Participant(loop, "bookie")
    await driver.close()
    return False


@pytest.mark.parametrize("grows", [False, True])
def test_a_crash_anywhere_in_a_whole_start(grows: bool) -> None:
    """Cookies, storage and mode: the next start serves, and what there was is there."""
    small: dict[str, Any] = {"persist_bookie_status": True, "control": False}
    more = {"ledger_directories": ("/ledgers", "/more"), "allow_storage_expansion": True} if grows else {}

    def life(step: int) -> bool:
        """Whether the crash came only after the start."""
        world = World(step)

        async def body(world: World) -> bool:
            if grows:
                server = await world.start(**small)
                client = await world.connect(server)
                await client.add(adds(1, range(10)))
                await world.on_bookie(server.stop())
                world.forget_last()
            if await start_and_crash(world, step, **small, **more):
                return True
            world.disk.crash(LOSSES[step % len(LOSSES)])
            server = await world.start(**small, **more)
            client = await world.connect(server)
            if grows:
                assert (await client.ask(ReadRequest(2, 0, 1, 9))).status is Status.OK
            assert (await client.add(adds(2, [0])))[0].status is Status.OK
            await world.on_bookie(server.stop())
            server = await world.start(**(small | more | {"allow_storage_expansion": False}))
            return False

        return world.run(body)

    step = 1
    while not life(step):
        step += 3
    assert step > 80


def test_a_bookie_moves_to_another_address(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start(port=3181)
        client = await world.connect(server)
        await client.add(adds(1, range(10)))
        await world.on_bookie(server.stop())
        moved = await world.start(port=4000)
        client = await world.connect(moved)
        assert (await client.ask(ReadRequest(2, 0, 1, 9))).status is Status.OK
        driver = MemoryDriver(world.metadata)
        await driver.open()
        info = await driver.bookie_info(BookieId("b1"))
        assert info is not None
        assert info.rpc_address() == ("bookie", 4000)
        assert (await driver.all_bookies()).bookies == ("b1",)
        await driver.close()

    world.run(body)


def test_a_name_that_is_an_address_is_kept_on_request(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start(bookie_id="")
        assert server.bookie_id == "bookie:3181"
        client = await world.connect(server)
        await client.add(adds(1, range(10)))
        await world.on_bookie(server.stop())
        with pytest.raises(CookieMismatch, match="keep its name: --bookie-id bookie:3181"):
            await world.start(bookie_id="", port=4000)
        moved = await world.start(bookie_id="bookie:3181", port=4000)
        client = await world.connect(moved)
        assert (await client.ask(ReadRequest(2, 0, 1, 9))).status is Status.OK

    world.run(body)


def test_locks_are_let_go_when_the_start_is_refused(world: World) -> None:
    async def body(world: World) -> None:
        await world.on_bookie((await world.start()).stop())
        with pytest.raises(CookieMismatch):
            await world.start(bookie_id="b2")
        assert not world.disk.locks
        await world.start()
        await asyncio.sleep(0)

    world.run(body)


# -- lost directories ----------------------------------------------------------------------------------------------
def test_a_lost_directory_needs_consent_once() -> None:
    place = Place()
    assert place.start(CONFIG) is Decision.NEW_BOOKIE
    for directory in ("/j", "/l", "/i"):
        place.disk.put(f"{directory}/current/file", b"data")
    two = dataclasses.replace(CONFIG, ledger_directories=("/l", "/l2"), allow_storage_expansion=True)
    assert place.start(two) is Decision.EXPANDED
    place.disk.put("/l2/current/file", b"data")
    place.disk.lose_directory("/l2", is_empty=False)
    with pytest.raises(CookieMismatch, match="start the bookie with --set lost_directories=/l2"):
        place.start(two)
    lost = dataclasses.replace(two, lost_directories=("/l2",))
    for config in (lost, two, lost):
        assert place.start(config) is Decision.OK
        assert not place.disk.is_directory("/l2")
    place.disk.put("/l2/current/old", b"data")
    with pytest.raises(CookieMismatch, match="cannot start bookie b1: /l2 has files, but it was declared lost"):
        place.start(two)
    place.disk.lose_directory("/l2", is_empty=True)
    assert place.start(two) is Decision.OK
    assert place.disk.exists("/l2/current/VERSION")
    place.disk.lose_directory("/l2", is_empty=True)
    with pytest.raises(CookieMismatch, match="the disk that replaced a lost one is missing"):
        place.start(two)
    assert place.start(lost) is Decision.OK


def test_databases_need_the_same_directories_for_ever() -> None:
    place = Place()
    rocksdb = {"ledger_index": "rocksdb"}
    two = dataclasses.replace(GROWN, **rocksdb)  # type: ignore[arg-type]
    assert place.start(two) is Decision.NEW_BOOKIE
    for directory in ("/j", "/l", "/l2", "/i", "/i2"):
        place.disk.put(f"{directory}/current/file", b"data")
    three = dataclasses.replace(two, ledger_directories=("/l", "/l2", "/l3"), index_directories=("/i", "/i2", "/i3"))
    with pytest.raises(StorageError, match="/l3 is new, and ledger_index = rocksdb: the number of directories decides"):
        place.start(three)
    assert not place.disk.exists("/l3")
    swapped = dataclasses.replace(two, ledger_directories=("/l2", "/l"))
    with pytest.raises(CookieMismatch, match="they are in another order"):
        place.start(swapped)
    for directory in ("/l2", "/i"):
        place.disk.lose_directory(directory, is_empty=False)
        lost = dataclasses.replace(two, lost_directories=(directory,))
        with pytest.raises(CookieMismatch, match=f"{directory}: declared lost, and the bookie cannot do without it"):
            place.start(lost)
        place.disk.lose_directory(directory, is_empty=True)
        assert place.start(lost) is Decision.OK


def test_a_journal_directory_is_new_as_one_with_databases() -> None:
    place = Place()
    one = dataclasses.replace(CONFIG, ledger_index="rocksdb", index_directories=())
    assert place.start(one) is Decision.NEW_BOOKIE
    both = dataclasses.replace(one, ledger_directories=("/l", "/j"), allow_storage_expansion=True)
    with pytest.raises(StorageError, match="/j is new, and ledger_index = rocksdb: the number of directories decides"):
        place.start(both)
    assert place.start(one) is Decision.OK


def test_only_directories_of_the_bookie_can_be_lost() -> None:
    with pytest.raises(ConfigError, match="lost_directories = /x: no directory of this bookie; it has /j, /l, /i"):
        check_identity(dataclasses.replace(CONFIG, lost_directories=("/l", "/x")))


def test_a_new_bookie_has_lost_nothing() -> None:
    place = Place()
    assert place.start(dataclasses.replace(CONFIG, lost_directories=("/l",))) is Decision.NEW_BOOKIE
    assert not place.disk.exists("/l/current/lost.directories")
