"""Merging of small pieces of a ledger: sorts entries that arrived in any order and copies them once.

A piece is (entry ids, records), one id per record. The result has ascending ids, as a range if they are consecutive and
as an array otherwise, and its records are in one buffer.

Source: storage 5.6.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise

from bookies.kernels import Records

WINDOW_SAMPLES = 16  # sampled ids in a window

Piece = tuple[Sequence[int], Records]


def merge_runs(pieces: Sequence[Piece]) -> Piece:
    """Merge at least one entry from pieces in any order; of several copies of an entry the last one counts."""
    bodies_by_id: dict[int, bytes] = {}
    for entry_ids, records in pieces:
        data = records.data
        bodies_by_id.update(zip(entry_ids, [data[at:end] for at, end in pairwise(records.starts)], strict=True))
    ordered = sorted(bodies_by_id)
    bodies = list(map(bodies_by_id.__getitem__, ordered))
    return _as_ids(ordered), Records(b"".join(bodies), _starts_of(pieces, bodies))


def _starts_of(pieces: Sequence[Piece], bodies: Sequence[bytes]) -> Sequence[int]:
    if (step := _common_step(pieces)) > 0:
        return range(0, step * len(bodies) + 1, step)
    return array("q", accumulate(map(len, bodies), initial=0))


def gathered_in_windows(pieces: Sequence[Piece], size: int) -> Iterator[Piece]:
    """Merge pieces whose ids ascend as `merge_runs` does, but in windows of ids of about `size` bytes. Deterministic.

    Only one window is in memory at once, beside the pieces.
    """
    samples = _samples(pieces, max(1, size // WINDOW_SAMPLES))
    starts = [0] * len(pieces)
    for cut in [*samples[WINDOW_SAMPLES::WINDOW_SAMPLES], None]:
        window: list[Piece] = []
        for index, (entry_ids, records) in enumerate(pieces):
            start = starts[index]
            stop = len(entry_ids) if cut is None else bisect_left(entry_ids, cut, lo=start)
            if start < stop:
                window.append((entry_ids[start:stop], records.slice(start, stop)))
                starts[index] = stop
        if window:
            yield window[0] if len(window) == 1 else merge_runs(window)


def _samples(pieces: Sequence[Piece], step: int) -> list[int]:
    """Return about one id for every `step` bytes of records, ascending."""
    samples: list[int] = []
    due = 0  # bytes until the next one
    for entry_ids, records in pieces:
        count, size = len(entry_ids), records.size
        if due < size:
            stride = max(1, count * step // size)
            taken = entry_ids[due * count // size :: stride]
            samples.extend(taken)
            due += len(taken) * stride * size // count
        due = max(0, due - size)
    return sorted(samples)


def concat_runs(pieces: Sequence[Piece]) -> Piece:
    """Concatenate one or more pieces that follow each other in ascending order."""
    data = b"".join([records.tobytes() for _, records in pieces])
    count = sum(len(entry_ids) for entry_ids, _ in pieces)
    starts: Sequence[int]
    if (step := _common_step(pieces)) > 0:
        starts = range(0, step * count + 1, step)
    else:
        starts = array("q", [0])
        for _, records in pieces:
            shift = starts[-1] - records.starts[0]
            starts.extend([at + shift for at in records.starts[1:]])
    first, last = pieces[0][0][0], pieces[-1][0][-1]
    if last - first == count - 1:
        return range(first, last + 1), Records(data, starts)
    return array("q", chain.from_iterable(entry_ids for entry_ids, _ in pieces)), Records(data, starts)


def _common_step(pieces: Sequence[Piece]) -> int:
    """Return the size in bytes of each record; 0 if they are not known to have one size."""
    first = pieces[0][1].starts
    step = first.step if isinstance(first, range) else 0
    for _, records in pieces:
        if not isinstance(records.starts, range) or records.starts.step != step:
            return 0
    return step


def _as_ids(ordered: list[int]) -> Sequence[int]:
    first, last = ordered[0], ordered[-1]
    return range(first, last + 1) if last - first == len(ordered) - 1 else array("q", ordered)
