"""`bk config`: init, show, check."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import pytest

from bookies.admin import cli


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: object, status: int = 0) -> str:
        assert cli.main([str(word) for word in words]) == status
        captured = capsys.readouterr()
        return captured.out + captured.err

    return run


def test_init_writes_a_file_that_is_right_and_never_overwrites(tmp_path: pathlib.Path, run: Any) -> None:
    path = tmp_path / "bk.toml"
    assert "every setting" in run("config", "init", path)
    assert "is right" in run("config", "check", path)
    before = path.read_bytes()
    assert "exists, and was not changed" in run("config", "init", path, status=2)
    assert path.read_bytes() == before
    assert "bk.toml cannot be written: No such file" in run("config", "init", tmp_path / "no/bk.toml", status=2)


def test_show_names_the_place_of_every_value(tmp_path: pathlib.Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bk.toml"
    path.write_text('[metadata]\nuri = "zk://me:secret@z:1/l"\n[bookie]\nport = 4000\ngc_share_max = 20\n')
    monkeypatch.setenv("BK_PORT", "5000")
    shown = json.loads(run("config", "show", "--config", path, "--json"))
    rows = {row["name"]: row for row in shown["settings"]["bookie"]}
    places = {name: (row["value"], row["source"], row["where"], row["change"]) for name, row in rows.items()}
    assert places["port"] == (5000, "environment", "BK_PORT", "restart")
    assert places["gc_share_max"] == (20, "file", f"{path}:5", "run time")
    assert places["host"] == ("127.0.0.1", "default", "", "restart")
    assert "BK_CONFIG" not in os.environ
    text = run("config", "show", "bookie", "metadata", "--changed", "--config", path)
    assert "secret" not in text
    assert "host" not in text
    assert f"{path}:5" in text
    assert "no table of settings" in run("config", "show", "bookies", status=2)


def test_check_lists_every_mistake_with_its_line(tmp_path: pathlib.Path, run: Any) -> None:
    path = tmp_path / "bk.toml"
    path.write_text(
        '[metadata]\nuri = "xyz:1"\n[bookie]\nprot = 1\nport = 0\nusers_file = "users"\nauthentication = "sasl"\n'
        "[client]\nplacement = 'zone'\nzones_min = 9\n"
    )
    out = run("config", "check", path, status=1)
    assert f"{path}:2: uri: 'xyz:1' is not a metadata URI" in out
    assert f"{path}:4: [bookie] has no setting prot; did you mean port?" in out
    assert f"{path}:5: port = 0: a bookie on any free port needs a fixed bookie_id" in out
    assert f"{path}:10: zones_min = 9 is more than zones_desired" in out
    assert "4 problems" in out
    path.write_text('[bookie]\nusers_file = "/no/users"\nauthentication = "sasl"\n')
    assert f"{path}:1: " not in run("config", "check", path, status=1)
    assert "/no/users cannot be read" in run("config", "check", "--config", path, status=1)
    assert "cannot be read" in run("config", "check", tmp_path / "missing.toml", status=2)
    path.write_text('[metadata]\nuri = "zk://me:p@ss@z:1/l"\n[gateway]\nusers_file = "/no/users"\n')
    out = run("config", "check", path, status=1)
    assert f"{path}:4: users_file: /no/users cannot be read" in out
    assert f"{path}:2: uri: 'zk://***@z:1/l' names no ZooKeeper server in '***@z:1'" in out
    assert "ss@" not in run("config", "show", "metadata", "--config", path)


def test_check_accepts_files_of_apache(tmp_path: pathlib.Path, run: Any) -> None:
    path = tmp_path / "bk_server.conf"
    path.write_text("# Apache\n\nbookiePort=4000\nadvertisedAddress=b1.example\njournalDirectoris=/j\n")
    out = run("config", "check", path, status=1)
    assert f"{path}:5: journalDirectoris: is not a known key of Apache's, so it has no effect; did you mean" in out
    path.write_text("bookiePort=much\nadvertisedAddress=b1.example\ngcWaitTime=soon\n")
    out = run("config", "check", path, status=1)
    assert (f"{path}:1: " in out, f"{path}:3: " in out, "2 problems" in out) == (True, True, True)
    path.write_text("bookiePort=4000\nadvertisedAddress=b1.example\nbookiePort=70000\n")
    assert f"{path}:1: " in run("config", "check", path, status=1)
    path.write_text("bookiePort=4000\nadvertisedAddress=b1.example\njournalDirectories=/j\n")
    assert "is right (a bookie's file of Apache)" in run("config", "check", path)
    client = tmp_path / "bk_client.conf"
    client.write_text("addEntryTimeoutSec=7\nreadEntryTimeoutSec=7\n")
    assert "is right (a client's file of Apache)" in run("config", "check", client)
