"""The loop that changes a log's list: what it reads meanwhile is not the basis of a change in progress."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from tests.fakes.world import World, in_world

from bookies.client.base.segments import LOGS
from bookies.client.write.manifest import ManifestLoop
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.interface.driver import Step
from bookies.protocol.log import Manifest
from bookies.protocol.log.log_model import parse_manifest


@in_world()
async def test_a_refresh_during_a_guarded_swap_loses_no_change_of_another_process(world: World) -> None:
    client = await world.client()
    await client.log("orders").create()
    runtime = world.runtime("test")
    driver = MemoryDriver(world.store, runtime)
    await driver.open()
    own, other = (ManifestLoop(runtime, driver, "orders") for _ in range(2))
    await own.refresh()
    await other.refresh()
    calls = []

    async def guard(manifest: Manifest) -> Sequence[Step]:
        calls.append(manifest.epoch)
        if len(calls) == 1:  # Another process takes over, and a recovery of this one reads the list.
            await other.update(lambda now: replace(now, epoch=now.epoch + 1) if now.epoch == 0 else None)
            await own.refresh()
        return []

    changed = await own.update(lambda now: replace(now, rows_truncated=7) if now.rows_truncated == 0 else None, guard)
    data, version = await driver.read_record(LOGS + "orders")
    stored = parse_manifest("orders", data)
    assert (stored.epoch, stored.rows_truncated, calls) == (1, 7, [0, 1])
    assert (changed.epoch, own.version) == (1, version)
    await driver.close()
