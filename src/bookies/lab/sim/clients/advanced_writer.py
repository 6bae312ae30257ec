"""Writes of an advanced ledger, whose writer chooses the entry ids: out of order, with gaps, and some ids twice.

Source: client-protocol 2.14, I-31.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bookies.errors import BookKeeperError, EntryExists, LedgerClosed
from bookies.lab.sim.checkers import Story
from bookies.lab.sim.clients.plan import Plan
from bookies.lab.sim.clients.roles import Roles

if TYPE_CHECKING:
    from bookies.client.write import AdvancedLedgerWriter

REFUSED_S = 1.0  # a used id is refused at once, so within this time
SETTLED_MS = 30.0  # mean; by then the bookies have answered most requests


class ScatteredWriter:
    """The writes of one advanced ledger. `waiting`: pending writes, and some completed ones."""

    def __init__(self, roles: Roles, plan: Plan, ledger: AdvancedLedgerWriter, story: Story) -> None:
        self._roles = roles
        self._history = roles.history
        self._random = roles.random
        self._plan = plan
        self._ledger = ledger
        self._story = story
        self._bound = 0  # ids from here on were never chosen
        self._holes: list[int] = []  # ids below `_bound` that have not been written
        self.waiting: list[asyncio.Task[None]] = []

    async def write_some(self) -> None:
        """Write some skipped ids and some new ones, in random order. Raises the error of an earlier write."""
        self._take_outcomes()
        capacity = self._plan.in_flight_max - len(self.waiting)
        if capacity <= 0:
            await self._write(len(self._holes))
            await asyncio.gather(*self.waiting, return_exceptions=True)
            self._take_outcomes()
            return
        count = self._random.randint(1, self._plan.in_flight_max)
        self._holes += range(self._bound, self._bound + count)
        self._bound += count
        await self._write(self._random.randint(1, min(capacity, len(self._holes))))

    async def leaves(self) -> bool:
        """Decide whether the client leaves now. If so, start a write after a missing id, which stays pending."""
        if self._random.random() > 0.2:
            return False
        self._start(self._bound + 1)
        await self._roles.sleep(SETTLED_MS)
        return True

    async def last_writes(self) -> list[asyncio.Task[None]]:
        """Return the writes in flight at the close, mostly without missing ids, so that all can be confirmed."""
        if not self._story.is_over and self._random.random() < 0.6:
            await self._write(len(self._holes))
            await asyncio.sleep(0)
        return self.waiting

    async def _write(self, count: int) -> None:
        self._random.shuffle(self._holes)
        chosen, self._holes = self._holes[:count], self._holes[count:]
        for entry_id in chosen:
            self._start(entry_id)
            if self._random.random() < 0.4:
                await self._roles.sleep(self._plan.spread_ms)
            if self._random.random() < 0.15:
                await self._write_again()

    def _start(self, entry_id: int) -> None:
        name = f"write of entry {entry_id} of ledger {self._story.ledger_id}"
        self.waiting.append(asyncio.create_task(self._write_one(entry_id), name=name))

    def _take_outcomes(self) -> None:
        done = [task for task in self.waiting if task.done()]
        self.waiting = [task for task in self.waiting if not task.done()]
        for task in done:
            task.result()

    async def _write_one(self, entry_id: int) -> None:
        story = self._story
        self._history.begins_at(story, entry_id)
        try:
            answered = await self._ledger.write(entry_id, story.payload(entry_id))
        except BaseException as error:
            story.is_over = True
            if isinstance(error, EntryExists):
                self._history.violated("I-31", f"ledger {story.ledger_id}: a new id was refused: {error}")
            raise
        if not story.is_deferred:
            self._history.confirmed(story, entry_id, entry_id, answered)
        elif answered != entry_id:
            self._history.violated("I-3", f"ledger {story.ledger_id}: entry {entry_id} is acknowledged as {answered}")

    async def _write_again(self) -> None:
        """Check I-31: the writer refuses an id that is pending or acknowledged."""
        used = list(self._story.seen.begun)[-2 * self._plan.in_flight_max :]
        entry_id = self._random.choice([-1, *used, *used])
        outcome = "was taken twice"
        try:
            async with asyncio.timeout(REFUSED_S):
                await self._ledger.write(entry_id, b"once more")
        except EntryExists:
            self._history.count("ids refused")
            return
        except LedgerClosed:
            return  # The writer has ended and no longer checks ids.
        except TimeoutError:
            outcome = "was neither refused nor taken"
        except BookKeeperError as error:
            outcome = f"was not refused when it was used again: {error}"
        self._history.violated("I-31", f"entry {entry_id} of ledger {self._story.ledger_id} {outcome}")
