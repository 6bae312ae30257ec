"""`bk demo` with a file of one's own: the proof holds, and whenever it is interrupted nothing of it stays behind."""

from __future__ import annotations

import pathlib
import select
import signal
import time
from subprocess import Popen

import pytest
from tests.live.command import Family, finish, started

pytestmark = [pytest.mark.live, pytest.mark.spark]

PROOF = ("none lost", "none twice", "same content", "enough replicas", "bookie killed", "writer killed")
PATIENCE_S = 300


@pytest.fixture
def small(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "small"
    path.write_bytes(b"".join(b"line %d\n" % number * (number % 3) for number in range(2000)) + b"\n\nno end")
    return path


def test_the_proof_holds_in_json(small: pathlib.Path, tmp_path: pathlib.Path, family: Family) -> None:
    with started("demo", "--json", "--input", small, "--directory", tmp_path / "new", family=family) as process:
        done = finish(process, timeout_s=PATIENCE_S)
    assert done.status == 0, done.err
    report = done.json()
    assert report["records"] == len(small.read_bytes().split(b"\n"))
    assert [each["what"] for each in report["proof"]] == list(PROOF)
    assert all(each["holds"] for each in report["proof"])
    assert report["min_replicas"] >= 2
    assert sum(row[1] for row in report["table"]) == report["records"]
    assert (tmp_path / "new" / "bk-data" / "cluster.json").exists()


@pytest.mark.long
def test_the_proof_holds_for_a_single_line(tmp_path: pathlib.Path, family: Family) -> None:
    (tmp_path / "line").write_text("a single line")
    with started("demo", "--input", tmp_path / "line", "--directory", tmp_path / "new", family=family) as process:
        done = finish(process, timeout_s=PATIENCE_S)
    assert done.status == 0, done.err
    for what in PROOF:
        assert f"   ok  {what}: " in done.out
    assert "all processes are stopped; the data is in" in done.out


def wait_line(process: Popen[str], beginning: str) -> None:
    """Wait until the demo says this."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(beginning):
            return
    assert process.stderr is not None
    raise AssertionError(f"it ended without {beginning!r}: {process.stderr.read()}")


@pytest.mark.parametrize("moment", ["bookies demo:", "1. started", "2. appending", "4. reading"])
def test_an_interruption_leaves_nothing_behind(
    moment: str, small: pathlib.Path, tmp_path: pathlib.Path, family: Family
) -> None:
    with started("demo", "--input", small, "--directory", tmp_path / "new", family=family) as process:
        wait_line(process, moment)
        done = finish(process, signal.SIGINT)
    assert done.status == 130
    assert done.err.rstrip().endswith(f"demo: interrupted. The data and the logs are in {tmp_path / 'new'}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_end_in_the_middle_of_spark_leaves_nothing_behind(
    number: signal.Signals, small: pathlib.Path, tmp_path: pathlib.Path, family: Family
) -> None:
    with started("demo", "--input", small, "--directory", tmp_path / "new", family=family) as process:
        wait_line(process, "4. reading")
        deadline = time.monotonic() + PATIENCE_S
        while not any("org.apache.spark" in words for words in family.members().values()):
            assert time.monotonic() < deadline
            assert process.stdout is not None
            assert not select.select([process.stdout], [], [], 0.1)[0], "Spark was done before its Java was seen"
        done = finish(process, number)
    if number == signal.SIGTERM:
        assert done.status == 130
        assert "demo: interrupted" in done.err
    else:
        assert done.status == -signal.SIGKILL
