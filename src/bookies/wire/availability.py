"""Lists of the entries that a bookie holds, as the list-entries operation carries them. Source: wire-protocol 5.10.

    list  := int32 version = 0 | int32 group count | 56 zero bytes | group ...
    group := int64 first sequence start | int64 last sequence start | int32 sequence size | int32 period

A group stands for runs of `size` ids that start at first, first + period, ..., last. We write one group per run, as
Apache's bookies do, and read both.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from bookies.errors import RemoteProtocolError

_HEADER = struct.Struct(">ii56x")
_GROUP = struct.Struct(">qqii")
_RUN_SIZE_MAX = (1 << 31) - 1


def pack_availability(runs: Sequence[range]) -> bytes:
    """Pack a list. `runs`: maximal runs of ids, ascending and not empty; a run too long for an int32 becomes
    several."""
    groups: list[bytes] = []
    for run in runs:
        assert run.step == 1
        for first in range(run.start, run.stop, _RUN_SIZE_MAX):
            groups.append(_GROUP.pack(first, first, min(run.stop - first, _RUN_SIZE_MAX), 0))
    return _HEADER.pack(0, len(groups)) + b"".join(groups)


def parse_availability(data: bytes, *, runs_max: int = 1 << 18) -> list[range]:
    """Return the runs of ids, ascending, adjacent ones merged.

    Raises RemoteProtocolError when the list is malformed, or stands for more than `runs_max` runs: a group of a few
    bytes can stand for 2^63 of them.
    """
    if len(data) < _HEADER.size:
        raise RemoteProtocolError(f"list of entries of {len(data)} bytes")
    version, count = _HEADER.unpack_from(data)
    if version != 0:
        raise RemoteProtocolError(f"list of entries of version {version}")
    if count < 0 or len(data) - _HEADER.size < count * _GROUP.size:
        raise RemoteProtocolError(f"list of entries of {count} groups in {len(data)} bytes")
    unsorted: list[range] = []
    for first, last, size, period in _GROUP.iter_unpack(data[_HEADER.size : _HEADER.size + count * _GROUP.size]):
        if first < 0 or last < first or size <= 0 or (last != first and period <= 0):
            raise RemoteProtocolError(f"group of {size} entries from {first} to {last} with period {period}")
        count_more = (last - first) // period if last != first else 0
        if len(unsorted) + count_more >= runs_max:
            raise RemoteProtocolError(f"list of entries of more than {runs_max:,} runs")
        unsorted.extend(range(first + k * period, first + k * period + size) for k in range(count_more + 1))
    unsorted.sort(key=lambda run: run.start)  # groups ascend by their first id, but their runs may interleave
    runs: list[range] = []
    for run in unsorted:
        if runs and run.start <= runs[-1].stop:
            runs[-1] = range(runs[-1].start, max(runs[-1].stop, run.stop))
        else:
            runs.append(run)
    return runs
