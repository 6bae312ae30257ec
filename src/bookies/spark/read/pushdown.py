"""Filters of Spark as bounds of ranges: pure. Source: spark 1.4, 3.4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bookies.spark.base.plan import Range

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

COLUMNS = ("ledger_id", "entry_id", "offset")
Bounds = Mapping[str, tuple[int, int]]  # column -> least and greatest value
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1


def bounds_of(filters: Sequence[Filter]) -> tuple[Bounds, list[Filter]]:
    """What the filters say about the columns that ranges have bounds of, and the filters that say something else."""
    from pyspark.sql.datasource import (
        EqualTo,
        GreaterThan,
        GreaterThanOrEqual,
        IsNotNull,
        LessThan,
        LessThanOrEqual,
    )

    found: dict[str, tuple[int, int]] = {}
    rest = []
    for each in filters:
        path: Sequence[str] = getattr(each, "attribute", ())
        value = getattr(each, "value", None)
        column = path[0] if len(path) == 1 and path[0] in COLUMNS else None
        low, high = _LEAST, _GREATEST
        if column is None or not (isinstance(value, int) or isinstance(each, IsNotNull)):
            rest.append(each)
            continue
        if isinstance(each, GreaterThan | GreaterThanOrEqual):
            low = each.value + isinstance(each, GreaterThan)
        elif isinstance(each, LessThan | LessThanOrEqual):
            high = each.value - isinstance(each, LessThan)
        elif isinstance(each, EqualTo):
            low = high = each.value
        elif not isinstance(each, IsNotNull):
            rest.append(each)
            continue
        least, greatest = found.get(column, (_LEAST, _GREATEST))
        found[column] = max(low, least), min(high, greatest)
    return found, rest


def narrowed(ranges: Sequence[Range], bounds: Bounds) -> list[Range]:
    """What of the ranges is within the bounds. Rows without a number of their own are not."""
    found = []
    for each in ranges:
        low, high = bounds.get("ledger_id", (_LEAST, _GREATEST))
        if not low <= each.metadata.ledger_id <= high:
            continue
        first, last = bounds.get("entry_id", (_LEAST, _GREATEST))
        first, last = max(first, each.first), min(last, each.last)
        if "offset" in bounds:
            if each.row is None:
                continue
            low, high = bounds["offset"]
            first, last = max(first, each.first + low - each.row), min(last, each.first + high - each.row)
        if first <= last:
            row = None if each.row is None else each.row + first - each.first
            size = max(1, each.size * (last - first + 1) // each.count)
            found.append(replace(each, first=first, last=last, row=row, size=size))
    return found
