"""The ZooKeeper in memory behind ZooKeeper's protocol, for the client of `zk_client` on a simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from tests.fakes.zookeeper import FakeZooKeeper, Server

from bookies.metadata.zookeeper import zk_wire
from bookies.metadata.zookeeper.zk_wire import Code, EventKind, Fault, Reader
from bookies.metadata.zookeeper.zookeeper_port import (
    Acl,
    Check,
    Create,
    Delete,
    Denied,
    NodeExists,
    NodeMissing,
    NotEmpty,
    Operation,
    Refusal,
    SetData,
    Stat,
    WrongVersion,
)

_FAULTS: dict[type[Exception], Fault] = {
    Denied: Fault.NO_RIGHTS,
    NodeMissing: Fault.NODE_MISSING,
    NodeExists: Fault.NODE_EXISTS,
    WrongVersion: Fault.WRONG_VERSION,
    NotEmpty: Fault.NOT_EMPTY,
}


def _stat(stat: Stat) -> bytes:
    numbers = (stat.czxid, stat.mzxid, stat.ctime_ms, stat.mtime_ms, stat.version, stat.cversion, 0, stat.owner, 0)
    return zk_wire._STAT.pack(*numbers, stat.children_count, stat.pzxid)


def _operation(code: int, reader: Reader) -> Operation:
    path = reader.text()
    if code in (Code.CREATE, Code.CREATE_WITH_STAT):
        data = reader.buffer()
        assert reader.number() == 1
        assert reader.number() == 31
        acl = Acl(f"{reader.text()}:{reader.text()}")
        flags = reader.number()
        return Create(path, data, acl, bool(flags & 1), bool(flags & 2))
    if code == Code.SET:
        return SetData(path, reader.buffer(), reader.number())
    return (Delete if code == Code.DELETE else Check)(path, reader.number())


class WireServer:
    """`server`: the znodes. `is_silent`: it takes up connections and answers nothing. `answers_pings_only`: nothing
    else. `refusal`: fault that answers credentials.

    `connections`: those that are open, the oldest first. `requests`: the operations of all requests, in order.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.is_silent = False
        self.answers_pings_only = False
        self.refusal = 0
        self.sessions: dict[int, bytes] = {}
        self.connections: list[ServerConnection] = []
        self.requests: list[int] = []

    def connection(self) -> ServerConnection:
        return ServerConnection(self)

    def expire(self) -> None:
        """End every session, as after a long pause, and its connection."""
        for session in list(self.sessions):
            self.end(session)
        for connection in list(self.connections):
            connection.transport.close()

    def end(self, session: int) -> None:
        del self.sessions[session]
        self.server.end_session(session)


class ServerConnection(asyncio.Protocol):
    def __init__(self, wire: WireServer) -> None:
        self._wire = wire
        self._received = bytearray()
        self._watcher = cast(FakeZooKeeper, self)
        self.session: int | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._wire.connections.append(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._wire.connections.remove(self)
        self._wire.server.unwatch(self._watcher, None)

    def data_received(self, data: bytes) -> None:
        self._received += data
        for body in zk_wire.split(self._received):
            if self._wire.is_silent:
                continue
            if self.session is None:
                self._begin(Reader(body))
            else:
                self._answer(Reader(body))

    def _begin(self, reader: Reader) -> None:
        version, _, timeout_ms, session = reader._fields(zk_wire._CONNECT)
        assert version == 0
        password = reader.buffer()
        wire = self._wire
        if session == 0:
            wire.server.session_count += 1
            session, password = wire.server.session_count, b"password of %6d" % wire.server.session_count
            wire.sessions[session] = password
        if wire.sessions.get(session) != password:
            session, timeout_ms = 0, 0
        self.session = session
        self.transport.write(
            zk_wire.packet(zk_wire._CONNECTED.pack(0, timeout_ms, session) + zk_wire.buffer(password) + b"\0")
        )

    def _reply(self, xid: int, fault: int = 0, result: bytes = b"") -> None:
        self.transport.write(zk_wire.packet(zk_wire._REPLY_HEADER.pack(xid, self._wire.server.zxid, fault) + result))

    def _answer(self, reader: Reader) -> None:
        xid, code = reader.number(), reader.number()
        self._wire.requests.append(code)
        if code == Code.PING:
            self._reply(zk_wire.XID_PING)
        elif code == Code.AUTHENTICATE:
            self._reply(xid, self._wire.refusal)
        elif code == Code.CLOSE:
            assert self.session is not None
            self._wire.end(self.session)
            self._reply(xid)
            self.transport.close()
        elif not self._wire.answers_pings_only:
            try:
                self._reply(xid, 0, self._result(code, reader))
            except (Refusal, Denied) as refusal:
                self._reply(xid, _FAULTS[type(refusal)])

    def _result(self, code: int, reader: Reader) -> bytes:
        if code == Code.SYNC:
            return zk_wire.text(reader.text())
        if code in (Code.EXISTS, Code.GET, Code.CHILDREN):
            return self._read(code, reader.text(), reader)
        if code == Code.MULTI:
            return self._transaction(reader)
        server = self._wire.server
        assert self.session is not None
        outcome = server.apply([_operation(code, reader)], self.session)[0]
        if code == Code.CREATE_WITH_STAT:
            return zk_wire.text(str(outcome)) + _stat(server.nodes[str(outcome)].stat())
        return _stat(outcome) if isinstance(outcome, Stat) else b""

    def _read(self, code: int, path: str, reader: Reader) -> bytes:
        server = self._wire.server
        node = server.nodes.get(path)
        is_of_children = code == Code.CHILDREN
        if reader._body[-1] and (node is not None or code == Code.EXISTS):
            server.watch(path, is_of_children, self._watcher, self._event(path, is_of_children))
        if node is None:
            raise NodeMissing(path)
        if code == Code.GET:
            return zk_wire.buffer(node.data) + _stat(node.stat())
        if is_of_children:
            names = b"".join(map(zk_wire.text, node.children))
            return zk_wire._INT.pack(len(node.children)) + names + _stat(node.stat())
        return _stat(node.stat())

    def _event(self, path: str, is_of_children: bool) -> Callable[[], None]:
        kind = EventKind.CHILDREN_CHANGED if is_of_children else EventKind.DATA_CHANGED
        body = zk_wire._REPLY_HEADER.pack(zk_wire.XID_EVENT, -1, 0) + zk_wire._EVENT.pack(kind, 3) + zk_wire.text(path)
        return lambda: self.transport.write(zk_wire.packet(body))

    def _transaction(self, reader: Reader) -> bytes:
        codes: list[int] = []
        operations: list[Operation] = []
        while True:
            code, is_end, _ = reader._fields(zk_wire._MULTI_HEADER)
            if is_end:
                break
            codes.append(code)
            operations.append(_operation(code, reader))
        assert self.session is not None
        results = []
        try:
            for code, outcome in zip(codes, self._wire.server.apply(operations, self.session), strict=True):
                result = _stat(outcome) if isinstance(outcome, Stat) else zk_wire.text(outcome) if outcome else b""
                results.append(zk_wire._MULTI_HEADER.pack(code, False, 0) + result)
        except (Refusal, Denied) as refusal:
            index = refusal.index if isinstance(refusal, Refusal) else 0
            faults = [Fault.ROLLED_BACK] * index + [_FAULTS[type(refusal)]]
            faults += [Fault.RUNTIME_INCONSISTENCY] * (len(operations) - len(faults))
            results = [zk_wire._MULTI_HEADER.pack(-1, False, fault) + zk_wire._INT.pack(fault) for fault in faults]
        return b"".join([*results, zk_wire._MULTI_END])
