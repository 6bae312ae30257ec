"""Pass over the records of all ledgers, each once, in pages: the common part of an auditor's checks.

One pass serves all checks that are due; each check keeps what it needs of a record. Reads of the metadata store are
bounded in number and in rate. An unreadable record does not stop the pass: it is counted and named.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from msgspec import Struct, field

from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import READ_AT_ONCE, Versioned
from bookies.protocol.pacing import RateLimit
from bookies.runtime.tasks import throttle

NAMED_MAX = 100  # named ledgers with unreadable records


class Coverage(Struct):
    """Coverage of a pass so far. `unreadable`: the first ids of ledgers whose record is unreadable."""

    ledgers: int = 0
    unreadable_count: int = 0
    unreadable: list[int] = field(default_factory=list)


def records(driver: MetadataDriver, rate: RateLimit, coverage: Coverage) -> AsyncIterator[Sequence[Versioned]]:
    """Return pages with the records of all ledgers that exist during the whole pass, by ascending id.

    `rate`: limit in records per second. Iterating raises `MetadataError`.
    """
    return _Pages(driver, rate, coverage)


class _Pages(AsyncIterator[Sequence[Versioned]]):
    """Pages of records. Not a generator: one abandoned in the middle of its reads could not close in an orderly way."""

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
        await throttle(self._rate, len(part))
        coverage, page = self._coverage, list[Versioned]()
        for ledger_id, record in zip(part, await self._driver.read_ledgers(part), strict=True):
            coverage.ledgers += 1
            if isinstance(record, Versioned):
                page.append(record)
            elif record is not None:  # otherwise it was deleted since it was listed
                coverage.unreadable_count += 1
                if len(coverage.unreadable) < NAMED_MAX:
                    coverage.unreadable.append(ledger_id)
        return page
