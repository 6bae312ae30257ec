"""`bk lock`: what ends its command. `tests/live/test_turns.py` runs it against a cluster."""

from __future__ import annotations

import asyncio
import pathlib
import time
from collections.abc import Callable
from typing import cast

import pytest

from bookies.admin.verbs.lock import LOST, _run
from bookies.admin.verbs.lock_guard import guarding
from bookies.client.turns.lease import Lease

TTL_S = 20.0


class FakeLease:
    """A lease that ends `left_s` after the command is ready. `ready`: the file that shows it.

    `before_s`: what is left until then.
    """

    token = 1

    def __init__(self, ready: pathlib.Path | None, left_s: float, before_s: float = 0.05) -> None:
        self._ready, self._left_s, self._before_s = ready, left_s, before_s
        self._until_s = None if ready is not None else time.monotonic() + left_s

    @property
    def left_s(self) -> float:
        if self._until_s is None:
            if self._ready is None or not self._ready.exists():
                return self._before_s
            self._until_s = time.monotonic() + self._left_s
        return self._until_s - time.monotonic()

    @property
    def is_held(self) -> bool:
        return self.left_s > 0

    def on_lost(self, callback: Callable[[], None]) -> None:
        pass


async def run(lease: FakeLease, *command: str, grace_s: float = TTL_S / 2) -> int:
    async with guarding() as extend, asyncio.timeout(30):
        return await _run(cast(Lease, lease), extend, list(command), TTL_S, grace_s)


def test_a_lock_that_was_lost_while_the_command_was_started(capsys: pytest.CaptureFixture[str]) -> None:
    assert asyncio.run(run(FakeLease(None, -TTL_S), "sleep", "600")) == LOST
    assert "the command was ended" in capsys.readouterr().err


def test_a_command_has_the_grace_before_the_lock_is_lost(tmp_path: pathlib.Path) -> None:
    """It ends in order, although it needs longer than the last twentieth of the ttl."""
    ready, done = tmp_path / "ready", tmp_path / "done"
    script = f"trap 'sleep 1.2; touch {done}; exit 0' TERM; touch {ready}; while :; do sleep 0.02; done"
    lease = FakeLease(ready, TTL_S / 2 - 1, TTL_S / 2)
    assert asyncio.run(run(lease, "sh", "-c", script)) == LOST
    assert done.exists()
    assert lease.is_held


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_command_that_ignores_sigterm(tmp_path: pathlib.Path, is_lost: bool) -> None:
    """It is killed before another process can have the lock, or with the second signal to `bk lock`."""
    ready = tmp_path / "ready"
    script = f"trap '' TERM; touch {ready}; while :; do sleep 0.02; done"

    async def act() -> float:
        lease = FakeLease(ready, 0.0) if is_lost else FakeLease(None, TTL_S)
        running = asyncio.ensure_future(run(lease, "sh", "-c", script, grace_s=0.5 if is_lost else TTL_S / 2))
        if is_lost:
            assert await running == LOST
        else:
            while not ready.exists() and not running.done():  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.01)
            for _ in range(2):
                running.cancel()
                await asyncio.sleep(0.1)
            with pytest.raises(asyncio.CancelledError):
                await running
        return lease.left_s

    left_s = asyncio.run(act())
    assert left_s > (-TTL_S / 10 if is_lost else TTL_S / 2)
