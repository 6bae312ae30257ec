"""A client of ZooKeeper on the event loop: one session, continued on any server of the ensemble. See `ZooKeeper`.

Why not a library: decision 17. Requests of a connection are answered in order, so those in flight are a queue. A lost
connection fails them all (`OutcomeUnknown`: they may or may not have been carried out) and calls every watch, because
changes are missed; so a new connection begins with nothing. Only the server decides that a session has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from msgspec import Struct

from bookies.encoding.digest_md5 import DigestMd5Client
from bookies.encoding.gssapi import GssapiClient
from bookies.errors import (
    BookieUnreachable,
    BookKeeperError,
    ClientClosed,
    ConfigError,
    MetadataError,
    SessionExpired,
    TlsFailed,
    Unauthorized,
)
from bookies.metadata.zookeeper import zk_wire
from bookies.metadata.zookeeper.zk_wire import Broken, Code, EventKind, Fault, Granted, Reader
from bookies.metadata.zookeeper.zookeeper_port import (
    ANY_VERSION,
    Acl,
    Answer,
    Create,
    Credentials,
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
)
from bookies.runtime.events import Events
from bookies.runtime.ports import Encryption, KerberosLogin, Runtime, TlsFiles
from bookies.runtime.tasks import Tasks

PORT = 2181  # where the URI names none
RECONNECT_S_MIN, RECONNECT_S_MAX = 0.1, 2.0  # between rounds of all servers; at most a fifth of a session timeout
PINGS_UNANSWERED = 2
PING_INTERVAL = 2 / 9  # of a session timeout
_DIGEST_URI = "zookeeper/zk-sasl-md5"  # every server of ZooKeeper has this name under DIGEST-MD5
NONCE_BITS = 192
STOP_S = 1.0  # in addition to a session timeout, for the server to end the session
_Watch = Callable[[], None]
_WatchKey = tuple[bool, str]  # whether of a znode's children, path
_Parse = Callable[[Reader], Any]
_REFUSALS: dict[int, type[Refusal]] = {
    Fault.NODE_MISSING: NodeMissing,
    Fault.NODE_EXISTS: NodeExists,
    Fault.WRONG_VERSION: WrongVersion,
    Fault.NOT_EMPTY: NotEmpty,
}
_PARSERS: dict[Code, _Parse] = {
    Code.CREATE_WITH_STAT: Reader.created,
    Code.GET: Reader.data,
    Code.EXISTS: Reader.stat,
    Code.CHILDREN: Reader.children,
    Code.SET: Reader.stat,
    Code.DELETE: Reader.nothing,
}
_FIRED: dict[int, tuple[bool, ...]] = {  # event -> the kinds of watches that it ends
    EventKind.CREATED: (False,),
    EventKind.DATA_CHANGED: (False,),
    EventKind.DELETED: (False, True),
    EventKind.CHILDREN_CHANGED: (True,),
}


class _Faulty(Exception):
    """The server answered a request with an error code."""

    def __init__(self, fault: int) -> None:
        super().__init__(Fault(fault).name if fault in Fault.__members__.values() else str(fault))
        self.fault = fault


class _ConnectionLost(Exception):
    """The connection ended before a request was answered."""


class _SessionEnded(Exception):
    """The server does not know the session any more."""


class _CredentialsRefused(Exception):
    """The server refused our credentials."""


class _Session(Struct):
    """A session as the server knows it. `zxid`: the last transaction seen, behind which no server may lag."""

    number: int = 0  # 0: none yet
    password: bytes = zk_wire.PASSWORD_NONE
    zxid: int = 0


class _Watches:
    """The watches that are set on the connection. One callback may watch many znodes."""

    def __init__(self) -> None:
        self._callbacks: dict[_WatchKey, dict[_Watch, None]] = {}
        self._keys: dict[_Watch, dict[_WatchKey, None]] = {}

    def __len__(self) -> int:
        return len(self._callbacks) + len(self._keys)

    def add(self, key: _WatchKey, watch: _Watch) -> None:
        self._callbacks.setdefault(key, {})[watch] = None
        self._keys.setdefault(watch, {})[key] = None

    def remove(self, watch: _Watch) -> None:
        for key in self._keys.pop(watch, {}):
            callbacks = self._callbacks[key]
            del callbacks[watch]
            if not callbacks:
                del self._callbacks[key]

    def fire(self, key: _WatchKey) -> None:
        callbacks = self._callbacks.pop(key, {})
        for callback in callbacks:
            keys = self._keys[callback]
            del keys[key]
            if not keys:
                del self._keys[callback]
        for callback in callbacks:
            callback()

    def fire_all(self) -> None:
        """Call every watch: a lost connection ends the server's watches."""
        for key in list(self._callbacks):
            self.fire(key)


