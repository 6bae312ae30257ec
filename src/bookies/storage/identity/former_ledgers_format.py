"""The file format of `formerLedgers`: the ledgers that may be older than a bookie's directories.

Written to every directory of a bookie at the first start that does not find it everywhere, and again before the bookie
forgets ledgers that it has deleted. A ledger that it does not contain was created later, so its fence, if it has one,
is in these directories. Text, for example:

    formerLedgers 1
    below 1207
    500000-500003
    700000
    crc32c 0459642a

`below`: the next id of the generator at the first start. The other lines: ids above, of ledgers that existed or were
deleted. The checksum, of the bytes before it, also detects a file that is cut off. Source: storage 9.7.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from bookies.errors import CorruptRecord
from bookies.kernels import crc32c
from bookies.protocol.quorums import IdSet

FILE_NAME = "formerLedgers"
VERSION = 1
ALL_LEDGERS = 1 << 63
RUNS_MAX = 10_000

_FILE = re.compile(
    rb"formerLedgers 1\nbelow ([0-9]{1,19})\n((?:[0-9]{1,19}(?:-[0-9]{1,19})?\n)*)crc32c ([0-9a-f]{8})\n"
)


def union(ids: IdSet, runs: Iterable[tuple[int, int]]) -> IdSet:
    """Return the ids and these [start, stop) runs in a new set of at most `RUNS_MAX` runs, which may contain more."""
    both = IdSet(ids.bound)
    for start, stop in (*ids.runs, *runs):
        both.add(start, stop)
    if excess := max(0, len(both.runs) - RUNS_MAX):
        both.add(both.bound, both.runs[excess - 1][1])
    return both


def pack(ids: IdSet) -> bytes:
    """Return the whole file. `ids`: with a bound of 0 or more."""
    runs = [f"{start}" if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in ids.runs]
    data = "".join(f"{line}\n" for line in (f"{FILE_NAME} {VERSION}", f"below {ids.bound}", *runs)).encode()
    return data + f"crc32c {crc32c(data):08x}\n".encode()


def parse(data: bytes, *, path: str = FILE_NAME) -> IdSet:
    """Parse the whole file. Raises CorruptRecord."""
    match = _FILE.fullmatch(data)
    if match is None:
        raise CorruptRecord("not a list of former ledgers, or not all of it", path=path, offset=0)
    checksum_at = match.start(3) - len(b"crc32c ")
    if crc32c(data[:checksum_at]) != int(match[3], 16):
        raise CorruptRecord("the checksum does not match", path=path, offset=checksum_at)
    ids = IdSet(int(match[1]))
    for line in match[2].split():
        first, _, last = line.partition(b"-")
        start, stop = int(first), int(last or first) + 1
        if start >= stop:
            raise CorruptRecord(f"{line.decode()} is not a run of ledgers", path=path, offset=match.start(2))
        ids.add(start, stop)
    if max(ids.bound, *(stop for _, stop in ids.runs), 0) > ALL_LEDGERS:
        raise CorruptRecord("there are no ledgers with such ids", path=path, offset=match.start(1))
    return ids
