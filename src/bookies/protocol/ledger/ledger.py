"""Legal transitions of a ledger's metadata record, as pure functions, and the check that a transition is legal.

    OPEN         --ensemble change by the writer-->              OPEN
    OPEN         --announcement of a recovery-->                 IN_RECOVERY (fragments untouched)
    OPEN         --close by the writer-->                        CLOSED
    IN_RECOVERY  --close by a recovery, with its fragments-->    CLOSED
    IN_RECOVERY  --explicit close by the writer-->               CLOSED (safe: the writer knows its confirmed prefix)
    any          --re-replication inside a finished fragment-->  same state

A CLOSED record stays CLOSED, and its end never changes (I-4, I-7). Every change is a compare-and-swap. The *needed*
predicates check the content of a record, not its author. So a client recognises its own write when the reply was lost
(X-35). The loser of a race re-applies its change to the fresh record and keeps changes of older fragments (X-34).

While a recovery runs, the published fragments stay exactly those the writer used (I-10): another recovery must keep
reading where the entries are. A recovery keeps its own replacements in memory until the one swap that closes.

Source: client-protocol 1.2, 1.3, 2.7, 2.12, 2.13, 4.2, 4.7.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from itertools import pairwise

from bookies.errors import InvalidArgument, LedgerFenced, LocalProtocolError, VersionConflict
from bookies.model import BookieId, DigestType, Ensemble, LedgerMetadata, LedgerState


class Author(enum.Enum):
    """Committer of a record; each may make only its own transitions (client-protocol 1.3)."""

    WRITER = "writer"
    RECOVERY = "recovery"
    REPLICATOR = "replicator"


def new_ledger(
    ledger_id: int,
    ensemble: Ensemble,
    write_quorum: int,
    ack_quorum: int,
    *,
    digest_type: DigestType,
    password: bytes,
) -> LedgerMetadata:
    """Return the record of a ledger without entries. Raises `InvalidArgument`. Source: client-protocol 2.2."""
    check_quorums(len(ensemble), write_quorum, ack_quorum)
    if ledger_id < 0:
        raise InvalidArgument(f"ledger id {ledger_id} is negative")
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=len(ensemble),
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        ensembles=((0, ensemble),),
        digest_type=digest_type,
        password=password,
    )


def check_quorums(ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
    """Check E >= Qw >= Qa >= 1. Raises `InvalidArgument`."""
    if not ensemble_size >= write_quorum >= ack_quorum >= 1:
        raise InvalidArgument(
            f"ensemble={ensemble_size}, write_quorum={write_quorum}, ack_quorum={ack_quorum}: "
            "must be ensemble >= write_quorum >= ack_quorum >= 1"
        )


def changed_record(record: LedgerMetadata, **changes: object) -> LedgerMetadata:
    """Return a record to write over this one. The creator token is 0 after the first version, as in Apache's updates.

    Source: metadata 4.3.
    """
    return record.replace(creator_token=0, **changes)


# -- the writer's ensemble change ----------------------------------------------------------------------------------


def change_needed(record: LedgerMetadata, failed: Iterable[tuple[int, BookieId]]) -> bool:
    """Report whether a failed (position, bookie) still has to be replaced; False once the ledger is not OPEN."""
    last = record.last_ensemble
    return record.state is LedgerState.OPEN and any(last[position] == bookie for position, bookie in failed)


def with_ensemble(record: LedgerMetadata, first_entry_id: int, ensemble: Ensemble) -> LedgerMetadata:
    """Return the record with `ensemble` from `first_entry_id` on, the first id that is not confirmed.

    The fragment before holds all entries below, acknowledged in full, and becomes immutable. A fragment that starts at
    `first_entry_id` has no confirmed entry yet and is replaced in place. Raises `LocalProtocolError` when the last
    fragment starts later: another client confirmed entries that this one did not.
    """
    last_first = record.last_fragment_first_entry
    if last_first > first_entry_id:
        raise LocalProtocolError(
            f"last fragment starts at {last_first}, after the new one at {first_entry_id}", ledger_id=record.ledger_id
        )
    kept = record.ensembles[:-1] if last_first == first_entry_id else record.ensembles
    return changed_record(record, ensembles=(*kept, (first_entry_id, ensemble)))


# -- closing by the writer -----------------------------------------------------------------------------------------


def close_needed(record: LedgerMetadata, last_entry_id: int, length: int, *, is_implicit: bool) -> bool:
    """Report whether the writer has to write CLOSED at its own end. False: the record is closed at that end.

    `is_implicit`: the close follows a fatal error. Then it leaves a record IN_RECOVERY to the recovery (D-27). An
    explicit close decides the end itself, which is safe because it is exactly the confirmed prefix.
    Raises `VersionConflict` (closed at another end), `LedgerFenced` (in recovery, implicit close).
    """
    if record.is_closed:
        if (record.last_entry_id, record.length) != (last_entry_id, length):
            raise VersionConflict(
                f"ledger was closed by another client at entry {record.last_entry_id} ({record.length:,} bytes), "
                f"not at this writer's {last_entry_id} ({length:,} bytes)",
                ledger_id=record.ledger_id,
            )
        return False
    if is_implicit and record.state is LedgerState.IN_RECOVERY:
        raise LedgerFenced("another client is recovering the ledger and decides its end", ledger_id=record.ledger_id)
    return True


def closed(record: LedgerMetadata, last_entry_id: int, length: int) -> LedgerMetadata:
    """Return the CLOSED record with this end."""
    return changed_record(record, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length)


# -- recovery ------------------------------------------------------------------------------------------------------


def announcement_needed(record: LedgerMetadata) -> bool:
    """Report whether a recovery still has to announce itself: not for a ledger that is CLOSED or IN_RECOVERY."""
    return record.state is LedgerState.OPEN


def in_recovery(record: LedgerMetadata) -> LedgerMetadata:
    """Return the IN_RECOVERY record. After its commit the writer can change only the end (I-5)."""
    return changed_record(record, state=LedgerState.IN_RECOVERY)


def recovery_close_needed(record: LedgerMetadata) -> bool:
    """Report whether a recovery still has to publish its end. False: another client's CLOSED end is adopted (I-4).

    Raises `LocalProtocolError` for OPEN: a record never returns to it.
    """
    if record.state is LedgerState.OPEN:
        raise LocalProtocolError("record went back from IN_RECOVERY to OPEN", ledger_id=record.ledger_id)
    return record.state is LedgerState.IN_RECOVERY


def close_recovered(
    record: LedgerMetadata, known_first: int, fragments: Mapping[int, Ensemble], last_entry_id: int, length: int
) -> LedgerMetadata:
    """Return the CLOSED record with `fragments`, those that write-back made in memory: first entry id -> ensemble.

    `known_first`: start of the last fragment in the record that this recovery announced. Raises `LocalProtocolError`
    when there is another last fragment now: no client may add fragments while a recovery runs.
    """
    if record.last_fragment_first_entry != known_first:
        raise LocalProtocolError(
            f"last fragment starts at {record.last_fragment_first_entry}, not at {known_first} as announced",
            ledger_id=record.ledger_id,
        )
    for first_entry_id in sorted(fragments):
        record = with_ensemble(record, first_entry_id, fragments[first_entry_id])
    return closed(record, last_entry_id, length)


# -- checking ------------------------------------------------------------------------------------------------------


def malformation(record: LedgerMetadata) -> str:
    """Return the defect of a record that is about to be written; empty for a valid record (I-11)."""
    sizes = (record.ensemble_size, record.write_quorum, record.ack_quorum)
    firsts = [first for first, _ in record.ensembles]
    if not sizes[0] >= sizes[1] >= sizes[2] >= 1:
        return f"quorums {sizes}"
    if not firsts or firsts[0] != 0 or any(a >= b for a, b in pairwise(firsts)):
        return f"fragments start at {firsts}"
    for first, ensemble in record.ensembles:
        if len(ensemble) != record.ensemble_size or len(set(ensemble)) != len(ensemble):
            return f"fragment {first} has members {list(ensemble)}"
    if record.is_closed and record.last_entry_id < firsts[-1] - 1:
        return f"closed at {record.last_entry_id}, before its last fragment {firsts[-1]}"
    if record.is_closed and record.last_entry_id == -1 and record.length != 0:
        return f"closed without entries but with {record.length} bytes"
    if not record.is_closed and (record.last_entry_id, record.length) != (-1, 0):
        return f"{record.state.name} with an end"
    return ""


def illegality(before: LedgerMetadata, after: LedgerMetadata, author: Author) -> str:
    """Return the reason why `author` must not commit `after` over `before`; empty when it may (I-7, I-10, I-11)."""
    fixed = ("ledger_id", "ensemble_size", "write_quorum", "ack_quorum", "digest_type", "password", "custom_metadata")
    for name in (*fixed, "format_version"):
        if getattr(before, name) != getattr(after, name):
            return f"{name} changed"
    if problem := malformation(after):
        return problem
    if author is Author.REPLICATOR:
        return _replication_illegality(before, after)
    move = (before.state, after.state)
    if author is Author.WRITER:
        if after.is_closed and not before.is_closed:
            return "" if after.ensembles == before.ensembles else "the writer's close changed fragments"
        if move != (LedgerState.OPEN, LedgerState.OPEN):
            return f"writer moved {before.state.name} to {after.state.name}"
        if len(after.ensembles) > len(before.ensembles) and after.ensembles[:-1] != before.ensembles:
            return "an ensemble change replaced and appended at once"
        return _tail_illegality(before, after)
    if move == (LedgerState.OPEN, LedgerState.IN_RECOVERY):
        return "" if after.ensembles == before.ensembles else "announcing a recovery changed fragments"
    if move != (LedgerState.IN_RECOVERY, LedgerState.CLOSED):
        return f"recovery moved {before.state.name} to {after.state.name}"
    return _tail_illegality(before, after)


def _tail_illegality(before: LedgerMetadata, after: LedgerMetadata) -> str:
    """Check that only the last fragment has a new ensemble, and that new fragments come after it."""
    kept = len(before.ensembles) - 1
    if after.ensembles[:kept] != before.ensembles[:kept] or len(after.ensembles) <= kept:
        return "an earlier fragment changed"
    return "" if after.ensembles[kept][0] == before.ensembles[kept][0] else "the last fragment's start moved"


def _replication_illegality(before: LedgerMetadata, after: LedgerMetadata) -> str:
    """Check for the same state, end and starts, and the same last fragment unless the ledger is CLOSED."""
    if (before.state, before.last_entry_id, before.length) != (after.state, after.last_entry_id, after.length):
        return "re-replication changed state or end"
    if [first for first, _ in before.ensembles] != [first for first, _ in after.ensembles]:
        return "re-replication moved a fragment"
    if not before.is_closed and before.ensembles[-1] != after.ensembles[-1]:
        return "re-replication changed a fragment that can still grow"
    return ""
