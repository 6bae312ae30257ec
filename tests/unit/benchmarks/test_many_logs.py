"""The table of many logs: rates between two counts, and a column for each number of logs."""

from __future__ import annotations

import pytest
from benchmarks.many_logs import Row, print_table, rates


def row(logs: int, kinds: dict[str, float]) -> Row:
    return Row(
        logs=logs,
        client_mib=50.0,
        bookies_mib=140.0,
        client_cpu=0.25,
        kinds=kinds,
        housekeeping={"read_record": 3.0 * logs},
        appends=5.0,
        late=2,
        ended=0,
        starts_s=1.5,
        housekeeping_s=2.5,
    )


def test_rates_are_of_what_was_counted_in_between() -> None:
    assert rates({"read": 50, "write": 10}, {"read": 20}, 10.0) == {"read": 3.0, "write": 1.0}


def test_the_table_has_a_column_for_each_number_of_logs(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([row(1_000, {"read": 10.0, "rare": 0.1}), row(10_000, {"read": 100.0, "write": 7.0})])
    cells = {line[:44].strip(): line[44:].split() for line in capsys.readouterr().out.splitlines()}
    assert cells["logs"] == ["1,000", "10,000"]
    assert cells["consumers"] == ["200", "2,000"]
    assert cells["operations/s"] == ["10", "107"]
    assert (cells["read"], cells["write"]) == (["10", "100"], ["0", "7"])
    assert "rare" not in cells
    assert cells["operations of a pass of housekeeping"] == ["3,000", "30,000"]
