"""Wall clock of one process of `bk chaos --namespaces`: the system's, off by the time that a file has.

    python -m bookies.lab.chaos.chaos_clock FILE PYTHON -P -m MODULE ARGUMENTS...

runs the module in this process. `time.time_ns` follows the file, from which the product's clock reads. `time.time` does
not: gRPC computes time limits from it and compares them with the kernel's clock, so each request would fail at once.
"""

from __future__ import annotations

import mmap
import pathlib
import runpy
import struct
import sys
import time

_OFFSET = struct.Struct("=q")  # nanoseconds


def set_clock(file: pathlib.Path, seconds: float) -> None:
    """Step the clocks that follow a file, which is created if necessary."""
    with file.open("r+b" if file.exists() else "w+b", buffering=0) as clock:
        clock.write(_OFFSET.pack(round(seconds * 1e9)))


def follow(file: pathlib.Path) -> None:
    """Let the clock of this process be off by what the file has, at every moment."""
    with file.open("rb") as clock:
        offset = memoryview(mmap.mmap(clock.fileno(), _OFFSET.size, access=mmap.ACCESS_READ)).cast("q")
    now_ns = time.time_ns
    time.time_ns = lambda: now_ns() + offset[0]


if __name__ == "__main__":
    follow(pathlib.Path(sys.argv[1]))
    sys.argv = sys.argv[5:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
