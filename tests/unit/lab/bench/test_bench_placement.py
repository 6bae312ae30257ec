"""`bk bench placement`: rows for every shape of a cluster, in which all rules hold."""

from __future__ import annotations

import json

import pytest

from bookies.admin import cli


def test_a_row_for_each_shape(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "placement", "--bookies", "200", "--creates", "200", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 8
    for row in rows:
        assert row["adhering_percent"] == 100
        assert row["idlest"] <= 1 <= row["busiest"]
    assert cli.main(["bench", "placement", "--bookies", "100", "--creates", "1"]) == 0
    assert "3 racks, striped 5/3" in capsys.readouterr().out
    assert cli.main(["bench", "placement", "--creates", "0"]) == 2
