"""An etcd server in a process of its own, which tests kill, pause and start again on the same port and data.

`etcd` is looked for where BOOKIES_ETCD says, then in PATH. Debian has it in the package etcd-server; to have it without
installing it: `apt-get download etcd-server && dpkg -x etcd-server_*.deb DIR`, then BOOKIES_ETCD=DIR/usr/bin/etcd.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

START_S = 60.0
# Leases are at least 1.5 elections long, in whole seconds.
_TIMES = ["--heartbeat-interval", "50", "--election-timeout", "500"]


def program() -> str:
    """Skips the test where there is no etcd."""
    found = os.environ.get("BOOKIES_ETCD") or shutil.which("etcd")
    if not found:
        pytest.skip("no etcd: BOOKIES_ETCD does not name one, and there is none in PATH (Debian: etcd-server)")
    return found


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


class EtcdServer:
    """`address`: host:port. `options`: more of its options; `scheme`: https where these make it so."""

    def __init__(self, folder: pathlib.Path, *options: str, scheme: str = "http", name: str = "one") -> None:
        self._folder = folder
        self._options = options
        self._name = name
        self.scheme = scheme
        port, self.peer_port = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        self.peers = f"{name}=http://127.0.0.1:{self.peer_port}"  # all of them
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers connections."""
        self.begin()
        self.wait()

    def begin(self) -> None:
        """Without waiting, as several of one cluster have to be started."""
        client, peer = f"{self.scheme}://{self.address}", f"http://127.0.0.1:{self.peer_port}"
        command = [program(), "--name", self._name, "--data-dir", str(self._folder / f"{self._name}.etcd"), *_TIMES]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", self.peers]
        command += ["--unsafe-no-fsync", "--logger", "zap", "--log-level", "warn", *self._options]
        with open(self._folder / f"{self._name}.log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_S
        host, _, port = self.address.partition(":")
        while True:
            assert self._process.poll() is None, (self._folder / f"{self._name}.log").read_text()[-4000:]
            assert time.monotonic() < deadline, "etcd does not answer"
            try:
                socket.create_connection((host, int(port)), timeout=5).close()
            except OSError:
                time.sleep(0.05)
                continue
            return

    def _send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def pause(self) -> None:
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        self._send(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:  # otherwise it was never started
            self._send(signal.SIGKILL)
            self._process.wait()


@contextlib.contextmanager
def etcd_server(folder: pathlib.Path, *options: str, scheme: str = "http") -> Iterator[EtcdServer]:
    """A server that answers; killed at the end."""
    server = EtcdServer(folder, *options, scheme=scheme)
    try:
        server.start()
        yield server
    finally:
        server.kill()
