"""Read what one bookie holds of a ledger, every entry, and say which entries are not good.

The bookie's own list says first which entries it lacks, so that a replica that is gone costs a question and not one
for each entry; a run that the list lacks is believed when its first entry cannot be read either. The rest is read in
a few lanes at once, each a sequence of batches. After a bad entry a lane goes on with the next. A bookie that is busy
is asked again; one that does not answer ends the scan, and says nothing about its entries. Source: spark 5.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from bookies.client.base import EntryBatch
from bookies.client.repair.replicas import LedgerReplicas
from bookies.client.transport import BookiePool
from bookies.errors import (
    BookieBusy,
    BookieUnreachable,
    BookKeeperError,
    ClientClosed,
    LedgerUnknownToBookie,
)
from bookies.model import BookieId
from bookies.protocol.ledger.read import NEGATIVE
from bookies.protocol.repair import RateLimit
from bookies.protocol.repair.fragments import missing_runs, runs_of
from bookies.runtime.tasks import all_of

T = TypeVar("T")
LANES = 4  # batches under way at once
SHORT_LANES = 32  # of runs of a few entries, as striped ledgers have them
SHORT = 16  # entries
ATTEMPTS = 4  # at a bookie that is busy, or whose connection is lost
PAUSE_S = 0.25  # before the second attempt; twice as long each time


class BadRun(NamedTuple):
    """Entries first..last are not good, all for the same reason."""

    first: int
    last: int
    error: BookKeeperError


@dataclass
class ReplicaScan:
    """What came of a scan. `entries`, `size`: those found good, and the bytes of their records.

    `bad`: ascending. `stopped`: why the bookie could not be asked for all of them. `is_listed`: whether it has said by
    its own list which it has.
    """

    bookie: BookieId
    entries: int = 0
    size: int = 0
    bad: list[BadRun] = field(default_factory=list)
    stopped: BookKeeperError | None = None
    is_listed: bool = False


async def scan(
    replicas: LedgerReplicas,
    pool: BookiePool,
    ledger_id: int,
    bookie: BookieId,
    ids: Sequence[int],
    visit: Callable[[EntryBatch], None] | None,
    pace: RateLimit | None,
) -> ReplicaScan:
    """See `Administration.scan_replica`. Raises `ClientClosed`."""
    run = _Scan(replicas, pool, ledger_id, bookie, visit, pace)
    try:
        await run.all(ids)
    except BookieUnreachable as error:
        run.found.stopped = error
    run.found.bad = _merged(run.found.bad)
    return run.found


async def scan_list(
    replicas: LedgerReplicas, pool: BookiePool, ledger_id: int, bookie: BookieId, ids: Sequence[int]
) -> ReplicaScan:
    """As `scan`, without reading: only which entries the bookie lacks. `size` stays 0. Raises `ClientClosed`."""
    run = _Scan(replicas, pool, ledger_id, bookie, None, None)
    try:
        lacking = await run.lacking(ids)
    except BookieUnreachable as error:
        run.found.stopped = error
    else:
        run.found.entries = len(ids) - sum(map(len, lacking))
    return run.found


class _Scan:
    def __init__(
        self,
        replicas: LedgerReplicas,
        pool: BookiePool,
        ledger_id: int,
        bookie: BookieId,
        visit: Callable[[EntryBatch], None] | None,
        pace: RateLimit | None,
    ) -> None:
        self.found = ReplicaScan(bookie)
        self._replicas, self._pool, self._ledger_id, self._bookie = replicas, pool, ledger_id, bookie
        self._visit, self._pace = visit, pace
        self._loop = asyncio.get_running_loop()

    async def all(self, ids: Sequence[int]) -> None:
        if not ids:
            return
        lacking = await self.lacking(ids) if len(ids) > 1 else []
        parts = list(_parts(ids, lacking))
        lanes = LANES if not parts or len(parts[0]) > SHORT else SHORT_LANES
        waiting = iter(parts)

        async def work() -> None:
            for part in waiting:
                await self._part(part)

        await all_of(work() for _ in range(min(lanes, len(parts))))

    async def lacking(self, ids: Sequence[int]) -> list[range]:
        """Runs of ids that the bookie lacks; they are noted as bad. They may have ids between those asked for."""
        try:
            held = await self._patiently(lambda: self._pool.list_entries(self._bookie, self._ledger_id))
        except LedgerUnknownToBookie:
            held = []
        except (BookieUnreachable, ClientClosed):
            raise
        except BookKeeperError:
            return []  # It cannot list them; then each is asked for.
        self.found.is_listed = True
        lacking = []
        for run in missing_runs(ids, held):
            try:
                await self._read(range(run.start, run.start + 1))
            except NEGATIVE as error:
                self.found.bad.append(BadRun(run.start, run.stop - 1, error))
                lacking.append(run)
            except (BookieUnreachable, ClientClosed):
                raise
            except BookKeeperError:
                continue  # It has something there: the lanes will say what.
        return lacking

    async def _part(self, ids: range) -> None:
        at = ids.start
        while at < ids.stop:
            try:
                batch = await self._read(range(at, ids.stop))
            except (BookieUnreachable, ClientClosed):
                raise
            except BookKeeperError as error:
                self.found.bad.append(BadRun(at, at, error))
                at += 1
                continue
            self.found.entries += len(batch)
            self.found.size += batch.size
            if self._visit is not None:
                self._visit(batch)
            at = batch.last_entry_id + 1
            if self._pace is not None and (pause_s := self._pace.spent(batch.size, self._loop.time())) > 0:
                await asyncio.sleep(pause_s)

    async def _read(self, ids: range) -> EntryBatch:
        return await self._patiently(lambda: self._replicas.read_batch(self._bookie, ids))

    async def _patiently(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Ask, again after a pause while the bookie is busy or a connection was lost."""
        for attempt in range(ATTEMPTS):
            try:
                return await ask()
            except ClientClosed:
                raise
            except (BookieBusy, BookieUnreachable) as error:
                is_gone = isinstance(error, BookieUnreachable) and not error.was_connected
                if is_gone or attempt == ATTEMPTS - 1:
                    raise
            await asyncio.sleep(PAUSE_S * 2**attempt)
        raise AssertionError


def _parts(ids: Sequence[int], lacking: Sequence[range]) -> Iterator[range]:
    """The ids without those that are lacking, as ranges for the lanes."""
    for run in runs_of(ids):
        for part in missing_runs(run, lacking):
            size = max(SHORT, -(-len(part) // LANES))
            for start in range(part.start, part.stop, size):
                yield range(start, min(part.stop, start + size))


def _merged(bad: list[BadRun]) -> list[BadRun]:
    """Ascending; neighbours with the same kind of error as one."""
    merged: list[BadRun] = []
    for run in sorted(bad, key=lambda each: each.first):
        if merged and merged[-1].last + 1 == run.first and type(merged[-1].error) is type(run.error):
            merged[-1] = BadRun(merged[-1].first, run.last, merged[-1].error)
        else:
            merged.append(run)
    return merged
