"""The writers of a gateway: logs that it leads, and ledgers that it writes. The first append opens them.

Several gateways may get appends for one log. They take turns: one leads it, and the others wait for its end and send
clients to its address. A gateway waits while it gets appends for the log, so that it leads when the other was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import Coroutine
from typing import TypeVar

from msgspec import Struct, field

from bookies.client.log.log import Log
from bookies.client.log.log_writer import LogWriter
from bookies.client.log.sequenced import SequencedWriter
from bookies.client.write import LedgerWriter
from bookies.config import GatewayConfig
from bookies.errors import BookKeeperError
from bookies.runtime.events import Events
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import Tasks
from bookies.web.messages import Problem
from bookies.web.shared_client import SharedClient

T = TypeVar("T")
APPEND_S = 25.0  # for an append; its outcome is reported as unknown then
SNAPSHOT_IDLE_S = 5.0  # after the last append; then the numbers of its writers are stored
LEDGER_IDLE_S = 3600.0
CHECK_S = 1.0
LOST_LEAD_S = 1.0  # after a process that takes no turns has taken the lead, before it is taken back
LEADER_S = 0.2  # between two readings of who leads, while a request waits for the lead
SEAL_S = 10.0  # for each writer, at the end


class LedElsewhere(Exception):
    """Another process leads the log. `leader`: its text: the address of a gateway, or a host and process id."""

    def __init__(self, leader: str) -> None:
        super().__init__(leader)
        self.leader = leader


class LedLog(Struct):
    """A log that this gateway leads. `password`: of its ledgers."""

    log: Log
    password: bytes
    writer: LogWriter
    used_s: float
    sequenced: SequencedWriter | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def numbered(self) -> SequencedWriter:
        """Return the writer of numbered entries; the first call reads the numbers that the log holds."""
        async with self.turn:
            if self.sequenced is None:
                self.sequenced = await self.log.sequenced(self.writer)
            return self.sequenced


class Candidacy(Struct):
    """The attempt to lead a log, which waits while another process leads it. `used_s`: the last append."""

    task: asyncio.Task[LedLog]
    used_s: float


class WrittenLedger(Struct):
    """A ledger that this gateway writes. `turn`: one append at a time, which makes ids predictable."""

    password: bytes
    writer: LedgerWriter
    used_s: float
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Writers:
    """The writers of one gateway. `pending_size`: bytes of appends in progress. `url`: where clients reach it."""

    def __init__(self, runtime: Runtime, client: SharedClient, config: GatewayConfig) -> None:
        self.logs: dict[str, LedLog] = {}
        self.ledgers: dict[int, WrittenLedger] = {}
        self.pending_size = 0
        self.url = ""
        self._runtime = runtime
        self._client = client
        self._config = config
        self._opening: dict[str, Candidacy] = {}
        self._lost: dict[str, float] = {}  # by log: when its lead was lost
        self._events = Events("gateway", runtime.clock)
        self._tasks = Tasks(lambda error: self._events.error("gateway.broken", error=error))

    def start(self) -> None:
        """Begin to release idle writers."""
        self._tasks.start(self._release_idle(), "release idle writers")

    # -- logs ----------------------------------------------------------------------------------------------------
    async def lead(self, name: str, password: bytes) -> LedLog:
        """Return the log, led by this gateway. Raises `LedElsewhere`, `Problem`, and as `Log.lead`."""
        led = self.logs.get(name)
        if led is None:
            led = await self._opened_log(name, password)
        check_password(led.password, password, f"log {name}")
        led.used_s = self.now()
        return led

    async def _opened_log(self, name: str, password: bytes) -> LedLog:
        opening = self._opening.get(name)
        if opening is None:
            self._check_count(len(self.logs) + len(self._opening), "logs")
            task = asyncio.get_running_loop().create_task(self._take_lead(name, password), name=f"lead {name}")
            self._opening[name] = opening = Candidacy(task, self.now())
            task.add_done_callback(lambda task: self._opened(name, task))
        log = (await self._client.get()).log(name)
        while not opening.task.done():
            opening.used_s = self.now()
            leader = await log.leader()
            # A process with the own address was killed before this one started on its port: its turn will end.
            if leader is not None and leader != self.url and not opening.task.done():
                raise LedElsewhere(leader)
            await asyncio.wait((opening.task,), timeout=LEADER_S)
        return opening.task.result()

    async def _take_lead(self, name: str, password: bytes) -> LedLog:
        lost_s = self._lost.pop(name, None)
        if lost_s is not None:
            pause_s = lost_s + self._runtime.random.uniform(LOST_LEAD_S / 2, 2 * LOST_LEAD_S) - self.now()
            await asyncio.sleep(max(0.0, pause_s))
        log = (await self._client.get()).log(name, password=password)
        writer = await log.lead(wait=True, text=self.url)
        self._events.info("gateway.leads", log=name, epoch=writer.epoch, ledger=writer.ledger_id)
        self.logs[name] = led = LedLog(log, password, writer, self.now())
        return led

    def _opened(self, name: str, task: asyncio.Task[LedLog]) -> None:
        self._opening.pop(name, None)
        if not task.cancelled():
            task.exception()  # Those who wait raise it.

    def lost(self, led: LedLog, error: BaseException) -> None:
        """Release a log after a failed append. The next one takes the lead again, which decides what the log holds."""
        if self.logs.get(led.log.name) is led:
            del self.logs[led.log.name]
            self._lost[led.log.name] = self.now()
            self._events.warning("gateway.lead_lost", log=led.log.name, error=error)
            self._tasks.start(led.writer.abandon(), f"release log {led.log.name}")

    # -- ledgers -------------------------------------------------------------------------------------------------
    def check_room_for_ledger(self) -> None:
        """Raise `Problem` if this gateway writes too many ledgers."""
        self._check_count(len(self.ledgers), "ledgers")

    def add_ledger(self, writer: LedgerWriter, password: bytes) -> None:
        """Note a ledger that was created."""
        self.ledgers[writer.ledger_id] = WrittenLedger(password, writer, self.now())

    def _check_count(self, count: int, noun: str) -> None:
        if count >= self._config.gateway_writers_max:
            text = f"this gateway writes {count:,} {noun}, as many as gateway_writers_max allows"
            raise Problem(429, text, headers={"Retry-After": "10"})

    # -- appends -------------------------------------------------------------------------------------------------
    async def append(self, appending: Coroutine[object, object, T], size: int) -> T:
        """Run an append that outlasts its request, within the memory for appends. `size`: bytes.

        Raises `Problem`: 429 if there is no memory, 504 if it takes too long.
        """
        if self.pending_size + size > self._config.gateway_appends_size:
            appending.close()
            text = f"appends of {self.pending_size:,} bytes are in progress (gateway_appends_size)"
            raise Problem(429, text, headers={"Retry-After": "1"})
        self.pending_size += size
        task = asyncio.get_running_loop().create_task(appending, name="append")
        task.add_done_callback(lambda done: self._appended(done, size))
        try:
            async with asyncio.timeout(APPEND_S):
                return await asyncio.shield(task)
        except TimeoutError:
            raise unknown(504, f"the append is not durable after {APPEND_S:.0f} s") from None

    def _appended(self, task: asyncio.Task[T], size: int) -> None:
        self.pending_size -= size
        if not task.cancelled():
            task.exception()  # The request has raised it, or has ended before.

    def now(self) -> float:
        """Return the monotonic clock, seconds."""
        return self._runtime.clock.monotonic()

    # -- releasing -----------------------------------------------------------------------------------------------
    async def _release_idle(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            for led in list(self.logs.values()):
                await self._supervised(self._release_log(led))
            for opening in self._opening.values():
                if self.now() - opening.used_s >= self._config.gateway_idle_s:
                    opening.task.cancel()
            for ledger in list(self.ledgers.values()):
                await self._supervised(self._release_ledger(ledger))

    async def _supervised(self, releasing: Coroutine[object, object, None]) -> None:
        """Release one writer. Its failure is reported, and does not keep the others."""
        try:
            await releasing
        except BookKeeperError:
            pass  # The next round tries again.
        except Exception as error:  # noqa: BLE001  (our mistake, about one writer)
            self._events.error("gateway.broken", error=error)

    async def _release_log(self, led: LedLog) -> None:
        if led.sequenced is not None and self.now() - led.used_s >= SNAPSHOT_IDLE_S:
            await led.sequenced.save()
        # While this waited, it may have been used, or lost and led again by another writer, which is not idle.
        if self.logs.get(led.log.name) is led and self.now() - led.used_s >= self._config.gateway_idle_s:
            del self.logs[led.log.name]
            await self._close_log(led)

    async def _release_ledger(self, ledger: WrittenLedger) -> None:
        ledger_id, idle_s = ledger.writer.ledger_id, self.now() - ledger.used_s
        if self.ledgers.get(ledger_id) is ledger and idle_s >= LEDGER_IDLE_S and not ledger.turn.locked():
            del self.ledgers[ledger_id]
            await self._seal(ledger)

    async def stop(self) -> None:
        """Seal everything, after the requests have ended. What cannot be sealed in time is left to recovery."""
        await self._tasks.stop()
        openings = [opening.task for opening in self._opening.values()]
        for task in openings:
            task.cancel()
        await asyncio.gather(*openings, return_exceptions=True)  # They leave the queues, before the client is closed.
        logs, ledgers = list(self.logs.values()), list(self.ledgers.values())
        self.logs.clear()
        self.ledgers.clear()
        await asyncio.gather(*map(self._close_log, logs), *map(self._seal, ledgers))

    async def _close_log(self, led: LedLog) -> None:
        with contextlib.suppress(BookKeeperError, TimeoutError):
            async with asyncio.timeout(SEAL_S):
                await led.writer.close()

    async def _seal(self, ledger: WrittenLedger) -> None:
        with contextlib.suppress(BookKeeperError, TimeoutError):
            async with asyncio.timeout(SEAL_S):
                await ledger.writer.seal()
        await ledger.writer.close()


def check_password(expected: bytes, given: bytes, what: str) -> None:
    """Check the password of a writer that is open. Raises `Problem`."""
    if not hmac.compare_digest(expected, given):
        raise Problem(403, f"{what}: wrong password", "send it as the header Bk-Ledger-Password")


def unknown(status: int, detail: str) -> Problem:
    """Return the answer to an append that may or may not have taken effect."""
    return Problem(
        status,
        f"{detail}: the entries may or may not be stored",
        "repeat the request: with Bk-Writer and Bk-Sequence, nothing is stored twice",
        {"Bk-Outcome": "unknown", "Retry-After": "1"},
    )
