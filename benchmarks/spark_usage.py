"""Processor time and memory of a Spark session and of the bookies, from /proc."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from bookies.lab.bench.bench_drive import TICKS, cpu_seconds


class Usage:
    """What was spent between `begin` and `end`, by the JVM, by its Python processes, and by the bookies."""

    def __init__(self, spark: Any, bookie_pids: Callable[[], Sequence[int]]) -> None:
        self._jvm = spark.sparkContext._gateway.proc.pid
        self._bookie_pids = bookie_pids

    def begin(self) -> None:
        self._before = self._times()

    def end(self, rows: int) -> dict[str, float | None]:
        """Microseconds of processor time a row; None: a process has ended whose time is in nobody's account."""
        names = ("jvm_us", "python_us", "bookies_us")
        return {
            name: 1e6 * (now - before) / rows if now >= before else None
            for name, now, before in zip(names, self._times(), self._before, strict=True)
        }

    def worker_peak_mb(self) -> float:
        """The most that one of the Python processes had resident so far."""
        return max((peak_mb(pid) for pid in _descendants(self._jvm)), default=0.0)

    def _times(self) -> tuple[float, float, float]:
        # A process that has ended is in the account of its parent, if the parent waited for it.
        python = _ended_children_seconds(self._jvm)
        for pid in _descendants(self._jvm):
            try:
                python += cpu_seconds(pid) + _ended_children_seconds(pid)
            except FileNotFoundError:
                continue  # It ended this moment; the next look finds it with its parent.
        return cpu_seconds(self._jvm), python, sum(cpu_seconds(pid) for pid in self._bookie_pids())


def _fields(pid: int) -> list[str]:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()


def _ended_children_seconds(pid: int) -> float:
    fields = _fields(pid)
    return (int(fields[13]) + int(fields[14])) / TICKS


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                children.setdefault(int(_fields(int(name))[1]), []).append(int(name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    found = list(children.get(root, ()))
    for pid in found:
        found += children.get(pid, ())
    return found


def peak_mb(pid: int | str) -> float:
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024 / 1e6
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0.0
