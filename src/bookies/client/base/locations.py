"""Locations of bookies, learnt from settings, a file, a script, and the bookies' own registrations.

What is configured for this client takes precedence over what a bookie publishes: `fault_domains`, then
`locations_file`, then `locations_script`, then the property `location` of a bookie's registration; for a bookie that is
down, the location that it recorded at its last registration. The location of a bookie that leaves is kept, for ledgers
that name it. Broken settings are errors when a client starts. If they break later, the client logs a warning and keeps
what it knows.

Locations are read on demand: before bookies are chosen, and before the first read from bookies whose nearness may
differ. Source: metadata 9.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import compress

from bookies.client.base.location_sources import LocationsFile, LocationsScript, Registrations
from bookies.config import ClientConfig
from bookies.metadata.interface import MetadataDriver
from bookies.model import BookieId, BookieInfo
from bookies.protocol.placement import PlacementPolicy, Topology
from bookies.protocol.placement.nearness import Nearness, Vantage, nearness_of, own_location, parse_locations
from bookies.protocol.placement.topology import Kind, host_of, parse_fault_domains, parse_location
from bookies.runtime.events import Events
from bookies.runtime.ports import Runtime

HOSTS_WARNED_MAX = 1000  # bookies whose missing location was logged once


class Locations:
    """Locations of the bookies of one cluster, for one client. Raises `ConfigError` for pairs that cannot be parsed."""

    def __init__(self, runtime: Runtime, config: ClientConfig, driver: MetadataDriver) -> None:
        self._config = config
        self._events = Events("client.placement", runtime.clock)
        self.nearby = Nearby(runtime, config)
        self._own_host = runtime.host_names[0] if runtime.host_names and not config.location else ""
        self._pairs = parse_fault_domains(config.fault_domains)
        self._file = LocationsFile(runtime, config, self._events)
        self._script = LocationsScript(runtime, config, self._events)
        self._registrations = Registrations(driver, self._events)
        self._learnt: dict[BookieId, None] = {}  # bookies whose registration has been read since they appeared
        self._warned: dict[object, None] = {}
        self._is_begun = False
        self._learning: asyncio.Lock | None = None
        self.topology = Topology(self._pairs)

    @property
    def addresses(self) -> dict[BookieId, tuple[str, int]]:
        """The addresses in the registrations that were read. The watcher removes those that are out of date."""
        return self._registrations.addresses

    @property
    def domains(self) -> Mapping[BookieId, str]:
        """The widest known fault domain of each bookie, looked up at each access."""
        return _Domains(self)

    @property
    def policy(self) -> PlacementPolicy:
        """The configured policy; with `auto` and no placement rule it is random until a location is known."""
        return policy_of(self._config, self.topology, self.nearby.vantage.banned)

    def own_domains(self, policy_kind: Kind) -> tuple[str, ...]:
        """Return the fault domains where this client wants the first bookie of an ensemble, the best first.

        They are those of its setting `location`, then those that it prefers. A location that was found by its host does
        not count: many writers in one rack would fill that rack's bookies.
        """
        own, preferred = self.nearby.configured, self.nearby.vantage.preferred
        if policy_kind is Kind.RANDOM:
            return ()
        if not own:
            return preferred
        widest = own[: own.index("/", 1)] if policy_kind is not Kind.RACK and own.count("/") > 1 else own
        return (own, widest, *preferred)

    def learning_failed(self, cause: BaseException) -> None:
        """Log an unexpected failure of a learning task, a programming error. Known locations remain valid."""
        self._events.error("placement.learning_failed", error=cause)

    async def begin(self) -> None:
        """Read the file and test the script. Raises `ConfigError`. Idempotent."""
        if self._is_begun:
            return
        self._file.read()
        await self._script.test()
        if self._own_host:
            await self._script.ask([self._own_host])
        self._is_begun = True
        self._update()

    async def learn(self, bookies: Sequence[BookieId]) -> None:
        """Determine the unknown locations of these bookies. Raises `ConfigError` on the first call only."""
        await self.begin()
        if self._learning is None:
            self._learning = asyncio.Lock()
        async with self._learning:
            is_new = self._file.reload()
            unknown = [bookie for bookie in bookies if bookie not in self._learnt]
            if self._are_used and unknown:
                has_read = await self._registrations.read(unknown)
                hosts = self._registrations.hosts
                await self._script.ask([hosts.get(bookie) or host_of(bookie) for bookie in unknown])
                self._learnt.update(dict.fromkeys(compress(unknown, has_read)))
                is_new = True
            if is_new:
                self._update()
        self._warn(bookies)

    async def learn_for_reads(self, bookies: Iterable[BookieId]) -> None:
        """Determine the unknown locations of bookies that will be read from, if nearness matters."""
        if self.nearby.is_needed and (unknown := [bookie for bookie in bookies if bookie not in self._learnt]):
            await self.learn(unknown)

    def registered(self, bookie: BookieId, info: BookieInfo) -> None:
        """Take in a registration that was read for another purpose."""
        if self._are_used and bookie not in self._learnt:
            self._registrations.take_in(bookie, info)
            self._update()

    def knows(self, bookies: Iterable[BookieId]) -> bool:
        """Report whether `learn` has no work for these bookies."""
        return not self._are_used or all(bookie in self._learnt for bookie in bookies)

    @property
    def _are_used(self) -> bool:
        """Report whether locations beyond the hosts in the bookies' ids are used for anything."""
        return self._config.placement != "random" or bool(self._config.location)

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
        hosts = self._registrations.hosts
        known: dict[str, str] = dict(self._registrations.published.items())
        for bookie, host in hosts.items():
            if (location := self._script.printed.get(host)) is not None:
                known[bookie] = location
        for configured in (self._file.lines, self._pairs):
            # A location configured for a host overrides what its bookies publish, so each bookie gets an entry too.
            known.update({str(bookie): configured[host] for bookie, host in hosts.items() if host in configured})
            known.update(configured)
        topology = Topology(known, hosts)
        if topology != self.topology:
            self.topology = topology
        configured = {**self._script.printed, **self._file.lines, **self._pairs}
        self.nearby.update(self.topology, self.policy.kind, configured, hosts)

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


