"""A ZooKeeper server in a process of its own, which tests kill, pause and start again on the same port and data."""

from __future__ import annotations

import contextlib
import pathlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

from tests.apache.apache import START_S, jars

TICK_MS = 100  # session timeouts are at least twice as long
_JAVA = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no"]


class ZooKeeperServer:
    """`address`, `secure_address`: host:port. `settings`: more lines of zoo.cfg, in which PORT is the secure port."""

    def __init__(self, folder: pathlib.Path, settings: str = "") -> None:
        self.folder = folder
        with socket.socket() as probe, socket.socket() as other:
            probe.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            self._port, secure_port = probe.getsockname()[1], other.getsockname()[1]
        self.address, self.secure_address = f"127.0.0.1:{self._port}", f"127.0.0.1:{secure_port}"
        self._settings = settings.replace("PORT", str(secure_port))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        settings = self.folder / "zoo.cfg"
        settings.write_text(
            f"tickTime={TICK_MS}\ndataDir={self.folder}/data\nclientPort={self._port}\nclientPortAddress=127.0.0.1\n"
            "admin.enableServer=false\n4lw.commands.whitelist=srvr\nmaxClientCnxns=0\nmaxSessionTimeout=60000\n"
            + self._settings
        )
        log_settings = pathlib.Path(__file__).parent / "log4j2.properties"
        command = [*_JAVA, f"-Dlog4j2.configurationFile={log_settings}", "-cp", f"{jars()}/*"]
        command += ["org.apache.zookeeper.server.ZooKeeperServerMain", str(settings)]
        with open(self.folder / "zookeeper.log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "zookeeper.log").read_text()[-4000:]
            assert time.monotonic() < deadline, "ZooKeeper does not answer"
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=5) as connection:
                connection.sendall(b"srvr")
                return b"Mode:" in connection.recv(4096)
        except OSError:
            return False

    def _send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def pause(self) -> None:
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        self._send(signal.SIGCONT)

    def kill(self) -> None:
        self._send(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()


@contextlib.contextmanager
def zookeeper_server(folder: pathlib.Path, settings: str = "") -> Iterator[ZooKeeperServer]:
    """A server that answers; killed at the end."""
    server = ZooKeeperServer(folder, settings)
    server.start()
    try:
        yield server
    finally:
        server.kill()
