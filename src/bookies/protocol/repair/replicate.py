"""Decisions of re-replication: what to copy between which bookies, and when the record may name the new ones.

    choose targets  ->  copy every entry that the positions store  ->  swap the bookies in the record

I-18: this order is fixed. A record that names a bookie sends readers to it, so the copies must be complete and durable
first. Until the swap the record is unchanged. An aborted copy leaves garbage that its bookie collects automatically,
and can be repeated at any time (X-72).

Only finished fragments are copied. A copy of one that may still grow would miss entries written meanwhile, and the swap
would race with the writer's own (X-70).

Entries are copied byte by byte: their digest needs no password, and every replica stays identical to what the writer
sent. Adds carry the recovery flag, because the ledger usually is, or will be, fenced at the target (X-71). A position
gets only the ids it stores (D-22). Source: client-protocol 7.3.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from bookies.errors import FragmentNotFinished, InvalidArgument, NotEnoughBookies, VersionConflict
from bookies.model import INVALID_ENTRY_ID, BookieId, Ensemble, LedgerMetadata
from bookies.protocol.ledger.ledger import changed_record
from bookies.protocol.pacing import RateLimit
from bookies.protocol.placement.candidates import Candidates
from bookies.protocol.placement.placement import choose_replacements
from bookies.protocol.quorums import write_set
from bookies.protocol.quorums.quorum import next_stored, stores
from bookies.protocol.repair.fragments import Fragment, FragmentVerdict, ReplicaState, ReplicaVerdict

ENTRIES_MAX = 1000  # copied at a time
STRIPED_ENTRIES_MAX = 64  # of a striped fragment, whose entries are read one by one, concurrently
SIZE_MAX = RateLimit.part_size  # bytes copied at a time, by the estimated entry size
ENTRY_SIZE_GUESS = 1024.0
OLD_WEIGHT = 0.8  # of the average entry size, when new sizes come in


class Replacement(NamedTuple):
    """Replacement of `old` by `new` at a position; if both are the same, its entries are renewed in place."""

    position: int
    old: BookieId
    new: BookieId


def check_finished(fragment: Fragment) -> None:
    """Check that a fragment is finished. Raises `FragmentNotFinished`."""
    if not fragment.is_finished:
        raise FragmentNotFinished(
            f"the fragment of entries {fragment.first} to {fragment.last} can still receive entries, or is not known "
            "to be finished yet: recover the ledger first",
            ledger_id=fragment.ledger_id,
        )


def choose_targets(
    fragment: Fragment,
    positions: Sequence[int],
    candidates: Sequence[BookieId],
    exclude: Collection[BookieId] = (),
) -> tuple[Replacement, ...]:
    """Choose a new bookie, not yet a member, for each position, as well placed as possible.

    `candidates`: in order of preference. Raises `NotEnoughBookies`.
    """
    if not positions:
        return ()
    members = fragment.ensemble
    try:
        targets = choose_replacements(
            Candidates.of(candidates), members, positions, fragment.write_quorum, fragment.ack_quorum, exclude
        )
    except NotEnoughBookies as error:
        error.ledger_id, error.entry_id = fragment.ledger_id, fragment.first
        raise
    return tuple(Replacement(position, members[position], targets[position]) for position in positions)


def choose_some_targets(
    fragment: Fragment,
    positions: Sequence[int],
    candidates: Sequence[BookieId],
    exclude: Collection[BookieId] = (),
) -> tuple[Replacement, ...]:
    """Choose a new bookie for as many of the positions as possible, the first ones first.

    To learn why the others have none, call `choose_targets` for them once the record names the new bookies.
    Raises `NotEnoughBookies` when none of them can be replaced.
    """
    try:
        return choose_targets(fragment, positions, candidates, exclude)
    except NotEnoughBookies:
        chosen: tuple[Replacement, ...] = ()
        for position in positions if len(positions) > 1 else ():
            with contextlib.suppress(NotEnoughBookies):
                chosen = choose_targets(fragment, [*(item.position for item in chosen), position], candidates, exclude)
        if not chosen:
            raise
        return chosen


def replaced_in(fragment: Fragment, replacements: Sequence[Replacement]) -> Fragment:
    """Return the fragment as it is when the record names the new bookies."""
    new = {replacement.position: replacement.new for replacement in replacements}
    return replace(fragment, ensemble=tuple(new.get(at, bookie) for at, bookie in enumerate(fragment.ensemble)))


def renewals(fragment: Fragment, positions: Sequence[int]) -> tuple[Replacement, ...]:
    """Return the replacements for bookies that stay in place and get their missing entries again."""
    members = fragment.ensemble
    return tuple(Replacement(position, members[position], members[position]) for position in positions)


def unknown_replicas(verdict: FragmentVerdict, lost: Collection[BookieId]) -> list[ReplicaVerdict]:
    """Return the replicas that may be good: their bookies do not answer, or cannot tell, and do not count as lost."""
    unknown = verdict.positions(ReplicaState.UNAVAILABLE, ReplicaState.CANNOT_TELL)
    return [
        replica
        for replica in verdict.replicas
        if replica.position in unknown
        and replica.bookie not in lost
        and verdict.fragment.first_stored(replica.position) != INVALID_ENTRY_ID
    ]


class FragmentCopy:
    """Progress of a fragment's copy. Read `next_ids`, write their `shares`, report with `copied`, until `is_done`.

    Raises `FragmentNotFinished`, and `InvalidArgument` for replacements that do not fit the fragment.
    """

    def __init__(self, fragment: Fragment, replacements: Sequence[Replacement]) -> None:
        check_finished(fragment)
        _check_replacements(fragment, replacements)
        self.fragment = fragment
        self.replacements = tuple(replacements)
        self.swap = Swap(fragment, self.replacements)  # to be committed when everything is copied, not before
        self._positions = [replacement.position for replacement in replacements]
        self._next = self._first_from(fragment.first)
        self._entry_size = ENTRY_SIZE_GUESS

    @property
    def is_done(self) -> bool:
        return self._next > self.fragment.last

    def next_ids(self, size_max: int = SIZE_MAX) -> Sequence[int]:
        """Return the ids to copy now, ascending; consecutive (a `range`) unless the fragment is striped."""
        fragment = self.fragment
        count = max(1, int(size_max / self._entry_size))
        if not fragment.is_striped:
            return range(self._next, min(fragment.last, self._next + min(count, ENTRIES_MAX) - 1) + 1)
        ids: list[int] = []
        entry_id = self._next
        while entry_id <= fragment.last and len(ids) < min(count, STRIPED_ENTRIES_MAX):
            ids.append(entry_id)
            entry_id = self._first_from(entry_id + 1)
        return ids

    def sources(self, entry_id: int) -> list[BookieId]:
        """Return the bookies to read an entry from: those that stay, then those that are replaced, then those that are
        renewed, which may lack the entry."""
        fragment, size = self.fragment, len(self.fragment.ensemble)
        holders = [fragment.ensemble[position] for position in write_set(entry_id, size, fragment.write_quorum)]
        distrust = {item.old: 2 if item.old == item.new else 1 for item in self.replacements}
        return sorted(holders, key=lambda bookie: distrust.get(bookie, 0))

    def shares(self, ids: Sequence[int]) -> list[tuple[BookieId, Sequence[int]]]:
        """Return which of these ids to write to each bookie; without bookies that get none."""
        fragment, size = self.fragment, len(self.fragment.ensemble)
        shares: list[tuple[BookieId, Sequence[int]]] = []
        for position, _, target in self.replacements:
            share = ids
            if fragment.is_striped:
                share = [entry_id for entry_id in ids if stores(position, entry_id, size, fragment.write_quorum)]
            if share:
                shares.append((target, share))
        return shares

    def copied(self, last: int, count: int, size: int) -> None:
        """Report that `count` entries up to `last`, `size` bytes in all, are durable on every target of theirs."""
        assert last >= self._next
        self._next = self._first_from(last + 1)
        self._entry_size = OLD_WEIGHT * self._entry_size + (1 - OLD_WEIGHT) * size / count

    def _first_from(self, entry_id: int) -> int:
        size = len(self.fragment.ensemble)
        return min(next_stored(position, entry_id, size, self.fragment.write_quorum) for position in self._positions)


def _check_replacements(fragment: Fragment, replacements: Sequence[Replacement]) -> None:
    after = list(fragment.ensemble)
    for position, old, new in replacements:
        if not 0 <= position < len(after) or fragment.ensemble[position] != old:
            raise InvalidArgument(f"bookie {old} is not at position {position} of [{', '.join(fragment.ensemble)}]")
        after[position] = new
    positions = {replacement.position for replacement in replacements}
    is_twice = any(after.count(replacement.new) > 1 for replacement in replacements)
    if not replacements or len(positions) < len(replacements) or is_twice:
        raise InvalidArgument(
            f"cannot replace {len(replacements)} bookies of [{', '.join(fragment.ensemble)}]: name at least one, each "
            "position once, and new bookies that are not among them"
        )


class Swap(Struct, frozen=True):
    """Change of the record, as a pair of functions for the metadata update loop. Changes this fragment only."""

    fragment: Fragment
    replacements: tuple[Replacement, ...]

    def check_unchanged(self, record: LedgerMetadata) -> None:
        """Check, before a copy, that the record has the fragment as planned. Raises `VersionConflict`."""
        if self._ensemble_in(record) != self.fragment.ensemble:
            raise self._conflict("other bookies hold it now")

    def needed(self, record: LedgerMetadata) -> bool:
        """Report whether an old bookie is still a member. Raises `VersionConflict` if the fragment has changed."""
        ensemble = self._ensemble_in(record)
        return any(ensemble[position] == old != new for position, old, new in self.replacements)

    def apply(self, record: LedgerMetadata) -> LedgerMetadata:
        """Return the record with the new bookies. Raises `VersionConflict` when others have replaced bookies meanwhile.

        The new bookies were chosen to go with the old ensemble. With another one they may break the placement rule, or
        hold two positions.
        """
        changed = list(self._ensemble_in(record))
        new = {replacement.position: replacement.new for replacement in self.replacements}
        for position, (bookie, was) in enumerate(zip(changed, self.fragment.ensemble, strict=True)):
            if bookie not in (was, new.get(position)):
                raise self._conflict(f"bookie {bookie} holds position {position} of it now instead of {was}")
            changed[position] = new.get(position, bookie)
        first = self.fragment.first
        return changed_record(
            record,
            ensembles=tuple(
                (start, tuple(changed) if start == first else ensemble) for start, ensemble in record.ensembles
            ),
        )

    def _ensemble_in(self, record: LedgerMetadata) -> Ensemble:
        index = record.fragment_index(self.fragment.first)
        first, ensemble = record.ensembles[index]
        is_last = index == len(record.ensembles) - 1
        last = record.last_entry_id if is_last else record.ensembles[index + 1][0] - 1
        if is_last and not record.is_closed:
            raise FragmentNotFinished("the fragment can still receive entries", ledger_id=record.ledger_id)
        if (first, last) != (self.fragment.first, self.fragment.last):
            raise self._conflict(f"it reaches from {first} to {last} now")
        return ensemble

    def _conflict(self, reason: str) -> VersionConflict:
        first, last = self.fragment.first, self.fragment.last
        return VersionConflict(
            f"the fragment of entries {first} to {last} has changed meanwhile: {reason}; nothing was "
            "changed, replicate it again",
            ledger_id=self.fragment.ledger_id,
        )
