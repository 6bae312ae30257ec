"""The etcd port on gRPC, which comes with the extra `etcd`: one connection at a time, to one of several servers.

The library grpcio transports bytes; `etcd_messages` defines the messages. If a connection fails, or a server does not
answer in time, the client connects to the next server. See `etcd_port.Etcd`.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from bookies.errors import ClientClosed, ConfigError, InvalidArgument, MetadataError
from bookies.metadata.etcd import etcd_messages as messages
from bookies.metadata.etcd.etcd_port import (
    Answer,
    Condition,
    Credentials,
    Get,
    LeaseMissing,
    Only,
    Operation,
    OutcomeUnknown,
)
from bookies.metadata.etcd.etcd_watches import Watches
from bookies.protocol.pacing import Backoff
from bookies.runtime.tasks import Tasks

T = TypeVar("T")

RECONNECT_S_MIN, RECONNECT_S_MAX = 0.1, 2.0  # between two rounds of attempts; at most a fifth of a session timeout
_PING_S = 10  # on an idle connection; etcd's servers drop clients that ping more often than every 5 s
_LATE_S = 0.5  # after gRPC's time limit; gRPC computes it from the wall clock, which may be set back at this moment
_LOST = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNKNOWN", "INTERNAL", "ABORTED", "DATA_LOSS")


def is_available() -> bool:
    """Report whether grpcio is installed."""
    return importlib.util.find_spec("grpc") is not None


def check_available(uri: str) -> None:
    """Check that grpcio is installed. Raises `ConfigError`, which names the package to install."""
    if not is_available():
        raise ConfigError(f"{uri} is in etcd; to use it: pip install 'bookies[etcd]'")


def _library() -> Any:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # Otherwise gRPC prints refused connections on stderr.
    return importlib.import_module("grpc")


class _Connection:
    """A channel to one server, and the token that it issued. `waits`: of calls, which end with the connection."""

    def __init__(self, host: str, credentials: Credentials) -> None:
        self.host = host
        self.waits: dict[asyncio.Timeout, None] = {}
        self._credentials = credentials
        self._grpc = grpc = _library()
        options: list[tuple[str, Any]] = [
            ("grpc.use_local_subchannel_pool", 1),  # a connection of its own, even if other channels use this server
            ("grpc.enable_retries", 0),
            ("grpc.max_receive_message_length", -1),
            ("grpc.keepalive_time_ms", _PING_S * 1000),
            ("grpc.keepalive_timeout_ms", _PING_S * 1000),
            ("grpc.enable_http_proxy", 0),
        ]
        if credentials.server_name is not None:
            options.append(("grpc.ssl_target_name_override", credentials.server_name))
        if credentials.is_tls:
            given = (credentials.authority, credentials.key, credentials.certificate)
            self._channel = grpc.aio.secure_channel(host, grpc.ssl_channel_credentials(*given), options=options)
        else:
            self._channel = grpc.aio.insecure_channel(host, options=options)
        self._metadata: tuple[tuple[str, str], ...] = ()

    def is_ready(self) -> bool:
        return bool(self._channel.get_state() is self._grpc.ChannelConnectivity.READY)

    async def wait_ready(self) -> bool:
        """Wait until the channel is connected. False: the server is unreachable now."""
        states = self._grpc.ChannelConnectivity
        while (state := self._channel.get_state(try_to_connect=True)) is not states.READY:
            if state in (states.TRANSIENT_FAILURE, states.SHUTDOWN):
                return False
            await self._channel.wait_for_state_change(state)
        return True

    async def authenticate(self, timeout_s: float) -> None:
        """Get a token for our user. Raises gRPC's error."""
        if self._credentials.user is not None:
            request = messages.pack_authenticate(self._credentials.user, self._credentials.password)
            try:
                answer = await self.ask(messages.AUTHENTICATE, request, timeout_s)
            except self._grpc.aio.AioRpcError as error:
                if "authentication is not enabled" in error.details():
                    return  # Without authentication, every client has full access.
                raise
            self._metadata = (("token", messages.parse_token(answer)),)

    async def ask(self, method: str, request: bytes, timeout_s: float) -> bytes:
        call = self._channel.unary_unary(method)(request, timeout=timeout_s, metadata=self._metadata)
        return bytes(await call)

    def stream(self, method: str, timeout_s: float | None = None) -> Any:
        metadata = (*self._metadata, ("hasleader", "true"))  # The server ends the stream when it has no leader.
        return self._channel.stream_stream(method)(timeout=timeout_s, metadata=metadata)

    async def close(self) -> None:
        for wait in self.waits:  # gRPC does not wake the callers of a call that it has not sent yet.
            wait.reschedule(0)
        await self._channel.close()


