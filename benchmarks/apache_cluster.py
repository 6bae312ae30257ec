"""ZooKeeper and bookies of Apache BookKeeper on the loopback interface, for side-by-side measurements and interop.

Needs Java 17 and Maven; the jars come with Maven and stay in `$BOOKIES_APACHE_CACHE` (default: in the user's cache
directory). Storage and settings are Apache's defaults, except: one journal kept behind the mark (disk space), and no
limit on queued adds per thread, without which long runs die of "not enough bookies" (the slowest of three replicas
overflows it).
"""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import time
from collections.abc import Mapping

HERE = pathlib.Path(__file__).parent / "apache"
JVM = (
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=10",
    "-XX:MaxDirectMemorySize=1g",
    "-Dio.netty.leakDetectionLevel=disabled",
)
OPEN = ("--add-opens", "java.base/java.nio=ALL-UNNAMED", "--add-opens", "java.base/java.util.zip=ALL-UNNAMED")


def cache() -> pathlib.Path:
    base = os.environ.get("BOOKIES_APACHE_CACHE")
    return pathlib.Path(base) if base else pathlib.Path.home() / ".cache" / "bookies" / "apache-4.17.3"


def prepare() -> None:
    """Fetch the jars and compile what is ours, once."""
    lib, classes = cache() / "lib", cache() / "classes"
    if not (lib / "complete").exists():
        lib.mkdir(parents=True, exist_ok=True)
        pom = cache() / "pom.xml"
        pom.write_bytes((HERE / "pom.xml").read_bytes())
        copy = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={lib}"]
        subprocess.run(copy, check=True)
        (lib / "complete").touch()
    sources = sorted(HERE.glob("*.java"))
    compiled = [classes / source.with_suffix(".class").name for source in sources]
    newest = max(source.stat().st_mtime for source in sources)
    if any(not each.exists() or each.stat().st_mtime < newest for each in compiled):
        classes.mkdir(parents=True, exist_ok=True)
        command = ["javac", "-nowarn", "-cp", f"{lib}/*", "-d", str(classes), *map(str, sources)]
        subprocess.run(command, check=True)


def java(main: str, *words: str, heap: tuple[str, str] = ("512m", "1g")) -> list[str]:
    path = f"{cache() / 'classes'}:{cache() / 'lib'}/*"
    log = f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"
    return ["java", log, f"-Xms{heap[0]}", f"-Xmx{heap[1]}", *JVM, *OPEN, "-cp", path, main, *words]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _Servers:
    """Processes of Java with their logs in one directory; a context manager that leaves none behind."""

    def __init__(self, directory: str) -> None:
        self.directory = pathlib.Path(directory)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _spawn(self, name: str, command: list[str]) -> None:
        with open(self.directory / f"{name}.log", "wb") as log:
            self._processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _wait(self, port: int) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if any(process.poll() is not None for process in self._processes.values()):
                raise RuntimeError(f"a server of Apache's ended at once; its log is in {self.directory}")
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"nothing listens on port {port} after a minute; the logs are in {self.directory}")

    def stop(self) -> None:
        for name in reversed(list(self._processes)):
            self._kill(name)

    def _kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()


class ZooKeeper(_Servers):
    """One server. `tick_ms`: a session's timeout is 2 to 20 of them."""

    def __init__(self, directory: str, *, tick_ms: int = 2000) -> None:
        super().__init__(directory)
        self._tick_ms = tick_ms
        self._port = free_port()
        self.metadata_uri = f"zk+hierarchical://127.0.0.1:{self._port}/ledgers"

    def __enter__(self) -> ZooKeeper:
        prepare()
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = self.directory / "zoo.cfg"
        settings.write_text(
            f"tickTime={self._tick_ms}\ndataDir={self.directory / 'zookeeper'}\nclientPort={self._port}\n"
            "clientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n"
            "4lw.commands.whitelist=mntr,cons\n"
        )
        server = "org.apache.zookeeper.server.ZooKeeperServerMain"
        try:
            self._spawn("zookeeper", java(server, str(settings), heap=("128m", "512m")))
            self._wait(self._port)
        except BaseException:
            self.stop()
            raise
        return self

    def ask(self, word: str) -> str:
        """What it answers to one of its words of four letters."""
        with socket.create_connection(("127.0.0.1", self._port), 10) as connection:
            connection.sendall(word.encode())
            return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()


class ApacheCluster(_Servers):
    """A ZooKeeper of its own and `bookies` bookies under `directory`. `settings`: more of each bookie's; {home} in a
    value is its directory.
    """

    def __init__(
        self,
        directory: str,
        bookies: int = 3,
        *,
        settings: Mapping[str, object] | None = None,
        zookeeper: ZooKeeper | None = None,
    ) -> None:
        super().__init__(directory)
        self._count = bookies
        self._settings = settings or {}
        self._zookeeper = zookeeper or ZooKeeper(directory)
        self._is_its_own = zookeeper is None
        self.metadata_uri = self._zookeeper.metadata_uri

    def __enter__(self) -> ApacheCluster:
        if self._is_its_own:
            self._zookeeper.__enter__()
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        super().stop()
        if self._is_its_own:
            self._zookeeper.stop()

    def bookie_pids(self) -> list[int]:
        return [process.pid for process in self._processes.values()]

    def kill(self, bookie_id: str) -> None:
        """SIGKILL."""
        self._kill(bookie_id)

    def _start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        configurations = [self._configure(index) for index in range(self._count)]
        shell = java("org.apache.bookkeeper.bookie.BookieShell", "-conf", configurations[0][0], "initnewcluster")
        with open(self.directory / "init.log", "wb") as log:
            subprocess.run(shell, check=True, stdout=log, stderr=log)
        for path, port in configurations:
            self._spawn(f"127.0.0.1:{port}", java("org.apache.bookkeeper.server.Main", "--conf", path))
        for _, port in configurations:
            self._wait(port)

    def _configure(self, index: int) -> tuple[str, int]:
        home = self.directory / f"bookie-{index}"
        home.mkdir(exist_ok=True)
        port = free_port()
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
            **{name: str(value).replace("{home}", str(home)) for name, value in self._settings.items()},
        }
        path = home / "bookie.conf"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return str(path), port
