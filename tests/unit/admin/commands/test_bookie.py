"""What the verbs of `bk bookie` print."""

from __future__ import annotations

import pytest

from bookies.admin.commands.bookie import _place_text, _row
from bookies.client.transport import BookieStatus
from bookies.model import BookieId


@pytest.mark.parametrize(
    ("location", "nearness", "text"),
    [(None, "host", "-"), ("/east/r1", "unknown", "/east/r1"), ("/east/r1", "region", "/east/r1 (region)")],
)
def test_how_near_a_bookie_is(location: str | None, nearness: str, text: str) -> None:
    status = BookieStatus(BookieId("b1"), "writable", "10.0.0.1:3181", {}, location, nearness=nearness)
    assert _place_text(_row(status)) == text
