"""A storage on RocksDB killed with SIGKILL again and again: all is there, and no database counts as damaged."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
from tests.live import databases_killed as child

from bookies.runtime import aio
from bookies.storage.store import LedgerStore

pytest.importorskip("rocksdict")
pytestmark = pytest.mark.live


def test_what_was_acknowledged_outlasts_kills(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    acknowledged: list[tuple[int, int]] = []
    root = pathlib.Path(__file__).parents[2]
    monkeypatch.chdir(tmp_path)
    for life in range(5):
        command = [sys.executable, "-m", "tests.live.databases_killed", str(life)]
        environment = {"PYTHONPATH": str(root), "PATH": ""}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            for _ in range(137 * (life + 1)):
                line = process.stdout.readline()
                assert line, "the storage has ended by itself"
                acknowledged.append((int(line.split()[0]), int(line.split()[1])))
            process.kill()

    async def check() -> None:
        store = LedgerStore(aio.runtime(), child.CONFIG, lambda error: pytest.fail(repr(error)))
        await store.start()
        try:
            for ledger_id, entry_id in acknowledged:
                assert await store.read(ledger_id, entry_id) == child.body(ledger_id, entry_id)
            assert not store.limbo
        finally:
            store.abort()

    aio.run(check())
    assert not list(tmp_path.glob("ledgers*/current/*.damaged"))
