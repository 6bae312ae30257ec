"""One behaviour of `Tree` on ZooKeeper and on the records of an embedded store: transactions, versions, watches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.distributedlog import ROOT, Place, in_namespace
from tests.fakes.examples import scaled
from tests.fakes.zookeeper import FakeZooKeeper, Server

from bookies.distributedlog.formats.log_names import STREAM
from bookies.distributedlog.store import RecordTree, Tree
from bookies.errors import MetadataCorrupt, NotSupported
from bookies.metadata.zookeeper.zookeeper_port import (
    Acl,
    Check,
    Create,
    Delete,
    NodeMissing,
    Operation,
    Refusal,
    SetData,
    Stat,
)

LOG = f"{ROOT}/a_b"
PATHS = [LOG, f"{LOG}/{STREAM}", f"{LOG}/{STREAM}/ledgers", f"{LOG}/{STREAM}/ledgers/x", f"{LOG}/{STREAM}/lock"]
VERSIONS = st.sampled_from([-1, -1, 0, 1])
OPERATIONS = st.one_of(
    st.builds(lambda path, data: Create(path, data, Acl.OPEN), st.sampled_from(PATHS), st.binary(max_size=3)),
    st.builds(SetData, st.sampled_from(PATHS), st.binary(max_size=3), VERSIONS),
    st.builds(Delete, st.sampled_from(PATHS), VERSIONS),
    st.builds(Check, st.sampled_from(PATHS), VERSIONS),
)


async def outcome(tree: Tree, operations: Sequence[Operation]) -> object:
    try:
        results = await tree.multi(operations)
    except Refusal as refusal:
        return type(refusal), refusal.path, refusal.index
    return [result.version if isinstance(result, Stat) else result for result in results]


async def content(tree: Tree) -> dict[str, tuple[bytes, int, tuple[str, ...]]]:
    nodes = {}
    for path in PATHS:
        try:
            data, stat = await tree.get(path)
            names, _ = await tree.children(path)
        except NodeMissing:
            assert await tree.exists(path) is None
            continue
        nodes[path] = data, stat.version, tuple(names)
    return nodes


@given(st.lists(st.lists(OPERATIONS, min_size=1, max_size=4), max_size=12))
@scaled(60)
def test_transactions_have_the_same_outcome(transactions: list[list[Operation]]) -> None:
    async def act(place: Place) -> None:
        client = await place.world.client()
        records, zookeeper = RecordTree(client._driver, ROOT[1:]), FakeZooKeeper(Server(ROOT))
        await zookeeper.open()
        for operations in transactions:
            assert await outcome(records, operations) == await outcome(zookeeper, operations)
            assert await content(records) == await content(zookeeper)
            names, _ = await records.children(ROOT)
            assert names == (["a_b"] if LOG in await content(zookeeper) else [])

    in_namespace(act, has_zookeeper=False, bookies=1)


@pytest.mark.parametrize("has_zookeeper", [True, False], ids=["zookeeper", "embedded"])
def test_a_watch_is_called_once_after_a_change(has_zookeeper: bool) -> None:
    async def act(place: Place) -> None:
        namespace = await place.namespace()
        log, tree = namespace.log("orders"), namespace._tree
        await log.create()
        calls: list[int] = []
        path = f"{ROOT}/orders/{STREAM}/ledgers"
        await tree.children(path, watch=lambda: calls.append(1))
        unwatched = lambda: calls.append(100)  # noqa: E731
        await tree.children(path, watch=unwatched)
        tree.unwatch(unwatched)
        await tree.multi([Create(f"{path}/logrecs_1", b"x", Acl.OPEN)])
        await asyncio.sleep(1)
        await tree.multi([Delete(f"{path}/logrecs_1")])
        await asyncio.sleep(1)
        assert calls == [1]

    in_namespace(act, has_zookeeper=has_zookeeper)


def test_records_that_are_no_logs_are_refused() -> None:
    async def act(place: Place) -> None:
        client = await place.world.client()
        tree = RecordTree(client._driver, "dl")
        await client._driver.create_record("distributedlog/dl/bad", b"[]")
        with pytest.raises(MetadataCorrupt, match="distributedlog/dl/bad"):
            await tree.get("/dl/bad")
        await client._driver.create_record("distributedlog/dl/later", b'{"format":2}')
        with pytest.raises(NotSupported, match="format 2"):
            await tree.get("/dl/later")
        with pytest.raises(NotSupported, match="lock=False"):
            await tree.create("/dl/x", b"", Acl.OPEN, is_ephemeral=True)

    in_namespace(act, has_zookeeper=False, bookies=1)
