"""Keys and formats in etcd: Apache's keys, and our own additions. No IO.

`S` is the scope, the path of the metadata URI. Source: metadata 10; docs/reference/formats/etcd.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from bookies.errors import ConfigError, MetadataCorrupt
from bookies.metadata.formats.recovery_formats import SinglePlaces, kind_below
from bookies.metadata.formats.serde import is_bookie_id
from bookies.metadata.interface.spent_ids import SPENT_SIZE
from bookies.model import BookieId, BookieMode

LEDGER_ID_MAX = (1 << 63) - 1
BUCKETS_COUNT = 128  # counters of ids
BUCKET_SIZE = 1 << 56  # ids of one bucket
_LAYOUT = b"2\norg.apache.bookkeeper.metadata.etcd.EtcdLedgerManagerFactory:0"
_MODES = {BookieMode.WRITABLE: "writable", BookieMode.READ_ONLY: "readonly"}
# A ledger's id is the low half of a UUID whose high half is 0.
_BUCKET = re.compile(r"[0-9]{3}")
_LEDGER = re.compile(r"00000000-0000-0000-([0-7][0-9a-f]{3})-([0-9a-f]{12})")


def stop_of(prefix: str) -> str:
    """Return the end of the range of keys that begin with `prefix`, which ends in `/`."""
    assert prefix.endswith("/")
    return prefix[:-1] + "0"  # the character after the slash


class Keys(Struct, frozen=True):
    """Keys of one cluster. `scope`: begins with a slash and does not end in one. Properties in the plural are prefixes
    that end in a slash.
    """

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
        """Return the key of a counter of ids. The counter is the key's number of writes."""
        return f"{self.buckets}{number:03d}"

    def bucket_number(self, key: str) -> int | None:
        """Return the number of a counter's key; None for another key. Inverse of `bucket`."""
        name = key.removeprefix(self.buckets)
        return int(name) if _BUCKET.fullmatch(name) and int(name) < BUCKETS_COUNT else None

    @property
    def ledgers(self) -> str:
        return f"{self.scope}/ledgers/"

    def ledger(self, ledger_id: int) -> str | None:
        """Return the key of a ledger's record; None for an id that cannot have a key."""
        return self.ledgers + _uuid(ledger_id) if 0 <= ledger_id <= LEDGER_ID_MAX else None

    def ledger_id(self, key: str) -> int | None:
        """Return the ledger of a key; None for another key. Inverse of `ledger`."""
        return _ledger_of(key.removeprefix(self.ledgers))

    def kind(self, key: str) -> str:
        """Return the kind of a key, in a word, for request counts."""
        first, _, rest = key.removeprefix(f"{self.scope}/").partition("/")
        return kind_below(rest) or first if first == "underreplication" else first

    def parts(self) -> list[str]:
        """Return the keys below the scope that the cluster uses, each alone or as the beginning of others."""
        apache = ("layout", "instanceid", "cookies", "bookies", "buckets", "ledgers", "underreplication")
        return [f"{self.scope}/{name}" for name in (*apache, "records", "spent")]

    def fixed(self, instance_id: str) -> list[tuple[str, bytes]]:
        """Return the keys and values of a new cluster, in Apache's order."""
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
        """Return the key of the list of deleted ledgers' ids that contains this id."""
        return f"{self.spent}{ledger_id // SPENT_SIZE:012x}"


class RecoveryKeys(SinglePlaces, frozen=True):
    """Keys of auto-recovery below `top`, where Apache's etcd driver has only a marker. The values, and the names except
    those of ledgers, are Apache's in ZooKeeper. A ledger has the same name as in its record's key.
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
        """Return the ledger of a mark's or lock's key; None for another key."""
        return _ledger_of(key.rpartition("/")[2])

    @property
    def votes(self) -> str:
        return f"{self.election}/"

    def vote(self, lease: int, number: int) -> str:
        """Return the key of a vote. The order of votes is that of their creation, not that of their keys."""
        return f"{self.votes}{lease:016x}-{number}"

    def void(self, lease: int, number: int) -> str:
        """Return the key that, once it exists, prevents that a lease's attempt at a lock or vote is carried out."""
        return f"{self.top}/void/{lease:016x}-{number}"


def _uuid(ledger_id: int) -> str:
    digits = f"{ledger_id:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _ledger_of(name: str) -> int | None:
    match = _LEDGER.fullmatch(name)
    return None if match is None else int(match[1] + match[2], 16)


def check_layout(data: bytes) -> None:
    """Check the layout record. Raises `MetadataCorrupt` for any but Apache's for etcd."""
    if data.rstrip(b"\n") != _LAYOUT:
        raise MetadataCorrupt(
            f"the layout is {data!r:.120}, not {_LAYOUT!r}: another driver, or a newer version, created the cluster"
        )


def bookies_among(prefix: str, keys: Iterable[str]) -> tuple[BookieId, ...]:
    """Return the bookie ids among the keys, sorted; other names are ignored. Source: metadata 13."""
    names = (key.removeprefix(prefix) for key in keys)
    return tuple(sorted(BookieId(name) for name in names if is_bookie_id(name)))


# -- URIs --------------------------------------------------------------------------------------------------------------

_URI = re.compile(r"etcd(?:\+[^:]*)?://(?P<hosts>[^/?#]*)(?P<scope>/[^?#]*)?(?:\?(?P<query>[^#]*))?", re.IGNORECASE)
_HOST = re.compile(r"(?P<name>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")
_SCOPE = re.compile(r"(?:/[^/\x00-\x1f\x7f]+)+")
_PORT = 2379
FORM = "etcd://HOST:2379;HOST:2379/SCOPE"


class Place(Struct, frozen=True):
    """A parsed metadata URI. `hosts`: host:port each."""

    hosts: tuple[str, ...]
    scope: str
    options: str | None


def parse_uri(uri: str) -> Place:
    """Parse a metadata URI. A `+` and a word after the scheme are ignored, as in Apache. Raises `ConfigError`."""
    match = _URI.fullmatch(uri.strip())
    if match is None:
        raise ConfigError(f"{uri!r} is not a metadata URI for etcd: expected {FORM}")
    hosts = tuple(_parse_host(uri, host.strip()) for host in match["hosts"].replace(";", ",").split(","))
    scope = match["scope"] or ""
    if not scope or scope == "/":
        raise ConfigError(f"{uri!r} has no scope, the path that all keys of the cluster begin with: expected {FORM}")
    if not _SCOPE.fullmatch(scope):
        raise ConfigError(f"{uri!r}: {scope} is not a scope; it may not end in / or have an empty part")
    return Place(hosts, scope, _options_of(uri, match["query"]))


def _parse_host(uri: str, text: str) -> str:
    match = _HOST.fullmatch(text)
    if match is None or int(match["port"] or _PORT) > 65535:
        raise ConfigError(f"{uri!r} names no etcd server in {text!r}: expected {FORM}")
    return f"{match['name']}:{match['port'] or _PORT}"


def _options_of(uri: str, query: str | None) -> str | None:
    if not query:
        return None
    name, _, path = query.partition("=")
    if name != "options" or not path:
        raise ConfigError(f"{uri!r}: after the ? only options=FILE is known, which names a file of credentials")
    return path
