"""`bk token` with principals of Kerberos."""

from __future__ import annotations

import pathlib

import pytest

from bookies.admin.cli import main


def test_principals_are_credentials(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    users = ["--users", str(tmp_path / "users")]
    add = ["token", "add", "app", "--role", "writer"]
    assert main([*add, "--kerberos", "app@REALM, app/h1@REALM", *users]) == 0
    text = (tmp_path / "users").read_text()
    assert text.endswith("app writer kerberos:app@REALM\napp writer kerberos:app/h1@REALM\n")
    assert main(["token", "list", *users]) == 0
    assert "GSSAPI, GSSAPI" in capsys.readouterr().out
    for principals in ("app", "a@b@c", "a@R,"):
        assert main(["token", "add", "other", "--role", "none", "--kerberos", principals, *users]) == 2
        assert "is not a whole principal such as app@EXAMPLE.ORG" in capsys.readouterr().err
    assert main(["token", "add", "other", "--role", "none", "--kerberos", "app@REALM", *users]) == 2
    assert "have the same credential" in capsys.readouterr().err
    assert (tmp_path / "users").read_text() == text
