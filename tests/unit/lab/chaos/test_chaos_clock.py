"""Clocks of processes of `bk chaos --namespaces`."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import time

import pytest

from bookies.lab.chaos.chaos_clock import follow, set_clock


def test_a_clock_follows_its_file_at_every_moment(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, now_ns = tmp_path / "clock", time.time_ns
    monkeypatch.setattr(time, "time_ns", now_ns)
    set_clock(file, -30)
    follow(file)
    for seconds in (-30, 86_400, 0):
        set_clock(file, seconds)
        assert time.time_ns() - now_ns() == pytest.approx(seconds * 1e9, abs=5e9)


def test_a_module_runs_with_its_arguments(tmp_path: pathlib.Path) -> None:
    set_clock(tmp_path / "clock", 86_400)
    (tmp_path / "late.py").write_text("import sys, time\nprint(sys.argv[1:], time.time_ns() - int(sys.argv[1]))")
    python = (sys.executable, "-m")
    command = [*python, "bookies.lab.chaos.chaos_clock", str(tmp_path / "clock"), sys.executable, "-P", "-m", "late"]
    started = str(time.time_ns())
    done = subprocess.run([*command, started], cwd=tmp_path, check=True, capture_output=True, text=True)
    words, _, late = done.stdout.rpartition(" ")
    assert words == f"['{started}']"
    assert int(late) >= 86_400 * 10**9
