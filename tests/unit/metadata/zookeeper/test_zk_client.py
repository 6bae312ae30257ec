"""The client of ZooKeeper on a simulated network, against the ZooKeeper in memory; a real one: tests/apache."""

from __future__ import annotations

import asyncio
import pathlib
import socket
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from tests.fakes.certificates import Authority
from tests.fakes.kerberos import FakeKerberos
from tests.fakes.world import LoopClock
from tests.fakes.zookeeper import Server
from tests.fakes.zookeeper_server import WireServer

from bookies.errors import ClientClosed, ConfigError, MetadataError, SessionExpired
from bookies.lab.sim.world import Trace
from bookies.lab.sim.world.disk import SimDisk
from bookies.lab.sim.world.loop import SimLoop
from bookies.lab.sim.world.network import SimNetwork
from bookies.lab.sim.world.workers import SimWorkers
from bookies.metadata.zookeeper import zk_client, zk_wire
from bookies.metadata.zookeeper.zk_client import ZooKeeperClient
from bookies.metadata.zookeeper.zk_groups import Groups
from bookies.metadata.zookeeper.zk_wire import Code, Fault
from bookies.metadata.zookeeper.zookeeper_port import (
    Acl,
    Check,
    Create,
    Credentials,
    Delete,
    Denied,
    NodeExists,
    NodeMissing,
    NotEmpty,
    OutcomeUnknown,
    Refusal,
    SetData,
    Stat,
    WrongVersion,
)
from bookies.runtime import aio
from bookies.runtime.ports import KerberosLogin, Runtime

TIMEOUT_MS = 3000


class Ensemble:
    """Servers z1, z2 of one ensemble, which share its znodes, and clients of them."""

    def __init__(self, loop: SimLoop) -> None:
        self.network = SimNetwork(loop, Trace(loop.time), Random(1))
        self.zookeeper = Server("/ledgers")
        self.wire = WireServer(self.zookeeper)
        self.kerberos = FakeKerberos()
        self._listeners: dict[str, Any] = {}
        self._loop = loop

    async def start(self, host: str) -> None:
        port = self.network.port(host)
        self._listeners[host] = await port.listen(host, 2181, self.wire.connection)

    def stop(self, host: str) -> None:
        self._listeners.pop(host).close()
        for connection in list(self.wire.connections):
            connection.transport.abort()

    def client(self, hosts: str = "z1:2181", credentials: Credentials | None = None) -> ZooKeeperClient:
        disk, workers = SimDisk(), SimWorkers(self._loop)
        runtime = Runtime(LoopClock(self._loop), self.network.port("client"), disk, workers, Random(2))
        runtime = replace(runtime, kerberos=lambda: self.kerberos)
        return ZooKeeperClient(hosts, TIMEOUT_MS, runtime, credentials)


def play(body: Callable[[Ensemble], Coroutine[Any, Any, None]]) -> None:
    """Run a body on virtual time, with the server z1."""
    loop = SimLoop()
    ensemble = Ensemble(loop)

    async def main() -> None:
        await ensemble.start("z1")
        await body(ensemble)

    try:
        loop.run(main())
    finally:
        loop.close()


def test_requests_and_refusals() -> None:
    async def body(ensemble: Ensemble) -> None:
        client = ensemble.client()
        await client.open()
        assert client.session_id is not None
        path, stat = await client.create("/ledgers/a", b"one", Acl.OPEN)
        assert path == "/ledgers/a"
        assert stat.owner == 0
        with pytest.raises(NodeExists):
            await client.create("/ledgers/a", b"", Acl.OPEN)
        path, stat = await client.create("/ledgers/n", b"", Acl.CREATOR, is_ephemeral=True, is_sequential=True)
        assert path == "/ledgers/n0000000001"
        assert stat.owner == client.session_id
        assert (await client.get("/ledgers/a", sync=True))[0] == b"one"
        assert (await client.set("/ledgers/a", b"two", 0)).version == 1
        with pytest.raises(WrongVersion):
            await client.set("/ledgers/a", b"three", 0)
        assert (await client.children("/ledgers"))[0] == ["a", "n0000000001"]
        with pytest.raises(NotEmpty):
            await client.delete("/ledgers")
        await client.delete("/ledgers/a")
        assert await client.exists("/ledgers/a") is None
        with pytest.raises(NodeMissing):
            await client.get("/ledgers/a")
        await client.close()
        assert sorted(ensemble.zookeeper.nodes) == ["/", "/ledgers"]
        with pytest.raises(ClientClosed):
            await client.get("/ledgers")
        await client.close()

    play(body)