class _Sent(Struct):
    """A request in flight. `parse`: None if the next request's answer is waited for. `path`: None for requests about
    the session, which fail with this module's errors and have no time limit here. `until_s`: loop time.
    """

    xid: int
    parse: _Parse | None
    answer: Answer
    path: str | None = None
    until_s: float = 0.0


class _Connection(asyncio.Protocol):
    """One connection to one server. `fired`: called with the kind and path of each event. `explained`: returns what the
    caller of a request gets for an error. `timeout_s`: of requests.
    """

    def __init__(
        self,
        fired: Callable[[int, str], None],
        explained: Callable[[Exception, str], Exception],
        timeout_s: float,
    ) -> None:
        self.transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[Exception] = self._loop.create_future()
        self.zxid = 0  # the last transaction that a reply named
        self._fired = fired
        self._explained = explained
        self._timeout_s = timeout_s
        self._received = bytearray()
        self._in_flight: deque[_Sent] = deque()
        self._first: asyncio.Future[Any] | None = self._loop.create_future()  # without a header
        self._xids = itertools.count(1)
        self._unanswered_count = 0  # pings since something was received
        self._ping: asyncio.TimerHandle | None = None
        self._limit: asyncio.TimerHandle | None = None  # set unless no request is in flight

    # -- asyncio's protocol --------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._unanswered_count = 0
        self._received += data
        try:
            for body in zk_wire.split(self._received):
                self._packet_received(Reader(body))
        except Broken as error:
            self.drop(error)

    def connection_lost(self, error: Exception | None) -> None:
        self.drop(error or ConnectionResetError("the server closed the connection"))

    def drop(self, cause: Exception) -> None:
        """End the connection. Fails every request in flight."""
        if self.ended.done():
            return
        self.ended.set_result(cause)
        for timer in (self._ping, self._limit):
            if timer is not None:
                timer.cancel()
        if self.transport is not None:
            self.transport.abort()
        if self._first is not None and not self._first.done():
            self._first.set_exception(_ConnectionLost(str(cause)))
            self._first.exception()  # A caller that has given up does not look at it.
        in_flight = list(self._in_flight)
        self._in_flight.clear()
        for sent in in_flight:
            self._fail(sent, _ConnectionLost(str(cause)))

    # -- packets -------------------------------------------------------------------------------------------------
    def _packet_received(self, reader: Reader) -> None:
        if self._first is not None:
            self._first.set_result(reader.granted())
            self._first = None
            return
        reply = reader.reply()
        if reply.xid == zk_wire.XID_EVENT:
            self._fired(*reader.event())
        elif reply.xid != zk_wire.XID_PING:
            if not self._in_flight or self._in_flight[0].xid != reply.xid:
                raise Broken(f"an answer to request {reply.xid}, which was not next")
            sent = self._in_flight[0]
            self.zxid = max(self.zxid, reply.zxid)
            self._resolve(sent, reply.fault, reader)
            self._in_flight.popleft()  # An answer that cannot be parsed leaves it to `drop`.

    def _resolve(self, sent: _Sent, fault: int, reader: Reader) -> None:
        """Give the waiting caller a result. Raises `Broken`."""
        if fault:
            self._fail(sent, _Faulty(fault))
        elif sent.parse is not None and not sent.answer.done():  # otherwise cancelled, or timed out
            try:
                result = sent.parse(reader)
            except (Refusal, MetadataError) as error:  # of a transaction
                sent.answer.set_exception(error)
            else:
                sent.answer.set_result(result)

    def _fail(self, sent: _Sent, error: Exception) -> None:
        if not sent.answer.done():
            sent.answer.set_exception(error if sent.path is None else self._explained(error, sent.path))

    def _give_up(self) -> None:
        """Fail the requests whose time is over. One timer, for the oldest of them, costs less than one for each."""
        self._limit = None
        for sent in self._in_flight:
            if sent.path is None or sent.answer.done():
                continue
            if sent.until_s > self._loop.time():
                self._limit = self._loop.call_at(sent.until_s, self._give_up)
                return
            self._fail(sent, TimeoutError())

    async def begin(self, request: bytes) -> Granted:
        """Send the first packet and return its answer. Raises `_ConnectionLost`."""
        first = self._first
        assert first is not None
        self._write(request)
        granted = await first
        assert isinstance(granted, Granted)
        return granted

    async def authenticate(self, scheme: str, data: bytes) -> None:
        """Raises `_Faulty`, `_ConnectionLost`."""
        answer = self._loop.create_future()
        self._write(zk_wire.authentication(scheme, data))
        self._in_flight.append(_Sent(zk_wire.XID_AUTHENTICATION, Reader.nothing, answer))
        await answer

    def send(self, code: int, body: bytes, parse: _Parse | None, answer: Answer, path: str | None = None) -> None:
        """Send a request. `parse`, `path`: see `_Sent`."""
        xid = next(self._xids) & 0x7FFFFFFF
        sent = _Sent(xid, parse, answer, path, self._loop.time() + self._timeout_s)
        if self.ended.done():
            self._fail(sent, _ConnectionLost(str(self.ended.result())))
            return
        self._write(zk_wire.request(xid, code, body))
        self._in_flight.append(sent)
        if self._limit is None:
            self._limit = self._loop.call_at(sent.until_s, self._give_up)

    def _write(self, data: bytes) -> None:
        if self.ended.done():
            raise _ConnectionLost(str(self.ended.result()))
        assert self.transport is not None
        self.transport.write(data)

    def keep_alive(self, interval_s: float) -> None:
        """Ping at intervals. The connection is lost when nothing was received for `PINGS_UNANSWERED` of them.
        Raises `_ConnectionLost` if it is already.

        After a pause of the process the loop delivers what was received meanwhile before it calls a late timer.
        """
        if self._unanswered_count == PINGS_UNANSWERED:
            self.drop(TimeoutError(f"the server was silent for {PINGS_UNANSWERED * interval_s:.3g} s"))
            return
        self._unanswered_count += 1
        self._write(zk_wire.request(zk_wire.XID_PING, Code.PING, b""))
        self._ping = self._loop.call_later(interval_s, self.keep_alive, interval_s)


