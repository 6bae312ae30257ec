"""Counts of a cluster's ledgers: by state, and fragments by bookie. Counting reads the record of every ledger.

With many ledgers that takes minutes, so the last counts are kept in a record of the store, with their time. An auditor
counts in its passes, and `bk status --count` at once.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from msgspec import Struct, field

from bookies.encoding.documents import parse_json
from bookies.errors import MetadataCorrupt, MetadataError, RecordNotFound
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import READ_AT_ONCE
from bookies.model import LedgerMetadata

RECORD = "counts/ledgers"
LIVE_MAX = 20_000  # ledgers that are counted whenever their number is asked for
STATES = ("open", "in_recovery", "closed", "unreadable")


class LedgerCounts(Struct):
    """Counts. `states`: ledgers by state, in lower case, and `unreadable`. `counted_ms`: wall time."""

    counted_ms: int
    states: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    fragments: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.states.values())

    def add(self, record: LedgerMetadata) -> None:
        """Count one ledger."""
        self.states[record.state.name.lower()] += 1
        for _, ensemble in record.ensembles:
            for bookie in ensemble:
                self.fragments[bookie] = self.fragments.get(bookie, 0) + 1

    def pack(self) -> bytes:
        """Return the stored record: JSON, one line."""
        content = {"counted_ms": self.counted_ms, "states": self.states, "fragments": self.fragments}
        return json.dumps(content, separators=(",", ":")).encode()


def parse_counts(data: bytes) -> LedgerCounts | None:
    """Return the counts of a record; None if it cannot be read: they are counted again some time."""
    try:
        content: dict[str, Any] = parse_json(data)
        states = {name: int(content["states"][name]) for name in STATES}
        fragments = {str(name): int(count) for name, count in content["fragments"].items()}
        return LedgerCounts(int(content["counted_ms"]), states, fragments)
    except (ValueError, TypeError, LookupError, AttributeError):
        return None


async def count_ledgers(driver: MetadataDriver, now_ms: int, *, at_most: int | None = None) -> LedgerCounts | None:
    """Count all ledgers; None if there are more than `at_most`. Raises `MetadataError`."""
    if at_most is not None:
        listed = 0
        async for ids in driver.ledger_ids():
            listed += len(ids)
            if listed > at_most:
                return None
    counts = LedgerCounts(now_ms)
    async for ids in driver.ledger_ids():
        for start in range(0, len(ids), READ_AT_ONCE):
            for record in await driver.read_ledgers(ids[start : start + READ_AT_ONCE]):
                if isinstance(record, MetadataCorrupt):
                    counts.states["unreadable"] += 1
                elif record is not None:  # otherwise it was deleted since it was listed
                    counts.add(record.metadata)
    return counts


async def keep_counts(driver: MetadataDriver, counts: LedgerCounts) -> None:
    """Store the counts. Best effort: they are counted again some time."""
    with contextlib.suppress(MetadataError):
        try:
            _, version = await driver.read_record(RECORD)
        except RecordNotFound:
            await driver.create_record(RECORD, counts.pack())
        else:
            await driver.write_record(RECORD, counts.pack(), version)


async def kept_counts(driver: MetadataDriver) -> LedgerCounts | None:
    """Return the stored counts; None: there are none."""
    try:
        return parse_counts((await driver.read_record(RECORD))[0])
    except RecordNotFound:
        return None