class Nearby:
    """How near bookies are to this client. Raises `ConfigError` for locations that cannot be parsed.

    Ranks are read with every request, so they are kept until a location changes. `configured`: the client's setting
    `location`.
    """

    def __init__(self, runtime: Runtime, config: ClientConfig) -> None:
        self.configured = parse_location(config.location) if config.location else ""
        self._orders = config.near_reads
        self._topology, self._kind = Topology(), Kind.RACK
        self._ranks: dict[BookieId, int] = {}
        self.vantage = Vantage(
            frozenset(runtime.host_names),
            self.configured,
            parse_locations(config.locations_preferred, "locations_preferred"),
            parse_locations(config.locations_banned, "locations_banned"),
        )

    @property
    def is_needed(self) -> bool:
        """Report whether reads need the locations of bookies."""
        return self._orders and self.vantage.distinguishes

    def update(
        self, topology: Topology, kind: Kind, configured: Mapping[str, str], bookies: Collection[BookieId]
    ) -> None:
        """Use other locations. `configured`: by host, by this client's sources; `bookies`: those that are known."""
        hosts = self.vantage.hosts
        location = self.configured or own_location(hosts, configured, topology, bookies)
        self.vantage = Vantage(hosts, location, self.vantage.preferred, self.vantage.banned)
        self._topology, self._kind = topology, kind
        self._ranks = {}

    def rank(self, bookie: BookieId) -> int:
        """Return the rank of a bookie, the nearest first."""
        rank = self._ranks.get(bookie)
        if rank is None:
            rank = self._ranks[bookie] = self.vantage.rank(bookie, self._topology, self._kind)
        return rank

    def order_rank(self, bookie: BookieId) -> int:
        """Return the rank of a bookie in the order of reads: the same for all if `near_reads` is false."""
        if not self._orders:
            return 0
        rank = self._ranks.get(bookie)
        return self.rank(bookie) if rank is None else rank

    def nearness(self, bookie: BookieId) -> Nearness:
        return nearness_of(self.rank(bookie))


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


def policy_of(config: ClientConfig, topology: Topology, banned: tuple[str, ...] = ()) -> PlacementPolicy:
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
        banned=banned,
    )
