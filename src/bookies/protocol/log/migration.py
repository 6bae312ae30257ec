"""Migration of a log to another cluster, or from a backup: decisions about its list in the target, without IO.

A label of a migrated ledger names its origin, so a second attempt finds the first. During a migration the list in the
target is held: it follows the source and refuses appends. At the cut-over the source is held for ever before its last
ledgers are ended; then the target gets the rest and is released. So appends are never allowed in both.

A mirror follows its source ledger by ledger, the open one too, with the same ids, so positions are the same. It is held
until the switch-over. Then it begins where it ends: entries that only the source has are lost to it, and are named.

A log of a backup ends before the first ledger that the backup lacks. Positions keep their meaning, and those after the
end move to it, because entries that were read beyond it are lost. Source: spark 5.4.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from bookies.errors import LogExists, LogFenced
from bookies.protocol.log.cursors import Cursor
from bookies.protocol.log.log_model import (
    CUT_OVER,
    HELD,
    LEFT_OUT,
    MIGRATED_FROM,
    MIRROR_OF,
    PARTED,
    Extent,
    LedgerEnd,
    Manifest,
    Position,
    Segment,
    ended,
)
from bookies.protocol.log.log_times import Point

FROM = MIGRATED_FROM  # the label of a ledger too
SWAP_MAX = 1000  # extents added by one swap of a list: the record of each one's ledger is a condition of the swap


def origin_of(cluster: str, ledger_id: int) -> str:
    """Return the label of a migrated ledger. `cluster`: the source's own id."""
    return f"{cluster}/{ledger_id}"


def log_origin(cluster: str, name: str, source: Manifest) -> str:
    """Return the label of a migrated log; a later log of that name has another one."""
    return f"{cluster}/{name}/{source.token}"


def copied(
    source: Manifest, target: Manifest | None, ids: Mapping[int, int], origin: str, token: str, moves_to: str | None
) -> Manifest | None:
    """Return the list of the log in the target; None: it is so already, or the cut-over is done.

    ids: ledger id in the source -> id of its copy in the target. For a ledger that shares its copy with others since a
        roll-up in the source, and was not copied before: an id that positions in the target name.
    token: token of a log that is new in the target.
    moves_to: metadata store of the target, at a cut-over: it gets a log that is held for it, and no other.
    The list ends before the first extent that is open or whose ledger was not copied. What is listed stays without a
    new copy, because this run may have failed to read it, until the source truncates it. A cut-over needs all of `ids`.
    Rows, extents and transactions keep their numbers. None also if the target follows a later list of the source.
    Raises `LogExists` if the target has a log of this name that is no copy.
    """
    if target is not None and (target.extra.get(FROM) != origin or target.is_deleting):
        raise LogExists("the target has a log of this name that is no copy of it: delete or rename one of them")
    if target is not None and (target.extra.get(CUT_OVER) or _is_older(source, target)):
        return None
    listed_before = {extent.seq: extent for extent in target.extents} if target is not None else {}
    extents = []
    for extent in _growing_from(source, target):
        before = listed_before.get(extent.seq)
        if extent.last is not None and extent.storage in ids:
            own = ids[extent.storage]
            if extent.stored is None:
                extents.append(replace(extent, ledger_id=own))
            else:  # A position names the first copy of its extent, also after a compaction or a roll-up.
                name = before.ledger_id if before is not None else ids.get(extent.ledger_id, own)
                extents.append(replace(extent, ledger_id=name, stored=own))
        elif before is not None:
            extents.append(replace(before, first=max(before.first, extent.first)))
        else:
            break
    if _waits(source, target, extents):
        return None
    is_read = all(extent.last is not None and extent.storage in ids for extent in source.extents)
    is_whole = is_read and len(extents) == len(source.extents)
    is_complete = is_whole and moves_to is not None and source.held == moved_to(moves_to)
    states = (HELD, FROM, CUT_OVER, MIRROR_OF, LEFT_OUT)
    extra = {name: value for name, value in source.extra.items() if name not in states} | {FROM: origin}
    extra |= {CUT_OVER: True} if is_complete else {HELD: f"it is being migrated from {origin}"}
    # Ledgers that the source has truncated since the last copy are deleted in the target too.
    listed = [extent.storage for extent in extents]
    earlier = (*target.deleting, *target.storages) if target is not None else ()
    deleting = dict.fromkeys(ledger_id for ledger_id in earlier if ledger_id not in listed)
    next_seq = target.next_seq if target is not None else 0
    copy = replace(
        source,
        token=target.token if target is not None else token,
        extents=tuple(extents),
        next_seq=source.next_seq if is_complete else extents[-1].seq + 1 if extents else next_seq,
        deleting=tuple(deleting),
        segments=_kept_segments(tuple(extents), target),
        txns=_remembered(source, {extent.seq for extent in extents}, target),
        extra=extra,
    )
    return None if copy == target else copy


