"""ZooKeeper is killed, paused and started again under a cluster: appends continue, and nothing is lost."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
from tests.apache.zookeeper import ZooKeeperServer, zookeeper_server
from tests.conformance.metadata_outages import MetadataOutages, Server
from tests.conformance.turns_outages import TurnsOutages

pytestmark = pytest.mark.apache


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[ZooKeeperServer]:
    folder = tmp_path / "zookeeper"
    folder.mkdir()
    with zookeeper_server(folder) as running:
        yield running


class TestTurns(TurnsOutages):
    scheme = "zk"


class TestZooKeeper(MetadataOutages):
    scheme, product = "zk", "ZooKeeper"

    def uri_of_several(self, server: Server) -> str:
        return super().uri_of_several(server).replace("zk://", "zk+flat://")
