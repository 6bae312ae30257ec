"""Paths and formats in ZooKeeper: Apache's layout, and our own additions. No IO.

`ROOT` is the path of the metadata URI. All znodes of Apache's components are below it, exactly as they write them; our
additions are below `ROOT-bookies`, because a child of `ROOT` with an unknown name stops some of Apache's tools.
Source: metadata 2 and 3; docs/reference/formats/zookeeper.md.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from bookies.errors import ConfigError, MetadataCorrupt
from bookies.metadata.formats.recovery_formats import SinglePlaces, kind_below, leaf
from bookies.metadata.formats.serde import is_bookie_id
from bookies.metadata.interface.spent_ids import SPENT_SIZE
from bookies.model import BookieId, BookieMode

LEDGER_ID_MAX = (1 << 63) - 1
SHORT_ID_STOP = (1 << 31) - 1  # ids from here on have the long path, and no 31-bit generator makes them
HIGH_UNIT = 1 << 32  # a generated id is the number of its HOB directory times this, and a 31-bit number
HIGH_DIRECTORIES_KEPT = 3
_FORMATS = (1, 2)  # accepted formats of the LAYOUT record
_READ_ONLY_NAME = "readonly"


class Manager(enum.Enum):
    """A layout of ledgers' paths, by its name in metadata URIs. `legacy` is read, but not accepted in a URI."""

    FLAT = "flat"
    HIERARCHICAL = "hierarchical"
    LONG = "longhierarchical"
    LEGACY = "legacy"

    @property
    def class_name(self) -> str:
        return _CLASSES[self]

    @property
    def has_long_ids(self) -> bool:
        """Report whether ids above 31 bits are generated."""
        return self in (Manager.HIERARCHICAL, Manager.LONG)


_CLASSES = {
    Manager.FLAT: "org.apache.bookkeeper.meta.FlatLedgerManagerFactory",
    Manager.HIERARCHICAL: "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory",
    Manager.LONG: "org.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory",
    Manager.LEGACY: "org.apache.bookkeeper.meta.LegacyHierarchicalLedgerManagerFactory",
}
_SHADE = "dlshade."
_MANAGER_VERSION = 1


# -- the LAYOUT record -------------------------------------------------------------------------------------------------


def pack_layout(manager: Manager) -> bytes:
    """Return the LAYOUT record as Apache writes it, without a line feed at the end. Source: metadata 2.2."""
    return f"2\n{manager.class_name}:{_MANAGER_VERSION}".encode("ascii")


def parse_layout(data: bytes) -> Manager:
    """Read a LAYOUT record. Raises `MetadataCorrupt` for invalid records and unknown managers."""
    try:
        lines = data.decode("utf-8").rstrip("\n").split("\n")
        if len(lines) != 2 or lines[1].count(":") != 1:
            raise ValueError("it must have two lines, the second one with one colon")
        first, (name, version) = lines[0], lines[1].split(":")
        if int(first) not in _FORMATS:
            raise ValueError(f"its format is {first}")
        if int(version) != _MANAGER_VERSION:
            raise ValueError(f"incompatible layout version {version} of {name}")
        if int(first) == 1:
            return {"flat": Manager.FLAT, "hierarchical": Manager.HIERARCHICAL}[name]
        return {class_name: manager for manager, class_name in _CLASSES.items()}[name.removeprefix(_SHADE)]
    except KeyError as error:
        raise MetadataCorrupt(f"LAYOUT names the ledger manager {error}, which bookies does not support") from error
    except ValueError as error:
        raise MetadataCorrupt(f"LAYOUT is {data!r:.120}, which is not a BookKeeper layout: {error}") from error


# -- paths -------------------------------------------------------------------------------------------------------------

# Names of managers' children directly under ROOT.
_SHORT_PARENT = re.compile(r"[0-9]{2}")
_LONG_PARENT = re.compile(r"[0-9]{3}")
_FOUR_DIGITS = re.compile(r"[0-9]{4}")
_SHORT_LEAF = re.compile(r"L[0-9]{4}")
_FLAT_LEAF = re.compile(r"L[0-9]{10,19}")
_HIGH_DIRECTORY = re.compile(r"HOB-([0-9]{10})")
SHORT_DEPTH, LONG_DEPTH = 3, 5  # components of a path below ROOT


