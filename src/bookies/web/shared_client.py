"""The client of the endpoints that ask bookies, imported and opened for the first request that needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from bookies.config import ClientConfig
from bookies.metadata.interface import MetadataDriver
from bookies.runtime.ports import Runtime

if TYPE_CHECKING:
    from bookies.client.client import Client

OpenDriver = Callable[[], MetadataDriver]


class Connected(NamedTuple):
    """The client, and the session with the metadata store that it uses."""

    runtime: Runtime
    client: Client
    driver: MetadataDriver


class SharedClient:
    """One client for all requests of a process."""

    def __init__(self, runtime: Runtime, open_driver: OpenDriver, config: ClientConfig) -> None:
        self.runtime = runtime
        self._open_driver = open_driver
        self._config = config
        self._connected: Connected | None = None
        self._opening = asyncio.Lock()

    @property
    def current(self) -> Connected | None:
        """Return the client and its session if it was opened, without opening it."""
        return self._connected

    async def connected(self) -> Connected:
        """Return the client and its session. Raises `BookKeeperError` if there is none with the metadata store."""
        from bookies.client.client import Client

        async with self._opening:
            if self._connected is None:
                driver = self._open_driver()
                client = Client(self.runtime, driver, self._config)
                client.reads_own_appends = True  # a request reads what an earlier one has appended
                try:
                    await client.open_session()
                except BaseException:
                    await client.close()
                    raise
                self._connected = Connected(self.runtime, client, driver)
            return self._connected

    async def get(self) -> Client:
        """Return the client. Raises as `connected`."""
        return (await self.connected()).client

    async def close(self) -> None:
        if self._connected is not None:
            await self._connected.client.close()
