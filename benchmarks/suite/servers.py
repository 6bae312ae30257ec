"""Clusters to measure: ZooKeeper and bookies of Apache's or ours, on the loopback interface.

Apache's settings are its defaults, except: one journal kept behind the mark (disk space), and no limit on queued adds
per thread, without which long runs die of "not enough bookies" (the slowest of three replicas overflows it). Ours are
its defaults. What a cluster has stored is thrown away with it, so its processes are killed.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.suite import processes
from benchmarks.suite.java import java

from bookies.model import MASTER_KEY_SIZE
from bookies.wire import v2

START_S = 90.0
POLL_S = 0.005
PROBES = itertools.count(1 << 40)  # ledger ids that nobody else has

# What Apache's bookies run with, by the name that the table has for it.
SETTINGS: dict[str, dict[str, str]] = {
    "default": {},
    "low latency": {"journalFlushWhenQueueEmpty": "true"},
    "RocksDB": {"ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage"},
}


@dataclass
class Bookie:
    """One bookie: how it is started, and its process. `ready_file`: written when it is registered, or None."""

    name: str
    port: int
    home: pathlib.Path
    command: list[str]
    environment: Mapping[str, str] | None = None
    ready_file: pathlib.Path | None = None
    process: subprocess.Popen[str] | None = field(default=None, repr=False)

    def start(self) -> None:
        if self.ready_file is not None:
            self.ready_file.unlink(missing_ok=True)
        self.process = processes.spawn(self.command, log=self.log, environment=self.environment, directory=self.home)

    def wait_writable(self) -> None:
        """Return as soon as it has answered an add, which it has synced then. Raises `RuntimeError`."""
        assert self.process is not None
        deadline = time.monotonic() + START_S
        while not (self.ready_file is None or self.ready_file.exists()) or not is_writable(self.port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                said = self.log.read_text(errors="replace")[-1500:]
                raise RuntimeError(f"bookie {self.name} does not serve; its last words: {said or '(none)'}")
            time.sleep(POLL_S)

    @property
    def log(self) -> pathlib.Path:
        return self.home / "bookie.log"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        if self.process is not None:
            processes.stop(self.process, signal.SIGKILL)
            self.process = None


def _how(status: int) -> str:
    """How a process ended."""
    if status >= 0:
        return f"exit status {status}"
    return f"signal {signal.Signals(-status).name}" if -status in set(signal.Signals) else f"signal {-status}"


def is_writable(port: int) -> bool:
    """Whether a bookie stores one entry of a ledger that nobody knows."""
    head = v2.add_head(bytes(MASTER_KEY_SIZE))
    frame = head + struct.pack(">qqqqI", next(PROBES), 0, -1, 5, 0) + b"probe"
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(struct.pack(">I", len(frame)) + frame)
            answer = b""
            while len(answer) < 12:
                received = connection.recv(64)
                if not received:
                    return False
                answer += received
    except OSError:
        return False
    return answer[8:12] == bytes(4)


class Cluster:
    """Bookies and their metadata store under `directory`, which goes with them. A subclass says which.

    `tick_ms`: of ZooKeeper, whose sessions time out after 2 to 20 of them; to be changed before the start.
    """

    tick_ms = 2000

    def __init__(self, directory: pathlib.Path, bookies: int = 3) -> None:
        self.directory = directory
        self.metadata_uri = ""
        self.bookies: list[Bookie] = []
        self._count = bookies
        self._store: subprocess.Popen[str] | None = None

    def prepare(self) -> None:
        """Everything but the bookies' processes."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self._start_store()
        self.bookies = [self._make(number) for number in range(self._count)]

    def start(self) -> None:
        """Prepare, start, and wait until every bookie serves; after a failure nothing runs."""
        try:
            self.prepare()
            for bookie in self.bookies:
                bookie.start()
            for bookie in self.bookies:
                bookie.wait_writable()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for bookie in self.bookies:
            bookie.kill()
        if self._store is not None:
            processes.stop(self._store, signal.SIGKILL)
            self._store = None
        shutil.rmtree(self.directory, ignore_errors=True)

    def is_whole(self) -> bool:
        """Whether all its processes run."""
        return all(bookie.process is not None for bookie in self.bookies) and not self.ended()

    def ended(self) -> str:
        """Which of the processes that were started and not killed has ended by itself, and its last words; or empty."""
        started = [(f"bookie {each.name}", each.process, each.log) for each in self.bookies]
        for name, process, log in [("ZooKeeper", self._store, self.directory / "zookeeper.log"), *started]:
            if process is not None and process.poll() is not None:
                said = log.read_text(errors="replace").strip()[-600:] if log.exists() else ""
                return f"{name} has ended, {_how(process.returncode)}; its last words: {said or '(none)'}"
        return ""

    def pids(self) -> list[int]:
        return [bookie.pid for bookie in self.bookies]

    def _start_store(self) -> None:
        """ZooKeeper."""
        port = processes.free_port()
        settings = self.directory / "zoo.cfg"
        settings.write_text(
            f"tickTime={self.tick_ms}\ndataDir={self.directory / 'zookeeper'}\nclientPort={port}\n"
            "clientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=mntr,cons\n"
        )
        server = "org.apache.zookeeper.server.ZooKeeperServerMain"
        command = java(server, str(settings), heap=("128m", "512m"))
        self._store = processes.spawn(command, log=self.directory / "zookeeper.log")
        deadline = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if self._store.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"ZooKeeper does not serve; its log is in {self.directory}") from None
                time.sleep(POLL_S)
        self.metadata_uri = f"zk+hierarchical://127.0.0.1:{port}/ledgers"

    def _make(self, number: int) -> Bookie:
        raise NotImplementedError


