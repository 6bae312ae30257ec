"""Every ledger's record, once, in pages: what the checks of an auditor have in common.

One pass over the ledgers serves all checks that are due; a check keeps of each record what it needs. Reads of the
metadata store are bounded in number and in rate. A record that cannot be read stops nobody: it is counted and named.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import READ_AT_ONCE, Versioned
from bookies.protocol.repair import RateLimit

NAMED_MAX = 100  # ledgers whose record cannot be read


@dataclass(slots=True)
class Coverage:
    """How far a pass is. `unreadable`: ids of some of the ledgers whose record says nothing."""

    ledgers: int = 0
    unreadable_count: int = 0
    unreadable: list[int] = field(default_factory=list)


def records(driver: MetadataDriver, rate: RateLimit, coverage: Coverage) -> AsyncIterator[Sequence[Versioned]]:
    """The records of all ledgers that exist during the whole pass, ascending. `rate`: of operations.

    Iterating raises `MetadataError`.
    """
    return _Pages(driver, rate, coverage)


class _Pages(AsyncIterator[Sequence[Versioned]]):
    """No generator, for one that is given up in the middle of its reads could not end in an orderly way."""

    def __init__(self, driver: MetadataDriver, rate: RateLimit, coverage: Coverage) -> None:
        self._driver = driver
        self._rate = rate
        self._coverage = coverage
        self._listing = driver.ledger_ids()
        self._listed: Sequence[int] = ()

    async def __anext__(self) -> Sequence[Versioned]:
        while not self._listed:
            self._listed = await anext(self._listing)
        part, self._listed = self._listed[:READ_AT_ONCE], self._listed[READ_AT_ONCE:]
        if (pause_s := self._rate.spent(len(part), asyncio.get_running_loop().time())) > 0:
            await asyncio.sleep(pause_s)
        coverage, found = self._coverage, list[Versioned]()
        for ledger_id, record in zip(part, await self._driver.read_ledgers(part), strict=True):
            coverage.ledgers += 1
            if isinstance(record, Versioned):
                found.append(record)
            elif record is not None:  # otherwise it was deleted since it was listed
                coverage.unreadable_count += 1
                if len(coverage.unreadable) < NAMED_MAX:
                    coverage.unreadable.append(ledger_id)
        return found
