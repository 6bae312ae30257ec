"""Fixtures of the live tests: the Spark session, which takes longer to start than most of them, a client, processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.live.command import Family

import bookies as bk
from bookies.admin.cluster import LocalCluster
from bookies.lab.demo.demo_spark import JAVA_OPTIONS
from bookies.spark.base import java


@pytest.fixture
def family() -> Iterator[Family]:
    """Mark of all processes that a test starts. None may be left at its end."""
    family = Family()
    yield family
    family.wait_gone()


@pytest.fixture(scope="module")
def store(cluster: LocalCluster) -> Iterator[bk.blocking.Client]:
    """A client of the module's `cluster`."""
    with bk.blocking.connect(cluster.metadata_uri) as store:
        yield store


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One session for all tests of a process; a task that fails is tried four times.

    A machine without Java fails here, with the sentence that says what to install.
    """
    java.use()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    directory = tmp_path_factory.mktemp("spark")
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
    yield session
    gateway = SparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # Its end is the sign for the other process to end.
    gateway.proc.wait(60)
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="module")
def without_adaptive_execution(spark: Any) -> Iterator[None]:
    """Plan each query once, which saves a fifth of the time. `test_spark_files.py` runs jobs as users do."""
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    yield
    spark.conf.unset("spark.sql.adaptive.enabled")
