"""Durations, times and sizes as text: what operators type in options and read in reports."""

from __future__ import annotations

import re
from datetime import datetime

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_duration = re.compile(r"(?P<number>[0-9]+\.?[0-9]*|\.[0-9]+) *(?P<unit>[a-z]+)").fullmatch
_size = re.compile(r"(?P<number>[0-9]+)(?P<unit>[kmgt]?)(?:(?<=[kmgt])ib)?").fullmatch


def parse_duration(text: str) -> float | None:
    """Return the seconds of `500ms`, `90s`, `20m`, `1.5h` or `7d`; None if the text is no duration."""
    match = _duration(text.strip().lower())
    if match is None or match["unit"] not in _SECONDS:
        return None
    return float(match["number"]) * _SECONDS[match["unit"]]


def parse_time(text: str, now_s: float) -> float | None:
    """Return the seconds since 1970 of a time in ISO 8601, or a duration before `now_s`; None if the text is neither.

    A time without a zone is local.
    """
    ago_s = parse_duration(text)
    if ago_s is not None:
        return now_s - ago_s
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        return None


def parse_size(text: str) -> int | None:
    """Return the bytes of `65536`, `64k`, `8m`, `1GiB` or `1t` (powers of 1,024); None if the text is no size."""
    match = _size(text.strip().lower())
    return None if match is None else int(match["number"]) * _BYTES[match["unit"]]


def parse_number(text: str, unit: str) -> int:
    """Return a whole number of `unit`, given as digits or as a duration or size with a unit. Raises ValueError."""
    value: float | None = None
    if unit == "bytes":
        value = parse_size(text)
    elif unit in ("ms", "s") and (seconds := parse_duration(text)) is not None:
        value = seconds * (1000 if unit == "ms" else 1)
    if value is None:
        return int(text)
    if value != round(value):
        raise ValueError(f"{text} is no whole number of {unit}")
    return round(value)


def size_text(size: float) -> str:
    """Return a number of bytes with its unit, B to GiB: 1,536 is `1.5 KiB`."""
    return _size_text(size, 1024, ("B", "KiB", "MiB", "GiB"))


def decimal_size_text(size: float) -> str:
    """Return a number of bytes with its unit, B to TB: 1,500 is `1.5 KB`."""
    return _size_text(size, 1000, ("B", "KB", "MB", "GB", "TB"))


def _size_text(size: float, base: int, units: tuple[str, ...]) -> str:
    power = 0
    while abs(size) >= base and power < len(units) - 1:
        size /= base
        power += 1
    return f"{size:.{min(power, 1)}f} {units[power]}"


def duration_text(seconds: float) -> str:
    """Return a duration in s, min, h or days: 600 is `10 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{round(seconds / 86_400, 1):g} days"
