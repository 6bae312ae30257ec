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
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import venv
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.apache.zookeeper import zookeeper_server
from tests.etcd.server import etcd_server
from tests.live.command import bk as command
from tests.live.spark_marks import SMALL_BOOKIES

import bookies as bk
from bookies.admin import cli
from bookies.admin.cluster import LocalCluster
from bookies.spark.base import java
from bookies.spark.base.session import JAVA_OPTIONS

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.cluster]
PATIENCE_S = 600
# Large enough that what a task holds back (Spark's pipes between processes keep 64 KiB at every step) is a small part.
ROWS, SIZE = 4000, 1200
APP = str(pathlib.Path(__file__).with_name("spark_app.py"))
PACKAGE = os.path.dirname(os.path.dirname(bk.__file__))
LOCAL_CLUSTER = "local-cluster[2,1,1024]"


@contextlib.contextmanager
def metadata_store(kind: str, directory: pathlib.Path) -> Iterator[str | None]:
    """The URI of a new metadata store; None: the one in the cluster's own directory."""
    if kind == "zookeeper":
        with zookeeper_server(directory) as zookeeper:
            yield f"zk://{zookeeper.address}/ledgers"
    elif kind == "etcd":
        with etcd_server(directory) as etcd:
            yield f"etcd://{etcd.address}/cluster"
    else:
        yield None


