"""`bk bookie new-key`: the file is private, the new key is the first one, another file is left alone."""

from __future__ import annotations

import pathlib

import pytest

from bookies.admin import cli
from bookies.storage.sealing.sealed_format import label_of, parse_keys


def test_new_keys(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys"
    for count in (1, 2):
        assert cli.main(["bookie", "new-key", str(path)]) == 0
        keys = parse_keys(path.read_text())
        assert len(keys.by_id) == count
        assert keys.current is not None
        printed = capsys.readouterr()
        assert f"key {label_of(keys.current)} is the first one" in printed.out
        assert "keep a copy" in printed.err
    assert not path.stat().st_mode & 0o077


def test_another_file_is_left_alone(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other"
    path.write_text("my words\n")
    assert cli.main(["bookie", "new-key", str(path)]) != 0
    assert "Nothing was changed" in capsys.readouterr().err
    assert path.read_text() == "my words\n"
