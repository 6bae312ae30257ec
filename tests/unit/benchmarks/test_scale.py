"""The grid of bookies and clients: what runs, in which order, and what becomes of the runs."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import pytest
from benchmarks import scale
from benchmarks.scale import QUICK, Bench, Cell, RateLimit, Run
from benchmarks.suite import processes
from benchmarks.suite.guard import DriveFailed
from benchmarks.suite.limits import Limits

LIMITS = Limits({1: (200.0, 900.0), 3: (500.0, 4000.0)}, 300.0, 3000.0, 2500.0)
ADD = Cell("add 1 KiB", 2, 1)
VALUES = {"client_cpu_us": 5.0, "bookies_cpu_us": 8.0, "used": 1.5, "busy": 2.0, "p50_us": 1000.0}


def run(cell: Cell, rate: float, **values: float) -> Run:
    return Run(cell, {"entries_per_s": rate, **VALUES, **values})


def test_the_grid_has_every_mixture() -> None:
    found = scale.cells(RateLimit())
    assert len(set(found)) == len(found) == 4 * 4 * 4 + 3
    assert {(cell.bookies, cell.clients) for cell in found} == {(b, c) for b in range(1, 5) for c in range(1, 5)}
    assert [cell.bookies for cell in found] == sorted(cell.bookies for cell in found), "one cluster after the other"
    assert [scale.quorums(each) for each in (1, 2, 3, 4)] == [(1, 1, 1), (2, 2, 2), (3, 3, 2), (3, 3, 2)]
    assert set(scale.cells(QUICK)) < set(found)


def test_a_process_that_has_ended_is_no_usage() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ProcessLookupError, match="has ended"):
        processes.usage(process.pid)
    assert process.wait() == 0


class Recorder:
    """A `Bench` that runs nothing, and fails in one cell."""

    def __init__(self) -> None:
        self.cells: list[Cell] = []
        self.stops = 0

    def run(self, cell: Cell) -> dict[str, float]:
        self.cells.append(cell)
        if cell == Cell("add 1 KiB", 3, 2):
            raise DriveFailed("not enough bookies")
        return {"entries_per_s": 1.0, **VALUES}

    def stop(self) -> None:
        self.stops += 1


def test_every_other_round_goes_backwards_and_failures_are_kept() -> None:
    bench, runs = Recorder(), list[Run]()
    scale.measure(bench, QUICK, 2, runs)  # type: ignore[arg-type]
    planned = scale.cells(QUICK)
    assert bench.cells == [*planned, *reversed(planned)]
    failed = [each for each in runs if each.failure]
    assert [each.failure for each in failed] == ["DriveFailed: not enough bookies"] * 2
    assert bench.stops == 2, "what a failed run leaves is nobody's"


def test_medians_of_the_runs_that_did_not_fail() -> None:
    runs = [
        run(ADD, 30),
        run(ADD, 10, used=1.8),
        run(ADD, 20),
        Run(ADD, {}, "died"),
        Run(Cell("add 100 B", 1, 1), {}, "died"),
    ]
    first, second = scale.document(runs, LIMITS)["cells"]
    assert (first["case"], first["rates"], first["failed"]) == ("add 100 B", [], 1), "in the order of the cases"
    assert (second["entries_per_s"], second["used"], second["failed"], second["size"]) == (20, 1.5, 1, 1024)
    assert second["rates"] == [30, 10, 20]


def test_tables_and_document_say_the_same() -> None:
    runs = [run(ADD, 30_000), run(ADD, 10_000), run(ADD, 20_000), run(Cell("read 1 KiB", 1, 2), 500_000)]
    found = scale.document(runs, LIMITS)
    assert json.loads(scale.text_of(found)) == json.loads(json.dumps(found))
    assert "| add 1 KiB | 2 | 20,000 (10,000 to 30,000) | - |" in scale.rates(found)
    assert "| read 1 KiB | 1 | - | 500,000 |" in scale.rates(found)
    assert f"| add 1 KiB | 2 | 1 | 20,000 | 5.00 | 8.00 | {150 / scale.CORES:.0f} |" in scale.costs(found)


def test_a_disk_without_room_is_not_filled(tmp_path: pathlib.Path) -> None:
    with Bench(tmp_path, RateLimit(), 1e9) as bench, pytest.raises(SystemExit, match="of free space; --directory"):
        bench.run(ADD)
    assert list(tmp_path.iterdir()) == []
