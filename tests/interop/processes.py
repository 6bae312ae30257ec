"""What the interop suite runs: clients and bookies of both kinds, each a process of its own, beside one ZooKeeper."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from typing import Any

from tests.apache.apache import STORAGES, Connection, jars, java_command

from bookies.errors import Status

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
PATIENCE_S = 120.0
LEASE_MS = 4000
# Small files and frequent collections, as far as the two agree; Apache's refuses small disks otherwise.
JAVA_SETTINGS = {
    "advertisedAddress": "127.0.0.1",
    "allowLoopback": "true",
    "journalDirectories": "journal",
    "ledgerDirectories": "ledgers",
    "zkTimeout": LEASE_MS,
    "journalPreAllocSizeMB": 1,
    "diskUsageThreshold": 0.999,
    "diskUsageWarnThreshold": 0.999,
    "minUsableSizeForIndexFileCreation": 1 << 20,
    "minUsableSizeForEntryLogCreation": 1 << 20,
    "autoRecoveryDaemonEnabled": "false",
    "httpServerEnabled": "false",
    "gcWaitTime": 1000,
    "flushInterval": 1000,
    "numAddWorkerThreads": 1,
    "numReadWorkerThreads": 2,
    "serverNumIOThreads": 1,
    # For the conversion: small parts of RocksDB.
    "dbStorage_writeCacheMaxSizeMb": 16,
    "dbStorage_readAheadCacheMaxSizeMb": 16,
    "dbStorage_rocksDB_blockCacheSize": 8 << 20,
}
OUR_SETTINGS = {"gc_interval_ms": 1000, "gc_quarantine_ms": 0, "gc_share_max": 100, "checkpoint_interval_ms": 1000}
OUR_SETTINGS |= {"minor_compaction_interval_ms": 0, "major_compaction_interval_ms": 0}


class Failed(Exception):
    """An operation of a client; `name`: of the exception that it raised."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(condition: Any, what: str, timeout: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout:.0f} s: {what}")
        time.sleep(0.05)


def compiled(version: str, folder: pathlib.Path) -> pathlib.Path:
    """The Java driver for one version, compiled into a folder."""
    target = folder / f"classes-{version}"
    if not target.exists():
        command = ["javac", "-nowarn", "-d", str(target), "-cp", f"{jars(version)}/*", str(HERE / "Driver.java")]
        subprocess.run(command, check=True)
    return target


class Client:
    """A process that speaks the drivers' lines. Any number of commands may be under way."""

    def __init__(self, command: list[str], log: pathlib.Path) -> None:
        environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        with open(log, "ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
            )
        self._answers: dict[int, Future[dict[str, Any]]] = {}
        self._count = 0
        self._guard = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("{"):
                continue
            answer = json.loads(line)
            future = self._answers.pop(answer["id"])
            if answer["ok"]:
                future.set_result(answer)
            else:
                future.set_exception(Failed(answer["error"], answer["message"]))
        with self._guard:
            for future in self._answers.values():
                future.set_exception(Failed("Ended", "the client's process has ended"))
            self._answers.clear()

    def start(self, do: str, **arguments: Any) -> Future[dict[str, Any]]:
        assert self._process.stdin is not None
        future: Future[dict[str, Any]] = Future()
        with self._guard:
            self._count += 1
            self._answers[self._count] = future
            self._process.stdin.write(json.dumps({"id": self._count, "do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        return future

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Raises `Failed`."""
        return self.start(do, **arguments).result(PATIENCE_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def java_client(version: str, folder: pathlib.Path) -> Client:
    command = java_command(version)
    command[-1] = f"{compiled(version, folder)}:{command[-1]}"
    return Client([*command, "Driver"], folder / f"client-java-{version}.log")


def our_client(folder: pathlib.Path) -> Client:
    return Client([sys.executable, str(HERE / "driver.py")], folder / "client-ours.log")


class Bookie:
    """A bookie of either kind, "java" or "ours", on one folder, with one id and one port for all its life."""

    def __init__(
        self,
        kind: str,
        name: str,
        folder: pathlib.Path,
        uri: str,
        *,
        version: str = "",
        storage: str = "sorted",
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.kind, self.name, self.folder = kind, name, folder
        self._uri, self._version, self.storage, self._settings = uri, version, storage, settings or {}
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def launch(self) -> None:
        """Start it; `wait_ready` returns when it serves."""
        command = self._java() if self.kind == "java" else self._ours()
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "BK_PARENT_PIPE": "1"}
        with open(self.folder / "bookie.log", "ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment
            )

    def _java(self) -> list[str]:
        settings = JAVA_SETTINGS | {
            "metadataServiceUri": self._uri,
            "bookieId": self.name,
            "bookiePort": self.port,
            "ledgerStorageClass": "org.apache.bookkeeper.bookie." + STORAGES[self.storage],
            **self._settings,
        }
        conf = self.folder / "bookie.conf"
        conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return [*java_command(self._version), "org.apache.bookkeeper.server.Main", "--conf", str(conf)]

    def _ours(self) -> list[str]:
        """On the configuration that Apache's ran with, if it did."""
        if (self.folder / "bookie.conf").exists():
            return [sys.executable, "-m", "bookies", "bookie", "run", "--conf", "bookie.conf"]
        command = [sys.executable, "-m", "bookies", "bookie", "run", "--metadata", self._uri, "--bookie-id", self.name]
        command += ["--port", str(self.port), "--journal-dir", "journal", "--ledger-dir", "ledgers"]
        command += ["--lease-ms", str(LEASE_MS)]
        return command + [word for each in OUR_SETTINGS.items() for word in ("--set", f"{each[0]}={each[1]}")]

    def wait_ready(self) -> None:
        wait_until(self._is_ready, f"bookie {self.name} serves; see {self.folder}/bookie.log")

    def _is_ready(self) -> bool:
        """A v3 GET_BOOKIE_INFO is answered as soon as it serves; while it starts it closes connections."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise Failed("Ended", f"bookie {self.name}: {(self.folder / 'bookie.log').read_text()[-3000:]}")
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(bytes.fromhex("0000000b0a06080310081801ca0600"))
                return bool(connection.recv(1))
        except OSError:
            return False

    def start(self) -> None:
        self.launch()
        self.wait_ready()

    def read(self, ledger: int, entry: int) -> Status:
        """What it answers to a request for an entry."""
        connection = Connection(self.port)
        try:
            return connection.read(ledger, entry)[0]
        finally:
            connection.close()

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """In an orderly way."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        self._process.wait(PATIENCE_S)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None
