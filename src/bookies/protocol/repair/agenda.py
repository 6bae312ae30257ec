"""Agenda of a replication worker: which marked ledger to repair next, and when to retry one that failed.

Order: fewest replicas left first, then the oldest mark. Only a ledger's record shows how many replicas are left. So the
agenda requests the records of some ledgers in advance (`to_rank`), starting with the marks that name the most bookies.
Unranked ledgers come after ranked ones. Of the ranked ones a ledger without any replica comes last: nothing can be
copied, only reported.

A ledger that could not be repaired waits. Any of these makes it due again: a bookie that it names returns; a target
appears, if bookies were too few; a backoff ends that grows with every attempt. If entries are lost there is no backoff,
because time alone changes nothing. A renewed mark is due at once.

Workers divide the marked ledgers among themselves, so that not all of them read, rank and try to lock the same ones.
Each has a `Share`. It takes up ledgers of other shares only when none of its own is due, in small batches that a
listing has just shown to be still marked and not locked. It leaves a new mark to its owner for some seconds.
Correctness does not depend on disjoint or complete shares: the lock decides.

Time and chance are data. Every operation takes logarithmic time, except `returned`, `targets_came` and the two ends of
a listing. Source: metadata 8.7, 8.8.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from msgspec import Struct

from bookies.model import BookieId
from bookies.protocol.pacing import doubled

UNREAD = -1  # version of a mark that has not been read
RANKED_MAX = 64  # ledgers whose record is read in advance
ITEMS_MAX = 50_000  # items in memory; further marks are added when there is room
OTHERS_MAX = 10_000  # of these, items of other shares
LEFT_ALONE_S = 5.0  # for which a mark of another share is known before it is taken up
TAKEN_UP_MAX = 32  # items of other shares at a time
UNRANKED = 1 << 20
NEVER = float("inf")


class Share(NamedTuple):
    """Share of one worker in the marked ledgers."""

    position: int = 0
    workers: int = 1

    def has(self, ledger_id: int) -> bool:
        """Report whether the ledger belongs to the share; even for any distribution of ids."""
        return (ledger_id * 0x9E3779B97F4A7C15 >> 32 & 0xFFFFFFFF) % self.workers == self.position


EVERYTHING = Share()


class Item(Struct):
    """One marked ledger.

    named: number of bookies that the mark names.
    is_ours: of this worker's share, or taken up from another.
    known_at: when this worker first saw the mark.
    left: replicas left of the entry with the fewest.
    due_at: time before which it is not due.
    bookies, wants_target: the return of one of these bookies, or any new writable bookie, makes it due.
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
    # Since the item was taken, a bookie returned, its absence changed its meaning, or the mark was renewed.
    has_news: bool = False
    is_listed: bool = True  # in the present listing
    stamp: int = 0  # of its valid place in a queue; places with other stamps are stale

    @property
    def urgency(self) -> tuple[int, int, int, int]:
        left = self.left if self.left > 0 else UNRANKED - 1
        return left, -self.named, self.ctime_ms, self.order