def _is_older(source: Manifest, target: Manifest) -> bool:
    """Report whether another run has let the target follow a later list of the source."""
    is_behind = source.epoch < target.epoch or source.rows_truncated < target.rows_truncated
    return is_behind or any(extent.seq >= source.next_seq for extent in target.extents)


def _waits(source: Manifest, target: Manifest | None, extents: Sequence[Extent]) -> bool:
    """Report whether the target keeps all that it lists, because nothing of the batch that replaces it is there yet."""
    if extents or target is None or not target.extents or not source.extents:
        return False
    return source.extents[0].txn is not None and target.extents[-1].seq < source.extents[0].seq


def _growing_from(source: Manifest, target: Manifest | None) -> list[Extent]:
    """Return the source's extents without those before the target's first one: its list never grows at the front."""
    first = target.extents[0].seq if target is not None and target.extents else 0
    return [extent for extent in source.extents if extent.seq >= first]


def as_planned(source: Manifest, planned: Manifest, target: Manifest, ids: Mapping[int, int]) -> Manifest:
    """Return the source's list with extents of an earlier one, if only their ledgers of then were copied.

    So a compaction or a roll-up during a long run does not keep the target from a list of its own.
    """
    listed = {extent.seq for extent in target.extents}
    usable = [one for one in planned.extents if one.last is not None and one.storage in ids and one.seq not in listed]
    former = {extent.seq: extent for extent in usable}
    extents = [
        replace(former[extent.seq], first=extent.first)
        if extent.last is not None and extent.storage not in ids and extent.seq in former
        else extent
        for extent in source.extents
    ]
    return replace(source, extents=tuple(extents))


def unread(source: Manifest, ids: Mapping[int, int]) -> list[int]:
    """Return the ledgers of closed extents without a copy in `ids`."""
    closed = (extent.storage for extent in source.extents if extent.last is not None)
    return [ledger_id for ledger_id in dict.fromkeys(closed) if ledger_id not in ids]


def _kept_segments(extents: tuple[Extent, ...], target: Manifest | None) -> tuple[Segment, ...]:
    """Return the segments of the target's list if their contents still hold; the source's are in the other store."""
    if target is None or not target.segments:
        return ()
    now = {extent.seq: extent.storage for extent in extents}
    is_same = all(now.get(extent.seq, extent.storage) == extent.storage for extent in target.extents)
    return target.segments if is_same else ()


def at_once(source: Manifest, target: Manifest, ids: Mapping[int, int]) -> dict[int, int]:
    """Return the part of `ids` that one swap of the list may add: from the source's first extent on, without a gap."""
    listed, numbers = {*target.storages}, {extent.seq for extent in target.extents}
    part: dict[int, int] = {}
    new = set[int]()
    for extent in _growing_from(source, target):
        copy = ids.get(extent.storage)
        if copy is None and extent.seq in numbers:
            continue  # It stays listed.
        new |= {copy} - listed if copy is not None else set()
        if copy is None or len(new) > SWAP_MAX:
            break
        part |= {ledger_id: ids[ledger_id] for ledger_id in (extent.storage, extent.ledger_id) if ledger_id in ids}
    return part


