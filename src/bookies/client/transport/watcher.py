"""Registered bookies: which exist, which to prefer, and their addresses.

The writable set is watched, so choosing an ensemble needs no call to the metadata store. Bookies that failed recently
are chosen last, never excluded. An address is looked up once, and again after each failed connect, because a bookie
that moves keeps its id. Source: client-protocol 2.2 and 7.8, metadata 6.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from math import inf

from msgspec import Struct

from bookies.client.base.announced_notes import MaintenanceNotes
from bookies.client.base.free_space import FreeSpace
from bookies.client.base.locations import Locations
from bookies.client.base.preference import FEW, lighter_first, preferred
from bookies.errors import BookieUnreachable, MetadataCorrupt, MetadataError, NotEnoughBookies
from bookies.metadata.interface import MetadataDriver, Watch
from bookies.metadata.interface.driver import BookieSet
from bookies.model import BookieId, BookieInfo, BookieMode, Ensemble
from bookies.protocol.ledger.bookie_health import Rank
from bookies.protocol.placement import PlacementPolicy, Topology, choose_ensemble
from bookies.protocol.placement.candidates import Candidates, Cluster
from bookies.protocol.placement.nearness import Nearness
from bookies.protocol.placement.placement_proof import abbreviated, unplaced
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import Tasks

DOWN = "down"
NEAR_MAX = 8  # bookies near the client, one of which should be the first of an ensemble


class BookieStatus(Struct, frozen=True):
    """One bookie as the metadata store shows it.

    `mode`: "writable", "read-only", or "down" if it is not registered. `address`: "host:port"; None if the bookie is
    down or its registration cannot be read. `location`: for placement; None if unknown. `http`: of its HTTP server.
    `nearness`: to this client, a label of `Nearness`.
    """

    id: BookieId
    mode: str
    address: str | None
    properties: Mapping[str, str]
    location: str | None = None
    http: str | None = None
    nearness: str = Nearness.UNKNOWN.label


class BookieWatcher:
    """The bookies of one cluster, for one client.

    `ailing`: unhealthy bookies with their ranks. `locations`: the bookies' locations and the placement policy. `load`:
    this client's pending work at a bookie. `space`: free disk space of bookies; None: not considered.
    """

    def __init__(
        self,
        runtime: Runtime,
        driver: MetadataDriver,
        ailing: Callable[[], Mapping[BookieId, Rank]],
        locations: Locations,
        load: Callable[[BookieId], float],
        space: FreeSpace | None = None,
    ) -> None:
        self._runtime = runtime
        self._driver = driver
        self._ailing = ailing
        self._locations = locations
        self._load = load
        self._space = space
        self._watch: Watch | None = None
        self._writable: BookieSet | None = None
        self._cluster: Cluster | None = None
        self._cluster_of: tuple[BookieSet | None, Topology] | None = None  # what it was built from
        self._places_bookies = False  # locations were requested, and will be again
        self._learning: Tasks | None = None
        self._is_asking = False
        self._notes = MaintenanceNotes(driver, runtime.clock.wall_ms, self._learn_notes)

    async def start(self) -> None:
        """Begin to watch; the bookies are known when it returns. Raises `ConfigError` for broken locations."""
        self._learning = Tasks(lambda cause: self._locations.learning_failed(cause))
        await self._locations.begin()
        self._watch = self._driver.watch_bookies(BookieMode.WRITABLE, self._changed)
        await self.refresh()

    async def stop(self) -> None:
        """Stop watching. Idempotent."""
        self._notes.stop()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._learning is not None:
            learning, self._learning = self._learning, None
            await learning.stop()

    @property
    def topology(self) -> Topology:
        """The known locations of bookies; `locate` learns more."""
        return self._locations.topology

    @property
    def policy(self) -> PlacementPolicy:
        return self._locations.policy

    def avoided(self) -> Mapping[BookieId, str]:
        """Return the bookies in maintenance or being drained, and which of the two; `locate` learns more."""
        return self._notes.avoided()

    def leaving(self) -> Collection[BookieId]:
        """Return the bookies being drained."""
        return self._notes.leaving()

    def failed(self, bookie: BookieId) -> None:
        """Forget the address of a bookie that could not be reached or did not answer: it is looked up again."""
        self._locations.addresses.pop(bookie, None)

    async def locate(self) -> None:
        """Learn the locations of the writable bookies, before some of them are chosen."""
        self._places_bookies = True
        await self._notes.learn()
        await self._locations.learn(self._bookies())

    def _learn_notes(self) -> None:
        if self._learning is not None:
            self._learning.start(self._notes.learn(), "read the operators' notes on bookies")

    def candidates(self) -> Candidates:
        """Return the writable bookies known now in order of preference: shuffled, then by health.

        Bookies in maintenance, or being drained, come last.
        """
        topology = self._locations.topology
        if self._cluster is None or self._cluster_of != (self._writable, topology):
            self._cluster = Cluster(self._bookies(), topology, self._locations.policy)
            self._cluster_of = self._writable, topology
        cluster, random = self._cluster, self._runtime.random
        ailing = {**dict.fromkeys(self._notes.avoided(), Rank.OPEN), **self._ailing()}
        order = preferred(cluster.bookies, random, ailing, self._weights(cluster))
        return Candidates(
            cluster,
            lighter_first(order, lambda bookie: inf if bookie in ailing else self._load(bookie)),
            last=[bookie for bookie, rank in ailing.items() if rank is Rank.OPEN],
            first=self._near(cluster, ailing),
            turn=random.getrandbits(16) if len(cluster) > FEW else 0,
        )

    def _weights(self, cluster: Cluster) -> Mapping[BookieId, float] | None:
        if self._space is None:
            return None
        due = self._space.due(cluster.bookies)
        if due and self._learning is not None and not self._is_asking:
            self._is_asking = True
            self._learning.start(self._ask_space(self._space, due), "ask bookies for their free space")
        return self._space.weights(cluster.bookies)

    async def _ask_space(self, space: FreeSpace, bookies: Sequence[BookieId]) -> None:
        try:
            await space.learn(bookies)
        finally:
            self._is_asking = False

    def _near(self, cluster: Cluster, ailing: Mapping[BookieId, Rank]) -> list[BookieId]:
        """Return some bookies in the client's own rack, else in its region."""
        for domain in self._locations.own_domains(cluster.policy.kind):
            near = preferred(cluster.within(domain), self._runtime.random, ailing)
            if healthy := [bookie for bookie in islice(near, NEAR_MAX) if bookie not in ailing]:
                return healthy
        return []

    def _bookies(self) -> tuple[BookieId, ...]:
        return self._writable.bookies if self._writable else ()

    async def refresh(self) -> None:
        """Read the writable bookies from the store instead of relying on the watch."""
        self._changed(await self._driver.bookies(BookieMode.WRITABLE))

    async def choose_ensemble(
        self,
        size: int,
        exclude: Collection[BookieId] = (),
        *,
        size_min: int | None = None,
        write_quorum: int | None = None,
        ack_quorum: int = 1,
    ) -> Ensemble:
        """Choose `size` distinct writable bookies as the policy requires; if there are fewer, down to `size_min`.

        Raises `NotEnoughBookies`, which names how many there are or the placement rule that excludes them.
        """
        if self._writable is None or len(self._writable.bookies) < size + len(exclude):
            await self.refresh()
        await self.locate()
        candidates = self.candidates()
        for smaller in range(size - 1, (size_min or size) - 1, -1):
            try:
                return choose_ensemble(candidates, smaller + 1, write_quorum or size, ack_quorum, exclude)
            except NotEnoughBookies:
                continue
        try:
            return choose_ensemble(candidates, size_min or size, write_quorum or size, ack_quorum, exclude)
        except NotEnoughBookies:
            names = self._bookies()
            unusable = [bookie for bookie in names if bookie in exclude]
            if (size_min or size) <= len(names) - len(unusable):
                raise  # There are enough; a placement rule excludes them.
            known = f"only {len(names)} registered ({abbreviated(names)})" if names else "none is registered"
            if unusable:
                known += f", of which {abbreviated(unusable)} cannot be used now"
            raise NotEnoughBookies(
                f"ensemble={size} needs {size} writable bookies, {known}: start more bookies, "
                f"or pass a smaller ensemble (with as small a write_quorum and ack_quorum){unplaced(candidates)}"
            ) from None

    async def resolve(self, bookie: BookieId) -> tuple[str, int]:
        """Return the bookie's address: as registered, else the last known one, else from its `host:port` id.

        The address in the id may belong to another bookie by now, which would report every entry as missing. So the
        registrations are checked first, if the store answers. Raises `BookieUnreachable`.
        """
        known = self._locations.addresses.get(bookie)
        if known is not None:
            return known
        try:
            info = await self._driver.bookie_info(bookie)
            if info is not None:
                self._locations.registered(bookie, info)
            address = info.rpc_address() if info else None
            if address is None and (address := address_of_id(bookie)) is not None:
                await self._check_free(address, bookie)
        except MetadataError as error:
            if (address := address_of_id(bookie)) is not None:
                return address
            raise BookieUnreachable(f"its address cannot be looked up: {error.message}", bookie=bookie) from error
        if address is None:
            raise BookieUnreachable("it is not registered, so its address is unknown", bookie=bookie)
        self._locations.addresses[bookie] = address
        return address

    async def _check_free(self, address: tuple[str, int], bookie: BookieId) -> None:
        """Raise `BookieUnreachable` if another bookie is registered at this address."""
        for other in await self._driver.modes():
            info = await self._info_of(other) if other != bookie else None
            if info is not None and info.rpc_address() == address:
                text = f"it is not registered, and {other} listens at the address in its name"
                raise BookieUnreachable(text, bookie=bookie)

    async def statuses(self) -> list[BookieStatus]:
        """Return the status of every bookie, running or not, sorted by id."""
        modes = dict.fromkeys((await self._driver.all_bookies()).bookies, DOWN)
        modes.update({bookie: registered.value for bookie, registered in (await self._driver.modes()).items()})
        await self._locations.learn([bookie for bookie, mode in modes.items() if mode != DOWN])
        statuses = []
        for bookie, mode in sorted(modes.items()):
            info = await self._info_of(bookie) if mode != DOWN else None
            address = info.rpc_address() if info else None
            text = f"{address[0]}:{address[1]}" if address else None
            location = self.topology.location(bookie)
            properties, http = (info.properties, info.http_address()) if info else ({}, None)
            nearness = self._locations.nearby.nearness(bookie).label
            statuses.append(BookieStatus(bookie, mode, text, properties, location, http, nearness))
        return statuses

    async def _info_of(self, bookie: BookieId) -> BookieInfo | None:
        """Return the bookie's registration; None also if it is corrupt, so that one corrupt record hides no others."""
        try:
            return await self._driver.bookie_info(bookie)
        except MetadataCorrupt:
            return None

    def _changed(self, bookies: BookieSet) -> None:
        if self._writable is None or bookies.version >= self._writable.version:
            before, self._writable = self._bookies(), bookies
            self._locations.removed([bookie for bookie in before if bookie not in set(bookies.bookies)])
            tasks = self._learning if self._places_bookies else None
            if tasks is not None and not self._locations.knows(bookies.bookies):
                tasks.start(self.locate(), "learn where new bookies are")


def address_of_id(bookie: BookieId) -> tuple[str, int] | None:
    """Return host and port of an id of the form `host:port`, the default for bookies without a configured id."""
    host, colon, port = bookie.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)
