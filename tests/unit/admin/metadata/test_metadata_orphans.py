"""`bk metadata orphans` on a store whose bookies are gone: mark, wait, delete, and what is kept."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from tests.unit.admin.commands.test_metadata import B1, B2, on

from bookies.admin.cli import main
from bookies.metadata.interface import MetadataDriver

DELETE = ["--delete", "--wait", "1ms", "--reason", "a test"]


async def forget_bookies(driver: MetadataDriver) -> None:
    for bookie in (B1, B2):
        await driver.delete_cookie(bookie, (await driver.read_cookie(bookie))[1])


def orphans(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    capsys.readouterr()
    status = main(["metadata", "orphans", "--json", *words])
    return status, json.loads(capsys.readouterr().out)


def test_bookies_with_a_cookie_keep_their_ledgers(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, report = orphans(capsys, *DELETE)
    assert (status, report["records"], report["orphans"], report["deleted"]) == (1, 7, [], [])
    assert [row["ledger"] for row in report["unknown"]] == list(range(1, 8))
    assert main(["metadata", "orphans"]) == 1
    printed = capsys.readouterr().out
    assert "ledger 1 is unknown" in printed
    assert "start their bookies; or bk bookie recover" in printed


def test_orphans_are_deleted_after_their_mark(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    on(store, forget_bookies)
    status, report = orphans(capsys, *DELETE)
    assert (status, report["deleted"]) == (1, [])  # none is marked
    kept = "kept: log events lists it"
    assert [row["state"] for row in report["orphans"]] == [kept, kept, *["not marked"] * 5]
    assert orphans(capsys, "--mark", "--dry-run")[1] == report
    assert orphans(capsys, "--delete", "--dry-run")[1] == report
    _, report = orphans(capsys, "--mark")
    assert [row["state"] for row in report["orphans"]] == [kept, kept, *["marked"] * 5]
    assert orphans(capsys, "--delete", "--reason", "a test")[1]["deleted"] == []  # a day has not passed
    status, report = orphans(capsys, *DELETE)
    assert (status, report["deleted"]) == (1, [3, 4, 5, 6, 7])
    assert [row["state"] for row in report["orphans"]] == [kept, kept, *["deleted"] * 5]
    assert main(["metadata", "orphans"]) == 1
    printed = capsys.readouterr().out
    assert "2 records read, 2 of ledgers of which no bookie has an entry" in printed
    assert "nothing was changed" in printed
    assert main(["metadata", "changes", "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)
    assert [line["what"] for line in lines] == [f"ledger {ledger_id}" for ledger_id in (3, 4, 5, 6, 7)]


def test_a_log_that_cannot_be_read_keeps_every_ledger(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    on(store, forget_bookies)
    on(store, lambda driver: driver.create_record("logs/broken", b"{"))
    orphans(capsys, "--mark")
    status, report = orphans(capsys, *DELETE)
    assert (status, report["deleted"]) == (1, [])
    assert report["orphans"][0]["state"] == "kept: log events lists it"
    text = "kept: log broken cannot be read and may list it; see bk metadata check"
    assert [row["state"] for row in report["orphans"][2:]] == [text] * 5


def test_wrong_input_is_refused(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, text in (
        (["--delete"], "write one line of text"),
        (["--wait", "soon"], "must be a duration"),
        (["--rate", "0"], "above 0 records per second"),
    ):
        assert main(["metadata", "orphans", *words]) == 2
        assert text in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["metadata", "orphans", "--mark", "--delete"])