def test_transactions_are_whole_and_name_the_refused_operation() -> None:
    async def body(ensemble: Ensemble) -> None:
        client = ensemble.client()
        await client.open()
        operations = [Create("/ledgers/a", b"", Acl.OPEN), SetData("/ledgers", b"x"), Check("/ledgers/a", 0)]
        made, written, checked = await client.multi(operations)
        assert (made, checked) == ("/ledgers/a", None)
        assert isinstance(written, Stat)
        with pytest.raises(Refusal) as refused:
            await client.multi([Delete("/ledgers/a"), SetData("/ledgers", b"y", 99), Delete("/none")])
        assert isinstance(refused.value, WrongVersion)
        assert refused.value.index == 1
        assert await client.exists("/ledgers/a") is not None
        ensemble.zookeeper.denied.add("/ledgers/a")
        for request in (client.set("/ledgers/a", b""), client.multi([Check("/ledgers/a"), Delete("/ledgers")])):
            with pytest.raises(Denied, match="denies access to /ledgers/a: authenticate"):
                await request
        await client.close()

    play(body)


def test_watches_are_called_once_each() -> None:
    async def body(ensemble: Ensemble) -> None:
        one, other = ensemble.client(), ensemble.client()
        await one.open()
        await other.open()
        called: list[str] = []
        first, second = (lambda: called.append("first")), (lambda: called.append("second"))
        unwanted = lambda: called.append("unwanted")  # noqa: E731  (its identity is what `unwatch` takes)
        await one.exists("/ledgers/a", watch=first)
        await one.exists("/ledgers/a", watch=unwanted)
        await one.children("/ledgers", watch=second)
        await one.children("/ledgers", watch=unwanted)
        one.unwatch(unwanted)
        one.unwatch(unwanted)
        await other.create("/ledgers/a", b"", Acl.OPEN)
        await other.set("/ledgers/a", b"x")
        await one.get("/ledgers/a")  # Events come before what was read after the change.
        assert called == ["first", "second"]
        assert not one._watches
        await one.close()
        await other.close()

    play(body)


def test_the_deletion_of_a_znode_ends_watches_of_both_kinds() -> None:
    async def body(ensemble: Ensemble) -> None:
        client = ensemble.client()
        await client.open()
        called: list[str] = []
        await client.exists("/ledgers", watch=lambda: called.append("data"))
        await client.children("/ledgers", watch=lambda: called.append("children"))
        event = zk_wire._REPLY_HEADER.pack(zk_wire.XID_EVENT, -1, 0) + zk_wire._EVENT.pack(2, 3)
        unknown = zk_wire._REPLY_HEADER.pack(zk_wire.XID_EVENT, -1, 0) + zk_wire._EVENT.pack(99, 3)
        transport = ensemble.wire.connections[0].transport
        transport.write(zk_wire.packet(unknown + zk_wire.text("/ledgers")))
        transport.write(zk_wire.packet(event + zk_wire.text("/ledgers")))
        await client.get("/ledgers")
        assert called == ["data", "children"]
        await client.close()

    play(body)


