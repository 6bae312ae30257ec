"""Benchmarks that end before their time: a process dies, a program is missing, the disk is full, a signal comes."""

from __future__ import annotations

import argparse
import errno
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks import recovery, scale
from benchmarks.suite import java, limit_work, limits, processes, stage
from benchmarks.suite.guard import DriveFailed, Guard
from benchmarks.suite.limits import Limits
from benchmarks.suite.servers import Bookie, Cluster
from benchmarks.suite.stage import QUICK, Contestant, Stage

LIMITS = Limits({1: (200.0, 900.0), 3: (500.0, 4000.0)}, 300.0, 3000.0, 2500.0)
PATIENCE_S = 60.0
ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


# -- a process of the cluster dies -------------------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: pathlib.Path) -> Iterator[Cluster]:
    """One process that does nothing stands for its bookie."""
    home = tmp_path / "cluster"
    home.mkdir()
    found = Cluster(home, 1)
    found.bookies = [Bookie("ours-0", 0, home, ["sleep", "600"])]
    found.bookies[0].start()
    yield found
    found.stop()


def killer(cluster: Cluster, directory: pathlib.Path) -> pathlib.Path:
    """A driver that kills the bookie and then waits for ever."""
    path = directory / "killer.py"
    path.write_text(f"import os, sys\nos.kill({cluster.bookies[0].pid}, 9)\nsys.stdin.read()\n")
    return path


