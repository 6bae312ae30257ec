"""What `bk bookie drain` does with a drain's result."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import pytest

from bookies.admin.verbs.drain import _carry_out
from bookies.model import BookieId
from bookies.replication.operator.drain import DrainPlan, DrainResult
from bookies.replication.operator.drain_work import DrainProgress


class EndedDrain:
    """A drain that ends at once with a result. `is_removed`: the bookie's cookie was deleted."""

    def __init__(self, result: DrainResult) -> None:
        self._result = result
        self.is_removed = False

    async def begin(self) -> None:
        return

    async def run(self, plan: DrainPlan, report: Callable[[DrainProgress], None], *, waits: bool) -> DrainResult:
        return self._result

    async def remove(self) -> None:
        self.is_removed = True


@pytest.mark.parametrize(
    ("is_cancelled", "status", "text"),
    [(False, 0, "the cluster has forgotten b3"), (True, 1, "was cancelled meanwhile: writers may use b3 again")],
)
def test_a_bookie_whose_drain_was_cancelled_is_not_removed(is_cancelled: bool, status: int, text: str) -> None:
    """Writers may use it again, also if it was empty at that moment."""
    ended = EndedDrain(DrainResult(is_empty=True, is_cancelled=is_cancelled))
    drain: Any = ended
    arguments = Namespace(json=False, wait=False, remove=True)
    report = asyncio.run(_carry_out(drain, DrainPlan(BookieId("b3"), "writable"), {}, arguments))
    assert ended.is_removed is not is_cancelled
    assert report.status == status
    assert text in "".join(report.text)
