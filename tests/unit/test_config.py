"""Settings that contradict each other are refused before anything is touched."""

from __future__ import annotations

from typing import Any

import pytest

from bookies.config import BookieConfig, validate
from bookies.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"journal_directories": ("/j", "/j")}, "journal_directories: /j is named twice"),
        ({"ledger_directories": ("/l", "/m", "/l")}, "ledger_directories: /l is named twice"),
        ({"ledger_directories": ("/l", "/l/")}, "/l and /l/ are one directory"),
        ({"journal_directories": ("./x",), "ledger_directories": ("x",)}, "./x and x are one directory"),
        ({"journal_directories": ("/x/current",), "ledger_directories": ("/x",)}, "/x/current is inside of /x/current"),
        ({"ledger_directories": ("/x",), "index_directories": ("/x/current/i",)}, "/x/current/i is inside of /x/curr"),
        ({"journal_directories": ()}, "journal_directories is empty"),
        ({"ledger_directories": ()}, "ledger_directories is empty"),
        ({"ledger_directories": ("a,b",)}, "'a,b' cannot be a directory"),
        ({"index_directories": ("",)}, "'' cannot be a directory"),
    ],
)
def test_directories_in_each_others_way(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(BookieConfig(**settings))
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"journal_directories": ("/x",), "ledger_directories": ("/x",), "index_directories": ("/x",)},
        {"journal_directories": ("/x/journal",), "ledger_directories": ("/x",)},
        {"journal_directories": ("/x/current2",), "ledger_directories": ("/x",)},
    ],
)
def test_directories_that_get_along(settings: dict[str, Any]) -> None:
    validate(BookieConfig(**settings))
