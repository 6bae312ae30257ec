"""`bk bookie drain`, and bookies that return empty, on a real ZooKeeper."""

from __future__ import annotations

import pathlib

import pytest
from tests.apache.zookeeper import zookeeper_server
from tests.live.emptying import drain_killed_and_resumed
from tests.live.ended import stale_writer_is_refused

pytestmark = pytest.mark.apache


def test_a_drain_is_killed_and_goes_on(tmp_path: pathlib.Path) -> None:
    with zookeeper_server(tmp_path) as server:
        drain_killed_and_resumed(tmp_path, f"zk+hierarchical://{server.address}/ledgers")


def test_bookies_are_emptied_behind_a_writer(tmp_path: pathlib.Path) -> None:
    with zookeeper_server(tmp_path) as server:
        stale_writer_is_refused(tmp_path, f"zk+hierarchical://{server.address}/ledgers")
