"""An operator's change of a ledger's record, as pure functions: its differences, and the data that it may lose.

Writers, recoveries and repairs change a record by the rules of `ledger.py`. An operator may write what none of them
may, to correct a record that is wrong. So a change is judged by its effect and not by its author: a record that no
client can use is refused, and everything that may cost entries is named. Source: client-protocol 1.2, 1.3.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from bookies.model import BookieId, Ensemble, LedgerMetadata, LedgerState
from bookies.protocol.ledger.ledger import malformation
from bookies.protocol.ledger.offload import LABEL, is_coming_back, is_given_up, may_be_forgotten

_UNSEEN = "password"  # compared, and never shown


class FieldChange(Struct, frozen=True):
    """A field of the record with different values, as text."""

    field: str
    before: str
    after: str


def field_changes(before: LedgerMetadata, after: LedgerMetadata) -> list[FieldChange]:
    """Return the differences of two records, field by field. Passwords are not shown. The creator token is no content.

    Each fragment and each label is a field of its own.
    """
    old, new = dict(_fields(before)), dict(_fields(after))
    changes = []
    for name in dict.fromkeys((*old, *new)):
        values = old.get(name, "-"), new.get(name, "-")
        if values[0] != values[1]:
            changes.append(FieldChange(name, *(("hidden", "another one") if name == _UNSEEN else values)))
    return changes


def _fields(record: LedgerMetadata) -> Iterator[tuple[str, str]]:
    yield "state", record.state.name
    yield "last_entry", str(record.last_entry_id)
    yield "length", str(record.length)
    yield "ensemble_size", str(record.ensemble_size)
    yield "write_quorum", str(record.write_quorum)
    yield "ack_quorum", str(record.ack_quorum)
    yield "digest", "-" if record.digest_type is None else record.digest_type.name.lower()
    yield _UNSEEN, repr(record.password)
    yield "format", str(record.format_version)
    yield "ctime_ms", str(record.ctime_ms)
    for first, ensemble in record.ensembles:
        yield f"fragment {first}", ", ".join(ensemble)
    for name, value in sorted(record.custom_metadata.items()):
        yield f"label {name}", value.decode("utf-8", "backslashreplace")


def refusal(before: LedgerMetadata, after: LedgerMetadata) -> str:
    """Return the reason why `after` is never written over `before`; empty if it may be."""
    if before.ledger_id != after.ledger_id:
        return f"it is the record of ledger {after.ledger_id}"
    if problem := malformation(after):
        return f"no client can use such a record: {problem}"
    return ""


def dangers(before: LedgerMetadata, after: LedgerMetadata) -> list[str]:
    """Return how the change may lose entries, or make them unreadable; empty if it cannot."""
    texts = [*_end_dangers(before, after), *_fragment_dangers(before, after)]
    for name in ("ensemble_size", "write_quorum"):
        if getattr(before, name) != getattr(after, name):
            texts.append(f"{name} changes: entries are sought on bookies that may not have them")
    if before.ack_quorum != after.ack_quorum:
        texts.append("ack_quorum changes: a recovery may judge confirmed entries as not confirmed")
    for name in ("digest_type", "password"):
        if getattr(before, name) != getattr(after, name):
            texts.append(f"{name} changes: stored entries cannot be verified with it")
    if after.format_version < before.format_version:
        texts.append(f"format {after.format_version} does not store all fields of format {before.format_version}")
    if may_be_forgotten(after) and not may_be_forgotten(before):
        texts.append("its labels allow the bookies to delete its entries")
    if is_coming_back(before) and not is_coming_back(after):
        texts.append("a label ends that keeps the bookies from deleting entries while they are restored")
    if is_given_up(before) and not (is_given_up(after) and _copy(after) == _copy(before)):
        texts.append("entries are not sought in the copy of its labels, and the bookies may have deleted theirs")
    return texts


def _copy(record: LedgerMetadata) -> bytes | None:
    return record.custom_metadata.get(LABEL)


def _end_dangers(before: LedgerMetadata, after: LedgerMetadata) -> Iterator[str]:
    if before.state is not after.state:
        if before.is_closed:
            yield f"it is {after.state.name} again: its end, which readers have seen, may change"
        elif after.is_closed:
            yield f"it is closed without a recovery: confirmed entries after {after.last_entry_id} are cut off"
        elif after.state is LedgerState.OPEN:
            yield "it is OPEN again, while a recovery may be deciding its end"
        return
    if after.last_entry_id < before.last_entry_id:
        yield f"entries {after.last_entry_id + 1} to {before.last_entry_id} are cut off"
    elif after.last_entry_id > before.last_entry_id:
        yield f"entries {before.last_entry_id + 1} to {after.last_entry_id} are added, and no bookie may have them"


def _fragment_dangers(before: LedgerMetadata, after: LedgerMetadata) -> Iterator[str]:
    old, new = dict(before.ensembles), dict(after.ensembles)
    if list(old) != list(new):
        yield f"fragments begin at {_listed(new)} instead of {_listed(old)}: bookies may lack the entries sought there"
        return
    for first, ensemble in new.items():
        earlier = old[first]
        removed = [bookie for bookie in earlier if bookie not in ensemble]
        if removed:
            added = ", ".join(bookie for bookie in ensemble if bookie not in earlier) or "no bookie"
            yield (
                f"from entry {first} on, {added} takes the place of {', '.join(removed)}: the first may lack the "
                "entries, the second may delete them"
            )
        elif ensemble != earlier and after.write_quorum < after.ensemble_size:
            yield f"from entry {first} on, the positions change: entries are sought on bookies that have others"


def _listed(firsts: dict[int, Ensemble]) -> str:
    return ", ".join(map(str, firsts))


# -- another name for a bookie -------------------------------------------------------------------------------------


def renamed(record: LedgerMetadata, old: BookieId, new: BookieId, *, with_growing: bool) -> LedgerMetadata | None:
    """Return the record with `new` in the place of `old`; None if there is no place to change.

    A fragment that names both stays as it is: one bookie cannot hold two positions. `with_growing`: also change a last
    fragment that may still grow; its writer and a recovery keep the bookies of the record that they have read.
    """
    changed = tuple(
        (first, ensemble)
        if stays_named(record, first, old, new, with_growing=with_growing)
        else (first, tuple(new if bookie == old else bookie for bookie in ensemble))
        for first, ensemble in record.ensembles
    )
    return None if changed == record.ensembles else record.replace(ensembles=changed, creator_token=0)


def stays_named(record: LedgerMetadata, first: int, old: BookieId, new: BookieId, *, with_growing: bool) -> bool:
    """Report whether `renamed` keeps the fragment that begins at `first` as it is, although it names `old`."""
    ensemble = record.ensemble_at(first)
    may_grow = not record.is_closed and first == record.last_fragment_first_entry
    return new in ensemble or (may_grow and not with_growing)
