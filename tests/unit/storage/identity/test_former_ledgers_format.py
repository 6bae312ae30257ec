"""The file `formerLedgers`: exactly what was written, or a refusal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookies.errors import CorruptRecord
from bookies.kernels import crc32c
from bookies.protocol.quorums import IdSet
from bookies.storage.identity.former_ledgers_format import RUNS_MAX, pack, parse, union

EXAMPLE = b"formerLedgers 1\nbelow 1207\n500000-500003\n700000\ncrc32c 0459642a\n"


def ids_of(bound: int, runs: list[tuple[int, int]]) -> IdSet:
    ids = IdSet(bound)
    for start, stop in runs:
        ids.add(start, stop)
    return ids


def test_the_bytes() -> None:
    assert pack(ids_of(1207, [(500_000, 500_004), (700_000, 700_001)])) == EXAMPLE
    ids = parse(EXAMPLE)
    assert (ids.bound, ids.runs) == (1207, [(500_000, 500_004), (700_000, 700_001)])


@given(st.integers(0, 1 << 63), st.lists(st.tuples(st.integers(0, 1 << 62), st.integers(1, 1000)), max_size=20))
def test_what_was_written_is_read(bound: int, parts: list[tuple[int, int]]) -> None:
    ids = ids_of(bound, [(start, start + count) for start, count in parts])
    read = parse(pack(ids))
    assert (read.bound, read.runs) == (ids.bound, ids.runs)


@given(st.integers(0, 50), st.lists(st.integers(0, 200), max_size=30), st.lists(st.integers(0, 200), max_size=30))
def test_a_union_has_the_ids_of_both_and_changes_neither(bound: int, first: list[int], second: list[int]) -> None:
    ids = ids_of(bound, [(number, number + 1) for number in first])
    both = union(ids, ((number, number + 1) for number in second))
    assert {number for number in range(300) if number in both} == {*range(bound), *first, *second}
    assert {number for number in range(300) if number in ids} == {*range(bound), *first}


def test_the_lowest_runs_of_too_many_join() -> None:
    both = union(IdSet(0), ((number, number + 1) for number in range(1, 2 * RUNS_MAX + 7, 2)))
    assert len(both.runs) == RUNS_MAX
    assert (both.bound, both.runs[0]) == (6, (7, 8))


@pytest.mark.parametrize("length", range(len(EXAMPLE)))
def test_a_file_that_is_cut_off_does_not_count(length: int) -> None:
    with pytest.raises(CorruptRecord):
        parse(EXAMPLE[:length])


@pytest.mark.parametrize("lines", [b"below 9223372036854775809", b"below 0\n9-5", b"below 0\n9223372036854775808"])
def test_ids_that_no_ledger_has_are_refused(lines: bytes) -> None:
    data = b"formerLedgers 1\n" + lines + b"\n"
    with pytest.raises(CorruptRecord):
        parse(data + b"crc32c %08x\n" % crc32c(data))


@pytest.mark.parametrize("at", range(len(EXAMPLE)))
def test_a_changed_byte_is_noticed(at: int) -> None:
    with pytest.raises(CorruptRecord):
        parse(EXAMPLE[:at] + bytes((EXAMPLE[at] ^ 1,)) + EXAMPLE[at + 1 :])
