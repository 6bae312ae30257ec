"""Snippets of docs/reference/spark.md and of how-to pages, in order, in a real session on a real cluster."""

from __future__ import annotations

import pathlib
import re
from typing import Any

from tests.live.spark_marks import SMALL_BOOKIES, SPARK_MARKS

from bookies.admin.cluster import LocalCluster

pytestmark = SPARK_MARKS
DOCS = pathlib.Path(__file__).parents[2] / "docs"
PAGES = [
    DOCS / "reference" / "spark.md",
    DOCS / "howto" / "spark-query-with-sql.md",
    DOCS / "howto" / "spark-resume-a-stream.md",
]


STARTS_MAX = 4  # Spark gives a streaming source's process ten seconds to start, which a busy machine may not keep


def test_every_snippet_runs(spark: Any, tmp_path: pathlib.Path) -> None:
    from pyspark.errors import PySparkException

    for attempt in range(STARTS_MAX):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        try:
            run_snippets(spark, directory)
            return
        except PySparkException as error:
            if "Python worker failed to connect back" not in str(error) or attempt == STARTS_MAX - 1:
                raise


def run_snippets(spark: Any, directory: pathlib.Path) -> None:
    with LocalCluster(directory / "bk-data", 1, settings=SMALL_BOOKIES) as cluster:
        names: dict[str, Any] = {"spark": spark, "uri": cluster.metadata_uri, "directory": str(directory)}
        snippets = [
            (page.name, snippet)
            for page in PAGES
            for snippet in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
        ]
        assert len(snippets) >= 8
        for number, (name, snippet) in enumerate(snippets):
            exec(compile(snippet, f"{name}, snippet {number + 1}", "exec"), names)