_NOT_LEDGERS = ("LAYOUT", "INSTANCEID", "cookies", "available", "idgen", "idgen-long")


class Paths(Struct, frozen=True):
    """Paths of one cluster. `root`: an absolute path without a slash at its end."""

    root: str

    @property
    def layout(self) -> str:
        return f"{self.root}/LAYOUT"

    @property
    def instance_id(self) -> str:
        return f"{self.root}/INSTANCEID"

    @property
    def cookies(self) -> str:
        return f"{self.root}/cookies"

    def cookie(self, bookie: BookieId) -> str:
        return f"{self.cookies}/{bookie}"

    def registrations(self, mode: BookieMode) -> str:
        return f"{self.root}/available" + (f"/{_READ_ONLY_NAME}" if mode is BookieMode.READ_ONLY else "")

    def registration(self, bookie: BookieId, mode: BookieMode) -> str:
        return f"{self.registrations(mode)}/{bookie}"

    # -- id generation: ephemeral nodes with the server's sequence number, deleted at once --------------------------
    def id_prefix(self, manager: Manager) -> str:
        """Return the prefix of the 31-bit generator's znodes. Source: metadata 3.2."""
        return f"{self.root}/ID-" if manager is Manager.FLAT else f"{self.root}/idgen/ID-"

    @property
    def high_ids(self) -> str:
        return f"{self.root}/idgen-long"

    def high_directory(self, number: int) -> str:
        return f"{self.high_ids}/HOB-{number:010d}"

    def high_id_prefix(self, number: int) -> str:
        return f"{self.high_directory(number)}/ID-"

    @property
    def recovery(self) -> RecoveryPaths:
        return RecoveryPaths(f"{self.root}/underreplication")

    def kind(self, path: str) -> str:
        """Return the kind of the znode at a path, in a word, for request counts."""
        if path.startswith(self.own):
            return "records"
        first, _, rest = path.removeprefix(f"{self.root}/").partition("/")
        if first == "underreplication":
            return kind_below(rest) or first
        return first if first in _NOT_LEDGERS else "ledgers"

    # -- our own --------------------------------------------------------------------------------------------------
    @property
    def own(self) -> str:
        """Top of our own znodes, which Apache's components do not know, beside the cluster."""
        return f"{self.root}-bookies"

    @property
    def records(self) -> str:
        """Parent of named records. Every deletion of a record or cookie rewrites it, so its version counts them."""
        return f"{self.own}/records"

    def record(self, name: str) -> str:
        return f"{self.records}/{name.replace('/', ',')}"

    @property
    def revision(self) -> str:
        """Znode that a transaction of creations also writes, because the answer to a write has the zxid."""
        return f"{self.own}/revision"

    @property
    def spent(self) -> str:
        return f"{self.own}/spent"

    def spent_list(self, ledger_id: int) -> str:
        """Return the path of the list of deleted ledgers' ids that contains this id."""
        return f"{self.spent}/{ledger_id // SPENT_SIZE:012x}"


MARK_DEPTH = 4  # directories between `RecoveryPaths.marks` and a mark
_HEX_DIGITS = re.compile(r"[0-9a-f]{4}")
_VOTE = re.compile(r"V_(-?[0-9]{10})")


class RecoveryPaths(SinglePlaces, frozen=True):
    """Paths of auto-recovery's znodes, below `top`. Source: metadata 2.1 and 8."""

    @property
    def layout(self) -> str:
        return f"{self.top}/LAYOUT"

    @property
    def marks(self) -> str:
        return f"{self.top}/ledgers"

    def mark(self, ledger_id: int) -> str:
        """Return the path of a mark, in a directory of its own whose path is the id in hex."""
        digits = f"{ledger_id:016x}"
        return f"{self.marks}/{digits[:4]}/{digits[4:8]}/{digits[8:12]}/{digits[12:]}/{leaf(ledger_id)}"

    def marked_in(self, directory: str) -> int:
        """Return the ledger whose mark belongs into a directory at the depth of marks."""
        return int(directory.removeprefix(self.marks).replace("/", ""), 16)

    @property
    def locks(self) -> str:
        return f"{self.top}/locks"

    def lock(self, ledger_id: int) -> str:
        return f"{self.locks}/{leaf(ledger_id)}"

    @property
    def vote_prefix(self) -> str:
        return f"{self.election}/V_"

    def vote_number(self, child: str) -> int | None:
        """Return the number of a vote among the children of `election`; None for another child."""
        match = _VOTE.fullmatch(child)
        return None if match is None else int(match[1])


