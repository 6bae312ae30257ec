"""`bk bookie drain` on a real ZooKeeper."""

from __future__ import annotations

import pathlib

import pytest
from tests.apache.zookeeper import zookeeper_server
from tests.live.emptying import drain_killed_and_resumed

pytestmark = pytest.mark.apache


def test_a_drain_is_killed_and_goes_on(tmp_path: pathlib.Path) -> None:
    with zookeeper_server(tmp_path) as server:
        drain_killed_and_resumed(tmp_path, f"zk+hierarchical://{server.address}/ledgers")
