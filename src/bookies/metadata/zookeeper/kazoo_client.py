"""The ZooKeeper port on the library kazoo, which comes with the extra `zookeeper`.

Kazoo keeps the connection on a thread of its own, pings, reconnects, and begins a new session after a lost one. That
thread hands completions, watches and changes of state to the event loop, in the order in which the server sent them
(`kazoo_handler`). The client submits no request without a connection: kazoo would queue the request and send it after
a reconnection, long after the caller got an error. See `zookeeper_port.ZooKeeper`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import logging
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Any

from bookies.errors import ClientClosed, ConfigError, MetadataError, SessionExpired
from bookies.metadata.zookeeper.zookeeper_port import (
    ANY_VERSION,
    Acl,
    Check,
    Create,
    Credentials,
    Delete,
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

RECONNECT_S_MAX = 2.0  # between two attempts to reach a server, and at most a fifth of a session timeout
LINES_MAX, LINES_WINDOW_S = 5, 60.0  # kazoo's log lines in a time window
STOP_S = 1.0  # in addition to a session timeout, for kazoo to end its threads
_Watch = Callable[[], None]


def is_available() -> bool:
    """Report whether kazoo is installed."""
    return importlib.util.find_spec("kazoo") is not None


def check_available(uri: str, credentials: Credentials) -> None:
    """Check the libraries and certificate files. Raises `ConfigError`, which names the package or the file."""
    if not is_available():
        raise ConfigError(f"{uri} is in ZooKeeper; to use it: pip install 'bookies[zookeeper]'")
    if credentials.sasl and importlib.util.find_spec("puresasl") is None:
        raise ConfigError(f"{uri} uses SASL, which needs a library: pip install pure-sasl")
    if credentials.is_tls:
        _check_files(credentials)


def _check_files(given: Credentials) -> None:
    """Check the certificate files, with which kazoo would retry for ever without an error. Raises `ConfigError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    path = ""
    try:
        if given.certificate is not None:
            path = f"{given.certificate} and {given.key}"
            context.load_cert_chain(given.certificate, given.key, given.key_password or "")
        if given.authority is not None:
            path = given.authority
            context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        reason = (error.reason or "").lower().replace("_", " ") if isinstance(error, ssl.SSLError) else ""
        raise ConfigError(f"tls to ZooKeeper: {path} cannot be loaded: {reason or error}") from error


class Limit(logging.Filter):
    """Log filter that limits kazoo's lines: it logs every attempt to connect, several a second without a server."""

    def __init__(self) -> None:
        super().__init__()
        self._begins, self._count = 0.0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        if not 0 <= record.created - self._begins < LINES_WINDOW_S:
            if self._count > LINES_MAX:
                record.msg, record.args = f"{record.getMessage()} ({self._count - LINES_MAX} lines left out)", ()
            self._begins, self._count = record.created, 0
        self._count += 1
        return self._count <= LINES_MAX


class KazooZooKeeper:
    """A `ZooKeeper` on kazoo. `hosts`: host:port,host:port."""

    def __init__(self, hosts: str, timeout_ms: int, credentials: Credentials | None = None) -> None:
        self.hosts = hosts
        self._timeout_s = timeout_ms / 1000
        self._credentials = credentials or Credentials()
        self._client: Any = None
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connected = asyncio.Event()
        self._was_refused = False  # the server refused our credentials
        self._session_lost: Callable[[], None] = lambda: None
        self._sessions_lost = 0
        self._had_session = False
        self._replaced: asyncio.Task[None] | None = None  # ends a client that gave up
        # (is of children, path) -> (kazoo's callback, our watches): one kazoo watch per znode for all reads
        self._watches: dict[tuple[bool, str], tuple[Callable[[Any], None], dict[_Watch, None]]] = {}
        self._watched: dict[_Watch, dict[tuple[bool, str], None]] = {}  # our watch -> keys of `_watches`

    # -- the session ---------------------------------------------------------------------------------------------
    @property
    def session_id(self) -> int | None:
        client_id = self._client.client_id if self._client is not None else None
        return None if client_id is None else int(client_id[0])

    def on_session_lost(self, callback: Callable[[], None]) -> None:
        self._session_lost = callback

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._start()
        try:
            await self._wait_connected()
        except BaseException:
            await self.close()
            raise

    def _start(self) -> None:
        """Start a new kazoo client, which connects on its own threads."""
        kazoo, retry = importlib.import_module("kazoo.client"), importlib.import_module("kazoo.retry")
        logger = logging.getLogger("kazoo")
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())  # Otherwise kazoo's warnings are printed on stderr.
        lines = logging.getLogger("kazoo.client")
        if not any(isinstance(limit, Limit) for limit in lines.filters):
            lines.addFilter(Limit())
        given = self._credentials
        self._client = client = kazoo.KazooClient(
            hosts=self.hosts,
            timeout=self._timeout_s,
            handler=importlib.import_module("bookies.metadata.zookeeper.kazoo_handler").Handler(),
            connection_retry=retry.KazooRetry(
                max_tries=-1, delay=0.1, max_delay=min(RECONNECT_S_MAX, self._timeout_s / 5)
            ),
            auth_data=[("digest", given.digest)] if given.digest is not None else None,
            sasl_options=dict(given.sasl) or None,
            use_ssl=given.is_tls,
            ca=given.authority,
            certfile=given.certificate,
            keyfile=given.key,
            keyfile_password=given.key_password,
            verify_certs=given.checks_certificate,
            check_hostname=given.checks_certificate and given.checks_host_name,
        )
        client.add_listener(lambda state: self._post(self._state_changed, client, str(state), str(client.client_state)))
        client.start_async()

    async def close(self) -> None:
        self._is_closed = True
        self._connected.set()  # Calls that wait for a connection wake up and fail.
        client, self._client = self._client, None
        if client is not None:
            await self._stop(client)

    async def _stop(self, client: Any) -> None:
        """End the session on a thread of its own, because kazoo waits for its threads; wait for a limited time.

        A session that cannot be ended expires.
        """
        assert self._loop is not None
        ended = asyncio.Event()

        def stop() -> None:
            try:
                client.stop()
                client.close()
            finally:
                self._post(ended.set)

        threading.Thread(target=stop, name="end of a ZooKeeper session", daemon=True).start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s + STOP_S):
                await ended.wait()

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        """Run a function on the event loop. Called on kazoo's threads."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # The loop is closed, so no caller waits.
            self._loop.call_soon_threadsafe(function, *arguments)

    def _state_changed(self, client: Any, state: str, detail: str) -> None:
        if client is not self._client:
            return
        if state == "CONNECTED":
            self._had_session = True
            self._connected.set()
            return
        self._connected.clear()
        self._fire_all()
        if state != "LOST":
            return
        if self._had_session:
            self._had_session = False
            self._sessions_lost += 1
            self._session_lost()
        if detail == "AUTH_FAILED":
            self._was_refused = True
            self._connected.set()
        elif detail == "CLOSED":  # Kazoo gave up after an internal error on its thread.
            self._replaced = asyncio.get_running_loop().create_task(self._stop(client))
            self._start()

    async def _wait_connected(self) -> Any:
        """Return the client once it has a connection. Raises `MetadataError` after a session timeout."""
        try:
            if not self._connected.is_set():
                async with asyncio.timeout(self._timeout_s):
                    await self._connected.wait()
        except TimeoutError:
            possible = "hosts, ports and certificates" if self._credentials.is_tls else "hosts and ports"
            raise MetadataError(
                f"no ZooKeeper server at {self.hosts} has answered for {self._timeout_s:g} s; check that it runs, and "
                f"that the {possible} are right"
            ) from None
        if self._is_closed:
            raise ClientClosed(f"the session with {self.hosts} is closed")
        if self._was_refused:
            raise MetadataError(
                f"ZooKeeper at {self.hosts} refuses our credentials ({self._credentials!r}): correct the file that "
                "options= in the metadata URI names"
            )
        return self._client

    # -- requests ------------------------------------------------------------------------------------------------
    async def _request(self, path: str, *calls: Callable[[Any], Any], only_in: int | None = None) -> Any:
        """Send requests in sequence; return the last one's result. `only_in`: the session that must be current."""
        client = await self._wait_connected()
        if only_in is not None and self.session_id not in (None, only_in):
            raise SessionExpired(f"the session with ZooKeeper at {self.hosts} was lost")
        loop, session = asyncio.get_running_loop(), self._sessions_lost
        answered: asyncio.Future[Any] = loop.create_future()

        def finished(result: Any) -> None:
            self._post(_resolve, answered, result)

        timer = loop.call_later(self._timeout_s, _give_up, answered)
        try:
            sent = [call(client) for call in calls]
            sent[-1].rawlink(finished)
            result = await answered
            for request in sent:
                if request.exception is not None:
                    raise request.exception
            return result
        except TimeoutError:
            raise OutcomeUnknown(f"ZooKeeper at {self.hosts} did not answer within {self._timeout_s:g} s") from None
        except Exception as error:
            raise self._translated(error, path, session != self._sessions_lost) from error
        finally:
            timer.cancel()

    def _translated(self, error: Exception, path: str, is_other_session: bool) -> Exception:
        exceptions = importlib.import_module("kazoo.exceptions")
        for exception, refusal in (
            (exceptions.NoNodeError, NodeMissing),
            (exceptions.NodeExistsError, NodeExists),
            (exceptions.BadVersionError, WrongVersion),
            (exceptions.NotEmptyError, NotEmpty),
        ):
            if isinstance(error, exception):
                return refusal(path)
        if self._is_closed:
            return ClientClosed(f"the session with {self.hosts} is closed")
        if isinstance(error, exceptions.SessionExpiredError) or is_other_session:
            return SessionExpired(f"the session with ZooKeeper at {self.hosts} was lost")
        if isinstance(
            error, exceptions.ConnectionLoss | exceptions.OperationTimeoutError | exceptions.SessionMovedError
        ):
            return OutcomeUnknown(f"the connection to ZooKeeper at {self.hosts} was lost before it answered")
        if isinstance(error, exceptions.ConnectionClosedError):
            return OutcomeUnknown(f"the connection to ZooKeeper at {self.hosts} was closed before it answered")
        if isinstance(error, exceptions.NoAuthError | exceptions.AuthFailedError | exceptions.InvalidACLError):
            next_step = "authenticate as the identity that created it, with options=FILE in the metadata URI"
            return MetadataError(f"ZooKeeper at {self.hosts} denies access to {path}: {next_step}")
        if isinstance(error, exceptions.KazooException):
            return MetadataError(f"ZooKeeper at {self.hosts} answered {type(error).__name__} for {path}: {error}")
        return error

    async def create(
        self, path: str, data: bytes, acl: Acl, *, is_ephemeral: bool = False, is_sequential: bool = False
    ) -> tuple[str, Stat]:
        def call(client: Any) -> Any:
            return client.create_async(
                path, data, acl=_acl(acl), ephemeral=is_ephemeral, sequence=is_sequential, include_data=True
            )

        created, stat = await self._request(path, call)
        return str(created), _stat(stat)

    async def get(self, path: str, *, sync: bool = False) -> tuple[bytes, Stat]:
        data, stat = await self._request(path, *_sync(path, sync), lambda client: client.get_async(path))
        return bytes(data or b""), _stat(stat)

    async def exists(self, path: str, *, sync: bool = False, watch: _Watch | None = None) -> Stat | None:
        watcher = self._watcher(False, path, watch)
        stat = await self._request(path, *_sync(path, sync), lambda client: client.exists_async(path, watch=watcher))
        return None if stat is None else _stat(stat)

    async def children(self, path: str, *, sync: bool = False, watch: _Watch | None = None) -> tuple[list[str], Stat]:
        watcher = self._watcher(True, path, watch)

        def call(client: Any) -> Any:
            return client.get_children_async(path, watch=watcher, include_data=True)

        names, stat = await self._request(path, *_sync(path, sync), call)
        return sorted(names), _stat(stat)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        return _stat(await self._request(path, lambda client: client.set_async(path, data, version)))

    async def delete(self, path: str, version: int = ANY_VERSION, *, session: int | None = None) -> None:
        await self._request(path, lambda client: client.delete_async(path, version), only_in=session)

    async def multi(self, operations: Sequence[Operation]) -> list[Outcome]:
        def call(client: Any) -> Any:
            transaction = client.transaction()
            for operation in operations:
                _add_to(transaction, operation)
            return transaction.commit_async()

        results = await self._request(operations[0].path, call)
        exceptions = importlib.import_module("kazoo.exceptions")
        for index, (operation, result) in enumerate(zip(operations, results, strict=True)):
            if isinstance(result, Exception) and not isinstance(
                result, exceptions.RolledBackError | exceptions.RuntimeInconsistency
            ):
                error = self._translated(result, operation.path, False)
                if isinstance(error, Refusal):
                    error.index = index
                raise error
        return [
            str(result) if isinstance(operation, Create) else _stat(result) if isinstance(operation, SetData) else None
            for operation, result in zip(operations, results, strict=True)
        ]

    # -- watches -------------------------------------------------------------------------------------------------
    def _watcher(self, is_of_children: bool, path: str, watch: _Watch | None) -> Callable[[Any], None] | None:
        if watch is None:
            return None
        key = (is_of_children, path)
        if key not in self._watches:
            self._watches[key] = (lambda _: self._post(self._fire, key), {})
        watcher, callbacks = self._watches[key]
        callbacks[watch] = None
        self._watched.setdefault(watch, {})[key] = None
        return watcher

    def _fire(self, key: tuple[bool, str]) -> None:
        _, callbacks = self._watches.pop(key, (None, {}))
        for callback in callbacks:
            keys = self._watched[callback]
            del keys[key]
            if not keys:
                del self._watched[callback]
        for callback in callbacks:
            callback()

    def _fire_all(self) -> None:
        """Call every watch: a lost connection ends the server's watches."""
        for key in list(self._watches):
            self._fire(key)

    def unwatch(self, watch: _Watch) -> None:
        for key in self._watched.pop(watch, {}):
            del self._watches[key][1][watch]


def _resolve(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():  # cancelled, or timed out
        return
    if result.exception is not None:
        future.set_exception(result.exception)
    else:
        future.set_result(result.value)


def _give_up(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


def _sync(path: str, is_wanted: bool) -> list[Callable[[Any], Any]]:
    return [lambda client: client.sync_async(path)] if is_wanted else []


def _acl(acl: Acl) -> Any:
    security = importlib.import_module("kazoo.security")
    return security.OPEN_ACL_UNSAFE if acl is Acl.OPEN else security.CREATOR_ALL_ACL


def _stat(stat: Any) -> Stat:
    return Stat(
        stat.czxid,
        stat.mzxid,
        stat.pzxid,
        stat.ctime,
        stat.mtime,
        stat.version,
        stat.cversion,
        stat.ephemeralOwner,
        stat.numChildren,
    )


def _add_to(transaction: Any, operation: Operation) -> None:
    if isinstance(operation, Create):
        acl = _acl(operation.acl)
        is_ephemeral, is_sequential = operation.is_ephemeral, operation.is_sequential
        transaction.create(operation.path, operation.data, acl=acl, ephemeral=is_ephemeral, sequence=is_sequential)
    elif isinstance(operation, SetData):
        transaction.set_data(operation.path, operation.data, operation.version)
    elif isinstance(operation, Delete):
        transaction.delete(operation.path, operation.version)
    elif isinstance(operation, Check):
        transaction.check(operation.path, operation.version)
