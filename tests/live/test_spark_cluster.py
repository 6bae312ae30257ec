"""Spark with executors of its own, as it is deployed: the package travels as a zip.

Not among the tests of every day: `make spark-cluster`. Source: spark 6 and 8.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.live.command import bk as command

import bookies as bk
from bookies.admin.local_cluster import LocalCluster
from bookies.spark import java

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.cluster]
PATIENCE_S = 900
ROWS = 4000
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
    return kept | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(home)}


def installed() -> str:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return os.path.dirname(spec.origin)


@contextlib.contextmanager
def daemon(directory: pathlib.Path, words: Sequence[str], ready: str, host: str = "127.0.0.1") -> Iterator[str]:
    """One of Spark's servers, from the moment it says `ready`: what the pattern's group matched."""
    process = subprocess.Popen(
        [os.path.join(installed(), "bin", "spark-class"), *words],
        cwd=directory,
        env=environment(directory) | {"SPARK_LOCAL_IP": host},
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
    return [b"%06d" % number * 10 for number in range(ROWS)]


@contextlib.contextmanager
def submitted(
    directory: pathlib.Path, master: str, archive: pathlib.Path, *words: str, **settings: str
) -> Iterator[Any]:
    """The program of spark_app.py under spark-submit; it is over, one way or the other, when the block is."""
    common = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(directory / "spark"),
        "spark.executor.memory": "512m",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    }
    command_line = [os.path.join(installed(), "bin", "spark-submit"), "--master", master, "--py-files", str(archive)]
    for name, value in (common | settings).items():
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


def test_connect(cluster: Any, source: str) -> None:
    missing = [name for name in ("grpc", "grpc_status", "google.rpc", "zstandard") if not is_there(name)]
    if missing:
        pytest.skip(f"Spark Connect needs pip install 'pyspark[connect]' (missing: {', '.join(missing)})")
    from pyspark.sql.connect.session import SparkSession

    words = (
        "org.apache.spark.deploy.SparkSubmit",
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
    )
    words += ("--conf", "spark.connect.grpc.binding.address=127.0.0.1", "--conf", "spark.connect.grpc.binding.port=0")
    with daemon(pathlib.Path.cwd(), (*words, "spark-internal"), r"started at: \S*?:(\d+)") as port:
        spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
        try:
            # The server finds the source by itself, in its own environment.
            reader = spark.read.format("bookkeeper").option("bookkeeper.metadataServiceUri", cluster.metadata_uri)
            assert reader.option("subscribe", source).load().count() == ROWS
        finally:
            spark.stop()


def is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
