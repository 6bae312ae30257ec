"""The ZooKeeper port on kazoo, as far as it goes without a server; with one: tests/apache."""

from __future__ import annotations

import asyncio
import logging
import pathlib
import socket
import threading

import pytest
from tests.fakes.certificates import Authority

from bookies.errors import ClientClosed, ConfigError, MetadataError
from bookies.metadata.zookeeper.kazoo_client import (
    KazooZooKeeper,
    Limit,
    check_available,
    is_available,
)
from bookies.metadata.zookeeper.zookeeper_port import Credentials

pytestmark = pytest.mark.skipif(not is_available(), reason="needs the extra zookeeper")


def test_nobody_there() -> None:
    """A port that nobody listens at: an error in time, and no thread stays."""

    async def main(port: int) -> None:
        zookeeper = KazooZooKeeper(f"127.0.0.1:{port}", 300)
        with pytest.raises(MetadataError, match=r"no ZooKeeper server at 127.0.0.1:\d+ has answered for 0.3 s"):
            await zookeeper.open()
        assert zookeeper.session_id is None
        with pytest.raises(ClientClosed):
            await zookeeper.get("/x")
        await zookeeper.close()

    before = threading.active_count()
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        asyncio.run(main(taken.getsockname()[1]))
    assert threading.active_count() <= before + 1  # asyncio's own, which closed it


def test_opening_can_be_cancelled() -> None:
    async def main(port: int) -> None:
        zookeeper = KazooZooKeeper(f"127.0.0.1:{port}", 5000)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await zookeeper.open()

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        asyncio.run(main(taken.getsockname()[1]))


def test_a_watch_that_is_taken_back_is_not_called_and_the_others_are_once() -> None:
    zookeeper = KazooZooKeeper("127.0.0.1:1", 300)
    called: list[str] = []
    watches = {name: (lambda name=name: called.append(name)) for name in ("a", "b", "c")}
    for path in ("/x", "/y"):
        for name, watch in watches.items():
            if (path, name) != ("/y", "b"):
                assert zookeeper._watcher(True, path, watch) is not None
    zookeeper.unwatch(watches["a"])
    zookeeper.unwatch(watches["a"])
    zookeeper._fire((True, "/x"))
    zookeeper._fire((True, "/x"))
    assert called == ["b", "c"]
    zookeeper._fire_all()
    assert called == ["b", "c", "c"]
    assert not zookeeper._watches
    assert not zookeeper._watched


def test_files_of_certificates_that_cannot_be_used(tmp_path: pathlib.Path) -> None:
    """Said at once, and not that no server answers."""
    authority = Authority(tmp_path)
    one, other = authority.issue("one"), authority.issue("other")
    (tmp_path / "garbage").write_text("garbage")
    check_available("zk://a/b", Credentials(is_tls=True, authority=authority.path))
    good = Credentials(is_tls=True, certificate=one.certificate, key=one.key)
    check_available("zk://a/b", good)
    for given, sentence in (
        (Credentials(is_tls=True, authority=str(tmp_path / "none")), "none cannot be loaded: .*No such file"),
        (Credentials(is_tls=True, authority=str(tmp_path / "garbage")), "garbage cannot be loaded"),
        (Credentials(is_tls=True, certificate=one.certificate, key=other.key), "key values mismatch"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            check_available("zk://a/b", given)


def test_an_outage_does_not_fill_the_log() -> None:
    limit, shown = Limit(), []
    for second in range(200):
        record = logging.LogRecord("kazoo.client", logging.WARNING, "", 0, "Connection dropped: %s", ("refused",), None)
        record.created = 1_000_000.0 + second / 2
        if limit.filter(record):
            shown.append(record.getMessage())
    assert len(shown) == 10
    assert shown[0] == "Connection dropped: refused"
    assert shown[5] == "Connection dropped: refused (115 lines left out)"
    record.created = 500.0  # The clock was set back.
    assert limit.filter(record)
