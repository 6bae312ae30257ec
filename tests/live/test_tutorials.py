"""The pages below docs/tutorial: every command and every program runs, and prints what the page shows."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.live.command import Family, bk_process, write_state
from tests.live.page import FENCE, blocks_of, is_shown
from tests.live.tutorial_page import Page

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
    write_state(directory, lease_ms=2000)  # so that the commands notice a lost bookie soon
    try:
        with Page(TUTORIALS / name, directory, family.environment()) as opened:
            yield opened
    finally:
        bk_process("down", "--directory", directory / "bk-data", family=family)
        family.wait_gone()


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
        consoles = [block for block in blocks_of(text) if block.language == "console"]
        commands = {command.line for block in consoles for command in block.commands()}
        assert {f"python {file}" for file in files} <= commands, f"{name}: a program that no command runs"


@pytest.mark.parametrize(
    ("shown", "lines", "is_match"),
    [
        ((), (), True),
        ((), ("a",), False),
        (("a", "...", "d"), ("a", "b", "c", "d"), True),
        (("a", "..."), ("a",), True),
        (("took ... ms",), ("took 17 ms",), True),
        (("took ... ms",), ("took 1", "7 ms"), False),
        (("1.5",), ("145",), False),
        (("a", ""), ("a",), True),
    ],
)
def test_wildcards(shown: tuple[str, ...], lines: tuple[str, ...], is_match: bool) -> None:
    assert is_shown(shown, lines) is is_match
