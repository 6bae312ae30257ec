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

1. From the failure on the pipeline confirms nothing (`AddState.CHANGING`). The new fragment starts at
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

`TRANSITIONS` is the table of states. An acknowledgement is no event of it: entries are confirmed within one state.

Source: client-protocol 2.3 to 2.11, 2.13, 2.17, 2.18, 4.6.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct, field

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
from bookies.protocol.quorums import IdSet
from bookies.protocol.quorums.quorum import Quorums, quorum_bound
from bookies.transitions import following

FATAL = (LedgerFenced, LedgerNotFound, Unauthorized, NotSupported)


class AddState(enum.Enum):
    CONFIRMING = "confirms entries as their quorums acknowledge them"
    CHANGING = "waits for the report of a `ChangeEnsemble`; confirms nothing"
    ENDED_CHANGING = "has ended; the report of a `ChangeEnsemble` is still to come"
    ENDED = "has ended"


_CONFIRMING = AddState.CONFIRMING  # read for every acknowledgement
_BOUND = attrgetter("bound")


class AddEvent(enum.Enum):
    CHANGE_REQUESTED = "members of the ensemble failed: a `ChangeEnsemble` goes out"
    CHANGE_ADOPTED = "the reported ensemble is in use, and no member of it has failed meanwhile"
    CHANGE_REFUSED = "no replacement, a closed ledger, a recovery by another client, or too many changes"
    CHANGE_OBSOLETE = "the report came after the end"
    FAILED = "a fatal error: fenced, unauthorized, unsupported, or `fail`"
    CLOSED = "`close` or `abandon`"


TRANSITIONS = {
    (AddState.CONFIRMING, AddEvent.CHANGE_REQUESTED): AddState.CHANGING,
    (AddState.CONFIRMING, AddEvent.CHANGE_REFUSED): AddState.ENDED,
    (AddState.CONFIRMING, AddEvent.FAILED): AddState.ENDED,
    (AddState.CONFIRMING, AddEvent.CLOSED): AddState.ENDED,
    (AddState.CHANGING, AddEvent.CHANGE_REQUESTED): AddState.CHANGING,  # another round: further members failed
    (AddState.CHANGING, AddEvent.CHANGE_ADOPTED): AddState.CONFIRMING,
    (AddState.CHANGING, AddEvent.CHANGE_REFUSED): AddState.ENDED,
    (AddState.CHANGING, AddEvent.FAILED): AddState.ENDED_CHANGING,
    (AddState.CHANGING, AddEvent.CLOSED): AddState.ENDED_CHANGING,
    (AddState.ENDED_CHANGING, AddEvent.CHANGE_OBSOLETE): AddState.ENDED,
}


class Send(NamedTuple):
    """Effect: send these entries, byte for byte as first packaged, to one bookie. Report answers with `position`.

    Carry out the sends of one position in the order of the effects, so that a bookie receives ascending ids.
    """

    position: int
    bookie: BookieId
    entry_ids: Sequence[int]  # ascending; a range where consecutive


class Confirmed(Struct, frozen=True, gc=False):
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


class AddRules(Struct, frozen=True):
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


class _Replacement(Struct):
    """Failed members of the ensemble, and the rounds of a change that replaces them.

    rounds_left: rounds before the writer ends.
    late: failures to handle with the next add, or in the next round.
    replacing: failures that the current round handles.
    """

    rounds_left: int
    late: dict[int, BookieId] = field(default_factory=dict)
    replacing: dict[int, BookieId] = field(default_factory=dict)
    _failed_members: list[BookieId] = field(default_factory=list)  # all bookies that failed in the current change

    def report(self, failed: dict[int, BookieId]) -> None:
        """Note failures during a round, except of the bookies that it replaces."""
        self.late.update((at, old) for at, old in failed.items() if self.replacing.get(at) != old)

    def begin(self, failed: dict[int, BookieId]) -> dict[int, BookieId]:
        """Begin a change. Return the failures to replace: these and the late ones."""
        failed, self.late = failed | self.late, {}
        self._failed_members = []
        return failed

    def begin_round(self, failed: dict[int, BookieId]) -> tuple[BookieId, ...]:
        """Begin a round. Return the bookies that failed in earlier rounds of the change."""
        self.replacing = failed
        excluded = tuple(self._failed_members)
        self._failed_members.extend(bookie for bookie in failed.values() if bookie not in self._failed_members)
        return excluded

    def take_late(self, ensemble: Ensemble) -> dict[int, BookieId]:
        """Remove the late failures. Return those of members of this ensemble."""
        late, self.late = self.late, {}
        return {position: bookie for position, bookie in late.items() if ensemble[position] == bookie}


