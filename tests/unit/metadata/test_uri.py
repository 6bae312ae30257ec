"""Metadata URIs: what each names, and what is said about the others."""

from __future__ import annotations

import importlib.util
import pathlib
import subprocess
import sys

import pytest

from bookies.errors import ConfigError
from bookies.metadata.embedded import EmbeddedDriver, MemoryDriver
from bookies.metadata.etcd import EtcdDriver
from bookies.metadata.uri import connect
from bookies.metadata.zookeeper import ZooKeeperDriver
from bookies.runtime import aio

RUNTIME = aio.runtime(seed=1)


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:data", "data/metadata.db"),
        ("file:./data", "./data/metadata.db"),
        ("file:/var/lib/bk", "/var/lib/bk/metadata.db"),
        ("file:///var/lib/bk", "/var/lib/bk/metadata.db"),
        ("FILE:with space/ü", "with space/ü/metadata.db"),
        (" file:data ", "data/metadata.db"),
    ],
)
def test_files(uri: str, path: str) -> None:
    driver = connect(uri, RUNTIME, lease_ms=2000)
    assert isinstance(driver, EmbeddedDriver)
    assert driver.database.path == path
    assert driver.lease_ms == 2000
    assert connect(driver.uri, RUNTIME).uri == driver.uri


def test_memory() -> None:
    first, second, named = (connect(uri, RUNTIME) for uri in ("memory:", "memory:", "memory:uri-test"))
    assert isinstance(first, MemoryDriver)
    assert isinstance(second, MemoryDriver)
    assert isinstance(named, MemoryDriver)
    assert first.store is not second.store
    again = connect("memory:uri-test", RUNTIME)
    assert isinstance(again, MemoryDriver)
    assert named.store is again.store
    assert named.uri == "memory:uri-test"


@pytest.mark.parametrize(
    "uri",
    ["", "data", "/data", "file:", "file://host/data", "file:a\0b", "memory", "memory:a/b", "http://x", "C:\\data"],
)
def test_what_is_no_metadata_uri(uri: str) -> None:
    with pytest.raises(ConfigError) as raised:
        connect(uri, RUNTIME)
    assert repr(uri) in str(raised.value)


def test_the_error_names_the_forms() -> None:
    with pytest.raises(
        ConfigError, match=r"expected file:DIR, memory:, memory:NAME, zk://HOST:2181/ledgers or etcd://HOST:2379/SCOPE"
    ):
        connect("data", RUNTIME)


def test_zookeeper(tmp_path: pathlib.Path) -> None:
    driver = connect(" zk+flat://a:1;b:2/x ", RUNTIME, lease_ms=4000)
    assert isinstance(driver, ZooKeeperDriver)
    assert driver.uri == "zk+flat://a:1;b:2/x"
    assert driver.lease_ms == 4000
    assert driver.zookeeper.hosts == "a:1,b:2"
    with pytest.raises(ConfigError, match="no ledger manager is called 'x'"):
        connect("zk+x://a/b", RUNTIME)
    with pytest.raises(ConfigError, match=r"cannot be read from /none/z.toml"):
        connect("zk://a/b?options=/none/z.toml", RUNTIME)


def test_what_has_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "grpc" else found(name))
    with pytest.raises(ConfigError, match=r"etcd://a/b is in etcd; .* pip install 'bookies\[etcd\]'"):
        connect("etcd://a/b", RUNTIME)


def test_etcd() -> None:
    driver = connect(" ETCD+hierarchical://a;[::1]:1,c:2/x/y ", RUNTIME, lease_ms=4000)
    assert isinstance(driver, EtcdDriver)
    assert driver.uri == "ETCD+hierarchical://a;[::1]:1,c:2/x/y"
    assert driver.lease_ms == 4000
    assert driver.etcd.hosts == "a:2379,[::1]:1,c:2"
    with pytest.raises(ConfigError, match="has no scope"):
        connect("etcd://a", RUNTIME)
    with pytest.raises(ConfigError, match=r"cannot be read from /none/e.toml"):
        connect("etcd://a/b?options=/none/e.toml", RUNTIME)


@pytest.mark.parametrize(("uri", "library"), [("zk://a/b", "gssapi"), ("etcd://a/b", "grpc")])
def test_libraries_are_imported_only_when_they_are_used(uri: str, library: str) -> None:
    program = (
        "import sys\nfrom bookies.metadata.uri import connect\nfrom bookies.runtime import aio\n"
        f"connect('{uri}', aio.runtime(seed=1))\nsys.exit('{library}' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_sqlite_is_imported_only_for_a_file() -> None:
    program = "import sys, bookies.metadata.uri, bookies.metadata.embedded.embedded; sys.exit('sqlite3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
