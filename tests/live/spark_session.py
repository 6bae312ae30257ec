"""The Spark session of the tests. `python -m tests.live.spark_session FILE` makes an archive of the classes it loads.

With the archive, Java starts in half the processor time. FILE gets the option that makes Spark use it, or nothing if
this Java makes no archives.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from bookies.lab.demo.demo_spark import JAVA_OPTIONS
from bookies.spark.base import java


def spark_session(directory: pathlib.Path) -> Any:
    """Start a session; a task that fails is tried four times."""
    java.use()
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
        .config("spark.local.dir", str(directory))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session


def stop(session: Any) -> None:
    """Stop the session, and wait for its Java."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # Its end is the sign for the other process to end.
    gateway.proc.wait(120)
    SparkContext._gateway = SparkContext._jvm = None


def load_classes() -> None:
    """Run what most tests run: a source in Python, an aggregation, files."""
    import bookies.spark

    with tempfile.TemporaryDirectory() as folder:
        session = spark_session(pathlib.Path(folder))
        bookies.spark.register(session)
        session.range(100).selectExpr("id", "id % 3 k").groupBy("k").count().orderBy("k").collect()
        session.range(10).mapInArrow(lambda batches: batches, "id long").write.parquet(f"{folder}/rows")
        session.read.parquet(f"{folder}/rows").collect()
        stop(session)


def main(file: pathlib.Path) -> None:
    archive = file.with_suffix(".jsa")
    archive.unlink(missing_ok=True)
    options = os.environ | {"SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={archive}"}
    is_there = False
    with contextlib.suppress(subprocess.TimeoutExpired):
        words = [sys.executable, "-m", __spec__.name, "--load"]
        done = subprocess.run(words, env=options, capture_output=True, timeout=300, check=False)
        is_there = done.returncode == 0 and archive.exists()
    file.write_text(f"-XX:SharedArchiveFile={archive}\n" if is_there else "\n")


if __name__ == "__main__":
    load_classes() if sys.argv[1] == "--load" else main(pathlib.Path(sys.argv[1]).resolve())
