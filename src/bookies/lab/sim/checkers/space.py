"""Checker of disk space that bookies fail to release after the healing.

    space   after a few collections and compactions a bookie has no deleted ledger, every entry log is registered and
            as full as compaction must leave it, and no interrupted compaction has left a file

Source: storage 7.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable

from bookies.lab.sim.world import SimCluster
from bookies.lab.sim.world.cluster import SimBookie
from bookies.storage.entry_log import entry_log_format as layout
from bookies.storage.gc.collection_policy import Compaction

ROUNDS = 3  # the first finds a deleted ledger, the next deletes its entries, then its entry logs are deleted


async def check_space(cluster: SimCluster, report: Callable[[str, str], None]) -> None:
    """Let every bookie collect all it can, and check the remaining files. `report(promise, text)`: excess data."""
    for bookie in cluster.bookies.values():
        assert bookie.participant is not None
        await bookie.participant.create_task(_check_bookie(cluster, bookie, report), name="check space")


async def _check_bookie(cluster: SimCluster, bookie: SimBookie, report: Callable[[str, str], None]) -> None:
    assert bookie.server is not None
    store = bookie.server.store
    collector = store.collector
    assert collector is not None
    settings = bookie.config
    for _ in range(ROUNDS):
        await asyncio.sleep((settings.gc_quarantine_ms + settings.gc_surplus_ms) / 1000)
        await store.checkpoint()
        await collector.collect(is_forced=True, is_awaited=True)
    await collector.compact(Compaction.MAJOR, is_awaited=True)
    name = bookie.name
    for ledger_id in sorted(store.ledger_ids()):
        if cluster.store.record(ledger_id) is None:
            report("space", f"{name} keeps ledger {ledger_id}, which was deleted")
    parts = store._open()
    known = collector._logs.known
    for path, data in bookie.disk.files().items():
        file_name = posixpath.basename(path)
        file_id, directory = layout.parse_file_name(file_name), posixpath.dirname(path)
        is_log = directory in parts.logs.paths
        log_id = parts.logs.id_in(directory, file_id) if is_log and file_id is not None else None
        if layout.parse_compacted_name(file_name) is not None:
            report("space", f"{name} has left {file_name} behind")
        elif log_id is not None and parts.checkpointer.log.is_covered(log_id) and log_id not in known:
            reason = collector._logs.set_aside.get(log_id, "nobody knows of it")
            report("space", f"{name} keeps entry log {file_name}, {len(data):,} bytes: {reason}")
    for usage in known.values():
        if usage.share * 100 < settings.major_compaction_threshold:
            report("space", f"{name} wants {usage.remaining:,} of {usage.total:,} bytes in {usage.path}, and keeps it")
