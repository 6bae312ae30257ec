"""The add pipeline of an advanced writer: ids are chosen by the caller and arrive in any order.

Everything of `add` holds: an entry is delivered only when it and all before it have their quorum, so an id that was
not written yet, a *hole*, holds back whatever is above it. What is above a hole counts as pending: it is sent again
after an ensemble change, and it is lost to the ledger when the ledger ends at the hole.

Source: client-protocol 2.14, D-15, I-31.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookies.errors import EntryExists, InvalidArgument
from bookies.model import LedgerMetadata
from bookies.protocol.ledger.add import AddPipeline, AddRules, Effects
from bookies.protocol.quorums import IdSet

ENTRY_ID_MAX = (1 << 63) - 2


class AdvancedAddPipeline(AddPipeline):
    """See the module. Use `write` in place of `add`."""

    def __init__(self, metadata: LedgerMetadata, *, rules: AddRules | None = None) -> None:
        super().__init__(metadata, rules=rules)
        self._sent = IdSet(0)
        self._sent_count = 0

    @property
    def pending_count(self) -> int:
        return self._sent_count - (self.head + 1) if self.error is None else 0

    @property
    def has_undelivered(self) -> bool:
        """Entries below the first hole are pending; those above it wait for the caller."""
        return self.error is None and self.head + 1 < self._sent.bound

    @property
    def answered_bound(self) -> int:
        bound = min([self._answered_bound(position) for position in range(self._size)])
        return min(bound, self.head + 1, self._sent.bound) if self.is_open else min(bound, self._sent_bound)

    def _answered_bound(self, position: int) -> int:
        """In a pipeline that has ended nobody waits for the holes either."""
        acked, failed = self._acked[position], self._failed[position]
        bound = acked.bound
        while True:
            further = acked.reach(failed.reach(bound))
            if not self.is_open and further not in self._sent and (sent := self._sent.next_in(further)) is not None:
                further = self._next_stored(position, sent)
            if further == bound:
                return bound
            bound = further

    def check(self, entry_id: int) -> None:
        """Raises `EntryExists` for an id that is pending or delivered, `InvalidArgument` for one that is none."""
        if entry_id > ENTRY_ID_MAX:
            raise InvalidArgument(f"an entry id is at most {ENTRY_ID_MAX}", entry_id=entry_id)
        if entry_id <= self.head or entry_id in self._sent:
            raise EntryExists(
                "the id was used before; nothing was sent", ledger_id=self.metadata.ledger_id, entry_id=entry_id
            )

    def write(self, entry_id: int) -> Effects:
        """Take one entry, which `check` has accepted."""
        assert self.is_open
        self._sent.add(entry_id, entry_id + 1)
        self._sent_count += 1
        self.last_add_pushed = max(self.last_add_pushed, entry_id)
        self._sent_bound = self.last_add_pushed + 1
        return self._begin(entry_id, entry_id)

    def _quorum_bound(self, first: int) -> int:
        return min(super()._quorum_bound(first), self._sent.reach(first))

    def _stored_ids(self, position: int, first: int, last: int) -> Sequence[int]:
        ids = super()._stored_ids(position, first, last)
        if last < self._sent.bound:
            return ids
        return [entry_id for entry_id in ids if entry_id in self._sent]
