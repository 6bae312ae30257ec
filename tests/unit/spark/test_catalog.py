"""Names and options of the tables of logs."""

from __future__ import annotations

import pytest

from bookies.errors import InvalidArgument
from bookies.spark.catalog import divided, table_names


def test_a_table_has_the_name_of_its_log_or_a_chosen_one() -> None:
    assert table_names(["Orders", "de.berlin-2"], {}) == {"orders": "Orders", "de_berlin_2": "de.berlin-2"}
    assert table_names(["orders", "Orders"], {"Orders": "old"}) == {"orders": "orders", "old": "Orders"}


@pytest.mark.parametrize(
    ("logs", "chosen", "message"),
    [
        (["a-b", "a.b"], {}, "logs a-b and a.b would both be table a_b: choose a name with tables={'a.b': ...}"),
        (["a"], {"a": "x y"}, "log a: 'x y' is no name of a table: use letters, digits and _"),
    ],
)
def test_a_name_that_cannot_be_is_refused(logs: list[str], chosen: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        table_names(logs, chosen)
    assert str(caught.value) == message


def test_options_reach_the_source_the_sink_or_both() -> None:
    given = {"limit": "3", "createLog": "true", "valueformat": "utf8", "bookkeeper.readTimeoutMs": "9"}
    pattern, reads, writes = divided({**given, "subscribePattern": "o.*"})
    assert pattern.pattern == "o.*"
    assert reads == {"limit": "3", "valueFormat": "utf8", "bookkeeper.readTimeoutMs": "9"}
    assert writes == {"createLog": "true", "bookkeeper.readTimeoutMs": "9"}  # The sink does not have `utf8`.
    assert divided({"valueFormat": "json", "recordFormat": "auto"})[2] == {"valueFormat": "json"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"log": "a"}, "option log: register_logs sets it for each table; leave it out"),
        ({"colums": "a"}, "unknown option 'colums'; did you mean columns?"),
        ({"subscribePattern": "("}, "option subscribePattern: missing ), unterminated subpattern at position 0"),
    ],
)
def test_an_option_that_has_no_meaning_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        divided(options)
    assert str(caught.value) == message
