"""The write cache against a dictionary: whatever arrives in whatever order, the last copy of an entry counts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bookies.kernels import Records
from bookies.storage.mark_format import LogMark
from bookies.storage.write_cache import WriteCache

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


@settings(max_examples=150, deadline=None)
@given(batches, st.integers(0, HIGHEST), st.integers(1, 12), st.integers(0, 200))
def test_against_a_dictionary(arrivals: list, first: int, count_max: int, size_max: int) -> None:  # type: ignore[type-arg]
    cache = WriteCache(1 << 20, (LogMark(),))
    model: dict[tuple[int, int], bytes] = {}
    for number, (ledger_id, entry_ids, rotates) in enumerate(arrivals):
        bodies = [b"%d/%d/%d/%d" % (ledger_id, entry_id, number, place) for place, entry_id in enumerate(entry_ids)]
        cache.current.add(ledger_id, entry_ids, Records.of(bodies))
        model.update({(ledger_id, entry_id): body for entry_id, body in zip(entry_ids, bodies, strict=True)})
        if rotates and cache.snapshot is None:
            cache.rotate((LogMark(number),))
    for ledger_id in range(LEDGERS):
        for entry_id in range(HIGHEST + 10):
            assert cache.read(ledger_id, entry_id) == model.get((ledger_id, entry_id))
        _check_batch(cache, model, ledger_id, first, count_max, size_max)
        ids = {entry_id for run in cache.runs_of(ledger_id) for entry_id in run.entry_ids}
        assert ids == {entry_id for owner, entry_id in model if owner == ledger_id}
    _check_flush(cache, model)


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
    assert stored == model