class _Stream:
    """A `Stream` on gRPC, see `etcd_watches`."""

    def __init__(self, etcd: GrpcEtcd, connection: _Connection, method: str, timeout_s: float | None = None) -> None:
        self._etcd = etcd
        self._connection = connection
        self._call = connection.stream(method, timeout_s)

    async def send(self, data: bytes) -> None:
        async with self._etcd.translated(self._connection):
            await self._call.write(data)

    async def receive(self) -> bytes:
        async with self._etcd.translated(self._connection):
            message = await self._call.read()
        if not isinstance(message, bytes):
            raise OutcomeUnknown(f"etcd at {self._connection.host} ended a stream")
        return message

    def cancel(self) -> None:
        self._call.cancel()


class GrpcEtcd:
    """An `Etcd` on gRPC. `hosts`: host:port each."""

    def __init__(self, hosts: Sequence[str], timeout_ms: int, credentials: Credentials | None = None) -> None:
        self.hosts = ",".join(hosts)
        self._hosts = list(hosts)
        self._timeout_s = timeout_ms / 1000
        # A server that hangs must not use up the time for requests to another server.
        self._attempt_s = self._timeout_s if len(hosts) == 1 else self._timeout_s / 3
        self._credentials = credentials or Credentials()
        self._host_number = 0  # of the next connection, modulo the number of hosts
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()
        self._is_closed = False
        self._closing: dict[asyncio.Task[None], None] = {}
        self._tasks = Tasks(self._died)
        self._watches = Watches(self._open_watch_stream, self._tasks)

    # -- the connection ------------------------------------------------------------------------------------------
    async def open(self) -> None:
        try:
            await self._connected()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self._is_closed = True
        connection, self._connection = self._connection, None
        await self._tasks.stop()
        if connection is not None:
            self._close_soon(connection)
        await asyncio.gather(*self._closing)

    def _died(self, cause: BaseException) -> None:
        """Report an unexpected exception in a background task."""
        message = f"the connection to etcd at {self.hosts} failed"
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": cause})

    async def _connected(self) -> _Connection:
        """Return a connection that is ready. Raises `MetadataError` after a session timeout."""
        if self._connection is not None and self._connection.is_ready():
            return self._connection
        try:
            async with asyncio.timeout(self._timeout_s), self._connecting:
                return await self._connect()
        except TimeoutError:
            possible = "hosts, ports and certificates" if self._credentials.is_tls else "hosts and ports"
            raise MetadataError(
                f"no etcd server at {self.hosts} has answered for {self._timeout_s:g} s; check that it runs, and that "
                f"the {possible} are right"
            ) from None

    async def _connect(self) -> _Connection:
        """Try the servers in turn, until the caller's timeout."""
        backoff, attempts = Backoff(RECONNECT_S_MIN, min(RECONNECT_S_MAX, self._timeout_s / 5)), 0
        while True:
            if self._is_closed:
                raise ClientClosed(f"the connection to etcd at {self.hosts} is closed")
            if self._connection is not None and self._connection.is_ready():
                return self._connection
            self._drop(self._connection)
            connection = _Connection(self._hosts[self._host_number % len(self._hosts)], self._credentials)
            try:
                if await self._greet(connection):
                    self._connection = connection
                    return connection
            finally:
                if self._connection is not connection:
                    self._host_number += 1
                    self._close_soon(connection)
            attempts += 1
            if attempts % len(self._hosts) == 0:
                await asyncio.sleep(backoff.next_s())

    async def _greet(self, connection: _Connection) -> bool:
        """Connect and authenticate. False: the server does not answer. Raises `MetadataError` if it refuses us."""
        try:
            async with asyncio.timeout(self._attempt_s):
                if not await connection.wait_ready():
                    return False
                async with self.translated(connection):
                    await connection.authenticate(self._attempt_s)
        except (TimeoutError, OutcomeUnknown):
            return False
        return True

    def _drop(self, connection: _Connection | None) -> None:
        """Close a connection; the next request uses another one."""
        if connection is not None and connection is self._connection:
            self._connection = None
            self._host_number += 1
            self._close_soon(connection)

    def _close_soon(self, connection: _Connection) -> None:
        task = asyncio.get_running_loop().create_task(connection.close())
        self._closing[task] = None
        task.add_done_callback(self._closing.pop)

    # -- requests ------------------------------------------------------------------------------------------------
    @asynccontextmanager
    async def translated(self, connection: _Connection) -> AsyncIterator[None]:
        """Translate gRPC's errors into the port's, and drop a connection that has failed."""
        task = asyncio.current_task()
        assert task is not None
        cancelled_before, wait = task.cancelling(), asyncio.timeout(None)
        try:
            async with wait:
                connection.waits[wait] = None
                yield
        except TimeoutError:
            raise self._lost(connection) from None
        except asyncio.CancelledError:
            # When a connection is closed, gRPC raises it in waiting calls that were not cancelled.
            if task.cancelling() > cancelled_before:
                raise
            raise self._lost(connection) from None
        except _library().aio.AioRpcError as error:
            if error.code().name in _LOST:
                self._drop(connection)
                raise self._lost(connection) from error
            raise self._refusal(connection, error.code().name, error.details() or "") from error
        except _library().aio.UsageError as error:  # the channel is closed
            raise self._lost(connection) from error
        except asyncio.InvalidStateError as error:  # the call has ended
            raise self._lost(connection) from error
        finally:
            connection.waits.pop(wait, None)

    def _lost(self, connection: _Connection) -> MetadataError | ClientClosed:
        if self._is_closed:
            return ClientClosed(f"the connection to etcd at {self.hosts} is closed")
        return OutcomeUnknown(f"the connection to etcd at {connection.host} was lost before it answered")

    def _refusal(self, connection: _Connection, code: str, details: str) -> Exception:
        """Return the error for a request that the server refused."""
        reason = details.removeprefix("etcdserver: ")
        if code == "NOT_FOUND" and "lease not found" in reason:
            return LeaseMissing(reason)
        if "too many operations" in reason:
            next_step = "start its servers with a larger --max-txn-ops"
            return InvalidArgument(
                f"etcd at {connection.host} does not accept this number of operations in one request: {next_step}"
            )
        if "request is too large" in reason or "larger than max" in reason:
            next_step = "start its servers with a larger --max-request-bytes"
            return InvalidArgument(f"etcd at {connection.host} does not accept a request of this size: {next_step}")
        has_user = self._credentials.user is not None
        if code == "UNAUTHENTICATED" or "auth revision" in reason or (has_user and "user name is empty" in reason):
            self._drop(connection)  # The next connection gets a new token.
            return _TokenRefused(f"etcd at {connection.host} does not accept our token any more: {reason}")
        if code == "PERMISSION_DENIED" or "user name is empty" in reason or "authentication failed" in reason:
            whom = f"to user {self._credentials.user!r}" if has_user else "without a user"
            next_step = "authenticate as a user with permission, with options=FILE in the metadata URI"
            return MetadataError(f"etcd at {connection.host} denies access {whom} ({reason}): {next_step}")
        if "database space exceeded" in reason:
            next_step = "compact and defragment it, or raise --quota-backend-bytes, and disarm its alarm"
            return MetadataError(f"etcd at {connection.host} is full: {next_step}")
        return MetadataError(f"etcd at {connection.host} answered {code}: {reason}")

    async def _ask(self, method: str, request: bytes, *, may_repeat: bool) -> bytes:
        async def once(connection: _Connection) -> bytes:
            async with self.translated(connection):
                return await connection.ask(method, request, self._attempt_s)

        return await self._repeat(once, may_repeat=may_repeat)

    async def _repeat(self, once: Callable[[_Connection], Awaitable[T]], *, may_repeat: bool) -> T:
        """Repeat a request until it is answered, or a session timeout has passed."""
        loop = asyncio.get_running_loop()
        deadline, has_new_token = loop.time() + self._timeout_s, False
        while True:
            connection = await self._connected()
            try:
                async with asyncio.timeout(self._attempt_s + _LATE_S):
                    return await once(connection)
            except TimeoutError:
                self._drop(connection)
                if not may_repeat or loop.time() >= deadline:
                    raise self._lost(connection) from None
            except _TokenRefused:
                if has_new_token:
                    raise
                has_new_token = True
            except OutcomeUnknown:
                if not may_repeat or loop.time() >= deadline:
                    raise

    async def transact(
        self, conditions: Sequence[Condition], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> Answer:
        request = messages.pack_transaction(conditions, then, otherwise)
        only_reads = all(isinstance(operation, Get) for part in (then, otherwise) for operation in part)
        return messages.parse_answer(
            await self._ask(messages.TRANSACT, request, may_repeat=only_reads), (then, otherwise)
        )

    # -- leases --------------------------------------------------------------------------------------------------
    async def grant_lease(self, ttl_s: int) -> tuple[int, int]:
        # A lease that was granted, and whose answer was lost, expires.
        return messages.parse_lease(await self._ask(messages.GRANT_LEASE, messages.pack_grant(ttl_s), may_repeat=True))

    async def keep_lease(self, lease: int) -> bool:
        async def once(connection: _Connection) -> bytes:
            stream = _Stream(self, connection, messages.KEEP_LEASE, self._attempt_s)
            try:
                await stream.send(messages.pack_lease(lease))
                return await stream.receive()
            finally:
                stream.cancel()

        return messages.parse_lease(await self._repeat(once, may_repeat=True))[1] > 0

    async def revoke_lease(self, lease: int) -> None:
        try:
            await self._ask(messages.REVOKE_LEASE, messages.pack_lease(lease), may_repeat=True)
        except LeaseMissing:
            pass  # The lease has ended already.

    # -- watches -------------------------------------------------------------------------------------------------
    async def _open_watch_stream(self) -> _Stream:
        return _Stream(self, await self._connected(), messages.WATCH)

    def watch(
        self, key: str, stop: str | None, revision: int, callback: Callable[[], None], *, only: Only | None = None
    ) -> None:
        if not self._is_closed:
            self._watches.watch(key, stop, revision, callback, only=only)

    def unwatch(self, callback: Callable[[], None]) -> None:
        self._watches.unwatch(callback)


class _TokenRefused(MetadataError):
    """The server refused our token, and did nothing: it has expired, or users, roles or authentication were changed."""
