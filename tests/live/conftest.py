"""Fixtures of the live tests: the Spark session, which takes longer to start than most of them, a client, processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.live.command import Family
from tests.live.spark_session import spark_session, stop

import bookies as bk
from bookies.admin.cluster import LocalCluster


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
    session = spark_session(tmp_path_factory.mktemp("spark"))
    yield session
    stop(session)


@pytest.fixture(scope="module")
def without_adaptive_execution(spark: Any) -> Iterator[None]:
    """Plan each query once, which saves a fifth of the time. `test_spark_files.py` runs jobs as users do."""
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    yield
    spark.conf.unset("spark.sql.adaptive.enabled")