def test_the_session_goes_on_with_another_server() -> None:
    async def body(ensemble: Ensemble) -> None:
        await ensemble.start("z2")
        client = ensemble.client("z1:2181,z2:2181")
        await client.open()
        session = client.session_id
        changed = asyncio.Event()
        client.on_session_lost(lambda: pytest.fail("the session was lost"))
        await client.create("/ledgers/mine", b"", Acl.OPEN, is_ephemeral=True)
        await client.exists("/ledgers/x", watch=changed.set)
        ensemble.stop("z1")
        ensemble.stop("z2")
        await ensemble.start("z2")
        await changed.wait()  # Changes are missed meanwhile.
        assert (await client.get("/ledgers/mine"))[1].owner == session == client.session_id
        await client.close()

    play(body)


def test_an_outage_of_hours() -> None:
    async def body(ensemble: Ensemble) -> None:
        client = ensemble.client()
        await client.open()
        ensemble.stop("z1")
        await asyncio.sleep(1)
        with pytest.raises(MetadataError, match="no ZooKeeper server at z1:2181 has answered"):
            await client.multi([SetData("/ledgers", b"x")])
        await asyncio.sleep(3 * 3600)
        await ensemble.start("z1")
        assert (await client.get("/ledgers"))[0] == b""
        await client.close()

    play(body)


def test_closing_during_an_outage() -> None:
    async def body(ensemble: Ensemble) -> None:
        client = ensemble.client()
        await client.open()
        waiting = asyncio.ensure_future(client.get("/ledgers"))
        ensemble.stop("z1")
        await asyncio.sleep(0.5)
        later = asyncio.ensure_future(client.get("/ledgers"))
        transaction = asyncio.ensure_future(client.multi([SetData("/ledgers", b"x")]))
        await asyncio.sleep(0.5)
        begun: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        client.start_multi([SetData("/ledgers", b"x")], begun)  # Closing comes before the first step of its task.
        began = asyncio.get_running_loop().time()
        await client.close()
        assert asyncio.get_running_loop().time() - began < 0.1
        late = asyncio.ensure_future(client.multi([SetData("/ledgers", b"x")]))
        closed = ((each, ClientClosed) for each in (later, transaction, begun, late))
        for request, expected in ((waiting, OutcomeUnknown), *closed):
            with pytest.raises(expected):
                await request

    play(body)


def test_requests_in_flight_when_the_connection_ends() -> None:
    """Nobody knows whether they were carried out; what was not sent waits for the next connection."""

    async def body(ensemble: Ensemble) -> None:
        client = ensemble.client()
        await client.open()
        ensemble.wire.is_silent = True
        write = asyncio.ensure_future(client.set("/ledgers", b"x"))
        abandoned = asyncio.ensure_future(client.get("/ledgers"))
        await asyncio.sleep(0.1)
        abandoned.cancel()
        ensemble.stop("z1")
        with pytest.raises(OutcomeUnknown, match="lost before it answered"):
            await write
        waiting = asyncio.ensure_future(client.get("/ledgers"))
        transaction = asyncio.ensure_future(client.multi([Check("/ledgers", 0)]))
        ensemble.wire.is_silent = False
        await ensemble.start("z1")
        assert (await waiting)[0] == b""
        assert await transaction == [None]
        await client.close()

    play(body)


def test_each_request_has_its_own_time() -> None:
    """A server that answers pings and nothing else: one timer fails the requests one after the other, each once."""

    async def body(ensemble: Ensemble) -> None:
        client = ensemble.client()
        groups = Groups(client, lambda: None)
        await client.open()
        loop = asyncio.get_running_loop()
        await client.get("/ledgers")
        await asyncio.sleep(1)
        ensemble.wire.answers_pings_only = True

        async def refused_after() -> float:
            began = loop.time()
            with pytest.raises(OutcomeUnknown, match="did not answer within 3 s"):
                await groups.multi([SetData("/ledgers", b"x")])
            return loop.time() - began

        asked = []
        for _ in range(3):
            asked.append(asyncio.ensure_future(refused_after()))
            await asyncio.sleep(1)
        assert await asyncio.gather(*asked) == pytest.approx([TIMEOUT_MS / 1000] * 3)
        await client.close()  # The connection ends with the requests unanswered.
        assert groups._in_flight_count == 0

    play(body)


