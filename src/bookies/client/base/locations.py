"""Locations of bookies, learnt from settings, a file, a script, and the bookies' own registrations.

What is configured for this client takes precedence over what a bookie publishes: `fault_domains`, then
`locations_file`, then `locations_script`, then the property `location` of a bookie's registration; for a bookie that is
down, the location that it recorded at its last registration. The location of a bookie that leaves is kept, for ledgers
that name it. Broken settings are errors when a client starts. If they break later, the client logs a warning and keeps
what it knows.

Locations are read on demand: clients that only read ledgers never read them. Source: metadata 9.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress

from bookies.config import ClientConfig
from bookies.errors import ConfigError, MetadataCorrupt, MetadataError
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.bookie_places import read_places
from bookies.model import BookieId
from bookies.protocol.placement import PlacementPolicy, Topology
from bookies.protocol.placement.topology import Kind, host_of, parse_fault_domains, parse_location, parse_location_lines
from bookies.runtime.events import Events
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import all_of

LOCATION = "location"  # the property of a bookie's registration
READS_MAX = 16  # registrations read at once
HOSTS_WARNED_MAX = 1000  # bookies whose missing location was logged once


class Locations:
    """Locations of the bookies of one cluster, for one client. Raises `ConfigError` for pairs that cannot be parsed."""

    def __init__(self, runtime: Runtime, config: ClientConfig, driver: MetadataDriver) -> None:
        self._runtime = runtime
        self._config = config
        self._driver = driver
        self._events = Events("client.placement", runtime.clock)
        self._own = parse_location(config.location) if config.location else ""
        self._pairs = parse_fault_domains(config.fault_domains)
        self._lines: dict[str, str] = {}
        self._file: bytes | None = None
        self._file_read_s = 0.0  # loop time
        self._printed: dict[str, str] = {}  # by host
        self._published: dict[BookieId, str] = {}
        self._has_last_known = False
        self._hosts: dict[BookieId, str] = {}
        self._learnt: dict[BookieId, None] = {}  # bookies whose registration has been read since they appeared
        self._warned: dict[object, None] = {}
        self._is_begun = False
        self._learning: asyncio.Lock | None = None
        self.addresses: dict[BookieId, tuple[str, int]] = {}  # from the registrations that were read
        self.topology = Topology(self._pairs)

    @property
    def domains(self) -> Mapping[BookieId, str]:
        """The widest known fault domain of each bookie, looked up at each access."""
        return _Domains(self)

    @property
    def policy(self) -> PlacementPolicy:
        """The configured policy; with `auto` and no placement rule it is random until a location is known."""
        return policy_of(self._config, self.topology)

    def own_domains(self, policy_kind: Kind) -> tuple[str, ...]:
        """Return the fault domains of this client itself, narrowest first; none if its location is not configured."""
        if not self._own or policy_kind is Kind.RANDOM:
            return ()
        widest = (
            self._own[: self._own.index("/", 1)]
            if policy_kind is not Kind.RACK and self._own.count("/") > 1
            else self._own
        )
        return (self._own, widest)

    def learning_failed(self, cause: BaseException) -> None:
        """Log an unexpected failure of a learning task, a programming error. Known locations remain valid."""
        self._events.error("placement.learning_failed", error=cause)

    async def begin(self) -> None:
        """Read the file and test the script. Raises `ConfigError`. Idempotent."""
        if self._is_begun:
            return
        if self._config.locations_file:
            self._read_file()
        if self._config.locations_script:
            await self._run([])
        self._is_begun = True
        self._update()

    async def learn(self, bookies: Sequence[BookieId]) -> None:
        """Determine the unknown locations of these bookies. Raises `ConfigError` on the first call only."""
        await self.begin()
        if self._learning is None:
            self._learning = asyncio.Lock()
        async with self._learning:
            is_new = self._reload_file()
            unknown = [bookie for bookie in bookies if bookie not in self._learnt]
            if self._config.placement != "random" and unknown:
                await self._load_last_known()
                limit = asyncio.Semaphore(READS_MAX)
                has_read = await all_of(self._read_registration(bookie, limit) for bookie in unknown)
                await self._ask_script(unknown)
                self._learnt.update(dict.fromkeys(compress(unknown, has_read)))
                is_new = True
            if is_new:
                self._update()
        self._warn(bookies)

    def knows(self, bookies: Iterable[BookieId]) -> bool:
        """Report whether `learn` has no work for these bookies."""
        return self._config.placement == "random" or all(bookie in self._learnt for bookie in bookies)

    def known(self) -> Iterator[BookieId]:
        """Iterate over the bookies with a location."""
        policy_kind = self.policy.kind
        return (bookie for bookie in self._learnt if self.topology.problem(bookie, policy_kind) is None)

    def removed(self, bookies: Iterable[BookieId]) -> None:
        """Mark bookies that have left: they keep their location until they return, then it is read again."""
        for bookie in bookies:
            self._learnt.pop(bookie, None)

    def _update(self) -> None:
        """Install a new topology if it differs."""
        known: dict[str, str] = dict(self._published.items())
        for bookie, host in self._hosts.items():
            if (location := self._printed.get(host)) is not None:
                known[bookie] = location
        for configured in (self._lines, self._pairs):
            # A location configured for a host overrides what its bookies publish, so each bookie gets an entry too.
            known.update({str(bookie): configured[host] for bookie, host in self._hosts.items() if host in configured})
            known.update(configured)
        topology = Topology(known, self._hosts)
        if topology != self.topology:
            self.topology = topology

    # -- sources -------------------------------------------------------------------------------------------------
    def _read_file(self) -> None:
        path = self._config.locations_file
        self._file_read_s = asyncio.get_running_loop().time()
        try:
            data = self._runtime.disk.read_bytes(path)
            if data == self._file:
                return
            self._lines = parse_location_lines(data.decode("utf-8"), path)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"locations_file = {path}: cannot be read: {error}") from error
        self._file = data

    def _reload_file(self) -> bool:
        """Re-read the file if `locations_interval_ms` has passed; report whether it was read."""
        if not self._config.locations_file:
            return False
        if asyncio.get_running_loop().time() - self._file_read_s < self._config.locations_interval_ms / 1000:
            return False
        try:
            self._read_file()
        except ConfigError as error:
            self._events.warning("placement.locations_file", error=error, kept=len(self._lines))
        return True

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
            if bookie not in self._hosts:
                self._hosts[bookie] = host if host_of(bookie) == bookie else host_of(bookie)
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
        address = info.rpc_address()
        if address is not None:
            self.addresses.setdefault(bookie, address)
        self._hosts[bookie] = address[0] if address and host_of(bookie) == bookie else host_of(bookie)
        self._published.pop(bookie, None)
        location = info.properties.get(LOCATION)
        if location:
            self._set_published(bookie, location)
        return True

    def _set_published(self, bookie: BookieId, location: str) -> None:
        """Store the location that a bookie published, if it parses."""
        try:
            self._published[bookie] = parse_location(location)
        except ConfigError as error:
            self._events.warning("placement.location", error=error, bookie=bookie)

    async def _ask_script(self, bookies: Sequence[BookieId]) -> None:
        if not self._config.locations_script:
            return
        hosts = list(dict.fromkeys(self._hosts.get(bookie) or host_of(bookie) for bookie in bookies))
        hosts = [host for host in hosts if host not in self._printed]
        count = self._config.locations_script_names_max
        for at in range(0, len(hosts), count):
            share = hosts[at : at + count]
            try:
                words = (await self._run(share)).split()
                if len(words) != len(share):
                    raise ConfigError(f"it prints {len(words)} locations for {len(share)} hosts")
                self._printed.update(zip(share, map(parse_location, words), strict=True))
            except ConfigError as error:
                self._events.warning("placement.locations_script", error=error, hosts=" ".join(share))

    async def _run(self, hosts: Sequence[str]) -> str:
        script = self._config.locations_script
        if self._runtime.output_of is None:
            raise ConfigError(f"locations_script = {script}: programs cannot be run here")
        limit_s = self._config.locations_script_timeout_ms / 1000
        try:
            async with asyncio.timeout(limit_s):
                return await self._runtime.output_of([script, *hosts])
        except TimeoutError as error:  # TimeoutError is a subclass of OSError.
            asked = f"asked for {len(hosts)} hosts" if hosts else "asked for no host, to try it"
            raise ConfigError(
                f"locations_script = {script}: {asked}, it had not ended after {limit_s:g} s, so it was killed: fix "
                "it, or allow it more time with locations_script_timeout_ms"
            ) from error
        except OSError as error:
            raise ConfigError(f"locations_script = {script}: {error}") from error

    def _warn(self, bookies: Iterable[BookieId]) -> None:
        """Log a warning once for each bookie without a location, if any bookie has one."""
        if self._config.placement == "auto" and self.topology.is_empty:
            return
        for problem in self.topology.problems(bookies, self.policy.kind):
            if problem not in self._warned and len(self._warned) < HOSTS_WARNED_MAX:
                self._warned[problem] = None
                self._events.warning(
                    "placement.no_location",
                    bookie=problem.bookie,
                    reason=problem.reason,
                    effect="not used" if self.policy.is_rule else "counts for no rack",
                )


class _Domains(Mapping[BookieId, str]):
    def __init__(self, locations: Locations) -> None:
        self._locations = locations

    def __getitem__(self, bookie: BookieId) -> str:
        domain = self._locations.topology.place(bookie, self._locations.policy.kind)[0]
        if domain is None:
            raise KeyError(bookie)
        return domain

    def __iter__(self) -> Iterator[BookieId]:
        return self._locations.known()

    def __len__(self) -> int:
        return sum(1 for _ in self)


def policy_of(config: ClientConfig, topology: Topology) -> PlacementPolicy:
    """Return the configured policy. `fault_domains_min` applies to the policy's widest domains."""
    least = config.fault_domains_min
    is_rule = config.placement_rule or least > 1
    if config.placement == "auto":
        policy_kind = Kind.RANDOM if topology.is_empty and not is_rule else Kind.RACK
    else:
        policy_kind = Kind(config.placement)
    return PlacementPolicy(
        policy_kind,
        is_rule,
        racks_min=least if policy_kind is Kind.RACK and least > 1 else config.racks_min,
        regions_min=max(config.regions_min, least),
        zones_min=least if policy_kind is Kind.ZONE and least > 1 else config.zones_min,
        zones_desired=max(config.zones_desired, least),
    )
