"""`bk lock`: what ends its command. `tests/live/test_turns.py` runs it against a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from bookies.admin.verbs.lock import LOST, _run
from bookies.client.turns.lease import Lease


class LostLease:
    """A lease that was lost before its owner asked to be called back."""

    token, is_held = 1, False

    def on_lost(self, callback: Callable[[], None]) -> None:
        pass


def test_a_lock_that_was_lost_while_the_command_was_started(capsys: pytest.CaptureFixture[str]) -> None:
    async def act() -> int:
        async with asyncio.timeout(30):
            return await _run(cast(Lease, LostLease()), ["sleep", "600"], 2.0)

    assert asyncio.run(act()) == LOST
    assert "the command was ended" in capsys.readouterr().err
