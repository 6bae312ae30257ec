"""Who waits for a LAC is called once, and only when it moved far enough."""

from __future__ import annotations

import asyncio

from bookies.storage.engine.lac_watchers import LacWatchers


def test_watchers() -> None:
    async def run() -> None:
        watchers, called = LacWatchers(), []
        assert not watchers
        watchers.add(1, 5, lambda: called.append("above 5"))
        watchers.add(1, 8, lambda: called.append("above 8"))
        watchers.add(2, 0, lambda: called.append("another ledger"))
        cancel = watchers.add(1, 5, lambda: called.append("cancelled"))
        cancel()
        cancel()
        watchers.wake(1, 5)
        await asyncio.sleep(0)
        assert called == []
        watchers.wake(1, 6)
        watchers.wake(1, 7)
        await asyncio.sleep(0)
        assert called == ["above 5"]
        watchers.wake(1, None)
        watchers.wake(2, 1)
        watchers.wake(3, 1)
        await asyncio.sleep(0)
        assert called == ["above 5", "above 8", "another ledger"]
        assert not watchers

    asyncio.run(run())
