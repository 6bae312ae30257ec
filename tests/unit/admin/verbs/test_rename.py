"""`bk bookie rename`: what it refuses, what it changes, and what it leaves in the log of changes."""

from __future__ import annotations

import argparse
import json
import pathlib

import pytest
from tests.unit.admin.commands.test_metadata import B1, B2, ledger, on

from bookies.admin.cli import main
from bookies.admin.shared.common import Session
from bookies.admin.shared.usage import UsageError
from bookies.admin.verbs.rename import _rename
from bookies.client.client import Client
from bookies.config import ClientConfig
from bookies.metadata.interface import MetadataDriver
from bookies.model import BookieInfo, BookieMode, LedgerState
from bookies.runtime import aio

REASON = ["--reason", "a test"]


def test_wrong_input_is_refused(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, text in (
        (["b1", "b1", *REASON], "is no other bookie id"),
        (["b1", "b/9", *REASON], "is no other bookie id"),
        (["b1", "b9", "--reason", ""], "write one line of text"),
        (["b1", "b9", *REASON, "--rate", "0"], "above 0 records per second"),
        (["b1", "b9", *REASON], "b9 is not registered, so it cannot be asked"),
        (["b8", "b9", *REASON, "--unverified"], "there is no bookie b8, and no ledger names it"),
    ):
        assert main(["bookie", "rename", *words]) == 2
        assert text in capsys.readouterr().err


def test_a_registered_bookie_keeps_its_id(store: pathlib.Path) -> None:
    async def body(driver: MetadataDriver) -> None:
        await driver.register(B1, BookieMode.READ_ONLY, BookieInfo())
        runtime = aio.runtime()
        arguments = argparse.Namespace(old="b1", new="b9", unverified=True)
        with pytest.raises(UsageError, match="b1 is registered, so it still has this id"):
            await _rename(Session(runtime, Client(runtime, driver, ClientConfig()), driver), arguments)

    on(store, body)


def test_records_are_changed_and_the_change_is_noted(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def add_open(driver: MetadataDriver) -> None:
        await driver.create_ledger(ledger(50, LedgerState.OPEN))

    on(store, add_open)
    words = ["bookie", "rename", "b1", "b9", *REASON, "--unverified"]
    assert main([*words, "--dry-run"]) == 1
    assert "8 records read, 7 would be changed from b1 to b9" in capsys.readouterr().out
    assert main(["metadata", "changes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main([*words, "--json", "--rate", "100000"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["records"], report["changed"]) == (8, 7)
    assert [row["ledger"] for row in report["kept"]] == [50]
    assert main([*words, "--open"]) == 0
    assert "8 records read, 1 were changed" in capsys.readouterr().out
    assert main(words) == 0
    capsys.readouterr()
    assert main(["metadata", "changes", "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)
    assert [(line["what"], line["reason"]) for line in lines] == [("bookie b1", "a test")] * 3

    async def check(driver: MetadataDriver) -> None:
        for ledger_id in (1, 7, 50):
            assert (await driver.read_ledger(ledger_id)).metadata.bookies == ["b9", B2]

    on(store, check)
