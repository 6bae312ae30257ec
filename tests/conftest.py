"""Settings of all tests, and the order in which their files are distributed to the processes."""

from __future__ import annotations

import pathlib
import signal

import pytest
from hypothesis import settings

# How long an example takes says more about what else the machine is doing than about the code.
settings.register_profile("bookies", deadline=None)
# A few examples, always the same: `make coverage` gives the same answer each time, in a third of the time.
settings.register_profile("brief", deadline=None, derandomize=True, max_examples=10)
settings.load_profile("bookies")

# What a shell starts in the background ignores SIGINT, and what `nohup` starts SIGHUP; so would every process that a
# test ends so. These tests go on being deaf, and their processes are not.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)


# Tests with these markers need another system or take minutes: `-m MARKER` asks for them.
ON_REQUEST = ("apache", "etcd", "cluster")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that run on request. Put long files first, so that all processes end together."""
    left_out = [item for item in items if not is_requested(item, config.option.markexpr)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    ranks: dict[pathlib.Path, int] = {}
    for item in items:
        ranks[item.path] = min(rank(item), ranks.get(item.path, rank(item)))
    absent = set(left_out)
    items[:] = sorted((item for item in items if item not in absent), key=lambda item: ranks[item.path])


def is_requested(item: pytest.Item, expression: str) -> bool:
    """Report whether the test runs always, or `-m EXPRESSION` names one of its markers."""
    own = [marker for marker in ON_REQUEST if item.get_closest_marker(marker)]
    return not own or any(marker in expression for marker in own)


def rank(item: pytest.Item) -> int:
    """Return 0 for the longest kind of test: Spark, processes, the simulator and other kinds, units."""
    if item.get_closest_marker("spark"):
        return 0
    if item.get_closest_marker("live"):
        return 1
    return 3 if "unit" in item.path.parts else 2
