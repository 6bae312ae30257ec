"""What lives in a log, and which logs are worth compacting, when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookies.config import BookieConfig, validate
from bookies.errors import ConfigError
from bookies.storage.entry_log import LogUsage
from bookies.storage.gc.collection_policy import Compaction, Schedule, choose_logs

SIZES = st.dictionaries(st.integers(0, 50), st.integers(1, 1000))


@given(SIZES, st.sets(st.integers(0, 50)))
def test_usage_is_what_is_left_of_it(sizes: dict[int, int], known: set[int]) -> None:
    usage = LogUsage.of(7, "7.log", sizes)
    usage.keep(known.__contains__)
    left = {ledger_id: size for ledger_id, size in sizes.items() if ledger_id in known}
    assert (usage.total, usage.remaining) == (sum(sizes.values()), sum(left.values()))
    assert {each: usage.size_of(each) for each in sizes} == {each: left.get(each, 0) for each in sizes}
    assert usage.share == (usage.remaining / usage.total if sizes else 0)


def test_the_emptiest_logs_come_first_and_full_ones_never() -> None:
    logs = [LogUsage.of(number, "", {1: live, 2: 100 - live}) for number, live in enumerate((79, 5, 80, 21, 9, 20))]
    for each in logs:
        each.keep((1).__eq__)
    assert [each.log_id for each in choose_logs(logs, 80)] == [1, 4, 3, 5, 0]
    assert [each.log_id for each in choose_logs(logs, 20)] == [1, 4]
    assert choose_logs(logs, 0) == []


def test_a_major_compaction_does_the_minor_ones_work() -> None:
    schedule = Schedule(10, 60, 0, 0)
    assert [schedule.due(now) for now in (0, 9, 10)] == [None, None, Compaction.MINOR]
    schedule.started(Compaction.MINOR, 10)
    assert [schedule.due(now) for now in (19, 20, 60)] == [None, Compaction.MINOR, Compaction.MAJOR]
    schedule.started(Compaction.MAJOR, 60)
    assert [schedule.due(now) for now in (69, 70)] == [None, Compaction.MINOR]
    assert Schedule(0, 0, 0, 0).due(1e9) is None


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"compaction": "both"}, "compaction"),
        ({"minor_compaction_interval_ms": 1000}, "minor_compaction_interval_ms"),
        ({"major_compaction_interval_ms": 1000}, "major_compaction_interval_ms"),
        ({"major_compaction_interval_ms": 3_600_000}, "minor_compaction_interval_ms"),
        ({"minor_compaction_threshold": 80}, "minor_compaction_threshold"),
        ({"major_compaction_threshold": 101}, "major_compaction_threshold"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        validate(BookieConfig(**settings))  # type: ignore[arg-type]


def test_compaction_can_be_switched_off() -> None:
    validate(BookieConfig(minor_compaction_interval_ms=0, major_compaction_interval_ms=0, gc_interval_ms=0))
    validate(BookieConfig(gc_interval_ms=60_000, minor_compaction_interval_ms=60_000))