class _Queue:
    """Priority queue of items, smallest key first. An item that was placed elsewhere later is no longer in it."""

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
    """Known marked ledgers of a worker. `pick(n)`: a random number below n."""

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
        self.is_cut = False  # there are more marks than items may be kept

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._items

    def get(self, ledger_id: int) -> Item | None:
        return self._items.get(ledger_id)

    # -- listing the marks ---------------------------------------------------------------------------------------
    def begin_listing(self, share: Share = EVERYTHING) -> None:
        """Begin a listing of the marks; a ledger not offered before `end_listing` is no longer marked.

        `share`: the share of this worker from now on.
        """
        self.is_cut = False
        for item in self._items.values():
            item.is_listed = False
        if share != self.share:
            self.share = share
            for item in self._items.values():
                if not (item.is_taken_up or item.is_busy or item.due_at > 0):
                    self._own(item, share.has(item.ledger_id))

    def needs(self, ledger_id: int) -> bool:
        """Report whether this ledger's mark has to be read now."""
        item = self._items.get(ledger_id)
        if item is None:
            return self.share.has(ledger_id)
        return item.is_ours and not item.is_busy and (item.version == UNREAD or item.due_at > 0)

    def offer(self, ledger_id: int, named: int, ctime_ms: int | None, version: int, now: float = 0.0) -> None:
        """Report a mark: the number of bookies that it names, and when it was created (None: unknown, long ago)."""
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
        if version not in (item.version, UNREAD):  # The mark was unread, or there is new damage.
            is_new = item.version != UNREAD
            item.version, item.named, item.ctime_ms = version, named, ctime_ms or 0
            if is_new:
                item.left, item.attempts, item.due_at = UNRANKED, 0, 0.0
                item.has_news |= item.is_busy
            self._place(item)

    def end_listing(self, locked: Collection[int] = (), now: float = 0.0) -> None:
        """Remove ledgers that are no longer marked. If none of this share is due, take up some of other shares that are
        not `locked`."""
        for item in [item for item in self._items.values() if not item.is_listed and not item.is_busy]:
            self.done(item.ledger_id)
        if not self.is_idle:
            return
        others = [
            item
            for item in self._items.values()
            if not item.is_ours and now - item.known_at >= LEFT_ALONE_S and item.ledger_id not in locked
        ]
        for item in sorted(others, key=lambda other: (-other.named, other.order))[:TAKEN_UP_MAX]:
            item.is_taken_up = True
            self._own(item, True)

    @property
    def is_idle(self) -> bool:
        """Report whether no ledger of this share is due."""
        return self._ranked.peek() is None and self._unranked.peek() is None

    @property
    def has_others(self) -> bool:
        """Report whether ledgers of other shares are marked."""
        return self._others > 0

    def _own(self, item: Item, is_ours: bool) -> None:
        self._others += item.is_ours - is_ours
        item.is_ours = is_ours
        self._place(item)

    # -- choosing ------------------------------------------------------------------------------------------------
    def to_rank(self, now: float) -> Sequence[int]:
        """Return ledgers whose records the caller should read, for `rank`, before the next `take`; none when enough are
        ranked."""
        self._wake(now)
        if 2 * len(self._ranking) >= RANKED_MAX:
            return ()
        unranked: list[Item] = []
        while len(unranked) + len(self._ranking) < RANKED_MAX and (item := self._unranked.pop()) is not None:
            unranked.append(item)
        for item in unranked:
            self._place(item)  # A caller that does not rank them leaves them where they were.
        return [item.ledger_id for item in unranked]

    def rank(self, ledger_id: int, left: int) -> None:
        """Rank a ledger: by its record, `left` replicas are left of the entry with the fewest."""
        item = self._items.get(ledger_id)
        if item is not None and not item.is_busy:
            item.left = left
            self._place(item)

    def take(self, now: float) -> Item | None:
        """Take the most urgent ledger that is due; it stays busy until `done`, `postpone` or `release`."""
        self._wake(now)
        item = self._ranked.pop() or self._unranked.pop()
        if item is not None:
            item.is_busy, item.has_news = True, False
            self._place(item)
        return item

    def next_due(self) -> float | None:
        """Return when the next waiting ledger is due; None: no ledger waits for a time."""
        item = self._later.peek()
        return None if item is None else item.due_at

    # -- outcomes ------------------------------------------------------------------------------------------------
    def done(self, ledger_id: int) -> None:
        """Remove a ledger that needs no repair, or whose mark is deleted."""
        item = self._items.pop(ledger_id, None)
        if item is not None:
            self._others -= not item.is_ours
            self._ranking.pop(ledger_id, None)
            item.stamp = -1

    def stale(self, ledger_id: int) -> None:
        """Report that a ledger's mark differs from the listing."""
        if (item := self._items.get(ledger_id)) is not None:
            item.version = UNREAD

    def release(self, ledger_id: int) -> None:
        """Return a ledger without an attempt."""
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
        """Postpone a ledger that could not be finished; return when it is due again.

        is_lost: entries are lost, so it does not become due by time. If it has news, a bookie that returned may have
            these entries, or there is new damage, so it is due at once.
        for_s: seconds before which a retry is useless; this does not count as a failed attempt.
        """
        item = self._items.get(ledger_id)
        if item is None:
            return now
        item.is_busy = False
        item.left = UNRANKED
        item.bookies, item.wants_target = tuple(bookies), wants_target
        if is_lost:
            item.due_at = now if item.has_news else NEVER
        elif for_s > 0:
            item.due_at = now + for_s
        else:
            longest = doubled(self._backoff_s, self._backoff_max_s, item.attempts)
            item.attempts += 1
            item.due_at = now + longest * (0.75 + self._pick(256) / 1024)
        self._place(item)
        return item.due_at

    def returned(self, bookies: Collection[BookieId]) -> None:
        """Report bookies that are registered again, or whose absence has changed its meaning."""
        for item in self._items.values():
            item.has_news |= item.is_busy  # It does not know yet which bookies it waits for.
        self._hurry([item for item in self._items.values() if any(bookie in bookies for bookie in item.bookies)])

    def targets_came(self) -> None:
        """Report that there are more bookies to copy to than before."""
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
        """Put an item into the queue of its state."""
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
