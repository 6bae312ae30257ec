"""Log lines: fields, limits, JSON."""

from __future__ import annotations

import json
import logging
import os
import pathlib

import pytest

from bookies.errors import DiskFull
from bookies.runtime.events import REPEATS_MAX, WINDOW_S, Events, JournalFormatter, JsonFormatter, is_journal


class ManualClock:
    def __init__(self) -> None:
        self.now = 100.0

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "bookies")
    return caplog


def test_fields_are_words_or_quoted(log: pytest.LogCaptureFixture) -> None:
    Events("test", ManualClock()).info("bookie.ready", port=3181, host="::1", what="two words", empty="")
    assert log.messages == ['bookie.ready port=3181 host=::1 what="two words" empty=""']
    assert log.records[0].name == "bookies.test"


def test_errors_become_fields_and_only_mistakes_bring_a_traceback(log: pytest.LogCaptureFixture) -> None:
    events = Events("test", ManualClock())
    events.error("a", error=DiskFull("/d: full"), ledger=7)
    events.error("b", error=KeyError("oops"))
    assert log.messages == ['a ledger=7 error=DiskFull reason="/d: full"', "b error=KeyError reason='oops'"]
    assert [bool(record.exc_info) for record in log.records] == [False, True]


def test_repeats_are_limited_and_counted(log: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    events = Events("test", clock)
    for _ in range(REPEATS_MAX + 37):
        events.warning("noisy")
    events.warning("other")
    assert log.messages == ["noisy"] * REPEATS_MAX + ["other"]
    log.clear()
    clock.now += WINDOW_S
    events.warning("noisy", peer="x")
    events.warning("other")
    assert log.messages == ["noisy peer=x suppressed=37", "other"]


def test_json_lines(log: pytest.LogCaptureFixture) -> None:
    events = Events("test", ManualClock())
    events.info("bookie.ready", port=3181)
    events.error("broken", error=KeyError("k"))
    first, second = (json.loads(JsonFormatter().format(record)) for record in log.records)
    assert first.pop("ms") > 0
    assert first == {"level": "info", "component": "test", "event": "bookie.ready", "port": 3181}
    assert second["event"] == "broken"
    assert "KeyError" in second["traceback"]


@pytest.mark.parametrize(("level", "priority"), [(logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (5, 7)])
def test_every_line_for_the_journal_has_its_priority(level: int, priority: int) -> None:
    record = logging.LogRecord("bookies.x", level, "", 0, "one\ntwo", (), None)
    lines = JournalFormatter(logging.Formatter("%(message)s")).format(record).splitlines()
    assert lines == [f"<{priority}>one", f"<{priority}>two"]


def test_the_journal_is_recognized_by_its_stream(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(tmp_path / "stream", "w") as stream:
        status = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        assert is_journal(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", "1:1")
        assert not is_journal(stream.fileno())
    assert not is_journal(10_000)
