"""Where bookies are: a path for each of them, from which follows what they share and can lose together.

A location is an absolute path without the host: `/rack`, `/region/rack` or `/zone/upgradeDomain`. Below it every host
is a fault domain of its own, and several bookies on one host are normal. A bookie without a location is nowhere: it
counts for no rack at all, never for one that all such bookies share, since that would look like a spread that is not
there. How many parts a location has to have depends on the kind of placement; one that does not fit counts as none,
and `problem` says so. Source: metadata 9.3, 9.7.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bookies.errors import ConfigError
from bookies.model import BookieId


class Kind(enum.Enum):
    """What an ensemble is spread over."""

    RANDOM = "random"  # hosts only
    RACK = "rack"
    REGION = "region"  # regions, and racks within them
    ZONE = "zone"  # zones, and upgrade domains within them

    @property
    def levels(self) -> tuple[str, ...]:
        """The fault domains from the widest to the host, by name."""
        return _LEVELS[self]

    @property
    def example(self) -> str:
        """How a location looks."""
        return _EXAMPLES[self]


_LEVELS = {
    Kind.RANDOM: ("host",),
    Kind.RACK: ("rack", "host"),
    Kind.REGION: ("region", "rack", "host"),
    Kind.ZONE: ("zone", "upgrade domain", "host"),
}
_EXAMPLES = {Kind.RANDOM: "", Kind.RACK: "/rack", Kind.REGION: "/region/rack", Kind.ZONE: "/zone/upgradeDomain"}

Place = tuple[str | None, ...]
"""The fault domains of a bookie, widest first, as many as its kind has levels; None: it is not known. Each name holds
those before it, so that two are the same domain exactly if they are equal."""


class Problem(NamedTuple):
    """A bookie that counts as being nowhere, and why."""

    bookie: BookieId
    reason: str


def parse_location(text: str) -> str:
    """A location in its one spelling: a trailing slash does not count. Raises `ConfigError`."""
    path = text.strip()
    if not path.startswith("/"):
        raise ConfigError(f"location {text!r}: must be an absolute path as /rack or /region/rack")
    parts = path.rstrip("/").split("/")[1:]
    if not parts or not all(parts) or any(each.isspace() for each in path):
        raise ConfigError(f"location {text!r}: must have a name after each slash, without spaces, as /rack")
    return "/" + "/".join(parts)


def parse_fault_domains(text: str) -> dict[str, str]:
    """Locations by bookie or host, from `bookie=location` pairs separated by commas. Raises `ConfigError`.

    A location without a slash is the name of a rack.
    """
    locations: dict[str, str] = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        name, _, location = map(str.strip, pair.rpartition("="))
        if not name or not location:
            raise ConfigError(f"fault_domains: {pair!r}: must be bookie=domain pairs, separated by commas")
        locations[name] = parse_location(location if location.startswith("/") else f"/{location}")
    return locations


def parse_location_lines(text: str, source: str) -> dict[str, str]:
    """Locations by bookie or host, from lines `bookie-or-host location`; `#` begins a comment. Raises `ConfigError`.

    `source`: what the lines are from, for errors. A file without any line is one too: it would mean that no bookie is
    anywhere.
    """
    locations: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            raise ConfigError(f"{source}, line {number}: {line.strip()!r}: must be `bookie-or-host location`")
        try:
            location = parse_location(words[1])
        except ConfigError as error:
            raise ConfigError(f"{source}, line {number}: {error.message}") from error
        if locations.setdefault(words[0], location) != location:
            raise ConfigError(f"{source}, line {number}: {words[0]} is in {locations[words[0]]} by an earlier line")
    if not locations:
        raise ConfigError(f"{source} names no location: give it lines `bookie-or-host location`, or do not use it")
    return locations


def host_of(bookie: BookieId) -> str:
    """The host in an id of the form `host:port`; another id is its own host, as long as nobody knows better."""
    host, colon, port = bookie.rpartition(":")
    return host if colon and host and port.isdecimal() else bookie


class Topology:
    """The locations of bookies, by bookie or by host. A value: changes make a new one.

    `hosts`: of bookies whose id does not tell. `locations`: a bookie's own counts more than its host's.
    """

    def __init__(self, locations: Mapping[str, str] | None = None, hosts: Mapping[BookieId, str] | None = None) -> None:
        self._locations = dict(locations or {})
        self._hosts = dict(hosts or {})
        depths = Counter(location.count("/") for location in self._locations.values())
        self._depth = max(depths, key=lambda depth: depths[depth]) if depths else 0
        self._places: dict[tuple[Kind, BookieId], Place] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topology) and (self._locations, self._hosts) == (other._locations, other._hosts)

    __hash__ = None  # type: ignore[assignment]

    @property
    def is_empty(self) -> bool:
        """Whether no location is known at all: nobody has named racks."""
        return not self._locations

    def host(self, bookie: BookieId) -> str:
        return self._hosts.get(bookie) or host_of(bookie)

    def location(self, bookie: BookieId) -> str | None:
        """As it was given, whether it fits or not."""
        return self._locations.get(bookie) or self._locations.get(self.host(bookie))

    def place(self, bookie: BookieId, kind: Kind) -> Place:
        """Its fault domains; a bookie with a problem has only its host."""
        place = self._places.get((kind, bookie))
        if place is None:
            place = self._places[kind, bookie] = self._place(bookie, kind)
        return place

    def _place(self, bookie: BookieId, kind: Kind) -> Place:
        host = self.host(bookie)
        if kind is Kind.RANDOM:
            return (host,)
        location = self.location(bookie)
        if location is None or self.problem(bookie, kind):
            return (*(None for _ in kind.levels[1:]), f" {host}")
        below = (location, f"{location} {host}")
        return below if kind is Kind.RACK else (location[: location.index("/", 1)], *below)

    def problem(self, bookie: BookieId, kind: Kind) -> Problem | None:
        """Why the bookie is nowhere. None: it has a location that fits, or needs none."""
        if kind is Kind.RANDOM:
            return None
        location = self.location(bookie)
        if location is None:
            return Problem(bookie, "no location is known")
        depth = self._depth if kind is Kind.RACK else 2
        if location.count("/") != depth:
            others = "most others have" if kind is Kind.RACK else f"{kind.value} placement needs"
            return Problem(bookie, f"its location {location} has {location.count('/')} parts, {others} {depth}")
        return None

    def problems(self, bookies: Iterable[BookieId], kind: Kind) -> list[Problem]:
        """Those of these bookies that are nowhere."""
        return [problem for bookie in bookies if (problem := self.problem(bookie, kind)) is not None]


def name_of(domain: str | None) -> str:
    """A fault domain for people: a host without the location that its name begins with."""
    return "nowhere" if domain is None else domain.rpartition(" ")[2]
