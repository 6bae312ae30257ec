"""The pages below docs/tutorial: every command and every program runs, and prints what the page shows."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.live.command import Family, bk_process
from tests.live.tutorial_page import FENCE, Page, blocks_of, commands_of, matches

pytestmark = [
    pytest.mark.live,
    # py4j leaves the sockets between the two processes to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
TUTORIALS = pathlib.Path(__file__).parents[2] / "docs" / "tutorial"
SPARK_STARTS_MAX = 4  # Spark gives a worker process ten seconds to start, which a busy machine may exceed.


@contextmanager
def page(name: str, directory: pathlib.Path) -> Iterator[Page]:
    """Open a page in a directory of its own. End every process that it starts."""
    family = Family()
    prepare(directory)
    try:
        with Page(TUTORIALS / name, directory, family.environment()) as opened:
            yield opened
    finally:
        bk_process("down", "--directory", directory / "bk-data", family=family)
        family.wait_gone()


def prepare(directory: pathlib.Path) -> None:
    """Write the state of a stopped cluster with short leases. `bk up` continues it and notices lost bookies soon."""
    (directory / "bk-data").mkdir(parents=True)
    bookies = [{"id": f"b{number}", "pid": None, "host": None, "port": None} for number in (1, 2, 3)]
    settings = {"journal_preallocate_size": 1 << 20, "index_cache_size": 1 << 20}
    state = {"metadata": "", "lease_ms": 2000, "settings": settings, "bookies": bookies}
    (directory / "bk-data" / "cluster.json").write_text(json.dumps(state))


@pytest.mark.parametrize("name", ["first-ledger.md", "first-log.md", "a-cluster-that-heals.md"])
def test_the_page_runs(name: str, tmp_path: pathlib.Path) -> None:
    with page(name, tmp_path) as opened:
        opened.run()


@pytest.mark.spark
def test_the_page_about_spark_runs(spark: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.errors import PySparkException

    for attempt in range(SPARK_STARTS_MAX):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        monkeypatch.chdir(directory)
        try:
            with page("spark.md", directory) as opened:
                opened.run()
            return
        except PySparkException as error:
            if "Python worker failed to connect back" not in str(error) or attempt == SPARK_STARTS_MAX - 1:
                raise


def test_every_tutorial_is_executed() -> None:
    executed = {"first-ledger.md", "first-log.md", "a-cluster-that-heals.md", "spark.md"}
    assert {path.name for path in TUTORIALS.glob("*.md")} == executed | {"README.md"}
    for name in executed:
        text = (TUTORIALS / name).read_text()
        assert len(FENCE.findall(text)) == text.count("\n```") / 2, f"{name}: a fence that the test does not know"
        files = {block.title for block in blocks_of(text) if block.language == "python" and block.title}
        commands = {
            command
            for block in blocks_of(text)
            if block.language == "console"
            for command, _ in commands_of(block.code)
        }
        assert {f"python {file}" for file in files} <= commands, f"{name}: a program that no command runs"


@pytest.mark.parametrize(
    ("expected", "printed", "is_match"),
    [
        ("", "", True),
        ("", "a\n", False),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\n", "a\n", True),
        ("took ... ms\n", "took 17 ms\n", True),
        ("took ... ms\n", "took 1\n7 ms\n", False),
        ("1.5\n", "145\n", False),
    ],
)
def test_wildcards(expected: str, printed: str, is_match: bool) -> None:
    assert matches(expected, printed) is is_match