class _Failures:
    """Entries that bookies answered with an error, and the retries while changes are switched off.

    by_position: ids that the bookie at each position has failed.
    has_any: whether there ever was a failure.
    """

    __slots__ = ("_attempts", "_retrying", "by_position", "has_any")

    def __init__(self) -> None:
        self.by_position: defaultdict[int, IdSet] = defaultdict(IdSet)
        self.has_any = False
        self._retrying: set[tuple[int, BookieId]] = set()  # with a pending `RetryLater`
        self._attempts: dict[int, int] = {}  # consecutive retries without a successful answer

    def add(self, position: int, start: int, stop: int) -> None:
        self.has_any = True
        self.by_position[position].add(start, stop)

    def answered(self, position: int) -> None:
        """Note a successful answer: the next retry is the first one again."""
        self._attempts.pop(position, None)

    def retry_later(self, position: int, bookie: BookieId) -> Effects:
        if (position, bookie) in self._retrying:
            return ()
        self._retrying.add((position, bookie))
        attempt = self._attempts.get(position, 0)
        self._attempts[position] = attempt + 1
        return (RetryLater(position, bookie, attempt),)

    def retried(self, position: int, bookie: BookieId) -> None:
        self._retrying.discard((position, bookie))


class _WriteBack(Struct, frozen=True):
    """A recovery's use of the pipeline. `start`: the id before the first entry to write.

    fragments: the ensemble changes, kept in memory until the close, by first entry id.
    """

    start: int
    fragments: dict[int, Ensemble] = field(default_factory=dict)


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
        self.head = -1 if recovery_start is None else recovery_start  # last entry of the delivered prefix
        self.allows_changes = True  # may be switched at any time (client-protocol 2.9)
        self.error: BookKeeperError | None = None  # why the pipeline ended
        self.state = AddState.CONFIRMING
        self._rules = rules or AddRules()
        size, write_quorum = metadata.ensemble_size, metadata.write_quorum
        domains_min = min(self._rules.domains_min, write_quorum)
        self._quorums = Quorums(size, write_quorum, metadata.ack_quorum, domains_min, write_quorum < size)
        self._write_back = None if recovery_start is None else _WriteBack(recovery_start)
        self._forced = self.head  # deferred sync: the last entry known to be durable
        self._sent_bound = self.head + 1
        self._acked = [IdSet(self._quorums.next_stored(position, self._sent_bound)) for position in range(size)]
        self._failures = _Failures()
        self._replacement = _Replacement(self._rules.changes_max)

    # -- state ---------------------------------------------------------------------------------------------------

    def _follow(self, event: AddEvent) -> None:
        self.state = following(TRANSITIONS, self.state, event)

    @property
    def is_open(self) -> bool:
        return self.error is None

    @property
    def is_changing(self) -> bool:
        """Report whether a `ChangeEnsemble` waits for its report."""
        return self.state is AddState.CHANGING or self.state is AddState.ENDED_CHANGING

    @property
    def fragments(self) -> dict[int, Ensemble]:
        """Return a recovery's changes, which are kept in memory, by first entry id."""
        return {} if self._write_back is None else self._write_back.fragments

    @property
    def last_add_pushed(self) -> int:
        """Return the last entry that was added; after the end, the last one that was delivered."""
        return self._sent_bound - 1 if self.error is None else self.head

    @property
    def last_add_confirmed(self) -> int:
        """Return the last entry of the prefix that is durable on its ack quorums."""
        return self._forced if self._rules.is_deferred_sync else self.head

    @property
    def header_last_add_confirmed(self) -> int:
        """Return the LAC for the header of the next entry: always true (I-13); in recovery the starting point (D-5)."""
        return self.last_add_confirmed if self._write_back is None else self._write_back.start

    @property
    def pending_count(self) -> int:
        """Return the number of entries added that are neither delivered nor failed."""
        return self._sent_bound - 1 - self.head if self.error is None else 0

    @property
    def has_undelivered(self) -> bool:
        """Report whether entries wait for answers of bookies."""
        return self._sent_bound - 1 > self.head and self.error is None

    @property
    def answered_bound(self) -> int:
        """Return the bound below which the caller may release entry bytes.

        Every entry below it is confirmed, and each of its replicas has answered or been replaced.
        """
        if self._failures.has_any:
            bound = min([self._answered_bound(position) for position in range(len(self.ensemble))])
        else:
            bound = min(map(_BOUND, self._acked))
        limit = self._sent_bound if self.error is not None else self.head + 1
        return bound if bound < limit else limit

    # -- events --------------------------------------------------------------------------------------------------

    def add(self, count: int) -> Effects:
        """Add the next `count` ids, packaged as entries `last_add_pushed + 1` and following."""
        assert self.is_open
        assert count > 0
        first = self._sent_bound
        self._sent_bound = first + count
        return self._begin(first, first + count - 1)

    def add_to_all(self, count: int) -> range | None:
        """Add, and return the ids, if the only effect is a `Send` of them to every position. None: use `add`."""
        if self._quorums.is_striped or self._replacement.late:
            return None
        assert self.is_open
        assert count > 0
        first = self._sent_bound
        self._sent_bound = first + count
        return range(first, first + count)

    def _begin(self, first: int, last: int) -> Effects:
        """Send new entries, after handling late failures."""
        effects: list[Effect] = []
        if self._replacement.late and self.allows_changes and self.state is AddState.CONFIRMING:
            effects.extend(self._handle_failure({}))
            if self.error is not None:
                next_stored = self._quorums.next_stored
                for position in range(len(self.ensemble)):  # Nothing was sent, so no bookie will answer.
                    self._failures.add(position, next_stored(position, first), next_stored(position, last + 1))
                return effects
        effects.extend(self._sends(first, last))
        return effects

    def _sends(self, first: int, last: int) -> Iterator[Send]:
        ids: Sequence[int] = range(first, last + 1)
        for position, bookie in enumerate(self.ensemble):
            if self._quorums.is_striped:
                ids = self._stored_ids(position, first, last)
            if ids:
                yield Send(position, bookie, ids)

    def acknowledged(self, position: int, bookie: BookieId, entry_ids: Sequence[int]) -> Effects:
        """Record that the bookie holds these entries durably."""
        if self.ensemble[position] != bookie:
            return ()
        acked = self._acked[position]
        if type(entry_ids) is range and entry_ids.step == 1 and not acked.runs and not self._quorums.is_striped:
            stop = entry_ids.stop
            if entry_ids.start <= acked.bound < stop <= self._sent_bound:
                # The usual case, the next ids in order: the same result as below at a lower cost per call.
                acked.bound = stop
                if self._failures.has_any:
                    self._failures.answered(position)
                return self._deliver() if stop > self.head + 1 else ()
        self._failures.answered(position)
        for start, stop in self._quorums.runs(position, entry_ids, self._sent_bound):
            acked.add(start, stop)
        return self._deliver()

    def failed(self, position: int, bookie: BookieId, entry_ids: Sequence[int], error: BookKeeperError) -> Effects:
        """Record that the bookie has not stored these entries, or that it is unknown whether it has."""
        if self.ensemble[position] != bookie:
            return ()
        runs = list(self._quorums.runs(position, entry_ids, self._sent_bound))
        for start, stop in runs:
            self._failures.add(position, start, stop)
        if self.error is not None:
            return ()
        lacking = [entry_id for entry_id in self._pending_ids(position, runs) if not self._is_complete(entry_id)]
        if lacking and isinstance(error, ClientClosed):
            return self.abandon(error)
        if lacking and isinstance(error, FATAL):
            return self._fatal(error)
        if self._rules.is_deferred_sync:
            return self._fatal(self._deferred_failure(bookie, error))
        if not self.allows_changes and self._write_back is None:
            return self._failures.retry_later(position, bookie) if lacking else ()
        failed = {position: bookie}
        if self._rules.delays_changes:
            failed = self._undecidable(lacking, is_urgent=isinstance(error, BookieReadOnly))
            if not failed:
                return ()
        if self.is_changing:
            self._replacement.report(failed)
            return ()
        if not lacking:
            self._replacement.late.update(failed)
            return ()
        return self._handle_failure(failed)

    def _undecidable(self, lacking: list[int], *, is_urgent: bool) -> dict[int, BookieId]:
        """Return, with delayed changes, the positions to replace: those that failed an entry which can no longer reach
        its ack quorum.

        `is_urgent`: the bookie has become read-only and will refuse every add, so it is replaced at once.
        Source: client-protocol 2.8.
        """
        spare = self._quorums.write_quorum - self._quorums.ack_quorum
        failed: dict[int, BookieId] = {}
        for entry_id in lacking:
            bad = [
                at
                for at in self._quorums.positions(entry_id)
                if entry_id in self._failures.by_position[at] and entry_id not in self._acked[at]
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

    def retry(self, position: int, bookie: BookieId) -> Effects:
        """End the wait of a `RetryLater`: resend the entries that the bookie failed, or replace it if that is allowed
        again."""
        self._failures.retried(position, bookie)
        if self.state is not AddState.CONFIRMING or self.ensemble[position] != bookie:
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
        self.metadata = metadata
        if self.error is not None:
            self._follow(AddEvent.CHANGE_OBSOLETE)
            return ()
        if metadata.state is LedgerState.CLOSED:
            closed = LedgerClosed("another client has closed the ledger", ledger_id=metadata.ledger_id)
            return self._fatal(closed, AddEvent.CHANGE_REFUSED)
        if metadata.state is LedgerState.IN_RECOVERY:
            fenced = LedgerFenced("another client is recovering the ledger", ledger_id=metadata.ledger_id)
            return self._fatal(fenced, AddEvent.CHANGE_REFUSED)
        return self._agreed(metadata.last_ensemble)

    def ensemble_chosen(self, ensemble: Ensemble) -> Effects:
        """Complete a recovery's `ChangeEnsemble`; the replacements stay in memory until the close (I-10)."""
        assert self._write_back is not None
        if self.error is not None:
            self._follow(AddEvent.CHANGE_OBSOLETE)
            return ()
        first = self.head + 1
        self._write_back.fragments[first] = ensemble
        self.metadata = with_ensemble(self.metadata, first, ensemble)
        return self._agreed(ensemble)

    def change_failed(self, error: BookKeeperError) -> Effects:
        """Report that a `ChangeEnsemble` could not be done. Fatal."""
        if self.error is not None:
            self._follow(AddEvent.CHANGE_OBSOLETE)
            return ()
        return self._fatal(error, AddEvent.CHANGE_REFUSED)

    def close(self) -> Effects:
        """End the ledger at its confirmed prefix, for the application; pending entries fail."""
        if self.error is not None:
            return ()
        error = LedgerClosed("the ledger was sealed before the entry was confirmed")
        return [*self._end(AddEvent.CLOSED, error), CloseLedger(self.last_add_confirmed, is_implicit=False)]

    def abandon(self, error: BookKeeperError) -> Effects:
        """End the pipeline without deciding the ledger's end: fail pending adds with `error`, keep the metadata."""
        return self._end(AddEvent.CLOSED, error) if self.error is None else ()

    # -- confirming ----------------------------------------------------------------------------------------------

    def _deliver(self) -> Effects:
        if self.state is not _CONFIRMING:
            return ()
        first = self.head + 1
        bound = self._quorum_bound(first)
        if bound == first:
            return ()
        self.head = bound - 1
        return (Confirmed(first, bound - 1),)

    def _quorum_bound(self, first: int) -> int:
        """Return the first id from `first` on that lacks its quorum."""
        quorums, sent_bound = self._quorums, self._sent_bound
        while first < sent_bound:
            if quorums.is_striped:
                bound = quorums.striped_bound(first, self._acked)
            else:
                bounds = [acked.reach(first) if acked.runs else acked.bound for acked in self._acked]
                bound = quorum_bound(bounds, quorums.ack_quorum)
            if quorums.domains_min > 1:
                bound = self._domain_bound(first, bound)
            if bound <= first:
                break
            first = bound
        return first if first < sent_bound else sent_bound

    def _domain_bound(self, first: int, bound: int) -> int:
        """Return the first id in first..bound that too few fault domains have acknowledged (D-23), or `bound`."""
        for entry_id in range(first, min(bound, self._sent_bound)):
            if not self._spans_domains(entry_id):
                return entry_id
        return bound

    def _spans_domains(self, entry_id: int) -> bool:
        domains = {
            self._rules.domain(self.ensemble[position])
            for position in self._quorums.positions(entry_id)
            if entry_id in self._acked[position]
        }
        domains.discard("")
        return len(domains) >= self._quorums.domains_min

    def _is_complete(self, entry_id: int) -> bool:
        quorums = self._quorums
        holders = sum(entry_id in self._acked[position] for position in quorums.positions(entry_id))
        return holders >= quorums.ack_quorum and (quorums.domains_min < 2 or self._spans_domains(entry_id))

    # -- changing the ensemble -----------------------------------------------------------------------------------

    def _handle_failure(self, failed: dict[int, BookieId]) -> Effects:
        """Start to replace these members of the ensemble in use, and those that failed late."""
        return self._start_round(self._replacement.begin(failed))

    def _start_round(self, failed: dict[int, BookieId]) -> Effects:
        if self._write_back is None:
            self._replacement.rounds_left -= 1
            if self._replacement.rounds_left < 0:
                spent = WriteFailed("too many ensemble changes", ledger_id=self.metadata.ledger_id)
                return self._fatal(spent, AddEvent.CHANGE_REFUSED)
        self._follow(AddEvent.CHANGE_REQUESTED)
        excluded = self._replacement.begin_round(failed)
        return [ChangeEnsemble(self.head + 1, tuple(sorted(failed.items())), excluded)]

    def _agreed(self, ensemble: Ensemble) -> Effects:
        """Adopt the agreed ensemble for all pending entries; if more members have failed, start another round."""
        late = self._replacement.take_late(ensemble)
        if late and (self.allows_changes or self._write_back is not None):
            return self._start_round(late)
        first, last = self.head + 1, self.last_add_pushed
        replaced = [position for position, bookie in enumerate(self.ensemble) if bookie != ensemble[position]]
        self.ensemble = ensemble
        for position in replaced:
            self._acked[position] = IdSet(self._quorums.next_stored(position, first))
            self._failures.by_position.pop(position, None)
        self._replacement.replacing = {}
        effects: list[Effect] = []
        for position in replaced:
            ids = self._stored_ids(position, first, last)
            if ids:
                effects.append(Send(position, ensemble[position], ids))
        self._follow(AddEvent.CHANGE_ADOPTED)
        effects.extend(self._deliver())
        effects.extend(self._resend_stranded())
        return effects

    def _resend_stranded(self) -> Iterator[Send]:
        """Resend entries without quorum to failed bookies that could not be replaced."""
        for position in range(len(self.ensemble)):
            yield from self._resend(position)

    def _resend(self, position: int) -> Iterator[Send]:
        """Resend the pending entries that the bookie at this position has failed."""
        acked, ids = self._acked[position], []
        for start, stop in self._failures.by_position[position].cut(self._quorums.next_stored(position, self.head + 1)):
            last = min(stop, self._sent_bound) - 1
            stored = self._stored_ids(position, start, last)
            ids += [entry_id for entry_id in stored if entry_id not in acked]
        if ids:
            yield Send(position, self.ensemble[position], ids)

    # -- ending --------------------------------------------------------------------------------------------------

    def _end(self, event: AddEvent, error: BookKeeperError) -> list[Effect]:
        """End the pipeline: all pending entries fail with `error`."""
        self._follow(event)
        first, last = self.head + 1, self.last_add_pushed
        self.error = error
        return [Failed(first, last, error)] if first <= last else []

    def _fatal(self, error: BookKeeperError, event: AddEvent = AddEvent.FAILED) -> Effects:
        effects = self._end(event, error)
        if self._write_back is None and self.metadata.state is not LedgerState.IN_RECOVERY:
            effects.append(CloseLedger(self.last_add_confirmed, is_implicit=True))
        return effects

    # -- ids of a position ---------------------------------------------------------------------------------------

    def _stored_ids(self, position: int, first: int, last: int) -> Sequence[int]:
        return self._quorums.stored_ids(position, first, last)

    def _pending_ids(self, position: int, runs: list[tuple[int, int]]) -> Iterator[int]:
        for start, stop in runs:
            first = max(start, self.head + 1)
            yield from self._stored_ids(position, first, stop - 1)

    def _answered_bound(self, position: int) -> int:
        """Return the first id that the position stores and has not answered."""
        acked, failed = self._acked[position], self._failures.by_position[position]
        bound = acked.bound
        if failed.runs:
            while (further := acked.reach(failed.reach(bound))) != bound:
                bound = further
        return bound
