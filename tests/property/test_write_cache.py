"""The write cache against a dictionary: whatever arrives in whatever order, the last copy of an entry counts."""

from __future__ import annotations

import itertools
import struct
from array import array

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.examples import scaled

from bookies.kernels import Adds, Records, SortedEntries
from bookies.storage.cache import WriteCache
from bookies.storage.cache.write_cache import AddRun, Generation
from bookies.storage.journal import LogMark

LEDGERS = 2
HIGHEST = 30

batches = st.lists(
    st.tuples(
        st.integers(0, LEDGERS - 1),
        st.one_of(
            st.lists(st.integers(0, HIGHEST), min_size=1, max_size=8),
            st.tuples(st.integers(0, HIGHEST - 8), st.integers(1, 8)).map(lambda pair: range(pair[0], sum(pair))),
            st.integers(0, HIGHEST - 8).map(lambda first: range(first, first + 8, 3)),
        ),
        st.booleans(),
    ),
    max_size=20,
)


@scaled(150)
@given(batches, st.integers(0, HIGHEST), st.integers(1, 12), st.integers(0, 200))
def test_against_a_dictionary(arrivals: list, first: int, count_max: int, size_max: int) -> None:  # type: ignore[type-arg]
    cache = WriteCache(1 << 20, (LogMark(),))
    model: dict[tuple[int, int], bytes] = {}
    for number, (ledger_id, entry_ids, rotates) in enumerate(arrivals):
        bodies = [_body(ledger_id, entry_id, number, place) for place, entry_id in enumerate(entry_ids)]
        cache.current.add_run(ledger_id, entry_ids, Records.of(bodies))
        model.update({(ledger_id, entry_id): body for entry_id, body in zip(entry_ids, bodies, strict=True)})
        if rotates and cache.snapshot is None:
            cache.rotate((LogMark(number),))
    _check(cache, model, first, count_max, size_max)


mixtures = st.lists(
    st.one_of(
        st.tuples(st.integers(0, LEDGERS - 1), st.lists(st.integers(0, HIGHEST), min_size=1, max_size=8)),
        st.lists(st.tuples(st.integers(0, LEDGERS - 1), st.integers(0, HIGHEST)), min_size=1, max_size=12),
        st.sampled_from(["rotate", "drop", "look"]),
    ),
    max_size=20,
)


@scaled(200)
@given(mixtures, st.integers(0, HIGHEST), st.integers(1, 12), st.integers(0, 200))
def test_mixed_runs_against_a_dictionary(arrivals: list, first: int, count_max: int, size_max: int) -> None:  # type: ignore[type-arg]
    """What came with other ledgers' entries and what came alone, before a look at the cache and after it."""
    cache = WriteCache(1 << 20, (LogMark(),))
    model: dict[tuple[int, int], bytes] = {}
    of_snapshot: dict[tuple[int, int], bytes] = {}
    for number, arrival in enumerate(arrivals):
        match arrival:
            case "rotate" if cache.snapshot is None:
                cache.rotate((LogMark(number),))
                of_snapshot, model = model, {}
            case "drop" if cache.snapshot is not None:
                cache.drop_snapshot()
                of_snapshot = {}
            case "look":
                cache.read(number % LEDGERS, HIGHEST)
            case tuple():
                ledger_id, entry_ids = arrival
                bodies = [_body(ledger_id, entry_id, number, place) for place, entry_id in enumerate(entry_ids)]
                cache.current.add_run(ledger_id, entry_ids, Records.of(bodies))
                model |= {(ledger_id, entry_id): body for entry_id, body in zip(entry_ids, bodies, strict=True)}
            case list():
                bodies = [_body(*ids, number, place) for place, ids in enumerate(arrival)]
                cache.current.add(Adds.of_many([(*ids, -1) for ids in arrival], bodies))
                model |= dict(zip(arrival, bodies, strict=True))
    _check(cache, of_snapshot | model, first, count_max, size_max)
    assert cache.size >= sum(map(len, (of_snapshot | model).values()))
    for ledger_id in range(LEDGERS):
        assert cache.holds(ledger_id) == any(owner == ledger_id for owner, _ in of_snapshot | model)


