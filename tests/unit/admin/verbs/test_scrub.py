"""`bk bookie scrub`: what it asks, what it prints, when it waits, and its exit status."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from bookies.admin.cli import main
from bookies.admin.verbs import scrub

STATUS: dict[str, Any] = {
    "pass": 3,
    "is_running": False,
    "is_suspended": False,
    "next_pass_s": 400_000,
    "oldest_unverified_s": 7300,
    "rate_bytes": 1 << 20,
    "read_bytes": 3 << 20,
    "left_bytes": 0,
    "verified_bytes": 2 << 20,
    "not_checkable_bytes": 1 << 20,
    "not_checkable_entries": 1234,
    "metadata_unavailable": 0,
    "damaged_entries": 0,
    "damaged_records_of_no_use": 2,
    "index_files_damaged": 0,
    "journals_damaged": 0,
    "parts_failed": 0,
    "damage": [],
}
DAMAGE = {"log": "1f.log", "offset": 1024, "ledger": 7, "first": 4, "last": 9, "problem": "its CRC32C does not match"}
HEADER = {"log": "20.log", "offset": 0, "ledger": None, "first": 0, "last": 0, "problem": "its header is damaged"}


class Bookie:
    """Answers one status after the other, the last one again and again."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = [STATUS | each for each in answers] or [STATUS]
        self.asked: list[tuple[str, dict[str, object]]] = []

    def ask(self, path: pathlib.Path, call: str, arguments: dict[str, object]) -> tuple[str, Any]:
        self.asked.append((call, dict(arguments)))
        return "b1", self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(*answers: dict[str, Any]) -> Bookie:
        bookie = Bookie(*answers)
        monkeypatch.setattr(scrub, "ask", bookie.ask)
        monkeypatch.setattr(scrub, "control_files", lambda _: [pathlib.Path("control.json")])
        monkeypatch.setattr(scrub, "POLL_S", 0)
        return bookie

    return use


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ([], [("scrub", {"now": False})]),
        (["--now"], [("scrub", {"now": True})]),
        (["--suspend"], [("suspend_scrub", {"suspended": True})]),
        (["--resume", "--now"], [("suspend_scrub", {"suspended": False}), ("scrub", {"now": True})]),
    ],
)
def test_each_option_is_a_call(given: Any, words: list[str], asked: list[Any]) -> None:
    bookie = given()
    assert main(["bookie", "scrub", *words]) == 0
    assert bookie.asked == asked


def test_people_are_told_what_counts(given: Any, capsys: pytest.CaptureFixture[str]) -> None:
    given()
    assert main(["bookie", "scrub"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "b1: pass 3 ended",
        "b1: next pass in 4.6 days",
        "b1: oldest byte that is not verified: 2.0 h",
        "b1: read: 3.0 MiB",
        "b1: still to read: 0 B",
        "b1: verified: 2.0 MiB",
        "b1: not checkable: 1.0 MiB",
        "b1: entries without a digest that a bookie can check: 1,234; their length and ids were checked",
        "b1: damaged records that no index refers to: 2",
        "b1: damaged entries: 0",
    ]


def test_damage_is_named_and_is_the_exit_status(given: Any, capsys: pytest.CaptureFixture[str]) -> None:
    given({"damaged_entries": 6, "damage": [DAMAGE, HEADER, *[DAMAGE] * 30]})
    assert main(["bookie", "scrub"]) == 1
    printed = capsys.readouterr().out
    assert "b1: 1f.log at byte 1,024: ledger 7 entry 4 to 9: its CRC32C does not match\n" in printed
    assert "b1: 20.log at byte 0: its header is damaged\n" in printed
    assert "and 12 more" in printed
    assert "bk spark repair" in printed
    given({"damaged_entries": 6, "damage": [DAMAGE]})
    assert main(["bookie", "scrub", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["b1"]["damage"] == [DAMAGE]


def test_waiting_ends_with_the_pass_or_with_patience(
    given: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bookie = given(*[{"is_running": True, "next_pass_s": None}] * 4, {"pass": 4})
    assert main(["bookie", "scrub", "--now", "--wait"]) == 0
    assert len(bookie.asked) == 5
    assert "pass 4 ended" in capsys.readouterr().out

    given({"is_running": True, "next_pass_s": None})

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(scrub.time, "sleep", interrupted)
    assert main(["bookie", "scrub", "--wait"]) == 130
    assert "continues in the bookie" in capsys.readouterr().err


def test_nobody_waits_for_a_scrub_that_is_suspended(given: Any, capsys: pytest.CaptureFixture[str]) -> None:
    given({"is_running": True, "is_suspended": True, "next_pass_s": None})
    assert main(["bookie", "scrub", "--now", "--wait"]) == 1
    output = capsys.readouterr()
    assert "pass 3 suspended" in output.out
    assert output.err == "b1: did not wait, because the scrub is suspended; resume it with: bk bookie scrub --resume\n"
    assert main(["bookie", "scrub", "--wait"]) == 1
    assert main(["bookie", "scrub", "--now"]) == 0
    given({"is_suspended": True})  # between two passes there is nothing to wait for
    assert main(["bookie", "scrub", "--wait"]) == 0


def test_a_bookie_without_a_pass_says_so(given: Any, capsys: pytest.CaptureFixture[str]) -> None:
    given({"pass": 0, "is_suspended": True, "next_pass_s": 0})
    assert main(["bookie", "scrub"]) == 0
    assert capsys.readouterr().out.startswith("b1: no pass yet, suspended\nb1: oldest")
