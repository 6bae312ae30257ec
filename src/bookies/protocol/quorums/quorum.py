"""Arithmetic of quorums: which positions store an entry, and how many answers suffice.

An entry goes to `write_quorum` consecutive positions of its ensemble, beginning at `entry_id mod ensemble_size` and
wrapping around. All else follows from this rule:

* position `p` stores entry `e` exactly if `(p - e) mod E < Qw`, so the ids a position stores repeat with period E;
* an ensemble of E positions has E distinct write sets (one, as a set, if `Qw = E`);
* an entry may have been confirmed only if `Qa` positions of its write set hold it.

The converse of the last point is *coverage*: answers cover an ensemble if no write set has `Qa` positions that are
still unknown, because then no other entry can have been, or ever be, confirmed. Coverage is not a count over the
ensemble: 5/3/2 needs four answers, 4/2/2 may do with two. For a single entry the same argument shows that
`Qw - Qa + 1` definite negatives prove it unconfirmed.

Ids are unbounded integers. The modulus is that of the absolute id (not of the offset in a fragment, D-13).
Source: client-protocol 1.6 and 1.7.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache

from msgspec import Struct

from bookies.protocol.quorums.intervals import IdSet


def write_set(entry_id: int, ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
    """Return the positions that store the entry, in the order in which to ask them."""
    return _turned(entry_id % ensemble_size, ensemble_size, write_quorum)


@lru_cache(maxsize=1024)  # Every read of a single entry needs one of few.
def _turned(first: int, ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
    return tuple((first + offset) % ensemble_size for offset in range(write_quorum))


def write_sets_of(first: int, last: int, ensemble_size: int, write_quorum: int) -> list[tuple[int, ...]]:
    """Return the distinct write sets of entries first..last."""
    end = min(last, first + ensemble_size - 1)
    return [write_set(entry_id, ensemble_size, write_quorum) for entry_id in range(first, end + 1)]


def ensemble_set(entry_id: int, ensemble_size: int) -> tuple[int, ...]:
    """Return all positions, in the order in which an ensemble-wide operation about the entry asks them."""
    return write_set(entry_id, ensemble_size, ensemble_size)


def stores(position: int, entry_id: int, ensemble_size: int, write_quorum: int) -> bool:
    """Report whether the position is in the entry's write set."""
    return (position - entry_id) % ensemble_size < write_quorum


def next_stored(position: int, entry_id: int, ensemble_size: int, write_quorum: int) -> int:
    """Return the first id from `entry_id` on that the position stores."""
    ahead = (position - entry_id) % ensemble_size - write_quorum + 1
    return entry_id + ahead if ahead > 0 else entry_id


def stored_ids(position: int, first: int, last: int, ensemble_size: int, write_quorum: int) -> Sequence[int]:
    """Return the ids in first..last that the position stores, ascending: a `range` where they are consecutive."""
    if write_quorum == ensemble_size:
        return range(first, last + 1)
    # Stored ids come in runs of `write_quorum`; `begin` starts the one that holds `first` or ends before it.
    begin = first - (first - position - 1 + write_quorum) % ensemble_size
    ids = [
        entry_id for start in range(begin, last + 1, ensemble_size) for entry_id in range(start, start + write_quorum)
    ]
    return ids[bisect_left(ids, first) : bisect_right(ids, last)]


def covered(known: Sequence[bool], write_quorum: int, ack_quorum: int) -> bool:
    """Report whether answers from the positions marked `known` cover the ensemble.

    A position is known if its bookie stored the answer's consequence and reported its state: success, "no such entry"
    and "no such ledger". Silence, every error, and an answer whose digest fails are unknown (D-9).
    """
    size = len(known)
    return all(
        sum(not known[(start + offset) % size] for offset in range(write_quorum)) < ack_quorum for start in range(size)
    )


def negatives_needed(write_quorum: int, ack_quorum: int) -> int:
    """Return how many definite "no such entry" of one write set prove that the entry is not, and never will be,
    confirmed.

    The proof holds only if each bookie was fenced before it answered.
    """
    return write_quorum - ack_quorum + 1


def quorum_bound(bounds: list[int], ack_quorum: int) -> int:
    """Return the greatest bound that `ack_quorum` of these reach: the k-th largest. Sorts `bounds` in place."""
    bounds.sort()
    return bounds[-ack_quorum]


class Quorums(Struct, frozen=True):
    """Where one ledger's entries are stored, and how many acknowledgements an entry needs.

    domains_min: fault domains that must have acknowledged it; less than 2: any domains do.
    is_striped: not every position stores every entry.
    """

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    domains_min: int
    is_striped: bool

    def positions(self, entry_id: int) -> tuple[int, ...]:
        """Return the positions that store the entry."""
        return write_set(entry_id, self.ensemble_size, self.write_quorum)

    def next_stored(self, position: int, entry_id: int) -> int:
        """Return the first id from `entry_id` on that the position stores."""
        return next_stored(position, entry_id, self.ensemble_size, self.write_quorum) if self.is_striped else entry_id

    def stored_ids(self, position: int, first: int, last: int) -> Sequence[int]:
        """Return the ids in first..last that the position stores, ascending."""
        return stored_ids(position, first, last, self.ensemble_size, self.write_quorum)

    def runs(self, position: int, entry_ids: Sequence[int], bound: int) -> Iterator[tuple[int, int]]:
        """Yield the ids as [start, stop) runs of consecutive *stored* ids; `stop`: the next id the position stores.

        Skip ids from `bound` on and those that the position does not store.
        """
        if isinstance(entry_ids, range) and entry_ids.step == 1 and not self.is_striped:
            yield entry_ids.start, min(entry_ids.stop, bound)
            return
        ids = list(entry_ids)
        stored = self.stored_ids(position, ids[0], ids[-1]) if ids else ()
        if ids and ids[-1] < bound and ids == list(stored):  # the usual case: no gaps
            yield ids[0], self.next_stored(position, ids[-1] + 1)
            return
        start = stop = -1
        for entry_id in sorted(ids):
            if entry_id >= bound or not stores(position, entry_id, self.ensemble_size, self.write_quorum):
                continue
            if entry_id != stop:
                if start >= 0:
                    yield start, stop
                start = entry_id
            stop = self.next_stored(position, entry_id + 1)
        if start >= 0:
            yield start, stop

    def striped_bound(self, first: int, acked: Sequence[IdSet]) -> int:
        """Return an id before which every id from `first` on has its ack quorum; above `first` if `first` has it.

        `acked`: the ids that each position holds.
        """
        size = self.ensemble_size
        reach = [ids.reach(self.next_stored(position, first)) for position, ids in enumerate(acked)]
        nearest = -1
        for residue in range(size):
            members = [reach[(residue + offset) % size] for offset in range(self.write_quorum)]
            bound = max(first, quorum_bound(members, self.ack_quorum))
            candidate = bound + (residue - bound) % size
            if nearest < 0 or candidate < nearest:
                nearest = candidate
        return nearest
