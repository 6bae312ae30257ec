"""What operators have said of bookies, as commands show it: in maintenance until when, being emptied and how far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bookies.admin.common import time_text

if TYPE_CHECKING:
    from bookies.metadata.bookie_notes import Note, Notes
    from bookies.metadata.driver import MetadataDriver


async def read_notes(driver: MetadataDriver) -> Notes:
    """Those of now. Raises `MetadataError`."""
    from bookies.metadata.bookie_notes import BookieNotes
    from bookies.runtime import aio

    return await BookieNotes(driver, aio.runtime().clock.wall_ms).read()


def announced_facts(note: Note | None) -> dict[str, Any]:
    """Of one bookie, for JSON."""
    return {
        "maintenance": None if note is None or note.maintenance is None else asdict(note.maintenance),
        "draining": None if note is None or note.draining is None else asdict(note.draining),
    }


def announced_text(facts: Mapping[str, Any]) -> str:
    """The same in a line; `-`: nothing."""
    said = []
    if (lease := facts["maintenance"]) is not None:
        reason = f" ({lease['reason']})" if lease["reason"] else ""
        said.append(f"maintenance until {time_text(lease['until_ms'])}{reason}")
    if (draining := facts["draining"]) is not None:
        said.append(f"being emptied: {draining['state'] or 'has just begun'}")
    return "; ".join(said) or "-"