def mark_directories(children: Iterable[str]) -> list[str]:
    """Return the children that lead to marks, in the order of the ids."""
    return sorted(child for child in children if _HEX_DIGITS.fullmatch(child))


def record_name(child: str) -> str:
    """Return the name of the record in a child of `Paths.records`."""
    return child.replace(",", "/")


def parent_of(path: str) -> str:
    """Return the parent's path; empty for a path directly under `/`."""
    return path.rpartition("/")[0]


def generated_number(path: str) -> int | None:
    """Return the sequence number of an id znode; None if the counter has exceeded 31 bits."""
    number = int(path.rpartition("ID-")[2])
    return number if 0 <= number < SHORT_ID_STOP else None


def high_numbers(children: Iterable[str]) -> list[int]:
    """Return the numbers of the HOB directories among the children, ascending."""
    matches = (_HIGH_DIRECTORY.fullmatch(child) for child in children)
    return sorted(int(match[1]) for match in matches if match is not None)


def bookies_among(children: Iterable[str]) -> tuple[BookieId, ...]:
    """Return the bookie ids among the children, sorted; other names are ignored. Source: metadata 13."""
    return tuple(sorted(BookieId(child) for child in children if is_bookie_id(child)))


# -- ledgers -----------------------------------------------------------------------------------------------------------


def ledger_path(root: str, manager: Manager, ledger_id: int) -> str | None:
    """Return a ledger's path; None for an id that cannot have a path in this layout. Source: metadata 3.1."""
    if not 0 <= ledger_id <= LEDGER_ID_MAX:
        return None
    if manager is Manager.FLAT:
        return f"{root}/L{ledger_id:010d}"
    if manager is Manager.LONG or (manager is Manager.HIERARCHICAL and ledger_id >= SHORT_ID_STOP):
        digits = f"{ledger_id:019d}"
        return f"{root}/{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"
    digits = f"{ledger_id:010d}"
    return f"{root}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}" if len(digits) == 10 else None


def ledger_id_of(root: str, path: str) -> int | None:
    """Return the ledger of a path, in any manager's layout; None for another path. Inverse of `ledger_path`."""
    parts = path.removeprefix(root + "/").split("/")
    if len(parts) == 1:
        return int(parts[0][1:]) if _FLAT_LEAF.fullmatch(parts[0]) else None
    if len(parts) not in (SHORT_DEPTH, LONG_DEPTH) or not _SHORT_LEAF.fullmatch(parts[-1]):
        return None
    top = _SHORT_PARENT if len(parts) == SHORT_DEPTH else _LONG_PARENT
    if not top.fullmatch(parts[0]) or not all(_FOUR_DIGITS.fullmatch(part) for part in parts[1:-1]):
        return None
    ledger_id = int("".join(parts[:-1]) + parts[-1][1:])
    return ledger_id if ledger_id <= LEDGER_ID_MAX else None


def is_of_cluster(child: str) -> bool:
    """Report whether a child of ROOT belongs to the cluster, in any manager's layout."""
    patterns = (_SHORT_PARENT, _LONG_PARENT, _FLAT_LEAF)
    is_named = child in (*_NOT_LEDGERS, "underreplication") or child.startswith("ID-")
    return is_named or any(pattern.fullmatch(child) for pattern in patterns)


def tops_among(manager: Manager, children: Sequence[str]) -> list[tuple[str, int]]:
    """Return the children of ROOT that contain ledgers, with the depth of the ledgers' paths, in the order of ids.

    Empty for `flat`, whose ledgers are directly under ROOT.
    """
    tops: list[tuple[str, int]] = []
    if manager in (Manager.LEGACY, Manager.HIERARCHICAL):
        tops += [(child, SHORT_DEPTH) for child in sorted(children) if _SHORT_PARENT.fullmatch(child)]
    if manager in (Manager.LONG, Manager.HIERARCHICAL):
        tops += [(child, LONG_DEPTH) for child in sorted(children) if _LONG_PARENT.fullmatch(child)]
    return tops


