"""Add pipeline of one ledger: which entries are confirmed, what to resend, when to change the ensemble.

Theory of operation
-------------------
The pipeline gives entries dense ids and sends each at once to the positions of its write set. A position acknowledges
in order, nearly always. So a watermark (`IdSet`) describes what it holds, and an entry needs no object of its own.

An entry *has its quorum* when `ack_quorum` positions of its write set hold it. It is *confirmed* when it and all
entries before it have their quorum (I-3). Recovery keeps a prefix, so it could cut off an entry confirmed after a hole.
With `E = Qw` the confirmed prefix ends at the `Qa`-th largest watermark. In a striped ledger each of the E residues of
the id has its own write set and its own bound; the prefix ends before the first id that exceeds its residue's bound.

An answer counts for a position only while the bookie that gave it is the member at that position (I-9, X-43).

An ensemble change replaces a failed bookie. The order of its steps protects the entries:

1. From the failure on the pipeline confirms nothing (`is_changing`). The new fragment starts at
   `last_add_confirmed + 1`. Readers would search the new bookies for an entry that the old bookies' acknowledgements
   confirmed meanwhile (I-1, I-8). Adds and sends continue.
2. The metadata store accepts the new ensemble before any entry counts a new bookie. An entry confirmed on bookies that
   the store does not list is lost for every other client.
3. Undo, then unblock (D-1). The pipeline first discards *all* acknowledgements of *all* replaced positions. Only then
   may it confirm anything, and it sends every pending entry to the new bookies. Undoing and confirming entry by entry
   would confirm later entries with acknowledgements of replaced bookies (X-27).
4. It then confirms what can be confirmed, always, even if the change turned out to be empty (D-4): completed entries
   wait for the end of the change.

A failure reported during the change leads to another round. The pipeline stays blocked, and the round starts from the
same original ensemble. The prefix has not moved, so the round replaces the first round's fragment in place (X-28).
A failure of a bookie that the current round replaces adds nothing. If some failed bookies cannot be replaced, the
change commits the replacements it has (X-38). Entries that still lack their quorum are then sent once more to the
bookies that stay: these answer, or their failure starts the next change. An entry is never stranded.

A failure for an entry that already has its quorum is *late* (2.10). The pipeline records it and handles it with the
next add. So an idle writer does not touch the store, and a busy one does not leave a tail short of a replica.

A fatal error (2.11: fenced, unauthorized, unsupported, no bookie to replace the first failed one, too many changes,
metadata deleted, closed or in recovery) fails all pending entries with that error, in order. Failed means *unknown*:
the entries may or may not be in the ledger. The pipeline then asks to close the ledger at its confirmed prefix, unless
a recovery is known to decide the end.

`AddRules` selects other treatment. With *delayed changes* a bookie is replaced only when an entry could not reach its
ack quorum otherwise, or when the bookie has become read-only. With changes *switched off* the entries that a bookie
failed are resent to it at growing intervals. *Deferred sync* separates the delivered prefix (`head`) from the confirmed
one: the last add confirmed moves only when every bookie was forced. The first failure then ends the writer, because a
change would cut entries that are acknowledged and not yet durable into a fragment that is never extended again.

In *recovery* the same pipeline writes the tail back. Ids continue after the recovery's starting point. The LAC in
headers stays at that point (D-5: the tail is provisional until the close commits, I-14). A replacement ensemble is kept
in memory (`fragments`) instead of the store, and changes are not counted. No error closes the ledger, because that
would publish a prefix that stops before entries which may be confirmed.

Source: client-protocol 2.3 to 2.11, 2.13, 2.17, 2.18, 4.6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bookies.errors import (
    BookieReadOnly,
    BookKeeperError,
    ClientClosed,
    LedgerClosed,
    LedgerFenced,
    LedgerNotFound,
    NotSupported,
    Unauthorized,
    WriteFailed,
)
from bookies.model import BookieId, Ensemble, LedgerMetadata, LedgerState
from bookies.protocol.ledger.ledger import with_ensemble
from bookies.protocol.quorums import IdSet, write_set
from bookies.protocol.quorums.quorum import next_stored, quorum_bound, stored_ids, stores

FATAL = (LedgerFenced, LedgerNotFound, Unauthorized, NotSupported)


class Send(NamedTuple):
    """Effect: send these entries, byte for byte as first packaged, to one bookie. Report answers with `position`.

    Carry out the sends of one position in the order of the effects, so that a bookie receives ascending ids.
    """

    position: int
    bookie: BookieId
    entry_ids: Sequence[int]  # ascending; a range where consecutive


class Confirmed(NamedTuple):
    """Effect: entries first..last are durable on an ack quorum, as all before are. Notify the application, in order."""

    first: int
    last: int


class ChangeEnsemble(NamedTuple):
    """Effect: choose replacements and commit them; report `metadata_changed`, `ensemble_chosen` or `change_failed`.

    The pipeline confirms nothing until the report. `failed`: (position, bookie) pairs to replace if they are still in
    the last ensemble of the record (in recovery: of `metadata`). `excluded`: bookies that failed earlier in the same
    change. `first_entry_id`: start of the new fragment, valid until the report.
    """

    first_entry_id: int
    failed: tuple[tuple[int, BookieId], ...]
    excluded: tuple[BookieId, ...]


class Failed(NamedTuple):
    """Effect: entries first..last failed with `error`: unknown, not absent. Notify the application, in order."""

    first: int
    last: int
    error: BookKeeperError


class CloseLedger(NamedTuple):
    """Effect: close the metadata at the confirmed prefix. Comes after the `Failed` of all pending entries.

    `is_implicit`: after a fatal error; then leave a ledger in recovery to its recovery (D-27).
    """

    last_entry_id: int
    is_implicit: bool


class RetryLater(NamedTuple):
    """Effect while ensemble changes are switched off: wait, longer with each `attempt` (from 0), then call `retry`."""

    position: int
    bookie: BookieId
    attempt: int


Effect = Send | Confirmed | ChangeEnsemble | Failed | CloseLedger | RetryLater
Effects = Sequence[Effect]


@dataclass(frozen=True, slots=True)
class AddRules:
    """A writer's treatment of failures and acknowledgements.

    changes_max: ensemble changes before the writer ends.
    delays_changes: replace bookies only when an entry could not reach its ack quorum otherwise (2.8).
    is_deferred_sync: bookies acknowledge before entries are durable; `forced` confirms, no bookie is replaced (2.18).
    domains, domains_min: an entry also needs acknowledgements from `domains_min` fault domains, at most as many as it
        has replicas (2.17); 0: any domains do.
    """

    changes_max: int = 1_000_000
    delays_changes: bool = False
    is_deferred_sync: bool = False
    domains: Mapping[BookieId, str] = field(default_factory=dict)
    domains_min: int = 0

    def domain(self, bookie: BookieId) -> str:
        """Return the fault domain of a bookie; empty if it is unknown, and then the bookie counts for no domain."""
        return self.domains.get(bookie, "")


class AddPipeline:
    """State machine of the adds of one open ledger. Method calls are events; each returns its effects, in order.

    `recovery_start`: None for a writer of a fresh ledger; for write-back, the id before the first entry to write.
    """

    def __init__(
        self, metadata: LedgerMetadata, *, rules: AddRules | None = None, recovery_start: int | None = None
    ) -> None:
        # The latest known record (in recovery with the changes in memory). Its ensemble may not be in use yet.
        self.metadata = metadata
        self.ensemble: Ensemble = metadata.last_ensemble  # in use; adopts the record's when a change is complete
        self.fragments: dict[int, Ensemble] = {}  # recovery: changes kept in memory, by first entry id
        self.head = -1 if recovery_start is None else recovery_start  # last entry of the delivered prefix
        self.last_add_pushed = self.head
        self.allows_changes = True  # may be switched at any time (2.9)
        self.error: BookKeeperError | None = None  # why the pipeline ended
        self.is_changing = False
        self._rules = rules or AddRules()
        self._forced = self.head  # deferred sync: the last entry known to be durable
        self._size = metadata.ensemble_size
        self._write_quorum = metadata.write_quorum
        self._ack_quorum = metadata.ack_quorum
        self._is_striped = metadata.write_quorum < metadata.ensemble_size
        self._is_recovery = recovery_start is not None
        self._recovery_start = recovery_start
        self._domains_min = min(self._rules.domains_min, metadata.write_quorum)
        self._changes_left = self._rules.changes_max
        self._sent_bound = self.last_add_pushed + 1
        self._acked = [IdSet(self._next_stored(position, self._sent_bound)) for position in range(self._size)]
        self._failed = [IdSet() for _ in range(self._size)]  # answered with an error, not resent
        self._has_failures = False  # whether `_failed` ever held anything
        self._late: dict[int, BookieId] = {}  # failures to handle with the next add, or the next round
        self._replacing: dict[int, BookieId] = {}  # failures the current round handles
        self._failed_members: list[BookieId] = []  # all bookies that failed in the current change
        self._retrying: set[tuple[int, BookieId]] = set()  # with a pending `RetryLater`
        self._attempts: dict[int, int] = {}  # consecutive retries without a successful answer

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self.error is None

    @property
    def last_add_confirmed(self) -> int:
        """Return the last entry of the prefix that is durable on its ack quorums."""
        return self._forced if self._rules.is_deferred_sync else self.head

    @property
    def header_last_add_confirmed(self) -> int:
        """Return the LAC for the header of the next entry: always true (I-13); in recovery the starting point (D-5)."""
        return self.last_add_confirmed if self._recovery_start is None else self._recovery_start

    @property
    def pending_count(self) -> int:
        """Return the number of entries added that are neither delivered nor failed."""
        return self.last_add_pushed - self.head

    @property
    def has_undelivered(self) -> bool:
        """Report whether entries wait for answers of bookies."""
        return self.last_add_pushed > self.head

    @property
    def answered_bound(self) -> int:
        """Return the bound below which the caller may release entry bytes.

        Every entry below it is confirmed, and each of its replicas has answered or been replaced.
        """
        if self._has_failures:
            bound = min([self._answered_bound(position) for position in range(self._size)])
        else:
            bound = min([acked.bound for acked in self._acked])
        if self.is_open:
            bound = min(bound, self.head + 1)
        return min(bound, self._sent_bound)

    # -- events --------------------------------------------------------------------------------------------------

    def add(self, count: int) -> Effects:
        """Add the next `count` ids, packaged as entries `last_add_pushed + 1` and following."""
        assert self.is_open
        assert count > 0
        first = self._sent_bound
        self.last_add_pushed += count
        self._sent_bound = first + count
        return self._begin(first, first + count - 1)

    def add_to_all(self, count: int) -> range | None:
        """Add, and return the ids, if the only effect is a `Send` of them to every position. None: use `add`."""
        if self._is_striped or self._late:
            return None
        assert self.is_open
        assert count > 0
        first = self._sent_bound
        self._sent_bound = first + count
        self.last_add_pushed += count
        return range(first, first + count)

    def _begin(self, first: int, last: int) -> Effects:
        """Send new entries, after handling late failures."""
        effects: list[Effect] = []
        if self._late and self.allows_changes and not self.is_changing:
            effects.extend(self._handle_failure({}))
            if self.error is not None:
                self._has_failures = True
                for position, failed in enumerate(self._failed):  # Nothing was sent, so no bookie will answer.
                    failed.add(self._next_stored(position, first), self._next_stored(position, last + 1))
                return effects
        effects.extend(self._sends(first, last))
        return effects

    def _sends(self, first: int, last: int) -> Iterator[Send]:
        ids: Sequence[int] = range(first, last + 1)
        for position, bookie in enumerate(self.ensemble):
            if self._is_striped:
                ids = self._stored_ids(position, first, last)
            if ids:
                yield Send(position, bookie, ids)

    def acknowledged(self, position: int, bookie: BookieId, entry_ids: Sequence[int]) -> Effects:
        """Record that the bookie holds these entries durably."""
        if self.ensemble[position] != bookie:
            return ()
        acked = self._acked[position]
        if isinstance(entry_ids, range) and entry_ids.step == 1 and not self._is_striped and not acked.runs:
            start, stop = entry_ids.start, entry_ids.stop
            if start <= acked.bound < stop <= self._sent_bound:
                # The usual case, the next ids in order: the same result as below at a lower cost per call.
                acked.bound = stop
                if self._attempts:
                    self._attempts.pop(position, None)
                return self._deliver() if stop > self.head + 1 else ()
        self._attempts.pop(position, None)
        for start, stop in self._runs(position, entry_ids):
            acked.add(start, stop)
        return self._deliver()

    def failed(self, position: int, bookie: BookieId, entry_ids: Sequence[int], error: BookKeeperError) -> Effects:
        """Record that the bookie has not stored these entries, or that it is unknown whether it has."""
        if self.ensemble[position] != bookie:
            return ()
        runs = list(self._runs(position, entry_ids))
        self._has_failures = True
        for start, stop in runs:
            self._failed[position].add(start, stop)
        if self.error is not None:
            return ()
        lacking = [entry_id for entry_id in self._pending_ids(position, runs) if not self._is_complete(entry_id)]
        if lacking and isinstance(error, ClientClosed):
            return self.abandon(error)
        if lacking and isinstance(error, FATAL):
            return self._fatal(error)
        if self._rules.is_deferred_sync:
            return self._fatal(self._deferred_failure(bookie, error))
        if not self.allows_changes and not self._is_recovery:
            return self._retry_later(position, bookie) if lacking else ()
        failed = {position: bookie}
        if self._rules.delays_changes:
            failed = self._undecidable(lacking, is_urgent=isinstance(error, BookieReadOnly))
            if not failed:
                return ()
        if self.is_changing:
            self._late.update((at, old) for at, old in failed.items() if self._replacing.get(at) != old)
            return ()
        if not lacking:
            self._late.update(failed)
            return ()
        return self._handle_failure(failed)

    def _undecidable(self, lacking: list[int], *, is_urgent: bool) -> dict[int, BookieId]:
        """Return, with delayed changes, the positions to replace: those that failed an entry which can no longer reach
        its ack quorum.

        `is_urgent`: the bookie has become read-only and will refuse every add, so it is replaced at once.
        Source: client-protocol 2.8.
        """
        spare = self._write_quorum - self._ack_quorum
        failed: dict[int, BookieId] = {}
        for entry_id in lacking:
            bad = [
                at
                for at in self._positions(entry_id)
                if entry_id in self._failed[at] and entry_id not in self._acked[at]
            ]
            if is_urgent or len(bad) > spare:
                failed.update((at, self.ensemble[at]) for at in bad)
        return failed

    def _deferred_failure(self, bookie: BookieId, error: BookKeeperError) -> WriteFailed:
        """Return the error that ends a writer with deferred sync.

        A change would cut entries that are acknowledged, but not yet synced anywhere, into a fragment that is never
        extended again.
        """
        failure = WriteFailed(
            f"bookie {bookie} failed ({error.message}) and a ledger with deferred sync cannot replace it",
            ledger_id=self.metadata.ledger_id,
        )
        failure.__cause__ = error
        return failure

    def _retry_later(self, position: int, bookie: BookieId) -> Effects:
        if (position, bookie) in self._retrying:
            return ()
        self._retrying.add((position, bookie))
        attempt = self._attempts.get(position, 0)
        self._attempts[position] = attempt + 1
        return (RetryLater(position, bookie, attempt),)

    def retry(self, position: int, bookie: BookieId) -> Effects:
        """End the wait of a `RetryLater`: resend the entries that the bookie failed, or replace it if that is allowed
        again."""
        self._retrying.discard((position, bookie))
        if self.error is not None or self.is_changing or self.ensemble[position] != bookie:
            return ()
        if self.allows_changes:
            return self._handle_failure({position: bookie})
        return list(self._resend(position))

    def forced(self, last_entry_id: int) -> Effects:
        """Record, with deferred sync, that all bookies of the ensemble have synced the entries up to this one."""
        assert last_entry_id <= self.head
        self._forced = max(self._forced, last_entry_id)
        return ()

    def fail(self, error: BookKeeperError) -> Effects:
        """End the writer for a reason that no bookie gave. Fatal."""
        return self._fatal(error) if self.error is None else ()

    def metadata_changed(self, metadata: LedgerMetadata) -> Effects:
        """Complete a writer's `ChangeEnsemble`: committed, or found unnecessary. `metadata`: the current record."""
        assert self.is_changing
        self.is_changing = False
        self.metadata = metadata
        if self.error is not None:
            return ()
        if metadata.state is LedgerState.CLOSED:
            return self._fatal(LedgerClosed("another client has closed the ledger", ledger_id=metadata.ledger_id))
        if metadata.state is LedgerState.IN_RECOVERY:
            return self._fatal(LedgerFenced("another client is recovering the ledger", ledger_id=metadata.ledger_id))
        return self._agreed(metadata.last_ensemble)

    def ensemble_chosen(self, ensemble: Ensemble) -> Effects:
        """Complete a recovery's `ChangeEnsemble`; the replacements stay in memory until the close (I-10)."""
        assert self.is_changing
        assert self._is_recovery
        self.is_changing = False
        if self.error is not None:
            return ()
        first = self.head + 1
        self.fragments[first] = ensemble
        self.metadata = with_ensemble(self.metadata, first, ensemble)
        return self._agreed(ensemble)

    def change_failed(self, error: BookKeeperError) -> Effects:
        """Report that a `ChangeEnsemble` could not be done. Fatal."""
        self.is_changing = False
        return self._fatal(error) if self.error is None else ()

    def close(self) -> Effects:
        """End the ledger at its confirmed prefix, for the application; pending entries fail."""
        if self.error is not None:
            return ()
        error = LedgerClosed("the ledger was sealed before the entry was confirmed")
        return [*self.abandon(error), CloseLedger(self.last_add_confirmed, is_implicit=False)]

    def abandon(self, error: BookKeeperError) -> Effects:
        """End the pipeline without deciding the ledger's end: fail pending adds with `error`, keep the metadata."""
        if self.error is not None:
            return ()
        self.error = error
        first, last = self.head + 1, self.last_add_pushed
        self.last_add_pushed = self.head
        return [Failed(first, last, error)] if first <= last else []

    # -- confirming ----------------------------------------------------------------------------------------------

    def _deliver(self) -> Effects:
        if self.is_changing or self.error is not None:
            return ()
        first = self.head + 1
        bound = self._quorum_bound(first)
        if bound == first:
            return ()
        self.head = bound - 1
        return (Confirmed(first, bound - 1),)

    def _quorum_bound(self, first: int) -> int:
        """Return the first id from `first` on that lacks its quorum."""
        while first < self._sent_bound:
            if self._is_striped:
                bound = self._striped_bound(first)
            else:
                bound = quorum_bound([acked.reach(first) for acked in self._acked], self._ack_quorum)
            if self._domains_min > 1:
                bound = self._domain_bound(first, bound)
            if bound <= first:
                break
            first = bound
        return min(first, self._sent_bound)

    def _domain_bound(self, first: int, bound: int) -> int:
        """Return the first id in first..bound that too few fault domains have acknowledged (D-23), or `bound`."""
        for entry_id in range(first, min(bound, self._sent_bound)):
            if not self._spans_domains(entry_id):
                return entry_id
        return bound

    def _spans_domains(self, entry_id: int) -> bool:
        domains = {
            self._rules.domain(self.ensemble[position])
            for position in self._positions(entry_id)
            if entry_id in self._acked[position]
        }
        domains.discard("")
        return len(domains) >= self._domains_min

    def _striped_bound(self, first: int) -> int:
        """Return an id before which every id from `first` on has its quorum; above `first` if `first` has it."""
        size = self._size
        reach = [acked.reach(self._next_stored(position, first)) for position, acked in enumerate(self._acked)]
        nearest = -1
        for residue in range(size):
            members = [reach[(residue + offset) % size] for offset in range(self._write_quorum)]
            bound = max(first, quorum_bound(members, self._ack_quorum))
            candidate = bound + (residue - bound) % size
            if nearest < 0 or candidate < nearest:
                nearest = candidate
        return nearest

    def _is_complete(self, entry_id: int) -> bool:
        holders = sum(entry_id in self._acked[position] for position in self._positions(entry_id))
        return holders >= self._ack_quorum and (self._domains_min < 2 or self._spans_domains(entry_id))

    def _positions(self, entry_id: int) -> tuple[int, ...]:
        return write_set(entry_id, self._size, self._write_quorum)

    # -- changing the ensemble -----------------------------------------------------------------------------------

    def _handle_failure(self, failed: dict[int, BookieId]) -> Effects:
        """Start to replace these members of the ensemble in use, and those that failed late."""
        assert not self.is_changing
        failed, self._late = failed | self._late, {}
        self._failed_members = []
        return self._start_round(failed)

    def _start_round(self, failed: dict[int, BookieId]) -> Effects:
        if not self._is_recovery:
            self._changes_left -= 1
            if self._changes_left < 0:
                return self._fatal(WriteFailed("too many ensemble changes", ledger_id=self.metadata.ledger_id))
        self.is_changing = True
        self._replacing = failed
        excluded = tuple(self._failed_members)
        self._failed_members.extend(bookie for bookie in failed.values() if bookie not in self._failed_members)
        return [ChangeEnsemble(self.head + 1, tuple(sorted(failed.items())), excluded)]

    def _agreed(self, ensemble: Ensemble) -> Effects:
        """Adopt the agreed ensemble for all pending entries; if more members have failed, start another round."""
        late = {position: bookie for position, bookie in self._late.items() if ensemble[position] == bookie}
        self._late = {}
        if late and (self.allows_changes or self._is_recovery):
            return self._start_round(late)
        first, last = self.head + 1, self.last_add_pushed
        replaced = [position for position in range(self._size) if self.ensemble[position] != ensemble[position]]
        self.ensemble = ensemble
        for position in replaced:
            self._acked[position] = IdSet(self._next_stored(position, first))
            self._failed[position] = IdSet()
        self._replacing = {}
        effects: list[Effect] = []
        for position in replaced:
            ids = self._stored_ids(position, first, last)
            if ids:
                effects.append(Send(position, ensemble[position], ids))
        effects.extend(self._deliver())
        effects.extend(self._resend_stranded())
        return effects

    def _resend_stranded(self) -> Iterator[Send]:
        """Resend entries without quorum to failed bookies that could not be replaced."""
        for position in range(self._size):
            yield from self._resend(position)

    def _resend(self, position: int) -> Iterator[Send]:
        """Resend the pending entries that the bookie at this position has failed."""
        acked, ids = self._acked[position], []
        for start, stop in self._failed[position].cut(self._next_stored(position, self.head + 1)):
            last = min(stop, self._sent_bound) - 1
            stored = self._stored_ids(position, start, last)
            ids += [entry_id for entry_id in stored if entry_id not in acked]
        if ids:
            yield Send(position, self.ensemble[position], ids)

    # -- ending --------------------------------------------------------------------------------------------------

    def _fatal(self, error: BookKeeperError) -> Effects:
        effects = list(self.abandon(error))
        if not self._is_recovery and self.metadata.state is not LedgerState.IN_RECOVERY:
            effects.append(CloseLedger(self.last_add_confirmed, is_implicit=True))
        return effects

    # -- ids of a position ---------------------------------------------------------------------------------------

    def _next_stored(self, position: int, entry_id: int) -> int:
        return next_stored(position, entry_id, self._size, self._write_quorum) if self._is_striped else entry_id

    def _stored_ids(self, position: int, first: int, last: int) -> Sequence[int]:
        return stored_ids(position, first, last, self._size, self._write_quorum)

    def _runs(self, position: int, entry_ids: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the ids as [start, stop) runs of consecutive *stored* ids; `stop`: the next id the position stores.

        Skip ids that were never sent to the position: they say nothing about any entry.
        """
        bound = self._sent_bound
        if isinstance(entry_ids, range) and entry_ids.step == 1 and not self._is_striped:
            yield entry_ids.start, min(entry_ids.stop, bound)
            return
        ids = list(entry_ids)
        stored = stored_ids(position, ids[0], ids[-1], self._size, self._write_quorum) if ids else ()
        if ids and ids[-1] < bound and ids == list(stored):  # the usual case: no gaps
            yield ids[0], self._next_stored(position, ids[-1] + 1)
            return
        start = stop = -1
        for entry_id in sorted(ids):
            if entry_id >= bound or not stores(position, entry_id, self._size, self._write_quorum):
                continue
            if entry_id != stop:
                if start >= 0:
                    yield start, stop
                start = entry_id
            stop = self._next_stored(position, entry_id + 1)
        if start >= 0:
            yield start, stop

    def _pending_ids(self, position: int, runs: list[tuple[int, int]]) -> Iterator[int]:
        for start, stop in runs:
            first = max(start, self.head + 1)
            yield from self._stored_ids(position, first, stop - 1)

    def _answered_bound(self, position: int) -> int:
        """Return the first id that the position stores and has not answered."""
        acked, failed = self._acked[position], self._failed[position]
        bound = acked.bound
        if failed.runs:
            while (further := acked.reach(failed.reach(bound))) != bound:
                bound = further
        return bound
