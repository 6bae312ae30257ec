"""The ZooKeeper driver on a ZooKeeper in memory: Apache's own znodes, lost answers, layouts, ids, incomplete listings.

What every driver must do is in the conformance suite, which runs on this one too.
"""

from __future__ import annotations

import asyncio
import base64
import json
import pathlib
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.fakes.zookeeper import FakeZooKeeper, Server

from bookies.errors import (
    ConfigError,
    InvalidArgument,
    LedgerExists,
    MetadataCorrupt,
    MetadataError,
    SessionExpired,
    VersionConflict,
)
from bookies.metadata.formats import parse_ledger
from bookies.metadata.formats.serde import parse_bookie_info
from bookies.metadata.interface.driver import RecordWrite
from bookies.metadata.zookeeper import ZkCluster, ZooKeeperDriver
from bookies.metadata.zookeeper.zk_layout import SHORT_ID_STOP, Manager, ledger_id_of, ledger_path, pack_layout
from bookies.metadata.zookeeper.zookeeper_port import (
    Acl,
    Create,
    Delete,
    NodeMissing,
    OutcomeUnknown,
    SetData,
)
from bookies.model import BookieId, BookieInfo, BookieMode, Endpoint, LedgerMetadata, LedgerState
from bookies.runtime import aio
from bookies.runtime.ports import Runtime

GOLDEN = pathlib.Path(__file__).parents[3] / "golden" / "metadata"
HEADER = b"BookieMetadataFormatVersion"
A, B = BookieId("bk-a:3181"), BookieId("bk-b:3181")
INFO = BookieInfo((Endpoint("bookie", "127.0.0.1", 3181, "bookie-rpc"),))
WRITABLE, READ_ONLY = BookieMode.WRITABLE, BookieMode.READ_ONLY


def driver_of(server: Server, root: str = "/ledgers", **changes: Any) -> ZooKeeperDriver:
    runtime: Runtime = changes.pop("runtime", None) or aio.runtime(seed=1)
    lease_ms: int = changes.pop("lease_ms", 2000)
    cluster = ZkCluster(root, **changes)
    return ZooKeeperDriver(f"zk://fake{root}", FakeZooKeeper(server), runtime, cluster, lease_ms=lease_ms)


def play(body: Callable[[Server, ZooKeeperDriver], Coroutine[Any, Any, None]], *paths: str, **changes: Any) -> None:
    """Run a test on a new server with these znodes, with one driver open."""

    async def main() -> None:
        server = Server(*(paths or ("/ledgers",)))
        driver = driver_of(server, **changes)
        async with asyncio.timeout(120):
            await driver.open()
            try:
                await body(server, driver)
            finally:
                await driver.close()

    asyncio.run(main())


def ledger(ledger_id: int, **changes: Any) -> LedgerMetadata:
    return LedgerMetadata(ledger_id, 2, 2, 1, ((0, (A, B)),), **changes)


# -- Apache's znodes ------------------------------------------------------------------------------------------------


class FixedRandom:
    """Makes one instance id."""

    def __init__(self, instance_id: str) -> None:
        self._number = uuid.UUID(instance_id).int

    def getrandbits(self, count: int) -> int:
        assert count == 128
        return self._number


