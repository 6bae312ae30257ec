"""Adds of one ledger, in one line: as a request, and given to a store; the states that a pipeline goes through."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from bookies.bookie.storage_port import Storage
from bookies.kernels import Adds, Records
from bookies.protocol.ledger import AddPipeline
from bookies.protocol.ledger.add import AddEvent, AddState
from bookies.storage.journal.journal import Done
from bookies.wire.messages import AddRequest


class Observed(AddPipeline):
    """An add pipeline that keeps in `taken` the pairs of its table that it took."""

    @cached_property
    def taken(self) -> list[tuple[AddState, AddEvent]]:
        return []

    def _follow(self, event: AddEvent) -> None:
        before = self.state
        super()._follow(event)
        self.taken.append((before, event))


def add_request(
    version: int,
    ledger_id: int,
    master_key: bytes,
    entry_ids: Sequence[int],
    records: Records,
    last_add_confirmed: int,
    is_recovery: bool = False,
    is_high_priority: bool = False,
    is_deferred_sync: bool = False,
    txn_ids: Sequence[int] | None = None,
    trace: str = "",
) -> AddRequest:
    adds = Adds.of(ledger_id, entry_ids, records, last_add_confirmed)
    return AddRequest(version, master_key, adds, is_recovery, is_high_priority, is_deferred_sync, txn_ids, trace)


def add_to(
    store: Storage,
    ledger_id: int,
    master_key: bytes,
    entry_ids: Sequence[int],
    records: Records,
    last_add_confirmed: int,
    *,
    is_recovery: bool,
    is_deferred_sync: bool = False,
    done: Done,
) -> None:
    """Add entries of one ledger. Raises the error of adds that are refused."""
    refused = store.add(
        Adds.of(ledger_id, entry_ids, records, last_add_confirmed),
        master_key,
        is_recovery=is_recovery,
        is_deferred_sync=is_deferred_sync,
        accepted=lambda size: None,
        done=lambda _, error: done(error),
    )
    for _, error in refused:
        raise error
