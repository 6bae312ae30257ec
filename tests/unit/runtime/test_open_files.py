"""A process with few descriptors left says so once, and once when there are enough again."""

from __future__ import annotations

import logging
import os
import resource
import subprocess
import sys

import pytest

from bookies.runtime.aio import runtime
from bookies.runtime.events import Events
from bookies.runtime.open_files import OpenFiles, limit, lowest_free


def test_events_at_the_limit_and_after_it(caplog: pytest.LogCaptureFixture) -> None:
    used: list[int | None] = [10]
    files = OpenFiles(Events("process", runtime().clock), lambda: used[-1], lambda: 100.0)
    caplog.set_level(logging.INFO, "bookies.process")
    for number in (10, 89, 90, 95, None, 85, 81, 79, 10):
        used.append(number)
        files.check()
    first, last = caplog.records
    assert first.levelno == logging.WARNING
    assert first.getMessage().startswith("process.few_files_left open_at_least=90 limit=100.0 consequence=")
    assert "`ulimit -n`" in first.getMessage()
    assert last.getMessage().startswith("process.enough_files_left")


def test_a_limit_that_is_reached_at_once(caplog: pytest.LogCaptureFixture) -> None:
    files = OpenFiles(Events("process", runtime().clock), lambda: None, lambda: 100.0)
    files.check()
    (record,) = caplog.records
    assert "new connections are refused" in record.getMessage()


def test_the_system_is_asked() -> None:
    free = lowest_free()
    assert free is not None
    descriptor = os.open(os.devnull, os.O_RDONLY)
    assert descriptor == free
    os.close(descriptor)
    assert limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_no_descriptor_is_free() -> None:
    code = (
        "import resource\n"
        "from bookies.runtime.open_files import lowest_free\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        "print(lowest_free())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "None\n", done.stderr
