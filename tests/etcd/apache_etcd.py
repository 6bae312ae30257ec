"""Apache's etcd driver in a Java process, told line by line what to do.

A bookie's jars come as for tests/apache, into the folder that BOOKIES_APACHE_CACHE names, and the driver with its etcd
client beside them. The driver's own list of dependencies names what Maven Central does not have; ours is in pom.xml.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import queue
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from typing import IO

from tests.apache.apache import START_S, VERSION, jars

ATTEMPTS_MAX = 5
HERE = pathlib.Path(__file__).parent
_DRIVER = f"org.apache.bookkeeper.metadata.drivers:metadata-stores-etcd:{VERSION}"


def class_path() -> str:
    """Fails if the jars cannot be had; skips the test where there is no cache for them."""
    server = jars()
    target = server.parent / f"etcd-{VERSION}"
    with open(server.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            part = target.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            maven = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), f"-DoutputDirectory={part}"]
            subprocess.run([*maven, "dependency:copy-dependencies"], check=True)
            subprocess.run([*maven, "dependency:copy", f"-Dartifact={_DRIVER}"], check=True)
            had = {_artifact(jar) for jar in server.glob("*.jar")}
            for jar in part.glob("*.jar"):
                if _artifact(jar) in had:
                    jar.unlink()  # the bookie's version counts
            part.rename(target)
    return f"{server}/*{os.pathsep}{target}/*"


def _artifact(jar: pathlib.Path) -> str:
    return re.sub(r"-\d.*", "", jar.name)


class ApacheEtcd:
    """One process. `do` returns the line of its answer; `error ...` for an exception."""

    def __init__(self, process: subprocess.Popen[str], log: pathlib.Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input, output = process.stdin, process.stdout
        self._log = log
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.reader = threading.Thread(target=self._read, args=(output,))
        self.reader.start()

    def _read(self, output: IO[str]) -> None:
        for line in output:
            self._lines.put(line)
        self._lines.put("")

    def answer(self) -> str:
        line = self._lines.get(timeout=START_S)
        assert line, self._log.read_text()[-4000:]
        return line.strip()

    def do(self, *words: object) -> str:
        """Its client fails a request now and then, whatever etcd does; then it is asked again."""
        for _ in range(ATTEMPTS_MAX):
            self._input.write(" ".join(map(str, words)) + "\n")
            self._input.flush()
            answer = self.answer()
            if not answer.startswith(("error MetaStoreException", "error -18", "error StatusRuntimeException")):
                break
        return answer


@contextlib.contextmanager
def apache_etcd(folder: pathlib.Path, uri: str) -> Iterator[ApacheEtcd]:
    """Its registrations end some seconds after it, because it does not take its lease back."""
    log = folder / "apache-etcd.log"
    settings = HERE.parent / "apache" / "log4j2.properties"
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += [f"-Dlog4j2.configurationFile={settings}", "-cp", class_path(), str(HERE / "Etcd.java"), uri]
    with open(log, "ab") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1
        )
    driver = ApacheEtcd(process, log)
    try:
        assert driver.answer() == "ready"
        yield driver
    finally:
        process.kill()
        process.wait()
        driver.reader.join()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
