"""Namespaces: names, creation, listing, renaming, deletion, bindings, URIs."""

from __future__ import annotations

import asyncio
import pathlib

import pytest
from tests.fakes.distributedlog import ROOT, Place, in_namespace
from tests.fakes.zookeeper import FakeZooKeeper, Server

import bookies
from bookies.distributedlog import open_namespace
from bookies.distributedlog.formats.binding import Binding
from bookies.distributedlog.namespace import binding_of, write_binding
from bookies.errors import ConfigError, LogExists, LogInUse, LogNotFound, MetadataError, NotSupported

STORES = pytest.mark.parametrize("has_zookeeper", [True, False], ids=["zookeeper", "embedded"])


@STORES
def test_logs_are_created_listed_and_deleted(has_zookeeper: bool) -> None:
    async def act(place: Place) -> None:
        namespace = await place.namespace()
        for name in ("orders", "web/shop", "web/blog", "a_b~c"):
            await namespace.log(name).create()
            await namespace.log(name).create(exist_ok=True)
            with pytest.raises(LogExists):
                await namespace.log(name).create()
        assert await namespace.logs() == ["a_b~c", "orders", "web"]
        assert await namespace.logs("web") == ["web/blog", "web/shop"]
        assert await namespace.logs("none") == []
        log = namespace.log("web/shop")
        async with log.lead() as writer:
            await writer.append(b"x")
        await log.move_cursor("billing", (await log.segments())[0].last_dlsn.next)
        await log.delete()
        await log.delete()
        assert not await log.exists()
        assert await namespace.logs("web") == ["web/blog"]
        assert [record async for record in namespace.client.ledgers()] == []
        with pytest.raises(LogNotFound):
            await log.segments()

    in_namespace(act, has_zookeeper=has_zookeeper)


@STORES
def test_deletion_stops_a_writer(has_zookeeper: bool) -> None:
    async def act(place: Place) -> None:
        namespace = await place.namespace()
        log = namespace.log("orders")
        writer = await log.lead(lock=False)
        await writer.append(b"x")
        await log.delete()
        with pytest.raises(bookies.BookKeeperError):
            await writer.append(b"y")
        await writer.abandon()
        assert [record async for record in namespace.client.ledgers()] == []

    in_namespace(act, has_zookeeper=has_zookeeper)


@STORES
def test_a_log_is_renamed_with_its_records(has_zookeeper: bool) -> None:
    async def act(place: Place) -> None:
        namespace = await place.namespace()
        log = namespace.log("old")
        async with log.lead() as writer:
            await writer.append(b"x", txid=7)
        await namespace.log("taken").create()
        with pytest.raises(LogExists):
            await namespace.rename("old", "taken")
        with pytest.raises(LogNotFound):
            await namespace.rename("missing", "new")
        await namespace.rename("old", "deep/new")
        renamed = namespace.log("deep/new")
        assert not await log.exists()
        last = await renamed.last()
        assert last is not None
        assert (last.payload, last.txid) == (b"x", 7)
        async with renamed.lead() as writer:
            await writer.append(b"y")
        assert await renamed.count() == 2

    in_namespace(act, has_zookeeper=has_zookeeper)


def test_a_log_with_a_writer_is_not_renamed() -> None:
    async def act(place: Place) -> None:
        namespace = await place.namespace()
        async with namespace.log("old").lead():
            with pytest.raises(LogInUse, match="end them first"):
                await namespace.rename("old", "new")
        await namespace.rename("old", "new")
        assert await namespace.logs() == ["new"]

    in_namespace(act)


def test_the_nearest_binding_above_applies() -> None:
    async def main() -> None:
        zookeeper = FakeZooKeeper(Server())
        await zookeeper.open()
        binding = Binding("zk:2181", "/ledgers")
        await write_binding(zookeeper, "/deep/logs", binding)
        await write_binding(zookeeper, "/deep/logs", binding)
        assert await binding_of(zookeeper, "/deep/logs") == await binding_of(zookeeper, "/deep/logs/a/b") == binding
        with pytest.raises(LogNotFound, match="is not a namespace"):
            await binding_of(zookeeper, "/deep")
        await write_binding(zookeeper, "/federated", Binding("zk:2181", "/ledgers", is_federated=True))
        with pytest.raises(NotSupported, match="federated"):
            await binding_of(zookeeper, "/federated")

    asyncio.run(main())


def test_the_first_number_of_a_segment_comes_from_the_binding() -> None:
    async def act(place: Place) -> None:
        namespace = await place.namespace()
        namespace.binding = Binding("zk:2181", "/ledgers", first_lssn=5)
        log = namespace.log("orders")
        async with log.lead() as writer:
            assert (await writer.append(b"x")).segment == 5
        assert place.znodes()[f"{ROOT}/orders/<default>/ledgers"] == b"5"

    in_namespace(act)


@pytest.mark.parametrize("uri", ["zk://host:2181/logs", "memory:x#a b", "distributedlog://host"])
def test_other_uris_are_refused(uri: str) -> None:
    with pytest.raises(ConfigError):
        open_namespace(uri)


def test_a_directory_without_a_cluster_is_no_namespace(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        with pytest.raises(MetadataError):
            await open_namespace(f"file:{tmp_path}")

    asyncio.run(main())
