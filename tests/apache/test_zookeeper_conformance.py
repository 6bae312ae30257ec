"""What every metadata driver must do, done on a real ZooKeeper: the tests of the conformance suite, as they are."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable, Iterator

import pytest
from kazoo.client import KazooClient
from msgspec.structs import replace
from tests.apache.zookeeper import ZooKeeperServer, zookeeper_server
from tests.conformance import test_metadata as suite
from tests.conformance import test_metadata_recovery as recovery_suite

from bookies.metadata.zookeeper import ZkCluster, ZooKeeperDriver
from bookies.metadata.zookeeper.zk_client import ZooKeeperClient
from bookies.metadata.zookeeper.zk_layout import Manager
from bookies.runtime import aio

pytestmark = pytest.mark.apache
for each in (suite, recovery_suite):
    globals().update({name: value for name, value in vars(each).items() if name.startswith("test_")})

_ROOTS = itertools.count(1)


class RealKind(suite.Kind):
    """A root of its own for each test, empty."""

    def __init__(self, name: str, directory: pathlib.Path, server: ZooKeeperServer) -> None:
        super().__init__(name, directory)
        self._server = server
        self._root = f"/test{next(_ROOTS)}"
        client = KazooClient(hosts=server.address)
        client.start()
        try:
            client.create(self._root)
        finally:
            client.stop()
            client.close()

    def _maker(self, lease_ms: int) -> Callable[[], suite.Driver]:
        runtime = replace(aio.runtime(seed=1))
        return lambda: ZooKeeperDriver(
            f"zk+{self.name}://{self._server.address}{self._root}",
            ZooKeeperClient(self._server.address, lease_ms, runtime),
            runtime,
            ZkCluster(self._root, Manager(self.name)),
            lease_ms=lease_ms,
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with zookeeper_server(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture(params=["hierarchical", "longhierarchical", "flat"])
def kind(request: pytest.FixtureRequest, tmp_path: pathlib.Path, server: ZooKeeperServer) -> RealKind:
    return RealKind(request.param, tmp_path, server)
