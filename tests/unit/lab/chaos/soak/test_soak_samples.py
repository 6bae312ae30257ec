"""Samples of `bk chaos --soak`."""

from __future__ import annotations

import pathlib

import pytest

from bookies.lab.chaos.soak.soak_samples import BARS, BARS_MAX, Samples, slope_of, sparkline


def test_the_slope_is_that_of_the_second_half(tmp_path: pathlib.Path) -> None:
    samples = Samples([(10.0 * at, {"files": float(min(at, 5)), "growing": 2.0 * at}) for at in range(12)])
    assert samples.summary() == [
        ("files", 0.0, 5.0, 0.0, sparkline([*range(5), *[5] * 7])),
        ("growing", 0.0, 22.0, pytest.approx(12.0), sparkline(range(0, 24, 2))),
    ]
    samples.write(tmp_path / "soak.csv")
    lines = (tmp_path / "soak.csv").read_text().splitlines()
    assert lines[:2] == ["seconds,files,growing", "0.0,0.0,0.0"]
    assert len(lines) == 13


def test_no_samples_have_no_summary(tmp_path: pathlib.Path) -> None:
    samples = Samples()
    samples.write(tmp_path / "soak.csv")
    assert samples.summary() == []
    assert slope_of([1.0], [5.0]) == 0.0
    assert sparkline([]) == ""
    assert sparkline([0.0]) == BARS[0]


def test_a_sparkline_shows_peaks() -> None:
    bars = sparkline([1.0] * 500 + [8.0] + [1.0] * 499)
    assert len(bars) <= BARS_MAX
    assert bars.count(BARS[-1]) == 1
