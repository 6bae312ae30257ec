"""Marks and settings that the files of Spark tests share."""

from __future__ import annotations

import pytest

SPARK_MARKS = [
    pytest.mark.live,
    pytest.mark.spark,
    # py4j leaves the sockets between the two processes to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
# PySpark warns about the next version of pandas.
PANDAS_MARKS = [*SPARK_MARKS, pytest.mark.filterwarnings("ignore::FutureWarning")]
SMALL_BOOKIES = {"journal_preallocate_size": 1 << 20, "index_cache_size": 1 << 20}