def test_an_answer_that_does_not_come_in_time() -> None:
    async def body(ensemble: Ensemble) -> None:
        client = ensemble.client()
        await client.open()
        ensemble.wire.is_silent = True
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(OutcomeUnknown):
            await client.get("/ledgers")
        assert loop.time() - began <= TIMEOUT_MS / 1000 + 0.1
        # Until the silence is noticed and another server is asked, no request waits longer than a session.
        began = loop.time()
        with pytest.raises(MetadataError, match="no ZooKeeper server at z1:2181 has answered for 3 s"):
            await client.get("/ledgers")
        assert loop.time() - began <= TIMEOUT_MS / 1000 + 0.1
        ensemble.wire.is_silent = False
        assert (await client.get("/ledgers"))[0] == b""
        await client.close()

    play(body)


@pytest.mark.parametrize("phase_s", [0.01, 0.3, 0.6, 0.68, 0.9])
def test_a_silent_server_is_left_with_time_for_another_one(phase_s: float) -> None:
    async def body(ensemble: Ensemble) -> None:
        client = ensemble.client()
        await client.open()
        await asyncio.sleep(phase_s)  # virtual: pings are at other times
        changed = asyncio.Event()
        await client.exists("/ledgers/x", watch=changed.set)
        began = asyncio.get_running_loop().time()
        ensemble.wire.is_silent = True
        await changed.wait()
        assert asyncio.get_running_loop().time() - began <= 0.67 * TIMEOUT_MS / 1000
        await client.close()

    play(body)


def test_an_idle_session_is_kept() -> None:
    async def body(ensemble: Ensemble) -> None:
        client = ensemble.client()
        await client.open()
        session = client.session_id
        await asyncio.sleep(60)
        assert len(ensemble.wire.connections) == 1
        assert ensemble.wire.requests.count(Code.PING) >= 60
        assert client.session_id == session
        await client.close()

    play(body)


def test_a_session_that_has_ended_is_told_before_anything_is_done_in_the_next_one() -> None:
    async def body(ensemble: Ensemble) -> None:
        client = ensemble.client()
        told: list[int | None] = []
        client.on_session_lost(lambda: told.append(client.session_id))
        await client.open()
        first = client.session_id
        ensemble.wire.expire()
        await asyncio.sleep(0.01)  # virtual: the end of the connection arrives
        with pytest.raises(SessionExpired):
            await client.set("/ledgers", b"x", session=first)
        assert told == [None]
        with pytest.raises(SessionExpired):
            await client.delete("/ledgers", session=first)
        await client.set("/ledgers", b"x", session=client.session_id)
        assert client.session_id not in (None, first)
        await client.close()
        assert told == [None]

    play(body)


def test_credentials_that_the_server_refuses() -> None:
    async def body(ensemble: Ensemble) -> None:
        client = ensemble.client(credentials=Credentials(digest="user:secret"))
        await client.open()
        await client.close()
        ensemble.wire.refusal = Fault.AUTHENTICATION_FAILED
        client = ensemble.client(credentials=Credentials(digest="user:secret"))
        with pytest.raises(MetadataError, match=r"refuses our credentials \(<Credentials digest>\): correct the file"):
            await client.open()

    play(body)


def test_credentials_that_were_good_are_tried_again() -> None:
    """A ticket expires while the bookie runs; its session must survive that."""

    async def body(ensemble: Ensemble) -> None:
        client = ensemble.client(credentials=Credentials(digest="user:secret"))
        await client.open()
        session = client.session_id
        ensemble.wire.refusal = Fault.AUTHENTICATION_FAILED
        ensemble.wire.connections[0].transport.abort()
        await asyncio.sleep(1)  # virtual: several attempts
        with pytest.raises(
            MetadataError, match=r"z1:2181 has answered for 3 s \(last attempt: refuses our credentials"
        ):
            await client.get("/ledgers")
        ensemble.wire.refusal = 0
        assert (await client.get("/ledgers"))[0] == b""
        assert client.session_id == session
        await client.close()

    play(body)


