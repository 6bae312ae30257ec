"""Generations of the write cache, and when it is full. What it finds is tested in tests/property."""

from __future__ import annotations

from bookies.kernels import Records
from bookies.storage.mark_format import LogMark
from bookies.storage.write_cache import RUN_OVERHEAD, WriteCache

KIB = 1 << 10


def fill(cache: WriteCache, first: int, size: int) -> None:
    cache.current.add(1, [first], Records.of([bytes(size)]))


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
