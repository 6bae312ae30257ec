"""A writer never gets an acknowledgement in a ledger that has ended, with processes on the embedded store."""

from __future__ import annotations

import pathlib

import pytest
from tests.live.ended import stale_writer_is_refused

pytestmark = pytest.mark.live


def test_bookies_are_emptied_behind_a_writer(tmp_path: pathlib.Path) -> None:
    stale_writer_is_refused(tmp_path)