@pytest.mark.parametrize(("is_silent", "reason"), [(False, "Cannot contact any KDC"), (True, "no Kerberos ticket")])
def test_a_kdc_that_is_unavailable_is_named(is_silent: bool, reason: str) -> None:
    async def body(ensemble: Ensemble) -> None:
        ensemble.kerberos.is_down, ensemble.kerberos.is_silent = True, is_silent
        client = ensemble.client(credentials=Credentials(sasl=KerberosLogin("bk@R", "/k", "zookeeper")))
        with pytest.raises(MetadataError, match=rf"has answered for 3 s \(last attempt: .*{reason}"):
            await client.open()

    play(body)


@pytest.mark.parametrize("packet", [b"\0\0\0\2no", zk_wire.packet(zk_wire._REPLY_HEADER.pack(77, 1, 0)), b"\xff" * 4])
def test_answers_that_are_not_the_protocol_end_the_connection(packet: bytes) -> None:
    async def body(ensemble: Ensemble) -> None:
        client = ensemble.client()
        await client.open()
        changed = asyncio.Event()
        await client.exists("/ledgers/x", watch=changed.set)
        ensemble.wire.connections[0].transport.write(packet)
        await changed.wait()
        assert (await client.get("/ledgers"))[0] == b""
        await client.close()

    play(body)


def test_nothing_listens() -> None:
    async def body(ensemble: Ensemble) -> None:
        client = ensemble.client("nowhere:2181")
        with pytest.raises(MetadataError, match=r"no ZooKeeper server at nowhere:2181 has answered for 3 s"):
            await client.open()
        assert client.session_id is None
        with pytest.raises(ClientClosed):
            await client.get("/x")

    play(body)


def test_opening_can_be_cancelled() -> None:
    async def body(ensemble: Ensemble) -> None:
        client = ensemble.client("nowhere:2181")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await client.open()
        assert len(asyncio.all_tasks()) == 1

    play(body)


def test_a_fault_of_the_program_is_told_and_not_hidden() -> None:
    async def body(ensemble: Ensemble) -> None:
        client = ensemble.client()
        client.on_session_lost(lambda: 1 / 0)  # type: ignore[arg-type,return-value]
        await client.open()
        ensemble.wire.expire()
        await asyncio.sleep(1)
        with pytest.raises(MetadataError, match="ZeroDivisionError"):
            await client.get("/ledgers")
        await client.close()

    play(body)


@pytest.mark.parametrize(
    ("server", "address"),
    [
        ("zk:2182", ("zk", 2182)),
        ("zk", ("zk", 2181)),
        ("[::1]:2182", ("::1", 2182)),
        ("[::1]", ("::1", 2181)),
        (" zk:2182", ("zk", 2182)),
    ],
)
def test_addresses(server: str, address: tuple[str, int]) -> None:
    assert zk_client._address(server) == address


def test_files_of_certificates_that_cannot_be_used(tmp_path: pathlib.Path) -> None:
    """Said at once, and not that no server answers."""
    authority = Authority(tmp_path)
    one, other = authority.issue("one"), authority.issue("other")
    (tmp_path / "garbage").write_text("garbage")
    runtime = aio.runtime()
    for good in (
        Credentials(is_tls=True, authority=authority.path),
        Credentials(is_tls=True, certificate=one.certificate, key=one.key),
    ):
        ZooKeeperClient("a", 300, runtime, good)
    for given, sentence in (
        (Credentials(is_tls=True, authority=str(tmp_path / "none")), "none: .*No such file"),
        (Credentials(is_tls=True, authority=str(tmp_path / "garbage")), "cannot be loaded from .*garbage"),
        (Credentials(is_tls=True, certificate=one.certificate, key=other.key), "key values mismatch"),
    ):
        with pytest.raises(ConfigError, match=f"tls to ZooKeeper: .*{sentence}"):
            ZooKeeperClient("a", 300, runtime, given)


