"""Contexts: which cluster a command uses, and files that only their owner may read."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys

import pytest

from bookies.admin import cli
from bookies.admin.shared import UsageError, contexts
from bookies.admin.shared.common import active_context, metadata_uri

PROD, TEST = "zk://zk1:2181/ledgers", "etcd://e1:2379/ledgers"


@pytest.fixture
def home(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    for name in ("BK_METADATA", "BK_CONTEXT", "BK_SERVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bk(*words: str) -> int:
    return cli.main(words)


def add(name: str, uri: str) -> None:
    assert bk("context", "add", name, "--metadata", uri) == 0


def test_the_first_is_in_use_and_others_after_use(home: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = argparse.Namespace(metadata=None)
    with pytest.raises(UsageError, match="bk context use"):
        metadata_uri(nothing)
    add("prod", PROD)
    add("test", TEST)
    assert metadata_uri(nothing) == PROD
    assert bk("context", "use", "test") == 0
    assert metadata_uri(nothing) == TEST
    capsys.readouterr()
    assert bk("context", "list") == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:]] == [["prod", PROD], ["*", "test", TEST]]
    assert bk("context", "use", "--none") == 0
    assert active_context(nothing) is None
    assert bk("context", "remove", "prod") == 0
    assert bk("context", "list", "--json") == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out.splitlines()[-1])] == ["test"]


def test_precedence(home: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    add("prod", PROD)
    add("test", TEST)
    (home / "bk-data").mkdir()
    nothing = argparse.Namespace(metadata=None)
    assert metadata_uri(nothing) == f"file:{home}/bk-data/metadata"  # no other cluster by accident
    capsys.readouterr()
    assert bk("context", "use", "prod") == 0
    assert "has precedence in this directory; BK_CONTEXT=prod overrules it" in capsys.readouterr().err
    monkeypatch.setenv("BK_CONTEXT", "test")
    assert metadata_uri(nothing) == TEST
    assert active_context(nothing) == ("test", contexts.Context(TEST))
    monkeypatch.setenv("BK_METADATA", "file:/x")
    assert (metadata_uri(nothing), active_context(nothing)) == ("file:/x", None)
    assert metadata_uri(argparse.Namespace(metadata=PROD)) == PROD
    monkeypatch.delenv("BK_METADATA")
    monkeypatch.setenv("BK_CONTEXT", "nowhere")
    with pytest.raises(UsageError, match=r"there is no context 'nowhere'.*there are: prod, test"):
        metadata_uri(nothing)


def test_a_token_is_in_a_file_of_its_own_that_others_cannot_read(
    home: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("context", "add", "far", "--server", "https://b1:8080", "--token")
    done = subprocess.run(
        [sys.executable, "-m", "bookies", *words], input="bk_secret\n", text=True, timeout=60, check=True,
        capture_output=True,
    )  # fmt: skip
    assert "bk_secret" not in done.stdout + done.stderr
    folder = home / "config" / "bookies"
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in folder.iterdir()} == {
        "contexts.json": "0o600", "far.token": "0o600",
    }  # fmt: skip
    assert "bk_secret" not in (folder / "contexts.json").read_text()
    os.chmod(folder / "far.token", 0o644)
    assert bk("bookie", "list") == 2
    assert f"chmod 600 {folder / 'far.token'}" in capsys.readouterr().err
    assert bk("ledger", "read", "1") == 2
    assert "context far is the HTTP server https://b1:8080" in capsys.readouterr().err
    assert bk("context", "remove", "far") == 0
    assert [path.name for path in folder.iterdir()] == ["contexts.json"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("add", "-x", "--metadata", PROD), "no name of a context"),
        (("add", "x", "--metadata", "nonsense"), "nonsense"),
        (("add", "x", "--server", "b1:8080"), "expected https://"),
        (("add", "x", "--metadata", PROD, "--authority", "a"), "are for --server"),
        (("add", "x", "--server", "http://h:1", "--token-file", "missing"), "cannot be read"),
        (("use", "x"), "there is no context 'x'"),
        (("use",), "name one context"),
        (("remove", "x"), "there is no context 'x'"),
    ],
)
def test_what_is_refused(
    home: pathlib.Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], problem: str
) -> None:
    try:
        status = bk("context", *words)
    except SystemExit as end:  # argparse takes -x for an option
        status, problem = int(end.code or 0), "usage"
    assert status == 2
    assert problem in capsys.readouterr().err


def test_a_damaged_file_is_named(home: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    add("prod", PROD)
    path = home / "config" / "bookies" / "contexts.json"
    path.write_text("{}")
    assert bk("context", "list") == 2
    assert f"{path} cannot be read" in capsys.readouterr().err
