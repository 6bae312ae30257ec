"""One of Apache's bookies with a ZooKeeper of its own, in one Java process, and a connection to it.

Jars come from Maven Central, once, into the folder that BOOKIES_APACHE_CACHE names. Needs Java 17 (with its compiler)
and, for the first time, Maven.
"""

from __future__ import annotations

import fcntl
import os
import pathlib
import queue
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.fakes.adds import add_request

from bookies.errors import Status
from bookies.kernels import Records
from bookies.wire import v3
from bookies.wire.client import ResponseDecoder, encode_request
from bookies.wire.messages import (
    AddResponses,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
    WriteLacRequest,
)

HERE = pathlib.Path(__file__).parent
VERSION = os.environ.get("BOOKIES_APACHE_VERSION", "4.17.3")  # the default is that of pom.xml
START_S = 120.0
FRAME_SIZE_MAX = 5 << 20
JAVA_OPTIONS = ["-Xmx256m", "-XX:MaxDirectMemorySize=256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
OPENED = ("java.base/java.nio", "java.base/jdk.internal.misc", "java.base/java.io", "java.base/sun.nio.ch")
STORAGES = {
    "sorted": "SortedLedgerStorage",
    "interleaved": "InterleavedLedgerStorage",
    "rocksdb": "storage.ldb.DbLedgerStorage",
}


def jars(
    version: str = VERSION, artifact: str = "bookkeeper-server", pom: pathlib.Path = HERE / "pom.xml"
) -> pathlib.Path:
    """The folder with the jars, the artifact's among them.

    Skips the test if there is no cache to keep them in; fails if they cannot be had.
    """
    name = os.environ.get("BOOKIES_APACHE_CACHE")
    if not name:
        pytest.skip("BOOKIES_APACHE_CACHE names no folder to keep Apache's jars in (100 MB)")
    cache = pathlib.Path(name)
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for found in sorted(cache.glob(f"*/{artifact}-{version}.jar")):
            if not found.parent.name.endswith(".part"):
                return found.parent
        target, part = cache / f"{artifact}-{version}", cache / f"{artifact}-{version}.part"
        shutil.rmtree(part, ignore_errors=True)
        command = ["mvn", "-q", "-B", "-f", str(pom), f"-Dbookkeeper.version={version}"]
        subprocess.run([*command, "dependency:copy-dependencies", f"-DoutputDirectory={part}"], check=True)
        part.rename(target)
        return target


def java_command(version: str = VERSION) -> list[str]:
    """`java` with its options and the jars; what to run is to follow."""
    opened = [word for name in OPENED for word in ("--add-opens", f"{name}=ALL-UNNAMED")]
    properties = ["-Dio.netty.tryReflectionSetAccessible=true", "-Dzookeeper.admin.enableServer=false"]
    properties += ["-Dzookeeper.forceSync=no", f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"]
    return ["java", *JAVA_OPTIONS, *opened, *properties, "-cp", f"{jars(version)}/*"]


class NotServing(Exception):
    """The bookie did not start; with its log."""


class Connection:
    """Requests in the v3 protocol, one at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._decoder = ResponseDecoder("v3", FRAME_SIZE_MAX)
        self._txn_id = 0

    def _ask(self, request: Request) -> Response:
        self._socket.sendall(b"".join(bytes(piece) for piece in encode_request(request)))
        responses: list[Response] = []
        while not responses:
            data = self._socket.recv(1 << 16)
            assert data, "the bookie closed the connection"
            responses = self._decoder.feed(data)
        assert len(responses) == 1
        return responses[0]

    def _next(self) -> int:
        self._txn_id += 1
        return self._txn_id

    def add(self, ledger_id: int, key: bytes, entry_id: int, body: bytes, *, is_recovery: bool = False) -> Status:
        request = add_request(
            v3.VERSION, ledger_id, key, [entry_id], Records.of([body]), -1, is_recovery, txn_ids=[self._next()]
        )
        response = self._ask(request)
        assert isinstance(response, AddResponses)
        return response.status

    def read(self, ledger_id: int, entry_id: int, key: bytes | None = None) -> tuple[Status, bytes]:
        """With a key it fences."""
        request = ReadRequest(v3.VERSION, self._next(), ledger_id, entry_id, key, is_fencing=key is not None)
        response = self._ask(request)
        assert isinstance(response, ReadResponse)
        return response.status, bytes(response.body or b"")

    def write_lac(self, ledger_id: int, key: bytes, last_add_confirmed: int, body: bytes) -> None:
        self._ask(WriteLacRequest(v3.VERSION, self._next(), ledger_id, last_add_confirmed, key, body))

    def read_lac(self, ledger_id: int) -> bytes | None:
        """The body of the explicit LAC."""
        response = self._ask(ReadLacRequest(v3.VERSION, self._next(), ledger_id))
        assert isinstance(response, ReadLacResponse)
        return response.lac_body

    def close(self) -> None:
        self._socket.close()


@contextmanager
def apache_bookie(folder: pathlib.Path, storage: str, **settings: Any) -> Iterator[Connection]:
    """A connection to a bookie on `journal` and `ledgers` below a folder; an orderly stop at the end.

    ZooKeeper's data is in the folder too, so the bookie knows its cookie when it is started again. Raises NotServing.
    """
    command = [
        *java_command(),
        str(HERE / "Bookie.java"),
        ".",
        STORAGES[storage],
        *(f"{name}={value}" for name, value in settings.items()),
    ]
    log = folder / "apache.log"
    with open(log, "ab") as errors:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    assert process.stdin is not None
    assert process.stdout is not None
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    output = process.stdout
    reader = threading.Thread(target=lambda: [lines.put(line) for line in iter(output.readline, "")] + [lines.put("")])
    reader.start()
    try:
        word, _, port = _next_line(lines, log).partition(" ")
        if word != "serving":
            raise NotServing(log.read_text()[-4000:])
        connection = Connection(int(port))
        try:
            yield connection
        finally:
            connection.close()
        process.stdin.close()
        assert _next_line(lines, log) == "stopped", log.read_text()[-4000:]
    finally:
        process.stdin.close()
        process.kill()
        process.wait()
        reader.join()
        output.close()


def _next_line(lines: queue.SimpleQueue[str], log: pathlib.Path) -> str:
    """The next line of Java's output; empty if it has ended."""
    try:
        return lines.get(timeout=START_S).strip()
    except queue.Empty:
        pytest.fail(f"no answer within {START_S} s: {log.read_text()[-4000:]}")