def test_a_port_that_accepts_and_says_nothing() -> None:
    """On real sockets: an error in time, and nothing stays open."""

    async def main(port: int) -> None:
        client = ZooKeeperClient(f"127.0.0.1:{port}", 300, aio.runtime())
        with pytest.raises(MetadataError, match=r"no ZooKeeper server at 127.0.0.1:\d+ has answered for 0.3 s"):
            await client.open()

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        aio.run(main(listening.getsockname()[1]))


def test_an_answer_that_cannot_be_parsed_fails_its_request_at_once() -> None:
    async def body(ensemble: Ensemble) -> None:
        client = ensemble.client()
        await client.open()
        began = asyncio.get_running_loop().time()
        ensemble.wire.is_silent = True
        asking = asyncio.create_task(client.get("/ledgers"))
        await asyncio.sleep(0.01)  # virtual: the request is sent
        ensemble.wire.connections[0].transport.write(zk_wire.packet(zk_wire._REPLY_HEADER.pack(1, 1, 0) + b"\0\0\0\7x"))
        ensemble.wire.is_silent = False
        with pytest.raises(OutcomeUnknown, match="ends in a field of 7"):
            await asking
        assert asyncio.get_running_loop().time() - began < 0.1
        await client.close()

    play(body)


def test_a_server_that_begins_no_session_is_asked_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(ensemble: Ensemble) -> None:
        asked = 0

        def granted(reader: zk_wire.Reader) -> zk_wire.Granted:
            nonlocal asked
            asked += 1
            return zk_wire.Granted(0, 0, b"")

        monkeypatch.setattr(zk_wire.Reader, "granted", granted)
        with pytest.raises(MetadataError, match="no ZooKeeper server"):
            await ensemble.client().open()
        assert 2 <= asked <= 20

    play(body)


def test_a_connection_that_breaks_at_once_is_made_again_after_pauses() -> None:
    async def body(ensemble: Ensemble) -> None:
        client = ensemble.client()
        await client.open()
        lost, lost_count = asyncio.Event(), 0
        end = asyncio.get_running_loop().time() + 10
        while asyncio.get_running_loop().time() < end:
            lost.clear()
            await client.exists("/ledgers", watch=lost.set)
            for connection in list(ensemble.wire.connections):
                connection.transport.abort()
            await lost.wait()
            lost_count += 1
        assert 10 <= lost_count <= 40
        await client.close()

    play(body)


def test_a_fault_that_says_nothing_about_credentials_is_no_refusal_of_them() -> None:
    async def body(ensemble: Ensemble) -> None:
        ensemble.wire.refusal = Fault.SESSION_MOVED
        client = ensemble.client(credentials=Credentials(digest="user:secret"))
        opening = asyncio.create_task(client.open())
        await asyncio.sleep(1)
        ensemble.wire.refusal = 0
        await opening
        await client.close()

    play(body)


def test_removed_watches_leave_nothing() -> None:
    async def body(ensemble: Ensemble) -> None:
        client = ensemble.client()
        await client.open()
        one, other = asyncio.Event(), asyncio.Event()
        for number in range(100):
            await client.exists(f"/ledgers/{number}", watch=one.set)
        await client.exists("/ledgers/1", watch=other.set)
        client.unwatch(one.set)
        assert len(client._watches) == 2
        client.unwatch(other.set)
        assert len(client._watches) == 0
        await client.close()

    play(body)


def test_closing_that_is_cancelled_leaves_no_connection() -> None:
    async def body(ensemble: Ensemble) -> None:
        client = ensemble.client()
        await client.open()
        ensemble.wire.is_silent = True
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.close()
        await asyncio.sleep(0.1)  # virtual: the end of the connection arrives
        assert not ensemble.wire.connections
        assert len(asyncio.all_tasks()) == 1

    play(body)
