"""Prometheus and Grafana beside a local cluster, if they are installed: `bk up --observe`.

    directory/observe/prometheus.yml, alerts.yml, targets.json    of Prometheus, which follows changes of the targets
    directory/observe/grafana/                                    data source, dashboards, and their provisioning
    directory/observe/running.json                                {"prometheus": {"pid": ..., "url": ...}, ...}

The files are written even without the programs, for servers elsewhere. Both programs listen on loopback.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from typing import Any

from bookies.admin.cluster.alerts import JOB, alerts_file
from bookies.admin.cluster.dashboards import DASHBOARDS, dashboard_file
from bookies.admin.cluster.local_cluster import LocalBookie, LocalCluster

FOLDER = "observe"
PORTS = {"prometheus": 9090, "grafana": 3000}  # or any free one, if these are in use
READY = {"prometheus": "/-/ready", "grafana": "/api/health"}
START_S = 30.0
STOP_S = 5.0
GRAFANA_HOME = "/usr/share/grafana"


class Monitoring:
    """The two programs of one local cluster. `faster`: divides every duration of the alerts, for a trial."""

    def __init__(self, cluster: LocalCluster, faster: int = 1) -> None:
        self.directory = pathlib.Path(cluster.directory, FOLDER)
        self._cluster = cluster
        self._faster = faster

    def start(self, others: Sequence[str] = ()) -> tuple[dict[str, str], list[str]]:
        """Write the files and start what is installed. Return the addresses by program, and messages.

        `others`: addresses of further processes to scrape.
        """
        urls: dict[str, str] = {}
        remarks: list[str] = []
        known = self._running()
        self.write_targets(others, remarks)
        urls["prometheus"] = _alive(known.get("prometheus")) or f"http://127.0.0.1:{_free_port(PORTS['prometheus'])}"
        self._write_files(urls["prometheus"])
        for name, command in (("prometheus", self._prometheus), ("grafana", self._grafana)):
            if url := _alive(known.get(name)):
                urls[name] = url
                continue
            url = urls.get(name) or f"http://127.0.0.1:{_free_port(PORTS[name])}"
            words, environment = command(url.rpartition(":")[2])
            if words is None:
                urls.pop(name, None)
                remarks.append(f"{name} is not installed; {self.directory} has its configuration")
                continue
            known[name] = {"pid": self._spawn(name, words, environment), "url": url}
            urls[name] = url
        self._save(known)
        for name in list(urls):
            if not _wait_ready(urls[name] + READY[name], known[name]["pid"]):
                remarks.append(f"{name} does not answer: read {self.directory / name}.log")
                del urls[name]
        return urls, remarks

    def stop(self) -> list[str]:
        """Stop both programs. Return the names of those that ran."""
        running = {name: facts["pid"] for name, facts in self._running().items() if _alive(facts)}
        for pid in running.values():
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for pid in running.values():
            while _is_running(pid) and time.monotonic() < deadline:
                time.sleep(0.05)
            if _is_running(pid):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            (self.directory / "running.json").unlink()
        return list(running)

    def write_targets(self, others: Sequence[str], remarks: list[str]) -> None:
        """Write the addresses to scrape; note in `remarks` the bookies that have none."""
        rows = []
        for bookie in self._cluster.bookies:
            address = http_address(bookie)
            if address is None:
                remarks.append(
                    f"{bookie.id} runs without an HTTP server: `bk down`, then `bk up --observe` restarts it"
                )
                continue
            rows.append({"targets": [f"{address[0]}:{address[1]}"], "labels": {"instance": bookie.id}})
        rows += [{"targets": [address], "labels": {"instance": f"process at {address}"}} for address in others]
        self._write("targets.json", json.dumps(rows, indent=1))

    def _write_files(self, prometheus_url: str) -> None:
        self._write("alerts.yml", alerts_file(self._faster))
        self._write("prometheus.yml", _PROMETHEUS.format(interval=max(1, 15 // self._faster), job=JOB))
        self._write("grafana/provisioning/datasources/bookies.yml", _SOURCE.format(url=prometheus_url))
        folder = self.directory / "grafana" / "dashboards"
        self._write("grafana/provisioning/dashboards/bookies.yml", _PROVIDER.format(folder=json.dumps(str(folder))))
        for name in DASHBOARDS:
            self._write(f"grafana/dashboards/{name}.json", dashboard_file(name))

    def _write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(text)
        temporary.replace(path)

    # -- programs ------------------------------------------------------------------------------------------------
    def _prometheus(self, port: str) -> tuple[list[str] | None, dict[str, str]]:
        program = shutil.which("prometheus")
        return None if program is None else [
            program,
            f"--config.file={self.directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.directory / 'prometheus'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ], {}  # fmt: skip

    def _grafana(self, port: str) -> tuple[list[str] | None, dict[str, str]]:
        program = shutil.which("grafana-server") or shutil.which("grafana")
        if program is None:
            return None, {}
        own = self.directory / "grafana"
        environment = {
            "GF_PATHS_DATA": str(own / "data"),
            "GF_PATHS_LOGS": str(own / "logs"),
            "GF_PATHS_PROVISIONING": str(own / "provisioning"),
            "GF_SERVER_HTTP_ADDR": "127.0.0.1",
            "GF_SERVER_HTTP_PORT": port,
            "GF_AUTH_ANONYMOUS_ENABLED": "true",
            "GF_ANALYTICS_REPORTING_ENABLED": "false",
            "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        }
        words = [program] if program.endswith("-server") else [program, "server"]
        return [*words, f"--homepath={os.environ.get('GF_PATHS_HOME', GRAFANA_HOME)}"], environment

    def _spawn(self, name: str, words: list[str], environment: dict[str, str]) -> int:
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=os.environ | environment,
                start_new_session=True,
            )
        return process.pid

    def _running(self) -> dict[str, Any]:
        try:
            known: dict[str, Any] = json.loads((self.directory / "running.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return known

    def _save(self, known: dict[str, Any]) -> None:
        self._write("running.json", json.dumps(known, indent=1))


def http_address(bookie: LocalBookie) -> tuple[str, int] | None:
    """Return host and port of a running bookie's HTTP server; None: it has none."""
    try:
        host, port = json.loads(bookie.ready_file.read_bytes())["http"]
    except (OSError, ValueError, KeyError):
        return None
    return host, port