def test_a_bookie_that_dies_ends_the_driver_and_is_named(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    cluster.bookies[0].log.write_text("no room left\n")
    driver = processes.spawn(["cat"], log=tmp_path / "driver.log", pipes=True)
    assert driver.stdout is not None
    guard = Guard(cluster, driver.kill, PATIENCE_S)
    guard.__enter__()
    os.kill(cluster.bookies[0].pid, signal.SIGKILL)
    assert driver.stdout.read() == "", "it ends with the bookie, before the guard is told to"
    with pytest.raises(DriveFailed, match="bookie ours-0 has ended, signal SIGKILL; its last words: no room left"):
        guard.__exit__(None)
    assert driver.wait() == -signal.SIGKILL
    processes.stop(driver)


def test_what_a_driver_says_about_a_dead_bookie_matters_less(cluster: Cluster) -> None:
    os.kill(cluster.bookies[0].pid, signal.SIGKILL)
    os.waitid(os.P_PID, cluster.bookies[0].pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(DriveFailed, match="bookie ours-0 has ended"), Guard(cluster, lambda: None, PATIENCE_S):
        raise DriveFailed("not enough bookies")
    with pytest.raises(KeyboardInterrupt), Guard(cluster, lambda: None, PATIENCE_S):
        raise KeyboardInterrupt


def test_a_driver_that_takes_too_long_is_ended(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    driver = processes.spawn(["cat"], log=tmp_path / "driver.log", pipes=True)
    assert driver.stdout is not None
    with Guard(cluster, driver.kill, 0.0):
        assert driver.stdout.read() == ""
    processes.stop(driver)
    assert cluster.is_whole()


def test_a_run_names_the_bookie_that_died(
    cluster: Cluster, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "DRIVE", killer(cluster, tmp_path))
    with (
        Stage(tmp_path, QUICK, LIMITS, free_gb_min=0) as found,
        pytest.raises(DriveFailed, match="bookie ours-0 has ended, signal SIGKILL"),
    ):
        found.drive(Contestant("ours", "ours", "ours"), "add", cluster=cluster)
    assert not cluster.is_whole()


def test_a_team_names_the_bookie_that_died(
    cluster: Cluster, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "DRIVE", killer(cluster, tmp_path))
    with pytest.raises(DriveFailed, match="bookie ours-0 has ended"), scale.Team(cluster, [[]]) as team:  # type: ignore[arg-type]
        team.results()


# -- Apache's jars -----------------------------------------------------------------------------------------------------


@pytest.fixture
def programs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The only directory in PATH; the cache is empty."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.setenv("BOOKIES_APACHE_CACHE", str(tmp_path / "cache"))
    return directory


def program(path: pathlib.Path, text: str = "exit 0") -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_each_missing_program_is_named(programs: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("java", "mvn", "javac"):
        with pytest.raises(SystemExit) as ended:
            java.prepare()
        assert ended.value.code == 2
        assert capfd.readouterr().err == f"measuring Apache BookKeeper needs `{name}`, which is not in PATH\n"
        program(programs / name)
    java.prepare()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("mvn", "Maven could not fetch Apache BookKeeper's jars"), ("javac", "javac could not compile")],
)
def test_a_program_that_fails_is_one_sentence(
    name: str, sentence: str, programs: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for each in ("java", "mvn", "javac"):
        program(programs / each)
    program(programs / name, "echo 'many\nlines'; echo more >&2; exit 7")
    with pytest.raises(SystemExit) as ended:
        java.prepare()
    assert ended.value.code == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith(sentence)
    assert said.err.endswith(f"(exit status 7); what it said is in {java.cache() / name}.log\n")
    assert (java.cache() / f"{name}.log").read_text() == "many\nlines\nmore\n"
    assert (java.cache() / "lib" / "complete").exists() == (name == "javac"), "what has failed is tried again"


def test_a_cache_that_cannot_be_made_is_one_sentence(programs: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    for each in ("java", "mvn", "javac"):
        program(programs / each)
    java.cache().write_text("a file")
    with pytest.raises(SystemExit) as ended:
        java.prepare()
    assert ended.value.code == 2
    assert "BOOKIES_APACHE_CACHE says" in capfd.readouterr().err


# -- what the machine allows -------------------------------------------------------------------------------------------


def test_a_disk_without_room_is_one_sentence(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> list[float]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(limits, "_sync", full)
    with pytest.raises(SystemExit) as ended:
        limits.measure(tmp_path, 0.1)
    assert ended.value.code == 2
    assert capfd.readouterr().err == (
        f"{tmp_path}: No space left on device; what the disk allows is measured with 192 MiB of files there: "
        "make room, or say with --directory where there is some\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_writer_tells_why_it_cannot_write(tmp_path: pathlib.Path) -> None:
    with (
        limits._worker(tmp_path, "sync", "4096", "60", "/dev/full") as process,
        pytest.raises(OSError, match="No space left on device"),
    ):
        limits._times(process)
    assert process.returncode == limit_work.FAILED
    assert (tmp_path / "limits.log").read_text() == ""


def test_an_interrupt_of_the_limits_leaves_no_process_and_no_words(tmp_path: pathlib.Path) -> None:
    program = (
        "import pathlib, sys\n"
        "from benchmarks.suite import ending, limits\n"
        "times = limits._times\n"
        "def told(process):\n"
        "    print(process.pid, flush=True)\n"
        "    return times(process)\n"
        "limits._times = told\n"
        "sys.exit(ending.orderly(lambda: limits.measure(pathlib.Path(sys.argv[1]), 600.0)))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    writer = int(process.stdout.readline())
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to everybody
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "")
    with pytest.raises(ProcessLookupError):
        os.kill(writer, 0)
    assert list(tmp_path.iterdir()) == []


# -- recovery ----------------------------------------------------------------------------------------------------------

WHOLE = dict.fromkeys(recovery.FIGURES, 2.0)


class Measured:
    """In place of `recovery.measure`: what runs give, or raise."""

    def __init__(self, *outcomes: dict[str, float] | BaseException) -> None:
        self._outcomes = iter(outcomes)

    def __call__(self, system: str, directory: pathlib.Path, arguments: argparse.Namespace) -> dict[str, Any]:
        outcome = next(self._outcomes)
        if isinstance(outcome, BaseException):
            raise outcome
        return dict(outcome)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "143")], ids=["SIGINT", "SIGTERM"]
)
def test_a_signal_ends_a_recovery_after_its_clean_up(number: int, status: str) -> None:
    import asyncio

    cleaned = []

    async def main() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    with pytest.raises((KeyboardInterrupt, SystemExit)) as ended:
        recovery.until_ended(main)
    assert status == ("143" if ended.type is SystemExit and ended.value.code == 143 else ended.type.__name__)
    assert cleaned == [True]


@pytest.mark.parametrize(("outcome", "status"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_an_interrupt_loses_no_run_of_recovery(
    outcome: BaseException,
    status: int,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(java, "prepare", lambda: None)
    monkeypatch.setattr(recovery, "measure", Measured(WHOLE, outcome))
    words = ["--quick", "--runs", "2", "--json", str(tmp_path / "found.json"), "--directory", str(tmp_path / "a" / "b")]
    try:
        found = recovery.main(words)
    except SystemExit as ended:
        found = ended.code
    assert found == status
    assert [run["system"] for run in json.loads((tmp_path / "found.json").read_text())] == ["apache"]
    assert "| noticed after s | 2.00 | - |" in capsys.readouterr().out
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_run_of_recovery_that_fails_is_told_and_the_next_one_runs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(java, "prepare", lambda: None)
    monkeypatch.setattr(
        recovery, "measure", Measured(WHOLE, RuntimeError("bookie ours-3 does not serve"), WHOLE, WHOLE)
    )
    assert recovery.main(["--quick", "--runs", "2", "--json", str(tmp_path / "found.json")]) == 1
    found = json.loads((tmp_path / "found.json").read_text())
    assert [run.get("failure") for run in found] == [None, "RuntimeError: bookie ours-3 does not serve", None, None]
    assert "| noticed after s | 2.00 | 2.00 |" in capsys.readouterr().out


def test_recovery_refuses_no_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        recovery.main(["--runs", "0"])
    assert ended.value.code == 2
    assert "--runs must be 1 or more" in capsys.readouterr().err
