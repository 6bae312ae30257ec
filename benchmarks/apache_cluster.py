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
    """Fetch the jars and compile the driver, once."""
    lib, classes = cache() / "lib", cache() / "classes"
    if not (lib / "complete").exists():
        lib.mkdir(parents=True, exist_ok=True)
        pom = cache() / "pom.xml"
        pom.write_bytes((HERE / "pom.xml").read_bytes())
        copy = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={lib}"]
        subprocess.run(copy, check=True)
        (lib / "complete").touch()
    source, compiled = HERE / "Drive.java", classes / "Drive.class"
    if not compiled.exists() or compiled.stat().st_mtime < source.stat().st_mtime:
        classes.mkdir(parents=True, exist_ok=True)
        subprocess.run(["javac", "-nowarn", "-cp", f"{lib}/*", "-d", str(classes), str(source)], check=True)


def java(main: str, *words: str, heap: tuple[str, str] = ("512m", "1g")) -> list[str]:
    path = f"{cache() / 'classes'}:{cache() / 'lib'}/*"
    log = f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"
    return ["java", log, f"-Xms{heap[0]}", f"-Xmx{heap[1]}", *JVM, *OPEN, "-cp", path, main, *words]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ApacheCluster:
    """A ZooKeeper and `bookies` bookies under `directory`; a context manager that leaves no process behind."""

    def __init__(self, directory: str, bookies: int = 3) -> None:
        self.directory = pathlib.Path(directory)
        self._count = bookies
        self._processes: list[subprocess.Popen[bytes]] = []
        self.metadata_uri = ""

    def __enter__(self) -> ApacheCluster:
        prepare()
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def bookie_pids(self) -> list[int]:
        return [process.pid for process in self._processes[1:]]

    def _start(self) -> None:
        port = free_port()
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = self.directory / "zoo.cfg"
        settings.write_text(
            f"tickTime=2000\ndataDir={self.directory / 'zookeeper'}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
            "maxClientCnxns=0\nadmin.enableServer=false\n"
        )
        server = "org.apache.zookeeper.server.ZooKeeperServerMain"
        self._spawn("zookeeper", java(server, str(settings), heap=("128m", "512m")))
        self._wait(port)
        self.metadata_uri = f"zk+hierarchical://127.0.0.1:{port}/ledgers"
        configurations = [self._configure(index) for index in range(self._count)]
        shell = java("org.apache.bookkeeper.bookie.BookieShell", "-conf", configurations[0][0], "initnewcluster")
        with open(self.directory / "init.log", "wb") as log:
            subprocess.run(shell, check=True, stdout=log, stderr=log)
        for index, (path, _) in enumerate(configurations):
            self._spawn(f"bookie-{index}", java("org.apache.bookkeeper.server.Main", "--conf", path))
        for _, bookie_port in configurations:
            self._wait(bookie_port)

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
        }
        path = home / "bookie.conf"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return str(path), port

    def _spawn(self, name: str, command: list[str]) -> None:
        with open(self.directory / f"{name}.log", "wb") as log:
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
            )

    def _wait(self, port: int) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if any(process.poll() is not None for process in self._processes):
                raise RuntimeError(f"a server of Apache's ended at once; its log is in {self.directory}")
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"nothing listens on port {port} after a minute; the logs are in {self.directory}")

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.send_signal(signal.SIGKILL)
            process.wait()
        self._processes.clear()
