"""Add pipeline of one ledger: which entries are confirmed, what to send again, when to change the ensemble.

Theory of operation
-------------------
Entries get dense ids and go to the positions of their write set at once. A position acknowledges in order, nearly
always, so what it holds is a watermark (`IdSet`), and an entry needs no object of its own. An entry *has its quorum*
when `ack_quorum` positions of its write set hold it. It is *confirmed* when it and all before it have their quorum
(I-3): recovery keeps a prefix, so an entry confirmed behind a hole could be cut off. With `E = Qw` the confirmed
prefix ends at the `Qa`-th largest watermark; striped, each of the E residues of the id has a write set and a bound
of its own, and the prefix ends before the first id that exceeds its residue's bound.

An answer counts for a position only while the bookie that gave it stands at that position (I-9, X-43).

A bookie that fails is replaced. The order of things protects the entries:

1. From the failure on nothing is confirmed (`changing`). The new fragment starts at `last_add_confirmed + 1`; an
   entry confirmed meanwhile with the old bookies' acknowledgements would be looked for on the new ones (I-1, I-8).
   Adding and sending go on.
2. The metadata store accepts the new ensemble before any entry counts a new bookie: confirming on bookies that the
   store does not list loses the entry for everybody else.
3. Undo, then unblock (D-1). First *all* acknowledgements of *all* replaced positions are forgotten; only then may
   anything be confirmed, and every pending entry is sent to the new bookies. Undoing and confirming entry by entry
   would confirm later entries on the strength of bookies that are gone (X-27).
4. Confirm what can be, always, even if the change turned out to be empty (D-4): completed entries wait behind it.

A failure reported during the change waits and leads to another round, still blocked, still for the same original
ensemble; the prefix has not moved, so the round replaces the fragment of the first in place (X-28). A failure of a
bookie that the round is just replacing adds nothing. When not all failed bookies can be replaced the change commits
what it has (X-38), and entries that still lack their quorum are sent once more to the bookies that stay: either they
answer, or their failure starts the next change; an entry is never stranded.

A failure for an entry that already has its quorum is *late* (2.10): it is remembered and handled when the next entry
is added, so an idle writer does not touch the store, and a busy one does not leave a tail short of a replica.

Fatal errors (2.11: fenced, unauthorized, unsupported, no bookie to replace the first failed one, too many changes,
metadata gone, closed or in recovery) fail everything pending with that error, in order. Failed means *unknown*: the
entries may or may not be in the ledger. The pipeline then asks to close the ledger at its confirmed prefix, unless a
recovery is known to decide the end.

Writers may ask for other treatment (`AddRules`). With *delayed changes* a bookie is replaced only when an entry could
not reach its ack quorum otherwise, or when the bookie has become read-only. With changes *switched off* what a bookie
failed is sent to it again, later and later. *Deferred sync* separates what is delivered (`head`) from what is
confirmed: the last add confirmed moves only when every bookie was forced, and the first failure is the end, because
entries that are acknowledged and not yet durable would be cut into a fragment that nobody extends any more.

In *recovery* the same pipeline writes the tail back: ids go on after the recovery's starting point, the LAC in
headers stays at that point (D-5: until the close commits the tail is provisional, I-14), a replacement ensemble is
kept in memory (`fragments`) instead of the store, changes are not counted, and no error closes the ledger, because
that would publish a prefix that stops before entries which may be confirmed.

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
    NotSupported,
    Unauthorized,
    WriteFailed,
)
from bookies.model import BookieId, Ensemble, LedgerMetadata, LedgerState
from bookies.protocol.ledger.ledger import with_ensemble
from bookies.protocol.quorums import IdSet, write_set
from bookies.protocol.quorums.quorum import next_stored, quorum_bound, stored_ids, stores

FATAL = (LedgerFenced, Unauthorized, NotSupported)


class Send(NamedTuple):
    """Send these entries, byte for byte as packaged first, to one bookie. Answers come back with `position`.

    Sends of one position are carried out in the order of the effects, so that a bookie sees ids ascending.
    """

    position: int
    bookie: BookieId
    entry_ids: Sequence[int]  # ascending; a range where consecutive


class Confirmed(NamedTuple):
    """Entries first..last are durable on an ack quorum, and so is everything before. Tell the application, in order."""

    first: int
    last: int


class ChangeEnsemble(NamedTuple):
    """Find replacements and commit them; then report `metadata_changed`, `ensemble_chosen` or `change_failed`.

    Nothing is confirmed until then. `failed`: (position, bookie) pairs to replace where they still are in the last
    ensemble of the record (in recovery: of `metadata`). `excluded`: bookies that failed earlier in the same change.
    `first_entry_id`: where the new fragment starts; it stays valid until the report.
    """

    first_entry_id: int
    failed: tuple[tuple[int, BookieId], ...]
    excluded: tuple[BookieId, ...]


class Failed(NamedTuple):
    """Entries first..last have failed with `error`: unknown, not absent. Tell the application, in order."""

    first: int
    last: int
    error: BookKeeperError


class CloseLedger(NamedTuple):
    """Close the metadata at the confirmed prefix. Comes after the `Failed` of everything pending.

    `is_implicit`: after a fatal error; a ledger in recovery is then left alone (D-27).
    """

    last_entry_id: int
    is_implicit: bool


class RetryLater(NamedTuple):
    """Ensemble changes are switched off: wait (longer with each `attempt`, from 0 on), then call `retry`."""

    position: int
    bookie: BookieId
    attempt: int


Effect = Send | Confirmed | ChangeEnsemble | Failed | CloseLedger | RetryLater
Effects = Sequence[Effect]


@dataclass(frozen=True, slots=True)
class AddRules:
    """How a writer wants failures and acknowledgements to be treated.

    `changes_max`: ensemble changes before the writer ends. `delays_changes`: replace bookies only when an entry could
    not reach its ack quorum otherwise (2.8). `is_deferred_sync`: entries are acknowledged before they are durable,
    nothing is confirmed until `forced`, and no bookie can be replaced (2.18). `domains`, `domains_min`: an entry also
    needs acknowledgements from so many fault domains, or from as many as it has replicas (2.17); 0: it does not.
    """

    changes_max: int = 1_000_000
    delays_changes: bool = False
    is_deferred_sync: bool = False
    domains: Mapping[BookieId, str] = field(default_factory=dict)
    domains_min: int = 0

    def domain(self, bookie: BookieId) -> str:
        """Empty: nobody knows it, so the bookie counts for none."""
        return self.domains.get(bookie, "")


class AddPipeline:
    """Decide for the adds of one open ledger. Events are method calls, their effects the results, in order.

    `recovery_start`: None for a writer of a fresh ledger; for write-back, the id before the first entry to write.
    """

    def __init__(
        self, metadata: LedgerMetadata, *, rules: AddRules | None = None, recovery_start: int | None = None
    ) -> None:
        # The last record known (in recovery with the changes in memory). Its ensemble is not necessarily in use yet.
        self.metadata = metadata
        self.ensemble: Ensemble = metadata.last_ensemble  # in use; follows the record when a change is complete
        self.fragments: dict[int, Ensemble] = {}  # recovery: changes kept in memory, by first entry id
        self.head = -1 if recovery_start is None else recovery_start  # the last entry delivered, as are all before
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
        self._failed = [IdSet() for _ in range(self._size)]  # answered with an error, not sent again
        self._has_failures = False  # whether `_failed` ever held anything
        self._late: dict[int, BookieId] = {}  # failures to handle with the next add, or the next round
        self._replacing: dict[int, BookieId] = {}  # failures the current round handles
        self._gone: list[BookieId] = []  # all bookies that failed in the current change
        self._retrying: set[tuple[int, BookieId]] = set()  # with a `RetryLater` under way
        self._attempts: dict[int, int] = {}  # retries in a row without an answer that is a success

    # -- what the shell may ask ----------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self.error is None

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that is durable on its ack quorum, as all before it are."""
        return self._forced if self._rules.is_deferred_sync else self.head

    @property
    def header_last_add_confirmed(self) -> int:
        """What goes into the header of the next entry: always true (I-13); in recovery the starting point (D-5)."""
        return self.last_add_confirmed if self._recovery_start is None else self._recovery_start

    @property
    def pending_count(self) -> int:
        """Entries added, neither delivered nor failed."""
        return self.last_add_pushed - self.head

    @property
    def has_undelivered(self) -> bool:
        """Entries wait for bookies."""
        return self.last_add_pushed > self.head

    @property
    def answered_bound(self) -> int:
        """Entries below this one need no bytes any more: confirmed, and every replica has answered or been replaced."""
        if self._has_failures:
            bound = min([self._answered_bound(position) for position in range(self._size)])
        else:
            bound = min([acked.bound for acked in self._acked])
        if self.is_open:
            bound = min(bound, self.head + 1)
        return min(bound, self._sent_bound)

    # -- events --------------------------------------------------------------------------------------------------

    def add(self, count: int) -> Effects:
        """Take the next `count` ids, packaged as entries `last_add_pushed + 1` and following."""
        assert self.is_open
        assert count > 0
        first = self._sent_bound
        self.last_add_pushed += count
        self._sent_bound = first + count
        return self._begin(first, first + count - 1)

    def add_to_all(self, count: int) -> range | None:
        """As `add`, if all that follows is a `Send` of the new ids to every position: the ids. None: use `add`."""
        if self._is_striped or self._late:
            return None
        assert self.is_open
        assert count > 0
        first = self._sent_bound
        self._sent_bound = first + count
        self.last_add_pushed += count
        return range(first, first + count)

    def _begin(self, first: int, last: int) -> Effects:
        """Send entries that are new, after handling what failed late."""
        effects: list[Effect] = []
        if self._late and self.allows_changes and not self.is_changing:
            effects.extend(self._handle_failure({}))
            if self.error is not None:
                self._has_failures = True
                for position, failed in enumerate(self._failed):  # Nothing was sent, so nobody will answer.
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
        """The bookie holds these entries durably."""
        if self.ensemble[position] != bookie:
            return ()
        acked = self._acked[position]
        if isinstance(entry_ids, range) and entry_ids.step == 1 and not self._is_striped and not acked.runs:
            start, stop = entry_ids.start, entry_ids.stop
            if start <= acked.bound < stop <= self._sent_bound:
                # Nearly always: the next ids in order. The same as below, without its cost per call.
                acked.bound = stop
                if self._attempts:
                    self._attempts.pop(position, None)
                return self._deliver() if stop > self.head + 1 else ()
        self._attempts.pop(position, None)
        for start, stop in self._runs(position, entry_ids):
            acked.add(start, stop)
        return self._deliver()

    def failed(self, position: int, bookie: BookieId, entry_ids: Sequence[int], error: BookKeeperError) -> Effects:
        """The bookie has not stored these entries, or it is not known whether it has."""
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
            self._late.update((at, who) for at, who in failed.items() if self._replacing.get(at) != who)
            return ()
        if not lacking:
            self._late.update(failed)
            return ()
        return self._handle_failure(failed)

    def _undecidable(self, lacking: list[int], *, is_urgent: bool) -> dict[int, BookieId]:
        """Delayed changes: every position that failed one of these entries, if it cannot reach its ack quorum any more.

        A bookie that has become read-only will refuse everything: it is replaced at once. Source: client-protocol 2.8.
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
        """An entry acknowledged but not synced anywhere yet must not be cut into a fragment that nobody extends."""
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
        """The wait of a `RetryLater` is over: send again what the bookie failed, or replace it after all."""
        self._retrying.discard((position, bookie))
        if self.error is not None or self.is_changing or self.ensemble[position] != bookie:
            return ()
        if self.allows_changes:
            return self._handle_failure({position: bookie})
        return list(self._resend(position))

    def forced(self, last_entry_id: int) -> Effects:
        """Deferred sync: all bookies of the ensemble have made durable what they had accepted up to this entry."""
        assert last_entry_id <= self.head
        self._forced = max(self._forced, last_entry_id)
        return ()

    def fail(self, error: BookKeeperError) -> Effects:
        """The writer cannot go on, for a reason that no bookie gave. Fatal."""
        return self._fatal(error) if self.error is None else ()

    def metadata_changed(self, metadata: LedgerMetadata) -> Effects:
        """A writer's `ChangeEnsemble` has been committed, or found unnecessary; `metadata` is the record now."""
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
        """A recovery's `ChangeEnsemble` has found replacements; they stay in memory until the close (I-10)."""
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
        """`ChangeEnsemble` could not be done. Fatal."""
        self.is_changing = False
        return self._fatal(error) if self.error is None else ()

    def close(self) -> Effects:
        """The application ends the ledger; what is pending fails, the end is the confirmed prefix."""
        if self.error is not None:
            return ()
        error = LedgerClosed("the ledger was sealed before the entry was confirmed")
        return [*self.abandon(error), CloseLedger(self.last_add_confirmed, is_implicit=False)]

    def abandon(self, error: BookKeeperError) -> Effects:
        """Let go without deciding the end: pending adds fail with `error`, the metadata stays as it is."""
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
        """The first id from `first` on that lacks its quorum."""
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
        """The first id of first..bound whose acknowledgements come from too few fault domains (D-23)."""
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
        """An id before which every id from `first` on has its quorum; greater than `first` if `first` has."""
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
        """Replace these bookies, members of the ensemble in use, and those that failed late."""
        assert not self.is_changing
        failed, self._late = failed | self._late, {}
        self._gone = []
        return self._start_round(failed)

    def _start_round(self, failed: dict[int, BookieId]) -> Effects:
        if not self._is_recovery:
            self._changes_left -= 1
            if self._changes_left < 0:
                return self._fatal(WriteFailed("too many ensemble changes", ledger_id=self.metadata.ledger_id))
        self.is_changing = True
        self._replacing = failed
        excluded = tuple(self._gone)
        self._gone.extend(bookie for bookie in failed.values() if bookie not in self._gone)
        return [ChangeEnsemble(self.head + 1, tuple(sorted(failed.items())), excluded)]

    def _agreed(self, ensemble: Ensemble) -> Effects:
        """The ensemble for everything pending is known: another round if more has failed, else undo and send again."""
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
        """Entries without quorum whose failed bookie could not be replaced are sent to it once more."""
        for position in range(self._size):
            yield from self._resend(position)

    def _resend(self, position: int) -> Iterator[Send]:
        """Everything pending that the bookie at this position has failed."""
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
        """The ids as [start, stop) of consecutive *stored* ids; `stop` is the next id that the position stores.

        Ids that were never sent to the position are no news about any entry and are left out.
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
        """The first id that the position stores and has not answered."""
        acked, failed = self._acked[position], self._failed[position]
        bound = acked.bound
        if failed.runs:
            while (further := acked.reach(failed.reach(bound))) != bound:
                bound = further
        return bound
