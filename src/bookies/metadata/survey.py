"""Survey of a metadata store: the number of its records, and the reasons not to move the cluster now."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from bookies.metadata.interface import MetadataDriver
from bookies.metadata.transfer import MARK, Damaged, counted_names, read_ledgers
from bookies.model import BookieId, BookieMode, LedgerMetadata


class Survey(Struct):
    """Contents of a store. `bookies`: registered, by mode. `marks`: number of ledgers marked under-replicated.
    `ledgers`: counts by state, in lower case, and `damaged`. `open_ledgers`: ids of ledgers that are not closed.
    """

    bookies: dict[str, tuple[BookieId, ...]]
    cookies: tuple[BookieId, ...]
    records: int
    marks: int
    ledgers: dict[str, int]
    open_ledgers: list[int]

    @property
    def ledger_count(self) -> int:
        return sum(self.ledgers.values())


async def survey(driver: MetadataDriver, progress: Callable[[int], None] = lambda count: None) -> Survey:
    """Read the whole store once. `progress`: called with the number of ledgers so far. Raises `MetadataError`."""
    bookies = {mode.value: (await driver.bookies(mode)).bookies for mode in (BookieMode.WRITABLE, BookieMode.READ_ONLY)}
    cookies = (await driver.all_bookies()).bookies
    records = len([name for name in await driver.record_names("") if name != MARK])
    marks = sum([len(page) async for page in driver.recovery.marked_ids()])
    result = Survey(bookies, cookies, records, marks, {"open": 0, "in_recovery": 0, "closed": 0, "damaged": 0}, [])
    async for ledgers in read_ledgers(driver):
        for ledger in ledgers:
            state = "damaged" if isinstance(ledger, Damaged) else ledger.state.name.lower()
            result.ledgers[state] += 1
            if isinstance(ledger, LedgerMetadata) and not ledger.is_closed:
                result.open_ledgers.append(ledger.ledger_id)
        progress(result.ledger_count)
    return result


def objections(result: Survey) -> list[str]:
    """Return the reasons not to move the cluster now: it would continue to change in the old store."""
    texts = []
    running = [bookie for bookies in result.bookies.values() for bookie in bookies]
    if running:
        texts.append(
            f"{counted_names(running, 'bookie')} registered: they and their writers continue to use the old store, and "
            "their changes there are lost. Stop all clients, then all bookies"
        )
    if result.open_ledgers:
        texts.append(
            f"{counted_names(result.open_ledgers, 'ledger')} not closed: clients may be writing to them. Stop all "
            "clients, and close the ledgers while the bookies still run: bk ledger recover"
        )
    return texts
