"""`bk bench storage --growth` measures what it says, on a small scale."""

from __future__ import annotations

import argparse
import json
import pathlib

import pytest

from bookies.admin import bench_growth


@pytest.mark.live
def test_every_figure_is_printed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BK_BENCH_DIRECTORY", str(tmp_path))
    arguments = argparse.Namespace(ledgers=60, open_ledgers=20, entries=2_000, quick=False, json=True)
    assert bench_growth.run(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["ledgers"], result["of them written to"], result["entries"]) == (60, 20, 2_000)
    assert result["files"] >= 60, "an index file for each ledger"
    assert result["entries replayed"] == 200
    assert all(value >= 0 for value in result.values())
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
