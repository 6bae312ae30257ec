"""Interruptions of a job whose connection to Java they have broken."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from bookies.spark.jobs.shared.failures import plain_errors
from bookies.spark.jobs.shared.packing import Estimate
from bookies.spark.jobs.shared.progress import Begun, Progress, rest_s


class Context:
    """A session's context whose Java has ended, or not."""

    def __init__(self, has_java: bool) -> None:
        self._has_java = has_java
        self.calls: list[str] = []

    def setJobGroup(self, *words: object, **options: object) -> None:
        self.calls.append("begin")

    def cancelJobGroup(self, group: str) -> None:
        self.calls.append("cancel")
        if not self._has_java:
            raise Py4JNetworkError("Answer from Java side is empty")

    def setLocalProperty(self, name: str, value: None) -> None:
        self.calls.append("clear")


class Session:
    def __init__(self, has_java: bool) -> None:
        self.sparkContext = Context(has_java)


@pytest.mark.parametrize("has_java", [True, False])
def test_an_interruption_says_what_becomes_of_the_run(has_java: bool, capsys: Any) -> None:
    spark = Session(has_java)
    begun = Begun("scrub", "x", Estimate(1, 1, 1, {}, 1.0))
    with pytest.raises(KeyboardInterrupt), Progress(spark, begun, is_quiet=False):
        raise KeyboardInterrupt
    assert "finished items are kept: repeat it with run id x" in capsys.readouterr().err
    assert spark.sparkContext.calls == ["begin", "cancel", *(["clear"] if has_java else [])]


def test_what_is_left_is_known_by_tasks_and_before_by_the_forecast() -> None:
    assert rest_s(0, 4, 2.0, 10.0) == 8.0
    assert rest_s(0, 4, 11.0, 10.0) is None
    assert rest_s(1, 4, 11.0, 10.0) == 33.0
    assert rest_s(4, 4, 40.0, 10.0) == 0.0


def test_an_error_of_an_interrupted_call_is_an_interruption() -> None:
    @plain_errors()
    def interrupted() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise Py4JError("Answer from Java side is empty")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
