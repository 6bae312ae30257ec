"""A bookie: storage, port and registration, started and stopped in the right order.

Start: bind the port (connections are closed at once), compare cookies, start the storage (it replays its journal),
serve, register. So a port in use is found before anything is changed, and clients that learn of the bookie can
connect.

Stop: unregister, stop accepting input, answer what was accepted, checkpoint. A failure of the journal or of a task is
the failure of the bookie: `wait_failed` returns its cause, and the process has to end.

Losing the metadata session is not a failure: the bookie serves its clients and registers again when it can.

Source: storage 9.5, 9.6, metadata 6.1.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from types import MappingProxyType

from bookies.bookie.connection import Connection, RejectedConnection, Surroundings
from bookies.bookie.control import (
    COLLECTION_CALLS,
    SCRUB_CALLS,
    Call,
    ControlServer,
    control_calls,
    mode_calls,
    refused_calls,
    scrub_calls,
    storage_calls,
)
from bookies.bookie.handlers import Handlers
from bookies.bookie.identity import admit, check_identity, identity
from bookies.bookie.persisted_status import PersistedStatus
from bookies.bookie.pressure import Intake, ReadBudget
from bookies.bookie.reads import Reads
from bookies.bookie.secure_connection import SecureConnection
from bookies.bookie.security import Security
from bookies.bookie.served import Served
from bookies.bookie.state import BookieState
from bookies.bookie.storage_port import Storage
from bookies.bookie.unknown_ledgers import settle_unknown_ledgers
from bookies.config import BookieConfig
from bookies.errors import BookKeeperError, MetadataCorrupt, MetadataError, StorageError
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.bookie_places import BookiePlace, note_place
from bookies.model import BookieId, BookieInfo, BookieMode, Endpoint
from bookies.protocol.pacing import Backoff
from bookies.runtime.events import Events
from bookies.runtime.histogram import Distribution
from bookies.runtime.ports import Listener, Lock, Runtime
from bookies.runtime.tasks import Tasks
from bookies.storage.store import LedgerStore

REGISTER_RETRY_S = 0.5  # first pause after a failed registration; doubles
REGISTER_RETRY_S_MAX = 10.0
UNREGISTER_S = 2.0  # of a stop; then the lease has to expire
ANSWER_S = 5.0  # of a stop; then accepted adds go unanswered
PARTIAL_FRAMES = 4  # requests of the largest size that may arrive at the same time, independent of the settings
WAITING_S = 1.0  # of a start, for the registration; then a warning names what it waits for
SETTLE_S = 5.0  # how long an operator's command waits for the registration to follow
FETCH_S = 1.0  # of a stop, after the last checkpoint; then peers that have not fetched their answers lose them


class BookieServer:
    """One bookie on one metadata session, which the caller opens and closes.

    `address`, `tls_address` and `bookie_id` are known once `start` has bound the port. `wrap`: returns the storage that
    serves the requests, which may watch or change the calls of the bookie's own.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: BookieConfig,
        driver: MetadataDriver,
        wrap: Callable[[LedgerStore], Storage] | None = None,
    ) -> None:
        self.config = config
        self.state = BookieState()
        self.bookie_id = BookieId(identity(config))
        self.address = (config.host, config.port)
        self.http_address: tuple[str, int] | None = None  # of the HTTP server around this bookie
        self.tls_address: tuple[str, int] | None = None  # where TLS begins with the first byte
        self.store = LedgerStore(runtime, config, self._fail)
        self.storage: Storage = self.store if wrap is None else wrap(self.store)
        self._runtime = runtime
        self._driver = driver
        self._events = Events("bookie", runtime.clock)
        self._kept_mode = PersistedStatus(runtime, config, self._events)
        self._intake = Intake(
            config.adds_in_progress_size_max,
            lambda: self.store.is_congested,
            self.store.when_uncongested,
            partial_size_max=max(config.adds_in_progress_size_max, PARTIAL_FRAMES * config.frame_size_max),
            now=runtime.clock.monotonic,
        )
        self._budget = ReadBudget(config.reads_in_progress_size_max)
        self.served = Served(runtime.clock.monotonic) if config.http_port >= 0 else None
        self._reads = Reads(self.storage, config, runtime.clock, self._events, self.served)
        self._handlers = Handlers(self.storage, self.state, self._intake, self._reads, self._events, self.served)
        self._tasks = Tasks(self._fail)
        self._security: Security | None = None
        self._listener: Listener | None = None
        self._tls_listener: Listener | None = None
        self._control: ControlServer | None = None
        self._instance_id: str | None = None
        self._registration_changed = asyncio.Event()
        self._registration_settled = asyncio.Event()
        self.has_started = False  # it has served and was registered once
        self._sessions_lost = 0
        self._cause: BaseException | None = None
        self._failed = asyncio.Event()

    async def start(self) -> None:
        """Begin to serve, or raise and leave nothing behind.

        Raises: `ConfigError`; OSError (the port, the directories); `DirectoryInUse`, `CookieMismatch`,
        `CorruptRecord` and other `StorageError`; `MetadataError` (the store, the registration).
        """
        check_identity(self.config)
        try:
            self._security = Security(self._runtime, self.config, self._events)
            await self._listen()
            locks: list[Lock] = []
            try:
                admission = await admit(self._runtime.disk, self.config, self._driver, locks, self._events)
                self._instance_id = admission.instance_id
                await self.store.start()
            finally:
                for lock in locks:
                    lock.release()
            if self.config.gc_interval_ms:
                self.store.collect(self._driver, self.bookie_id, self._instance_id)
            if self.config.scrub_period_ms:
                self.store.scrub(self._driver)
            if not self.store.was_clean:
                self._tell_unclean()
            if self.config.control:
                await self._start_control()
            self.state.hold_read_only(await self._kept_mode.load())
            self.store.on_mode_change(self._mode_changed)
            self.state.storage_is(self.store.is_writable)
            self.state.started()
            self._driver.on_session_expired(self._session_lost)
            waiting = asyncio.get_running_loop().call_later(WAITING_S, self._tell_waiting)
            try:
                await self._register(self.state.mode)
            finally:
                waiting.cancel()
            self._tasks.start(self._keep_registered(), f"registration of {self.bookie_id}")
            self._tasks.start(self._note_place(), f"place of {self.bookie_id}")
            if self.store.has_unknown_ledgers:
                settling = settle_unknown_ledgers(self.store, self._driver, self.bookie_id, self._events)
                self._tasks.start(settling, f"settling of {self.bookie_id}")
        except BaseException:
            await self.abort()
            raise
        self.has_started = True
        self._events.info(
            "bookie.serving",
            bookie=self.bookie_id,
            host=self.address[0],
            port=self.address[1],
            mode=self.state.mode.value,
            **({"reason": self.store.read_only_reason} if not self.store.is_writable else {}),
        )

    async def stop(self) -> None:
        """Stop in order, within seconds. Idempotent."""
        if self._listener is None:
            return
        was_serving = self.state.may_serve()
        self.state.stopping()
        self._close_listener()
        await self._tasks.stop()
        if was_serving:
            await self._unregister()
        self._intake.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                await self._intake.wait_idle()
        for connection in self._intake.connections():
            connection.close()
        try:
            await self.store.stop()
        except (StorageError, OSError, TimeoutError) as error:
            # No entry is lost: the journal has what could not be flushed, and the next start replays it.
            self._events.warning("checkpoint.failed", bookie=self.bookie_id, error=error)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FETCH_S):
                await self._intake.wait_empty()
        await self._abort_connections()
        self._events.info("bookie.stopped", bookie=self.bookie_id)

    async def abort(self) -> None:
        """Release port and connections after a failure; the storage is left as it is."""
        self.state.stopping()
        self._intake.stop()
        self._close_listener()
        await self._tasks.stop()
        await self._abort_connections()
        self.store.abort()

    def on_add_latency(self, callback: Callable[[float], None]) -> None:
        """Call `callback` with the seconds until each batch of ordinary adds was answered."""
        self._handlers.on_add_latency = callback

    def extend_control(self, calls: Mapping[str, Call]) -> None:
        """Add these calls of operators."""
        if self._control is not None:
            self._control.extend(calls)

    async def wait_failed(self) -> BaseException:
        """Wait until the bookie fails and return the cause. The process then has to end, with `abort` at most."""
        await self._failed.wait()
        assert self._cause is not None
        return self._cause

    # -- start ---------------------------------------------------------------------------------------------------
    async def _listen(self) -> None:
        listen, host = self._runtime.network.listen, self.config.host
        self._listener = await listen(host, self.config.port, self._accept)
        self.address = (host, self._listener.address[1])
        if self.config.tls_port >= 0:
            self._tls_listener = await listen(host, self.config.tls_port, self._accept_tls)
            self.tls_address = (host, self._tls_listener.address[1])

    def _tell_unclean(self) -> None:
        self._events.warning(
            "bookie.unclean_start",
            bookie=self.bookie_id,
            replayed=self.store.stats()["replayed_entries"],
            consequence="the previous process did not stop in order; acknowledged entries were restored "
            "from the journal",
        )

    def _tell_waiting(self) -> None:
        self._events.warning(
            "registration.waiting",
            bookie=self.bookie_id,
            lease_ms=self.config.lease_ms,
            reason="the previous process's registration may still be active; it ends when its lease expires",
        )

    async def _start_control(self) -> None:
        """Serve operators' calls on the parts that exist. The bookie serves clients even if this fails."""
        calls = {
            **mode_calls(self.describe, self.hold_read_only),
            **storage_calls(self.store),
            **refused_calls(COLLECTION_CALLS, "collection", "gc_interval_ms"),
            **refused_calls(SCRUB_CALLS, "the scrub", "scrub_period_ms"),
        }
        if self.store.collector is not None:
            calls |= control_calls(self.store.collector)
        if self.store.scrubber is not None:
            calls |= scrub_calls(self.store.scrubber)
        self._control = ControlServer(self._runtime, calls, self.bookie_id)
        try:
            failed = await self._control.start(self.config.ledger_directories, self.http_address)
        except (OSError, StorageError) as error:
            self._events.warning("control.failed", bookie=self.bookie_id, error=error)
            return
        for directory, problem in failed.items():
            self._events.warning("control.failed", bookie=self.bookie_id, directory=directory, error=problem)

    def _accept(self) -> asyncio.BaseProtocol:
        return self._accepted(is_direct=False)

    def _accept_tls(self) -> asyncio.BaseProtocol:
        return self._accepted(is_direct=True)

    def _accepted(self, *, is_direct: bool) -> asyncio.BaseProtocol:
        if not self.state.may_serve():
            return RejectedConnection()
        surroundings = Surroundings(self._handlers, self._intake, self._events, self.config.frame_size_max)
        share = self._budget.new_share()
        if self._security is None or not self._security.is_needed:
            return Connection(surroundings, share)
        return SecureConnection(self._security, is_direct, surroundings, share)

    # -- registration --------------------------------------------------------------------------------------------
    async def _register(self, mode: BookieMode) -> None:
        session = self._sessions_lost
        host, port = self.config.advertised_host or self.address[0], self.config.advertised_port or self.address[1]
        extensions = ("tls",) if self.config.tls_certificate else ()
        endpoint = Endpoint("bookie", host, port, "bookie-rpc", extensions=extensions)
        properties = {"location": self.config.location} if self.config.location else {}
        endpoints = [endpoint]
        if self.http_address is not None:
            endpoints.append(Endpoint("httpserver", self._http_host(), self.http_address[1], "http"))
        await self._driver.register(self.bookie_id, mode, BookieInfo(tuple(endpoints), MappingProxyType(properties)))
        if session == self._sessions_lost:  # otherwise it ended with the session in which it was made
            self.state.registered(mode)

    def _http_host(self) -> str:
        """Return the host to publish for the HTTP server: one that listens everywhere is where the bookie is."""
        host = self.config.http_host
        return (self.config.advertised_host or self.address[0]) if host in ("0.0.0.0", "::", "") else host

    async def _note_place(self) -> None:
        """Record the bookie's location, for the time when it is down; retried until it succeeds."""
        location = self.config.location
        place = BookiePlace(location, self.config.advertised_host or self.address[0]) if location else None
        while True:
            try:
                await note_place(self._driver, self.bookie_id, place)
                return
            except MetadataCorrupt as error:
                self._events.warning("place.not_noted", bookie=self.bookie_id, error=error)
                return
            except MetadataError:
                await asyncio.sleep(self._runtime.random.uniform(0.5, 1.0) * REGISTER_RETRY_S_MAX)

    async def _keep_registered(self) -> None:
        """Make the registration follow the mode for as long as the bookie serves."""
        backoff = Backoff(REGISTER_RETRY_S, REGISTER_RETRY_S_MAX, self._runtime.random.uniform)
        while True:
            mode = self.state.registration_due()
            if mode is None:
                backoff.reset()
                self._registration_changed.clear()
                self._registration_settled.set()
                await self._registration_changed.wait()
                continue
            self._registration_settled.clear()
            await self._kept_mode.keep(mode, is_held=self.state.is_held_read_only)
            try:
                await self._register(mode)
            except MetadataError as error:
                self._events.warning(
                    "registration.failed", bookie=self.bookie_id, retry_s=round(backoff.longest_s, 1), error=error
                )
                await asyncio.sleep(backoff.next_s())
            else:
                self._events.info("registration.made", bookie=self.bookie_id, mode=mode.value)

    def _session_lost(self) -> None:
        self._sessions_lost += 1
        self.state.registration_lost()
        self._registration_changed.set()
        self._events.warning("session.expired", bookie=self.bookie_id)

    def _mode_changed(self) -> None:
        self.state.storage_is(self.store.is_writable)
        self._registration_settled.clear()
        self._registration_changed.set()
        self._events.warning(
            "bookie.mode",
            bookie=self.bookie_id,
            mode=self.state.mode.value,
            reason="; ".join(self.reasons()) or "disks have free space, and no operator holds it read-only",
        )

    # -- operators -----------------------------------------------------------------------------------------------
    async def hold_read_only(self, held: bool) -> dict[str, object]:
        """Refuse ordinary adds until this is called with False. A persisted mode survives a restart.

        Returns when the registration follows, or cannot for now; see `describe`.
        """
        self.state.hold_read_only(held)
        self._mode_changed()
        problem = await self._kept_mode.keep(self.state.mode, is_held=held)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await self._registration_settled.wait()
        facts = self.describe()
        if held and not self._kept_mode.is_on:
            facts["until"] = "the bookie stops; with --set persist_bookie_status=true also after a restart"
        elif problem is not None:
            facts["until"] = f"the bookie stops: {problem}"
        return facts

    def describe(self) -> dict[str, object]:
        """Describe the bookie and its current state, for operators."""
        replayed = self.store.stats()["replayed_entries"]
        clean = self.store.was_clean
        return {
            "bookie": self.bookie_id,
            "address": f"{self.address[0]}:{self.address[1]}",
            **(self._security.describe() if self._security is not None and self._security.is_needed else {}),
            "mode": self.state.mode.value,
            "registered_as": self.state.registered_as.value if self.state.registered_as else "not registered",
            "read_only_because": "; ".join(self.reasons()) or None,
            "last_stop": "orderly" if clean else f"not orderly: {replayed:,} entries were restored from the journal",
            "journal_directories": ", ".join(self.config.journal_directories),
            "ledger_directories": ", ".join(self.config.ledger_directories),
            "index_directories": ", ".join(self.config.index_directories) or None,
        }

    def load(self) -> dict[str, int]:
        """Return what the connections hold and wait for, for metrics. Sizes in bytes."""
        connections, parts = self._intake.connections(), self.store.parts
        return {
            "records_queued": sum(journal.queued_count for journal in parts.journals) if parts is not None else 0,
            "connections": len(connections),
            "connections_paused": len(connections) if self._intake.is_paused else 0,
            "adds_size": self._intake.adds_size,
            "partial_size": self._intake.partial_frames.size,
            "reads_size": self._budget.size,
            "reads_waiting": self._budget.waiting,
            "reads_in_background": sum(connection.task_count for connection in connections),
            "long_polls": self._reads.long_polls,
            "sessions_lost": self._sessions_lost,
        }

    @property
    def pauses(self) -> Distribution:
        """Return the seconds for which reading from all sockets was paused."""
        return self._intake.pauses

    @property
    def metadata(self) -> MetadataDriver:
        """Return the session with the metadata store."""
        return self._driver

    def reasons(self) -> list[str]:
        """Return why ordinary adds are refused, and what ends that."""
        reasons = (
            ["an operator made it read-only; `bk bookie read-write` ends that"] if self.state.is_held_read_only else []
        )
        if not self.store.is_writable:
            reasons.append(self.store.read_only_reason)
        return reasons

    async def _unregister(self) -> None:
        try:
            async with asyncio.timeout(UNREGISTER_S):
                await self._driver.unregister(self.bookie_id)
        except (TimeoutError, BookKeeperError) as error:
            self._events.warning("unregister.failed", bookie=self.bookie_id, error=error)

    # -- end -----------------------------------------------------------------------------------------------------
    def _fail(self, cause: BaseException) -> None:
        """Stop accepting and confirming: the journal or a task failed, and so does the bookie."""
        if self._cause is not None:
            return
        self._cause = cause
        self.state.stopping()
        self._intake.stop()
        self._events.error("bookie.failed", bookie=self.bookie_id, error=cause)
        self._failed.set()

    def _close_listener(self) -> None:
        if self._control is not None:
            self._control.stop()
            self._control = None
        for listener in (self._listener, self._tls_listener):
            if listener is not None:
                listener.close()
        self._listener = self._tls_listener = None

    async def _abort_connections(self) -> None:
        for connection in self._intake.connections():
            connection.abort()
        await self._intake.wait_empty()

    def __repr__(self) -> str:
        return f"<BookieServer {self.bookie_id} at {self.address[0]}:{self.address[1]}, {self.state!r}>"
