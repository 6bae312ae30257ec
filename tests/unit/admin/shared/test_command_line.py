"""Rows of verbs become parsers: names, values, defaults, groups of which one may be given."""

from __future__ import annotations

import argparse

import pytest

from bookies.admin.shared import UsageError
from bookies.admin.shared.command_line import MACHINE, RATE, OneOf, Option, build_parser, check_rate, verb
from bookies.admin.shared.report import Report


def nothing(arguments: argparse.Namespace) -> Report:
    return Report({})


VERBS = (
    verb(
        "shelf copy",
        "copy books",
        "bk shelf copy 7",
        nothing,
        Option("books BOOK", "ids of books", int, values="*"),
        Option("--label NAME=VALUE", "label", may_repeat=True),
        Option("--from POSITION", "first page", field="start"),
        Option("--watch SECONDS", "interval", float, values="?", bare=5.0),
        Option("--pages", "number of pages", int, default=0),
        OneOf(Option("--all", "copy all", bool), Option("--none", "copy none", bool), is_required=True),
        description="Copies books.",
        shared=MACHINE,
    ),
    verb("shelf list", "list books", "example of its own", nothing),
    verb("look", "look around", "bk look", nothing, shared=(RATE,)),
)


def test_values_and_defaults() -> None:
    parsed = build_parser("shelf", "shelves", VERBS).parse_args(
        ["copy", "7", "8", "--label", "a=1", "--watch", "--all"]
    )
    assert (parsed.noun, parsed.verb, parsed.run) == ("shelf", "copy", nothing)
    assert (parsed.books, parsed.label, parsed.watch, parsed.pages) == ([7, 8], ["a=1"], 5.0, 0)
    assert (parsed.start, parsed.all, parsed.none, parsed.json, parsed.debug) == (None, True, False, False, False)
    assert not hasattr(parsed, "metadata")


def test_a_command_that_is_no_group_has_its_options_itself() -> None:
    parsed = build_parser("look", "look around", VERBS).parse_args(["--rate", "0"])
    assert (parsed.noun, parsed.run, parsed.debug) == ("look", nothing, False)
    with pytest.raises(UsageError, match="--rate 0: must be above 0"):
        check_rate(parsed)


@pytest.mark.parametrize("words", [["copy"], ["copy", "--all", "--none"], ["look"], []])
def test_wrong_words_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser("shelf", "shelves", VERBS).parse_args(words)


def test_the_help_names_the_values(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["copy", "--help"], ["list", "--help"]):
        with pytest.raises(SystemExit):
            build_parser("shelf", "shelves", VERBS).parse_args(words)
    shown = capsys.readouterr().out
    for text in ("--label NAME=VALUE", "--from POSITION", "--pages PAGES", "[BOOK ...]", "Copies books."):
        assert text in shown
    assert "example: bk shelf copy 7" in shown
    assert "\nexample of its own" in shown
