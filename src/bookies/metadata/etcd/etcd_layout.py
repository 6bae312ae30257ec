"""Where everything is in etcd, and in which bytes: Apache's keys, and our own beside them. No IO.

`S` is the scope, the path of the metadata URI. Source: metadata 10; docs/reference/formats/etcd.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from bookies.errors import ConfigError, MetadataCorrupt
from bookies.metadata.formats.recovery_formats import SinglePlaces, kind_below
from bookies.metadata.formats.serde import is_bookie_id
from bookies.metadata.interface.spent_ids import SPENT_SIZE
from bookies.model import BookieId, BookieMode

LEDGER_ID_MAX = (1 << 63) - 1
BUCKETS_COUNT = 128  # counters that ids are taken from
BUCKET_SIZE = 1 << 56  # ids of one bucket
_LAYOUT = b"2\norg.apache.bookkeeper.metadata.etcd.EtcdLedgerManagerFactory:0"
_MODES = {BookieMode.WRITABLE: "writable", BookieMode.READ_ONLY: "readonly"}
# The number of a ledger is the low half of a UUID whose high half is 0.
_BUCKET = re.compile(r"[0-9]{3}")
_LEDGER = re.compile(r"00000000-0000-0000-([0-7][0-9a-f]{3})-([0-9a-f]{12})")


def stop_of(prefix: str) -> str:
    """Where the keys end that begin with this, which ends in `/`."""
    assert prefix.endswith("/")
    return prefix[:-1] + "0"  # the character after the slash


@dataclass(frozen=True, slots=True)
class Keys:
    """Of one cluster. `scope`: begins with a slash and does not end in one. What is called `…s` ends in a slash."""

    scope: str

    @property
    def layout(self) -> str:
        return f"{self.scope}/layout"

    @property
    def instance_id(self) -> str:
        return f"{self.scope}/instanceid"

    @property
    def cookies(self) -> str:
        return f"{self.scope}/cookies/"

    def cookie(self, bookie: BookieId) -> str:
        return self.cookies + bookie

    def registrations(self, mode: BookieMode) -> str:
        return f"{self.scope}/bookies/{_MODES[mode]}/"

    def registration(self, bookie: BookieId, mode: BookieMode) -> str:
        return self.registrations(mode) + bookie

    @property
    def buckets(self) -> str:
        return f"{self.scope}/buckets/"

    def bucket(self, number: int) -> str:
        """A counter of ids: the number of times that it was written."""
        return f"{self.buckets}{number:03d}"

    def bucket_number(self, key: str) -> int | None:
        """The other way; None for a key that is no counter's."""
        name = key.removeprefix(self.buckets)
        return int(name) if _BUCKET.fullmatch(name) and int(name) < BUCKETS_COUNT else None

    @property
    def ledgers(self) -> str:
        return f"{self.scope}/ledgers/"

    def ledger(self, ledger_id: int) -> str | None:
        """None for an id that can have no key."""
        return self.ledgers + _uuid(ledger_id) if 0 <= ledger_id <= LEDGER_ID_MAX else None

    def ledger_id(self, key: str) -> int | None:
        """The other way; None for a key that is no ledger's."""
        return _ledger_of(key.removeprefix(self.ledgers))

    def kind(self, key: str) -> str:
        """What a key is of, in a word: for counting."""
        first, _, rest = key.removeprefix(f"{self.scope}/").partition("/")
        return kind_below(rest) or first if first == "underreplication" else first

    def fixed(self, instance_id: str) -> list[tuple[str, bytes]]:
        """What a cluster begins with, in Apache's order."""
        markers = ("cookies", "bookies", "bookies/writable", "bookies/readonly", "ledgers", "buckets")
        return [
            (self.scope, b""),
            (self.layout, _LAYOUT),
            (self.instance_id, instance_id.encode("ascii")),
            *((f"{self.scope}/{name}", b"") for name in (*markers, "underreplication")),
        ]

    # -- our own --------------------------------------------------------------------------------------------------
    @property
    def records(self) -> str:
        return f"{self.scope}/records/"

    def record(self, name: str) -> str:
        return self.records + name

    @property
    def recovery(self) -> RecoveryKeys:
        return RecoveryKeys(f"{self.scope}/underreplication")

    @property
    def spent(self) -> str:
        return f"{self.scope}/spent/"

    def spent_list(self, ledger_id: int) -> str:
        """The list with the ids of deleted ledgers around this one."""
        return f"{self.spent}{ledger_id // SPENT_SIZE:012x}"


