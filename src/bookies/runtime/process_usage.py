"""Resources that this process uses: processor time, memory, open files, threads, as the system counts them."""

from __future__ import annotations

import gc
import os
import sys
import threading

from msgspec import Struct

from bookies.runtime import open_files


class ProcessUsage(Struct, frozen=True):
    """Usage of this process. Sizes in bytes; `start_s`: seconds since 1970; `collections`: by generation."""

    cpu_s: float
    start_s: float
    resident_size: int
    virtual_size: int
    open_files: int
    open_files_max: float
    threads: int
    collections: tuple[int, ...]


def process_usage() -> ProcessUsage | None:
    """Measure this process; None where the system has no /proc."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()  # the name before it may contain spaces
        with open("/proc/stat", "rb") as file:
            boot_s = next(int(line.split()[1]) for line in file if line.startswith(b"btime "))
        open_count = len(os.listdir("/proc/self/fd")) - 1  # without the one of the listing
    except (OSError, StopIteration):
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    return ProcessUsage(
        cpu_s=(int(fields[11]) + int(fields[12])) / ticks,
        start_s=boot_s + int(fields[19]) / ticks,
        resident_size=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        virtual_size=int(fields[20]),
        open_files=open_count,
        open_files_max=open_files.limit(),
        threads=threading.active_count(),
        collections=tuple(part["collections"] for part in gc.get_stats()),
    )


def python_version() -> str:
    return sys.version.split()[0]
