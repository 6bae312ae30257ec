"""A ZooKeeper in memory, behind the port: versions, ephemerals, sequence numbers, watches, transactions, sessions.

`Server` is the ensemble, `FakeZooKeeper` one client. A client hears of the end of its session at once if it watches
something, otherwise at its next request, which is what a driver that only now and then asks sees of a real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Sequence

from bookies.errors import ClientClosed, MetadataError, SessionExpired
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.zookeeper import zk_wire
from bookies.metadata.zookeeper.zk_client import ZooKeeperClient
from bookies.metadata.zookeeper.zookeeper_port import (
    ANY_VERSION,
    Acl,
    Answer,
    Check,
    Create,
    Delete,
    Denied,
    NodeExists,
    NodeMissing,
    NotEmpty,
    Operation,
    Outcome,
    OutcomeUnknown,
    Refusal,
    SetData,
    Stat,
    WrongVersion,
    ZooKeeper,
)

Watch = Callable[[], None]


@dataclasses.dataclass
class Node:
    data: bytes
    acl: Acl
    czxid: int
    mzxid: int
    pzxid: int
    ctime_ms: int
    mtime_ms: int
    owner: int = 0
    version: int = 0
    cversion: int = 0
    sequence: int = 0  # of children ever made
    children: dict[str, None] = dataclasses.field(default_factory=dict)

    def stat(self) -> Stat:
        return Stat(
            self.czxid,
            self.mzxid,
            self.pzxid,
            self.ctime_ms,
            self.mtime_ms,
            self.version,
            self.cversion,
            self.owner,
            len(self.children),
        )


def _split(path: str) -> tuple[str, str]:
    parent, _, name = path.rpartition("/")
    return parent or "/", name


class Server:
    """`nodes`: every znode by path. `lost_requests`, `lost_replies`: of the next changes, how many. `denied`: paths
    that nobody may change.

    `is_silent`: nobody gets an answer.
    """

    def __init__(self, *paths: str) -> None:
        self.zxid = 0
        self.nodes = {"/": Node(b"", Acl.OPEN, 0, 0, 0, 0, 0)}
        self.sessions: dict[int, FakeZooKeeper] = {}
        self.session_count = 0
        self.lost_requests = 0
        self.lost_replies = 0
        self.is_silent = False
        self.denied: set[str] = set()
        self._watches: dict[tuple[str, bool], dict[tuple[FakeZooKeeper, Watch], None]] = {}
        for path in paths:
            self.apply([Create(path, b"", Acl.OPEN)], 0)

    # -- changes -------------------------------------------------------------------------------------------------
    def apply(self, operations: Sequence[Operation], session: int) -> list[Outcome]:
        """All or nothing. Raises the first `Refusal` or `Denied`."""
        touched = [path for each in operations for path in (each.path, _split(each.path)[0])]
        before = {path: self._copy(path) for path in touched}
        self.zxid += 1
        fired: list[tuple[str, bool]] = []
        results: list[Outcome] = []
        for index, operation in enumerate(operations):
            try:
                results.append(self._apply(operation, session, fired))
            except (Refusal, Denied) as refusal:
                if isinstance(refusal, Refusal):
                    refusal.index = index
                for made in results:
                    if isinstance(made, str):
                        self.nodes.pop(made, None)
                for path, node in before.items():
                    self.nodes.pop(path, None)
                    if node is not None:
                        self.nodes[path] = node
                raise
        self._fire(fired)
        return results

    def _copy(self, path: str) -> Node | None:
        node = self.nodes.get(path)
        return None if node is None else dataclasses.replace(node, children=dict(node.children))

    def _apply(self, operation: Operation, session: int, fired: list[tuple[str, bool]]) -> Outcome:
        path = operation.path
        if path in self.denied:
            raise Denied(f"access to {path} is denied")
        if isinstance(operation, Create):
            return self._create(operation, session, fired)
        node = self.nodes.get(path)
        if node is None:
            raise NodeMissing(path)
        if operation.version not in (ANY_VERSION, node.version):
            raise WrongVersion(path)
        if isinstance(operation, Check):
            return None
        if isinstance(operation, SetData):
            node.data, node.mzxid, node.version = operation.data, self.zxid, node.version + 1
            node.mtime_ms = self._now_ms()
            fired.append((path, False))
            return node.stat()
        if node.children:
            raise NotEmpty(path)
        del self.nodes[path]
        parent, name = _split(path)
        del self.nodes[parent].children[name]
        self._touch(parent)
        fired += [(path, False), (path, True), (parent, True)]
        return None

    def _create(self, operation: Create, session: int, fired: list[tuple[str, bool]]) -> str:
        assert not operation.path.endswith("/")
        path = self._next_sequential(operation.path) if operation.is_sequential else operation.path
        parent, name = _split(path)
        if parent not in self.nodes:
            raise NodeMissing(path)
        if path in self.nodes:
            raise NodeExists(path)
        owner = session if operation.is_ephemeral else 0
        now_ms = self._now_ms()
        self.nodes[path] = Node(operation.data, operation.acl, self.zxid, self.zxid, self.zxid, now_ms, now_ms, owner)
        self.nodes[parent].children[name] = None
        self.nodes[parent].sequence += 1
        self._touch(parent)
        fired += [(path, False), (parent, True)]
        return path

    def _now_ms(self) -> int:
        """The time of the present transaction."""
        return 1_700_000_000_000 + self.zxid

    def _touch(self, parent: str) -> None:
        self.nodes[parent].cversion += 1
        self.nodes[parent].pzxid = self.zxid

    def _next_sequential(self, prefix: str) -> str:
        """As the server does: a signed number of 32 bits, the count of children ever made."""
        parent = self.nodes.get(_split(prefix)[0])
        number = parent.sequence if parent is not None else 0
        number = (number + (1 << 31)) % (1 << 32) - (1 << 31)
        return f"{prefix}{number:010d}"

    # -- watches and sessions ------------------------------------------------------------------------------------
    def watch(self, path: str, is_of_children: bool, client: FakeZooKeeper, watch: Watch) -> None:
        self._watches.setdefault((path, is_of_children), {})[(client, watch)] = None

    def unwatch(self, client: FakeZooKeeper, watch: Watch | None) -> list[Watch]:
        """Forget one watch of a client, or all; those that were forgotten."""
        found = []
        for watches in self._watches.values():
            for each in [key for key in watches if key[0] is client and watch in (None, key[1])]:
                del watches[each]
                found.append(each[1])
        return found

    def _fire(self, fired: list[tuple[str, bool]]) -> None:
        for key in dict.fromkeys(fired):
            for _, watch in self._watches.pop(key, {}):
                asyncio.get_running_loop().call_soon(watch)

    def end_session(self, session: int) -> None:
        """Its ephemeral znodes go, in one transaction each."""
        client = self.sessions.pop(session, None)
        for path in [path for path, node in self.nodes.items() if node.owner == session]:
            self.apply([Delete(path)], session)
        if client is not None and client.session_id == session:
            client.session_ended()


class FakeZooKeeper:
    """See `bookies.metadata.zookeeper.zookeeper_port.ZooKeeper`."""

    def __init__(self, server: Server) -> None:
        self.hosts = "fake:2181"
        self.server = server
        self.session_id: int | None = None
        self._is_closed = False
        self._is_lost = False  # the session is gone, and we have not heard of it
        self._session_lost: Watch = lambda: None
        self._begun: dict[asyncio.Future[list[Outcome]], None] = {}  # by `start_multi`

    async def open(self) -> None:
        await asyncio.sleep(0)
        self._begin()

    def _begin(self) -> None:
        self.server.session_count += 1
        self.session_id = self.server.session_count
        self.server.sessions[self.session_id] = self

    async def close(self) -> None:
        await asyncio.sleep(0)
        self._is_closed = True
        session, self.session_id = self.session_id, None
        self.server.unwatch(self, None)
        if session is not None:
            self.server.end_session(session)

    def on_session_lost(self, callback: Watch) -> None:
        self._session_lost = callback

    def expire(self) -> None:
        """End the session behind the client's back, as after a long pause."""
        assert self.session_id is not None
        self.server.end_session(self.session_id)

    def session_ended(self) -> None:
        watches = self.server.unwatch(self, None)
        self._is_lost = True
        if watches:
            asyncio.get_running_loop().call_soon(self._hear, watches)

    def _hear(self, watches: Sequence[Watch]) -> None:
        if not self._is_lost or self._is_closed:
            return
        self._is_lost = False
        self._begin()
        self._session_lost()
        for watch in watches:
            watch()

    async def _ready(self) -> int:
        await asyncio.sleep(0)
        if self._is_closed:
            raise ClientClosed("the session with fake:2181 is closed")
        if self.server.is_silent:
            raise MetadataError("no ZooKeeper server at fake:2181 has answered")
        if self._is_lost:
            self._hear([])
            raise SessionExpired("the session with ZooKeeper at fake:2181 was lost")
        assert self.session_id is not None
        return self.session_id

    async def _change(self, operations: Sequence[Operation], only_in: int | None = None) -> tuple[int, list[Outcome]]:
        """The transaction's number, and its results."""
        session = await self._ready()
        if only_in not in (None, session):
            raise SessionExpired("the session with ZooKeeper at fake:2181 was lost")
        if self.server.lost_requests:
            self.server.lost_requests -= 1
            raise OutcomeUnknown("the connection was lost before the request came")
        results = self.server.apply(operations, session)
        zxid = self.server.zxid
        if self.server.lost_replies:
            self.server.lost_replies -= 1
            raise OutcomeUnknown("the connection was lost before the answer came")
        await asyncio.sleep(0)
        return zxid, results

    async def create(
        self, path: str, data: bytes, acl: Acl, *, is_ephemeral: bool = False, is_sequential: bool = False
    ) -> tuple[str, Stat]:
        zxid, made = await self._change([Create(path, data, acl, is_ephemeral, is_sequential)])
        owner = self.session_id if is_ephemeral and self.session_id is not None else 0
        now_ms = 1_700_000_000_000 + zxid
        return str(made[0]), Stat(zxid, zxid, zxid, now_ms, now_ms, 0, 0, owner, 0)

    async def get(self, path: str, *, sync: bool = False) -> tuple[bytes, Stat]:
        await self._ready()
        node = self.server.nodes.get(path)
        if node is None:
            raise NodeMissing(path)
        return node.data, node.stat()

    async def exists(self, path: str, *, sync: bool = False, watch: Watch | None = None) -> Stat | None:
        await self._ready()
        if watch is not None:
            self.server.watch(path, False, self, watch)
        node = self.server.nodes.get(path)
        return None if node is None else node.stat()

    async def children(self, path: str, *, sync: bool = False, watch: Watch | None = None) -> tuple[list[str], Stat]:
        await self._ready()
        node = self.server.nodes.get(path)
        if node is None:
            raise NodeMissing(path)
        if watch is not None:
            self.server.watch(path, True, self, watch)
        return sorted(node.children), node.stat()

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION, *, session: int | None = None) -> Stat:
        stat = (await self.multi([SetData(path, data, version)], session=session))[0]
        assert isinstance(stat, Stat)
        return stat

    async def delete(self, path: str, version: int = ANY_VERSION, *, session: int | None = None) -> None:
        await self.multi([Delete(path, version)], session=session)

    async def multi(self, operations: Sequence[Operation], *, session: int | None = None) -> list[Outcome]:
        return (await self._change(operations, session))[1]

    def start_multi(self, operations: Sequence[Operation], answer: Answer) -> None:
        task = asyncio.ensure_future(self.multi(operations))
        self._begun[task] = None

        def ended(_: object) -> None:
            del self._begun[task]
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if isinstance(error, Exception) and not answer.done():
                answer.set_exception(error)
            elif error is None and not answer.done():
                answer.set_result(task.result())

        task.add_done_callback(ended)

    def unwatch(self, watch: Watch) -> None:
        self.server.unwatch(self, watch)


async def driven(driver: MetadataDriver, body: Callable[[], Awaitable[None]]) -> None:
    """Run it while the driver is open."""
    async with asyncio.timeout(20):
        await driver.open()
        try:
            await body()
        finally:
            await driver.close()


async def end_session(zookeeper: ZooKeeper) -> None:
    """End a client's session behind its back, as after a long pause: by another client that knows its password."""
    if isinstance(zookeeper, FakeZooKeeper):
        zookeeper.expire()
        return
    assert isinstance(zookeeper, ZooKeeperClient)
    session = zookeeper._session
    host, _, port = zookeeper.hosts.rpartition(":")
    timeout_ms = 1
    while timeout_ms > 0:  # The client takes its session back at once, so the server may not get our request.
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(zk_wire.connect_request(0, 10_000, session.number, session.password))
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            size = int.from_bytes(await reader.readexactly(4), "big")
            timeout_ms = zk_wire.Reader(await reader.readexactly(size)).granted().timeout_ms
            writer.write(zk_wire.request(1, zk_wire.Code.CLOSE, b""))
            await reader.read()  # to the end of the connection
        writer.close()
