"""`bk up` and `bk down`: the data stays, nothing else does."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import time
import urllib.request

import pytest
from tests.live.command import PATIENCE_S, Family, bk, finish, run, started, write_state

pytestmark = pytest.mark.live


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


def test_a_cluster_that_crashed_is_up_again(
    tmp_path: pathlib.Path, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in the image, where a bookie alone makes nothing new.
    environment = family.environment() | {"BK_NEW_BOOKIES": ""}
    monkeypatch.setattr(family, "environment", lambda: environment)
    write_state(tmp_path, lease_ms=1000)  # A bookie starts again when the lease of its killed process is over.
    run(family, tmp_path, "up")
    ledger_id = run(family, tmp_path, "ledger", "append", "--new", stdin="a\nb\nc\n").out.strip()
    for pid in family.members():
        os.kill(pid, signal.SIGKILL)
    family.wait_gone()
    assert "started b1, b2, b3" in run(family, tmp_path, "up").out
    assert run(family, tmp_path, "ledger", "read", ledger_id).out == "a\nb\nc\n"
    run(family, tmp_path, "down")


def removed_entries(directory: pathlib.Path) -> int:
    """Entries that retention has removed, by the metrics of all bookies."""
    total = 0
    for path in directory.glob(".*.ready"):
        host, port = json.loads(path.read_bytes())["http"]
        with urllib.request.urlopen(f"http://{host}:{port}/metrics") as response:
            for line in response.read().decode().splitlines():
                if line.startswith("bookies_log_retention_entries_total"):
                    total += int(float(line.split()[-1]))
    return total


def test_a_bookie_applies_the_limits_of_logs(tmp_path: pathlib.Path, family: Family) -> None:
    write_state(tmp_path, lease_ms=10_000)
    path = tmp_path / "bk-data" / "cluster.json"
    state = json.loads(path.read_bytes())
    state["settings"] |= {"log_retention_interval_s": 1, "http_port": 0}
    path.write_text(json.dumps(state))
    run(family, tmp_path, "up")
    run(family, tmp_path, "recovery", "disable")
    run(family, tmp_path, "log", "create", "clicks")
    for part in range(4):
        run(family, tmp_path, "log", "append", "clicks", stdin=f"{part}a\n{part}b\n")
    run(family, tmp_path, "log", "retention", "clicks", "--rows", 3)
    assert run(family, tmp_path, "log", "history", "clicks", "--json").json() == []
    run(family, tmp_path, "recovery", "enable")
    deadline = time.monotonic() + PATIENCE_S
    while (removed := removed_entries(tmp_path / "bk-data")) == 0:
        assert time.monotonic() < deadline
    removals = run(family, tmp_path, "log", "history", "clicks", "--json").json()
    assert [(row["entries"], row["reasons"]) for row in removals] == [(4, ["rows"])]
    assert removed == 4
    assert run(family, tmp_path, "log", "retention", "clicks").err == ""
    assert run(family, tmp_path, "log", "read", "clicks").out.splitlines() == ["2a", "2b", "3a", "3b"]
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_interrupted_start_leaves_nothing_or_a_cluster_that_down_finds(
    tmp_path: pathlib.Path, family: Family, number: signal.Signals
) -> None:
    with started("up", cwd=tmp_path, family=family) as process:
        while not (tmp_path / "bk-data" / "cluster.json").exists():
            assert process.poll() is None
            time.sleep(0.001)
        done = finish(process, number)
    if number != signal.SIGKILL:
        assert done.status == 130
        family.wait_gone()
    run(family, tmp_path, "down")


def modes(family: Family, directory: pathlib.Path) -> list[str]:
    return [each["mode"] for each in run(family, directory, "status", "--json").json()["bookies"]]


@pytest.mark.parametrize("is_written_down", [True, False])
def test_a_killed_start_is_finished_by_the_next(tmp_path: pathlib.Path, family: Family, is_written_down: bool) -> None:
    """Its bookies find nobody to tell that they serve, and serve; whoever says that they do has seen it."""
    state = tmp_path / "bk-data" / "cluster.json"
    with started("up", cwd=tmp_path, family=family) as process:
        while not state.exists():
            assert process.poll() is None
            time.sleep(0.001)
        finish(process, signal.SIGKILL)
    before = family.members()
    assert len(before) == 3
    if not is_written_down:
        state.unlink()
    assert "all bookies were running already" in run(family, tmp_path, "up").out
    assert modes(family, tmp_path) == ["writable"] * 3
    assert family.members() == before
    assert run(family, tmp_path, "down", "--json").json()["stopped"] == ["b1", "b2", "b3"]
    assert not list((tmp_path / "bk-data").glob(".*.ready"))


def test_one_that_cannot_start_keeps_nobody_else_down(tmp_path: pathlib.Path, family: Family) -> None:
    run(family, tmp_path, "up")
    ledger_id = run(family, tmp_path, "ledger", "append", "--new", stdin="a\nb\n").out.strip()
    run(family, tmp_path, "down")
    (tmp_path / "bk-data" / "b2" / "ledgers").rename(tmp_path / "lost")
    for begin in ("started b1, b3; b1, b3 of 3 bookies serve", "started none; b1, b3 of 3 bookies serve"):
        up = run(family, tmp_path, "up", status=1)
        assert up.sentence.startswith("bk up: cannot start bookie b2: b2/ledgers ")
        assert "stay readable from their other replicas. Bring the disk back" in up.sentence
        assert up.out.startswith(begin)
        assert modes(family, tmp_path) == ["writable", "down", "writable"]
    assert run(family, tmp_path, "ledger", "read", ledger_id).out == "a\nb\n"
    assert "started b4; b1, b3, b4 of 4" in run(family, tmp_path, "up", "--bookies", 4, status=1).out
    (tmp_path / "lost").rename(tmp_path / "bk-data" / "b2" / "ledgers")
    few = run(family, tmp_path, "up", "--bookies", 2)
    assert few.out.startswith("started b2\n")
    assert few.sentence == "the cluster has 4 bookies; --bookies 2 does not remove any"
    run(family, tmp_path, "down")


def test_a_bookie_serves_whoever_listens_to_it(tmp_path: pathlib.Path, family: Family) -> None:
    """Neither its ready line nor its ready file finds a place."""
    (tmp_path / "metadata").mkdir()
    words = ("bookie", "run", "--bookie-id", "b1", "--port", 0, "--metadata", f"file:{tmp_path}/metadata")
    with started(*words, "--ready-file", tmp_path / "no" / "where", cwd=tmp_path, family=family) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        while "cannot write the ready file" not in (line := process.stderr.readline()):
            assert line, "it has ended"
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        assert "Error" not in process.stderr.read()


@pytest.mark.parametrize("count", [-1, 0, 101, 1_000_000])
def test_the_number_of_bookies_has_bounds(tmp_path: pathlib.Path, count: int) -> None:
    done = bk("up", "--directory", tmp_path / "bk-data", "--bookies", count)
    assert done.status == 2
    assert done.sentence == f"bk up: --bookies {count}: a local cluster has 1 to 100"
    assert not (tmp_path / "bk-data").exists()


@pytest.mark.parametrize(
    "damage",
    [
        b"garbage", b"", b"[]", b"{}", b"\xff\xfe", b'{"bookies": []}', b'{"bookies": 3}', b'{"bookies": [1]}',
        b'{"bookies": [{"pid": 1}]}', b'{"bookies": [{"id": "../b1"}]}', b'{"bookies": [{"id": "b1", "pid": "x"}]}',
        b'{"bookies": [{"id": "b1"}, {"id": "b1"}]}', b'{"bookies": [{"id": "b1"}], "settings": []}',
    ],
)  # fmt: skip
def test_a_damaged_state_is_named_with_the_way_out(tmp_path: pathlib.Path, damage: bytes) -> None:
    (tmp_path / "cluster.json").write_bytes(damage)
    for noun in ("up", "down"):
        done = bk(noun, "--directory", tmp_path)
        assert done.status == 2
        assert done.sentence.startswith(f"bk {noun}: {tmp_path}/cluster.json is damaged: ")
        assert "or remove it and run `bk up --bookies N`" in done.sentence
    assert [each.name for each in tmp_path.iterdir()] == ["cluster.json"]
