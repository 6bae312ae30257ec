"""Generations of the write cache, and when it is full. What it finds is tested in tests/property."""

from __future__ import annotations

import itertools
import tracemalloc
from array import array
from collections.abc import Iterator, Sequence
from random import Random

import pytest

from bookies.kernels import Records
from bookies.storage.cache import WriteCache
from bookies.storage.cache.write_cache import RUN_OVERHEAD
from bookies.storage.journal import LogMark

KIB, MIB = 1 << 10, 1 << 20


def fill(cache: WriteCache, first: int, size: int) -> None:
    cache.current.add_run(1, [first], Records.of([bytes(size)]))


def test_a_generation_carries_the_marks_of_its_beginning() -> None:
    cache = WriteCache(4096 * KIB, (LogMark(1, 512),))
    fill(cache, 0, 10)
    older = cache.rotate((LogMark(1, 1024),))
    assert older.marks == (LogMark(1, 512),)
    assert cache.current.marks == (LogMark(1, 1024),)


def test_due_congested_exhausted() -> None:
    cache = WriteCache(4096 * KIB, (LogMark(),))
    fill(cache, 0, 2047 * KIB)
    assert not cache.is_due
    fill(cache, 1, KIB)
    assert cache.is_due
    assert not cache.is_congested
    cache.rotate((LogMark(),))
    fill(cache, 2, 2048 * KIB)
    assert cache.is_congested
    assert not cache.is_exhausted
    fill(cache, 3, 1024 * KIB)
    assert cache.is_exhausted
    cache.drop_snapshot()
    assert cache.is_due
    assert not cache.is_congested
    assert cache.read(1, 0) is None
    assert cache.read(1, 2) == bytes(2048 * KIB)


def test_a_snapshot_of_more_than_a_half_leaves_less_for_the_next_generation() -> None:
    cache = WriteCache(4096 * KIB, (LogMark(),))
    fill(cache, 0, 3072 * KIB)
    cache.rotate((LogMark(),))
    fill(cache, 1, 1023 * KIB)
    assert not cache.is_congested
    fill(cache, 2, KIB)
    assert cache.is_congested


def test_tiny_runs_count_for_the_objects_they_need() -> None:
    cache = WriteCache(2048 * KIB, (LogMark(),))
    fill(cache, 0, 0)
    assert cache.size == 4 + RUN_OVERHEAD


def arrivals(order: str, count: int) -> Iterator[Sequence[int]]:
    """Ids without end, `count` at a time."""
    random = Random(7)
    if order == "descending":
        return (range(top, top - count, -1) for top in range(10_000_000, 0, -count))
    if order == "ascending":
        return (range(first, first + count) for first in itertools.count(0, count))
    return (array("q", [random.randrange(200_000) for _ in range(count)]) for _ in itertools.repeat(None))


@pytest.mark.parametrize("count", [1, 3, 500])
@pytest.mark.parametrize("order", ["ascending", "descending", "random"])
def test_what_is_counted_is_what_is_in_memory_whatever_the_order(order: str, count: int) -> None:
    cache, size = WriteCache(2 * MIB, (LogMark(),)), 44 * count
    batches = arrivals(order, count)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        while not cache.is_due:
            cache.current.add_run(1, next(batches), Records(bytes(size), range(0, size + 1, 44)))
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used < 1.2 * cache.size


@pytest.mark.parametrize("count", [1, 3, 500])
@pytest.mark.parametrize("order", ["ascending", "descending", "random"])
def test_a_flush_gets_few_runs_whatever_the_order(order: str, count: int) -> None:
    cache, size = WriteCache(2 * MIB, (LogMark(),)), 44 * count
    for entry_ids in itertools.islice(arrivals(order, count), 5_000 // count):
        cache.current.add_run(1, entry_ids, Records(bytes(size), range(0, size + 1, 44)))
    assert len(list(cache.current.runs())) <= 10


def test_large_runs_are_not_gathered_again_while_they_arrive() -> None:
    cache = WriteCache(1024 * MIB, (LogMark(),))
    data = bytes(10 * 64 * KIB)
    for _ in range(40):
        cache.current.add_run(1, range(10), Records(data, range(0, len(data) + 1, 64 * KIB)))
    assert all(run.records.data is data for run in cache.runs_of(1))


def test_large_runs_that_do_not_overlap_are_flushed_as_they_are() -> None:
    cache, data = WriteCache(1024 * MIB, (LogMark(),)), bytes(10 * KIB)
    for first in (0, 30, 10, 20):
        cache.current.add_run(1, range(first, first + 10), Records(data, range(0, len(data) + 1, KIB)))
    runs = [run for _, run in cache.current.runs()]
    assert [run.first for run in runs] == [0, 10, 20, 30]
    assert all(run.records.data is data for run in runs)
