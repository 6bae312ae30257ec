"""`bk up` and `bk down`: the data stays, nothing else does."""

from __future__ import annotations

import os
import pathlib
import signal
from collections.abc import Iterator

import pytest
from tests.live.command import Done, Family, finish, started

pytestmark = pytest.mark.live


@pytest.fixture
def family(tmp_path: pathlib.Path) -> Iterator[Family]:
    """All that a test starts, none of which may be left at the end."""
    family = Family()
    yield family
    family.wait_gone()


def run(family: Family, directory: pathlib.Path, *words: object, stdin: str = "") -> Done:
    """`bk` in a directory, as a process that ends."""
    with started(*words, cwd=directory, family=family) as process:
        assert process.stdin is not None
        process.stdin.write(stdin)
        done = finish(process)
    assert done.status == 0, done.err
    return done


def test_up_down_up_keeps_the_data_even_of_a_moved_directory(tmp_path: pathlib.Path, family: Family) -> None:
    here = tmp_path / "here"
    here.mkdir()
    up = run(family, here, "up", "--json").json()
    assert [each["id"] for each in up["bookies"]] == ["b1", "b2", "b3"]
    assert len(family.members()) == 3
    lines = "".join(f"line {number}\n" for number in range(1000))
    ledger_id = run(family, here, "ledger", "append", "--new", stdin=lines).out.strip()
    assert "all bookies were running already" in run(family, here, "up").out
    down = run(family, here, "down", "--json").json()
    assert down["stopped"] == ["b1", "b2", "b3"]
    family.wait_gone()
    assert "nothing was running" in run(family, here, "down").out

    there = tmp_path / "there"
    here.rename(there)
    inner = there / "some" / "where"
    inner.mkdir(parents=True)
    assert "started b1, b2, b3, b4" in run(family, inner, "up", "--bookies", 4).out
    assert run(family, inner, "ledger", "read", ledger_id).out == lines
    modes = [each["mode"] for each in run(family, inner, "status", "--json").json()["bookies"]]
    assert modes == ["writable"] * 4
    run(family, there, "down")


def test_a_cluster_that_crashed_is_up_again(tmp_path: pathlib.Path, family: Family) -> None:
    run(family, tmp_path, "up")
    ledger_id = run(family, tmp_path, "ledger", "append", "--new", stdin="a\nb\nc\n").out.strip()
    for pid in family.members():
        os.kill(pid, signal.SIGKILL)
    family.wait_gone()
    assert "started b1, b2, b3" in run(family, tmp_path, "up").out
    assert run(family, tmp_path, "ledger", "read", ledger_id).out == "a\nb\nc\n"
    run(family, tmp_path, "down")


def test_two_that_start_it_at_once_start_it_once(tmp_path: pathlib.Path, family: Family) -> None:
    (tmp_path / "bk-data").mkdir()
    with (
        started("up", cwd=tmp_path, family=family) as first,
        started("up", cwd=tmp_path, family=family) as second,
    ):
        done = [finish(first), finish(second)]
    assert [each.status for each in done] == [0, 0], done
    assert sorted(each.out.splitlines()[0] for each in done) == [
        "all bookies were running already",
        "started b1, b2, b3",
    ]
    assert len(family.members()) == 3
    run(family, tmp_path, "down")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_start_leaves_nothing_or_a_cluster_that_down_finds(
    tmp_path: pathlib.Path, family: Family, number: signal.Signals
) -> None:
    with started("up", cwd=tmp_path, family=family) as process:
        while not (tmp_path / "bk-data" / "cluster.json").exists():
            assert process.poll() is None
        done = finish(process, number)
    if number == signal.SIGINT:
        assert done.status == 130
        family.wait_gone()
    run(family, tmp_path, "down")
