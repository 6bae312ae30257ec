"""`bk chaos` for some seconds: it breaks things, finds nothing, and leaves nothing behind, also when interrupted."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal

import pytest
from tests.live.command import Done, Family, bk, finish, started

pytestmark = pytest.mark.live

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists("/dev/net/tun") or not all(map(shutil.which, ("ip", "etcd", "mkfs.ext4"))),
    reason="network namespaces need root, /dev/net/tun, iproute2, e2fsprogs and etcd",
)


def run_chaos(family: Family, directory: pathlib.Path, *words: object) -> Done:
    with started("chaos", *words, cwd=directory, family=family) as process:
        return finish(process, timeout_s=120)


def test_every_promise_holds(tmp_path: pathlib.Path, family: Family) -> None:
    data = tmp_path / "data"
    done = run_chaos(family, tmp_path, "--minutes", 0.06, "--bookies", 3, "--hostile", "--json", "--directory", data)
    report = done.json()
    assert done.status == 0, done.out
    assert report["violations"] == []
    assert report["counts"]["entries acknowledged"] > 0
    assert report["counts"]["entries"] >= report["counts"]["entries acknowledged"]
    assert report["counts"]["ledgers"] > 0
    assert report["operations"]["append"]["outcomes"]["ok"] > 0
    assert {"p50_us", "p99_us", "max_us"} <= report["operations"]["append"].keys()
    family.wait_gone()
    assert (data / "bk-data" / "b1" / "bookie.log").exists()
    assert list((data / "clients").glob("writer1.1.history"))


@pytest.mark.long
def test_everything_is_whole_in_the_end(tmp_path: pathlib.Path, family: Family) -> None:
    done = run_chaos(family, tmp_path, "--minutes", 0.06, "--bookies", 4, "--json")
    report = done.json()
    assert done.status == 0, done.out
    assert report["violations"] == []
    assert report["counts"]["auditors elected"] > 0
    assert report["counts"]["entries"] >= report["counts"]["entries acknowledged"] > 0


@pytest.mark.long
@needs_namespaces
def test_every_promise_holds_in_networks_that_break(tmp_path: pathlib.Path, family: Family) -> None:
    data = tmp_path / "data"
    done = run_chaos(family, tmp_path, "--namespaces", "--minutes", 0.06, "--bookies", 3, "--json", "--directory", data)
    report = done.json()
    assert done.status == 0, done.out
    assert report["violations"] == []
    assert report["counts"]["packets"] > 1_000
    assert report["counts"]["entries acknowledged"] > 0
    assert (data / "faults.log").read_text().count("\n") > 0
    family.wait_gone()
    assert str(data) not in pathlib.Path("/proc/mounts").read_text()


@pytest.mark.long
def test_a_soak_samples_what_may_grow(tmp_path: pathlib.Path, family: Family) -> None:
    data = tmp_path / "data"
    done = run_chaos(family, tmp_path, "--soak", 0.2, "--bookies", 4, "--json", "--directory", data)
    report = done.json()
    assert done.status == 0, done.out
    assert report["violations"] == []
    assert report["counts"]["ledgers verified"] > 0
    assert report["counts"]["entries verified"] >= report["counts"]["entries acknowledged"] > 0
    assert report["samples"]["bookies: files"]["last"] > 0
    assert (data / "soak.csv").read_text().startswith("seconds,ledgers,")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("words", [(), pytest.param(("--namespaces",), marks=needs_namespaces)], ids=["", "namespaces"])
def test_an_interrupted_run_leaves_nothing(
    tmp_path: pathlib.Path, family: Family, words: tuple[str, ...], number: signal.Signals
) -> None:
    environment = family.environment() | {"TMPDIR": str(tmp_path)}
    family.environment = lambda: environment  # type: ignore[method-assign]
    with started("chaos", "--bookies", 2, "--minutes", 5, *words, cwd=tmp_path, family=family) as process:
        assert process.stderr is not None
        while "entries acknowledged" not in (line := process.stderr.readline()):
            assert line, "it has ended"
        assert len(family.members()) > 3
        done = finish(process, number)
    family.wait_gone()
    assert str(tmp_path) not in pathlib.Path("/proc/mounts").read_text()
    if number == signal.SIGKILL:
        return  # Nobody was left to remove the data.
    assert done.status == 130
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--minutes", 0), "--minutes 0: must be more than 0"),
        (("--bookies", 0), "--bookies 0: must be 2 to 20"),
        (("--bookies", 21), "--bookies 21: must be 2 to 20"),
        (("--bookies", 2, "--hostile"), "--bookies 2: must be 3 to 20"),
        (("--namespaces", "--hostile"), "--namespaces and --hostile exclude each other"),
        (("--jars", "folder"), "--jars needs --namespaces"),
        (("--namespaces", "--apache", 1), "--apache needs --jars"),
        (("--namespaces", "--apache-clients"), "--apache-clients needs --jars"),
        (("--soak", 0), "--soak 0: must be more than 0"),
        (("--soak", 1, "--namespaces"), "--soak injects no faults"),
        (("--soak", 1, "--bookies", 3), "--bookies 3: must be 4 to 20"),
        (("--spark",), "--spark needs --soak"),
    ],
)
def test_wrong_use_is_said_before_anything_is_started(words: tuple[object, ...], sentence: str) -> None:
    done = bk("chaos", *words)
    assert done.status == 2
    assert sentence in done.sentence


def test_a_machine_without_the_programs_of_namespaces_is_refused(tmp_path: pathlib.Path, family: Family) -> None:
    environment = family.environment() | {"PATH": str(tmp_path)}
    family.environment = lambda: environment  # type: ignore[method-assign]
    done = run_chaos(family, tmp_path, "--namespaces")
    assert done.status == 2
    assert "--namespaces needs ip, nsenter, mount, umount, mkfs.ext4, e2fsck" in done.err


def test_a_directory_that_is_not_empty_is_not_touched(tmp_path: pathlib.Path) -> None:
    (tmp_path / "mine").write_text("precious")
    done = bk("chaos", "--directory", tmp_path)
    assert done.status == 2
    assert "must be a new or an empty directory" in done.sentence
    assert os.listdir(tmp_path) == ["mine"]
