"""The sources of the locations of bookies: their registrations, a file, and a program."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bookies.config import ClientConfig
from bookies.errors import ConfigError, MetadataCorrupt, MetadataError
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.bookie_places import read_places
from bookies.model import BookieId, BookieInfo
from bookies.protocol.placement.topology import host_of, parse_location, parse_location_lines
from bookies.runtime.events import Events
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import all_of

LOCATION = "location"  # the property of a bookie's registration
READS_MAX = 16  # registrations read at once


class LocationsFile:
    """The file of the setting `locations_file`, which is read again when it changes. `lines`: location by bookie or
    host."""

    def __init__(self, runtime: Runtime, config: ClientConfig, events: Events) -> None:
        self.lines: dict[str, str] = {}
        self._disk = runtime.disk
        self._path = config.locations_file
        self._interval_s = config.locations_interval_ms / 1000
        self._events = events
        self._data: bytes | None = None
        self._read_at = 0.0  # loop time

    def read(self) -> None:
        """Read the file, if one is configured. Raises `ConfigError`."""
        if not self._path:
            return
        self._read_at = asyncio.get_running_loop().time()
        try:
            data = self._disk.read_bytes(self._path)
            if data == self._data:
                return
            self.lines = parse_location_lines(data.decode("utf-8"), self._path)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"locations_file = {self._path}: cannot be read: {error}") from error
        self._data = data

    def reload(self) -> bool:
        """Re-read the file if `locations_interval_ms` has passed; report whether it was read."""
        if not self._path or asyncio.get_running_loop().time() - self._read_at < self._interval_s:
            return False
        try:
            self.read()
        except ConfigError as error:
            self._events.warning("placement.locations_file", error=error, kept=len(self.lines))
        return True


class LocationsScript:
    """The program of the setting `locations_script`. `printed`: location by host, as it has printed them."""

    def __init__(self, runtime: Runtime, config: ClientConfig, events: Events) -> None:
        self.printed: dict[str, str] = {}
        self._output_of = runtime.output_of
        self._path = config.locations_script
        self._names_max = config.locations_script_names_max
        self._limit_s = config.locations_script_timeout_ms / 1000
        self._events = events

    async def test(self) -> None:
        """Run the program without hosts, if one is configured. Raises `ConfigError`."""
        if self._path:
            await self._run([])

    async def ask(self, hosts: Sequence[str]) -> None:
        """Ask the program for the locations of hosts that it has not been asked for."""
        if not self._path:
            return
        hosts = [host for host in dict.fromkeys(hosts) if host not in self.printed]
        for at in range(0, len(hosts), self._names_max):
            share = hosts[at : at + self._names_max]
            try:
                words = (await self._run(share)).split()
                if len(words) != len(share):
                    raise ConfigError(f"it prints {len(words)} locations for {len(share)} hosts")
                self.printed.update(zip(share, map(parse_location, words), strict=True))
            except ConfigError as error:
                self._events.warning("placement.locations_script", error=error, hosts=" ".join(share))

    async def _run(self, hosts: Sequence[str]) -> str:
        script = self._path
        if self._output_of is None:
            raise ConfigError(f"locations_script = {script}: programs cannot be run here")
        try:
            async with asyncio.timeout(self._limit_s):
                return await self._output_of([script, *hosts])
        except TimeoutError as error:  # TimeoutError is a subclass of OSError.
            asked = f"asked for {len(hosts)} hosts" if hosts else "asked for no host, to try it"
            raise ConfigError(
                f"locations_script = {script}: {asked}, it had not ended after {self._limit_s:g} s, so it was killed: "
                "fix it, or allow it more time with locations_script_timeout_ms"
            ) from error
        except OSError as error:
            raise ConfigError(f"locations_script = {script}: {error}") from error


class Registrations:
    """The registrations of bookies in the metadata store. `hosts`, `published`: host and location by bookie."""

    def __init__(self, driver: MetadataDriver, events: Events) -> None:
        self.addresses: dict[BookieId, tuple[str, int]] = {}  # from the registrations that were read
        self.hosts: dict[BookieId, str] = {}
        self.published: dict[BookieId, str] = {}
        self._driver = driver
        self._events = events
        self._has_last_known = False

    async def read(self, bookies: Sequence[BookieId]) -> list[bool]:
        """Read these registrations; report for each bookie whether it need not be read again before it changes."""
        await self._load_last_known()
        limit = asyncio.Semaphore(READS_MAX)
        return await all_of(self._read_registration(bookie, limit) for bookie in bookies)

    async def _load_last_known(self) -> None:
        """Load the last known locations of bookies that may be down. Once: later changes are tracked by this client."""
        if self._has_last_known:
            return
        try:
            places = await read_places(self._driver)
        except MetadataError as error:
            self._events.warning("placement.places", error=error)
            return
        self._has_last_known = True
        for bookie, (location, host) in places.items():
            if bookie not in self.hosts:
                self.hosts[bookie] = host if host_of(bookie) == bookie else host_of(bookie)
                self._set_published(bookie, location)

    async def _read_registration(self, bookie: BookieId, limit: asyncio.Semaphore) -> bool:
        """Read a bookie's registration; report whether it need not be read again before it changes."""
        try:
            async with limit:
                info = await self._driver.bookie_info(bookie)
        except MetadataError as error:
            self._events.warning("placement.registration", error=error, bookie=bookie)
            return isinstance(error, MetadataCorrupt)
        if info is None:
            return True  # It has left again and keeps its last location.
        self.take_in(bookie, info)
        return True

    def take_in(self, bookie: BookieId, info: BookieInfo) -> None:
        """Keep what a registration says."""
        address = info.rpc_address()
        if address is not None:
            self.addresses.setdefault(bookie, address)
        self.hosts[bookie] = address[0] if address and host_of(bookie) == bookie else host_of(bookie)
        self.published.pop(bookie, None)
        location = info.properties.get(LOCATION)
        if location:
            self._set_published(bookie, location)

    def _set_published(self, bookie: BookieId, location: str) -> None:
        """Store the location that a bookie published, if it parses."""
        try:
            self.published[bookie] = parse_location(location)
        except ConfigError as error:
            self._events.warning("placement.location", error=error, bookie=bookie)