def managers_of(children: Iterable[str]) -> list[Manager]:
    """Return the managers whose ledgers may be below ROOT, by its children; empty: there are no ledgers."""
    names = list(children)
    if any(_FLAT_LEAF.fullmatch(name) for name in names):
        return [Manager.FLAT]
    if any(_SHORT_PARENT.fullmatch(name) for name in names):
        has_long = any(_LONG_PARENT.fullmatch(name) for name in names)
        return [Manager.HIERARCHICAL] if has_long else [Manager.HIERARCHICAL, Manager.LEGACY]
    if any(_LONG_PARENT.fullmatch(name) for name in names):
        return [Manager.LONG, Manager.HIERARCHICAL]
    return []


def branches_among(children: Iterable[str]) -> list[str]:
    """Return the children on an intermediate level, in the order of their ids."""
    return sorted(child for child in children if _FOUR_DIGITS.fullmatch(child))


def ledgers_among(root: str, manager: Manager, parent: str, children: Iterable[str]) -> list[int]:
    """Return the ids of the ledgers among the children of a znode, ascending.

    A ledger at a path other than its id's, such as a short path for an id that needs a long one, is ignored.
    """
    paths = {path: ledger_id_of(root, path) for path in (f"{parent}/{child}" for child in children)}
    return sorted(
        ledger_id
        for path, ledger_id in paths.items()
        if ledger_id is not None and path == ledger_path(root, manager, ledger_id)
    )


# -- URIs --------------------------------------------------------------------------------------------------------------

_URI = re.compile(
    r"zk(?P<manager>\+[^:]*)?://(?P<hosts>[^/?#]*)(?P<root>/[^?#]*)?(?:\?(?P<query>[^#]*))?", re.IGNORECASE
)
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")
_PORT_MAX = 65535
_ROOT = re.compile(r"(?:/[^/\x00-\x1f\x7f]+)+")
_FORM = "zk+hierarchical://HOST:2181;HOST:2181/ledgers"


class Place(Struct, frozen=True):
    """A parsed metadata URI. `hosts`: for the client, comma separated. `manager`: None: the one that LAYOUT names."""

    hosts: str
    root: str
    manager: Manager | None
    options: str | None


def parse_uri(uri: str) -> Place:
    """Parse a metadata URI. Raises `ConfigError`. Source: metadata 1."""
    match = _URI.fullmatch(uri.strip())
    if match is None:
        raise ConfigError(f"{uri!r} is not a metadata URI for ZooKeeper: expected {_FORM}")
    hosts = [host.strip() for host in match["hosts"].replace(";", ",").split(",")]
    for host in hosts:
        name = _HOST.fullmatch(host)
        if name is None or int(name["port"] or 0) > _PORT_MAX:
            raise ConfigError(f"{uri!r} names no ZooKeeper server in {host!r}: expected {_FORM}")
    root = match["root"] or ""
    if not root or root == "/":
        raise ConfigError(f"{uri!r}: empty ledger root path; Apache's default is /ledgers: {_FORM}")
    if not _ROOT.fullmatch(root) or any(part in (".", "..") for part in root.split("/")):
        raise ConfigError(f"{uri!r}: {root} is not a ZooKeeper path; it may not end in / or have an empty part")
    return Place(",".join(hosts), root, _manager_of(uri, match["manager"]), _options_of(uri, match["query"]))


def _manager_of(uri: str, word: str | None) -> Manager | None:
    name = (word or "+null").removeprefix("+").lower()
    if name == "null":
        return None
    known = {manager.value: manager for manager in Manager if manager is not Manager.LEGACY}
    if name not in known:
        raise ConfigError(f"{uri!r}: no ledger manager is called {name!r}; known are {', '.join(known)}")
    return known[name]


def _options_of(uri: str, query: str | None) -> str | None:
    if not query:
        return None
    name, _, path = query.partition("=")
    if name != "options" or not path:
        raise ConfigError(f"{uri!r}: after the ? only options=FILE is known, which names a file of credentials")
    return path
