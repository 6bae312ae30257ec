"""Filters as bounds of ranges."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, IsNotNull, LessThan, LessThanOrEqual, Not

from bookies.model import BookieId, LedgerMetadata
from bookies.spark.base import plan
from bookies.spark.read.pushdown import bounds_of, narrowed


def entries(ledger_id: int, row: int | None) -> plan.Range:
    metadata = LedgerMetadata(ledger_id, 1, 1, 1, ((0, (BookieId("b"),)),))
    return plan.Range(metadata, 0, 9, 1000, "x" if row is not None else None, 0, row)


RANGES = [entries(5, None), entries(6, 100), entries(7, 110)]


def found(*filters: object) -> list[tuple[int, int, int, int | None]]:
    bounds, rest = bounds_of(filters)  # type: ignore[arg-type]
    assert rest == []
    return [(each.metadata.ledger_id, each.first, each.last, each.row) for each in narrowed(RANGES, bounds)]


def test_bounds() -> None:
    whole = [(5, 0, 9, None), (6, 0, 9, 100), (7, 0, 9, 110)]
    assert found(IsNotNull(("entry_id",))) == whole
    assert found(EqualTo(("ledger_id",), 6)) == whole[1:2]
    assert found(GreaterThan(("entry_id",), 7), LessThanOrEqual(("ledger_id",), 6)) == [(5, 8, 9, None), (6, 8, 9, 108)]
    assert found(GreaterThanOrEqual(("offset",), 105), LessThan(("offset",), 112)) == [(6, 5, 9, 105), (7, 0, 1, 110)]
    assert found(EqualTo(("entry_id",), 50)) == []


def test_a_compacted_extent_has_the_ledger_of_its_positions() -> None:
    bounds, _ = bounds_of([EqualTo(("ledger_id",), 3)])
    compacted = replace(RANGES[1], named=3, kept=4)
    assert narrowed([*RANGES, compacted], bounds) == [compacted]


@pytest.mark.parametrize(
    "other",
    [
        EqualTo(("value",), b"x"),
        EqualTo(("gap", "rows"), 1),
        Not(EqualTo(("entry_id",), 1)),
        EqualTo(("entry_id",), "1"),
    ],
)
def test_the_rest_is_left_to_spark(other: object) -> None:
    assert bounds_of([other]) == ({}, [other])  # type: ignore[list-item]
