"""Settings of a process: the file that BK_CONFIG names."""

from __future__ import annotations

import pathlib

import pytest

from bookies.config import BookieConfig, ClientConfig, SiteConfig
from bookies.configuration import configured, file_layer, settings_of
from bookies.errors import ConfigError
from bookies.settings import Given


def test_the_file_is_read_for_every_kind_of_settings(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bk.toml"
    path.write_text('[bookie]\nport = 4000\n[client]\nwire = "v3"\n[recovery]\nhttp_port = 7\n')
    monkeypatch.setenv("BK_CONFIG", str(path))
    assert configured(BookieConfig).port == 4000
    assert configured(ClientConfig).wire == "v3"
    assert configured(SiteConfig).http_port == 7
    assert configured(BookieConfig, port=5).port == 5
    monkeypatch.setenv("BK_PORT", "6")
    assert settings_of(BookieConfig).origins == {"port": Given("6", "environment", "BK_PORT")}
    assert settings_of(BookieConfig, file={}).config.port == 6
    monkeypatch.delenv("BK_CONFIG")
    assert file_layer(BookieConfig) == {}


def test_a_mistake_anywhere_refuses_the_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bk.toml"
    path.write_text("[bookie]\nprot = 1\n[client]\nwir = 2\n")
    monkeypatch.setenv("BK_CONFIG", str(path))
    with pytest.raises(ConfigError, match=r"bk\.toml:2: .*did you mean port\? \(and 1 more: bk config check"):
        configured(ClientConfig)
    monkeypatch.setenv("BK_CONFIG", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="missing cannot be read: No such file"):
        configured(ClientConfig)
