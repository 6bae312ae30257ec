"""Which bookies there are, which of them to prefer, and where they listen.

The writable set is watched, so choosing an ensemble needs no call to the metadata store; bookies that failed lately
are taken last, never dropped. An address is looked up once, and again after each failed connect, because a bookie that
moved keeps its id. Source: client-protocol 2.2 and 7.8, metadata 6.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from bookies.errors import BookieUnreachable, MetadataCorrupt, MetadataError, NotEnoughBookies
from bookies.metadata.driver import BookieSet, MetadataDriver, Watch
from bookies.model import BookieId, BookieInfo, BookieMode, Ensemble
from bookies.protocol.placement import choose_ensemble, fewest_domains, spread
from bookies.runtime.ports import Runtime

DOWN = "down"
ARRANGEMENTS_MAX = 10  # tries, each in another order, to have every write set span enough fault domains


@dataclass(frozen=True, slots=True)
class BookieStatus:
    """One bookie as the metadata store sees it.

    `mode`: "writable", "read-only", or "down" when it is not registered; `address`: "host:port", None when it is down,
    or when what it published cannot be read.
    """

    id: BookieId
    mode: str
    address: str | None
    properties: Mapping[str, str]


class BookieWatcher:
    """The bookies of one cluster, for one client. `order`: puts the bookies that work now before the others."""

    def __init__(
        self,
        runtime: Runtime,
        driver: MetadataDriver,
        order: Callable[[Sequence[BookieId]], Sequence[BookieId]],
        domains: Mapping[BookieId, str] | None = None,
    ) -> None:
        self._runtime = runtime
        self._driver = driver
        self._order = order
        self._domains = domains or {}  # fault domains, for placement
        self._watch: Watch | None = None
        self._writable: BookieSet | None = None
        self._addresses: dict[BookieId, tuple[str, int]] = {}

    async def start(self) -> None:
        """Begin to watch; the bookies are known when it returns."""
        self._watch = self._driver.watch_bookies(BookieMode.WRITABLE, self._changed)
        await self.refresh()

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def failed(self, bookie: BookieId) -> None:
        """The bookie could not be reached or did not answer: look its address up again."""
        self._addresses.pop(bookie, None)

    def candidates(self) -> Sequence[BookieId]:
        """The writable bookies known now, in the order in which to take them: shuffled, then by health."""
        bookies = list(self._writable.bookies) if self._writable else []
        self._runtime.random.shuffle(bookies)
        return self._order(bookies)

    async def refresh(self) -> None:
        """Ask the store instead of trusting what was delivered last."""
        self._changed(await self._driver.bookies(BookieMode.WRITABLE))

    async def choose_ensemble(
        self,
        size: int,
        exclude: Collection[BookieId] = (),
        *,
        size_min: int | None = None,
        write_quorum: int = 1,
        domains_min: int = 0,
    ) -> Ensemble:
        """Distinct writable bookies, spread over the fault domains; fewer than `size`, down to `size_min`, if there
        are no more. The replicas of each entry are in `domains_min` fault domains, for otherwise no quorum would ever
        do. Raises `NotEnoughBookies`, which says how many there are."""
        if domains_min < 2:
            return await self._choose(size, exclude, size_min)
        for _ in range(ARRANGEMENTS_MAX):
            chosen = await self._choose(size, exclude, size_min)
            if fewest_domains(chosen, write_quorum, self._domains) >= domains_min:
                return chosen
            await self.refresh()
        there = self._writable.bookies if self._writable else ()
        where = ", ".join(f"{bookie} in {self._domains.get(bookie) or 'none that is named'}" for bookie in there)
        raise NotEnoughBookies(
            f"fault_domains_min asks for replicas of every entry in {domains_min} fault domains, for which an ensemble "
            f"of {size} cannot be chosen from the writable bookies ({where}): start bookies in other domains, or name "
            "theirs in fault_domains"
        )

    async def _choose(self, size: int, exclude: Collection[BookieId], size_min: int | None) -> Ensemble:
        if self._writable is None or len(self._writable.bookies) < size + len(exclude):
            await self.refresh()
        candidates = spread(self.candidates(), self._domains)
        if size_min is not None:
            size = max(size_min, min(size, len([bookie for bookie in candidates if bookie not in exclude])))
        try:
            return choose_ensemble(size, candidates, exclude)
        except NotEnoughBookies:
            names = self._writable.bookies if self._writable else ()
            known = f"only {len(names)} registered ({', '.join(names)})" if names else "none is registered"
            raise NotEnoughBookies(
                f"ensemble={size} needs {size} writable bookies, {known}: start more bookies, "
                "or pass a smaller ensemble (with as small a write_quorum and ack_quorum)"
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
        for mode in BookieMode:
            for other in (await self._driver.bookies(mode)).bookies:
                info = await self._info_of(other) if other != bookie else None
                if info is not None and info.rpc_address() == address:
                    text = f"it is not registered, and {other} listens at the address in its name"
                    raise BookieUnreachable(text, bookie=bookie)

    async def statuses(self) -> list[BookieStatus]:
        """Every bookie, running or not, sorted by id."""
        modes = dict.fromkeys((await self._driver.all_bookies()).bookies, DOWN)
        for mode in BookieMode:
            modes.update(dict.fromkeys((await self._driver.bookies(mode)).bookies, mode.value))
        found = []
        for bookie, of_bookie in sorted(modes.items()):
            info = await self._info_of(bookie) if of_bookie != DOWN else None
            address = info.rpc_address() if info else None
            text = f"{address[0]}:{address[1]}" if address else None
            found.append(BookieStatus(bookie, of_bookie, text, info.properties if info else {}))
        return found

    async def _info_of(self, bookie: BookieId) -> BookieInfo | None:
        """What it published; None also when that is damaged, which is no reason to say nothing of all the others."""
        try:
            return await self._driver.bookie_info(bookie)
        except MetadataCorrupt:
            return None

    def _changed(self, bookies: BookieSet) -> None:
        if self._writable is None or bookies.version >= self._writable.version:
            self._writable = bookies


def address_of_id(bookie: BookieId) -> tuple[str, int] | None:
    """Host and port of an id in the form `host:port`, which bookies without a name of their own have."""
    host, colon, port = bookie.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)
