"""Choose an ensemble, choose a replacement: pure functions over an order of preference.

Randomness comes in as data: `candidates` lists the writable bookies in the order in which they shall be taken. The
caller shuffles it, and moves bookies that it distrusts (quarantined after recent errors) to the end, so they are used
only when nothing else is left. Members of an ensemble are always distinct. Source: client-protocol 2.2 and 2.7.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from bookies.errors import NotEnoughBookies
from bookies.model import BookieId, Ensemble


def choose_ensemble(size: int, candidates: Sequence[BookieId], exclude: Collection[BookieId] = ()) -> Ensemble:
    """The first `size` distinct candidates that are not excluded. Raises `NotEnoughBookies`."""
    chosen = list(dict.fromkeys(bookie for bookie in candidates if bookie not in exclude))[:size]
    if len(chosen) < size:
        raise NotEnoughBookies(
            f"an ensemble of {size} needs {size} writable bookies, {len(chosen)} are available; "
            "start more bookies or use a smaller ensemble"
        )
    return tuple(chosen)


def choose_replacement(
    ensemble: Sequence[BookieId], candidates: Sequence[BookieId], exclude: Collection[BookieId]
) -> BookieId | None:
    """The first candidate that is neither a member of the ensemble nor excluded."""
    for bookie in candidates:
        if bookie not in exclude and bookie not in ensemble:
            return bookie
    return None


def replace_failed(
    ensemble: Ensemble,
    failed: Iterable[tuple[int, BookieId]],
    candidates: Sequence[BookieId],
    exclude: Collection[BookieId] = (),
) -> Ensemble:
    """Put a fresh bookie at every failed (position, bookie) whose bookie is still there.

    Bookies that failed are never chosen, nor are those in `exclude` (replaced earlier in the same change, D-21). When
    some but not all can be replaced the partial result counts: the others stay, and will fail again.
    Raises `NotEnoughBookies` when not even the first can be replaced.
    """
    there = [(position, bookie) for position, bookie in failed if ensemble[position] == bookie]
    unwanted = {*exclude, *(bookie for _, bookie in there)}
    changed = list(ensemble)
    for count, (position, bookie) in enumerate(there):
        replacement = choose_replacement([*changed, *ensemble], candidates, unwanted)
        if replacement is None:
            if count == 0:
                raise NotEnoughBookies(
                    f"bookie {bookie} failed and none of the {len(candidates)} writable bookies can replace it "
                    f"in [{', '.join(ensemble)}]; start another bookie"
                )
            break
        changed[position] = replacement
    return tuple(changed)
