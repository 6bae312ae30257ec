"""Do something for as long as one is the cluster's auditor. Source: metadata 8.1."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from bookies.metadata.interface import RecoveryStore
from bookies.model import BookieId
from bookies.runtime.tasks import all_of


async def lead(store: RecoveryStore, bookie: BookieId, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Stand for auditor until cancelled. `work` begins whenever one has been elected, and is cancelled when one is
    not any more. Raises what it raises, `MetadataError`; then the vote has been given back."""
    changed = asyncio.Event()
    candidacy = await store.campaign(bookie, changed.set)

    async def until_changed() -> None:
        while candidacy.is_leader:
            changed.clear()
            await changed.wait()
        raise _Deposed

    try:
        while True:
            changed.clear()
            if not candidacy.is_leader:
                await changed.wait()
                continue
            try:
                await all_of((work(), until_changed()))
            except _Deposed:
                continue
            return
    finally:
        await candidacy.resign()


class _Deposed(Exception):
    """Somebody else leads, or nobody knows."""
