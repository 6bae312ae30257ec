"""Locations of bookies: paths that determine which fault domains bookies share.

A location is an absolute path without the host: `/rack`, `/region/rack` or `/zone/upgradeDomain`. Below it every host
is a fault domain of its own; several bookies on one host are normal. A bookie without a location is *nowhere*: it
counts for no rack, never for a default rack shared by all such bookies, because that would look like a spread that does
not exist. The kind of placement decides how many parts a location must have. A location that does not fit counts as
none, and `problem` reports it. Source: metadata 9.3, 9.7.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bookies.errors import ConfigError
from bookies.model import BookieId


class Kind(enum.Enum):
    """Kind of fault domains over which an ensemble is spread."""

    RANDOM = "random"  # hosts only
    RACK = "rack"
    REGION = "region"  # regions, and racks within them
    ZONE = "zone"  # zones, and upgrade domains within them

    @property
    def levels(self) -> tuple[str, ...]:
        """Return the names of the fault domains, from the widest to the host."""
        return _LEVELS[self]

    @property
    def example(self) -> str:
        """Return an example of a location."""
        return _EXAMPLES[self]


_LEVELS = {
    Kind.RANDOM: ("host",),
    Kind.RACK: ("rack", "host"),
    Kind.REGION: ("region", "rack", "host"),
    Kind.ZONE: ("zone", "upgrade domain", "host"),
}
_EXAMPLES = {Kind.RANDOM: "", Kind.RACK: "/rack", Kind.REGION: "/region/rack", Kind.ZONE: "/zone/upgradeDomain"}

Place = tuple[str | None, ...]
"""Fault domains of a bookie, widest first, one per level of the kind; None: unknown. Each name contains those before
it, so two domains are the same exactly if their names are equal."""


class Problem(NamedTuple):
    """Bookie that counts as nowhere, and the reason."""

    bookie: BookieId
    reason: str


def parse_location(text: str) -> str:
    """Return a location in canonical form, without a trailing slash. Raises `ConfigError`."""
    path = text.strip()
    if not path.startswith("/"):
        raise ConfigError(f"location {text!r}: must be an absolute path such as /rack or /region/rack")
    parts = path.rstrip("/").split("/")[1:]
    if not parts or not all(parts) or any(character.isspace() for character in path):
        raise ConfigError(f"location {text!r}: must have a name after each slash, without spaces, such as /rack")
    return "/" + "/".join(parts)


def is_within(location: str, domain: str) -> bool:
    """Report whether a location is the domain or below it."""
    return location == domain or location.startswith(f"{domain}/")


def is_within_any(location: str, domains: Iterable[str]) -> bool:
    """Report whether a location is within one of the domains."""
    return any(is_within(location, domain) for domain in domains)


def parse_fault_domains(text: str) -> dict[str, str]:
    """Parse `bookie=location` pairs separated by commas into locations by bookie or host. Raises `ConfigError`.

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
    """Parse lines `bookie-or-host location` into locations by bookie or host; `#` begins a comment.

    `source`: origin of the lines, for errors. Raises `ConfigError`, also for a text without locations: it would mean
    that no bookie has one.
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
            raise ConfigError(f"{source}, line {number}: an earlier line has {locations[words[0]]} for {words[0]}")
    if not locations:
        raise ConfigError(f"{source} contains no location: add lines `bookie-or-host location`, or do not use it")
    return locations


def host_of(bookie: BookieId) -> str:
    """Return the host in an id of the form `host:port`; any other id is its own host."""
    host, colon, port = bookie.rpartition(":")
    return host if colon and host and port.isdecimal() else bookie


class Topology:
    """Locations of bookies. Immutable.

    locations: by bookie or by host; a bookie's own location takes precedence over its host's.
    hosts: hosts of bookies whose id does not contain them.
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
        """Report whether no location is known."""
        return not self._locations

    def host(self, bookie: BookieId) -> str:
        return self._hosts.get(bookie) or host_of(bookie)

    def location(self, bookie: BookieId) -> str | None:
        """Return the configured location, even if it does not fit the kind of placement."""
        return self._locations.get(bookie) or self._locations.get(self.host(bookie))

    def place(self, bookie: BookieId, kind: Kind) -> Place:
        """Return the fault domains of a bookie; one with a problem has only its host."""
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
        """Return why the bookie is nowhere; None: it has a location that fits, or needs none."""
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
        """Return the problems of those of these bookies that are nowhere."""
        return [problem for bookie in bookies if (problem := self.problem(bookie, kind)) is not None]


def name_of(domain: str | None) -> str:
    """Return the display name of a fault domain: a host without the location that its name begins with."""
    return "nowhere" if domain is None else domain.rpartition(" ")[2]
