"""Registration of a bookie: follows its mode, for as long as the bookie serves.

Losing the metadata session is not a failure of the bookie: it serves its clients and registers again when it can. It
fails if another process is registered under its id meanwhile, for example a clone of its machine: each of the two would
report entries as missing that the other has acknowledged.

Source: metadata 6.1.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import MappingProxyType

from bookies.bookie.persisted_status import PersistedStatus
from bookies.bookie.state import BookieState
from bookies.config import BookieConfig
from bookies.errors import BookKeeperError, MetadataCorrupt, MetadataError, RegisteredElsewhere
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.bookie_places import BookiePlace, note_place
from bookies.model import BookieId, BookieInfo, BookieMode, Endpoint
from bookies.protocol.pacing import Backoff
from bookies.runtime.events import Events
from bookies.runtime.ports import Runtime

REGISTER_RETRY_S = 0.5  # first pause after a failed registration; doubles
REGISTER_RETRY_S_MAX = 10.0
REFUSALS_MAX = 2  # consecutive, each for longer than a session lasts
UNREGISTER_S = 2.0  # of a stop; then the lease has to expire
WAITING_S = 1.0  # of a start, for the registration; then a warning names what it waits for
SETTLE_S = 5.0  # how long an operator's command waits for the registration to follow


class Registration:
    """Registration of one bookie on one metadata session."""

    def __init__(
        self,
        runtime: Runtime,
        config: BookieConfig,
        driver: MetadataDriver,
        bookie_id: BookieId,
        state: BookieState,
        events: Events,
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._driver = driver
        self._bookie_id = bookie_id
        self._state = state
        self._events = events
        self._kept_mode = PersistedStatus(runtime, config, events)
        self._address = (config.host, config.port)
        self._http_address: tuple[str, int] | None = None
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self.sessions_lost = 0

    async def load(self) -> None:
        """Continue in the mode that an operator had set before a restart."""
        self._state.hold_read_only(await self._kept_mode.load())

    async def begin(self, address: tuple[str, int], http_address: tuple[str, int] | None) -> None:
        """Register the bookie, which listens at these addresses, for the first time. Raises `MetadataError`."""
        self._address, self._http_address = address, http_address
        self._driver.on_session_expired(self._session_lost)
        waiting = asyncio.get_running_loop().call_later(WAITING_S, self._tell_waiting)
        try:
            await self._register(self._state.mode)
        finally:
            waiting.cancel()

    async def keep(self) -> None:
        """Make the registration follow the mode for as long as the bookie serves. Raises `RegisteredElsewhere`."""
        refusals = 0
        backoff = Backoff(REGISTER_RETRY_S, REGISTER_RETRY_S_MAX, self._runtime.random.uniform)
        while True:
            mode = self._state.registration_due()
            if mode is None:
                backoff.reset()
                self._changed.clear()
                self._settled.set()
                await self._changed.wait()
                continue
            self._settled.clear()
            await self._kept_mode.keep(mode, is_held=self._state.is_held_read_only)
            try:
                await self._register(mode)
            except MetadataError as error:
                refusals = refusals + 1 if isinstance(error, RegisteredElsewhere) else 0
                if refusals == REFUSALS_MAX:
                    raise
                self._events.warning(
                    "registration.failed", bookie=self._bookie_id, retry_s=round(backoff.longest_s, 1), error=error
                )
                await asyncio.sleep(backoff.next_s())
            else:
                refusals = 0
                self._events.info("registration.made", bookie=self._bookie_id, mode=mode.value)

    async def note_place(self) -> None:
        """Record the bookie's location, for the time when it is down; retried until it succeeds."""
        location = self._config.location
        place = BookiePlace(location, self._config.advertised_host or self._address[0]) if location else None
        while True:
            try:
                await note_place(self._driver, self._bookie_id, place)
                return
            except MetadataCorrupt as error:
                self._events.warning("place.not_noted", bookie=self._bookie_id, error=error)
                return
            except MetadataError:
                await asyncio.sleep(self._runtime.random.uniform(0.5, 1.0) * REGISTER_RETRY_S_MAX)

    def mode_changed(self) -> None:
        """Follow the mode, which may have changed."""
        self._settled.clear()
        self._changed.set()

    async def settle(self, *, is_held: bool) -> str | None:
        """Persist an operator's mode, and wait until the registration follows, or cannot for now.

        Return how long the mode lasts if it ends with the process.
        """
        problem = await self._kept_mode.keep(self._state.mode, is_held=is_held)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await self._settled.wait()
        if is_held and not self._kept_mode.is_on:
            return "the bookie stops; with --set persist_bookie_status=true also after a restart"
        return None if problem is None else f"the bookie stops: {problem}"

    async def end(self) -> None:
        """Unregister the bookie, which stops."""
        try:
            async with asyncio.timeout(UNREGISTER_S):
                await self._driver.unregister(self._bookie_id)
        except (TimeoutError, BookKeeperError) as error:
            self._events.warning("unregister.failed", bookie=self._bookie_id, error=error)

    async def _register(self, mode: BookieMode) -> None:
        session, config = self.sessions_lost, self._config
        host, port = config.advertised_host or self._address[0], config.advertised_port or self._address[1]
        extensions = ("tls",) if config.tls_certificate else ()
        endpoint = Endpoint("bookie", host, port, "bookie-rpc", extensions=extensions)
        endpoints = [endpoint]
        if self._http_address is not None:
            scheme = "https" if self._config.http_tls else "http"
            endpoints.append(Endpoint("httpserver", self._http_host(), self._http_address[1], scheme))
        properties = {"location": config.location} if config.location else {}
        info = BookieInfo(tuple(endpoints), MappingProxyType(properties))
        await self._driver.register(self._bookie_id, mode, info)
        if session == self.sessions_lost:  # otherwise it ended with the session in which it was made
            self._state.registered(mode)

    def _http_host(self) -> str:
        """Return the host to publish for the HTTP server: one that listens everywhere is where the bookie is."""
        host = self._config.http_host
        is_everywhere = host in ("0.0.0.0", "::", "")
        return (self._config.advertised_host or self._address[0]) if is_everywhere else host

    def _session_lost(self) -> None:
        self.sessions_lost += 1
        self._state.registration_lost()
        self._changed.set()
        self._events.warning("session.expired", bookie=self._bookie_id)

    def _tell_waiting(self) -> None:
        self._events.warning(
            "registration.waiting",
            bookie=self._bookie_id,
            lease_ms=self._config.lease_ms,
            reason="the previous process's registration may still be active; it ends when its lease expires",
        )
