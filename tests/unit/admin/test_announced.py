"""What was said of bookies, as people see it: nothing old as if it were so now, nothing that breaks a line."""

from __future__ import annotations

import pytest

from bookies.admin.announced import FRESH_MS, announced_facts, announced_text, state_text
from bookies.admin.common import print_table, time_text, visible
from bookies.admin.drain import _stopped
from bookies.metadata.bookie_notes import Maintenance, Note
from bookies.model import BookieId
from bookies.replication.drain import DrainPlan

NOW_MS = 1_700_000_000_000


def draining(state: str = "3 of 9 ledgers", *, since_ms: int = NOW_MS, state_ms: int = NOW_MS) -> dict[str, object]:
    return {"since_ms": since_ms, "by": "ann", "state": state, "state_ms": state_ms}


def test_how_far_a_drain_was_is_not_how_far_it_is() -> None:
    assert state_text(draining(), NOW_MS + 5_000) == "3 of 9 ledgers"
    assert state_text(draining(), NOW_MS + FRESH_MS) == f"at {time_text(NOW_MS)}: 3 of 9 ledgers"
    assert state_text(draining(state_ms=0), NOW_MS) == "at an unknown time: 3 of 9 ledgers"
    assert state_text(draining("", state_ms=0), NOW_MS + 5_000) == "has just begun"
    assert time_text(NOW_MS) in state_text(draining("", state_ms=0), NOW_MS + FRESH_MS)


def test_who_interrupts_a_drain_hears_what_goes_on() -> None:
    alone = _stopped(DrainPlan(BookieId("b3"), "writable"))
    helped = _stopped(DrainPlan(BookieId("b3"), "writable", helpers=["b1@h", "b2@h"]))
    for text in (alone, helped):
        assert "`bk bookie drain b3`" in text
        assert "`bk bookie drain b3 --cancel`" in text
    assert "Nobody goes on" in alone
    assert "2 processes of auto-recovery go on emptying b3 in the background" in helped
    assert "recovery_rate_size" in helped


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("new disk", "new disk"),
        ("new\ndisk", r"new\ndisk"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\u2028b", r"a\u2028b"),
        ("5\u00a0TB", "5\u00a0TB"),
    ],
)
def test_what_others_have_written_breaks_no_line(text: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert visible(text) == shown
    print_table([("b1", text), ("b2", "x")], ("bookie", "reason"))
    assert capsys.readouterr().out.split("\n") == ["bookie  reason", f"b1      {shown}", "b2      x", ""]
    facts = announced_facts(Note(Maintenance(NOW_MS, "ann", text)))
    assert announced_text(facts).endswith(f"({shown})")
