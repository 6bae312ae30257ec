"""A job's session leaves interruptions to whoever runs the job."""

from __future__ import annotations

import signal
import threading

import pytest

from bookies.spark.base.session import _own_interrupts, _repeat


def handler(number: int, frame: object) -> None:
    """Of the one who runs the job."""


def test_a_handler_that_the_session_installs_does_not_stay() -> None:
    before = signal.signal(signal.SIGINT, handler)
    try:
        with _own_interrupts():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # as PySpark does, with one of its own
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_first_signal_waits_until_the_session_is_there() -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with _own_interrupts() as pending:
            signal.raise_signal(signal.SIGTERM)
        assert pending == [signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt):
            _repeat(pending)
        with pytest.raises(KeyboardInterrupt):
            start_with_two_signals()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def start_with_two_signals() -> None:
    with _own_interrupts() as pending:
        signal.raise_signal(signal.SIGINT)
        assert pending
        signal.raise_signal(signal.SIGINT)  # the second does not wait
        raise AssertionError


def test_other_threads_have_no_handlers() -> None:
    done: list[bool] = []

    def enter() -> None:
        with _own_interrupts():
            done.append(True)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert done == [True]