class ApacheCluster(Cluster):
    """`settings`: of its bookies, beside those that the head of this module names."""

    def __init__(self, directory: pathlib.Path, bookies: int = 3, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(directory, bookies)
        self._settings = settings or {}

    def prepare(self) -> None:
        super().prepare()
        shell = java("org.apache.bookkeeper.bookie.BookieShell", "-conf", self.bookies[0].command[-1], "initnewcluster")
        process = processes.spawn(shell, log=self.directory / "init.log")
        try:
            if process.wait(START_S):
                raise RuntimeError((self.directory / "init.log").read_text()[-1500:])
        finally:
            processes.stop(process, signal.SIGKILL)

    def _make(self, number: int) -> Bookie:
        home = self.directory / f"bookie-{number}"
        home.mkdir()
        port = processes.free_port()
        settings = {
            "bookiePort": port,
            "advertisedAddress": "127.0.0.1",
            "allowLoopback": "true",
            "metadataServiceUri": self.metadata_uri,
            "journalDirectories": home / "journal",
            "ledgerDirectories": home / "ledgers",
            "httpServerEnabled": "false",
            "journalMaxBackups": 1,
            "maxPendingAddRequestsPerThread": 10_000_000,
            **self._settings,
        }
        path = home / "bookie.conf"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        command = java("org.apache.bookkeeper.server.Main", "--conf", str(path))
        return Bookie(f"apache-{number}", port, home, command)


class OurCluster(Cluster):
    """`packages`: where the revision to run is, None: this one. `zookeeper`: its metadata store; else the embedded.

    `settings`: of its bookies.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        bookies: int = 3,
        *,
        packages: pathlib.Path | None = None,
        zookeeper: bool = True,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(directory, bookies)
        self._settings = settings or {}
        self._environment = environment_of(packages)
        self._uses_zookeeper = zookeeper

    def _start_store(self) -> None:
        if self._uses_zookeeper:
            super()._start_store()
        else:
            (self.directory / "metadata").mkdir()
            self.metadata_uri = f"file:{self.directory / 'metadata'}"

    def _make(self, number: int) -> Bookie:
        home = self.directory / f"bookie-{number}"
        home.mkdir()
        name, port, ready_file = f"ours-{number}", processes.free_port(), home / "ready"
        command = [sys.executable, "-P", "-m", "bookies.admin.cli", "bookie", "run", "--bookie-id", name]
        command += ["--port", str(port), "--journal-dir", "journal", "--ledger-dir", "ledgers"]
        command += ["--metadata", self.metadata_uri, "--ready-file", str(ready_file)]
        command += [f"--set={name}={value}" for name, value in self._settings.items()]
        return Bookie(name, port, home, command, self._environment, ready_file)


def environment_of(packages: pathlib.Path | None) -> dict[str, str]:
    """For processes of the revision whose package is in that directory; None: of this one."""
    environment = {name: value for name, value in os.environ.items() if name != "BK_PARENT_PIPE"}
    if packages is not None:
        environment["PYTHONPATH"] = str(packages)
    return environment
