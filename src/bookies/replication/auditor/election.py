"""Election of the cluster's auditor: work runs while this process is elected. Source: metadata 8.1."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from bookies.metadata.interface import RecoveryStore
from bookies.model import BookieId
from bookies.runtime.tasks import all_of


async def lead(store: RecoveryStore, bookie: BookieId, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Campaign for auditor until cancelled; run `work` while elected, and cancel it when the election is lost.

    Raises the errors of `work`, and `MetadataError`. The candidacy is resigned at the end in every case.
    """
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
    """Another process leads, or the leader is unknown."""
