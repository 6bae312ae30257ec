"""`bk why slow`: reports of clients and bookies in, sentences out."""

from __future__ import annotations

import json
import pathlib

import pytest

from bookies.admin import cli

SLOW = {"kind": "append", "ended_ms": 5000, "seconds": 2.0, "stages": {"memory": 2.0}, "meanwhile": {}, "facts": {}}
REPORT = {"process": "the client", "began_ms": 0.0, "ended_ms": 6000, "requests": [SLOW], "is_client": True}


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_clients_report_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    pathlib.Path("orders.json").write_text(json.dumps(REPORT))
    assert cli.main(["why", "slow", "--client", "orders.json"]) == 0
    output = capsys.readouterr()
    assert output.out.startswith("1. 100 % (2.0 s in 1 slow requests): appends of client orders waited up to 2.00 s")
    assert "-> raise memory_limit" in output.out
    assert "no running bookie here" in output.err
    assert cli.main(["why", "slow", "--client", "orders.json", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [cause["name"] for cause in facts["causes"]] == ["memory"]
    assert facts["slow_seconds"] == 2.0


def test_without_slow_requests_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    pathlib.Path("orders.json").write_text(json.dumps(REPORT | {"requests": [], "bound_s": 0.1}))
    assert cli.main(["why", "slow", "--client", "orders.json", "--since", "2h"]) == 0
    assert capsys.readouterr().out == "no slow requests in the last 2.0 h (slower than client orders: 0.1 s)\n"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--since", "soon"], "--since soon: must be a duration"),
        (["--client", "absent.json"], "--client absent.json: No such file"),
        (["--client", "broken.json"], "--client broken.json: not a report"),
        ([], "no running bookie here"),
    ],
)
def test_wrong_use_is_refused(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    pathlib.Path("broken.json").write_text("{}")
    assert cli.main(["why", "slow", *arguments]) == 2
    assert problem in capsys.readouterr().err
