"""Names of logs, URIs of namespaces, and the paths of a log's znodes. Source: distributedlog 2.1, 2.3."""

from __future__ import annotations

import re

from msgspec import Struct

from bookies.errors import ConfigError, InvalidArgument, MetadataCorrupt

SCHEMES = ("distributedlog", "distributedlog-bk")
DEFAULT_NAME = "default"  # of a namespace without ZooKeeper
STREAM = "<default>"
LAYOUT_VERSION = b"\xff\xff\xff\xff"
_REFUSED = re.compile("[\0 <>\u0001-\u001e\u0080-\u009e\ud801-\uf8fe\ufff1-\ufffe\U00010000-\U0010ffff]")


class NamespacePlace(Struct, frozen=True):
    """The place of a namespace in ZooKeeper. `hosts`: host:port,host:port. `path`: its root."""

    hosts: str
    path: str


def parse_namespace_uri(uri: str) -> NamespacePlace:
    """Return the place that `distributedlog://HOST:2181,HOST:2181/PATH` names. Raises `ConfigError`."""
    scheme, separator, rest = uri.strip().partition("://")
    hosts, slash, path = rest.partition("/")
    parts = path.rstrip("/").split("/")
    if scheme not in SCHEMES or not separator or not hosts or not slash or not all(parts):
        raise ConfigError(f"{uri!r} is not a namespace: expected distributedlog://HOST:2181/PATH")
    return NamespacePlace(hosts.replace(";", ","), "/" + "/".join(parts))


def is_namespace(uri: str) -> bool:
    """Report whether a URI names a namespace, and not only a metadata store."""
    return uri.partition(":")[0] in SCHEMES or "#" in uri


def check_name(name: str) -> str:
    """Return the name of a log without a leading slash. Raises `InvalidArgument`."""
    if not isinstance(name, str):
        raise InvalidArgument(f"{name!r} is not the name of a log: must be text")
    short = name.removeprefix("/")
    reason = None
    if not short or any(part in ("", ".", "..") for part in short.split("/")):
        reason = "it has an empty part, or one of dots"
    elif is_reserved(short):
        reason = "names that begin with . or < are reserved"
    elif match := _REFUSED.search(short):
        reason = f"DistributedLog refuses {match.group()!r}"
    if reason is not None:
        raise InvalidArgument(f"{name!r} is not the name of a log: {reason}")
    return short


def is_reserved(name: str) -> bool:
    """Report whether a child of a namespace is no log."""
    return name.startswith((".", "<"))


def parse_number(data: bytes, path: str) -> int:
    """Return the decimal number in a znode. Raises `MetadataCorrupt`."""
    if not re.fullmatch(rb"-?\d{1,19}", data) or not -1 << 63 <= int(data) < 1 << 63:
        raise MetadataCorrupt(f"{path} holds {data[:40]!r}, expected a number")
    return int(data)


class LogPaths:
    """The paths of one log's znodes."""

    def __init__(self, namespace: str, name: str) -> None:
        self.parent = f"{namespace}/{name}"
        self.root = f"{self.parent}/{STREAM}"
        self.segments = f"{self.root}/ledgers"
        self.max_txid = f"{self.root}/maxtxid"
        self.version = f"{self.root}/version"
        self.lock = f"{self.root}/lock"
        self.read_lock = f"{self.root}/readLock"
        self.allocation = f"{self.root}/allocation"
        self.subscribers = f"{self.root}/subscribers"
        self.marks = f"{self.root}/transactions"  # of Spark's sink; Java ignores them

    def segment(self, name: str) -> str:
        return f"{self.segments}/{name}"

    def subscriber(self, name: str) -> str:
        return f"{self.subscribers}/{name}"

    def contents(self) -> tuple[tuple[str, bytes], ...]:
        """Return the znodes of a new log with their data, parents first."""
        return (
            (self.parent, b""),
            (self.root, b""),
            (self.max_txid, b"0"),
            (self.version, LAYOUT_VERSION),
            (self.lock, b""),
            (self.read_lock, b""),
            (self.segments, b"0"),
            (self.allocation, b""),
        )
