"""A bookie: storage, port and registration, started and stopped in the right order.

Start: bind the port (connections are closed at once), compare cookies, start the storage (it replays its journal),
serve, register. So a port in use is found before anything is changed, and clients that learn of the bookie can
connect.

Stop: unregister, stop accepting input, answer what was accepted, checkpoint. A failure of the journal or of a task is
the failure of the bookie: `wait_failed` returns its cause, and the process has to end.

`bookie/state.py` has the table of the bookie's phases.

Source: storage 9.5, 9.6.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from bookies.bookie.control import (
    COLLECTION_CALLS,
    SCRUB_CALLS,
    Call,
    ControlServer,
    control_calls,
    latency_calls,
    mode_calls,
    owed_calls,
    refused_calls,
    scrub_calls,
    settings_calls,
    storage_calls,
)
from bookies.bookie.former_ledgers import LedgerChecks, find_former_ledgers
from bookies.bookie.handlers import Handlers
from bookies.bookie.identity import admit, check_identity, identity
from bookies.bookie.latency import Latency, is_timed
from bookies.bookie.live_settings import LiveSettings
from bookies.bookie.reads import Reads
from bookies.bookie.registration import Registration
from bookies.bookie.served import Served, Spans
from bookies.bookie.state import BookieState
from bookies.bookie.storage_port import Storage
from bookies.bookie.transport.connection import Connection, RejectedConnection, Surroundings
from bookies.bookie.transport.pressure import Intake, ReadBudget
from bookies.bookie.transport.rights import Rights
from bookies.bookie.transport.secure_connection import SecureConnection
from bookies.bookie.transport.security import Security
from bookies.bookie.unknown_ledgers import settle_unknown_ledgers
from bookies.config import BookieConfig
from bookies.errors import StorageError
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.timed_driver import timed
from bookies.model import BookieId
from bookies.protocol.repair.owed import OwedCounts
from bookies.runtime.activities import LoopLag
from bookies.runtime.events import Events
from bookies.runtime.histogram import Distribution
from bookies.runtime.ports import Listener, Lock, Runtime
from bookies.runtime.tasks import Tasks
from bookies.storage.store import LedgerStore

ANSWER_S = 5.0  # of a stop; then accepted adds go unanswered
PARTIAL_FRAMES = 4  # requests of the largest size that may arrive at the same time, independent of the settings
FETCH_S = 1.0  # of a stop, after the last checkpoint; then peers that have not fetched their answers lose them


class Reception:
    """The bookie's ports, and the connections that arrive at them.

    `address`, and `tls_address` where TLS begins with the first byte, are known once the ports are open. `intake`: what
    the connections hold together. `may_serve`: whether connections are accepted at present. `http_address`: of the HTTP
    server around the bookie.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: BookieConfig,
        surroundings: Surroundings,
        rights: Rights,
        may_serve: Callable[[], bool],
    ) -> None:
        self.address = (config.host, config.port)
        self.tls_address: tuple[str, int] | None = None
        self.http_address: tuple[str, int] | None = None
        self.intake = surroundings.intake
        self.budget = ReadBudget(config.reads_in_progress_size_max)
        self._runtime = runtime
        self._config = config
        self._surroundings = surroundings
        self._may_serve = may_serve
        self.security: Security | None = None
        self.rights = rights
        self._listeners: list[Listener] = []
        self._control: ControlServer | None = None

    @property
    def is_open(self) -> bool:
        return bool(self._listeners)

    async def open(self) -> None:
        """Bind the ports. Raises `ConfigError` (certificates, credentials) and OSError (a port)."""
        self.security = Security(self._runtime, self._config, self._surroundings.events)
        listen, host = self._runtime.network.listen, self._config.host
        self._listeners.append(await listen(host, self._config.port, self._accept))
        self.address = (host, self._listeners[-1].address[1])
        if self._config.tls_port >= 0:
            self._listeners.append(await listen(host, self._config.tls_port, self._accept_tls))
            self.tls_address = (host, self._listeners[-1].address[1])

    async def open_control(self, calls: Mapping[str, Call], bookie_id: BookieId) -> None:
        """Serve operators' calls. The bookie serves clients even if this fails."""
        self._control = ControlServer(self._runtime, calls, bookie_id)
        events = self._surroundings.events
        try:
            failed = await self._control.start(self._config.ledger_directories, self.http_address)
        except (OSError, StorageError) as error:
            events.warning("control.failed", bookie=bookie_id, error=error)
            return
        for directory, problem in failed.items():
            events.warning("control.failed", bookie=bookie_id, directory=directory, error=problem)

    def close(self) -> None:
        """Release the ports; accepted connections stay. Idempotent."""
        if self._control is not None:
            self._control.stop()
            self._control = None
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    async def answer(self) -> None:
        """Accept no more input, answer what was accepted, and let the peers fetch their answers."""
        self.intake.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                await self.intake.wait_idle()
        for connection in self.intake.connections():
            connection.close()

    async def empty(self) -> None:
        """Drop the connections that do not end soon."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FETCH_S):
                await self.intake.wait_empty()
        await self.abort()

    async def abort(self) -> None:
        """Drop all connections."""
        for connection in self.intake.connections():
            connection.abort()
        await self.intake.wait_empty()

    def describe(self) -> dict[str, object]:
        """Describe the ports, for operators."""
        facts: dict[str, object] = {"address": f"{self.address[0]}:{self.address[1]}"}
        if self.security is not None and self.security.is_needed:
            facts |= self.security.describe()
        return facts

    def _accept(self) -> asyncio.BaseProtocol:
        return self._accepted(is_direct=False)

    def _accept_tls(self) -> asyncio.BaseProtocol:
        return self._accepted(is_direct=True)

    def _accepted(self, *, is_direct: bool) -> asyncio.BaseProtocol:
        if not self._may_serve():
            return RejectedConnection()
        share = self.budget.new_share()
        if self.security is None or not self.security.is_needed:
            return Connection(self._surroundings, share)
        return SecureConnection(self.security, is_direct, self._surroundings, share)


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
        self.settings = LiveSettings(config, lambda changed: self.store.reconfigure(changed))
        self.calls: dict[str, Call] = {}  # of operators, by name, from the start of the storage on
        self.state = BookieState()
        self.bookie_id = BookieId(identity(config))
        self.store = LedgerStore(runtime, config, self._fail)
        self._runtime = runtime
        self._events = Events("bookie", runtime.clock)
        self.served: Served | None = None
        if is_timed(config):
            latency = Latency(config, runtime.clock, self.store.activities, self._events)
            self.served = Served(runtime.clock.monotonic, latency)
            driver = timed(driver, runtime.clock.monotonic, latency.metadata_answered)
            self.store.on_log_read = latency.log_read
        self._driver = driver
        intake = Intake(
            config.adds_in_progress_size_max,
            lambda: self.store.is_congested,
            self.store.when_uncongested,
            partial_size_max=max(config.adds_in_progress_size_max, PARTIAL_FRAMES * config.frame_size_max),
            now=runtime.clock.monotonic,
        )
        if self.latency is not None:
            intake.pauses.on_end = self.latency.paused
        storage: Storage = self.store if wrap is None else wrap(self.store)
        reads = Reads(storage, config, runtime.clock, self._events, self.served)
        checks = LedgerChecks(driver, self.bookie_id, storage.note_open, runtime, self._events)
        self.store.on_fences_lost = checks.fences_lost
        self._handlers = Handlers(storage, self.state, intake, reads, checks, self._events, self.served)
        rights = Rights(self._handlers, driver, runtime.clock)
        surroundings = Surroundings(self._handlers, intake, self._events, config.frame_size_max, rights.admit)
        self._reception = Reception(runtime, config, surroundings, rights, self.state.may_serve)
        self._registration = Registration(runtime, config, driver, self.bookie_id, self.state, self._events)
        self._tasks = Tasks(self._fail)
        self._cause: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()  # of the failure

    @property
    def config(self) -> BookieConfig:
        """Return the present settings."""
        return self.settings.config

    @property
    def storage(self) -> Storage:
        """Return the storage that serves the requests."""
        return self._handlers.storage

    @property
    def latency(self) -> Latency | None:
        """Return the stages of the requests; None if the settings ask for none."""
        return None if self.served is None else self.served.latency

    @property
    def lag(self) -> LoopLag | None:
        """Return the delay of the event loop, measured with `latency`."""
        return None if self.latency is None else self.latency.lag

    @property
    def owed(self) -> OwedCounts:
        """Return what the bookie owes and has fetched; counted by the part that fetches it."""
        return self.state.owed

    @property
    def has_started(self) -> bool:
        """Report whether the bookie has served and was registered once."""
        return self.state.has_started

    @property
    def http_address(self) -> tuple[str, int] | None:
        """Return the address of the HTTP server around this bookie, which sets it."""
        return self._reception.http_address

    @http_address.setter
    def http_address(self, address: tuple[str, int] | None) -> None:
        self._reception.http_address = address

    @property
    def address(self) -> tuple[str, int]:
        return self._reception.address

    @property
    def tls_address(self) -> tuple[str, int] | None:
        """Return the address at which TLS begins with the first byte."""
        return self._reception.tls_address

    @property
    def rights(self) -> Rights:
        """Return the rights of users."""
        return self._reception.rights

    @property
    def security(self) -> Security | None:
        """Return the demands on peers; None before the ports are open."""
        return self._reception.security

    async def start(self) -> None:
        """Begin to serve, or raise and leave nothing behind.

        Raises: `ConfigError`; OSError (the port, the directories); `DirectoryInUse`, `CookieMismatch`,
        `CorruptRecord` and other `StorageError`; `MetadataError` (the store, the registration).
        """
        check_identity(self.config)
        if self.config.spans and self.served is not None:
            self.served.spans = Spans(self.bookie_id, self._runtime.clock)
        try:
            await self._reception.open()
            assert self.security is not None
            self.rights.users = self.security.users
            if self.rights.users is not None:
                self._tasks.start(self.rights.watch(), f"users of {self.bookie_id}")
            locks: list[Lock] = []
            try:
                random = self._runtime.random
                mark = f"{random.getrandbits(64):016x}" if self.config.lost_directories else ""
                admission = await admit(self._runtime.disk, self.config, self._driver, locks, self._events, mark)
                self.store.leave_out(admission.left_out)
                await self.store.start()
            finally:
                for lock in locks:
                    lock.release()
            self.store.former_ledgers = await find_former_ledgers(
                self._runtime, self.store.config, self._driver, self._events
            )
            if self.config.gc_interval_ms:
                self.store.collect(self._driver, self.bookie_id, admission.instance_id)
            if self.config.scrub_period_ms:
                self.store.scrub(self._driver)
            if not self.store.was_clean:
                self._tell_unclean()
            if self.latency is not None:
                self._time_storage(self.latency)
            self.calls |= self._operator_calls()
            if self.config.control:
                await self._reception.open_control(self.calls, self.bookie_id)
            await self._registration.load()
            if self._cause.done():
                raise self._cause.result()
            self.store.on_mode_change(self._mode_changed)
            self.state.storage_is(self.store.is_writable)
            self.state.owed.may_lack = lambda: bool(self.store.parts and self.store.parts.health.failed)
            self.state.started()
            await self._registration.begin(self.address, self.http_address)
            self._tasks.start(self._registration.keep(), f"registration of {self.bookie_id}")
            self._tasks.start(self._registration.note_place(), f"place of {self.bookie_id}")
            if self.store.has_unknown_ledgers:
                settling = settle_unknown_ledgers(self.store, self._driver, self.bookie_id, self._events)
                self._tasks.start(settling, f"settling of {self.bookie_id}")
        except BaseException:
            await self.abort()
            raise
        self.state.has_started = True
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
        if not self._reception.is_open:
            return
        was_serving = self.state.may_serve()
        self.state.stopping()
        self._reception.close()
        await self._tasks.stop()
        if was_serving:
            await self._registration.end()
        self._reception.intake.stop()
        await self._handlers.checks.stop()
        await self._reception.answer()
        try:
            await self.store.stop()
        except (StorageError, OSError, TimeoutError) as error:
            # No entry is lost: the journal has what could not be flushed, and the next start replays it.
            self._events.warning("checkpoint.failed", bookie=self.bookie_id, error=error)
        await self._reception.empty()
        if self.served is not None and self.served.spans is not None:
            self.served.spans.make()
        self._events.info("bookie.stopped", bookie=self.bookie_id)

    async def abort(self) -> None:
        """Release port and connections after a failure; the storage is left as it is."""
        self.state.stopping()
        self._reception.intake.stop()
        self._reception.close()
        await self._handlers.checks.stop()
        await self._tasks.stop()
        await self._reception.abort()
        self.store.abort()

    def on_add_latency(self, callback: Callable[[float], None]) -> None:
        """Call `callback` with the seconds until each batch of ordinary adds was answered."""
        self._handlers.on_add_latency = callback

    def extend_control(self, calls: Mapping[str, Call]) -> None:
        """Add these calls of operators."""
        self.calls |= calls

    async def wait_failed(self) -> BaseException:
        """Wait until the bookie fails and return the cause. The process then has to end, with `abort` at most."""
        return await asyncio.shield(self._cause)

    # -- start ---------------------------------------------------------------------------------------------------
    def _time_storage(self, latency: Latency) -> None:
        """Time the groups of the journals, and the event loop."""
        assert self.store.parts is not None
        for journal in self.store.parts.journals:
            journal.on_durable = latency.group_durable
        self._tasks.start(latency.lag.run(), "delay of the event loop")

    def _tell_unclean(self) -> None:
        self._events.warning(
            "bookie.unclean_start",
            bookie=self.bookie_id,
            replayed=self.store.stats()["replayed_entries"],
            consequence="the previous process did not stop in order; acknowledged entries were restored "
            "from the journal",
        )

    def _operator_calls(self) -> dict[str, Call]:
        """Return the operators' calls on the parts that exist."""
        calls = {
            **mode_calls(self.describe, self.hold_read_only),
            **settings_calls(self.settings),
            **storage_calls(self.store),
            **owed_calls(self.store, self.owed),
            **latency_calls(self.latency, self.bookie_id),
            **refused_calls(COLLECTION_CALLS, "collection", "gc_interval_ms"),
            **refused_calls(SCRUB_CALLS, "the scrub", "scrub_period_ms"),
        }
        if self.store.collector is not None:
            calls |= control_calls(self.store.collector)
        if self.store.scrubber is not None:
            calls |= scrub_calls(self.store.scrubber)
        return calls

    def _mode_changed(self) -> None:
        self.state.storage_is(self.store.is_writable)
        self._registration.mode_changed()
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
        until = await self._registration.settle(is_held=held)
        facts = self.describe()
        if until is not None:
            facts["until"] = until
        return facts

    def describe(self) -> dict[str, object]:
        """Describe the bookie and its current state, for operators."""
        replayed = self.store.stats()["replayed_entries"]
        clean = self.store.was_clean
        return {
            "bookie": self.bookie_id,
            **self._reception.describe(),
            "mode": self.state.mode.value,
            "registered_as": self.state.registered_as.value if self.state.registered_as else "not registered",
            "read_only_because": "; ".join(self.reasons()) or None,
            "last_stop": "orderly" if clean else f"not orderly: {replayed:,} entries were restored from the journal",
            "journal_directories": ", ".join(self.config.journal_directories),
            "ledger_directories": ", ".join(self.config.ledger_directories),
            "index_directories": ", ".join(self.config.index_directories) or None,
            "lost_directories": ", ".join(self.store.left_out) or None,
            "ledgers_in_limbo": len(self.store.limbo) or None,
            "owed": str(self.owed) if self.owed.left.ledgers else None,
        }

    def load(self) -> dict[str, int]:
        """Return what the connections hold and wait for, for metrics. Sizes in bytes."""
        intake, budget, parts = self._reception.intake, self._reception.budget, self.store.parts
        connections = intake.connections()
        return {
            "records_queued": sum(journal.queued_count for journal in parts.journals) if parts is not None else 0,
            "connections": len(connections),
            "connections_paused": len(connections) if intake.is_paused else 0,
            "adds_size": intake.adds_size,
            "partial_size": intake.partial_frames.size,
            "reads_size": budget.size,
            "reads_waiting": budget.waiting,
            "reads_in_background": sum(connection.task_count for connection in connections),
            "long_polls": self._handlers.reads.long_polls,
            "sessions_lost": self._registration.sessions_lost,
        }

    @property
    def pauses(self) -> Distribution:
        """Return the seconds for which reading from all sockets was paused."""
        return self._reception.intake.pauses.seconds

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

    # -- end -----------------------------------------------------------------------------------------------------
    def _fail(self, cause: BaseException) -> None:
        """Stop accepting and confirming: the journal or a task failed, and so does the bookie."""
        if self._cause.done():
            return
        self._cause.set_result(cause)
        self.state.failed()
        self._reception.intake.stop()
        self._events.error("bookie.failed", bookie=self.bookie_id, error=cause)

    def __repr__(self) -> str:
        return f"<BookieServer {self.bookie_id} at {self.address[0]}:{self.address[1]}, {self.state!r}>"
