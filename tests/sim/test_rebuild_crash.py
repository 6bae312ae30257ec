"""A crash while index files are built again from the entry logs: at each disk call of the life that does it.

The sweep takes every `BK_SWEEP_STEP`-th disk call, counted from another one each time; 1 is all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Any

import pytest

from bookies.errors import DataUnknown
from bookies.sim.disk import LOSSES, PROCESS_DIES
from bookies.storage.ledger_store import LedgerStore

Body = Callable[..., bytes]
WAYS = (*LOSSES, PROCESS_DIES)
STEP = int(os.environ.get("BK_SWEEP_STEP", "11"))
ALL = range(1, 6)


def damaged(data: bytes, how: str) -> bytes:
    if how == "header":
        return b"\xff" * 40 + data[40:]
    if how == "page":
        return data[:1030] + bytes([data[1030] ^ 0x10]) + data[1031:]
    return data[:1100]  # cut off


def break_index(made: Any, how: str) -> int:
    """Damage the index files of all ledgers but the last; how many."""
    paths = [path for path in made.disk.files() if path.endswith(".idx")][:-1]
    for path in paths:
        if how == "gone":
            made.disk.put(path, b"")
            made.disk.unlink(path)
            made.disk.sync_directory(path.rsplit("/", 1)[0])
        else:
            made.disk.put(path, damaged(made.disk.read_bytes(path), how))
    return len(paths)


@pytest.mark.parametrize("ledgers", [1, 2])
@pytest.mark.parametrize("how", ["gone", "header", "page", "cut off"])
def test_a_crash_while_index_files_are_built_again(machine: Any, body: Body, how: str, ledgers: int) -> None:
    async def before(store: LedgerStore, promises: Any) -> None:
        for first in (0, 40):
            for ledger_id in ALL:
                entries = {entry: body(ledger_id, entry, size=90) for entry in range(first, first + 40)}
                await promises.add(store, ledger_id, entries)
            await store.checkpoint()
        await promises.fence(store, 2)
        await promises.write_lac(store, 3, 70)

    async def during(store: LedgerStore, promises: Any) -> None:
        adding = promises.add(store, 9, {entry: body(9, entry) for entry in range(20)})
        await asyncio.gather(store.repair(), store.checkpoint(), adding)
        await promises.fence(store, 4)
        await store.checkpoint()

    settled: list[bool] = []

    async def after(store: LedgerStore, promises: Any) -> None:
        """A crash may have torn the catalog too, and then nobody knows what else a damaged file had."""
        settled.append(not (await store.repair())["uncertain"])
        if settled[-1]:
            await promises.check(store)
            return
        for (ledger_id, entry_id), expected in promises.acknowledged.items():
            with contextlib.suppress(DataUnknown):
                assert await store.read(ledger_id, entry_id) == expected

    def fresh() -> Any:
        made = machine("rebuild", ledgers=ledgers, entry_log_size_max=1 << 13)
        assert made.live(before)
        assert break_index(made, how) >= len(ALL) - 1
        return made

    first = fresh()
    begin = first.disk.call_count
    assert first.live(during)
    count = first.disk.call_count - begin
    for number in range(1 + count % STEP, count + 1, STEP):
        made = fresh()
        assert not made.live(during, crash_at=number)
        made.crash(WAYS[number % len(WAYS)])
        try:
            if number % 3 == 0:  # and once more while it is done again
                made.live(during, crash_at=10 + number * 7 % 60)
                made.crash(WAYS[number // 3 % len(WAYS)])
            assert made.live(after)
            assert made.live(after)
            assert not made.failures
            assert not made.disk.open_files
        except BaseException as error:
            error.add_note(f"crash at disk call {number} of {count}")
            raise
    assert sum(settled) > 0.9 * len(settled)
    print(f"{count} disk calls")
