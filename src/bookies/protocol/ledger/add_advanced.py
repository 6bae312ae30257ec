"""Add pipeline of an advanced writer: the caller chooses the ids, and writes them in any order.

All rules of `add` hold. An entry is delivered only when it and all before it have their quorum, so a *hole*, an id that
was not written yet, holds back every entry above it. Entries above a hole are pending: an ensemble change resends them,
and a ledger that ends at the hole does not contain them.

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
    """Add pipeline with ids chosen by the caller. Use `write` in place of `add`."""

    def __init__(self, metadata: LedgerMetadata, *, rules: AddRules | None = None) -> None:
        super().__init__(metadata, rules=rules)
        self._sent = IdSet(0)
        self._sent_count = 0

    @property
    def pending_count(self) -> int:
        return self._sent_count - (self.head + 1) if self.error is None else 0

    @property
    def has_undelivered(self) -> bool:
        """Report whether entries below the first hole wait for bookies; those above it wait for the caller."""
        return self.error is None and self.head + 1 < self._sent.bound

    @property
    def answered_bound(self) -> int:
        bound = min([self._answered_bound(position) for position in range(len(self.ensemble))])
        return min(bound, self.head + 1, self._sent.bound) if self.is_open else min(bound, self._sent_bound)

    def _answered_bound(self, position: int) -> int:
        """Return the first id without an answer; a pipeline that has ended skips holes too."""
        acked, failed = self._acked[position], self._failures.by_position[position]
        bound = acked.bound
        while True:
            further = acked.reach(failed.reach(bound))
            if not self.is_open and further not in self._sent and (sent := self._sent.next_in(further)) is not None:
                further = self._quorums.next_stored(position, sent)
            if further == bound:
                return bound
            bound = further

    def check(self, entry_id: int) -> None:
        """Check a new id. Raises `EntryExists` (pending or delivered already), `InvalidArgument` (too large)."""
        if entry_id > ENTRY_ID_MAX:
            raise InvalidArgument(f"an entry id is at most {ENTRY_ID_MAX}", entry_id=entry_id)
        if entry_id <= self.head or entry_id in self._sent:
            raise EntryExists(
                "the id was used before; nothing was sent", ledger_id=self.metadata.ledger_id, entry_id=entry_id
            )

    def write(self, entry_id: int) -> Effects:
        """Add one entry, which `check` has accepted."""
        assert self.is_open
        self._sent.add(entry_id, entry_id + 1)
        self._sent_count += 1
        self._sent_bound = max(self._sent_bound, entry_id + 1)
        return self._begin(entry_id, entry_id)

    def _quorum_bound(self, first: int) -> int:
        return min(super()._quorum_bound(first), self._sent.reach(first))

    def _stored_ids(self, position: int, first: int, last: int) -> Sequence[int]:
        ids = super()._stored_ids(position, first, last)
        if last < self._sent.bound:
            return ids
        return [entry_id for entry_id in ids if entry_id in self._sent]
