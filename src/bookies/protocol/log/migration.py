"""What a log's list becomes in another cluster: decisions of a migration, without IO.

A migrated ledger says in a label where it is from, so a second attempt finds the first. While a log is being migrated
its list in the target is held: it follows the source, and nobody appends. At the cut-over the source is held, for ever,
before its last ledgers are ended; then the target gets the rest, and is free. So at no moment can both be appended to.
Source: spark 5.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bookies.errors import LogExists
from bookies.protocol.log.log_model import CUT_OVER, HELD, MIGRATED_FROM, Extent, Manifest, Segment

FROM = MIGRATED_FROM  # the label of a ledger too
SWAP_MAX = 1000  # extents that come into a list at once: the record of each one's ledger is a condition of the swap


def origin_of(cluster: str, ledger_id: int) -> str:
    """The label of a migrated ledger. `cluster`: the source's own id."""
    return f"{cluster}/{ledger_id}"


def log_origin(cluster: str, name: str, source: Manifest) -> str:
    """The same of a log; a later log of that name is another one."""
    return f"{cluster}/{name}/{source.token}"


def copied(
    source: Manifest, found: Manifest | None, ids: Mapping[int, int], origin: str, token: str, *, is_cut_over: bool
) -> Manifest | None:
    """The list that the log has in the target; None: it has it, or goes its own way.

    `ids`: numbers in the target of the ledgers that were copied. The list ends before the first extent that is open or
    whose ledger was not copied. Rows, extents and transactions keep their numbers. `token`: for a log that is new.
    Raises `LogExists`: there is a log of this name that is no copy.
    """
    if found is not None and (found.extra.get(FROM) != origin or found.is_deleting):
        raise LogExists("the target has a log of this name that is no copy of it: delete or rename one of them")
    if found is not None and found.extra.get(CUT_OVER):
        return None
    extents = []
    for extent in source.extents:
        if extent.last is None or extent.ledger_id not in ids:
            break
        extents.append(replace(extent, ledger_id=ids[extent.ledger_id]))
    is_complete = is_cut_over and len(extents) == len(source.extents) and bool(source.held)
    extra = {name: value for name, value in source.extra.items() if name not in (HELD, FROM, CUT_OVER)} | {FROM: origin}
    extra |= {CUT_OVER: True} if is_complete else {HELD: f"it is being migrated from {origin}"}
    # What the source has truncated since the last time is of no use in the target either.
    listed = [extent.ledger_id for extent in extents]
    before = (*found.deleting, *found.ledger_ids) if found is not None else ()
    gone = dict.fromkeys(each for each in before if each not in listed)
    made = replace(
        source,
        token=found.token if found is not None else token,
        extents=tuple(extents),
        next_seq=source.next_seq if is_complete else extents[-1].seq + 1 if extents else 0,
        deleting=tuple(gone),
        segments=_kept_segments(tuple(extents), found),
        extra=extra,
    )
    return None if made == found else made


def _kept_segments(extents: tuple[Extent, ...], found: Manifest | None) -> tuple[Segment, ...]:
    """Those of the target's list, if what is stored in them is still so; the source's are in the other store."""
    if found is None or not found.segments:
        return ()
    now = {extent.seq: extent.ledger_id for extent in extents}
    is_same = all(now.get(extent.seq, extent.ledger_id) == extent.ledger_id for extent in found.extents)
    return found.segments if is_same else ()


def at_once(source: Manifest, found: Manifest, ids: Mapping[int, int]) -> dict[int, int]:
    """As much of `ids` as one swap of the list may bring in: from the source's first extent on, without a gap."""
    listed = {*found.ledger_ids}
    some: dict[int, int] = {}
    new = 0
    for extent in source.extents:
        copy = ids.get(extent.ledger_id)
        new += copy is not None and copy not in listed
        if copy is None or new > SWAP_MAX:
            break
        some[extent.ledger_id] = copy
    return some


def held(source: Manifest, target: str) -> Manifest | None:
    """The source's list once nobody may append; None: it is so."""
    if source.held:
        return None
    return replace(source, epoch=source.epoch + 1, extra=dict(source.extra) | {HELD: f"it was moved to {target}"})
