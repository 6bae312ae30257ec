"""Snippets of docs/reference/spark.md and of how-to pages, and the tutorial, in a real session on a real cluster."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest
from tests.live.spark_marks import SMALL_BOOKIES, SPARK_MARKS, persistently
from tests.live.tutorial_page import tutorial

from bookies.admin.cluster import LocalCluster

pytestmark = SPARK_MARKS
DOCS = pathlib.Path(__file__).parents[2] / "docs"
PAGES = [
    DOCS / "reference" / "spark.md",
    DOCS / "reference" / "coming-from-kafka.md",
    DOCS / "howto" / "spark-query-with-sql.md",
    DOCS / "howto" / "spark-resume-a-stream.md",
    DOCS / "howto" / "payload-formats.md",
    DOCS / "reference" / "spark-tables.md",
]


def test_every_snippet_runs(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    run_snippets(spark, tmp_path_factory.mktemp("snippets"))


def test_the_tutorial_runs(
    spark: Any, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> None:
        directory = tmp_path_factory.mktemp("tutorial")
        monkeypatch.chdir(directory)
        with tutorial("spark.md", directory) as page:
            page.run()

    persistently(run)


def run_snippets(spark: Any, directory: pathlib.Path) -> None:
    """Run all snippets in their order. One that starts a stream can be repeated, and does nothing else that counts."""
    with LocalCluster(directory / "bk-data", 1, settings=SMALL_BOOKIES) as cluster:
        names: dict[str, Any] = {"spark": spark, "uri": cluster.metadata_uri, "directory": str(directory)}
        snippets = [
            (page.name, snippet)
            for page in PAGES
            for snippet in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
        ]
        assert len(snippets) >= 8
        for number, (name, snippet) in enumerate(snippets):
            code = compile(snippet, f"{name}, snippet {number + 1}", "exec")
            persistently(lambda code=code: exec(code, names))  # type: ignore[misc]