@dataclass(frozen=True, slots=True)
class RecoveryKeys(SinglePlaces):
    """What auto-recovery keeps, below `top`: Apache's driver has a marker there and no more. The values, and the names
    but for ledgers', which are as those of their records, are Apache's in ZooKeeper.
    """

    @property
    def marks(self) -> str:
        return f"{self.top}/ledgers/"

    def mark(self, ledger_id: int) -> str:
        return self.marks + _uuid(ledger_id)

    @property
    def locks(self) -> str:
        return f"{self.top}/locks/"

    def lock(self, ledger_id: int) -> str:
        return self.locks + _uuid(ledger_id)

    def ledger_id(self, key: str) -> int | None:
        """Of a mark or a lock; None for a key that is neither."""
        return _ledger_of(key.rpartition("/")[2])

    @property
    def votes(self) -> str:
        return f"{self.election}/"

    def vote(self, lease: int, number: int) -> str:
        """Votes are in the order in which they were made, whatever their names."""
        return f"{self.votes}{lease:016x}-{number}"


def _uuid(ledger_id: int) -> str:
    digits = f"{ledger_id:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _ledger_of(name: str) -> int | None:
    found = _LEDGER.fullmatch(name)
    return None if found is None else int(found[1] + found[2], 16)


def check_layout(data: bytes) -> None:
    """Raises `MetadataCorrupt` for any other than Apache's for etcd."""
    if data.rstrip(b"\n") != _LAYOUT:
        raise MetadataCorrupt(f"the layout is {data!r:.120}, not {_LAYOUT!r}: another driver's, or a newer one's")


def bookies_among(prefix: str, keys: Iterable[str]) -> tuple[BookieId, ...]:
    """Sorted; names that are no bookie's id are somebody else's business. Source: metadata 13."""
    names = (key.removeprefix(prefix) for key in keys)
    return tuple(sorted(BookieId(name) for name in names if is_bookie_id(name)))


# -- URIs --------------------------------------------------------------------------------------------------------------

_URI = re.compile(r"etcd(?:\+[^:]*)?://(?P<hosts>[^/?#]*)(?P<scope>/[^?#]*)?(?:\?(?P<query>[^#]*))?", re.IGNORECASE)
_HOST = re.compile(r"(?P<name>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")
_SCOPE = re.compile(r"(?:/[^/\x00-\x1f\x7f]+)+")
_PORT = 2379
FORM = "etcd://HOST:2379;HOST:2379/SCOPE"


@dataclass(frozen=True, slots=True)
class Place:
    """What a metadata URI says. `hosts`: host:port each."""

    hosts: tuple[str, ...]
    scope: str
    options: str | None


def parse_uri(uri: str) -> Place:
    """What stands after a `+` in the scheme means nothing, as with Apache. Raises `ConfigError`."""
    found = _URI.fullmatch(uri.strip())
    if found is None:
        raise ConfigError(f"{uri!r} is not a metadata URI for etcd: expected {FORM}")
    hosts = tuple(_parse_host(uri, host.strip()) for host in found["hosts"].replace(";", ",").split(","))
    scope = found["scope"] or ""
    if not scope or scope == "/":
        raise ConfigError(f"{uri!r} has no scope, the path that all keys of the cluster begin with: expected {FORM}")
    if not _SCOPE.fullmatch(scope):
        raise ConfigError(f"{uri!r}: {scope} is no scope; it may not end in / or have an empty part")
    return Place(hosts, scope, _options_of(uri, found["query"]))


def _parse_host(uri: str, text: str) -> str:
    found = _HOST.fullmatch(text)
    if found is None or int(found["port"] or _PORT) > 65535:
        raise ConfigError(f"{uri!r} names no etcd server in {text!r}: expected {FORM}")
    return f"{found['name']}:{found['port'] or _PORT}"


def _options_of(uri: str, query: str | None) -> str | None:
    if not query:
        return None
    name, _, path = query.partition("=")
    if name != "options" or not path:
        raise ConfigError(f"{uri!r}: after the ? only options=FILE is known, which says how to authenticate")
    return path
