"""What the verbs of `bk bookie` print."""

from __future__ import annotations

import json
import pathlib

import pytest

from bookies.admin.cli import main
from bookies.admin.commands import bookie
from bookies.admin.commands.bookie import _place_text, _row
from bookies.admin.shared.file_systems import file_system_of
from bookies.client.transport import BookieStatus
from bookies.model import BookieId


@pytest.mark.parametrize(
    ("location", "nearness", "text"),
    [(None, "host", "-"), ("/east/r1", "unknown", "/east/r1"), ("/east/r1", "region", "/east/r1 (region)")],
)
def test_how_near_a_bookie_is(location: str | None, nearness: str, text: str) -> None:
    status = BookieStatus(BookieId("b1"), "writable", "10.0.0.1:3181", {}, location, nearness=nearness)
    assert _place_text(_row(status)) == text


def words(directory: pathlib.Path, name: str) -> list[str]:
    return ["--bookie-id", name, "--journal-dir", f"{directory}/{name}", "--ledger-dir", f"{directory}/{name}"]


def test_bookies_are_initialized_and_those_beyond_a_number_removed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BK_METADATA", f"file:{tmp_path}/store")
    monkeypatch.setenv("BK_NEW_BOOKIES", "")
    assert main(["bookie", "init", "--volatile", *words(tmp_path, "set-0")]) == 1
    assert "there is no metadata store at" in capsys.readouterr().err
    assert main(["bookie", "run", *words(tmp_path, "set-0")]) == 4
    assert not (tmp_path / "store").exists()
    assert main(["metadata", "init", "--if-missing"]) == 0
    assert main(["metadata", "init", "--if-missing", "--json"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("created cluster ")
    assert json.loads(out.partition("\n")[2])["instance_id"] in out.partition("\n")[0]
    assert main(["bookie", "run", *words(tmp_path, "set-0")]) == 5
    assert "cannot start bookie set-0: it would be a new one" in capsys.readouterr().err
    for name in ("set-0", "set-1", "set-2", "set-10", "set-x", "other-set-3"):
        assert main(["bookie", "init", "--volatile", *words(tmp_path, name)]) == 0
        assert f"bookie {name} is new" in capsys.readouterr().out
    assert main(["bookie", "init", "--volatile", "--json", *words(tmp_path, "set-0")]) == 0
    assert json.loads(capsys.readouterr().out)["changed"] is False

    assert main(["bookie", "drain", "set", "--beyond", "11"]) == 0
    assert "no bookie set-11 or above" in capsys.readouterr().out
    assert main(["bookie", "drain", "--beyond", "1"]) == 2
    assert main(["bookie", "drain", "set", "--beyond", "1", "--dry-run", "--json"]) == 0
    assert [plan["bookie"] for plan in json.loads(capsys.readouterr().out)] == ["set-10", "set-2", "set-1"]
    assert main(["bookie", "drain"]) == 0
    assert "no bookie is being drained" in capsys.readouterr().out
    assert main(["bookie", "drain", "set", "--beyond", "1"]) == 0
    assert "stop it and run: bk bookie drain set-10 --remove" in capsys.readouterr().out
    assert main(["bookie", "drain", "set", "--beyond", "1", "--remove"]) == 0
    capsys.readouterr()
    assert main(["cookie", "list", "--json"]) == 0
    assert [row["bookie"] for row in json.loads(capsys.readouterr().out)] == ["other-set-3", "set-0", "set-x"]


def test_a_directory_of_a_container_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bookie, "file_system_of", lambda path: "overlay")
    assert main(["bookie", "init", "--metadata", f"file:{tmp_path}/store", *words(tmp_path, "b1")]) == 2
    assert f"{tmp_path}/b1 is on overlay: mount a volume or a disk there" in capsys.readouterr().err


def test_a_bookie_on_volatile_directories_is_warned_of(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if file_system_of("/dev/shm") != "tmpfs":
        pytest.skip("/dev/shm is no tmpfs here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BK_METADATA", f"file:{tmp_path}/store")
    directories = ["--journal-dir", "/dev/shm/bookies-none/j", "--ledger-dir", "/dev/shm/bookies-none/l"]
    assert main(["bookie", "run", "--dry-run", "--bookie-id", "b1", *directories]) == 0
    errors = capsys.readouterr().err
    for name in ("j", "l"):
        assert f"bk bookie: /dev/shm/bookies-none/{name} is on tmpfs: mount a volume or a disk there" in errors
    assert not pathlib.Path("/dev/shm/bookies-none").exists()
