"""What the options say is read, and from where to where."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bookies.errors import InvalidArgument
from bookies.spark.base.selection import Selection, check_named, where

BOTH = Selection(("orders", "returns", 17))


@pytest.mark.parametrize(
    "content", [{"orders": 1, "17": 2}, {"logs": {"orders": [0, 1]}, "ledgers": {"17": 2}, "v": 1}]
)
def test_what_is_read_may_be_named(content: dict[str, Any]) -> None:
    at = where({"startingOffsets": json.dumps(content)}, "starting", "earliest")
    check_named(at, BOTH, "starting")
    check_named(at, Selection(label=("owner", "me")), "starting")


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({"startingOffsets": '{"orders": 1, "others": 2}'}, BOTH),
        ({"startingOffsets": '{"logs": {"others": [0, 1]}, "tokens": {"others": "beef"}, "v": 1}'}, BOTH),
        ({"startingOffsetsByTimestamp": '{"others": 2}'}, BOTH),
        ({"startingOffsets": '{"others": 2}'}, Selection(pattern="or.*")),
    ],
)
def test_what_is_not_read_may_not_be_named(options: dict[str, str], chosen: Selection) -> None:
    with pytest.raises(InvalidArgument, match=f"option {next(iter(options))} names others, which is not read"):
        check_named(where(options, "starting", "earliest"), chosen, "starting")
    check_named("earliest", chosen, "starting")
    check_named(where({"startingOffsets": '{"orders": 2}'}, "starting", ""), chosen, "starting")
