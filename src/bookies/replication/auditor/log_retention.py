"""Retention of all logs: the elected auditor removes what their limits allow, once in an interval.

A log with another problem does not delay the others. Two auditors at a time do no harm: see `client/log/retaining.py`.
"""

from __future__ import annotations

import asyncio

from bookies.errors import BookKeeperError, LogNotFound
from bookies.protocol.pacing import RateLimit
from bookies.replication.base.task_parts import TaskParts
from bookies.runtime.throttle import throttle


async def keep_retention(parts: TaskParts) -> None:
    """Apply the limits of all logs again and again, until cancelled. Raises `MetadataError`."""
    interval_s = parts.config.log_retention_interval_s
    rate = RateLimit(parts.config.audit_metadata_rate)
    while interval_s:
        await parts.switch.wait_on()
        for name in await parts.client.logs():
            await throttle(rate, 1)
            await _apply(parts, name)
        await asyncio.sleep(interval_s)


async def _apply(parts: TaskParts, name: str) -> None:
    try:
        removals = await parts.client.log(name).apply_retention()
    except LogNotFound:
        return  # It was deleted meanwhile.
    except BookKeeperError as error:
        parts.events.warning("log.retention_failed", log=name, error=error)
        return
    for removal in removals:
        parts.events.info(
            "log.ledgers_removed",
            log=name,
            before=str(removal.before),
            ledgers=len(removal.ledgers),
            entries=removal.rows,
            bytes=removal.size,
            limits="+".join(removal.reasons),
            passed_cursors="+".join(removal.passed),
        )
