"""Metadata URIs: what each names, and what is said about the others."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bookies.errors import ConfigError, NotSupported
from bookies.metadata.embedded import EmbeddedDriver
from bookies.metadata.memory import MemoryDriver
from bookies.metadata.uri import connect
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
    with pytest.raises(ConfigError, match=r"expected file:DIR, memory: or memory:NAME"):
        connect("data", RUNTIME)


@pytest.mark.parametrize(
    "uri", ["zk://zk1:2181/ledgers", "zk+hierarchical://a;b/ledgers", "etcd://e:2379/x", "ZK://a/b"]
)
def test_stores_that_are_not_there_yet(uri: str) -> None:
    with pytest.raises(NotSupported, match=r"has no (ZooKeeper|etcd) driver; use file:DIR"):
        connect(uri, RUNTIME)


def test_sqlite_is_imported_only_for_a_file() -> None:
    program = "import sys, bookies.metadata.uri, bookies.metadata.embedded; sys.exit('sqlite3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
