"""A replication worker's agenda: which marked ledger to work on next, and when one that failed is worth another try.

Order: fewest replicas left first, then the oldest mark. How many are left is known only from a ledger's record, so the
agenda asks for the records of some ledgers in advance (`to_rank`), of those first for which the most bookies are named;
what nobody has looked at comes after what is known. A ledger with nothing left comes last of those: nothing can be
copied, and all there is to do is to say so.

A ledger that could not be repaired waits. What for decides for how long: always for a bookie that it names to come
back, for a target when bookies were too few, and for a while that grows with every try, except when its entries are
lost: then no time that passes makes a difference. A mark that somebody renews is looked at at once.

Workers divide the marked ledgers among themselves, so that they do not all look at, rank and try to lock the same ones:
each has a `Share`, and takes up what is others' only when nothing of its own is to be done, in small parts that a
listing has just shown to be marked still, and not locked; for some seconds it leaves a new mark to whom it belongs to.
Nothing depends on the shares being disjoint or complete: the lock decides.

Time and chance are data. Every operation but `returned`, `targets_came` and the two ends of a listing takes logarithmic
time. Source: metadata 8.7, 8.8.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bookies.model import BookieId

UNREAD = -1  # version of a mark that nobody has looked at
RANKED_MAX = 64  # ledgers whose record is read in advance
ITEMS_MAX = 50_000  # remembered; of more marks than that the rest is taken up when there is room
OTHERS_MAX = 10_000  # of them such as are others'
LEFT_ALONE_S = 5.0  # that a mark of another's share is known before it is taken up
TAKEN_UP_MAX = 32  # of other shares at a time
UNRANKED = 1 << 20
NEVER = float("inf")


class Share(NamedTuple):
    """Of one of so many workers."""

    position: int = 0
    workers: int = 1

    def has(self, ledger_id: int) -> bool:
        """Evenly, however ids were given out."""
        return (ledger_id * 0x9E3779B97F4A7C15 >> 32 & 0xFFFFFFFF) % self.workers == self.position


EVERYTHING = Share()


@dataclass(slots=True)
class Item:
    """One marked ledger. `named`: bookies that the mark names. `left`: replicas of the entry that is worst off.

    `due_at`: not before. `bookies`: whose return makes it due; `wants_target`: so does any bookie that can be written.
    `is_ours`: of our share, or taken up; `known_at`: since when we know of the mark.
    """

    ledger_id: int
    named: int
    ctime_ms: int
    version: int
    order: int
    is_ours: bool = True
    is_taken_up: bool = False
    known_at: float = 0.0
    left: int = UNRANKED
    attempts: int = 0
    due_at: float = 0.0
    bookies: tuple[BookieId, ...] = ()
    wants_target: bool = False
    is_busy: bool = False
    is_listed: bool = True  # in the listing that goes on
    stamp: int = 0  # of its place in a queue; others are out of date

    @property
    def urgency(self) -> tuple[int, int, int, int]:
        left = self.left if self.left > 0 else UNRANKED - 1
        return left, -self.named, self.ctime_ms, self.order


class _Queue:
    """Items by a key, smallest first. An item that was put anywhere else since is not in it any more."""

    def __init__(self) -> None:
        self._heap: list[tuple[object, int, Item]] = []

    def put(self, key: object, item: Item) -> None:
        heapq.heappush(self._heap, (key, item.stamp, item))

    def peek(self) -> Item | None:
        while self._heap and self._heap[0][2].stamp != self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def pop(self) -> Item | None:
        item = self.peek()
        if item is not None:
            heapq.heappop(self._heap)
        return item


class Agenda:
    """The marked ledgers, as far as they are known. `pick(n)`: a random number below n."""

    def __init__(self, backoff_s: float, backoff_max_s: float, pick: Callable[[int], int]) -> None:
        self._backoff_s = backoff_s
        self._backoff_max_s = backoff_max_s
        self._pick = pick
        self._items: dict[int, Item] = {}
        self._ranked, self._unranked, self._later = _Queue(), _Queue(), _Queue()
        self._ranking: dict[int, None] = {}  # ranked and waiting to be taken
        self._stamp = 0
        self._others = 0  # items that are not ours
        self.share = EVERYTHING
        self.is_cut = False  # more were marked than are remembered

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._items

    def get(self, ledger_id: int) -> Item | None:
        return self._items.get(ledger_id)

    # -- listing the marks ---------------------------------------------------------------------------------------
    def begin_listing(self, share: Share = EVERYTHING) -> None:
        """What is not offered before `end_listing` is not marked any more. `share`: ours from now on."""
        self.is_cut = False
        for item in self._items.values():
            item.is_listed = False
        if share != self.share:
            self.share = share
            for item in self._items.values():
                if not (item.is_taken_up or item.is_busy or item.due_at > 0):
                    self._own(item, share.has(item.ledger_id))

    def needs(self, ledger_id: int) -> bool:
        """Whether what is in this ledger's mark makes a difference now."""
        item = self._items.get(ledger_id)
        if item is None:
            return self.share.has(ledger_id)
        return item.is_ours and not item.is_busy and (item.version == UNREAD or item.due_at > 0)

    def offer(self, ledger_id: int, named: int, ctime_ms: int | None, version: int, now: float = 0.0) -> None:
        """A mark, with the number of bookies that it names, and when it was made (None: nobody knows, long ago)."""
        item = self._items.get(ledger_id)
        if item is None:
            is_ours = self.share.has(ledger_id)
            if len(self._items) >= ITEMS_MAX or (not is_ours and self._others >= OTHERS_MAX):
                self.is_cut = True
                return
            order = self._pick(1 << 30)
            item = Item(ledger_id, named, ctime_ms or 0, version, order, is_ours, known_at=now)
            self._items[ledger_id] = item
            self._others += not is_ours
            self._place(item)
            return
        item.is_listed = True
        if version not in (item.version, UNREAD):  # It was not known, or there is new damage.
            is_new = item.version != UNREAD
            item.version, item.named, item.ctime_ms = version, named, ctime_ms or 0
            if is_new:
                item.left, item.attempts, item.due_at = UNRANKED, 0, 0.0
            self._place(item)

    def end_listing(self, locked: Collection[int] = (), now: float = 0.0) -> None:
        """Forget what is not marked any more; if nothing of ours is to be done, take up some of what is others', unless
        it is `locked`."""
        for item in [each for each in self._items.values() if not each.is_listed and not each.is_busy]:
            self.done(item.ledger_id)
        if not self.is_idle:
            return
        others = [
            item
            for item in self._items.values()
            if not item.is_ours and now - item.known_at >= LEFT_ALONE_S and item.ledger_id not in locked
        ]
        for item in sorted(others, key=lambda each: (-each.named, each.order))[:TAKEN_UP_MAX]:
            item.is_taken_up = True
            self._own(item, True)

    @property
    def is_idle(self) -> bool:
        """Nothing of ours is to be done now."""
        return self._ranked.peek() is None and self._unranked.peek() is None

    @property
    def has_others(self) -> bool:
        """Something is marked that is not ours."""
        return self._others > 0

    def _own(self, item: Item, is_ours: bool) -> None:
        self._others += item.is_ours - is_ours
        item.is_ours = is_ours
        self._place(item)

    # -- choosing ------------------------------------------------------------------------------------------------
    def to_rank(self, now: float) -> Sequence[int]:
        """Ledgers whose records are to be read, for `rank`, before the next is taken; none when enough are ranked."""
        self._wake(now)
        if 2 * len(self._ranking) >= RANKED_MAX:
            return ()
        found: list[Item] = []
        while len(found) + len(self._ranking) < RANKED_MAX and (item := self._unranked.pop()) is not None:
            found.append(item)
        for item in found:
            self._place(item)  # Whoever does not come to rank them leaves them where they were.
        return [item.ledger_id for item in found]

    def rank(self, ledger_id: int, left: int) -> None:
        """By its record, so many replicas are left of the entry that is worst off."""
        item = self._items.get(ledger_id)
        if item is not None and not item.is_busy:
            item.left = left
            self._place(item)

    def take(self, now: float) -> Item | None:
        """The most urgent one that is due; it stays busy until `done`, `postpone` or `release`."""
        self._wake(now)
        item = self._ranked.pop() or self._unranked.pop()
        if item is not None:
            item.is_busy = True
            self._place(item)
        return item

    def next_due(self) -> float | None:
        """When the next of those that wait is due; None: nothing waits for a time."""
        item = self._later.peek()
        return None if item is None else item.due_at

    # -- outcomes ------------------------------------------------------------------------------------------------
    def done(self, ledger_id: int) -> None:
        """It needs nothing, or its mark is gone."""
        item = self._items.pop(ledger_id, None)
        if item is not None:
            self._others -= not item.is_ours
            self._ranking.pop(ledger_id, None)
            item.stamp = -1

    def stale(self, ledger_id: int) -> None:
        """Its mark is not as it was listed."""
        if (item := self._items.get(ledger_id)) is not None:
            item.version = UNREAD

    def release(self, ledger_id: int) -> None:
        """Nothing was tried."""
        if (item := self._items.get(ledger_id)) is not None:
            item.is_busy = False
            self._place(item)

    def postpone(
        self,
        ledger_id: int,
        now: float,
        *,
        bookies: Collection[BookieId] = (),
        wants_target: bool = False,
        is_lost: bool = False,
        for_s: float = 0.0,
    ) -> float:
        """It could not be finished; when it is due again. `is_lost`: not by itself.

        `for_s`: it makes no sense to come earlier, and this was no attempt that failed.
        """
        item = self._items.get(ledger_id)
        if item is None:
            return now
        item.is_busy = False
        item.left = UNRANKED
        item.bookies, item.wants_target = tuple(bookies), wants_target
        if is_lost:
            item.due_at = NEVER
        elif for_s > 0:
            item.due_at = now + for_s
        else:
            longest = min(self._backoff_max_s, self._backoff_s * 2 ** min(item.attempts, 30))
            item.attempts += 1
            item.due_at = now + longest * (0.75 + self._pick(256) / 1024)
        self._place(item)
        return item.due_at

    def returned(self, bookies: Collection[BookieId]) -> None:
        """These are registered again, or what their absence means has changed."""
        self._hurry([item for item in self._items.values() if any(bookie in bookies for bookie in item.bookies)])

    def targets_came(self) -> None:
        """There are more bookies to copy to than before."""
        self._hurry([item for item in self._items.values() if item.wants_target])

    def _hurry(self, items: Sequence[Item]) -> None:
        for item in items:
            if item.due_at > 0:
                item.due_at, item.attempts = 0.0, 0
                self._place(item)

    # -- parts ---------------------------------------------------------------------------------------------------
    def _wake(self, now: float) -> None:
        while (item := self._later.peek()) is not None and item.due_at <= now:
            item.due_at = 0.0
            self._place(item)

    def _place(self, item: Item) -> None:
        """Put it where it belongs now."""
        self._stamp += 1
        item.stamp = self._stamp
        self._ranking.pop(item.ledger_id, None)
        if item.is_busy or not item.is_ours:
            return
        if item.due_at > 0:
            if item.due_at < NEVER:
                self._later.put(item.due_at, item)
        elif item.left == UNRANKED:
            self._unranked.put(item.urgency, item)
        else:
            self._ranking[item.ledger_id] = None
            self._ranked.put(item.urgency, item)