def golden(stage: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """The root, and the znodes below it as far as this driver makes them, by path."""
    dump = json.loads((GOLDEN / f"{stage}.json").read_text())
    root = dump["nodes"][0]["path"]
    found = {node["path"]: node for node in dump["nodes"] if not node["path"].startswith(f"{root}/underreplication")}
    return root, {path: {**node, "data": base64.b64decode(node["data"])} for path, node in found.items()}


async def write_stage(driver: ZooKeeperDriver, root: str, znodes: dict[str, dict[str, Any]]) -> None:
    """Do what Apache's cluster did to come to these znodes."""
    for path, node in znodes.items():
        name, data = path.rpartition("/")[2], node["data"]
        ledger_id = ledger_id_of(root, path)
        if path == f"{root}/idgen":
            await driver.next_ledger_id()
        elif path.startswith(f"{root}/available/") and name != "readonly":
            mode = READ_ONLY if "/readonly/" in path else WRITABLE
            await driver.register(BookieId(name), mode, parse_bookie_info(BookieId(name), data))
        elif path.startswith(f"{root}/cookies/"):
            await driver.create_cookie(BookieId(name), data)
        elif ledger_id is not None:
            made = await driver.create_ledger(parse_ledger(ledger_id, data, node["ctime"]))
            for _ in range(node["version"]):
                made = await driver.write_ledger(made.metadata, made.version)


async def removal_of_id_nodes(server: Server) -> None:
    """They go in the background."""
    for _ in range(100):
        await asyncio.sleep(0)
    assert not [path for path in server.nodes if "/ID-" in path]


STAGES = sorted(path.stem for path in GOLDEN.glob("[1-8]-*.json") if not path.stem.endswith("-decoded"))


@pytest.mark.parametrize("stage", STAGES)
def test_every_znode_is_what_apache_writes(stage: str) -> None:
    root, expected = golden(stage)
    manager = next(each for each in Manager if pack_layout(each) == expected[f"{root}/LAYOUT"]["data"])
    fixed = FixedRandom(expected[f"{root}/INSTANCEID"]["data"].decode())
    real = aio.runtime(seed=1)
    runtime = Runtime(real.clock, real.network, real.disk, real.workers, fixed)  # type: ignore[arg-type]

    async def body(server: Server, driver: ZooKeeperDriver) -> None:
        await driver.initialize_cluster()
        await write_stage(driver, root, expected)
        if f"{root}/idgen-long" in expected:  # made by hand, empty, in that capture
            server.apply([Create(f"{root}/idgen-long", b"", Acl.OPEN)], 0)
            other = driver_of(server, root)
            await other.open()
            assert [await other.next_ledger_id() for _ in range(3)] == [4294967296, 4294967297, 4294967298]
            await other.close()
        await removal_of_id_nodes(server)
        found = {path: node for path, node in server.nodes.items() if path == root or path.startswith(f"{root}/")}
        assert sorted(found) == sorted(expected)
        for path, node in found.items():
            assert node.data == expected[path]["data"], path
            assert node.version == expected[path]["version"], path
            assert bool(node.owner) == expected[path]["ephemeral"], path
            assert [f"{node.acl.value}:31"] == expected[path]["acl"], path

    play(body, "/other", root=root, manager=manager, runtime=runtime)


def test_ids_of_a_flat_cluster_are_apaches() -> None:
    """The same operations as in the capture, the same ids: every child of the root counts."""
    dump = json.loads((GOLDEN / "7-ledgers-flat.json").read_text())

    async def body(server: Server, driver: ZooKeeperDriver) -> None:
        await driver.initialize_cluster()
        await driver.create_cookie(A, b"")
        ids = []
        for _ in range(3):
            ids.append(await driver.next_ledger_id())
            await driver.create_ledger(ledger(ids[-1]))
        await driver.delete_ledger(ids[1])
        await driver.create_ledger(ledger(12345678))
        assert [*ids, 12345678] == dump["generated"]
        assert [each async for page in driver.ledger_ids() for each in page] == dump["listed"]

    play(body, "/other", root="/flat", manager=Manager.FLAT)


def test_nothing_of_ours_is_below_the_root() -> None:
    async def body(server: Server, driver: ZooKeeperDriver) -> None:
        await driver.initialize_cluster()
        made = await driver.create_ledger(ledger(7))
        await driver.create_record("logs/a", b"x")
        await driver.delete_ledger(7, made.version)
        below = sorted(path for path in server.nodes if path.startswith("/ledgers/"))
        assert below == [f"/ledgers/{name}" for name in ("INSTANCEID", "LAYOUT", "available", "available/readonly")]
        beside = {path: node.data for path, node in server.nodes.items() if path.startswith("/ledgers-bookies/")}
        assert beside["/ledgers-bookies/spent/000000000000"] == b"7"
        assert beside["/ledgers-bookies/records/logs,a"] == b"x"

    play(body)


# -- lost answers ----------------------------------------------------------------------------------------------------


def test_lost_answers_of_ledgers_are_found_out() -> None:
    async def body(server: Server, driver: ZooKeeperDriver) -> None:
        server.lost_replies = 1
        await driver.next_ledger_id()
        await driver.create_ledger(ledger(1, creator_token=9))
        server.lost_replies = 1
        made = await driver.create_ledger(ledger(7, creator_token=5))
        assert (await driver.read_ledger(7)) == made
        for lost in ("lost_replies", "lost_requests"):
            setattr(server, lost, 1)
            changed = made.metadata.replace(custom_metadata={"k": lost.encode()})
            made = await driver.write_ledger(changed, made.version)
            assert (await driver.read_ledger(7)) == made
            setattr(server, lost, 1)
            await driver.register(A, WRITABLE, INFO)
            await driver.unregister(A)
        server.lost_requests = 1
        made = await driver.create_ledger(ledger(8, creator_token=6))
        for number, lost in ((7, "lost_replies"), (8, "lost_requests")):
            setattr(server, lost, 1)
            await driver.delete_ledger(number)
            with pytest.raises(LedgerExists, match="deleted"):
                await driver.create_ledger(ledger(number, creator_token=5))
        server.lost_requests = 100
        with pytest.raises(OutcomeUnknown):
            await driver.create_ledger(ledger(9, creator_token=6))
        server.lost_requests = 100
        with pytest.raises(OutcomeUnknown):
            await driver.write_ledger((await driver.read_ledger(1)).metadata, (await driver.read_ledger(1)).version)

    play(body)


def test_a_write_that_somebody_else_overtook_is_a_conflict() -> None:
    async def body(server: Server, driver: ZooKeeperDriver) -> None:
        other = driver_of(server)
        await other.open()
        made = await driver.create_ledger(ledger(7))
        await other.write_ledger(made.metadata.replace(state=LedgerState.IN_RECOVERY), made.version)
        server.lost_requests = 1
        with pytest.raises(VersionConflict):
            await driver.write_ledger(made.metadata, made.version)
        await other.close()

    play(body)


def test_a_version_of_a_deleted_record_is_not_that_of_its_successor() -> None:
    """Although ZooKeeper's own version is 0 both times."""

    async def body(server: Server, driver: ZooKeeperDriver) -> None:
        other = driver_of(server)
        await other.open()
        first = await driver.create_record("r", b"first")
        await driver.create_cookie(A, b"first")
        cookie = (await driver.read_cookie(A))[1]
        second = await other.create_record("s", b"")
        assert second > first
        await other.delete_record("r", first)
        await other.delete_cookie(A, cookie)
        await other.create_record("r", b"second")
        await other.create_cookie(A, b"second")
        with pytest.raises(VersionConflict):
            await driver.write_record("r", b"late", first)
        with pytest.raises(VersionConflict):
            await driver.delete_record("r", first)
        with pytest.raises(VersionConflict):
            await driver.write_cookie(A, b"late", cookie)
        await other.close()

    play(body)


def test_a_transaction_that_is_too_large() -> None:
    async def body(server: Server, driver: ZooKeeperDriver) -> None:
        with pytest.raises(InvalidArgument, match=r"ZooKeeper accepts at most 1,048,575 in one request"):
            await driver.transact([RecordWrite(name, bytes(600_000), 0) for name in ("a", "b")])
        assert await driver.record_names("") == []
        assert await driver.transact([]) == 0

    play(body)


# -- layouts and clusters ---------------------------------------------------------------------------------------------


def test_the_layout_is_the_clusters() -> None:
    async def body(server: Server, driver: ZooKeeperDriver) -> None:
        assert server.nodes["/ledgers/LAYOUT"].data == pack_layout(Manager.LONG)
        await driver.create_ledger(ledger(7))
        assert "/ledgers/000/0000/0000/0000/L0007" in server.nodes
        same = driver_of(server)
        await same.open()
        assert (await same.read_ledger(7)).metadata.ledger_id == 7
        await same.close()
        with pytest.raises(
            ConfigError, match="asks for the layout flat, but the cluster has longhierarchical: write zk"
        ):
            await driver_of(server, manager=Manager.FLAT).open()

    play(body, manager=Manager.LONG)


@pytest.mark.parametrize(
    ("manager", "fitting", "other"),
    [
        (Manager.FLAT, Manager.FLAT, Manager.HIERARCHICAL),
        (Manager.HIERARCHICAL, Manager.HIERARCHICAL, Manager.FLAT),
        (Manager.LONG, Manager.LONG, Manager.FLAT),
    ],
)
def test_a_lost_layout_is_not_guessed_while_there_are_ledgers(
    manager: Manager, fitting: Manager, other: Manager
) -> None:
    """Under another one all ledgers would look as if they had been deleted, to those who collect too."""

    async def body(server: Server, driver: ZooKeeperDriver) -> None:
        await driver.initialize_cluster()
        await driver.create_ledger(ledger(7))
        server.apply([Delete("/ledgers/LAYOUT")], 0)
        for wanted in (None, other):
            for may_create in (False, True):
                with pytest.raises(MetadataCorrupt, match=f"LAYOUT is missing, but there are ledgers.*{manager.value}"):
                    await driver_of(server, manager=wanted, may_create=may_create).open()
        assert "/ledgers/LAYOUT" not in server.nodes
        told = driver_of(server, manager=fitting)
        await told.open()
        assert (await told.read_ledger(7)).metadata.ledger_id == 7
        assert server.nodes["/ledgers/LAYOUT"].data == pack_layout(manager)
        await told.close()

    play(body, manager=manager)


def test_an_unreadable_record_is_replaced_at_its_version() -> None:
    async def body(server: Server, driver: ZooKeeperDriver) -> None:
        await driver.create_ledger(ledger(7))
        server.apply([SetData(str(ledger_path("/ledgers", Manager.HIERARCHICAL, 7)), b"nonsense")], 0)
        with pytest.raises(MetadataCorrupt) as corrupt:
            await driver.read_ledger(7)
        assert corrupt.value.version is not None
        with pytest.raises(VersionConflict):
            await driver.write_ledger(ledger(7), corrupt.value.version - 1)
        written = await driver.write_ledger(ledger(7), corrupt.value.version)
        assert await driver.read_ledger(7) == written

    play(body)


@pytest.mark.parametrize("data", [b"", b"\n", b"\xff\xfe\0"])
def test_an_instance_id_that_is_none(data: bytes) -> None:
    async def body(server: Server, driver: ZooKeeperDriver) -> None:
        await driver.initialize_cluster()
        server.apply([SetData("/ledgers/INSTANCEID", data)], 0)
        words = r"/ledgers/INSTANCEID is b.*, which is not an instance id: write the one"
        for ask in (driver.instance_id, driver.initialize_cluster):
            with pytest.raises(MetadataCorrupt, match=words):
                await ask()

    play(body)


def test_strange_znodes_among_the_lists_of_spent_ids_are_passed_over() -> None:
    async def body(server: Server, driver: ZooKeeperDriver) -> None:
        await driver.initialize_cluster()
        await driver.create_ledger(ledger(7))
        await driver.delete_ledger(7)
        server.apply([Create("/ledgers-bookies/spent/strange", b"x", Acl.OPEN)], 0)
        assert (await driver.given_ids()).spent == ((7, 7),)

    play(body)


def test_a_client_makes_no_cluster() -> None:
    async def main() -> None:
        server = Server()
        with pytest.raises(MetadataError, match="there is no cluster at zk://fake/ledgers: check the path"):
            await driver_of(server, may_create=False).open()
        assert list(server.nodes) == ["/"]

    asyncio.run(main())


def test_a_cluster_below_a_path_of_its_own() -> None:
    async def body(server: Server, driver: ZooKeeperDriver) -> None:
        made = await driver.initialize_cluster()
        assert server.nodes["/prod/eu/ledgers/INSTANCEID"].data.decode() == made
        assert await driver.initialize_cluster() == made

    play(body, "/other", root="/prod/eu/ledgers")


def test_a_lost_instance_id_is_not_replaced() -> None:
    async def body(server: Server, driver: ZooKeeperDriver) -> None:
        await driver.initialize_cluster()
        await driver.create_cookie(A, b"")
        server.apply([Delete("/ledgers/INSTANCEID")], 0)
        with pytest.raises(MetadataError, match="has no instance id, but cookies"):
            await driver.initialize_cluster()
        assert await driver.instance_id() is None

    play(body)


def test_secure_znodes_belong_to_their_creator() -> None:
    async def body(server: Server, driver: ZooKeeperDriver) -> None:
        await driver.initialize_cluster()
        await driver.create_ledger(ledger(7))
        await driver.register(A, WRITABLE, INFO)
        made = [path for path in server.nodes if path not in ("/", "/ledgers")]
        assert {server.nodes[path].acl for path in made} == {Acl.CREATOR}

    play(body, is_secure=True)


# -- ids --------------------------------------------------------------------------------------------------------------


def test_ids_beyond_31_bits() -> None:
    async def body(server: Server, driver: ZooKeeperDriver) -> None:
        assert await driver.next_ledger_id() == 0
        server.nodes["/ledgers/idgen"].sequence = SHORT_ID_STOP - 1
        ids = [await driver.next_ledger_id() for _ in range(3)]
        assert ids == [SHORT_ID_STOP - 1, 1 << 32, (1 << 32) + 1]
        assert server.nodes["/ledgers/idgen-long/HOB-0000000001"].acl is Acl.OPEN
        for number in range(1, 6):
            server.nodes[f"/ledgers/idgen-long/HOB-{number:010d}"].sequence = SHORT_ID_STOP
            assert await driver.next_ledger_id() == (number + 1) << 32
        await removal_of_id_nodes(server)
        left = [path for path in server.nodes if "HOB" in path]
        assert left == [f"/ledgers/idgen-long/HOB-{number:010d}" for number in (4, 5, 6)]
        other = driver_of(server)
        await other.open()
        assert await other.next_ledger_id() == (6 << 32) + 1
        await other.close()

    play(body)


def test_ids_of_a_flat_cluster_end() -> None:
    async def body(server: Server, driver: ZooKeeperDriver) -> None:
        server.nodes["/ledgers"].sequence = 1 << 31  # the server's counter turns negative
        with pytest.raises(MetadataError, match="ids of the layout flat are used up"):
            await driver.next_ledger_id()

    play(body, manager=Manager.FLAT)


# -- listing ----------------------------------------------------------------------------------------------------------


def test_a_cluster_that_is_gone_is_no_empty_cluster() -> None:
    async def body(server: Server, driver: ZooKeeperDriver) -> None:
        with pytest.raises(MetadataError, match="there is no cluster at /ledgers in ZooKeeper"):
            [each async for each in driver.ledger_ids()]

    play(body, "/other")


@pytest.mark.parametrize("how", ["root", "instance"])
def test_a_cluster_made_anew_during_the_listing(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookies.metadata.shared.store_driver.PAGE_COUNT", 1)

    async def body(server: Server, driver: ZooKeeperDriver) -> None:
        await driver.initialize_cluster()
        for ledger_id in (1, 20_000):
            await driver.create_ledger(ledger(ledger_id))
        pages = driver.ledger_ids()
        assert await anext(pages) == [1]
        if how == "instance":  # as metaformat does
            server.apply([Delete("/ledgers/INSTANCEID")], 0)
            server.apply([Create("/ledgers/INSTANCEID", b"new", Acl.OPEN)], 0)
        for path in sorted((path for path in server.nodes if path.startswith("/ledgers/0")), reverse=True):
            server.apply([Delete(path)], 0)
        if how == "root":
            for path in sorted((path for path in server.nodes if path.startswith("/ledgers")), reverse=True):
                if path != "/ledgers-bookies" and not path.startswith("/ledgers-bookies/"):
                    server.apply([Delete(path)], 0)
            server.apply([Create("/ledgers", b"", Acl.OPEN)], 0)
        with pytest.raises(MetadataError, match="was formatted while its ledgers were listed"):
            await anext(pages)

    play(body)


def test_what_is_no_ledger_is_not_listed() -> None:
    async def body(server: Server, driver: ZooKeeperDriver) -> None:
        await driver.create_ledger(ledger(7))
        await driver.next_ledger_id()
        for path in ("/ledgers/00/0000/x", "/ledgers/00/strange", "/ledgers/disableHealthCheck", "/ledgers/99"):
            server.apply([Create(path, b"", Acl.OPEN)], 0)
        assert [each async for each in driver.ledger_ids()] == [[7]]

    play(body)


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_everything_but_registrations_outlives_a_session() -> None:
    async def body(server: Server, driver: ZooKeeperDriver) -> None:
        await driver.register(A, WRITABLE, INFO)
        made = await driver.create_ledger(ledger(7))
        assert isinstance(driver.zookeeper, FakeZooKeeper)
        driver.zookeeper.expire()
        assert (await driver.read_ledger(7)) == made
        assert driver.session_id is None
        assert (await driver.bookies(WRITABLE)).bookies == ()
        await driver.register(A, WRITABLE, INFO)
        driver.zookeeper.expire()
        with pytest.raises(SessionExpired):
            await driver.register(A, READ_ONLY, INFO)

    play(body)


def test_two_processes_in_different_modes_at_once() -> None:
    """Neither is registered while the other is; one of them stays, or none."""

    async def body(server: Server, driver: ZooKeeperDriver) -> None:
        other = driver_of(server, lease_ms=200)
        await other.open()
        attempts = (other.register(A, WRITABLE, INFO), driver.register(A, READ_ONLY, INFO))
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
        registered = [*(await driver.bookies(WRITABLE)).bookies, *(await driver.bookies(READ_ONLY)).bookies]
        assert len(registered) == sum(outcome is None for outcome in outcomes) <= 1
        await other.close()

    play(body, lease_ms=200)


def test_where_bookies_are_is_known_while_nothing_answers() -> None:
    """Of those in a list that was read; else a writer that has to connect again would lose them all."""

    async def body(server: Server, driver: ZooKeeperDriver) -> None:
        client = driver_of(server)
        await client.open()
        await driver.register(A, WRITABLE, INFO)
        await client.bookies(WRITABLE)
        server.is_silent = True
        assert await client.bookie_info(A) == INFO
        with pytest.raises(MetadataError, match="has answered"):
            await client.bookie_info(B)
        server.is_silent = False
        await driver.unregister(A)
        assert await client.bookie_info(A) is None
        server.is_silent = True
        with pytest.raises(MetadataError, match="has answered"):
            await client.bookie_info(A)
        server.is_silent = False
        await client.close()

    play(body)


def test_strange_names_among_the_bookies_are_skipped() -> None:
    async def body(server: Server, driver: ZooKeeperDriver) -> None:
        await driver.initialize_cluster()
        for name in ("a,b", "READONLY"):
            server.apply([Create(f"/ledgers/available/{name}", b"", Acl.OPEN)], 0)
        await driver.register(A, WRITABLE, INFO)
        assert (await driver.bookies(WRITABLE)).bookies == (A,)

    play(body)


def test_a_refusal_says_which_znode() -> None:
    assert str(NodeMissing("/a", 3)) == "NodeMissing: /a"


def test_a_removed_cluster_leaves_what_is_not_its_own() -> None:
    """Also after an interruption in the middle, when the instance id is gone and ledgers are left."""

    async def body(server: Server, driver: ZooKeeperDriver) -> None:
        instance_id = await driver.initialize_cluster()
        for number in range(250):
            await driver.create_ledger(ledger(number))
        await driver.create_record("logs/events", b"record")
        for path in ("/ledgers/foreign", "/ledgers/foreign/child", "/other"):
            await driver.zookeeper.create(path, b"", Acl.OPEN)
        await driver.zookeeper.delete("/ledgers/INSTANCEID")
        await driver.zookeeper.delete(str(ledger_path("/ledgers", Manager.HIERARCHICAL, 7)))
        await driver.remove_cluster(instance_id)
        assert sorted(server.nodes) == ["/", "/ledgers", "/ledgers/foreign", "/ledgers/foreign/child", "/other"]
        await driver.remove_cluster(instance_id)
        await driver.zookeeper.delete("/ledgers/foreign/child")
        await driver.zookeeper.delete("/ledgers/foreign")
        await driver.remove_cluster(instance_id)
        assert sorted(server.nodes) == ["/", "/other"]

    play(body)
