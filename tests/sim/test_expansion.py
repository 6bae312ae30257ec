"""A directory more: marks, ids of logs, index files and the catalog when one directory is new and empty.

The sweep crashes at every `BK_SWEEP_STEP`-th disk call of the first life with it, counted from another one each time.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import posixpath
from collections.abc import Callable
from typing import Any

import pytest

from bookies.lab.sim.world.disk import LOSSES, PROCESS_DIES
from bookies.storage.store import LedgerStore

Body = Callable[..., bytes]
STEP = int(os.environ.get("BK_SWEEP_STEP", "17"))
WAYS = (*LOSSES, PROCESS_DIES)
GROWTH: dict[str, dict[str, tuple[str, ...]]] = {
    "ledger": {"ledger_directories": ("/ledgers0", "/more")},
    "index": {"index_directories": ("/ledgers0", "/more")},
    "both": {"ledger_directories": ("/ledgers0", "/l"), "index_directories": ("/ledgers0", "/l", "/more")},
}
SMALL = {"entry_log_size_max": 1 << 15, "journal_size_max": 1 << 15}


@pytest.mark.parametrize(("growth", "stops"), [("ledger", False), ("ledger", True), ("index", False), ("both", True)])
def test_a_crash_anywhere_in_the_first_life_with_more_directories(
    machine: Any, body: Body, growth: str, stops: bool
) -> None:
    async def before(store: LedgerStore, promises: Any) -> None:
        for ledger_id in range(3):
            await promises.add(store, ledger_id, {entry: body(ledger_id, entry, size=1_000) for entry in range(12)})
        await promises.fence(store, 2)
        await store.checkpoint()
        await promises.add(store, 0, {entry: body(0, entry, size=1_000) for entry in range(12, 20)})

    async def after(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, {entry: body(1, entry, size=1_000) for entry in range(12, 30)})
        for ledger_id in range(3, 9):
            await promises.add(store, ledger_id, {entry: body(ledger_id, entry, size=1_000) for entry in range(12)})
        await asyncio.gather(promises.fence(store, 0), promises.write_lac(store, 5, 17))
        await store.checkpoint()

    made = machine("sweep", **SMALL)
    assert made.live(before, stops=stops)
    made.crash(PROCESS_DIES)
    made.config = dataclasses.replace(made.config, **GROWTH[growth])
    start = made.disk.call_count
    victims = made.victims(after, 1 + len(growth) % STEP, STEP)
    count = made.disk.call_count - start
    made.check()
    names = [posixpath.basename(path) for path in made.disk.files("/more/current")]
    if growth == "ledger":
        assert {"lastId", "lastMark"} <= set(names)
    else:
        assert [name for name in names if name.endswith(".idx")]
    for number, crashed in victims:
        victim = crashed()
        victim.crash(WAYS[number % len(WAYS)])
        try:
            victim.check()
        except BaseException as error:
            error.add_note(f"crash at disk call {number} of {count}, {WAYS[number % len(WAYS)]}")
            raise
    assert count > 100
