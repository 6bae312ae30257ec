"""What every metadata driver must do, done on a real etcd: the tests of the conformance suite, as they are."""

from __future__ import annotations

import asyncio
import itertools
import pathlib
from collections.abc import Callable, Iterator

import pytest
from tests.conformance import test_metadata as suite
from tests.conformance import test_metadata_recovery as recovery_suite
from tests.etcd.server import EtcdServer, etcd_server

from bookies.metadata.etcd import EtcdDriver
from bookies.metadata.etcd.etcd_port import Put
from bookies.metadata.etcd.grpc_etcd import GrpcEtcd
from bookies.runtime import aio

pytestmark = pytest.mark.etcd
for each in (suite, recovery_suite):
    globals().update({name: value for name, value in vars(each).items() if name.startswith("test_")})

_SCOPES = itertools.count(1)


class RealKind(suite.Kind):
    """A scope of its own for each test, empty."""

    def __init__(self, directory: pathlib.Path, server: EtcdServer) -> None:
        super().__init__("etcd", directory)
        self._server = server
        self._scope = f"/test{next(_SCOPES)}"
        asyncio.run(self._make_scope())

    async def _make_scope(self) -> None:
        client = GrpcEtcd([self._server.address], 10_000)
        await client.open()
        await client.transact((), [Put(self._scope, b"")])
        await client.close()

    def _maker(self, lease_ms: int) -> Callable[[], suite.Driver]:
        runtime = aio.runtime(seed=1)
        uri = f"etcd://{self._server.address}{self._scope}"
        return lambda: EtcdDriver(
            uri, GrpcEtcd([self._server.address], max(lease_ms, 5000)), runtime, self._scope, lease_ms=lease_ms
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with etcd_server(tmp_path_factory.mktemp("etcd")) as running:
        yield running


@pytest.fixture
def kind(tmp_path: pathlib.Path, server: EtcdServer) -> RealKind:
    return RealKind(tmp_path, server)