def _body(ledger_id: int, entry_id: int, number: int, place: int) -> bytes:
    return struct.pack(">qqq", ledger_id, entry_id, -1) + b"%d/%d" % (number, place)


def _check(cache: WriteCache, model: dict[tuple[int, int], bytes], first: int, count_max: int, size_max: int) -> None:
    _check_flush(cache, model)
    for ledger_id in range(LEDGERS):
        for entry_id in range(HIGHEST + 10):
            assert cache.read(ledger_id, entry_id) == model.get((ledger_id, entry_id))
        _check_batch(cache, model, ledger_id, first, count_max, size_max)
        ids = {entry_id for run in cache.runs_of(ledger_id) for entry_id in run.entry_ids}
        assert ids == {entry_id for owner, entry_id in model if owner == ledger_id}
    _check_flush(cache, model)


def _sorted(generation: Generation) -> AddRun | None:
    """What a flush writes of the mixed runs, in pieces of three entries or so."""
    mixture = SortedEntries([(mixed.ledger_ids, mixed.entry_ids, mixed.records) for mixed in generation.mixed])
    pieces: list[AddRun] = []
    while (at := sum(map(len, pieces))) < len(mixture):
        found = mixture.take(at, 100)
        pieces.append(AddRun(found[1], found[2], found[0]))
    if not pieces:
        return None
    records = Records.of([piece.records.body(index) for piece in pieces for index in range(len(piece))])
    ledger_ids, entry_ids = (
        array("q", itertools.chain.from_iterable(column))
        for column in ((piece.ledger_ids for piece in pieces), (piece.entry_ids for piece in pieces))
    )
    return AddRun(ledger_ids, entry_ids, Records(records.data, array("q", records.starts)))


def _check_batch(
    cache: WriteCache, model: dict[tuple[int, int], bytes], ledger_id: int, first: int, count_max: int, size_max: int
) -> None:
    """Consecutive entries, not outdated: the first in any case, no more than asked for, all that are here and fit."""
    data = b"".join(cache.read_batch(ledger_id, first, count_max, size_max))
    count = 0
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        assert data[at + 4 : at + 4 + size] == model[ledger_id, first + count]
        at += 4 + size
        count += 1
    assert (count == 0) == ((ledger_id, first) not in model)
    assert count <= count_max
    assert len(data) <= size_max or count <= 1
    held = [entry_id for owner, entry_id in model if owner == ledger_id and entry_id >= first]
    assert cache.next_held(ledger_id, first, first + count_max) == min([*held, first + count_max])
    following = model.get((ledger_id, first + count))
    assert count in (0, count_max) or following is None or len(data) + 4 + len(following) > size_max - 4


def _check_flush(cache: WriteCache, model: dict[tuple[int, int], bytes]) -> None:
    """Slots set in the order of the flush leave the last copy of each entry."""
    stored: dict[tuple[int, int], bytes] = {}
    for generation in (cache.snapshot, cache.current):
        ledgers = []
        for ledger_id, run in generation.runs() if generation else ():
            ledgers.append(ledger_id)
            assert list(run.entry_ids) == sorted(set(run.entry_ids))
            for index, entry_id in enumerate(run.entry_ids):
                stored[ledger_id, entry_id] = run.records.body(index)
        assert ledgers == sorted(ledgers)
        if generation and (mixed := _sorted(generation)) is not None:
            ids = list(zip(mixed.ledger_ids, mixed.entry_ids, strict=True))
            assert ids == sorted(set(ids))
            stretches = list(mixed.stretches())
            assert [at for _, *ends in stretches for at in range(*ends)] == list(range(len(ids)))
            stored.update({each: mixed.records.body(index) for index, each in enumerate(ids)})
    assert stored == model