@pytest.fixture(scope="module", params=["embedded", "zookeeper", "etcd"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("cluster-bookies")
    with (
        metadata_store(request.param, directory) as uri,
        LocalCluster(directory / "bk-data", 1, lease_ms=5000, metadata_uri=uri, settings=SMALL_BOOKIES) as cluster,
    ):
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
    with master(directory) as url, workers(directory, url):
        yield url


def master(directory: pathlib.Path, port: str = "0") -> contextlib.AbstractContextManager[str]:
    """A master that keeps what it knows in the directory; its address."""
    words = ("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", "0")
    return daemon(directory, words, r"Starting Spark master at (spark://\S+)")


@contextlib.contextmanager
def workers(directory: pathlib.Path, url: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for host in ("127.0.0.1", "127.0.0.2"):
            words = ("org.apache.spark.deploy.worker.Worker", "--host", host, "--cores", "1", "--memory", "1g")
            words += ("--webui-port", "0", "--work-dir", str(directory / host), url)
            stack.enter_context(daemon(directory, words, r"Successfully registered with master (\S+)", host))
        yield


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
        "SPARK_DAEMON_JAVA_OPTS": f"{JAVA_OPTIONS} -Dspark.deploy.recoveryMode=FILESYSTEM "
        f"-Dspark.deploy.recoveryDirectory={directory / 'recovery'}",
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


class Submitted:
    """A program under spark-submit. What it says on stderr goes to a file: nobody reads a pipe while it runs."""

    def __init__(self, command_line: Sequence[str], directory: pathlib.Path) -> None:
        self._stderr = directory / "stderr.txt"
        with open(self._stderr, "w") as stderr:
            self.process = subprocess.Popen(
                command_line,
                cwd=directory,
                env=environment(directory),
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )

    def assert_runs(self) -> None:
        assert self.process.poll() is None, f"the program ended: {self._said()}"

    def output(self) -> str:
        """Its stdout, once it has come to its end."""
        out, _ = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, self._said()
        return str(out)

    def result(self) -> dict[str, Any]:
        """The last line of it, which is JSON."""
        found: dict[str, Any] = json.loads(self.output().strip().splitlines()[-1])
        return found

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def _said(self) -> str:
        return self._stderr.read_text()[-8000:]


@contextlib.contextmanager
def submitted(
    directory: pathlib.Path, master: str, archive: pathlib.Path | None, *words: str, program: str = APP, **settings: str
) -> Iterator[Submitted]:
    """A program under spark-submit; it is over, one way or the other, when the block is.

    `archive`: the package as a zip; None: workers have it.
    """
    command_line = [os.path.join(installed(), "bin", "spark-submit"), "--master", master]
    command_line += [] if archive is None else ["--py-files", str(archive)]
    for name, value in (common(directory) | settings).items():
        command_line += ["--conf", f"{name}={value}"]
    running = Submitted([*command_line, program, *words], directory)
    try:
        yield running
    finally:
        running.end()


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

    def executor(self, program: Submitted) -> int:
        """The process id of the executor of a task that waits."""
        deadline = time.monotonic() + PATIENCE_S
        while not select.select([self._began], [], [], 1)[0]:
            program.assert_runs()
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
    with submitted(tmp_path, master, archive, cluster.metadata_uri, source, target.name) as program:
        found = program.result()
    assert found["partitions"] == 4
    assert found["streamed"] == ROWS
    assert all("bookies.zip" in place for place in [found["driver"], *found["places"]])
    assert entries(target) == expected()


def test_an_executor_that_is_killed_while_it_reads_and_writes(
    store: Any, cluster: Any, source: str, target: Any, archive: Any, tmp_path: Any, meeting: Meeting
) -> None:
    words = (cluster.metadata_uri, source, target.name, str(tmp_path), "2")
    with submitted(tmp_path, LOCAL_CLUSTER, archive, *words) as program:
        executor = meeting.executor(program)
        wait_for_ledgers(store, target, program, partitions=2)
        os.kill(executor, signal.SIGKILL)
        meeting.release()
        assert program.result()["partitions"] == 4
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
    with submitted(tmp_path, standalone, archive, *words, **settings) as program:
        meeting.executor(program)  # It is never told to go on: the other attempt has to win.
        wait_for_ledgers(store, target, program, partitions=1)
        assert program.result()["partitions"] == 4
    assert entries(target) == expected()
    assert_reaped(target, at_least=1)


def test_a_master_that_restarts(
    cluster: Any, source: str, target: Any, archive: Any, tmp_path: Any, meeting: Meeting
) -> None:
    """Ends the master while tasks read and write. The next one has its address, and finds what it kept."""
    with contextlib.ExitStack() as first:
        url = first.enter_context(master(tmp_path))
        with workers(tmp_path, url):
            words = (cluster.metadata_uri, source, target.name, str(tmp_path), "1")
            with submitted(tmp_path, url, archive, *words) as program:
                meeting.executor(program)
                first.close()
                with master(tmp_path, url.rpartition(":")[2]):
                    meeting.release()
                    assert program.result()["partitions"] == 4
    assert entries(target) == expected()


def test_the_environment_travels_as_an_archive(
    standalone: str, cluster: Any, source: str, target: Any, tmp_path: pathlib.Path
) -> None:
    """The workers' Python, with the package in it, is `spark.archives`. The driver has it under the same path."""
    new = tmp_path / "environment"
    venv.create(new, symlinks=False)  # Spark refuses links that lead out of it, too.
    [packages] = new.glob("lib/python*/site-packages")
    shutil.copytree(
        os.path.join(PACKAGE, "bookies"), packages / "bookies", ignore=shutil.ignore_patterns("__pycache__")
    )
    own = pathlib.Path(sysconfig.get_path("platlib"))
    for name in ("pyarrow", "msgspec", "google_crc32c", "google_crc32c.libs", "grpc", "typing_extensions.py"):
        if (own / name).is_dir():
            shutil.copytree(own / name, packages / name)
        elif (own / name).exists():
            shutil.copy(own / name, packages / name)
    packed = tmp_path / "environment.tar.gz"
    # Spark refuses an archive with "." among its entries.
    subprocess.run(["tar", "-C", new, "-I", "gzip -1", "-cf", packed, *sorted(os.listdir(new))], check=True)
    settings = {"spark.archives": f"{packed}#environment", "spark.pyspark.python": "./environment/bin/python"}
    words = (cluster.metadata_uri, source, target.name)
    with submitted(
        tmp_path, standalone, None, *words, **settings, **{"spark.pyspark.driver.python": sys.executable}
    ) as program:
        found = program.result()
    assert found["streamed"] == ROWS
    assert all("/environment/lib/" in place for place in found["places"])
    assert entries(target) == expected()


def test_a_job_runs_on_executors(store: Any, cluster: Any, source: str, archive: Any, tmp_path: Any) -> None:
    """Runs a job as docs/howto/spark-run-on-a-cluster.md describes: the command itself, under spark-submit."""
    ledger_ids = store.log(source).manifest().ledger_ids
    words = ("spark", "scrub", "--metadata", cluster.metadata_uri, "--ledgers", ",".join(map(str, ledger_ids)))
    with submitted(tmp_path, LOCAL_CLUSTER, archive, *words, "--output", "runs", program=cli.__file__) as program:
        out = program.output()
    assert f"{len(ledger_ids)} items, {ROWS:,} copies of entries" in out
    assert "no findings" in out


def wait_for_ledgers(store: Any, log: Any, program: Submitted, *, partitions: int) -> None:
    """Until the tasks of so many partitions, which are those that wait in the middle, have begun to write."""
    wanted = {str(number).encode() for number in range(partitions)}
    deadline, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while not wanted <= {each.custom_metadata["sink.partition"] for each in store.ledgers(("sink.log", log.name))}:
        program.assert_runs()
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
