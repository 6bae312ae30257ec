"""Metadata URIs: the text that names a cluster's metadata store.

`memory:` is a private store, `memory:NAME` a store that all users of that name in this process share, `file:DIR` the
embedded store in a directory, `zk+hierarchical://HOST:2181;HOST:2181/ledgers` a cluster in ZooKeeper, and
`etcd://HOST:2379;HOST:2379/SCOPE` one in etcd, both in Apache's layout. Source: metadata 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from bookies.errors import ConfigError
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.embedded.memory import MemoryStore, shared_store
from bookies.metadata.interface import MetadataDriver
from bookies.runtime.ports import KerberosLogin, Runtime

FORMS = "file:DIR, memory:, memory:NAME, zk://HOST:2181/ledgers or etcd://HOST:2379/SCOPE"
PASSWORD = re.compile(r"(?<=://)[^/\s]*(?=@)")  # with the name
LEASE_MS = 10_000  # a registration ends if it is not renewed for this time


def without_password(uri: str) -> str:
    """Return a URI for display. Names and passwords in it have no effect: `options=FILE` names them."""
    return PASSWORD.sub("***", uri)


def connect(uri: str, runtime: Runtime, *, lease_ms: int = LEASE_MS, may_create: bool = True) -> MetadataDriver:
    """Return a driver for the store that the URI names, not opened yet.

    `lease_ms`: time that registrations outlive a process that dies. `may_create`: opening creates a missing store. Only
    a process that begins a cluster sets it: for others, an error reveals a wrong URI.
    Raises `ConfigError` for an invalid URI, and for a store whose client library is not installed.
    """
    uri = without_password(uri)  # no store accepts a URI with one, so only the error has it
    scheme, colon, rest = uri.strip().partition(":")
    driver = scheme.lower().split("+")[0]
    connector = _REMOTE.get(driver) or _CONNECTORS.get(scheme.lower())
    if not colon or connector is None:
        raise ConfigError(f"{uri!r} is not a metadata URI: expected {FORMS}")
    return connector(uri, rest, runtime, lease_ms, may_create)


def _connect_memory(uri: str, name: str, runtime: Runtime, lease_ms: int, may_create: bool) -> MetadataDriver:
    if not re.fullmatch(r"[A-Za-z0-9._-]*", name):
        raise ConfigError(f"{uri!r}: the name of a memory store may have only letters, digits, '-', '.' and '_'")
    return MemoryDriver(shared_store(name) if name else MemoryStore(), runtime)


def _connect_file(uri: str, path: str, runtime: Runtime, lease_ms: int, may_create: bool) -> MetadataDriver:
    # Imported here, so that programs with another store, or none, do not load a database library.
    from bookies.metadata.embedded import EmbeddedDriver

    if path.startswith("//"):
        if not path.startswith("///"):
            raise ConfigError(f"{uri!r} names a host: write file:DIR, or file:///DIR for an absolute path")
        path = path[2:]
    if not path or "\0" in path:
        raise ConfigError(f"{uri!r} names no directory: write file:DIR")
    return EmbeddedDriver(path, runtime, lease_ms=lease_ms, may_create=may_create)


def _connect_zookeeper(uri: str, rest: str, runtime: Runtime, lease_ms: int, may_create: bool) -> MetadataDriver:
    from bookies.metadata.zookeeper import ZkCluster, ZooKeeperDriver
    from bookies.metadata.zookeeper.zk_client import ZooKeeperClient
    from bookies.metadata.zookeeper.zk_layout import parse_uri
    from bookies.metadata.zookeeper.zk_options import read_options

    place = parse_uri(uri)
    credentials = read_options(runtime.disk, place.options)
    if isinstance(credentials.sasl, KerberosLogin):
        runtime.kerberos()  # Its library may be missing.
    return ZooKeeperDriver(
        uri.strip(),
        ZooKeeperClient(place.hosts, lease_ms, runtime, credentials),
        runtime,
        ZkCluster(place.root, place.manager, may_create, credentials.is_secure),
        lease_ms=lease_ms,
    )


def _connect_etcd(uri: str, rest: str, runtime: Runtime, lease_ms: int, may_create: bool) -> MetadataDriver:
    from bookies.metadata.etcd import EtcdDriver
    from bookies.metadata.etcd.etcd_layout import parse_uri
    from bookies.metadata.etcd.etcd_options import read_options
    from bookies.metadata.etcd.grpc_etcd import GrpcEtcd, check_available

    place = parse_uri(uri)
    credentials = read_options(runtime.disk, place.options)
    check_available(uri)
    etcd = GrpcEtcd(place.hosts, lease_ms, credentials)
    return EtcdDriver(uri.strip(), etcd, runtime, place.scope, lease_ms=lease_ms, may_create=may_create)


_REMOTE = {"zk": _connect_zookeeper, "etcd": _connect_etcd}  # by the part of the scheme before the +
_CONNECTORS: dict[str, Callable[[str, str, Runtime, int, bool], MetadataDriver]] = {
    "memory": _connect_memory,
    "file": _connect_file,
}
