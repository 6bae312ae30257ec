"""What is left without a bookie, how much it has, and how long it takes to copy that."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookies.model import BookieId, DigestType, LedgerMetadata, LedgerState
from bookies.protocol.quorums import write_set
from bookies.protocol.repair.drain import (
    FORECAST_AFTER_S,
    Forecast,
    assumed_s,
    interleaved,
    portion_of,
    replicas_elsewhere,
)
from bookies.protocol.repair.fragments import fragments_to_check

B = [BookieId(f"b{number}") for number in range(7)]


def record(
    *ensembles: tuple[int, tuple[BookieId, ...]], quorum: int = 3, last: int | None = 9, length: int = 1000
) -> LedgerMetadata:
    is_closed = last is not None
    return LedgerMetadata(
        7,
        len(ensembles[0][1]),
        quorum,
        2,
        ensembles,
        LedgerState.CLOSED if is_closed else LedgerState.OPEN,
        last_entry_id=-1 if last is None else last,
        length=length if is_closed else 0,
        digest_type=DigestType.CRC32C,
    )


@given(st.data())
def test_what_is_left_is_what_counting_every_entry_says(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 5))
    quorum = data.draw(st.integers(1, size))
    starts = sorted({0, *data.draw(st.lists(st.integers(1, 20), max_size=3))})
    pick = st.lists(st.sampled_from(B), min_size=size, max_size=size, unique=True).map(tuple)
    ensembles = [(start, data.draw(pick)) for start in starts]
    last = data.draw(st.none() | st.integers(-1, 25))
    found = record(*ensembles, quorum=quorum, last=last)
    away = data.draw(st.lists(st.sampled_from(B), max_size=4))
    end = starts[-1] + 3 * size if last is None else last
    expected = [
        sum(found.ensemble_at(entry)[at] not in away for at in write_set(entry, size, quorum))
        for entry in range(end + 1)
    ]
    assert replicas_elsewhere(found, away) == min(expected, default=quorum)


def test_a_portion_is_counted_in_entries_and_estimated_in_bytes() -> None:
    whole = record((0, (B[0], B[1], B[2])))
    portion = portion_of(whole, fragments_to_check(whole, -1), B[0], 9, 1000)
    assert (portion.fragments, portion.entries, portion.size) == (1, 10, 10 * (100 + 32 + 4))
    assert not portion.needs_sealing
    striped = record((0, (B[0], B[1], B[2])), (5, (B[3], B[1], B[2])), quorum=2)
    portion = portion_of(striped, fragments_to_check(striped, -1), B[0], 9, 1000)
    assert (portion.fragments, portion.entries) == (1, 3)
    growing = record((0, (B[0], B[1], B[2])), last=None)
    assert portion_of(growing, fragments_to_check(growing, -1), B[0], -1, 0).needs_sealing
    empty = record((0, (B[0], B[1], B[2])), last=-1)
    assert portion_of(empty, [], B[0], -1, 0).size == 0


@dataclass(frozen=True)
class Sized:
    size: int


@given(st.lists(st.integers(0, 1 << 40), min_size=200, max_size=400))
def test_every_beginning_of_the_order_is_like_the_whole(sizes: list[int]) -> None:
    ordered = interleaved([Sized(size) for size in sizes])
    assert sorted(each.size for each in ordered) == sorted(sizes)
    median = sorted(sizes)[len(sizes) // 2]
    for count in (20, 50, 100):
        smaller = sum(each.size < median for each in ordered[:count])
        below = sum(size < median for size in sizes) / len(sizes)
        assert smaller / count == pytest.approx(below, abs=0.15)


def test_a_forecast_goes_on_as_it_went() -> None:
    forecast = Forecast(0, 1000, 10.0)
    assert forecast.remaining_s(0, 100, 10.0 + FORECAST_AFTER_S / 2) is None
    assert forecast.remaining_s(0, 1, 20.0) is None
    assert forecast.remaining_s(0, 250, 20.0) == pytest.approx(30.0)
    assert forecast.remaining_s(0, 250, 20.0, owed_s=2.0) == pytest.approx(38.0)
    assert forecast.remaining_s(0, 1000, 20.0) == 0.0
    assert forecast.remaining_s(0, 1000, 20.0, owed_s=2.0) == 2.0
    forecast.set_work(0, 500)  # The other half waits for somebody.
    assert forecast.remaining_s(0, 250, 20.0) == pytest.approx(10.0)
    forecast.idled(5.0)  # For so long all of it waited.
    assert forecast.remaining_s(0, 250, 20.0) == pytest.approx(5.0)
    assert Forecast(0, 0, 0.0).remaining_s(0, 0, 0.0) == 0.0
    assert assumed_s(0, 500, 100.0) == 5.0
