"""The pages below docs/tutorial: every command and every program runs, and prints what the page shows."""

from __future__ import annotations

import pathlib

import pytest
from tests.live.page import FENCE, blocks_of, is_shown
from tests.live.tutorial_page import TUTORIALS, tutorial

pytestmark = pytest.mark.live


@pytest.mark.parametrize("name", ["first-ledger.md", "first-log.md", "consumer.md", "a-cluster-that-heals.md"])
def test_the_page_runs(name: str, tmp_path: pathlib.Path) -> None:
    with tutorial(name, tmp_path) as page:
        page.run()


def test_every_tutorial_is_executed() -> None:
    # The last one in `test_spark_docs.py`, which has a session.
    executed = {"first-ledger.md", "first-log.md", "consumer.md", "a-cluster-that-heals.md", "spark.md"}
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
