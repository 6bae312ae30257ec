"""Log lines: fields, limits, JSON."""

from __future__ import annotations

import json
import logging

import pytest

from bookies.errors import DiskFull
from bookies.runtime.events import REPEATS_MAX, WINDOW_S, Events, JsonFormatter


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
