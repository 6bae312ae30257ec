"""The checks of deletion and of space can fail: a log that stays, an entry of a ledger that was deleted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.adds import add_to

from bookies.kernels import Adds, Records
from bookies.lab.sim.run import simulate
from bookies.lab.sim.world.witness import Witness
from bookies.storage.gc import sealed_logs
from bookies.storage.gc.sealed_logs import SealedLogs


def test_a_log_that_is_forgotten_and_not_removed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: dict[str, None] = {}
    find = sealed_logs.find_logs

    async def delete(self: SealedLogs, usage: Any) -> None:
        forgotten[usage.path] = None
        del self.known[usage.log_id]

    def find_others(disk: Any, logs: Any, among: Any) -> dict[int, str]:
        return {log_id: path for log_id, path in find(disk, logs, among).items() if path not in forgotten}

    monkeypatch.setattr(SealedLogs, "delete", delete)
    monkeypatch.setattr(sealed_logs, "find_logs", find_others)
    result = simulate(1, "collecting", duration_s=0.3, stops_at_first=True)
    assert result.violations
    assert "nobody knows of it" in result.violations[0]


def test_an_entry_of_a_ledger_that_was_deleted_is_noticed() -> None:
    told: list[tuple[str, str]] = []

    def add(adds: Adds, *arguments: Any, done: Any, **flags: Any) -> list[Any]:
        done(adds, None)
        return []

    store: Any = SimpleNamespace(record=lambda ledger_id: None)
    witness = Witness(store, lambda promise, text: told.append((promise, text)))
    inner: Any = SimpleNamespace(add=add)
    storage = witness.watch("b1", inner)

    def write(ledger_id: int) -> None:
        add_to(
            storage,
            ledger_id,
            b"",
            [3],
            Records.of([b"body"]),
            -1,
            is_recovery=False,
            is_deferred_sync=False,
            done=lambda error: None,
        )

    write(7)
    witness.check_deletions("b1", [7])
    write(8)
    assert told == []
    write(7)
    assert told == [("I-29", "b1 deleted ledger 7, then acknowledged [3]")]
