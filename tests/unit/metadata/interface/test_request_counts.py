"""Counting what is asked of a metadata store."""

from __future__ import annotations

import asyncio

from bookies.metadata.etcd.etcd_layout import Keys
from bookies.metadata.interface.request_counts import RequestCounts, asking_as
from bookies.metadata.zookeeper.zk_layout import Paths
from bookies.model import BookieId, BookieMode


def test_who_asks_is_inherited_by_tasks() -> None:
    operations = RequestCounts()

    async def work() -> None:
        operations.count("read")
        await asyncio.create_task(inner())

    async def inner() -> None:
        operations.count("read")

    async def main() -> None:
        operations.count("write")
        await asyncio.get_running_loop().create_task(work(), context=asking_as("worker"))
        operations.count("write")
        operations.count("read")

    asyncio.run(main())
    assert operations.counts == {("others", "write"): 2, ("worker", "read"): 2, ("others", "read"): 1}
    assert list(operations.by_name().items()) == [("others: write", 2), ("worker: read", 2), ("others: read", 1)]
    assert operations.total == 5


def test_kinds_of_paths_and_keys() -> None:
    paths, keys = Paths("/ledgers"), Keys("/ledgers")
    bookie = BookieId("b1")
    for place, kind in (
        (paths.recovery.mark(7), "marks"),
        (paths.recovery.lock(7), "locks"),
        (paths.recovery.vote_prefix, "auditorelection"),
        (paths.recovery.switch, "disable"),
        (paths.cookie(bookie), "cookies"),
        (paths.registration(bookie, BookieMode.WRITABLE), "available"),
        (paths.record("a/b"), "records"),
        ("/ledgers/00/0000/L0007", "ledgers"),
    ):
        assert paths.kind(place) == kind, place
    for key, kind in (
        (keys.recovery.mark(7), "marks"),
        (keys.recovery.lock(7), "locks"),
        (keys.cookie(bookie), "cookies"),
        (str(keys.ledger(7)), "ledgers"),
    ):
        assert keys.kind(key) == kind, key
