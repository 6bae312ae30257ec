"""Auto-recovery as a part of a process: beside a bookie, which it must never harm, or in a process of its own.

Beside a bookie it may also be the housekeeping of logs alone. It always fetches what the bookie has lost.

This module creates the client of auto-recovery, and recreates it when the client or its session with the metadata store
has failed permanently. Source: metadata 8 (the roles, the embedding), pains 33.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from msgspec import Struct, to_builtins

from bookies.bookie.server import BookieServer
from bookies.client.client import Client
from bookies.config import ClientConfig, RecoveryConfig
from bookies.metadata.interface import MetadataDriver
from bookies.model import BookieId
from bookies.protocol.pacing.adaptive_rate import AdaptiveRate
from bookies.replication.auditor.log_retention import LogRetention
from bookies.replication.daemon.daemon import AutoRecovery
from bookies.replication.daemon.log_housekeeper import LogHousekeeper
from bookies.replication.daemon.supervision import Supervised, supervise
from bookies.replication.repair import OwedEntries
from bookies.runtime.events import Events
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import all_of


class Participant(Struct, frozen=True):
    """Parameters of a process in auto-recovery.

    `open_driver`: returns a new session with the store, not opened yet. `owner`: the host's name.
    """

    runtime: Runtime
    open_driver: Callable[[], MetadataDriver]
    config: RecoveryConfig
    client_config: ClientConfig
    bookie: BookieId
    owner: str


class RecoveryProcess:
    """Supervised auto-recovery, restarted after any failure until `run` is cancelled.

    `current`: None while it has no client.
    """

    def __init__(self, participant: Participant) -> None:
        self.current: AutoRecovery | None = None
        self.on_begin: Callable[[AutoRecovery], None] = lambda recovery: None
        self._participant = participant
        self._events = Events("recovery", participant.runtime.clock)
        self._task = Supervised("auto-recovery")

    async def run(self) -> None:
        await supervise(self._task, self._run_once, self._events, self._participant.runtime.random.uniform)

    async def status(self) -> object:
        """Return the status for the control endpoint."""
        if self.current is None:
            return {"state": "not running", "failures": self._task.failures, "error": self._task.error}
        return to_builtins(self.current.status())

    async def _run_once(self) -> None:
        part = self._participant
        driver = part.open_driver()
        client = Client(part.runtime, driver, part.client_config)
        try:
            await client.open_session()
            self.current = AutoRecovery(part.runtime, client, driver, part.config, part.bookie, part.owner)
            self.on_begin(self.current)
            await self.current.run()
        finally:
            self.current = None
            await client.close()


class BesideBookie:
    """Auto-recovery beside a bookie, whose adds have precedence over copies. `open_driver`: as in `Participant`.

    It always fetches the entries that the bookie owes. `repairs`: also repair what other bookies have lost.
    `keeps_logs`: without `repairs`, do the housekeeping of logs.
    """

    def __init__(
        self,
        config: RecoveryConfig,
        client_config: ClientConfig,
        open_driver: Callable[[], MetadataDriver],
        *,
        repairs: bool = True,
        keeps_logs: bool = True,
    ) -> None:
        self._config = config
        self._client_config = client_config
        self._open_driver = open_driver
        self._repairs = repairs
        self._keeps_logs = keeps_logs
        self._pace = AdaptiveRate(config.recovery_rate_size or None)
        self._process: RecoveryProcess | None = None
        self._housekeeper: LogHousekeeper | None = None

    @property
    def current(self) -> AutoRecovery | None:
        """Return auto-recovery; None while it does not run."""
        return None if self._process is None else self._process.current

    @property
    def retention(self) -> LogRetention | None:
        """Return the retention of logs; None while it does not run."""
        if self.current is not None:
            return self.current.auditor.retention
        return None if self._housekeeper is None else self._housekeeper.retention

    async def run(self, server: BookieServer, runtime: Runtime) -> None:
        """Run until cancelled: see `bookie.main.run`."""
        if not self._client_config.location:
            self._client_config = replace(self._client_config, location=server.config.location)
        server.on_add_latency(lambda seconds: self._observe(seconds, runtime.clock.monotonic()))
        parts = [self._fetch_owed(server, runtime)]
        if self._repairs:
            host = server.config.advertised_host or server.config.host
            self._process = process = RecoveryProcess(
                Participant(runtime, self._open_driver, self._config, self._client_config, server.bookie_id, host)
            )
            server.extend_control({"recovery": process.status})
            parts.append(process.run())
        elif self._keeps_logs and self._config.log_retention_interval_s:
            parts.append(self._keep_logs(server.bookie_id, runtime))
        await all_of(parts)

    def _observe(self, seconds: float, now_s: float) -> None:
        self._pace.observe_request(seconds, now_s)
        if self.current is not None:
            self.current.pace.observe_request(seconds, now_s)
            self.current.auditor.balance.pace.observe_request(seconds, now_s)

    async def _fetch_owed(self, server: BookieServer, runtime: Runtime) -> None:
        events = Events("recovery", runtime.clock)

        async def once() -> None:
            await server.store.limbo.has_any.wait()
            driver = self._open_driver()
            client = Client(runtime, driver, self._client_config)
            try:
                await client.open_session()
                at_once = self._config.recovery_ledgers_at_once
                await OwedEntries(server, client.administration(), self._pace, at_once, events).run()
            finally:
                await client.close()

        await supervise(Supervised("owed entries"), once, events, runtime.random.uniform)

    async def _keep_logs(self, bookie: BookieId, runtime: Runtime) -> None:
        events = Events("recovery", runtime.clock)

        async def once() -> None:
            driver = self._open_driver()
            client = Client(runtime, driver, self._client_config)
            try:
                await client.open_session()
                self._housekeeper = LogHousekeeper(client, driver, self._config, bookie, events)
                await self._housekeeper.run()
            finally:
                self._housekeeper = None
                await client.close()

        await supervise(Supervised("log housekeeping"), once, events, runtime.random.uniform)
