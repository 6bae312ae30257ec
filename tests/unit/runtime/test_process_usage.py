from __future__ import annotations

import os
import platform

import pytest

from bookies.runtime.process_usage import process_usage, python_version


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")
def test_the_usage_of_this_process() -> None:
    usage = process_usage()
    assert usage is not None
    with open("/proc/self/status") as file:
        resident_kib = next(int(line.split()[1]) for line in file if line.startswith("VmRSS:"))
    assert usage.resident_size == pytest.approx(resident_kib << 10, rel=0.2)
    assert usage.resident_size <= usage.virtual_size
    assert usage.cpu_s > 0
    assert usage.threads >= 1
    assert len(usage.collections) == 3
    with open(os.devnull):
        after = process_usage()
    assert after is not None
    assert after.open_files == usage.open_files + 1
    assert after.start_s == usage.start_s


def test_the_version_of_the_interpreter() -> None:
    assert python_version() == platform.python_version()
