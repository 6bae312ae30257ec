"""`bk recovery` on a real store: what it prints, its exit status, and what it leaves behind."""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.fakes.offloaded import GIVEN_UP

from bookies.admin.cli import main, parser_of
from bookies.admin.commands.recovery import GONE, audit, status_text
from bookies.admin.shared.report import Report, print_report
from bookies.admin.verbs.recovery_work import _print_sample, sample_of
from bookies.client.base import ledger_lock
from bookies.client.repair.ledger_repair import Outcome
from bookies.client.repair.replication import Totals
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.recovery_store import AuditKind
from bookies.metadata.uri import connect
from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.protocol.repair.repair_work import Cause, Loss, RepairState, Wait
from bookies.replication.operator import ManualRepair
from bookies.replication.operator.status import ProcessStatus, StatusRecord, pack, read_status, report_facts
from bookies.replication.repair.worker import LedgerReport
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
    out = capsys.readouterr().out
    assert "none: no process of auto-recovery runs" in out
    assert "limits of logs" not in out
    assert bk("audit") == 2
    assert "bk recovery run" in capsys.readouterr().err


def test_the_switch(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb, changed in (("enable", False), ("disable", True), ("disable", False), ("enable", True)):
        assert bk(verb, "--json") == 0
        assert json.loads(capsys.readouterr().out) == {"changed": changed}
    assert bk("disable") == 0
    assert "bk recovery enable" in capsys.readouterr().out
    assert bk("audit") == 2
    assert "auto-recovery is disabled" in capsys.readouterr().err


def test_the_delay(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bk("delay") == 0
    assert "not set: the first auditor sets it" in capsys.readouterr().out
    assert bk("delay", "600") == 0
    assert bk("delay", "--json") == 0
    out = capsys.readouterr().out.splitlines()
    assert (out[0], json.loads(out[1])) == ("600 s", {"seconds": 600})


def test_an_audit_is_asked_for(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = parser_of("recovery").parse_args(["audit", "--checks"])

    async def ask(driver: MetadataDriver) -> None:
        await driver.recovery.set_lost_bookie_delay_s(60)
        await driver.recovery.set_checked_at_ms(AuditKind.ALL_LEDGERS, 1_000)
        candidacy = await driver.recovery.campaign(B1, lambda: None)
        assert print_report(await audit(driver, arguments), as_json=False) == 0
        assert await driver.recovery.checked_at_ms(AuditKind.ALL_LEDGERS) == 0
        assert await driver.recovery.lost_bookie_delay_s() == 60
        await candidacy.resign()

    on(store, ask)
    assert "audit requested from auditor b1" in capsys.readouterr().out


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
    assert "entries 0 to 9 are on no available bookie" in lines[1]
    assert "waits for a bookie to answer (b1): no answer in time" in lines[2]
    assert "no worker has tried it yet" in lines[3]
    assert bk("list", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["ledger"], row["missing"]) for row in rows] == [(7, ["b1"]), (8, ["b1"]), (9, ["b1"])]
    loss = {"first": 0, "last": 9, "step": 1, "others_have": None, "evidence": {"b1": "no such entry"}}
    assert rows[0]["report"]["losses"] == [loss]


def test_marks_are_chosen_by_the_bookies_that_they_name(
    store: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fill(driver: MetadataDriver) -> None:
        for ledger_id, bookies in ((1, "b1"), (2, "b2"), (3, "b1 b2"), (4, "b3"), (5, "")):
            await driver.recovery.mark(ledger_id, list(map(BookieId, bookies.split())), 1_000)

    on(store, fill)
    for words, expected in (
        (["--missing", "b1"], [1, 3]),
        (["--missing", "b1", "--missing", "b3"], [1, 3, 4]),
        (["--not-missing", "b1"], [2, 4, 5]),
        (["--missing", "b2", "--not-missing", "b1"], [2]),
        (["--missing", "b1", "--limit", "1"], [1]),
    ):
        assert bk("list", "--json", *words) == 0
        assert [row["ledger"] for row in json.loads(capsys.readouterr().out)] == expected


def test_what_is_said_of_ledgers_is_the_latest(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever has said it, and each counts once."""

    async def fill(driver: MetadataDriver) -> None:
        await driver.recovery.mark(8, [B1], 1_000)
        for name, checked_ms, reason in (("b2", 5, "the latest"), ("b3", 2, "before")):
            wait = Wait(Cause.ANSWER, 0, 9, B1, reason)
            report = report_facts(LedgerReport(8, RepairState.WAITING, 1, (wait,), (), 1, checked_ms, 3, 1))
            worker = {"ledgers_repaired": 0, "entries_copied": 0, "bytes_copied": 0}
            now_ms = aio.runtime().clock.wall_ms()
            status = ProcessStatus(name, BookieId(name), now_ms, [], [], worker, [report])
            await StatusRecord(driver, name).write(pack(status))

    on(store, fill)
    assert bk("list") == 0
    assert "the latest" in capsys.readouterr().out

    async def watched(driver: MetadataDriver) -> None:
        found = await read_status(driver, aio.runtime().clock.wall_ms())
        _print_sample(found, sample_of(found, 0.0), None, argparse.Namespace(json=False))

    on(store, watched)
    assert "; 1 could not be repaired, 8 waits for a bookie to answer" in capsys.readouterr().out


def test_who_died_is_not_shown_as_at_work(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def look(driver: MetadataDriver) -> None:
        candidacy = await driver.recovery.campaign(BookieId("b3"), lambda: None)
        for name, age_s in (("b2", 70), ("b3", 5)):
            worker = {"ledgers_repaired": 0, "entries_copied": 0, "bytes_copied": 0}
            written_ms = aio.runtime().clock.wall_ms() - 1000 * age_s
            tasks = [{"task": "worker", "doing": "repairing ledger 7", "failures": 0}]
            status = ProcessStatus(name, BookieId(name), written_ms, tasks, [], worker, [])
            await StatusRecord(driver, name).write(pack(status))
        status_now = await read_status(driver, written_ms + 5_000)
        print_report(Report({}, status_text(status_now, written_ms + 5_000)), as_json=False)
        await candidacy.resign()

    on(store, look)
    dead, alive = capsys.readouterr().out.splitlines()[-2:]
    assert dead.startswith("b2")
    assert f"70 s ago  {GONE}" in dead
    assert "5 s ago  repairing ledger 7" in alive


def _in_files(ledger_id: int) -> LedgerMetadata:
    """A ledger that lacks nothing, although its bookie is not registered."""
    return GIVEN_UP[0](LedgerMetadata(ledger_id, 1, 1, 1, ((0, (B1,)),), LedgerState.CLOSED, 2, 30))


def test_repairing_goes_on_behind_a_ledger_that_is_not_there(
    store: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fill(driver: MetadataDriver) -> None:
        await driver.create_ledger(_in_files(2))
        await driver.recovery.mark(2, [], 1_000)

    on(store, fill)
    assert bk("repair", "999", "2", "--dry-run") == 1
    out = capsys.readouterr().out
    assert "ledger 2: healthy" in out
    assert out.endswith("nothing was changed; 1 failed: 999\n")
    assert bk("repair", "999", "2") == 1
    out = capsys.readouterr().out.splitlines()
    assert "999" in out[0]
    assert out[-1].startswith("1 of 2 ledgers are whole: ")
    assert out[-1].endswith("; 1 failed: 999")
    assert bk("repair", "2", "999", "--json") == 1
    rows = json.loads(capsys.readouterr().out)["ledgers"]
    assert [(row["ledger"], row["state"]) for row in rows] == [(2, "healthy"), (999, "failed")]

    async def marked(driver: MetadataDriver) -> None:
        assert await driver.recovery.mark_of(2) is None

    on(store, marked)


def test_what_somebody_else_has_locked_is_done_at_the_end_or_left(
    store: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    repair = ManualRepair.repair
    lets_go_at: list[int] = []  # the first of its two ledgers, at the second try
    tried: list[int] = []

    async def with_somebody_else(
        hand: ManualRepair, ledger_id: int, owner: str, **options: Any
    ) -> tuple[Outcome, Totals]:
        tried.append(ledger_id)
        other = connect(f"file:{store}", aio.runtime())
        await other.open()
        is_held = ledger_id == 2 and tried.count(2) not in lets_go_at
        lock = await other.recovery.lock(2, "ann", needs_mark=False) if is_held else None
        try:
            return await repair(hand, ledger_id, owner, **options)
        finally:
            if lock is not None:
                await other.recovery.unlock(lock)
            await other.close()

    async def fill(driver: MetadataDriver) -> None:
        for ledger_id in (2, 3):
            await driver.create_ledger(_in_files(ledger_id))

    monkeypatch.setattr(ManualRepair, "repair", with_somebody_else)
    monkeypatch.setattr(ledger_lock, "AGAIN_S", 0.0)
    on(store, fill)
    assert bk("repair", "2", "3") == 1
    out, err = capsys.readouterr()
    assert "ledger 2: ann holds its lock; retrying at the end" in err
    assert "ledger 2: ann holds its lock; repeat the repair later\n1 of 2 ledgers are whole" in out
    assert tried == [2, 3, *[2] * (ledger_lock.TRIES - 1)]

    tried.clear()
    lets_go_at.append(2)
    assert bk("repair", "2", "3", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["ledgers"]
    assert [(row["ledger"], row["state"]) for row in rows] == [(3, "healthy"), (2, "healthy")]
    assert tried == [2, 3, 2]


def test_nobody_is_lost_whom_nobody_knows(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def fill(driver: MetadataDriver) -> None:
        for name in ("bookie-1", "bookie-2"):
            await driver.create_cookie(BookieId(name), b"cookie")
        ensembles = ((0, (BookieId("without-cookie"),)),)
        await driver.create_ledger(LedgerMetadata(2, 1, 1, 1, ensembles, LedgerState.CLOSED, -1))

    on(store, fill)
    for words in ((), ("--dry-run",)):
        assert bk("repair", "2", "--lost", "bookie-11", *words) == 2
        err = capsys.readouterr().err
        assert "there is no bookie bookie-11" in err
        assert "did you mean bookie-1" in err
    assert bk("repair", "2", "--lost", "without-cookie") == 1
    out = capsys.readouterr().out
    assert "no entry is missing, but the record names a bookie for later ones: none of the 0 writable bookies" in out


def test_maintenance_of_one_is_asked_for(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def fill(driver: MetadataDriver) -> None:
        await driver.create_cookie(BookieId("bookie-1"), b"cookie")

    on(store, fill)
    assert main(["bookie", "maintenance", "bookie-1"]) == 0
    assert capsys.readouterr().out == "bookie bookie-1 is not in maintenance\n"
    assert main(["bookie", "maintenance"]) == 0
    assert capsys.readouterr().out == "no bookie is in maintenance\n"
    assert main(["bookie", "maintenance", "bookie-2"]) == 2
    assert "there is no bookie bookie-2" in (err := capsys.readouterr().err)
    assert "did you mean bookie-1?" in err