def unnamed(source: Manifest, target: Manifest, ids: Mapping[int, int]) -> list[int]:
    """Return the ledgers of rolled-up extents for which positions in the target have no id yet."""
    names = {extent.seq for extent in target.extents}
    shared = [extent for extent in source.extents if extent.shift is not None and extent.seq not in names]
    return [extent.ledger_id for extent in shared if extent.ledger_id not in ids]


# -- transactions ----------------------------------------------------------------------------------------------------


def _with_whole_transactions(extents: Sequence[Extent], source: Manifest, target: Manifest | None) -> list[Extent]:
    """Return the first extents of a source's list without the end that is a part of a transaction.

    What the target's list has stays.
    """
    listed = {(extent.seq, extent.ledger_id) for extent in (target.extents if target is not None else ())}
    whole = list(extents)
    following = next((extent for extent in source.extents if not whole or extent.seq > whole[-1].seq), None)
    while whole and (last := whole[-1]).txn is not None and (last.seq, last.ledger_id) not in listed:
        if last.last is not None and (following is None or following.txn != last.txn):
            break
        following = whole.pop()
    return whole


def _remembered(source: Manifest, listed: Collection[int], target: Manifest | None) -> dict[str, Any]:
    """Return the last transactions that a list may remember as committed: those whose rows it has.

    A later one is not, because its repetition would be taken for a duplicate, and its rows would be lost: its
    application is set back to the one before it. `listed`: numbers of the extents that are there with all entries.
    """
    there: dict[str, list[int]] = {}
    missing: dict[str, list[int]] = {}
    for extent in source.extents:
        app, _, version = (extent.txn or "").rpartition(":")
        if version.isascii() and version.isdigit():
            (there if extent.seq in listed else missing).setdefault(app, []).append(int(version))
    txns = {}
    for app, last in source.txns.items():
        if app not in missing:
            txns[app] = last
        elif isinstance(last, Mapping):
            known = there.get(app, [])
            before = target.txns.get(app) if target is not None else None
            if isinstance(before, Mapping) and before.get("query") == last.get("query"):
                known = [*known, int(before.get("version", -1))]
            if (whole := max((one for one in known if one < min(missing[app])), default=-1)) >= 0:
                txns[app] = dict(last) | {"version": whole}
    return txns


def held(source: Manifest, target: str) -> Manifest | None:
    """Return the source's list with appends disallowed; None: they are already."""
    if source.held:
        return None
    return replace(source, epoch=source.epoch + 1, extra=dict(source.extra) | {HELD: moved_to(target)})


def moved_to(target: str) -> str:
    """Return why a log that was handed to another cluster refuses appends."""
    return f"it was moved to {target}"


def check_moved(source: Manifest, name: str, target: str) -> None:
    """Check that a held log was handed to this target and to no other cluster. Raises `LogFenced`."""
    if source.held != (reason := moved_to(target)):
        raise LogFenced(
            f"log {name} accepts no appends in the source: {source.held}. Only that one may continue it; if it is this "
            f"one, give its metadata store as it stands there, and not: {reason}"
        )


# -- mirrors ---------------------------------------------------------------------------------------------------------


class MissingRange(NamedTuple):
    """Entries of one log that another one does not have. `last`: -1 if it is not known."""

    ledger_id: int
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.first} to {self.ledger_id}:{self.last}"


def is_mirror(manifest: Manifest) -> bool:
    """Report whether the log follows another one and refuses appends."""
    return bool(manifest.held) and MIRROR_OF in manifest.extra


def check_may_follow(source: Manifest, target: Manifest | None, origin: str) -> None:
    """Check that the log in the target, if there is one, may be a mirror of the source's. Raises `LogExists`.

    origin: label of the source's log.
    """
    if is_mirror(source):
        raise LogExists(
            f"it is a mirror of {source.extra[MIRROR_OF]}: mirror that one, or switch over to this one first"
        )
    if target is None:
        return
    if target.token != source.token or target.is_deleting:
        raise LogExists("the target has another log of this name: delete it there, or mirror to another cluster")
    if is_mirror(target) and target.extra[MIRROR_OF] != origin:
        raise LogExists(f"in the target it is a mirror of {target.extra[MIRROR_OF]}, which is another cluster")


