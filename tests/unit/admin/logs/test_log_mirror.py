"""What `bk log mirror` says about lag and loss, and which options it refuses."""

from __future__ import annotations

import pytest

from bookies.admin import cli
from bookies.admin.logs.log_mirror import _lag_lines, _lost_lines, _seen_only, _switched
from bookies.client.mirror import MirrorState
from bookies.protocol.log import Position

STATE = MirrorState("here/orders", (5, 100), (5, 110), 10, 1_000, 5_000)


def test_what_was_seen_and_not_copied_is_lost() -> None:
    end = Position(5, 103)
    assert _seen_only(STATE, end) == [(5, 103, 109)]
    assert _seen_only(STATE, Position(5, 110)) == []
    assert _seen_only(STATE, Position(4, 3)) == []  # The source had begun another ledger.
    assert _seen_only(None, end) == []
    assert _seen_only(STATE, None) == []
    first, second = _lost_lines("orders", STATE, _seen_only(STATE, end))
    assert first.startswith("log orders: the source had confirmed entries up to 5:109 when it was last seen, at ")
    assert second == "log orders: only the source has 7 entries (5:103 to 5:109)"
    [_, behind] = _lost_lines("orders", STATE, [])
    assert behind == "log orders: some 10 entries had not been copied then"
    [nothing] = _lost_lines("orders", MirrorState("here/orders", None, None, 0, None, 5_000), [])
    assert "had confirmed nothing" in nothing
    assert list(_lost_lines("orders", None, [])) == []


def test_the_lag_is_a_sentence() -> None:
    [line] = _lag_lines("orders", STATE)
    assert line.startswith("log orders: has entries before 5:100; 10 entries behind, ")
    assert list(_lag_lines("orders", None)) == ["log orders: nothing has been copied yet"]
    assert STATE.seconds_behind(5_000) == 4.0


def test_the_end_of_a_switch_over_is_a_position() -> None:
    report = _switched([("orders", Position(5, 7)), ("none", None)])
    assert report.facts == [{"log": "orders", "end": "5:7"}, {"log": "none", "end": None}]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--source-lost"], "--source-lost is for --switch-over"),
        (["--drop", "--status"], "--drop is for the beginning of a mirror"),
        (["--once", "--status"], "not allowed with"),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["log", "mirror", "orders", "--metadata", "memory:here", "--to", "memory:there", *words]
    try:
        status = cli.main(command)
    except SystemExit as end:
        status = int(end.code or 0)
    assert status == 2
    assert message in capsys.readouterr().err
