"""Acts of readers: read, tail, request the last add confirmed, wait for entries, read unconfirmed entries.

Each way of reading has a name, under which a plan sets its weight. Source: client-protocol 3; I-12, I-14 to I-17, I-27,
I-32 of 8.2.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bookies.errors import BookKeeperError, EntryNotFound, ReadFailed
from bookies.lab.sim.checkers import Story
from bookies.lab.sim.clients.plan import Plan
from bookies.lab.sim.clients.roles import Roles
from bookies.lab.sim.world import SimClient
from bookies.model import LedgerState

if TYPE_CHECKING:
    from bookies.client.base import Entry, EntryBatch
    from bookies.client.read import LedgerReader


class Readers:
    """The acts of all readers of a workload. A way of reading is the method with its name."""

    def __init__(self, roles: Roles, plan: Plan) -> None:
        self._roles = roles
        self._history = roles.history
        self._random = roles.random
        self._tier = "bookies" if plan.offloaders else "auto"  # there are no files
        self._ways, self._weights = tuple(plan.reads), tuple(plan.reads.values())

    async def read(self, client: SimClient, story: Story) -> None:
        """Open a ledger and read it in a randomly chosen way."""
        story.handles[client.name] = None
        try:
            async with client.client.open(story.ledger_id, password=story.password, tier=self._tier) as ledger:
                await self._read_somehow(client, story, ledger)
        except BookKeeperError as error:
            self._history.failed(client.name, f"read of {story.ledger_id}", error)
            self._history.count("failed reads")
        finally:
            story.handles.pop(client.name, None)

    async def _read_somehow(self, client: SimClient, story: Story, ledger: LedgerReader) -> None:
        way = self._random.choices(self._ways, self._weights)[0]
        try:
            await getattr(self, "_read_" + way.replace(" ", "_"))(client, story, ledger)
        except EntryNotFound as error:
            if ledger.is_sealed and error.entry_id is not None and error.entry_id > ledger.metadata.last_entry_id:
                return
            self._check_denied(client, story, error)
            raise

    def _check_denied(self, client: SimClient, story: Story, error: EntryNotFound) -> None:
        """Check I-32: a client raises `EntryNotFound` only if every replica was reported as missing."""
        tap = self._history.tap
        if tap is None or error.entry_id is None or error.entry_id < 0:
            return
        if not tap.is_denied_by_all(client.name, story.ledger_id, error.entry_id):
            text = f"{client.name} reports that entry {error.entry_id} of ledger {story.ledger_id} does not exist"
            self._history.violated("I-32", f"{text}, but not all of its bookies said so")

    async def _read_end(self, client: SimClient, story: Story, ledger: LedgerReader) -> None:
        """Check I-27: a request for the LAC returns at least the LAC in the header of the last acknowledged entry.

        This holds only if the entry is in the last fragment, the only one that is queried, and no recovery has written
        entries back: these carry the LAC with which the recovery began (D-5).
        """
        tap, acknowledged, known = self._history.tap, story.confirmed - 1, ledger.last_add_confirmed
        record = self._history.record_of(story.ledger_id)
        is_current = (
            record is not None
            and record.ensembles == ledger.metadata.ensembles
            and acknowledged >= record.last_fragment_first_entry
        )
        last = await ledger.read_last_add_confirmed()
        now = self._history.record_of(story.ledger_id)
        is_current = is_current and now is not None and now == record and now.state is LedgerState.OPEN
        is_current &= not story.is_advanced
        if tap is not None and is_current and last < (least := tap.headers.get((story.ledger_id, acknowledged), -1)):
            self._history.violated("I-27", f"the end of {ledger!r} was read as {last}, but {least} was announced")
        self._check_end(story, ledger, known, last)

    async def _read_try_end(self, client: SimClient, story: Story, ledger: LedgerReader) -> None:
        """Request the LAC; the first bookie with a higher one suffices."""
        for _ in range(self._random.randint(1, 4)):
            known = ledger.last_add_confirmed
            self._check_end(story, ledger, known, await ledger.try_read_last_add_confirmed())
            await self._roles.sleep(10)

    def _check_end(self, story: Story, ledger: LedgerReader, known: int, last: int) -> None:
        """Check a LAC that a handle returned. `known`: the handle's previous one."""
        if last < known:
            self._history.violated("I-17", f"LAC of {ledger!r} went back from {known} to {last}")
        story.shown = max(story.shown, last)
        if story.ends and last > story.ends[0][1]:
            self._history.violated("I-14", f"the end of {ledger!r} was read as {last}, beyond {story.ends[0][1]}")

    async def _read_unconfirmed(self, client: SimClient, story: Story, ledger: LedgerReader) -> None:
        """Read the entries of an open ledger that bookies hold, and check that a sealed one has none after its end."""
        async for entry in ledger.read_unconfirmed(0, story.started + 2):
            if ledger.is_sealed and entry.id > ledger.metadata.last_entry_id:
                self._history.violated("I-12", f"entry {entry.id} was read behind the end of {ledger!r}")
            self._check_unconfirmed(story, ledger, entry)

    def _check_unconfirmed(self, story: Story, ledger: LedgerReader, entry: Entry) -> None:
        if not story.was_begun(entry.id) or bytes(entry.payload) != story.payload(entry.id):
            self._history.violated("I-15", f"entry {entry.id} of {ledger!r}, unconfirmed, is not what was written")

    async def _read_batches(self, client: SimClient, story: Story, ledger: LedgerReader) -> None:
        """Read batch after batch, of random sizes, up to the LAC at the beginning."""
        count_max, size_max = self._random.choice((0, 1, 3, 10)), self._random.choice((0, 100, 1_000, 1 << 20))
        last = ledger.last_add_confirmed
        first = self._random.randint(0, max(0, last))
        while first <= last:
            batch = await ledger.read_batch(first, count_max=count_max, size_max=size_max)
            self._check_batch(ledger, batch, first, count_max, size_max)
            for entry in batch.entries():
                self._history.read(story, client.name, entry)
            if batch.last_entry_id > ledger.last_add_confirmed:
                self._history.violated("I-12", f"entries up to {batch.last_entry_id} were read from {ledger!r}")
            first = batch.last_entry_id + 1

    async def _read_unconfirmed_batch(self, client: SimClient, story: Story, ledger: LedgerReader) -> None:
        """Read one batch of entries that bookies hold, and check that a sealed ledger has none after its end."""
        first, count_max = self._random.randint(0, story.started + 1), self._random.choice((0, 1, 3, 10))
        batch = await ledger.read_batch(first, count_max=count_max, unconfirmed=True)
        self._check_batch(ledger, batch, first, count_max, 0)
        if ledger.is_sealed and batch.last_entry_id > ledger.metadata.last_entry_id:
            self._history.violated("I-12", f"entry {batch.last_entry_id} was read behind the end of {ledger!r}")
        for entry in batch.entries():
            self._check_unconfirmed(story, ledger, entry)

    def _check_batch(self, ledger: LedgerReader, batch: EntryBatch, first: int, count_max: int, size_max: int) -> None:
        is_wrong = batch.first_entry_id != first or not len(batch) or (count_max and len(batch) > count_max)
        if is_wrong or (size_max and len(batch) > 1 and batch.size > size_max):
            text = f"{batch.entry_ids} with {batch.size} bytes, asked for {count_max} and {size_max} bytes from {first}"
            self._history.violated("I-15", f"a batch of {ledger!r} is {text}")

    async def _read_entries(self, client: SimClient, story: Story, ledger: LedgerReader) -> None:
        """Read random single entries, some in parallel from all bookies, one after the end, and the last entry."""
        for _ in range(self._random.randint(1, 5)):
            if ledger.last_add_confirmed >= 0:
                entry_id = self._random.randint(0, ledger.last_add_confirmed)
                entry = await ledger.read_entry(entry_id, parallel=self._random.random() < 0.5)
                self._check_entry(client, story, entry, entry_id)
        known = ledger.last_add_confirmed
        try:
            beyond = await ledger.read_entry(known + self._random.randint(1, 3))
            self._history.read(story, client.name, beyond)
        except ReadFailed:
            self._history.count("reads beyond the end refused")
        entry = await ledger.read_last()
        self._check_end(story, ledger, known, entry.id)
        self._history.read(story, client.name, entry)

    def _check_entry(self, client: SimClient, story: Story, entry: Entry, entry_id: int) -> None:
        if entry.id != entry_id:
            self._history.violated("I-15", f"ledger {story.ledger_id}: read {entry.id} instead of {entry_id}")
        self._history.read(story, client.name, entry)

    async def _read_poll(self, client: SimClient, story: Story, ledger: LedgerReader) -> None:
        """Wait for one entry after the other by long polls."""
        entry_id = self._random.randint(0, ledger.last_add_confirmed + 1)
        for _ in range(self._random.randint(1, 10)):
            known, wait_s = ledger.last_add_confirmed, self._random.choice((0, 0.05, 1.0))
            is_parallel = self._random.random() < 0.3
            last, entry = await ledger.read_last_add_confirmed_and_entry(entry_id, wait=wait_s, parallel=is_parallel)
            self._check_end(story, ledger, known, last)
            if entry is not None:
                self._check_entry(client, story, entry, entry_id)
                entry_id += 1
            elif last >= entry_id:
                self._history.violated("L-3", f"entry {entry_id} of {ledger!r} was waited for, and not shown")
            elif ledger.is_sealed:
                return

    async def _read_all(self, client: SimClient, story: Story, ledger: LedgerReader) -> None:
        await self.read_all(client, story, ledger)

    async def read_all(self, client: SimClient, story: Story, ledger: LedgerReader) -> int:
        """Read and check all confirmed entries. Return their number."""
        lac = ledger.last_add_confirmed
        expected = 0
        async for entry in ledger.read(first=0):
            if entry.id != expected:
                self._history.violated("I-15", f"ledger {story.ledger_id}: read {entry.id} instead of {expected}")
            expected = entry.id + 1
            self._history.read(story, client.name, entry)
            if ledger.last_add_confirmed < lac:
                self._history.violated("I-17", f"LAC of {ledger!r} went back from {lac}")
            lac = ledger.last_add_confirmed
        return expected

    async def _read_tail(self, client: SimClient, story: Story, ledger: LedgerReader) -> None:
        """Tail a ledger to its end, at the end of the run at the latest, or only for a limited time."""
        patience = self._random.choice((0.5, 3.0, None))
        expected = 0
        try:
            async with asyncio.timeout(patience):
                async for entry in ledger.tail(first=0):
                    if entry.id != expected:
                        self._history.violated("I-15", f"ledger {story.ledger_id}: tailed {entry.id}, not {expected}")
                    expected = entry.id + 1
                    self._history.read(story, client.name, entry)
        except TimeoutError:
            return
        exists = self._history.record_of(story.ledger_id) is not None
        if exists and (not ledger.metadata.is_closed or expected != ledger.metadata.last_entry_id + 1):
            self._history.violated("L-3", f"the tail of {ledger!r} ended after {expected} entries")
        self._history.count("tails to the end")
