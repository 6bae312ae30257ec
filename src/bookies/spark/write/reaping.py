"""Leftovers of earlier runs of an application, which the sink deletes once in each process."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Hashable

from bookies.errors import BookKeeperError

REAP_TIMEOUT_S = 10.0
logger = logging.getLogger("bookies.spark.write.sink")
_reaped: dict[Hashable, None] = {}  # whose leftovers this process has reaped


async def reap_once(owner: Hashable, leftovers: AsyncIterator[tuple[str, int, str]]) -> None:
    """Log the leftovers as they are deleted: log, ledger, outcome. Best effort, and once for each owner."""
    if owner in _reaped:
        return
    _reaped[owner] = None
    try:
        async with asyncio.timeout(REAP_TIMEOUT_S):
            async for log, ledger_id, outcome in leftovers:
                logger.info(json.dumps({"event": "reaper", "log": log, "ledger": ledger_id, "is": outcome}))
    except (BookKeeperError, TimeoutError) as error:
        logger.warning(json.dumps({"event": "reaper stopped", "error": str(error)}))
