"""Choose an ensemble, choose a replacement: pure functions over an order of preference.

Randomness comes in as data: `candidates` lists the writable bookies in the order in which they shall be taken. The
caller shuffles it, and moves bookies that it distrusts (quarantined after recent errors) to the end, so they are used
only when nothing else is left. Members of an ensemble are always distinct. Source: client-protocol 2.2 and 2.7.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from bookies.errors import ConfigError, NotEnoughBookies
from bookies.model import BookieId, Ensemble
from bookies.protocol.quorum import write_set


def parse_fault_domains(text: str) -> dict[BookieId, str]:
    """Fault domains by bookie, from `bookie=domain` pairs separated by commas. Raises `ConfigError`."""
    domains: dict[BookieId, str] = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        bookie, _, domain = pair.rpartition("=")
        if not bookie or not domain:
            raise ConfigError(f"fault_domains: {pair!r}: must be bookie=domain pairs, separated by commas")
        domains[BookieId(bookie.strip())] = domain.strip()
    return domains


def spread(candidates: Sequence[BookieId], domains: Mapping[BookieId, str]) -> list[BookieId]:
    """The candidates so that neighbours are in different fault domains as far as possible; otherwise in their order.

    Entries go to consecutive positions of an ensemble, so an ensemble taken from the front spreads every write set.
    """
    queues: dict[str, list[BookieId]] = {}
    for bookie in candidates:
        queues.setdefault(domains.get(bookie, ""), []).append(bookie)
    return [queue[turn] for turn in range(len(candidates)) for queue in queues.values() if turn < len(queue)]


def fewest_domains(ensemble: Ensemble, write_quorum: int, domains: Mapping[BookieId, str]) -> int:
    """In how many fault domains the replicas of an entry are at least. Bookies without one are all in the same."""
    size = len(ensemble)
    return min(
        len({domains.get(ensemble[position], "") for position in write_set(start, size, write_quorum)})
        for start in range(size)
    )


def others_first(
    candidates: Sequence[BookieId], staying: Sequence[BookieId], domains: Mapping[BookieId, str]
) -> list[BookieId]:
    """The candidates, those in a fault domain that none of the staying bookies is in first."""
    taken = [domains.get(bookie, "") for bookie in staying]
    return sorted(candidates, key=lambda bookie: domains.get(bookie, "") in taken)


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
