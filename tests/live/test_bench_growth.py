"""`bk bench storage --growth` measures what it says, on a small scale."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest


@pytest.mark.live
def test_every_figure_is_printed(tmp_path: pathlib.Path) -> None:
    """In a process of its own, whose memory grows by what is measured and by nothing else."""
    command = [sys.executable, "-m", "bookies.admin.cli", "bench", "storage", "--growth", "--json"]
    command += ["--ledgers", "60", "--open-ledgers", "20", "--entries", "2000"]
    environment = os.environ | {"BK_BENCH_DIRECTORY": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    result = json.loads(done.stdout)
    assert (result["ledgers"], result["of them written to"], result["entries"]) == (60, 20, 2_000)
    assert result["files"] >= 60, "an index file for each ledger"
    assert result["entries replayed"] == 200
    assert all(value >= 0 for value in result.values())
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


@pytest.mark.live
def test_both_kinds_of_index_are_in_one_table(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("rocksdict")
    command = [sys.executable, "-m", "bookies.admin.cli", "bench", "storage", "--growth", "--index", "both"]
    command += ["--ledgers", "60", "--open-ledgers", "20", "--entries", "2000"]
    environment = os.environ | {"BK_BENCH_DIRECTORY": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0][-2:] == ["files", "rocksdb"]
    files, databases = next(line[1:] for line in lines if line[0] == "files")
    assert int(databases) < int(files)
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
