"""A failing run is reduced to the faults it needs, kept in a file, and repeated from it; the command that does so."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from bookies.admin import cli
from bookies.lab.sim.run import simulate
from bookies.lab.sim.shrink import Recording, UnusableRecording, promises, shrink
from bookies.lab.sim.world.disk import SimFile


def sync_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimFile, "fdatasync", lambda self: None)


@functools.cache
def _first_failure(profile: str) -> tuple[int, Recording]:
    """A run without syncs that breaks a promise, and it with fewer faults."""
    with pytest.MonkeyPatch.context() as patch:
        sync_nothing(patch)
        for seed in range(41, 80):
            result = simulate(seed, profile)
            if result.violations and len(result.faults) > 1:
                return len(result.faults), shrink(result, run_count_max=30)
    raise AssertionError("every promise held")


def test_only_the_faults_that_matter_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    before, recording = _first_failure("small-332")
    sync_nothing(monkeypatch)
    assert 1 <= len(recording.faults) < before
    assert any("crash" in what for what in recording.faults.values())
    again = Recording.parse(recording.pack())
    assert again == recording
    replayed = again.replay()
    assert replayed.digest == recording.digest
    assert tuple(replayed.violations) == recording.violations
    assert promises(recording.violations) <= {"B-1", "I-1", "I-2", "L-2", "I-15", "errors"}
    monkeypatch.undo()
    assert not again.replay().violations


def test_leaving_out_all_faults_is_a_run_too() -> None:
    result = simulate(3, "small-332", only=frozenset())
    assert result.faults == {}
    assert not result.violations


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "seed": "x"}', '{"format": 1}'])
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(UnusableRecording):
        Recording.parse(text)


# -- bk sim --------------------------------------------------------------------------------------------------------


def test_a_sweep_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sim", "--profile", "small", "--seeds", "1-6"]) == 0
    out = capsys.readouterr().out
    for name in ("small-332", "small-322", "small-622", "small-532", "small-432", "small-111"):
        assert re.search(rf"^{name} +1 +\d", out, re.MULTILINE), out
    assert "6 seeds, 0 failed" in out


def test_a_failure_is_kept_and_replayed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, recording = _first_failure("small-332")
    sync_nothing(monkeypatch)
    assert cli.main(f"sim --profile small-332 --seed {recording.seed} --keep-in {tmp_path}".split()) == 1
    path = tmp_path / f"sim-small-332-{recording.seed}.json"
    assert f"bk sim --replay {path}" in capsys.readouterr().out
    assert cli.main(["sim", "--replay", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["violations"]
    monkeypatch.undo()
    assert cli.main(["sim", "--replay", str(path)]) == 0
    assert "the code has changed since" in capsys.readouterr().err


def test_a_broken_recording_is_a_usage_error(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.json"
    path.write_text("{")
    assert cli.main(["sim", "--replay", str(path)]) == 2
    assert "not a recorded run" in capsys.readouterr().err


@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_ends_a_sweep_in_order(jobs: int) -> None:
    command = [sys.executable, "-m", "bookies.admin.cli", "sim", "--profile", "small", "--seeds", "1-100000", "--json"]
    with subprocess.Popen(
        [*command, "--jobs", str(jobs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        for _ in range(3):
            assert process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "histories/min/core" in err
    assert "interrupted" in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--minutes", "0"], "--minutes 0: must be more than 0"),
        (["--minutes", "-1"], "--minutes -1: must be more than 0"),
        (["--minutes", "nan"], "--minutes nan: must be more than 0"),
        (["--seed", "-5"], "--seed -5: must be 0 or more"),
        (["--seed", "1", "--seeds", "1-2"], "--seeds and --seed: use only one of these options"),
        (["--seed", "1", "--scenario", "X"], "--scenario and --seed: use only one of these options"),
        (["--replay", "/nowhere/at/all"], "--replay /nowhere/at/all: "),
    ],
)
def test_what_would_run_nothing_or_something_else_is_refused(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["sim", *words]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--replay", "--scenario"])
def test_a_file_that_is_no_text_is_refused(
    option: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "noise"
    path.write_bytes(b"W append\n\xad\xa1")
    assert cli.main(["sim", option, str(path)]) == 2
    assert "not a text file, see byte 9" in capsys.readouterr().err
