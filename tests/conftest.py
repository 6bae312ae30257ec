"""Settings of all tests, and the order in which their files are distributed to the processes."""

from __future__ import annotations

import functools
import gc
import os
import pathlib
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("BK_EXAMPLES", "30"))
# How long an example takes says more about what else the machine is doing than about the code.
settings.register_profile("bookies", deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
# A few examples, always the same: `make coverage` gives the same answer each time, in a third of the time.
settings.register_profile("brief", settings.get_profile("bookies"), derandomize=True, max_examples=10)
settings.load_profile("bookies")

# What a shell starts in the background ignores SIGINT, and what `nohup` starts SIGHUP; so would every process that a
# test ends so. These tests go on being deaf, and their processes are not.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)


# Tests with these markers need another system or take minutes: `-m MARKER` asks for them.
ON_REQUEST = ("apache", "etcd", "kerberos", "cluster", "versions", "long")


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


def pytest_collection_finish() -> None:
    """Exempt the tests and what they import from garbage collection, which would visit all of it again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give whole files to the processes, and to one of them all files that use the Spark session."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            name: str = super()._split_scope(nodeid)
            return "the Spark session" if has_session(config.rootpath / name) else name

    return ByFile(config, log)


@functools.cache
def has_session(path: pathlib.Path) -> bool:
    """Report whether tests of the file use the fixture `spark`, whose Java takes long to start."""
    return "spark: Any" in path.read_text()


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
