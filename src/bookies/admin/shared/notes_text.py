"""Operators' announcements about bookies, as commands print them: maintenance leases, drains and their progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from bookies.admin.shared.common import time_text, visible

if TYPE_CHECKING:
    from bookies.metadata.interface import MetadataDriver
    from bookies.metadata.shared.bookie_notes import Note, Notes

FRESH_MS = 15_000  # three times the interval at which a running drain reports its progress


async def read_notes(driver: MetadataDriver) -> Notes:
    """Read the current notes of all bookies. Raises `MetadataError`."""
    from bookies.metadata.shared import BookieNotes
    from bookies.runtime import aio

    return await BookieNotes(driver, aio.runtime().clock.wall_ms).read()


def announced_facts(note: Note | None) -> dict[str, Any]:
    """Return the announcements about one bookie for JSON."""
    return {
        "maintenance": to_builtins(note.maintenance) if note else None,
        "draining": to_builtins(note.draining) if note else None,
    }


def announced_text(facts: Mapping[str, Any]) -> str:
    """Return the announcements about one bookie as one line; `-` if there are none."""
    parts = []
    if (lease := facts["maintenance"]) is not None:
        reason = f" ({visible(lease['reason'])})" if lease["reason"] else ""
        parts.append(f"maintenance until {time_text(lease['until_ms'])}{reason}")
    if (draining := facts["draining"]) is not None:
        from bookies.runtime import aio

        parts.append(f"being drained: {state_text(draining, aio.runtime().clock.wall_ms())}")
    return "; ".join(parts) or "-"


def state_text(draining: Mapping[str, Any], now_ms: int) -> str:
    """Return the progress of a drain.

    An old report comes with its time: the process that wrote it may have stopped, and another may have continued.
    """
    state, at_ms = draining["state"], draining["state_ms"]
    if not state:
        is_new = now_ms - draining["since_ms"] < FRESH_MS
        return "has just begun" if is_new else f"no progress report since {time_text(draining['since_ms'])}"
    if abs(now_ms - at_ms) < FRESH_MS:
        return visible(state)
    when = time_text(at_ms) if at_ms else "an unknown time"
    return f"at {when}: {visible(state)}"