class ZooKeeperClient:
    """A `ZooKeeper`. `hosts`: host:port,host:port. Raises `ConfigError` for certificate files that do not load."""

    def __init__(self, hosts: str, timeout_ms: int, runtime: Runtime, credentials: Credentials | None = None) -> None:
        self.hosts = hosts
        self._timeout_s = timeout_ms / 1000
        self._runtime = runtime
        self._credentials = credentials or Credentials()
        self._encryption = _encryption(runtime, self._credentials)
        self._events = Events("zookeeper", runtime.clock)
        self._tasks: Tasks | None = None
        self._connection: _Connection | None = None  # that has taken up the session
        self._changed = asyncio.Event()  # connected, closed or refused
        self._end: Exception | None = None  # what every request gets from here on
        self._failure = ""  # of the last attempt to connect, or what it waits for
        self._session = _Session()
        self._session_lost: Callable[[], None] = lambda: None
        self._watches = _Watches()

    # -- the session ---------------------------------------------------------------------------------------------
    @property
    def session_id(self) -> int | None:
        return self._session.number or None

    def on_session_lost(self, callback: Callable[[], None]) -> None:
        self._session_lost = callback

    async def open(self) -> None:
        self._tasks = Tasks(self._died)
        self._tasks.start(self._keep_connected(), f"session with ZooKeeper at {self.hosts}")
        try:
            await self._connected()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the session: the server deletes its ephemeral znodes. A session that cannot be ended expires."""
        self._ended(ClientClosed(f"the session with {self.hosts} is closed"))
        connection = self._connection
        if connection is not None and not connection.ended.done():
            answer = asyncio.get_running_loop().create_future()
            connection.send(Code.CLOSE, b"", Reader.nothing, answer)
            try:
                with contextlib.suppress(TimeoutError, _ConnectionLost, _Faulty):
                    async with asyncio.timeout(self._timeout_s + STOP_S):
                        await answer
            finally:
                connection.drop(ConnectionResetError("the session was closed"))
        if self._tasks is not None:
            await self._tasks.stop()
        self._session, self._connection = _Session(), None

    def _ended(self, end: Exception) -> None:
        """Let the calls that wait for a connection, and all others, fail."""
        self._end = end
        self._changed.set()

    def _died(self, cause: BaseException) -> None:
        self._events.error("zookeeper.session_failed", error=cause)
        self._ended(MetadataError(f"the session with {self.hosts} failed: {cause!r}"))

    async def _keep_connected(self) -> None:
        """Connect to one server after the other, as long as the client is open."""
        servers = [_address(host) for host in self.hosts.split(",")]
        self._runtime.random.shuffle(servers)
        pause = 0.0  # before the next round of all servers
        failed_count = 0
        was_connected = False
        for host, port in itertools.cycle(servers):
            if failed_count and failed_count % len(servers) == 0:
                pause = min(max(2 * pause, RECONNECT_S_MIN), RECONNECT_S_MAX, self._timeout_s / 5)
                await asyncio.sleep(pause * (0.5 + self._runtime.random.random() / 2))
            self._failure = ""
            try:
                async with asyncio.timeout(max(self._timeout_s / len(servers), RECONNECT_S_MIN)):
                    connection = await self._connect(host, port)
            except (OSError, TlsFailed, Broken, _ConnectionLost, _CredentialsRefused) as error:
                # Credentials that were good once may be good again: a ticket expires, a key is replaced.
                if isinstance(error, _CredentialsRefused) and not was_connected:
                    self._ended(MetadataError(f"ZooKeeper at {self.hosts} {error}"))
                    return
                failed_count += 1
                self._failure = str(error) or self._failure or "time-out"
                self._events.info("zookeeper.not_connected", server=f"{host}:{port}", error=self._failure)
                continue
            was_connected = True
            began = self._runtime.clock.monotonic()
            self._connection = connection
            self._changed.set()
            cause = await connection.ended
            failed_count += 1
            if self._runtime.clock.monotonic() - began >= RECONNECT_S_MAX:  # otherwise it may break again at once
                pause, failed_count = 0.0, 0
            self._connection = None
            self._changed.clear()
            self._session.zxid = max(self._session.zxid, connection.zxid)
            if self._end is not None:
                return
            self._events.warning("zookeeper.connection_lost", server=f"{host}:{port}", error=cause)
            self._watches.fire_all()

    async def _connect(self, host: str, port: int) -> _Connection:
        """Return a connection that has taken up the session, or a new one if the session has ended."""
        while True:
            make = partial(_Connection, self._event, self._explained, self._timeout_s)
            _, protocol = await self._runtime.network.connect(host, port, make)
            assert isinstance(protocol, _Connection)
            try:
                await self._take_up(protocol, host)
            except _SessionEnded:
                protocol.drop(ConnectionResetError("the session has ended"))
                self._forget_session()
            except BaseException:
                protocol.drop(ConnectionResetError("the session was not taken up"))
                raise
            else:
                return protocol

    async def _take_up(self, connection: _Connection, host: str) -> None:
        if self._encryption is not None:
            assert connection.transport is not None
            connection.transport = await self._encryption.encrypt(
                connection.transport, connection, host_name=host if self._credentials.checks_name else None
            )
        first = zk_wire.connect_request(
            self._session.zxid, round(self._timeout_s * 1000), self._session.number, self._session.password
        )
        granted = await connection.begin(first)
        if granted.timeout_ms <= 0:
            if self._session.number == 0:
                raise Broken("the server begins no session")
            raise _SessionEnded
        self._session.number, self._session.password = granted.session, granted.password
        try:
            if self._credentials.digest is not None:
                await connection.authenticate("digest", self._credentials.digest.encode())
            if self._credentials.sasl:
                await self._authenticate_by_sasl(connection, host)
        except _Faulty as error:
            if error.fault in (Fault.AUTHENTICATION_FAILED, Fault.NO_RIGHTS):
                raise self._refused("") from error
            raise Broken(f"error {error} to our credentials") from error
        # Two thirds of the timeout are for noticing that the server is away: a part of an interval until the next ping,
        # and one interval for each. One third is for another server.
        connection.keep_alive(granted.timeout_ms / 1000 * PING_INTERVAL)

    async def _authenticate_by_sasl(self, connection: _Connection, host: str) -> None:
        try:
            client = await self._sasl_client(host)
            token: bytes | None = client.first()
            while token is not None:
                answer = asyncio.get_running_loop().create_future()
                connection.send(Code.SASL, zk_wire.buffer(token), Reader.buffer, answer)
                challenge = await answer
                token = None if client.is_complete else client.respond(challenge)
        except BookieUnreachable as error:  # the KDC
            raise Broken(error.message) from error
        except (Unauthorized, ConfigError) as error:
            raise self._refused(f": {error.message}") from error

    def _refused(self, reason: str) -> _CredentialsRefused:
        way_out = "correct the file that options= in the metadata URI names"
        return _CredentialsRefused(f"refuses our credentials ({self._credentials!r}){reason}: {way_out}")

    async def _sasl_client(self, host: str) -> DigestMd5Client | GssapiClient:
        sasl = self._credentials.sasl
        assert sasl is not None
        if isinstance(sasl, KerberosLogin):
            self._failure = "no Kerberos ticket from the KDC in time"
            return GssapiClient(*await self._runtime.kerberos().initiate(sasl, host))
        cnonce = f"{self._runtime.random.getrandbits(NONCE_BITS):x}"
        return DigestMd5Client(*sasl, cnonce, _DIGEST_URI)

    def _forget_session(self) -> None:
        ended, self._session = self._session, _Session()
        if ended.number:
            self._session_lost()

    async def _connected(self, only_in: int | None = None) -> _Connection:
        """Return the connection once there is one. Raises `MetadataError` after a session timeout, and `SessionExpired`
        if the connection's session is not `only_in`.
        """
        try:
            if not self._is_settled():
                async with asyncio.timeout(self._timeout_s):
                    while not self._is_settled():
                        await (asyncio.sleep(0) if self._changed.is_set() else self._changed.wait())
        except TimeoutError:
            possible = "hosts, ports and certificates" if self._credentials.is_tls else "hosts and ports"
            last = f" (last attempt: {self._failure})" if self._failure else ""
            raise MetadataError(
                f"no ZooKeeper server at {self.hosts} has answered for {self._timeout_s:g} s{last}; check that it "
                f"runs, and that the {possible} are right"
            ) from None
        if self._end is not None:
            raise copy.copy(self._end)
        if only_in not in (None, self.session_id):
            raise SessionExpired(f"the session with ZooKeeper at {self.hosts} was lost")
        assert self._connection is not None
        return self._connection

    def _is_settled(self) -> bool:
        """Report whether there is a connection, or never will be. One that has just ended is none."""
        return self._end is not None or (self._connection is not None and not self._connection.ended.done())

    # -- requests ------------------------------------------------------------------------------------------------
    async def _request(
        self,
        path: str,
        code: Code,
        body: bytes,
        *,
        sync: bool = False,
        only_in: int | None = None,  # see `_connected`
        watched: tuple[bool, _Watch | None] = (False, None),
    ) -> Any:
        """Send a request and return its result. `watched`: whether it is a watch of the znode's children, and the
        callback.

        There is no await between the check of the connection and the request: a watch belongs to the connection that
        sets it.
        """
        connection = await self._connected(only_in)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if watched[1] is not None:
            self._watches.add((watched[0], path), watched[1])
        if sync:
            connection.send(Code.SYNC, zk_wire.text(path), None, answer, path)
        connection.send(code, body, _PARSERS[code], answer, path)
        return await answer

    def _explained(self, error: Exception, path: str) -> Exception:
        """Return what the caller of a request gets for an error."""
        if isinstance(error, _Faulty):
            explained = self._translated(error, path)
        elif self._end is not None:
            explained = copy.copy(self._end)
        else:
            server = f"ZooKeeper at {self.hosts}"
            late, lost = f"{server} did not answer within", f"the connection to {server} was lost before it answered"
            is_late = isinstance(error, TimeoutError)
            explained = OutcomeUnknown(f"{late} {self._timeout_s:g} s" if is_late else f"{lost}: {error}")
        explained.__cause__ = error
        return explained

    def _translated(self, error: _Faulty, path: str) -> Exception:
        refusal = _REFUSALS.get(error.fault)
        if refusal is not None:
            return refusal(path)
        if error.fault == Fault.SESSION_EXPIRED:
            return SessionExpired(f"the session with ZooKeeper at {self.hosts} was lost")
        if error.fault == Fault.SESSION_MOVED:
            return OutcomeUnknown(f"the session continues on another server of ZooKeeper at {self.hosts}")
        if error.fault in (Fault.NO_RIGHTS, Fault.AUTHENTICATION_FAILED, Fault.INVALID_ACL):
            next_step = "authenticate as the identity that created it, with options=FILE in the metadata URI"
            return Denied(f"ZooKeeper at {self.hosts} denies access to {path}: {next_step}")
        kind = Denied if error.fault < Fault.SERVER_FAULTS_END else MetadataError
        return kind(f"ZooKeeper at {self.hosts} answered error {error} for {path}")

    async def create(
        self, path: str, data: bytes, acl: Acl, *, is_ephemeral: bool = False, is_sequential: bool = False
    ) -> tuple[str, Stat]:
        body = zk_wire.fields(Create(path, data, acl, is_ephemeral, is_sequential))
        created: tuple[str, Stat] = await self._request(path, Code.CREATE_WITH_STAT, body)
        return created

    async def get(self, path: str, *, sync: bool = False) -> tuple[bytes, Stat]:
        body = zk_wire.watched_path(path, False)
        data: tuple[bytes, Stat] = await self._request(path, Code.GET, body, sync=sync)
        return data

    async def exists(self, path: str, *, sync: bool = False, watch: _Watch | None = None) -> Stat | None:
        body = zk_wire.watched_path(path, watch is not None)
        watched = (False, watch)
        try:
            stat: Stat = await self._request(path, Code.EXISTS, body, sync=sync, watched=watched)
        except NodeMissing:
            return None
        return stat

    async def children(self, path: str, *, sync: bool = False, watch: _Watch | None = None) -> tuple[list[str], Stat]:
        body = zk_wire.watched_path(path, watch is not None)
        listing: tuple[list[str], Stat] = await self._request(
            path, Code.CHILDREN, body, sync=sync, watched=(True, watch)
        )
        return listing

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION, *, session: int | None = None) -> Stat:
        body = zk_wire.fields(SetData(path, data, version))
        stat: Stat = await self._request(path, Code.SET, body, only_in=session)
        return stat

    async def delete(self, path: str, version: int = ANY_VERSION, *, session: int | None = None) -> None:
        body = zk_wire.fields(Delete(path, version))
        await self._request(path, Code.DELETE, body, only_in=session)

    async def multi(self, operations: Sequence[Operation], *, session: int | None = None) -> list[Outcome]:
        connection = await self._connected(session)
        answer: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        self._send_multi(connection, operations, answer)
        return await answer

    def start_multi(self, operations: Sequence[Operation], answer: Answer) -> None:
        if self._end is not None:
            answer.set_exception(copy.copy(self._end))
        elif self._connection is not None and self._is_settled():
            self._send_multi(self._connection, operations, answer)
        else:
            assert self._tasks is not None, "not opened"
            task = self._tasks.start(self._start_later(operations, answer), "a transaction that waits for a connection")
            task.add_done_callback(partial(self._waited, answer))

    def _waited(self, answer: Answer, task: asyncio.Task[None]) -> None:
        """Fail a transaction that `close` has cancelled, perhaps before the first step of its task."""
        if task.cancelled() and self._end is not None and not answer.done():
            answer.set_exception(copy.copy(self._end))

    async def _start_later(self, operations: Sequence[Operation], answer: Answer) -> None:
        try:
            self._send_multi(await self._connected(), operations, answer)
        except BookKeeperError as error:  # of the connection: nothing was sent
            if not answer.done():
                answer.set_exception(error)

    def _send_multi(self, connection: _Connection, operations: Sequence[Operation], answer: Answer) -> None:
        body = zk_wire.transaction(operations)
        connection.send(Code.MULTI, body, partial(self._outcomes, operations), answer, operations[0].path)

    def _outcomes(self, operations: Sequence[Operation], reader: Reader) -> list[Outcome]:
        """Read the outcomes of a transaction. Raises the first refusal."""
        outcomes = reader.outcomes()
        if len(outcomes) != len(operations):
            raise Broken(f"{len(outcomes)} results of {len(operations)} operations")
        if int not in map(type, outcomes):
            return cast(list[Outcome], outcomes)
        for index, (operation, outcome) in enumerate(zip(operations, outcomes, strict=True)):
            if isinstance(outcome, int) and outcome not in (Fault.ROLLED_BACK, Fault.RUNTIME_INCONSISTENCY):
                error = self._translated(_Faulty(outcome), operation.path)
                if isinstance(error, Refusal):
                    error.index = index
                raise error
        raise MetadataError(f"ZooKeeper at {self.hosts} refused a transaction on {operations[0].path} unexplained")

    # -- watches -------------------------------------------------------------------------------------------------
    def _event(self, kind: int, path: str) -> None:
        for is_of_children in _FIRED.get(kind, ()):
            self._watches.fire((is_of_children, path))

    def unwatch(self, watch: _Watch) -> None:
        self._watches.remove(watch)


def _address(server: str) -> tuple[str, int]:
    host, _, port = server.strip().rpartition(":")
    if not port.isdigit() or port == server:
        return server.strip().strip("[]"), PORT
    return host.strip("[]"), int(port)


def _encryption(runtime: Runtime, given: Credentials) -> Encryption | None:
    """Return TLS for the credentials; None: plain text. Raises `ConfigError`, which names a file that does not load."""
    if not given.is_tls:
        return None
    if runtime.tls is None:
        raise ConfigError("TLS to ZooKeeper is not available here")
    files = TlsFiles(
        certificate=given.certificate or "",
        key=given.key or "",
        key_password_file="",
        key_password=given.key_password or "",
        authority=given.authority or "",
        checks_peer=given.checks_certificate,
        checks_host_name=given.checks_name,
        version_min="1.2",
        ciphers="",
        reload_interval_s=60.0,
    )
    try:
        return runtime.tls(files, False)
    except ConfigError as error:
        raise ConfigError(f"tls to ZooKeeper: {error}") from error
