"""Pieces of a ledger made into one, against a dictionary; and a write cache whose entries come in any order."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.examples import scaled

from bookies.kernels import Records
from bookies.storage.cache import WriteCache, write_cache
from bookies.storage.cache.merge import Piece, concat_runs, gathered_in_windows, merge_runs
from bookies.storage.cache.write_cache import Run
from bookies.storage.journal import LogMark

entries = st.lists(st.tuples(st.integers(0, 60), st.binary(max_size=9)), min_size=1, max_size=12)


def piece(pairs: list[tuple[int, bytes]]) -> Piece:
    """In a buffer with something before and behind it."""
    records = Records.of([b"before", *(body for _, body in pairs), b"behind"])
    return [entry_id for entry_id, _ in pairs], records.slice(1, len(pairs) + 1)


def contents(found: Piece) -> list[tuple[int, bytes]]:
    entry_ids, records = found
    assert len(records) == len(entry_ids)
    assert len(records.data) == records.size or records.starts[0] > 0
    return [(entry_id, records.body(index)) for index, entry_id in enumerate(entry_ids)]


@given(st.lists(entries, min_size=1, max_size=5))
def test_gathered(arrivals: list[list[tuple[int, bytes]]]) -> None:
    found = merge_runs([piece(pairs) for pairs in arrivals])
    expected = sorted(dict(pair for pairs in arrivals for pair in pairs).items())
    assert contents(found) == expected
    is_consecutive = expected[-1][0] - expected[0][0] == len(expected) - 1
    assert isinstance(found[0], range) == is_consecutive


@given(st.lists(entries.map(lambda pairs: sorted(dict(pairs).items())), min_size=1, max_size=8), st.integers(16, 400))
def test_windows(arrivals: list[list[tuple[int, bytes]]], size: int) -> None:
    found = [contents(window) for window in gathered_in_windows([piece(pairs) for pairs in arrivals], size)]
    assert all(found)
    assert [pair for window in found for pair in window] == sorted(
        dict(pair for pairs in arrivals for pair in pairs).items()
    )


@given(entries.map(lambda pairs: sorted(dict(pairs).items())), st.lists(st.integers(1, 4), min_size=12, max_size=12))
def test_joined(pairs: list[tuple[int, bytes]], counts: list[int]) -> None:
    pieces, at = [], 0
    for count in counts:
        if part := pairs[at : at + count]:
            pieces.append(piece(part))
        at += count
    found = concat_runs(pieces)
    assert contents(found) == pairs
    assert isinstance(found[0], range) == (pairs[-1][0] - pairs[0][0] == len(pairs) - 1)


def test_records_of_one_size_stay_so() -> None:
    pieces = [(range(first, first - 4, -1), Records(bytes(48), range(0, 49, 12))) for first in (3, 11, 7)]
    for found in (merge_runs(pieces), concat_runs([merge_runs([each]) for each in (pieces[0], pieces[2], pieces[1])])):
        assert found[0] == range(12)
        assert found[1].starts == range(0, 145, 12)


@scaled(40)
@given(st.integers(0, 1 << 32), st.sampled_from([1, 2, 30]), st.sampled_from(["descending", "random", "ranges"]))
def test_a_cache_of_many_arrivals(seed: int, batch_count: int, order: str) -> None:
    """Enough of them for runs to be gathered again and again; windows and small runs are tiny here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write_cache, "WINDOW_SIZE", 700)
        patch.setattr(write_cache, "SMALL_SIZE", 100)
        patch.setattr(write_cache, "JOINED_SIZE", 250)
        patch.setattr(write_cache, "GATHERED_SIZE", 1500)
        _check_arrivals(Random(seed), batch_count, order)


def _check_arrivals(random: Random, batch_count: int, order: str) -> None:
    cache, model = WriteCache(1 << 20, (LogMark(),)), dict[int, bytes]()
    highest = random.choice((100, 1000))
    for number in range(300):
        if order == "random":
            entry_ids = [random.randrange(highest) for _ in range(random.randint(1, batch_count))]
        elif order == "ranges":
            first = random.randrange(highest)
            entry_ids = list(range(first, first + random.randint(1, batch_count)))
        else:
            top = (300 - number) * batch_count
            entry_ids = list(range(top, top - batch_count, -1))
        bodies = [b"%d/%d" % (number, place) for place in range(len(entry_ids))]
        cache.current.add_run(1, entry_ids, Records.of(bodies))
        model.update(zip(entry_ids, bodies, strict=True))
        if number == 170:
            cache.rotate((LogMark(),))
        if number % 23 == 0:
            _check_reads(cache, model, random.randrange(highest), random.randint(1, 40))
    for entry_id in range(-1, highest + 40):
        assert cache.read(1, entry_id) == model.get(entry_id)
    _check_flush(cache, model)


def _check_reads(cache: WriteCache, model: dict[int, bytes], first: int, count_max: int) -> None:
    assert cache.read(1, first) == model.get(first)
    data = b"".join(cache.read_batch(1, first, count_max, 1 << 20))
    stop = next(
        entry_id
        for entry_id in range(first, first + count_max + 1)
        if entry_id not in model or entry_id == first + count_max
    )
    assert data == b"".join(Records.of([model[entry_id]]).tobytes() for entry_id in range(first, stop))
    held = [entry_id for entry_id in model if entry_id >= first]
    assert cache.next_held(1, first, first + count_max) == min([*held, first + count_max])


def _check_flush(cache: WriteCache, model: dict[int, bytes]) -> None:
    """Each entry once, ascending within a generation, the same a second time."""
    stored: dict[int, bytes] = {}
    for generation in (cache.snapshot, cache.current):
        assert generation is not None
        runs = [run for _, run in generation.runs()]
        assert [_pairs(run) for _, run in generation.runs()] == [_pairs(run) for run in runs]
        pairs = [pair for run in runs for pair in _pairs(run)]
        assert [entry_id for entry_id, _ in pairs] == sorted({entry_id for entry_id, _ in pairs})
        stored.update(pairs)
    assert stored == model


def _pairs(run: Run) -> list[tuple[int, bytes]]:
    """Return the entries of a run, which may share the buffer of a longer one."""
    return contents((run.entry_ids, run.records.alone()))
