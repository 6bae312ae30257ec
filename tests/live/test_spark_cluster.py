"""Spark with executors of its own, as it is deployed: the package travels as a zip, executors die, tasks run twice.

Not among the tests of every day: `make spark-cluster`. Source: spark 6 and 8.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.live.command import bk as command

import bookies as bk
from bookies.admin.local_cluster import LocalCluster
from bookies.spark import java
from bookies.spark.session import JAVA_OPTIONS

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.cluster]
PATIENCE_S = 300
# Large enough that what a task holds back (Spark's pipes between processes keep 64 KiB at every step) is a small part.
ROWS, SIZE = 4000, 1200
PACKAGE = os.path.dirname(os.path.dirname(bk.__file__))
LOCAL_CLUSTER = "local-cluster[2,1,1024]"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("cluster-bookies") / "bk-data"
    settings = {"journal_preallocate_size": 1 << 20, "index_cache_size": 1 << 20}
    with LocalCluster(directory, 1, lease_ms=5000, settings=settings) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("archive") / "bookies.zip"
    assert command("spark", "package", path).status == 0
    return path


@pytest.fixture(scope="module")
def source(store: bk.blocking.Client) -> str:
    log = store.log("source")
    log.create(ensemble=1)
    with log.lead() as writer:
        writer.append_many(expected())
    return "source"


@pytest.fixture
def target(store: bk.blocking.Client, request: pytest.FixtureRequest) -> Any:
    log = store.log(re.sub(r"\W+", "-", request.node.name))
    log.create(ensemble=1)
    return log


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a master with two workers, on two loopback addresses: Spark takes them for two machines."""
    directory = tmp_path_factory.mktemp("standalone")
    words = ("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(daemon(directory, words, r"Starting Spark master at (spark://\S+)"))
        for host in ("127.0.0.1", "127.0.0.2"):
            words = ("org.apache.spark.deploy.worker.Worker", "--host", host, "--cores", "1", "--memory", "1g")
            words += ("--webui-port", "0", "--work-dir", str(directory / host), url)
            stack.enter_context(daemon(directory, words, r"Successfully registered with master (\S+)", host))
        yield url


def environment(directory: pathlib.Path) -> dict[str, str]:
    """Nothing of this package on the path: it has to come with the job. Spark writes into its home: one of ours."""
    java.use()
    left_out = ("PYTHONPATH", "SPARK_HOME", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    home = directory / "spark-home"
    home.mkdir(exist_ok=True)
    for name in os.listdir(installed()):
        if name != "work" and not (home / name).exists():
            (home / name).symlink_to(os.path.join(installed(), name))
    return kept | {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(home),
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
    }


def installed() -> str:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return os.path.dirname(spec.origin)


@contextlib.contextmanager
def daemon(
    directory: pathlib.Path, words: Sequence[str], ready: str, host: str = "127.0.0.1", path: str = ""
) -> Iterator[str]:
    """One of Spark's servers, from the moment it says `ready`: what the pattern's group matched.

    `path`: where it finds Python modules, as if they were installed.
    """
    process = subprocess.Popen(
        [os.path.join(installed(), "bin", "spark-class"), *words],
        cwd=directory,
        env=environment(directory) | {"SPARK_LOCAL_IP": host} | ({"PYTHONPATH": path} if path else {}),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None
    stderr = process.stderr
    try:
        said = []
        for line in stderr:
            said.append(line)
            if found := re.search(ready, line):
                break
        else:
            pytest.fail(f"{words[0]} ended: {''.join(said)}")
        rest = threading.Thread(target=stderr.read, daemon=True)  # or it would wait for a reader
        rest.start()
        yield found[1]
    finally:
        process.terminate()
        process.wait(60)
        stderr.close()


def expected() -> list[bytes]:
    return [(b"%06d" % number).ljust(SIZE, b".") for number in range(ROWS)]


def common(directory: pathlib.Path) -> dict[str, str]:
    """Spark's settings in all tests."""
    return {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.executor.extraJavaOptions": JAVA_OPTIONS,
        "spark.local.dir": str(directory / "spark"),
        "spark.executor.memory": "512m",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    }


@contextlib.contextmanager
def submitted(
    directory: pathlib.Path, master: str, archive: pathlib.Path, *words: str, **settings: str
) -> Iterator[Any]:
    """The program of spark_app.py under spark-submit; it is over, one way or the other, when the block is."""
    command_line = [os.path.join(installed(), "bin", "spark-submit"), "--master", master, "--py-files", str(archive)]
    for name, value in (common(directory) | settings).items():
        command_line += ["--conf", f"{name}={value}"]
    program = str(pathlib.Path(__file__).with_name("spark_app.py"))
    process = subprocess.Popen(
        [*command_line, program, *words],
        cwd=directory,
        env=environment(directory),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def result(process: Any) -> dict[str, Any]:
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err[-4000:]
    found: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return found


def entries(log: Any) -> list[bytes]:
    with log.open() as reader:
        return [entry.payload for entry in reader.read()]


class Meeting:
    """The two FIFOs by which tasks say where they run, and hear when to go on."""

    def __init__(self, directory: pathlib.Path) -> None:
        os.mkfifo(directory / "began")
        os.mkfifo(directory / "go")
        # Both open for reading and writing, so that nobody waits for the other side to open it.
        self._began = os.open(directory / "began", os.O_RDWR)
        self._go = os.open(directory / "go", os.O_RDWR)

    def executor(self, process: Any) -> int:
        """The process id of the executor of a task that waits."""
        deadline = time.monotonic() + PATIENCE_S
        while not select.select([self._began], [], [], 1)[0]:
            assert process.poll() is None, f"the program ended: {process.communicate()[1][-4000:]}"
            assert time.monotonic() < deadline, "no task has begun"
        return int(os.read(self._began, 100).split()[0])

    def release(self) -> None:
        os.write(self._go, b"." * 100)

    def close(self) -> None:
        os.close(self._began)
        os.close(self._go)


@pytest.fixture
def meeting(tmp_path: pathlib.Path) -> Iterator[Meeting]:
    meeting = Meeting(tmp_path)
    yield meeting
    meeting.close()


@pytest.mark.parametrize("kind", ["local-cluster", "standalone"])
def test_the_package_travels_as_a_zip(
    kind: str, request: pytest.FixtureRequest, cluster: Any, source: str, target: Any, archive: Any, tmp_path: Any
) -> None:
    master = LOCAL_CLUSTER if kind == "local-cluster" else request.getfixturevalue("standalone")
    with submitted(tmp_path, master, archive, cluster.metadata_uri, source, target.name) as process:
        found = result(process)
    assert found["partitions"] == 4
    assert found["streamed"] == ROWS
    assert all("bookies.zip" in place for place in [found["driver"], *found["places"]])
    assert entries(target) == expected()


def test_an_executor_that_is_killed_while_it_reads_and_writes(
    store: Any, cluster: Any, source: str, target: Any, archive: Any, tmp_path: Any, meeting: Meeting
) -> None:
    words = (cluster.metadata_uri, source, target.name, str(tmp_path), "2")
    with submitted(tmp_path, LOCAL_CLUSTER, archive, *words) as process:
        executor = meeting.executor(process)
        wait_for_ledger(store, target, process)
        os.kill(executor, signal.SIGKILL)
        meeting.release()
        assert result(process)["partitions"] == 4
    assert entries(target) == expected()
    assert_reaped(target, at_least=1)


def test_the_loser_of_a_speculation_leaves_nothing(
    standalone: str, store: Any, cluster: Any, source: str, target: Any, archive: Any, tmp_path: Any, meeting: Meeting
) -> None:
    words = (cluster.metadata_uri, source, target.name, str(tmp_path), "1")
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "100ms",
    }
    with submitted(tmp_path, standalone, archive, *words, **settings) as process:
        meeting.executor(process)  # It is never told to go on: the other attempt has to win.
        wait_for_ledger(store, target, process)
        assert result(process)["partitions"] == 4
    assert entries(target) == expected()
    assert_reaped(target, at_least=1)


def wait_for_ledger(store: Any, log: Any, process: Any) -> None:
    """Until a task has begun to write."""
    deadline, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while not list(store.ledgers(("sink.log", log.name))):
        assert process.poll() is None, "the program ended"
        assert time.monotonic() < deadline, "no task has begun to write"
        pause.wait(0.05)


def assert_reaped(log: Any, *, at_least: int) -> None:
    """What attempts left behind that did not count is there, is deleted, and is all there is."""
    found = log.reap(orphan_grace=0, replay_grace=0)
    assert [each.outcome for each in found].count("deleted") >= at_least
    assert list(log.reap(orphan_grace=0, replay_grace=0)) == []


def test_connect(store: Any, cluster: Any, source: str, target: Any, tmp_path: pathlib.Path) -> None:
    """The package is in the server's environment, which finds it by itself."""
    missing = [name for name in ("grpc", "grpc_status", "google.rpc", "zstandard") if not is_there(name)]
    if missing:
        pytest.skip(f"Spark Connect needs pip install 'bookies[connect]' (missing: {', '.join(missing)})")
    streamed = store.log(f"{target.name}-streamed")
    streamed.create(ensemble=1)
    words = ["org.apache.spark.deploy.SparkSubmit", "--master", "local[2]"]
    words += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    settings = {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": "0"}
    for name, value in (settings | common(tmp_path)).items():
        words += ["--conf", f"{name}={value}"]
    with daemon(tmp_path, [*words, "spark-internal"], r"started at: \S*:(\d+)", path=PACKAGE) as port:
        program = str(pathlib.Path(__file__).with_name("spark_connect_app.py"))
        done = subprocess.run(
            [sys.executable, program, port, cluster.metadata_uri, source, target.name, streamed.name],
            cwd=tmp_path,
            env=environment(tmp_path) | {"PYTHONPATH": PACKAGE},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert (found["rows"], found["read"], found["has_ended"]) == (ROWS, ROWS, True)
    assert "value" in found["columns"]
    assert entries(target) == expected()
    assert entries(streamed) == expected()


def test_another_package_that_is_broken(cluster: Any, source: str, tmp_path: pathlib.Path) -> None:
    """One `pyspark_*` module that cannot be imported, and Spark finds none by itself; `register` works."""
    (tmp_path / "pyspark_broken.py").write_text("raise ImportError('broken')\n")
    done = subprocess.run(
        [sys.executable, "-c", DISCOVERY, cluster.metadata_uri, source, str(tmp_path / "spark")],
        cwd=tmp_path,
        env=environment(tmp_path) | {"PYTHONPATH": os.pathsep.join((str(tmp_path), PACKAGE))},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split()[-2:] == ["True", str(ROWS)]


DISCOVERY = """
import sys
from pyspark.sql import SparkSession

uri, source, directory = sys.argv[1:]
settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.local.dir": directory}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
try:
    spark.read.format("bookkeeper").option("bookkeeper.metadataServiceUri", uri).option("subscribe", source).load()
    print("found")
except Exception as error:
    print("DATA_SOURCE_NOT_FOUND" in str(error))
import bookies.spark
bookies.spark.register(spark)
print(bookies.spark.read_log(spark, uri, source).count())
spark.stop()
"""


def is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