def mirrored(
    source: Manifest, target: Manifest | None, complete: Collection[int], growing: int | None, origin: str
) -> Manifest | None:
    """Return the list of the mirror; None: it is so already. The list of a former source loses what `source` lacks, and
    names the ledgers that have it.

    complete: ledgers that the target has with all their entries.
    growing: the ledger that is being copied, if the target has its record. The list keeps one that it has.
    The ledgers of a transaction are listed at once, and what it replaces is given up then.
    """
    listed = {(one.seq, one.ledger_id, one.last): one for one in (target.extents if target is not None else ())}
    extents = []
    for extent in source.extents:
        if extent.last is not None and extent.storage in complete:
            extents.append(extent)
            continue
        if extent.last is not None and (before := listed.get((extent.seq, extent.ledger_id, extent.last))):
            extents.append(replace(before, first=extent.first))  # It was compacted; the result is not copied yet.
            continue
        if extent.storage == extent.ledger_id == growing or (extent.seq, extent.ledger_id, None) in listed:
            # Entries that were copied before the source rewrote the extent stay until the result is copied.
            rewriting = dict.fromkeys(("last", "rows", "bytes", "stored", "kept", "shift", "created_ms"))
            extents.append(replace(extent, **rewriting))
        break
    extents = _with_whole_transactions(extents, source, target)
    if target is not None and is_mirror(target) and _waits(source, target, extents):
        return None
    begin = extents[0].seq if extents else source.next_seq
    now = {(extent.seq, extent.ledger_id): extent.storage for extent in source.extents}
    storages = {extent.storage for extent in (*source.extents, *extents)}
    left_out = _left_out(source, target)
    gone = [
        extent.storage
        for extent in (target.extents if target is not None else ())
        if extent.storage not in storages
        and (extent.seq < begin or (extent.seq, extent.ledger_id) in now)
        and extent.storage not in left_out
    ]
    extra = {name: value for name, value in source.extra.items() if name != LEFT_OUT}
    extra |= {LEFT_OUT: left_out} if left_out else {}
    copy = replace(
        source,
        extents=tuple(extents),
        deleting=tuple(dict.fromkeys((*(target.deleting if target is not None else ()), *gone))),
        segments=_kept_segments(tuple(extents), target),
        epoch=max(source.epoch, target.epoch if target is not None else 0),
        next_seq=max(source.next_seq, target.next_seq if target is not None else 0),
        txns=_remembered(source, {extent.seq for extent in extents if extent.last is not None}, target),
        extra=extra | {MIRROR_OF: origin, HELD: f"it is a mirror of {origin}"},
    )
    return None if copy == target else copy


def _left_out(source: Manifest, target: Manifest | None) -> list[int]:
    """Return the ledgers of the target with entries that `source` lacks. A former source gets them once."""
    if target is None:
        return []
    missing = () if is_mirror(target) else {one.ledger_id for one in missing_in(target, source)}
    new = [extent.storage for extent in target.extents if extent.ledger_id in missing]
    return list(dict.fromkeys((*target.extra.get(LEFT_OUT, ()), *new)))


def switched_over(mirror: Manifest, ends: Mapping[int, LedgerEnd]) -> Manifest | None:
    """Return the list of a mirror that accepts appends; None: it does already. `ends`: of all its open ledgers."""
    if not is_mirror(mirror):
        return None
    whole = ended(mirror, ends) or mirror
    assert not whole.open_ledgers, "switched over before every end was decided"
    extra = {name: value for name, value in mirror.extra.items() if name not in (HELD, MIRROR_OF)}
    last = whole.extents[-1] if whole.extents else None
    extra[PARTED] = [-1, -1] if last is None else [last.seq, last.last]
    return replace(whole, epoch=mirror.epoch + 1, extra=extra)


