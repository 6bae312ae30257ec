"""`bk recovery` on a real store: what it prints, its exit status, and what it leaves behind."""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Awaitable, Callable

import pytest

from bookies.admin.cli import main
from bookies.admin.commands import recovery
from bookies.metadata.driver import MetadataDriver
from bookies.metadata.recovery_store import AuditKind
from bookies.metadata.uri import connect
from bookies.model import BookieId
from bookies.protocol.repair_work import Cause, Loss, RepairState, Wait
from bookies.replication.status import ProcessStatus, StatusRecord, pack, report_facts
from bookies.replication.worker import LedgerReport
from bookies.runtime import aio

B1 = BookieId("b1")


def on(directory: pathlib.Path, body: Callable[[MetadataDriver], Awaitable[None]]) -> None:
    async def run() -> None:
        driver = connect(f"file:{directory}", aio.runtime())
        await driver.open()
        try:
            await body(driver)
        finally:
            await driver.close()

    aio.run(run())


@pytest.fixture
def store(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    async def begin(driver: MetadataDriver) -> None:
        await driver.initialize_cluster()

    on(tmp_path, begin)
    monkeypatch.setenv("BK_METADATA", f"file:{tmp_path}")
    return tmp_path


def bk(*words: str) -> int:
    return main(["recovery", *words])


def test_nobody_takes_part(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bk("status") == 0
    assert "none: nobody takes part" in capsys.readouterr().out
    assert bk("audit") == 2
    assert "bk recovery run" in capsys.readouterr().err


def test_the_switch(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb, changed in (("enable", False), ("disable", True), ("disable", False), ("enable", True)):
        assert bk(verb, "--json") == 0
        assert json.loads(capsys.readouterr().out) == {"changed": changed}
    assert bk("disable") == 0
    assert "bk recovery enable" in capsys.readouterr().out
    assert bk("audit") == 2
    assert "switched off" in capsys.readouterr().err


def test_the_delay(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bk("delay") == 0
    assert "nobody has said" in capsys.readouterr().out
    assert bk("delay", "600") == 0
    assert bk("delay", "--json") == 0
    out = capsys.readouterr().out.splitlines()
    assert (out[0], json.loads(out[1])) == ("600 s", {"seconds": 600})


def test_an_audit_is_asked_for(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    recovery.configure(parser)
    arguments = parser.parse_args(["audit", "--checks"])

    async def ask(driver: MetadataDriver) -> None:
        await driver.recovery.set_lost_bookie_delay_s(60)
        await driver.recovery.set_checked_at_ms(AuditKind.ALL_LEDGERS, 1_000)
        candidacy = await driver.recovery.campaign(B1, lambda: None)
        assert await recovery._audit(driver, arguments) == 0
        assert await driver.recovery.checked_at_ms(AuditKind.ALL_LEDGERS) == 0
        assert await driver.recovery.lost_bookie_delay_s() == 60
        await candidacy.resign()

    on(store, ask)
    assert "auditor b1 was asked to look" in capsys.readouterr().out


def test_ledgers_and_why_they_are_not_repaired(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def fill(driver: MetadataDriver) -> None:
        for ledger_id in (7, 8, 9):
            await driver.recovery.mark(ledger_id, [B1], 1_000)
        reports = [
            LedgerReport(7, RepairState.LOST, 0, (), (Loss(0, 9, ((B1, "no such entry"),)),), 1, 2, None, 1),
            LedgerReport(
                8, RepairState.WAITING, 1, (Wait(Cause.ANSWER, 0, 9, B1, "no answer in time"),), (), 1, 2, 3, 1
            ),
        ]
        status = ProcessStatus("b2", BookieId("b2"), 1, [], [], {}, [report_facts(each) for each in reports])
        await StatusRecord(driver, "b2").write(pack(status))

    on(store, fill)
    assert bk("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:2] == ["7", "b1"]
    assert "entries 0 to 9 are on no bookie that is there" in lines[1]
    assert "waits for a bookie to answer (b1): no answer in time" in lines[2]
    assert "its turn has not come" in lines[3]
    assert bk("list", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["ledger"], row["missing"]) for row in rows] == [(7, ["b1"]), (8, ["b1"]), (9, ["b1"])]
    assert rows[0]["report"]["losses"] == [{"first": 0, "last": 9, "evidence": {"b1": "no such entry"}}]
