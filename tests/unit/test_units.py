"""Durations and sizes as text, in both directions."""

from __future__ import annotations

import pytest

from bookies.units import decimal_size_text, duration_text, parse_duration, parse_size, parse_time, size_text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("90s", 90),
        ("20m", 1200),
        ("15 min", 900),
        (" 2H ", 7200),
        ("1.5h", 5400),
        (".5d", 43_200),
        ("7d", 604_800),
        ("0s", 0),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "90", "s", "-1s", "1.2.3s", ".s", "3w", "٣s", "1e3s", "5 0s", "5s 0"])
def test_any_other_text_is_no_duration(text: str) -> None:
    assert parse_duration(text) is None


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("65536", 65_536),
        ("64k", 65_536),
        (" 8M ", 8 << 20),
        ("1g", 1 << 30),
        ("3GiB", 3 << 30),
        ("1t", 1 << 40),
    ],
)
def test_a_size_is_a_whole_number_with_or_without_a_scale(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "k", "-1", "1.5k", "1kb", "1ib", "1p", "٣", "5 k"])
def test_any_other_text_is_no_size(text: str) -> None:
    assert parse_size(text) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-11-27T10:00Z", 1_795_773_600),
        (" 2026-11-27T11:00:00.5+01:00 ", 1_795_773_600.5),
        ("10m", 99_400),
        ("2d", -72_800),
        ("", None),
        ("soon", None),
        ("10", None),
        ("2026-13-01", None),
    ],
)
def test_a_time_is_absolute_or_before_now(text: str, seconds: float | None) -> None:
    assert parse_time(text, 100_000) == seconds


def test_sizes_are_printed_in_powers_of_1024_or_of_1000() -> None:
    assert [size_text(size) for size in (0, 1023, 1024, 1_536_000, 1 << 50)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 MiB",
        "1048576.0 GiB",
    ]
    assert [decimal_size_text(size) for size in (0, 999, 1000, 1_536_000, 2e15)] == [
        "0 B",
        "999 B",
        "1.0 KB",
        "1.5 MB",
        "2000.0 TB",
    ]


def test_durations_are_printed_in_the_unit_that_fits() -> None:
    assert [duration_text(seconds) for seconds in (5, 89, 600, 7200, 172_799)] == [
        "5 s", "89 s", "10 min", "2.0 h", "48.0 h",
    ]  # fmt: skip
    assert [duration_text(days * 86_400) for days in (2, 7, 30.26)] == ["2 days", "7 days", "30.3 days"]
