"""A metadata store with a cluster, for tests of commands."""

from __future__ import annotations

import pathlib

import pytest
from tests.unit.admin.commands.test_metadata import fill, on


@pytest.fixture
def store(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The store's directory, in the current directory; commands use it by default."""
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "store"
    directory.mkdir()
    on(directory, fill)
    monkeypatch.setenv("BK_METADATA", f"file:{directory}")
    return directory
