"""Auto-recovery as a part of a process: of a bookie's, which it must never harm, or of one of its own.

The client that it works with is made here, and made again when it, or the way to the metadata store, has failed for
good. Source: metadata 8 (the roles, the embedding), pains 33.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

from bookies.bookie.server import BookieServer
from bookies.client.client import Client
from bookies.config import ClientConfig, RecoveryConfig
from bookies.metadata.interface import MetadataDriver
from bookies.model import BookieId
from bookies.replication.daemon.daemon import AutoRecovery
from bookies.replication.daemon.supervision import Supervised, supervise
from bookies.runtime.events import Events
from bookies.runtime.ports import Runtime


@dataclass(frozen=True, slots=True)
class Participant:
    """Who takes part. `open_driver`: a new session with the store, not opened yet; `owner`: the host's name."""

    runtime: Runtime
    open_driver: Callable[[], MetadataDriver]
    config: RecoveryConfig
    client_config: ClientConfig
    bookie: BookieId
    owner: str


class RecoveryProcess:
    """Takes part until `run` is cancelled, whatever fails. `current`: while it has a client."""

    def __init__(self, participant: Participant) -> None:
        self.current: AutoRecovery | None = None
        self.on_begin: Callable[[AutoRecovery], None] = lambda recovery: None
        self._participant = participant
        self._events = Events("recovery", participant.runtime.clock)
        self._task = Supervised("auto-recovery")

    async def run(self) -> None:
        await supervise(self._task, self._take_part, self._events, self._participant.runtime.random.uniform)

    async def status(self) -> object:
        """For the control endpoint."""
        if self.current is None:
            return {"state": "not running", "failures": self._task.failures, "error": self._task.error}
        return asdict(self.current.status())

    async def _take_part(self) -> None:
        who = self._participant
        driver = who.open_driver()
        client = Client(who.runtime, driver, who.client_config)
        try:
            await client.open_session()
            self.current = AutoRecovery(who.runtime, client, driver, who.config, who.bookie, who.owner)
            self.on_begin(self.current)
            await self.current.run()
        finally:
            self.current = None
            await client.close()


def beside_bookie(
    config: RecoveryConfig, client_config: ClientConfig, open_driver: Callable[[], MetadataDriver]
) -> Callable[[BookieServer, Runtime], Awaitable[None]]:
    """What `bookie.main.run` runs beside a bookie: copies give way to the adds that it serves."""

    async def beside(server: BookieServer, runtime: Runtime) -> None:
        host = server.config.advertised_host or server.config.host
        process = RecoveryProcess(Participant(runtime, open_driver, config, client_config, server.bookie_id, host))

        def begin(recovery: AutoRecovery) -> None:
            server.on_add_latency(lambda seconds: recovery.pace.felt(seconds, runtime.clock.monotonic()))

        process.on_begin = begin
        server.extend_control({"recovery": process.status})
        await process.run()

    return beside
