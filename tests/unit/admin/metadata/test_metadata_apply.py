"""`bk metadata dump LEDGER`, `diff`, `apply`, `changes`: what they write, and what they refuse."""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from tests.unit.admin.commands.test_metadata import ledger, on

from bookies.admin.cli import main
from bookies.admin.metadata.metadata_apply import Plan, apply, write_plan
from bookies.errors import LedgerExists, LedgerLocked, MetadataCorrupt, MetadataError, VersionConflict
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.embedded.memory import MemoryStore
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.shared import change_log
from bookies.metadata.shared.nodes import Key, Put, Table
from bookies.model import LedgerMetadata, LedgerState
from bookies.runtime import aio

REASON = ["--reason", "a test"]


def record(store: pathlib.Path, ledger_id: int) -> LedgerMetadata:
    read: list[LedgerMetadata] = []

    async def body(driver: MetadataDriver) -> None:
        read.append((await driver.read_ledger(ledger_id)).metadata)

    on(store, body)
    return read[0]


@pytest.fixture
def dumped(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Dump ledgers, with changes to the first line of one, into a file; return its path."""

    def dump(*ledgers: int, words: tuple[str, ...] = (), **changes: object) -> str:
        capsys.readouterr()
        assert main(["metadata", "dump", *map(str, ledgers), *words]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["kind"] for line in lines] == ["cluster", *["ledger"] * len(ledgers), "end"]
        lines[1].update(changes)
        path = store.parent / "part.jsonl"
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return str(path)

    return dump


def read_json(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_a_harmless_change_is_written_and_noted(
    store: pathlib.Path, dumped: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = dumped(3, custom_metadata={"app": "x"})
    assert main(["metadata", "diff", path]) == 1
    assert "label app        - -> x" in capsys.readouterr().out
    assert main(["metadata", "apply", path, *REASON, "--dry-run"]) == 0
    assert "nothing was changed" in capsys.readouterr().err
    assert record(store, 3).custom_metadata == {}
    assert main(["metadata", "apply", path, *REASON, "--json"]) == 0
    assert read_json(capsys)["changed"] == [3]
    assert record(store, 3) == ledger(3).replace(custom_metadata={"app": b"x"}, ctime_ms=record(store, 3).ctime_ms)
    assert main(["metadata", "changes", "--json"]) == 0
    [line] = read_json(capsys)
    assert (line["what"], line["reason"]) == ("ledger 3", "a test")
    assert line["differences"] == [{"field": "label app", "before": "-", "after": "x"}]
    assert main(["metadata", "changes"]) == 0
    assert "ledger 3: a test\n  label app        - -> x" in capsys.readouterr().out
    assert main(["metadata", "apply", path, *REASON]) == 0  # It is the same: the version does not matter.
    assert "1 ledger is the same" in capsys.readouterr().out


def test_what_may_lose_entries_needs_the_words(
    store: pathlib.Path, dumped: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = dumped(3, 4, last_entry=2, length=30)
    assert main(["metadata", "apply", path, *REASON]) == 1
    printed = capsys.readouterr()
    assert "danger: entries 3 to 4 are cut off" in printed.out
    assert '--accept "ledger 3 may lose data"' in printed.err
    assert main(["metadata", "apply", path, *REASON, "--accept", "ledger 4 may lose data"]) == 1
    assert record(store, 3).last_entry_id == 4
    assert main(["metadata", "apply", path, *REASON, "--accept", "ledger 3 may lose data"]) == 0
    assert (record(store, 3).last_entry_id, record(store, 3).password) == (2, b"s3cret")


def test_a_record_that_changed_since_the_dump_is_not_overwritten(
    store: pathlib.Path, dumped: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = dumped(3, custom_metadata={"app": "x"})

    async def change(driver: MetadataDriver) -> None:
        stored = await driver.read_ledger(3)
        await driver.write_ledger(stored.metadata.replace(custom_metadata={"app": b"y"}), stored.version)

    on(store, change)
    for words in ([], ["--dry-run"]):
        assert main(["metadata", "apply", path, *REASON, *words]) == 1
        assert "has changed since it was dumped" in capsys.readouterr().err
    assert record(store, 3).custom_metadata == {"app": b"y"}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"ack_quorum": 3}, "was not written"),
        ({"ensembles": [{"first": 0, "bookies": ["b1", "b1"]}]}, "no client can use such a record"),
        ({"ensembles": []}, "was not written"),
        ({"ledger": "x"}, "'x' is not a ledger id"),
        ({"ledger": [3]}, "[3] is not a ledger id"),
        ({"ledger": True}, "True is not a ledger id"),
    ],
)
def test_a_record_that_nobody_can_use_is_never_written(
    store: pathlib.Path,
    dumped: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, object],
    text: str,
) -> None:
    path = dumped(3, **changes)
    assert main(["metadata", "apply", path, *REASON, "--accept", "ledger 3 may lose data"]) in (1, 2)
    assert text in capsys.readouterr().err
    assert record(store, 3).ensembles == ledger(3).ensembles


def test_files_and_reasons_that_will_not_do(
    store: pathlib.Path, dumped: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = dumped(3)
    assert main(["metadata", "apply", path, "--reason", " "]) == 2
    assert "write one line of text" in capsys.readouterr().err
    assert main(["metadata", "diff", path, "5"]) == 2
    assert "has no line of ledger 5" in capsys.readouterr().err
    assert main(["metadata", "diff", f"{path}x"]) == 2
    pathlib.Path(path).write_bytes(b"\xff\n")
    assert main(["metadata", "diff", path]) == 2
    pathlib.Path(path).write_text('{"kind": "cluster", "instance_id": "other"}\n{"kind": "ledger", "ledger": 3}\n')
    assert main(["metadata", "diff", path]) == 2
    assert "is a dump of cluster other" in capsys.readouterr().err
    pathlib.Path(path).write_text(pathlib.Path(dumped(3)).read_text().split("\n", 1)[1])
    assert main(["metadata", "apply", path, *REASON]) == 2
    assert "does not name its cluster" in capsys.readouterr().err
    assert main(["metadata", "dump", "99"]) == 2


def test_a_deleted_ledger_is_restored(
    store: pathlib.Path, dumped: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = dumped(3, words=("--passwords",))

    async def delete(driver: MetadataDriver) -> None:
        await driver.delete_ledger(3)

    before = record(store, 3)
    on(store, delete)
    assert main(["metadata", "diff", path]) == 1
    assert "ledger 3: deleted" in capsys.readouterr().out
    assert main(["metadata", "apply", path, *REASON]) == 1
    printed = capsys.readouterr()
    assert "danger: entries 0 to 4: no bookie shows the last one (b1: " in printed.out
    assert main(["metadata", "apply", path, *REASON, "--accept", "ledger 3 may lose data"]) == 0
    assert record(store, 3) == before.replace(stores_ctime=True)

    async def open_and_delete(driver: MetadataDriver) -> None:
        await driver.create_ledger(ledger(50, LedgerState.OPEN))

    on(store, delete)
    path = dumped(5, words=("--passwords",), ensembles=[{"first": 0, "bookies": ["b1", "b1"]}], ledger=3)
    assert main(["metadata", "apply", path, *REASON, "--accept", "ledger 3 may lose data"]) == 1
    assert "no client can use such a record" in capsys.readouterr().err
    on(store, open_and_delete)
    path = dumped(50, words=("--passwords",))

    async def delete_open(driver: MetadataDriver) -> None:
        await driver.delete_ledger(50)

    on(store, delete_open)
    assert main(["metadata", "apply", path, *REASON]) == 1
    assert "it was not closed when it was dumped" in capsys.readouterr().out


def test_an_unreadable_record_is_replaced_with_the_words(
    store: pathlib.Path, dumped: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = dumped(4, words=("--passwords",))
    before = record(store, 4)
    with closing(sqlite3.connect(store / "metadata.db")) as connection, connection:
        connection.execute("UPDATE ledgers SET data = ? WHERE id = 4", (b"nonsense",))
    connection.close()
    assert main(["metadata", "dump", "4"]) == 1
    assert '"kind": "damaged"' in capsys.readouterr().out
    assert main(["metadata", "apply", path, *REASON]) == 1
    assert "a later version of bookies may have written it" in capsys.readouterr().out
    assert main(["metadata", "apply", path, *REASON, "--accept", "ledger 4 may lose data"]) == 0
    assert record(store, 4) == before.replace(stores_ctime=True)


def test_a_record_that_another_client_has_replaced_meanwhile_is_not_deleted(store: pathlib.Path) -> None:
    async def body(driver: MetadataDriver) -> None:
        stored = await driver.read_ledger(4)
        stale = Plan(4, ledger(4).replace(last_entry_id=1), "unreadable", stored.version)
        await driver.write_ledger(stored.metadata, stored.version)
        with pytest.raises(VersionConflict):
            await write_plan(driver, stale, "a test")

    on(store, body)
    assert record(store, 4).last_entry_id == 4


class LostRequest:
    """Loses the request, or the answer, of one kind of operation. A lost request is an interruption."""

    def __init__(self, operation: str, *, is_answer: bool) -> None:
        self._operation = operation
        self._is_answer = is_answer

    async def before(self, operation: str, driver: MemoryDriver) -> None:
        if operation == self._operation and not self._is_answer:
            raise asyncio.CancelledError

    async def after(self, operation: str, driver: MemoryDriver) -> None:
        if operation == self._operation and self._is_answer:
            raise MetadataError("lost")


def test_an_unreadable_record_is_replaced_in_one_step() -> None:
    """An interruption leaves the unreadable record or the new one: without a record, bookies delete the entries."""

    async def replaced(faults: LostRequest) -> tuple[MetadataDriver, BaseException]:
        memory = MemoryStore()
        driver = MemoryDriver(memory, aio.runtime(), faults=faults)
        await driver.open()
        await driver.initialize_cluster()
        memory.commit([], [Put(Key(Table.LEDGERS, 4), b"nonsense")])
        with pytest.raises(MetadataCorrupt) as corrupt:
            await driver.read_ledger(4)
        assert corrupt.value.version is not None
        with pytest.raises((MetadataError, asyncio.CancelledError)) as ended:
            await write_plan(driver, Plan(4, ledger(4), "unreadable", corrupt.value.version), "a test")
        return driver, ended.value

    async def body() -> None:
        driver, error = await replaced(LostRequest("write_ledger", is_answer=False))
        assert isinstance(error, asyncio.CancelledError)
        with pytest.raises(MetadataCorrupt):
            await driver.read_ledger(4)
        driver, error = await replaced(LostRequest("write_ledger", is_answer=True))
        assert (await driver.read_ledger(4)).metadata.is_closed

    asyncio.run(body())


def test_the_id_of_a_ledger_that_was_not_restored_stays_spent() -> None:
    async def after(faults: LostRequest) -> MetadataDriver:
        memory = MemoryStore()
        driver = MemoryDriver(memory, aio.runtime())
        await driver.open()
        await driver.initialize_cluster()
        await driver.create_ledger(ledger(4))
        await driver.delete_ledger(4)
        limited = MemoryDriver(memory, aio.runtime(), faults=faults)
        await limited.open()
        with pytest.raises((MetadataError, asyncio.CancelledError)):
            await write_plan(limited, Plan(4, ledger(4), "deleted"), "a test")
        return driver

    async def body() -> None:
        driver = await after(LostRequest("create_ledger", is_answer=False))
        with pytest.raises(LedgerExists, match="was deleted"):
            await driver.create_ledger(ledger(4))
        driver = await after(LostRequest("create_ledger", is_answer=True))
        assert (await driver.read_ledger(4)).metadata.is_closed
        assert (await driver.given_ids()).spent == ()

    asyncio.run(body())


def test_a_ledger_named_twice_is_changed_once(
    store: pathlib.Path, dumped: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = dumped(3, custom_metadata={"app": "x"})
    assert main(["metadata", "apply", path, "3", "3", *REASON, "--json"]) == 0
    assert read_json(capsys)["changed"] == [3]


def test_a_ledger_that_a_repair_has_locked_is_left_alone(
    store: pathlib.Path, dumped: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = dumped(3, custom_metadata={"app": "x"})

    async def locked(driver: MetadataDriver) -> None:
        assert await driver.recovery.lock(3, "a repair", needs_mark=False) is not None
        given = {"file": path, "ledgers": [], "reason": "a test", "accept": [], "dry_run": False}
        with pytest.raises(LedgerLocked, match="a repair has its lock"):
            await apply(argparse.Namespace(metadata=driver.uri, **given))

    on(store, locked)
    assert record(store, 3).custom_metadata == {}


def test_the_log_of_changes_keeps_the_last_lines(store: pathlib.Path) -> None:
    async def body(driver: MetadataDriver) -> None:
        differences = [{"field": str(number), "before": "a", "after": "b"} for number in range(60)]
        for number in range(change_log.LINES_MAX + 1):
            await change_log.note_change(
                driver, number, "me", "why", f"ledger {number}", differences[: 60 * (not number % 200)]
            )
        lines = await change_log.read_changes(driver)
        assert (lines[0]["what"], lines[-1]["what"]) == ("ledger 1", f"ledger {change_log.LINES_MAX}")
        assert (len(lines[-1]["differences"]), lines[-1]["omitted"]) == (change_log.FIELDS_MAX, 10)
        _, version = await driver.read_record(change_log.NAME)
        await driver.write_record(change_log.NAME, b"{", version)
        assert await change_log.read_changes(driver) == []

    on(store, body)
