"""Giving a bookie up: what is refused, what goes, and an interruption at every single step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from bookies.bookie import formatting
from bookies.bookie.formatting import Findings
from bookies.config import BookieConfig
from bookies.errors import (
    BookKeeperError,
    CookieMismatch,
    CookieNotFound,
    CorruptRecord,
    DirectoryInUse,
    InvalidArgument,
    StorageError,
)
from bookies.lab.sim.world.disk import LOSSES, Loss, SimDisk
from bookies.lab.sim.world.loop import Crashed, SimLoop
from bookies.metadata.embedded import MemoryDriver
from bookies.model import BookieId, BookieInfo, BookieMode, Endpoint, LedgerMetadata, LedgerState
from bookies.storage.identity import cookie
from bookies.storage.identity.admission import Decision

from .conftest import World, adds
from .test_identity import CONFIG, Place

FILES = {
    "/j/current/1a.txn": b"journal",
    "/l/current/0.log": b"entries",
    "/l/current/lastMark": b"m",
    "/l/current/DIRTY": b"",
    "/l/control.json": b"{}",
    "/i/current/0/1/1.idx": b"index",
    "/i/current/index.catalog": b"catalog",
    "/l/mine.txt": b"not a bookie's",
}
B1 = BookieId("b1")


def used(seed: int = 0) -> Place:
    """A bookie that has stopped."""
    place = Place(seed)
    place.start(CONFIG)
    for path, data in FILES.items():
        place.disk.put(path, data)
    return place


def on(place: Place, body: Callable[[MemoryDriver], Coroutine[Any, Any, Any]]) -> Any:
    loop = SimLoop()

    async def main() -> Any:
        driver = MemoryDriver(place.store)
        await driver.open()
        try:
            return await body(driver)
        finally:
            await driver.close()

    try:
        return loop.run(main())
    finally:
        loop.close()


def format_bookie(place: Place, path: str = "/l", *, force: bool = False) -> Findings | None:
    """What the command does."""

    async def body(driver: MemoryDriver) -> Findings | None:
        found = formatting.find(place.disk, path)
        if found is None:
            return None
        locks = formatting.lock(place.disk, found)
        try:
            await formatting.look_up(driver, found)
            if not force and (objections := formatting.objections(found)):
                raise InvalidArgument("; ".join(objections))
            await formatting.perform(place.disk, driver, found)
        finally:
            for each in locks:
                each.release()
        return found

    result: Findings | None = on(place, body)
    return result


def add_ledger(place: Place, ledger_id: int, *ensemble: str, write_quorum: int = 2) -> None:
    async def body(driver: MemoryDriver) -> None:
        names = tuple(map(BookieId, ensemble))
        await driver.create_ledger(
            LedgerMetadata(
                ledger_id, len(names), write_quorum, 1, ((0, names),), LedgerState.CLOSED, last_entry_id=5, length=9
            )
        )

    on(place, body)


@pytest.mark.parametrize("path", ["/j", "/l", "/i", "/l/current", "/l/../l/"])
def test_everything_of_the_bookie_goes_and_nothing_else(path: str) -> None:
    place = used()
    place.disk.put("/other/current/VERSION", b"somebody's")
    found = format_bookie(place, path)
    assert found is not None
    assert (found.bookie, sorted(found.directories), found.missing) == ("b1", ["/i", "/j", "/l"], [])
    assert found.file_count == 9, "six, and three cookies"
    assert found.size == sum(map(len, FILES.values())) - len(b"{}not a bookie's") + 3 * len(found.cookie.pack())
    assert place.disk.files() == {"/l/mine.txt": b"not a bookie's", "/other/current/VERSION": b"somebody's"}
    assert place.disk.list("/i/current") == []
    assert place.cookie() is None
    assert format_bookie(place, path) is None
    assert place.start(CONFIG) is Decision.NEW_BOOKIE


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("path", ["/j", "/i"])
def test_a_crash_at_every_disk_call(path: str, loss: Loss) -> None:
    """The bookie starts with all it had, or as a new one, or not at all; and the same command finishes it."""
    whole = used().disk.files()
    outcomes = {"whole": 0, "new": 0}
    said: list[str] = []
    step = 0
    while True:
        step += 1
        place = used(step)
        place.disk.crash_at = place.disk.call_count + step
        is_done = False
        try:
            format_bookie(place, path)
            is_done = True
        except Crashed:
            pass
        place.disk.crash(loss)
        before = place.disk.files()
        try:
            decision = place.start(CONFIG)
        except CookieMismatch as error:
            said.append(str(error))
            assert place.disk.files() == before
        else:
            if decision is Decision.OK:
                assert place.disk.files() == whole
                outcomes["whole"] += 1
            else:
                assert not [name for name in before if "/current/" in name]
                outcomes["new"] += 1
                assert is_done or place.cookie() is not None
        format_bookie(place, path)
        place.disk.crash(loss)
        assert not [name for name in place.disk.files() if "/current/" in name]
        assert place.cookie() is None
        assert place.start(CONFIG) is Decision.NEW_BOOKIE
        if is_done:
            break
    assert step > 60
    assert outcomes["whole"] > 20, "nothing is touched while it is being looked at"
    assert len(said) > 30
    assert all("bk bookie format" in text for text in said)
    assert outcomes["new"] <= 4


def test_the_cookie_goes_when_the_directories_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    place = used()

    async def die(*arguments: object) -> None:
        raise Crashed("the store is not told")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryDriver, "delete_cookie", die)
        with pytest.raises(Crashed):
            format_bookie(place)
    names = {name.rpartition("/")[2] for name in place.disk.files(is_durable=True) if "/current/" in name}
    assert names == {cookie.EMPTYING}
    assert place.cookie() is not None
    with pytest.raises(CookieMismatch, match="Run it again: bk bookie format /j"):
        place.start(CONFIG)
    assert format_bookie(place) is not None
    assert place.cookie() is None


def test_a_running_bookie_is_left_alone(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        await (await world.connect(server)).add(adds(1, [0]))
        before = world.disk.files()
        found = formatting.find(world.disk, "/ledgers")
        assert found is not None
        with pytest.raises(DirectoryInUse, match=r"bookie b1 runs.*Nothing was changed. Stop it first"):
            formatting.lock(world.disk, found)
        assert world.disk.files() == before
        await world.on_bookie(server.stop())
        for each in formatting.lock(world.disk, found):
            each.release()
        await world.start()

    world.run(body)


def test_a_bookie_that_runs_on_another_machine_is_registered() -> None:
    place = used()

    async def body(driver: MemoryDriver) -> None:
        info = BookieInfo((Endpoint("bookie", "elsewhere", 3181, "bookie-rpc"),))
        await driver.register(B1, BookieMode.READ_ONLY, info)
        found = formatting.find(place.disk, "/l")
        assert found is not None
        with pytest.raises(CookieMismatch, match="registered as running, at elsewhere:3181"):
            await formatting.look_up(driver, found)

    on(place, body)


def test_directories_of_another_bookie_or_cluster() -> None:
    place = used()
    before = place.disk.files()
    other = BookieConfig(bookie_id="b7", journal_directories=("/j",), ledger_directories=("/l",))
    place.disk.put("/i/current/VERSION", cookie.master_cookie(other, "b7", "cluster").pack())
    with pytest.raises(CookieMismatch, match=r"/i belongs to bookie b7 of cluster cluster, /l to b1"):
        format_bookie(place)
    place.disk.put("/i/current/VERSION", before["/i/current/VERSION"])
    stranger = Place()
    stranger.disk = place.disk
    with pytest.raises(CookieMismatch, match="memory: holds no cluster"):
        format_bookie(stranger)
    foreign = cookie.master_cookie(CONFIG, "b1", "cluster-2").pack()
    for directory in ("/j", "/l", "/i"):
        place.disk.put(f"{directory}/current/VERSION", foreign)
    with pytest.raises(CookieMismatch, match=r"belongs to cluster cluster-2.*Name the metadata of its cluster"):
        format_bookie(place, force=True)
    assert place.disk.files().keys() == before.keys()
    assert place.cookie() is not None


def test_ledgers_that_would_lose_a_replica() -> None:
    place = used()
    add_ledger(place, 3, "b1", "b2")
    add_ledger(place, 4, "b2", "b3")
    for ledger_id in range(10, 18):
        add_ledger(place, ledger_id, "b1", write_quorum=1)
    before = place.disk.files()
    with pytest.raises(InvalidArgument) as caught:
        format_bookie(place)
    for words in (
        "9 ledgers have entries on it (3, 10, 11, 12, 13, ...)",
        "bk bookie recover b1",
        "no bookie can be started under this name until they are copied",
        "8 have their entries nowhere else (10, 11, 12, 13, 14, ...), which are lost",
    ):
        assert words in str(caught.value)
    assert place.disk.files() == before
    found = format_bookie(place, force=True)
    assert found is not None
    assert found.ledgers == [3, *range(10, 18)]
    assert not found.is_forgotten
    assert not [name for name in place.disk.files() if "/current/" in name]


def test_a_name_stays_taken_while_ledgers_need_it() -> None:
    """Nobody may deny under this name what the bookie held; with the ledgers copied it is free again."""
    place = used()
    add_ledger(place, 3, "b1", "b2")
    format_bookie(place, force=True)
    assert place.cookie() is not None
    with pytest.raises(CookieMismatch, match="/j is empty: a disk is missing or was wiped"):
        place.start(CONFIG)
    assert format_bookie(place) is None, "there is nothing that says whose directories these are"

    async def forget(driver: MemoryDriver) -> list[str]:
        found = await formatting.find_stored(driver, B1)
        await formatting.look_up(driver, found)
        texts = formatting.objections(found)
        if not texts:
            await formatting.perform(place.disk, driver, found)
        return texts

    assert "1 ledger has entries on it (3)" in on(place, forget)[0]

    async def copied(driver: MemoryDriver) -> None:
        found = await driver.read_ledger(3)
        others = ((0, (BookieId("b3"), BookieId("b2"))),)
        await driver.write_ledger(found.metadata.replace(ensembles=others), found.version)

    on(place, copied)
    assert on(place, forget) == []
    assert place.cookie() is None
    with pytest.raises(InvalidArgument, match="the cluster has no bookie b1: nothing to forget; it has none"):
        on(place, forget)
    assert place.start(CONFIG) is Decision.NEW_BOOKIE


def test_a_directory_that_is_not_there() -> None:
    place = used()
    gone = used()
    gone.store = place.store
    gone.disk = SimDisk(Random(1))
    for path, data in place.disk.files().items():
        if not path.startswith("/i/"):
            gone.disk.put(path, data)
    with pytest.raises(InvalidArgument, match="/i is missing: mount the disk"):
        format_bookie(gone)
    found = format_bookie(gone, force=True)
    assert found is not None
    assert found.missing == ["/i"]
    assert gone.cookie() is None
    gone.disk.put("/i/current/VERSION", found.cookie.pack())
    gone.disk.put("/i/current/0/1/1.idx", b"index")
    with pytest.raises(CookieMismatch, match="/i holds data of it"):
        gone.start(CONFIG)


def test_files_of_which_it_is_not_known_whose_they_are() -> None:
    place = used()
    place.disk.unlink("/i/current/VERSION")
    for path in ("/l", "/i"):
        with pytest.raises(CookieMismatch, match="/i has files but no VERSION"):
            format_bookie(place, path)
    place.disk.put("/i/current/VERSION", b"5\nnonsense")
    with pytest.raises(CorruptRecord, match="/i/current/VERSION"):
        format_bookie(place)
    with pytest.raises(InvalidArgument, match="/x is not a directory of a bookie"):
        format_bookie(place, "/x")


def test_a_copy_is_not_what_its_cookie_names() -> None:
    place = used()
    for path, data in place.disk.files("/l/").items():
        place.disk.put(f"/backup{path}", data)
    before = place.disk.files()
    with pytest.raises(CookieMismatch, match="/backup/l is not what its cookie names"):
        format_bookie(place, "/backup/l")
    assert place.disk.files() == before


def test_relative_names_are_relative_to_where_the_bookie_ran() -> None:
    config = BookieConfig(bookie_id="b1", journal_directories=("b1/j",), ledger_directories=("b1/l",))
    place = Place()
    data = cookie.master_cookie(config, "b1", on(place, lambda driver: driver.initialize_cluster())).pack()
    for directory in ("/home/b1/j", "/home/b1/l", "/elsewhere/b1/j"):
        place.disk.put(f"{directory}/current/VERSION", data)
    on(place, lambda driver: driver.create_cookie(B1, data))
    found = format_bookie(place, "/home/b1/l")
    assert found is not None
    assert found.directories == ["/home/b1/j", "/home/b1/l"]
    assert list(place.disk.files()) == ["/elsewhere/b1/j/current/VERSION"]


def test_a_stored_cookie_of_other_directories_stays() -> None:
    """The bookie was given up once, and lives under the same name on other disks."""
    place = used()
    other = BookieConfig(bookie_id="b1", journal_directories=("/new/j",), ledger_directories=("/new/l",))
    data = cookie.master_cookie(other, "b1", "whatever").pack()

    async def body(driver: MemoryDriver) -> None:
        _, version = await driver.read_cookie(B1)
        await driver.write_cookie(B1, data, version)

    on(place, body)
    found = format_bookie(place)
    assert found is not None
    assert found.version is None
    assert place.cookie() == data
    assert not [name for name in place.disk.files() if "/current/" in name]


def test_a_disk_that_fails_is_no_end() -> None:
    place = used()
    place.disk.fail("unlink", "0.log", lambda: OSError(5, "Input/output error"))
    with pytest.raises(OSError, match="Input/output error"):
        format_bookie(place)
    assert place.cookie() is not None
    place.disk.fail("sync_directory", "/i/current", lambda: OSError(5, "Input/output error"), skip=2)
    with pytest.raises(StorageError, match="sync of the directory failed"):
        format_bookie(place)
    assert format_bookie(place) is not None

    async def body(driver: MemoryDriver) -> None:
        with pytest.raises(CookieNotFound):
            await driver.read_cookie(B1)

    on(place, body)
    assert issubclass(CookieNotFound, BookKeeperError)
    assert inspect.iscoroutinefunction(formatting.perform)