def _first_apart(extent: Extent, released: Manifest) -> int | None:
    """Return the first entry of a source's extent that its mirror, released since, never had; None: it had all.

    An extent without an end has no entries.
    """
    last_seq, last_entry = released.extra.get(PARTED, (extent.seq + 1, -1))
    first = extent.first if extent.seq > last_seq else max(extent.first, last_entry + 1)
    return first if extent.seq >= last_seq and extent.last is not None and first <= extent.last else None


def missing_in(own: Manifest, other: Manifest) -> list[MissingRange]:
    """Return the entries of one list that the other one lacks. Those before its beginning were truncated there, unless
    it is a released mirror that never had them.

    An extent without an end counts up to the end that is known: give lists with all ends.
    """
    begin = other.extents[0].seq if other.extents else 0
    present = {extent.ledger_id: extent for extent in other.extents}
    missing = []
    for extent in own.extents:
        last = -1 if extent.last is None else extent.last
        there = present.get(extent.ledger_id)
        if there is None and extent.seq < begin:
            if (apart := _first_apart(extent, other)) is not None:
                missing.append(MissingRange(extent.ledger_id, apart, last))
            continue
        first = extent.first if there is None else max(extent.first, (-1 if there.last is None else there.last) + 1)
        if first <= last:
            missing.append(MissingRange(extent.ledger_id, first, last))
    return missing


# -- from a backup ---------------------------------------------------------------------------------------------------


def brought_back(source: Manifest, ends: Mapping[int, LedgerEnd], origin: str) -> Manifest:
    """Return the list of a log whose ledgers a backup has. `ends`: of the ledgers that were restored.

    Missing ledgers at the beginning count as truncated; the list ends before a later one, and before its transaction.
    Numbers of extents are not reused. The label says that its writers' numbers are to be read from the log, and that no
    migration may change it.
    """
    whole = ended(source, ends) or source
    extents: list[Extent] = []
    rows = source.rows_truncated
    for extent in whole.extents:
        if extent.last is not None and extent.storage in ends:
            extents.append(extent)
        elif extents:
            break
        elif extent.last is not None:
            rows += max(0, extent.last - extent.first + 1)
    extents = _with_whole_transactions(extents, whole, None)
    last = extents[-1].seq if extents else -1
    return replace(
        source,
        epoch=source.epoch + 1,
        extents=tuple(extents),
        deleting=tuple(ledger_id for ledger_id in source.deleting if ledger_id in ends),
        rows_truncated=rows,
        segments=(),
        txns=_remembered(whole, {extent.seq for extent in whole.extents if extent.seq <= last}, None),
        extra=dict(source.extra) | {FROM: origin, CUT_OVER: True},
    )


def end_of(manifest: Manifest) -> Position | None:
    """Return the position after the last entry of a list whose extents are closed; None: it has no extents."""
    if not manifest.extents:
        return None
    last = manifest.extents[-1]
    assert last.last is not None
    return Position(last.ledger_id, last.last + 1)


def is_after_end(at: Position, source: Manifest, restored: Manifest) -> bool:
    """Report whether a position in the source's list is after the end of the restored one."""
    extent, end = source.find(at), end_of(restored)
    if extent is None or end is None:
        return extent is not None
    last = restored.extents[-1].seq
    return extent.seq > last or (extent.seq == last and at.entry_id > end.entry_id)


def cursors_brought_back(
    cursors: Mapping[str, Cursor], source: Manifest, restored: Manifest, without: str
) -> dict[str, Cursor]:
    """Return the cursors for the restored list: those after its end are at its end, or do not exist if it is empty.

    `without`: name of a cursor that is left out.
    """
    end = end_of(restored)
    kept = {}
    for name, cursor in cursors.items():
        if name == without or (end is None and is_after_end(cursor.position, source, restored)):
            continue
        is_late = end is not None and is_after_end(cursor.position, source, restored)
        kept[name] = replace(cursor, position=end, slot=0) if is_late else cursor
    return kept


def times_brought_back(points: Sequence[Point], source: Manifest, restored: Manifest) -> list[Point]:
    """Return the points in time that are in the restored list."""
    return [point for point in points if not is_after_end(point.position, source, restored)]
