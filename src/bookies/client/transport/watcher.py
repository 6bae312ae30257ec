"""Which bookies there are, which of them to prefer, and where they listen.

The writable set is watched, so choosing an ensemble needs no call to the metadata store; bookies that failed lately
are taken last, never dropped. An address is looked up once, and again after each failed connect, because a bookie that
moved keeps its id. Source: client-protocol 2.2 and 7.8, metadata 6.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf

from bookies.client.base.announced_notes import AnnouncedNotes
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
from bookies.protocol.placement.placement_proof import some, unplaced
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import Tasks

DOWN = "down"
NEAR_MAX = 8  # bookies near the client of which one shall be the first of an ensemble


@dataclass(frozen=True, slots=True)
class BookieStatus:
    """One bookie as the metadata store sees it.

    `mode`: "writable", "read-only", or "down" when it is not registered; `address`: "host:port", None when it is down,
    or when what it published cannot be read. `location`: for placement, None when nobody has said it.
    """

    id: BookieId
    mode: str
    address: str | None
    properties: Mapping[str, str]
    location: str | None = None


class BookieWatcher:
    """The bookies of one cluster, for one client. `ailing`: those that do not work now, with their ranks.

    `locations`: where they are, and what placement asks for. `load`: how much a bookie has to do for this client.
    `space`: how much room they have; None: it does not count.
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
        self._cluster_of: tuple[BookieSet | None, Topology] | None = None  # what it was made of
        self._addresses = locations.addresses
        self._places_bookies = False  # somebody has asked where they are, and will again
        self._learning: Tasks | None = None
        self._is_asking = False
        self._announced = AnnouncedNotes(driver, runtime.clock.wall_ms, self._learn_announced)

    async def start(self) -> None:
        """Begin to watch; the bookies are known when it returns. Raises `ConfigError` for broken locations."""
        self._learning = Tasks(lambda cause: self._locations.broken(cause))
        await self._locations.begin()
        self._watch = self._driver.watch_bookies(BookieMode.WRITABLE, self._changed)
        await self.refresh()

    async def stop(self) -> None:
        """Idempotent."""
        self._announced.stop()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._learning is not None:
            learning, self._learning = self._learning, None
            await learning.stop()

    @property
    def topology(self) -> Topology:
        """Where bookies are, as far as it is known; `locate` learns it."""
        return self._locations.topology

    @property
    def policy(self) -> PlacementPolicy:
        return self._locations.policy

    def failed(self, bookie: BookieId) -> None:
        """The bookie could not be reached or did not answer: look its address up again."""
        self._addresses.pop(bookie, None)

    async def locate(self) -> None:
        """Learn where the writable bookies are, before some of them are chosen."""
        self._places_bookies = True
        await self._announced.learn()
        await self._locations.learn(self._bookies())

    def _learn_announced(self) -> None:
        if self._learning is not None:
            self._learning.start(self._announced.learn(), "learn what was announced of bookies")

    def candidates(self) -> Candidates:
        """The writable bookies known now, in the order in which to take them: shuffled, then by health; those that
        operators want left alone come last."""
        topology = self._locations.topology
        if self._cluster is None or self._cluster_of != (self._writable, topology):
            self._cluster = Cluster(self._bookies(), topology, self._locations.policy)
            self._cluster_of = self._writable, topology
        cluster, random = self._cluster, self._runtime.random
        ailing = {**dict.fromkeys(self._announced.avoided(), Rank.OPEN), **self._ailing()}
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
        """Some bookies in the client's own rack, else in its region."""
        for domain in self._locations.own_domains(cluster.policy.kind):
            near = preferred(cluster.within(domain), self._runtime.random, ailing)
            if found := [bookie for bookie in islice(near, NEAR_MAX) if bookie not in ailing]:
                return found
        return []

    def _bookies(self) -> tuple[BookieId, ...]:
        return self._writable.bookies if self._writable else ()

    async def refresh(self) -> None:
        """Ask the store instead of trusting what was delivered last."""
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
        """Distinct writable bookies, placed as the policy says; fewer than `size`, down to `size_min`, if there are no
        more. Raises `NotEnoughBookies`, which says how many there are or which rule stands in the way."""
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
            unusable = [each for each in names if each in exclude]
            if (size_min or size) <= len(names) - len(unusable):
                raise  # There are enough; a rule of placement is in the way.
            known = f"only {len(names)} registered ({some(names)})" if names else "none is registered"
            if unusable:
                known += f", of which {some(unusable)} cannot be used now"
            raise NotEnoughBookies(
                f"ensemble={size} needs {size} writable bookies, {known}: start more bookies, "
                f"or pass a smaller ensemble (with as small a write_quorum and ack_quorum){unplaced(candidates)}"
            ) from None

    async def resolve(self, bookie: BookieId) -> tuple[str, int]:
        """Where the bookie listens: as published, else as known before, else as its `host:port` id says.

        That address may be another bookie's by now, which would deny everything this one has. Raises
        `BookieUnreachable`.
        """
        known = self._addresses.get(bookie)
        if known is not None:
            return known
        try:
            info = await self._driver.bookie_info(bookie)
            address = info.rpc_address() if info else None
            if address is None and (address := address_of_id(bookie)) is not None:
                await self._check_free(address, bookie)
        except MetadataError as error:
            if (address := address_of_id(bookie)) is not None:
                return address
            raise BookieUnreachable(f"its address cannot be looked up: {error.message}", bookie=bookie) from error
        if address is None:
            raise BookieUnreachable("it is not registered, so its address is unknown", bookie=bookie)
        self._addresses[bookie] = address
        return address

    async def _check_free(self, address: tuple[str, int], bookie: BookieId) -> None:
        """Raises `BookieUnreachable` when another bookie is registered at this address."""
        for other in await self._driver.modes():
            info = await self._info_of(other) if other != bookie else None
            if info is not None and info.rpc_address() == address:
                text = f"it is not registered, and {other} listens at the address in its name"
                raise BookieUnreachable(text, bookie=bookie)

    async def statuses(self) -> list[BookieStatus]:
        """Every bookie, running or not, sorted by id."""
        modes = dict.fromkeys((await self._driver.all_bookies()).bookies, DOWN)
        modes.update({bookie: mode.value for bookie, mode in (await self._driver.modes()).items()})
        await self._locations.learn([bookie for bookie, of_bookie in modes.items() if of_bookie != DOWN])
        found = []
        for bookie, of_bookie in sorted(modes.items()):
            info = await self._info_of(bookie) if of_bookie != DOWN else None
            address = info.rpc_address() if info else None
            text = f"{address[0]}:{address[1]}" if address else None
            location = self.topology.location(bookie)
            found.append(BookieStatus(bookie, of_bookie, text, info.properties if info else {}, location))
        return found

    async def _info_of(self, bookie: BookieId) -> BookieInfo | None:
        """What it published; None also when that is damaged, which is no reason to say nothing of all the others."""
        try:
            return await self._driver.bookie_info(bookie)
        except MetadataCorrupt:
            return None

    def _changed(self, bookies: BookieSet) -> None:
        if self._writable is None or bookies.version >= self._writable.version:
            before, self._writable = self._bookies(), bookies
            self._locations.gone([bookie for bookie in before if bookie not in set(bookies.bookies)])
            tasks = self._learning if self._places_bookies else None
            if tasks is not None and not self._locations.knows(bookies.bookies):
                tasks.start(self.locate(), "learn where new bookies are")


def address_of_id(bookie: BookieId) -> tuple[str, int] | None:
    """Host and port of an id in the form `host:port`, which bookies without a name of their own have."""
    host, colon, port = bookie.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)
