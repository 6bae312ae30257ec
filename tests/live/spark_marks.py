"""Marks, settings and patience that the files of Spark tests share."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import TypeVar

import pytest

T = TypeVar("T")
STARTS_MAX = 5

SPARK_MARKS = [
    pytest.mark.live,
    pytest.mark.spark,
    # py4j leaves the sockets between the two processes to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
# PySpark warns about the next version of pandas.
PANDAS_MARKS = [*SPARK_MARKS, pytest.mark.filterwarnings("ignore::FutureWarning")]
SMALL_BOOKIES = {"journal_preallocate_size": 1 << 20, "index_cache_size": 1 << 20}


def needs_spark(*version: int) -> pytest.MarkDecorator:
    """Mark of a test of what older versions of PySpark lack: the table in docs/reference/spark.md."""
    wanted = ".".join(map(str, version))
    return pytest.mark.skipif(installed() < version, reason=f"needs Spark {wanted}")


def installed() -> tuple[int, ...]:
    try:
        return tuple(map(int, metadata.version("pyspark").split(".")[:2]))
    except metadata.PackageNotFoundError:
        return ()


def persistently(make: Callable[[], T]) -> T:
    """Return what `make` returns. Spark gives the process of a streaming source ten seconds to start, which on a busy
    machine may be too few. Then `make` is called again.
    """
    from pyspark.errors import PySparkException

    for _ in range(STARTS_MAX - 1):
        try:
            return make()
        except PySparkException as error:
            if "Python worker failed to connect back" not in str(error):
                raise
    return make()
