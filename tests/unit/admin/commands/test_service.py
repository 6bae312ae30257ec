"""`bk service`: the text of units, what is refused, and what systemd-analyze says."""

from __future__ import annotations

import configparser
import json
import os
import pathlib
import pwd
import shutil
import sys
from typing import Any

import pytest

from bookies.admin import cli
from bookies.admin.commands.service import KINDS, Unit, quoted, unit_text


def parsed(text: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return parser


@pytest.mark.parametrize("kind", KINDS)
def test_a_unit_is_hardened_and_notifies(kind: str) -> None:
    unit = Unit(kind, ["/opt/bk/bin/bk", *KINDS[kind][0].split(), "--config", "/etc/bk.toml"], "bk", ["/srv/bk"], [])
    service = parsed(unit_text(unit))["Service"]
    assert service["Type"] == "notify"
    assert service["ExecStart"] == f"/opt/bk/bin/bk {KINDS[kind][0]} --config /etc/bk.toml"
    assert service["ReadWritePaths"] == "/srv/bk"
    assert (service["ProtectSystem"], service["ProtectHome"], service["PrivateTmp"]) == ("strict", "true", "true")
    assert (service["Restart"], service["TimeoutStopSec"], service["LimitNOFILE"]) == ("on-failure", "120", "65536")
    assert service["RestartPreventExitStatus"] == ("1" if kind == "bookie" else "2")
    assert parsed(unit_text(unit))["Unit"]["StartLimitIntervalSec"] == "0"
    assert service["CapabilityBoundingSet"] == ""
    after = parsed(unit_text(unit))["Unit"]["After"].split()
    assert ("bk-bookie.service" in after) == (kind != "bookie")


def test_paths_in_homes_and_low_ports_are_allowed() -> None:
    unit = Unit("bookie", ["/home/me/bk"], "me", ["/tmp/a b", "/srv/100%"], ["/home/me/bk"], low_port=True)
    text = unit_text(unit)
    service = parsed(text)["Service"]
    assert (service["ProtectHome"], service["PrivateTmp"]) == ("read-only", "false")
    assert service["AmbientCapabilities"] == "CAP_NET_BIND_SERVICE"
    assert 'ReadWritePaths="/tmp/a b"\n' in text
    assert "ReadWritePaths=/srv/100%%\n" in text
    assert [quoted(word) for word in ("", 'a"b\\', "a;")] == ['""', '"a\\"b\\\\"', '"a;"']


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> Any:
    def run(*words: object, status: int = 0) -> str:
        assert cli.main(["service", *(str(word) for word in words), "--prefix", str(tmp_path)]) == status
        captured = capsys.readouterr()
        return captured.out + captured.err

    return run


def test_install_and_check(tmp_path: pathlib.Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ledgers").mkdir()
    config = tmp_path / "bk.toml"
    config.write_text(
        f'[metadata]\nuri = "file:{tmp_path}/metadata"\n'
        f'[bookie]\njournal_directories = ["{tmp_path}/journal"]\nledger_directories = ["{tmp_path}/ledgers"]\n'
        f'http_jobs_directory = "{tmp_path}/jobs"\n'
    )
    install = ("install", "--kind", "bookie", "--config", config, "--user", "no-such-user")
    path = tmp_path / "etc/systemd/system/bk-bookie.service"
    unit = run(*install, "--dry-run")
    assert all(f"ReadWritePaths={tmp_path}/{name}\n" in unit for name in ("journal", "jobs"))
    assert not path.exists()
    out = run(*install)
    assert "useradd --system" in out
    assert f"--mode 750 {tmp_path}/journal" in out
    assert f"--mode 750 {tmp_path}/ledgers" not in out
    service = parsed(path.read_text())["Service"]
    assert service["ExecStart"].endswith(f" bookie run --config {config}")
    run(*install)  # again
    monkeypatch.setattr(shutil, "which", lambda name: None)
    rows = json.loads(run("check", "--json", status=1))
    assert [row["level"] for row in rows] == ["bad", "bad", "bad", "bad", "warn"]
    assert f"{tmp_path}/journal does not exist" in rows[0]["what"]
    assert "systemd-analyze is not installed" in rows[-1]["what"]
    (tmp_path / "journal").mkdir()
    (tmp_path / "metadata").mkdir()
    (tmp_path / "jobs").mkdir()
    assert "there is no user no-such-user" in run("check", status=1)
    monkeypatch.setattr(pwd, "getpwnam", lambda name: pwd.struct_passwd(("x", "x", os.getuid() + 1, 0, "", "", "")))
    assert f"{tmp_path}/journal belongs to another user" in run("check", status=1)
    monkeypatch.setattr(pwd, "getpwnam", lambda name: pwd.struct_passwd(("x", "x", os.getuid(), 0, "", "", "")))
    assert "was not verified" in run("check")
    path.write_text("[Unit]\n")
    assert "was not written by this command" in run(*install, status=2)


def test_what_is_refused(tmp_path: pathlib.Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "bk.toml"
    install = ("install", "--config", config, "--dry-run", "--kind")
    config.write_text("[bookie]\n")
    assert "name the metadata store" in run(*install, "bookie", status=2)
    config.write_text('[metadata]\nuri = "zk://z:1/l"\n')
    assert "bk-data/journal is a relative path" in run(*install, "bookie", status=2)
    assert "a gateway needs users" in run(*install, "gateway", status=2)
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(sys, "executable", "/opt/bookies/bin/python")
    config.write_text('[metadata]\nuri = "zk://z:1/l"\n[gateway]\nusers_file = "/home/me/users"\n')
    assert "ProtectHome=read-only" in run(*install, "gateway")
    assert "ProtectHome=true" in run(*install, "recovery")
    assert "Type=notify" in run(*install, "recovery")
    config.write_text('[metadata]\nuri = "zk://z:1/l?options=/home/me/zk.toml"\n')
    assert "ProtectHome=read-only" in run(*install, "recovery")
    config.write_text('[metadata]\nuri = "zk://z:1/l"\n[client]\nsasl_file = "/home/me/sasl"\n')
    assert "ProtectHome=read-only" in run(*install, "recovery")
    assert "there is no unit of bookies" in run("check", status=2)
    monkeypatch.setenv("BK_SASL_FILE", "/home/me/sasl")  # as in the file
    monkeypatch.setenv("BK_JOURNAL_DIRECTORIES", "/j")
    monkeypatch.setenv("BK_METADATA", "zk://z:2/l")
    out = run(*install, "bookie", status=2)
    assert "no BK_JOURNAL_DIRECTORIES, BK_METADATA: write journal_directories of [bookie], uri of [metadata]" in out


def test_a_directory_with_a_blank_and_one_that_cannot_be_written(tmp_path: pathlib.Path, run: Any) -> None:
    config = tmp_path / "bk.toml"
    config.write_text(
        f'[metadata]\nuri = "zk://z:1/l"\n[bookie]\n'
        f'journal_directories = ["{tmp_path}/a b"]\nledger_directories = ["{tmp_path}/l"]\n'
    )
    install = ("install", "--kind", "bookie", "--config", config)
    assert f"--mode 750 '{tmp_path}/a b'" in run(*install)
    (tmp_path / "etc/systemd/system/bk-bookie.service").unlink()
    (tmp_path / "etc/systemd/system").rmdir()
    (tmp_path / "etc/systemd/system").write_text("")
    assert "bk-bookie.service cannot be written: " in run(*install, status=2)


def test_findings_of_systemd_analyze(tmp_path: pathlib.Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "bk.toml"
    config.write_text('[metadata]\nuri = "zk://z:1/l"\n')
    run("install", "--kind", "recovery", "--config", config)
    program = tmp_path / "systemd-analyze"
    monkeypatch.setattr(shutil, "which", lambda name: str(program))

    def answers(verify: str, security: str, status: int = 0) -> list[dict[str, str]]:
        script = f"#!/bin/sh\nif [ $1 = verify ]; then echo '{verify}'; exit {status}; fi\necho '{security}'\n"
        program.write_text(script)
        program.chmod(0o755)
        rows: list[dict[str, str]] = json.loads(run("check", "--json", status=int("bk-recovery" in verify and status)))
        return rows

    rated = "x A= text 0.2\n- C= text\nx B= text 1.1\n\n-> Overall exposure level for bk-recovery.service: 1.3 OK"
    rows = answers("", rated)
    assert [row["level"] for row in rows] == ["ok", "ok"]
    assert "exposure 1.3 of 10; the largest parts: B=, A=" in rows[1]["what"]
    rows = answers("bk-recovery.service:7: Special user", rated)
    assert [row["level"] for row in rows] == ["warn", "ok"]
    rows = answers("bk-recovery.service:7: Unknown key", "no rating", status=1)
    assert [row["level"] for row in rows] == ["bad", "warn"]
    assert "bk-recovery.service:7: Unknown key" in rows[0]["what"]
    rows = answers("", rated.replace("1.3", "9.1"), status=1)
    assert [row["level"] for row in rows] == ["warn", "warn"]
