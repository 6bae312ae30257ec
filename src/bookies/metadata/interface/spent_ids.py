"""The ids of deleted ledgers, as drivers for ZooKeeper and etcd store them: lists of runs, each for 65,536 ids."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from bookies.errors import MetadataCorrupt
from bookies.protocol.quorums import IdSet

SPENT_SIZE = 1 << 16  # ids in one list of deleted ledgers


def is_spent_list(child: str) -> bool:
    """Report whether the last part of a path or key names a list."""
    return re.fullmatch(r"[0-9a-f]{12}", child) is not None


def pack_spent(ids: IdSet) -> bytes:
    """Return a list's bytes: runs such as `0-4 7 9-12`, each number an offset in the list."""
    runs = ([(0, ids.bound)] if ids.bound > 0 else []) + ids.runs
    return " ".join(str(start) if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in runs).encode("ascii")


def parse_spent(path: str, data: bytes) -> IdSet:
    """Read a list. Raises `MetadataCorrupt`."""
    ids = IdSet(0)
    try:
        for word in data.decode("ascii").split():
            first, _, last = word.partition("-")
            start, stop = int(first), int(last or first) + 1
            if not 0 <= start < stop <= SPENT_SIZE:
                raise ValueError(f"{word!r} is not a run of ids")
            ids.add(start, stop)
    except ValueError as error:
        raise MetadataCorrupt(f"the list of deleted ledgers {path} cannot be read: {error}") from error
    return ids


def without(ids: IdSet, removed: int) -> IdSet:
    """Return the set without one id."""
    rest = IdSet(0)
    for start, stop in ([(0, ids.bound)] if ids.bound > 0 else []) + ids.runs:
        rest.add(start, min(stop, max(start, removed)))
        rest.add(max(start, removed + 1), stop)
    return rest


def joined(lists: Mapping[int, IdSet]) -> tuple[tuple[int, int], ...]:
    """Return all ids of numbered lists as runs (first, last), ascending and not adjacent."""
    runs: list[tuple[int, int]] = []
    for number, ids in sorted(lists.items()):
        base = number * SPENT_SIZE
        for start, stop in ([(0, ids.bound)] if ids.bound > 0 else []) + ids.runs:
            if runs and runs[-1][1] == base + start - 1:
                runs[-1] = (runs[-1][0], base + stop - 1)
            else:
                runs.append((base + start, base + stop - 1))
    return tuple(runs)


def divided(runs: Sequence[tuple[int, int]]) -> dict[int, list[tuple[int, int]]]:
    """Return the runs of ids by the number of their list, as offsets in the list. Inverse of `joined`."""
    parts: dict[int, list[tuple[int, int]]] = {}
    for first, last in runs:
        for number in range(first // SPENT_SIZE, last // SPENT_SIZE + 1):
            base = number * SPENT_SIZE
            part = max(first, base) - base, min(last, base + SPENT_SIZE - 1) - base
            parts.setdefault(number, []).append(part)
    return parts
