"""Conversion of Spark's filters to bounds of ranges. Pure functions. Source: spark 1.4, 3.4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bookies.spark.base.plan import Range

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

COLUMNS = ("ledger_id", "entry_id", "offset")
Bounds = Mapping[str, tuple[int, int]]  # column -> least and greatest value
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1


def bounds_of(filters: Sequence[Filter]) -> tuple[Bounds, list[Filter]]:
    """Return the bounds of the `COLUMNS` that the filters set, and the filters that Spark still has to apply."""
    from pyspark.sql.datasource import (
        EqualTo,
        GreaterThan,
        GreaterThanOrEqual,
        IsNotNull,
        LessThan,
        LessThanOrEqual,
    )

    bounds: dict[str, tuple[int, int]] = {}
    rest = []
    for condition in filters:
        path: Sequence[str] = getattr(condition, "attribute", ())
        value = getattr(condition, "value", None)
        column = path[0] if len(path) == 1 and path[0] in COLUMNS else None
        low, high = _LEAST, _GREATEST
        if column is None or not (isinstance(value, int) or isinstance(condition, IsNotNull)):
            rest.append(condition)
            continue
        if isinstance(condition, GreaterThan | GreaterThanOrEqual):
            low = condition.value + isinstance(condition, GreaterThan)
        elif isinstance(condition, LessThan | LessThanOrEqual):
            high = condition.value - isinstance(condition, LessThan)
        elif isinstance(condition, EqualTo):
            low = high = condition.value
        elif not isinstance(condition, IsNotNull):
            rest.append(condition)
            continue
        least, greatest = bounds.get(column, (_LEAST, _GREATEST))
        bounds[column] = max(low, least), min(high, greatest)
    return bounds, rest


def narrowed(ranges: Sequence[Range], bounds: Bounds) -> list[Range]:
    """Return the parts of the ranges within the bounds. A bound on `offset` excludes ranges without row numbers."""
    result = []
    for entry_range in ranges:
        low, high = bounds.get("ledger_id", (_LEAST, _GREATEST))
        if not low <= entry_range.ledger_id <= high:
            continue
        first, last = bounds.get("entry_id", (_LEAST, _GREATEST))
        first, last = max(first, entry_range.first), min(last, entry_range.last)
        if "offset" in bounds:
            if entry_range.row is None:
                continue
            low, high = bounds["offset"]
            first, last = (
                max(first, entry_range.first + low - entry_range.row),
                min(last, entry_range.first + high - entry_range.row),
            )
        if first <= last:
            result.append(entry_range.part(first, last))
    return result
