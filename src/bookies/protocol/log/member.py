"""`Member`: one process of a consumer that several processes share. See `protocol/log/shares.py`.

It has a lease that it shares with the others, and claims one range of entries at a time. A write of the record commits
what it has handled, claims the next range and renews the lease, all at once.
"""

from __future__ import annotations

from msgspec.structs import replace

from bookies.protocol.log.lease import Candidate, LeaseQueue
from bookies.protocol.log.log_model import Position
from bookies.protocol.log.shares import RANGES_MAX, Offer, Range, Shares


class Member(Candidate):
    """State of one process. `claim_size`: entries that it claims at a time, at most. The rest is as in `Candidate`.

    `saves`: the next write moves the cursor too. `asks`: it claims a range, if it has none; `offer`: entries to claim
    if no range is free. `is_reset`: its range was taken away, because the cursor was deleted.
    """

    def __init__(self, candidate_id: str, text: str, ttl_s: float, *, waits: bool, claim_size: int) -> None:
        super().__init__(candidate_id, text, ttl_s, waits=waits, is_shared=True)
        self.saves = self.asks = self.is_reset = False
        self.offer: Offer | None = None
        self.handled: Position | None = None  # it has handled the entries of its range before this one
        self._claim_size = claim_size
        self._claim: Range | None = None

    @property
    def shares(self) -> Shares:
        """Return the content of the record, as last read."""
        return self._queue.shares or Shares()

    @property
    def claim(self) -> Range | None:
        """Return the part of its range that is not handled."""
        claim, at = self._claim, self.handled
        if claim is not None and at is not None and claim.has_end(at):
            claim = claim._replace(first=at.entry_id)
        return claim if claim is not None and claim.first <= claim.last else None

    @property
    def has_free(self) -> bool:
        """Report whether it can claim a range that another process has left."""
        return self.shares.has_free(self._queue.tokens)

    @property
    def is_full(self) -> bool:
        """Report whether no new range fits into the record."""
        return len(self.shares.ranges) >= RANGES_MAX

    def seen(self, queue: LeaseQueue, now_s: float) -> None:
        super().seen(queue, now_s)
        claim = self.shares.claim_of(self.token) if self.token else None
        if claim is None and self.token and self.claim is not None:
            self.is_reset = True
        if claim is not None and (self._claim is None or claim[::2] != self._claim[::2]):
            self.handled = None  # A new range: if the cursor was moved back, it may have entries before the old one.
        self._claim = claim

    def _content(self, queue: LeaseQueue) -> LeaseQueue:
        shares = queue.shares
        if shares is None or not self.is_holder:
            return queue
        if self.handled is not None:
            shares = shares.committed(self.token, self.handled)
        if self.asks and shares.claim_of(self.token) is None:
            shares = shares.claimed(self.token, queue.tokens, self.offer, self._claim_size)
        if self.saves:
            shares = replace(shares, cursor=shares.position)
        return replace(queue, shares=shares)

    def moves_cursor(self, queue: LeaseQueue) -> bool:
        """Report whether a write of this content moves the cursor."""
        return queue.shares is not None and queue.shares.cursor != self.shares.cursor

    def left(self, queue: LeaseQueue) -> LeaseQueue | None:
        self._queue = queue
        return super().left(queue)