def _alive(facts: dict[str, Any] | None) -> str:
    """Return the address of a program that runs; empty: it does not. A process that reused its pid does not count."""
    if facts is None or not _is_running(facts["pid"]):
        return ""
    try:
        words = pathlib.Path(f"/proc/{facts['pid']}/cmdline").read_bytes()
    except OSError:
        return ""
    return str(facts["url"]) if b"prometheus" in words or b"grafana" in words else ""


def _is_running(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # if it is a child of this process
    return os.path.exists(f"/proc/{pid}")


def _free_port(wanted: int) -> int:
    """Return the port if it is free, else another one."""
    for port in (wanted, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            free: int = probe.getsockname()[1]
            return free
    return wanted


def _wait_ready(url: str, pid: int) -> bool:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and _is_running(pid):
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=1):
            return True
        time.sleep(0.1)
    return False


_PROMETHEUS = """global:
  scrape_interval: {interval}s
  evaluation_interval: {interval}s
rule_files: [alerts.yml]
scrape_configs:
  - job_name: {job}
    file_sd_configs:
      - files: [targets.json]
        refresh_interval: 5s
"""
_SOURCE = """apiVersion: 1
datasources:
  - {{name: bookies, type: prometheus, access: proxy, url: "{url}", isDefault: true}}
"""
_PROVIDER = """apiVersion: 1
providers:
  - {{name: bookies, folder: bookies, type: file, options: {{path: {folder}}}}}
"""
