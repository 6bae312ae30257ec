"""A metadata store as collection sees it, which can be wrong in the ways that matter."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from bookies.errors import LedgerNotFound, MetadataError
from bookies.model import BookieId, LedgerMetadata, LedgerState

BOOKIE = "b1"
RANGE = 3  # ledgers that are listed together


@dataclass
class Record:
    metadata: LedgerMetadata


def record(ledger_id: int, bookie: str = BOOKIE, *, is_closed: bool = False) -> Record:
    state = LedgerState.CLOSED if is_closed else LedgerState.OPEN
    last = 0 if is_closed else -1
    return Record(LedgerMetadata(ledger_id, 1, 1, 1, ((0, (BookieId(bookie),)),), state, last))


@dataclass
class FakeLocks:
    """`held`: by others; `mine`: those that were taken; `on_lock`: called when one is."""

    held: set[int] = field(default_factory=set)
    mine: set[int] = field(default_factory=set)
    on_lock: Callable[[int], None] = lambda ledger_id: None

    async def lock(self, ledger_id: int, owner: str, *, needs_mark: bool) -> int | None:
        assert not needs_mark
        if ledger_id in self.held | self.mine:
            return None
        self.mine.add(ledger_id)
        self.on_lock(ledger_id)
        return ledger_id

    async def unlock(self, lock: int) -> None:
        self.mine.discard(lock)

    async def locks(self) -> dict[int, str]:
        return dict.fromkeys(sorted(self.held | self.mine), "somebody")


@dataclass
class FakeRecords:
    """`unlisted`: ledgers that the scan misses. `unreadable`: whose own record cannot be read."""

    ledgers: dict[int, Record] = field(default_factory=dict)
    unlisted: set[int] = field(default_factory=set)
    unreadable: set[int] = field(default_factory=set)
    instance: str | None = "cluster"
    breaks_after: int | None = None  # ranges of a scan, which then fails
    reads: list[int] = field(default_factory=list)
    recovery: FakeLocks = field(default_factory=FakeLocks)

    @classmethod
    def of(cls, *ledger_ids: int) -> FakeRecords:
        return cls({each: record(each) for each in ledger_ids})

    def delete(self, *ledger_ids: int) -> None:
        for each in ledger_ids:
            del self.ledgers[each]

    async def instance_id(self) -> str | None:
        return self.instance

    async def ledger_ids(self, after: int = -1) -> AsyncIterator[Sequence[int]]:
        listed = [each for each in sorted(self.ledgers) if each not in self.unlisted]
        for number, start in enumerate(range(0, len(listed), RANGE)):
            if number == self.breaks_after:
                raise MetadataError("the scan broke off")
            yield listed[start : start + RANGE]

    async def read_ledger(self, ledger_id: int) -> Record:
        self.reads.append(ledger_id)
        if ledger_id in self.unreadable:
            raise MetadataError("not now", ledger_id=ledger_id)
        if ledger_id not in self.ledgers:
            raise LedgerNotFound("no such ledger", ledger_id=ledger_id)
        return self.ledgers[ledger_id]

    async def current_ledgers(self, ledger_ids: Sequence[int]) -> list[Record | None]:
        """As `MetadataDriver` reads them; nobody lags behind here."""
        found: list[Record | None] = []
        for ledger_id in ledger_ids:
            try:
                found.append(await self.read_ledger(ledger_id))
            except LedgerNotFound:
                found.append(None)
        return found
