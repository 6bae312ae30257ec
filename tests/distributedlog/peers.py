"""Java's DistributedLog and ours as processes with the same commands, beside one ZooKeeper and one bookie."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from tests.apache.apache import JAVA_OPTIONS, OPENED, VERSION, jars
from tests.apache.zookeeper import zookeeper_server
from tests.interop.processes import Bookie

from bookies.metadata.uri import connect
from bookies.runtime import aio

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
ANSWER_S = 120.0
KINDS = ("java", "ours")


class Refused(Exception):
    """A command failed; the text begins with the name of the exception."""


def java_command(folder: pathlib.Path) -> list[str]:
    """`java` with the driver, which is compiled into a folder once."""
    library, classes = jars(VERSION, "distributedlog-core", HERE / "pom.xml"), folder / "classes"
    if not classes.exists():
        command = ["javac", "-nowarn", "-d", str(classes), "-cp", f"{library}/*", str(HERE / "Dlog.java")]
        subprocess.run(command, check=True)
    opened = [word for name in OPENED for word in ("--add-opens", f"{name}=ALL-UNNAMED")]
    log = f"-Dlog4j2.configurationFile={HERE.parent / 'apache' / 'log4j2.properties'}"
    return [
        "java",
        *JAVA_OPTIONS,
        *opened,
        "-Dio.netty.tryReflectionSetAccessible=true",
        log,
        "-cp",
        f"{classes}:{library}/*",
        "Dlog",
    ]


class Peer:
    """One client process of a kind. `heard`: every line that is not an answer, in order."""

    def __init__(self, kind: str, uri: str, folder: pathlib.Path, name: str) -> None:
        self.kind, self.name = kind, name
        command = java_command(folder) if kind == "java" else [sys.executable, str(HERE / "peer.py")]
        environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        with open(folder / f"{name}.log", "ab") as errors:
            self._process = subprocess.Popen(
                [*command, uri, name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
        self.heard: list[str] = []
        self._news = threading.Condition()
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            text = line.strip()
            if text == "ok" or text.startswith("error "):
                self._answers.put(text)
                continue
            with self._news:
                self.heard.append(text)
                self._news.notify_all()
        self._answers.put("error Ended the process has ended")
        with self._news:
            self._news.notify_all()

    def begin(self, *words: object) -> None:
        """Send a command whose answer is not awaited."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def ask(self, *words: object) -> list[str]:
        """Carry out a command; return the lines that it printed. Raises `Refused`."""
        begin = len(self.heard)
        self.begin(*words)
        answer = self._answers.get(timeout=ANSWER_S)
        if answer != "ok":
            raise Refused(answer.removeprefix("error "))
        return self.heard[begin:]

    def wait_heard(self, count: int, word: str) -> None:
        """Wait for lines that begin with a word."""
        with self._news:
            done = self._news.wait_for(lambda: len(self.lines(word)) >= count or not self._reader.is_alive(), ANSWER_S)
        assert done, f"{self.name} printed {len(self.lines(word))} of {count} lines: {self.heard[-3:]}"
        assert len(self.lines(word)) >= count

    def lines(self, word: str) -> list[str]:
        return [line for line in self.heard if line.startswith(word + " ")]

    def kill(self) -> None:
        """SIGKILL: no lock is released, no segment completed."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


@dataclass
class Stage:
    """A bound namespace. `zookeeper`: host:port."""

    folder: pathlib.Path
    zookeeper: str
    uri: str
    peers: list[Peer]

    def peer(self, kind: str, log: str, *settings: str) -> Peer:
        """A new process that has opened a log."""
        peer = Peer(kind, self.uri, self.folder, f"{kind}-{len(self.peers)}")
        self.peers.append(peer)
        peer.ask("namespace", "lockTimeoutSeconds=30", *settings)
        peer.ask("log", log)
        return peer


async def _begin_cluster(metadata: str) -> None:
    driver = connect(metadata, aio.runtime())
    await driver.open()
    await driver.initialize_cluster()
    await driver.close()


@contextlib.contextmanager
def stage(folder: pathlib.Path, bookie_kind: str, binder: str) -> Iterator[Stage]:
    """ZooKeeper, a bookie, and a namespace that `binder` has bound."""
    with zookeeper_server(folder) as server:
        metadata = f"zk+hierarchical://{server.address}/ledgers"
        bookie = Bookie(bookie_kind, "b1", folder / "b1", metadata, version=VERSION)
        if bookie_kind == "java":
            asyncio.run(_begin_cluster(metadata))
        place = Stage(folder, server.address, f"distributedlog://{server.address}/logs", [])
        try:
            bookie.start()
            first = Peer(binder, place.uri, folder, "binder")
            place.peers.append(first)
            first.ask("bind", server.address, "/ledgers")
            yield place
        finally:
            for peer in place.peers:
                peer.kill()
            bookie.kill()
