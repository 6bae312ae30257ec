"""The ids of deleted ledgers, as drivers for ZooKeeper and etcd store them: lists of runs, each for 65,536 ids."""

from __future__ import annotations

from bookies.errors import MetadataCorrupt
from bookies.protocol.intervals import IdSet

SPENT_SIZE = 1 << 16  # ids in one list of deleted ledgers


def pack_spent(ids: IdSet) -> bytes:
    """As runs: `0-4 7 9-12`, each number an offset in the list."""
    runs = ([(0, ids.bound)] if ids.bound > 0 else []) + ids.runs
    return " ".join(str(start) if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in runs).encode("ascii")


def parse_spent(path: str, data: bytes) -> IdSet:
    """Raises `MetadataCorrupt`."""
    ids = IdSet(0)
    try:
        for word in data.decode("ascii").split():
            first, _, last = word.partition("-")
            start, stop = int(first), int(last or first) + 1
            if not 0 <= start < stop <= SPENT_SIZE:
                raise ValueError(f"{word!r} is no run of ids")
            ids.add(start, stop)
    except ValueError as error:
        raise MetadataCorrupt(f"the list of deleted ledgers {path} cannot be read: {error}") from error
    return ids
