"""Families of samples from rows of a table, and their text form, read back by prometheus_client's parser."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from bookies.errors import StorageError
from bookies.metrics.exposition import exposition, number
from bookies.metrics.metric import BOUNDS_S, QUANTILES, Collection, Kind, Metric, Sums, families_of, legal_name
from bookies.runtime.histogram import Distribution, Outcomes


def samples(metric: Metric, value: Any) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {(name, labels): number for each in families_of(metric, value, 0.0) for name, labels, number in each.samples}


def test_a_summary_is_written_as_apache_writes_it() -> None:
    outcomes = Outcomes()
    outcomes.succeeded.record(0.002, 3)
    metric = Metric("x_REQUEST", Kind.SUMMARY, "p", "requests", lambda part: part, unit="ms")
    (family,) = families_of(metric, outcomes, 0.0)
    lines = "".join(exposition([family])).splitlines()
    assert lines[1] == "# TYPE x_REQUEST summary"
    assert lines[2] == 'x_REQUEST{success="false",quantile="0.5"} NaN'
    good = 2 + len(QUANTILES) + 2
    assert lines[good].startswith('x_REQUEST{success="true",quantile="0.5"} ')
    assert lines[good + len(QUANTILES) - 1].startswith('x_REQUEST{success="true",quantile="1.0"} ')
    assert lines[-2:] == ['x_REQUEST_count{success="true"} 3', 'x_REQUEST_sum{success="true"} 6.0']


def test_quantiles_are_in_milliseconds_and_sizes_as_they_are() -> None:
    durations, sizes = Distribution(), Distribution()
    durations.record(1.0)
    sizes.record(48)
    in_ms = samples(Metric("d", Kind.SUMMARY, "p", "", lambda part: part, unit="ms"), durations)
    as_is = samples(Metric("s", Kind.SUMMARY, "p", "", lambda part: part, unit="bytes"), sizes)
    assert in_ms["d", (("success", "true"), ("quantile", "0.99"))] == pytest.approx(1000, rel=1 / 32)
    assert as_is["s", (("success", "true"), ("quantile", "1.0"))] == pytest.approx(48, rel=1 / 32)


def test_a_histogram_counts_cumulatively_up_to_infinity() -> None:
    durations = Distribution()
    for seconds in (0.00005, 0.0015, 0.0015, 100.0):
        durations.record(seconds)
    found = samples(Metric("h_seconds", Kind.HISTOGRAM, "p", "", lambda part: part), durations)
    counts = [found["h_seconds_bucket", (("le", f"{bound:g}"),)] for bound in BOUNDS_S]
    assert counts == sorted(counts)
    assert found["h_seconds_bucket", (("le", "0.0001"),)] == 1
    assert found["h_seconds_bucket", (("le", "0.002"),)] == 3
    assert found["h_seconds_bucket", (("le", "60"),)] == 3
    assert found["h_seconds_bucket", (("le", "+Inf"),)] == found["h_seconds_count", ()] == 4


def test_labels_and_names_with_directories() -> None:
    by_state = Metric("g", Kind.GAUGE, "p", "", lambda part: part, labels=("state",))
    assert samples(by_state, {"dirty": 1, "clean": 2}) == {
        ("g", (("state", "dirty"),)): 1,
        ("g", (("state", "clean"),)): 2,
    }
    by_path = Metric("dir_<path>_usage", Kind.GAUGE, "p", "", lambda part: part)
    assert samples(by_path, {"/data/l-0": 50.5}) == {("dir__data_l_0_usage", ()): 50.5}
    assert legal_name("add-entry é") == "add_entry__"


def test_sums_have_no_quantiles() -> None:
    found = samples(Metric("s", Kind.SUMMARY, "p", "", lambda part: part), Sums(3, 30))
    assert math.isnan(found["s", (("success", "true"), ("quantile", "0.5"))])
    good, bad = (("success", "true"),), (("success", "false"),)
    assert (found["s_count", good], found["s_sum", good]) == (3, 30)
    assert (found["s_count", bad], found["s_sum", bad]) == (0, 0)


def test_a_part_that_is_missing_or_fails_leaves_out_its_samples_only() -> None:
    def broken() -> Any:
        raise StorageError("closed")

    table = (
        Metric("a", Kind.GAUGE, "good", "", lambda part: part["a"]),
        Metric("b", Kind.GAUGE, "good", "", lambda part: part["missing"]),
        Metric("c", Kind.GAUGE, "absent", "", lambda part: part.value),
        Metric("d", Kind.GAUGE, "broken", "", lambda part: 1),
        Metric("e", Kind.GAUGE, "elsewhere", "", lambda part: 1),
        Metric("f", Kind.GAUGE, "good", "", lambda part: part["a"]),
    )
    collection = Collection((table,), {"good": lambda: {"a": 7}, "absent": lambda: None, "broken": broken}, lambda: 0.0)
    found = {name: value for family in collection.families() for name, _, value in family.samples}
    assert found == {"a": 7, "f": 7, "bookies_metrics_failed_total": 2}


@given(st.text(), st.floats(allow_nan=False))
def test_any_label_and_any_number_come_back(label: str, value: float) -> None:
    metric = Metric("g", Kind.GAUGE, "p", "help", lambda part: part, labels=("name",))
    text = "".join(exposition(families_of(metric, {label: value}, 0.0)))
    (family,) = text_string_to_metric_families(text)
    (sample,) = family.samples
    assert (sample.labels, sample.value) == ({"name": label}, value)


def test_numbers_as_prometheus_writes_them() -> None:
    written = [number(value) for value in (3, True, 2.5, math.inf, -math.inf, math.nan)]
    assert written == ["3", "1", "2.5", "+Inf", "-Inf", "NaN"]
