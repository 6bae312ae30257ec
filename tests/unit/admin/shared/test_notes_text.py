"""What was said of bookies, as people see it: nothing old as if it were so now, nothing that breaks a line."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import pytest

from bookies.admin.shared.common import print_table, time_text, visible
from bookies.admin.shared.notes_text import FRESH_MS, announced_facts, announced_text, state_text
from bookies.admin.verbs.drain import _carry_out, _stopped
from bookies.errors import MetadataError
from bookies.metadata.shared.bookie_notes import Maintenance, Note
from bookies.model import BookieId
from bookies.replication.operator.drain import DrainPlan
from bookies.replication.operator.drain_work import DrainProgress

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
    assert "No process continues the drain" in alone
    assert "2 processes of auto-recovery continue emptying b3 in the background" in helped
    assert "recovery_rate_size" in helped


def test_a_drain_that_the_metadata_store_ends_says_what_remains(capsys: pytest.CaptureFixture[str]) -> None:
    class Ended:
        async def begin(self) -> None:
            return

        async def run(self, plan: DrainPlan, report: Callable[[DrainProgress], None], *, waits: bool) -> None:
            for _ in range(3):
                report(DrainProgress(1, 9, 3, 30, 90, None, (), "no server has answered"))
            raise MetadataError("no server has answered")

    drain: Any = Ended()
    with pytest.raises(MetadataError):
        asyncio.run(_carry_out(drain, DrainPlan(BookieId("b3"), "writable"), {}, Namespace(json=False, wait=False)))
    said = capsys.readouterr().err
    assert said.count("the metadata store does not answer; retrying: no server has answered") == 1
    assert "Writers still avoid b3: `bk bookie drain b3` continues it here" in said
    assert "--cancel" in said


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
