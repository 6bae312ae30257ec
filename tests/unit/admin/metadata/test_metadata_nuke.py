"""`bk metadata nuke`: three locks, and what is left afterwards."""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib
import sqlite3
from typing import Any

import pytest
from tests.unit.admin.commands.test_metadata import B1, on

from bookies.admin.cli import main
from bookies.admin.metadata import metadata_nuke
from bookies.admin.metadata.metadata_dump import dump_to
from bookies.admin.metadata.metadata_nuke import nuke
from bookies.errors import MetadataError
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.shared.nodes import INSTANCE_ID, Delete
from bookies.metadata.shared.store_driver import StoreDriver
from bookies.model import BookieInfo, BookieMode


def instance_of(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["metadata", "show", "--json"]) == 0
    return str(json.loads(capsys.readouterr().out)["instance_id"])


def test_a_cluster_is_removed_and_restored_from_the_dump(
    store: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    instance_id, dump = instance_of(capsys), store.parent / "dump.jsonl"
    words = ["metadata", "nuke", "--dump", str(dump), "--instance-id", instance_id]
    assert main(["metadata", "dump", "--passwords"]) == 0
    before = capsys.readouterr().out
    assert main([*words, "--dry-run"]) == 0
    assert f"would write a dump to {dump} and remove cluster {instance_id}" in capsys.readouterr().out
    assert not dump.exists()
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "7 ledgers, 2 cookies, 1 records" in printed
    assert "`bk metadata load FILE --ids-from 8` restores" in printed
    assert dump.read_text() == before
    assert dump.stat().st_mode & 0o777 == 0o600
    assert main(["metadata", "show"]) == 1
    assert main(words) == 1
    assert "there is no cluster" in capsys.readouterr().err
    assert main(["metadata", "load", str(dump), "--ids-from", "8"]) == 0
    capsys.readouterr()
    assert main(["metadata", "dump", "--passwords"]) == 0
    assert capsys.readouterr().out.replace('"stores_ctime": true', '"stores_ctime": false') == before


def test_each_lock_holds(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    instance_id, dump = instance_of(capsys), store.parent / "dump.jsonl"
    words = ["metadata", "nuke", "--dump", str(dump)]
    assert main([*words, "--instance-id", "x"]) == 2
    assert f"is cluster {instance_id}, not x" in capsys.readouterr().err
    dump.write_text("precious")
    assert main([*words, "--instance-id", instance_id]) == 2
    assert "exists: name a new file" in capsys.readouterr().err
    assert dump.read_text() == "precious"
    assert main([*words[:2], "--dump", str(store / "no" / "dump"), "--instance-id", instance_id]) == 2
    assert "cannot write" in capsys.readouterr().err

    async def registered(driver: MetadataDriver) -> None:
        given = {"instance_id": instance_id, "dump": f"{dump}2", "dry_run": False, "json": True}
        arguments = argparse.Namespace(metadata=driver.uri, **given)
        await driver.register(B1, BookieMode.READ_ONLY, BookieInfo())
        with pytest.raises(MetadataError, match=r"1 bookie \(b1\) registered: stop all clients"):
            await nuke(arguments)
        await driver.unregister(B1)
        is_leader = asyncio.Event()
        await driver.recovery.campaign(B1, is_leader.set)
        await is_leader.wait()
        with pytest.raises(MetadataError, match="auto-recovery runs, with auditor b1"):
            await nuke(arguments)

    on(store, registered)
    assert not pathlib.Path(f"{dump}2").exists()
    assert instance_of(capsys) == instance_id


def test_a_bookie_that_starts_during_the_dump_keeps_the_cluster(
    store: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    instance_id, dump = instance_of(capsys), store.parent / "dump.jsonl"

    async def start_meanwhile(driver: MetadataDriver) -> None:
        async def dump_and_start(*given: Any, **options: Any) -> int:
            await driver.register(B1, BookieMode.WRITABLE, BookieInfo())
            return await dump_to(*given, **options)

        monkeypatch.setattr(metadata_nuke, "dump_to", dump_and_start)
        given = {"instance_id": instance_id, "dump": str(dump), "dry_run": False, "json": True}
        with pytest.raises(MetadataError, match=r"1 bookie \(b1\) registered: stop all clients"):
            await nuke(argparse.Namespace(metadata=driver.uri, **given))
        await driver.unregister(B1)

    on(store, start_meanwhile)
    assert instance_of(capsys) == instance_id


def test_the_dump_of_a_removal_that_did_not_begin_is_forgotten(
    store: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    instance_id, dump = instance_of(capsys), store.parent / "dump.jsonl"
    on(store, lambda driver: driver.create_record("removal", b'{"instance_id": "x", "dump": "/old"}'))
    noted: list[bytes] = []

    async def stop(driver: StoreDriver, instance_id: str) -> None:
        noted.append((await driver.read_record("removal"))[0])
        raise MetadataError("interrupted")

    monkeypatch.setattr(StoreDriver, "remove_cluster", stop)
    assert main(["metadata", "nuke", "--dump", str(dump), "--instance-id", instance_id]) == 1
    assert json.loads(noted[0]) == {"instance_id": instance_id, "dump": str(dump), "next_id": 8}


def test_an_unreadable_record_keeps_the_cluster(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dump that cannot be loaded is no backup."""
    with sqlite3.connect(store / "metadata.db") as connection:
        connection.execute("UPDATE ledgers SET data = ? WHERE id = 4", (b"nonsense",))
    connection.close()
    instance_id = instance_of(capsys)
    words = ["metadata", "nuke", "--dump", str(store.parent / "dump.jsonl"), "--instance-id", instance_id]
    assert main(words) == 1
    assert "ledger 4" in capsys.readouterr().err
    assert instance_of(capsys) == instance_id


def test_an_interrupted_removal_is_continued_by_the_same_command(
    store: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a store that cannot remove everything in one step."""
    instance_id = instance_of(capsys)

    async def interrupt(driver: MetadataDriver) -> None:
        assert isinstance(driver, StoreDriver)
        await driver.create_record("removal", json.dumps({"instance_id": instance_id, "dump": "x"}).encode())
        await driver.run("test", driver._store.commit, [], [Delete(INSTANCE_ID)])

    on(store, interrupt)
    assert main(["metadata", "check"]) == 1
    assert "half-removed" in capsys.readouterr().out
    assert main(["metadata", "init"]) == 1
    assert "`nuke` was interrupted" in capsys.readouterr().err
    words = ["metadata", "nuke", "--dump", str(store.parent / "dump.jsonl"), "--instance-id"]
    assert main([*words, "x"]) == 1
    assert main([*words, instance_id, "--dry-run"]) == 0
    assert f"the dump is x; would remove cluster {instance_id}" in capsys.readouterr().out
    assert main([*words, instance_id]) == 0
    printed = capsys.readouterr().out
    assert "the rest of it" in printed
    assert "the dump is x;" in printed
    assert main(["metadata", "init"]) == 0
    capsys.readouterr()
    assert main(["metadata", "show", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (sum(shown["ledgers"].values()), shown["cookies"], shown["records"]) == (0, 0, 0)
