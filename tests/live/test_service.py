"""A bookie as a service: its file of settings, and its reports to the service manager."""

from __future__ import annotations

import pathlib
import signal
import socket
import uuid

import pytest
from tests.live.command import PATIENCE_S, Family, bk, finish, started

pytestmark = pytest.mark.live


def test_a_bookie_runs_by_its_file_and_reports_to_systemd(
    tmp_path: pathlib.Path, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "bk.toml"
    (tmp_path / "metadata").mkdir()
    config.write_text(
        f'[metadata]\nuri = "file:{tmp_path}/metadata"\n[bookie]\nbookie_id = "b1"\nport = 0\n'
        f'journal_directories = ["{tmp_path}/journal"]\nledger_directories = ["{tmp_path}/ledgers"]\n'
        'journal_preallocate_size = "1m"\nindex_cache_size = "1m"\n'
    )
    name = f"@bookies-{uuid.uuid4().hex}"
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    monkeypatch.setenv("WATCHDOG_USEC", "3000000")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0"))
        manager.settimeout(PATIENCE_S)

        def heard(beginning: str) -> list[str]:
            """Return the reports up to one that begins like this."""
            reports = [manager.recv(1000).decode()]
            while not reports[-1].startswith(beginning):
                reports.append(manager.recv(1000).decode())
            return reports

        with started("bookie", "run", "--config", config, cwd=tmp_path, family=family) as process:
            start = heard("READY=1")
            assert {"EXTEND_TIMEOUT_USEC=120000000", "WATCHDOG=1"} <= set(start)
            assert start[-1].startswith("READY=1\nSTATUS=bookie b1 serves on 127.0.0.1:")
            shown = bk("config", "show", "bookie", "--config", config, "--changed", "--json").json()
            running = bk("bookie", "settings", "--ledger-dir", tmp_path / "ledgers", "--json").json()
            places = {row["name"]: (row["value"], row["where"]) for row in shown["settings"]["bookie"]}
            assert places["index_cache_size"] == (1 << 20, f"{config}:9")
            assert places == {
                row["name"]: (row["value"], row["where"]) for row in running["b1"] if row["source"] == "file"
            }
            assert "WATCHDOG=1" in heard("WATCHDOG=1")
            process.send_signal(signal.SIGTERM)
            assert "STOPPING=1\nSTATUS=stopping" in heard("STOPPING=1")
            assert finish(process).status == 0
