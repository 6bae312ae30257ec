"""`bk metadata` on real stores: what it prints, its exit status, and what it leaves behind."""

from __future__ import annotations

import json
import pathlib
import shutil
import sqlite3
from collections.abc import Awaitable, Callable

import pytest

from bookies.admin.cli import main
from bookies.admin.metadata.metadata_check import check
from bookies.config import BookieConfig
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.embedded.memory import MemoryStore
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.recovery_store import AuditKind
from bookies.metadata.shared.nodes import Key, Put, Table
from bookies.metadata.uri import connect
from bookies.model import BookieId, BookieInfo, BookieMode, LedgerMetadata, LedgerState
from bookies.protocol.log import Manifest
from bookies.protocol.log.log_model import Extent, pack_manifest
from bookies.runtime import aio
from bookies.storage.identity.cookie import master_cookie

B1, B2 = BookieId("b1"), BookieId("b2")


def on(directory: pathlib.Path, body: Callable[[MetadataDriver], Awaitable[None]]) -> None:
    async def run() -> None:
        driver = connect(f"file:{directory}", aio.runtime())
        await driver.open()
        try:
            await body(driver)
        finally:
            await driver.close()

    aio.run(run())


def ledger(ledger_id: int, state: LedgerState = LedgerState.CLOSED) -> LedgerMetadata:
    is_closed = state is LedgerState.CLOSED
    made = LedgerMetadata(ledger_id, 2, 2, 1, ((0, (B1, B2)),), state, password=b"s3cret")
    return made if not is_closed else LedgerMetadata(**{**_fields(made), "last_entry_id": 4, "length": 50})


def _fields(metadata: LedgerMetadata) -> dict[str, object]:
    return {name: getattr(metadata, name) for name in metadata.__struct_fields__}


def manifest(*ledger_ids: int) -> Manifest:
    from bookies.model import DigestType

    extents = tuple(Extent(seq, each) for seq, each in enumerate(ledger_ids))
    return Manifest("token", 1_700_000_000_000, 2, 2, 1, DigestType.CRC32C, extents=extents, next_seq=len(extents))


async def fill(driver: MetadataDriver) -> None:
    instance_id = await driver.initialize_cluster()
    for bookie in (B1, B2):
        config = BookieConfig(journal_directories=(f"/{bookie}/j",), ledger_directories=(f"/{bookie}/l",))
        await driver.create_cookie(bookie, master_cookie(config, bookie, instance_id).pack())
    for _ in range(8):
        await driver.create_ledger(ledger(await driver.next_ledger_id()))
    await driver.delete_ledger(0)
    await driver.create_record("logs/events", pack_manifest(manifest(1, 2)))
    await driver.recovery.mark(3, [B1], 1_700_000_000_000)
    await driver.recovery.mark(4, [], None)
    await driver.recovery.set_lost_bookie_delay_s(600)
    await driver.recovery.set_checked_at_ms(AuditKind.PLACEMENT, 1_700_000_000_001)


def test_init_makes_a_cluster_once(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["metadata", "init", "--metadata", f"file:{tmp_path}/new/store"]
    assert main([*words, "--dry-run"]) == 0
    assert not (tmp_path / "new").exists()
    assert main([*words, "--json"]) == 0
    made = json.loads(capsys.readouterr().out.splitlines()[-1])["instance_id"]
    for more in ([], ["--dry-run"]):
        assert main([*words, *more]) == 1
        assert f"there is a cluster at file:{tmp_path}/new/store already, {made}" in capsys.readouterr().err
    assert main(["metadata", "init", "--metadata", "file://host/x"]) == 2
    assert not (tmp_path / "host").exists()


def test_init_says_that_it_could_not_be_done(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not being able to look is no sign that there is nothing."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "metadata.db").write_bytes(b"nonsense" * 1000)
    words = ["metadata", "init", "--dry-run", "--metadata"]
    assert main([*words, f"file:{tmp_path}/store"]) == 1
    assert "is damaged" in capsys.readouterr().err
    half = tmp_path / "half"
    half.mkdir()
    on(half, lambda driver: _cookie_alone(driver))
    assert main([*words, f"file:{half}"]) == 1
    assert "has no instance id, but cookies" in capsys.readouterr().err
    assert main([*words[:2], "--metadata", "memory:x"]) == 2
    assert "exists only until this command ends" in capsys.readouterr().err


async def _cookie_alone(driver: MetadataDriver) -> None:
    await driver.create_cookie(B1, b"")


def test_show_counts(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metadata", "show", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["ledgers"] == {"open": 0, "in_recovery": 0, "closed": 7, "damaged": 0}
    assert (shown["cookies"], shown["records"], shown["next_id"], shown["spent_ids"]) == (2, 1, 8, 1)
    assert shown["marks"] == 2
    assert main(["metadata", "show"]) == 0
    assert "0 open, 0 in recovery, 7 closed, 0 damaged" in capsys.readouterr().out
    assert main(["metadata", "show", "--metadata", f"file:{store.parent}"]) == 1


def test_a_dump_is_loaded_elsewhere(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metadata", "dump"]) == 0
    printed = capsys.readouterr().out
    assert "s3cret" not in printed
    lines = [json.loads(line) for line in printed.splitlines()]
    others = ["cluster", "ids", "cookie", "cookie", "record", "recovery", "mark", "mark"]
    assert [each["kind"] for each in lines] == [*others, *["ledger"] * 7, "ids", "end"]
    assert lines[5] == {
        "kind": "recovery",
        "enabled": True,
        "delay_s": 600,
        "checked_at_ms": {"placement": 1_700_000_000_001},
    }
    assert lines[6] == {"kind": "mark", "ledger": 3, "replicas": ["b1"], "ctime_ms": 1_700_000_000_000}
    assert lines[7] == {"kind": "mark", "ledger": 4, "replicas": [], "ctime_ms": None}
    assert lines[-1]["lines"] == len(lines)
    dump, target = store.parent / "dump.jsonl", store.parent / "other" / "store"
    words = ["metadata", "load", str(dump), "--metadata", f"file:{target}"]
    dump.write_text(printed)
    assert main(words) == 2
    assert "dump again with --passwords" in capsys.readouterr().err
    assert main(["metadata", "dump", "--passwords"]) == 0
    printed = capsys.readouterr().out
    for broken in (printed[: len(printed) // 2], printed.replace("\n", "\n\n", 2), printed + "{}\n", "", "x"):
        dump.write_text(broken)
        assert main(words) == 2, broken
        assert not target.exists()
    dump.write_text(printed)
    assert main([*words, "--dry-run"]) == 0
    assert main(words) == 0
    assert main(words) == 1  # It is there already.
    capsys.readouterr()
    assert main(["metadata", "migrate", f"file:{store}", f"file:{target}"]) == 0
    assert "the target is complete and equal: 7 ledgers" in capsys.readouterr().out


def test_ids_that_were_handed_out_after_the_dump_are_not_handed_out_again(
    store: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bookies may have entries of those ledgers, so a new ledger would be sealed with them."""
    dump, target = store.parent / "dump.jsonl", store.parent / "target"
    assert main(["metadata", "dump", "--passwords"]) == 0
    dump.write_text(capsys.readouterr().out)
    first_line = json.loads(dump.read_text().splitlines()[1])["next_id"]
    given: list[int] = []

    async def give(driver: MetadataDriver) -> None:
        given.append(await driver.next_ledger_id())

    on(store, give)
    words = ["metadata", "load", str(dump)]
    for wrong in (first_line - 1, 1 << 63):
        assert main([*words, "--metadata", f"file:{target}", "--ids-from", str(wrong)]) == 2
        assert f"--ids-from must be from {first_line} to {(1 << 63) - 1}" in capsys.readouterr().err
    assert main([*words, "--metadata", f"file:{target}"]) == 0
    on(target, give)
    assert main([*words, "--metadata", f"file:{target}2", "--ids-from", "50"]) == 0
    on(store.parent / "target2", give)
    assert given == [first_line, first_line + 1_000_000, 50]


def test_what_is_no_dump_is_refused_before_anything_is_made(
    store: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Edited by hand, or damaged: one sentence, and an empty target."""
    assert main(["metadata", "dump", "--passwords"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    dump, target = store.parent / "dump.jsonl", store.parent / "other" / "store"

    def load(changes: dict[int, dict[str, object]]) -> str:
        texts = [json.dumps({**line, **changes.get(number, {})}) for number, line in enumerate(lines)]
        dump.write_text("".join(f"{text}\n" for text in texts))
        assert main(["metadata", "load", str(dump), "--metadata", f"file:{target}"]) == 2, changes
        assert not target.exists()
        return capsys.readouterr().err

    kinds = [line["kind"] for line in lines]
    ids, cookie, record, first = map(kinds.index, ("ids", "cookie", "record", "ledger"))
    for name, value in (("digest", 3), ("state", 1), ("custom_metadata", [1]), ("ctime_ms", "x"), ("ledger", -1)):
        load({first: {name: value}})
    for changes in ({"next_id": -5}, {"spent": [[5, 2]]}, {"spent": [[-1, 2]]}):
        assert "of kind ids cannot be read" in load({ids: changes})
    for changed in ({ids: lines[record]}, {record: lines[ids]}):
        assert "lines of ids handed out must be the second line" in load(changed)
    assert "'../LAYOUT' is not a bookie id" in load({cookie: {"bookie": "../LAYOUT"}})
    assert "is not a record name" in load({record: {"name": "../x"}})
    load({record: {"name": 5}})
    for text in (b"\xff\xfe\n", b"[" * 100_000):
        dump.write_bytes(text)
        assert main(["metadata", "load", str(dump), "--metadata", f"file:{target}"]) == 2
        assert "bug" not in capsys.readouterr().err


def test_one_store_by_two_names_is_not_moved(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the names do not tell the versions do."""
    target = store.parent / "target"
    assert main(["metadata", "migrate", f"file:{store}", f"file:{target}"]) == 0
    for name in ("metadata.db", "metadata.db-wal", "metadata.db-shm"):  # as another name of the same store would show
        if (store / name).exists():
            shutil.copy(store / name, target / name)
    capsys.readouterr()
    assert main(["metadata", "migrate", f"file:{store}", f"file:{target}"]) == 2
    assert "FROM and TO are two names of the same store" in capsys.readouterr().err
    assert main(["metadata", "migrate", f"file:{store}", "memory:x"]) == 2
    assert "exists only until this command ends" in capsys.readouterr().err


def test_check_names_registrations_that_cannot_be_read() -> None:
    async def run() -> list[tuple[str, str]]:
        memory = MemoryStore("x")
        driver = MemoryDriver(memory, aio.runtime())
        await driver.open()
        await fill(driver)
        await driver.register(B1, BookieMode.WRITABLE, BookieInfo())
        await driver.register(B2, BookieMode.READ_ONLY, BookieInfo())
        memory.commit([], [Put(Key(Table.READ_ONLY, B2), b"\xff\xfegarbage")])
        report = await check(driver)
        await driver.close()
        return [(each.name, each.subject) for each in report.findings]

    assert aio.run(run()) == [("registration-unreadable", "b2")]


def test_an_interrupted_load_is_gone_on_with(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metadata", "dump", "--passwords"]) == 0
    text = capsys.readouterr().out
    dump, target = store.parent / "dump.jsonl", store.parent / "target"
    target.mkdir()
    dump.write_text(text)

    async def half(driver: MetadataDriver) -> None:
        instance_id = json.loads(text.splitlines()[0])["instance_id"]
        mark = {"from": "an older dump", "instance_id": instance_id}
        await driver.create_record("migration", json.dumps(mark).encode())
        await driver.create_ledger(ledger(99))
        await driver.create_cookie(BookieId("gone"), b"")
        await driver.recovery.mark(3, [B2], 1)
        await driver.recovery.mark(5, [B2], 1)
        await driver.recovery.disable()

    on(target, half)
    assert main(["metadata", "check", "--metadata", f"file:{target}"]) == 1
    assert "half-migrated" in capsys.readouterr().out
    assert main(["metadata", "load", str(dump), "--metadata", f"file:{target}"]) == 0
    assert main(["metadata", "migrate", f"file:{store}", f"file:{target}"]) == 0
    assert main(["metadata", "check", "--metadata", f"file:{target}"]) == 0

    async def half_restored(driver: MetadataDriver) -> None:
        await driver.create_record("restoration", b"{}")

    on(target, half_restored)
    assert main(["metadata", "check", "--metadata", f"file:{target}"]) == 1
    assert "half-restored" in capsys.readouterr().out


def test_migrate_moves_and_says_what_next(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = store.parent / "target"
    words = ["metadata", "migrate", f"file:{store}", f"file:{target}"]
    assert main([*words, "--dry-run"]) == 0
    assert "would move 7 ledgers, 2 cookies, 1 records" in capsys.readouterr().out
    assert not target.exists()
    assert main(words) == 0
    printed = capsys.readouterr()
    assert "moved and compared: 7 ledgers" in printed.out
    assert "none with the old store" in printed.out

    async def change(driver: MetadataDriver) -> None:
        await driver.delete_ledger(3)

    on(target, change)
    assert main([*words, "--json"]) == 1
    printed = capsys.readouterr()
    assert [each["what"] for each in json.loads(printed.out)["differences"]] == ["ledger 3"]
    assert "one of the two stores has been used since" in printed.err
    for source, same in (
        (f"file:{store}", f"file:///{store}/../store"),
        ("zk://a:1;b:2/ledgers", "zk+flat://b:2,a:1/ledgers"),
    ):
        assert main(["metadata", "migrate", source, same]) == 2


def test_a_cluster_in_use_is_not_moved(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = store.parent / "target"
    words = ["metadata", "migrate", f"file:{store}", f"file:{target}"]

    async def look(driver: MetadataDriver) -> None:
        await driver.create_ledger(ledger(50, LedgerState.OPEN))

    on(store, look)
    assert main(words) == 1
    printed = capsys.readouterr().err
    assert "1 ledger (50) not closed" in printed
    assert "nothing was changed; --force" in printed
    assert not target.exists()
    assert main([*words, "--force"]) == 0


def test_check_names_what_is_wrong(store: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metadata", "check"]) == 0
    assert "7 ledgers, 2 cookies, 1 logs: no fault found" in capsys.readouterr().err

    async def spoil(driver: MetadataDriver) -> None:
        await driver.delete_ledger(2)
        twice = LedgerMetadata(**{**_fields(ledger(3)), "ensembles": ((0, (B1, B1)), (9, (B1, BookieId("b9"))))})
        await driver.write_ledger(twice, (await driver.read_ledger(3)).version)
        await driver.create_ledger(ledger(77))
        await driver.create_record("logs/broken", b"{")
        for bookie, data in ((B2, b"nonsense"), (B1, (await driver.read_cookie(B1))[0].replace(b'Id: "', b'Id: "x'))):
            await driver.write_cookie(bookie, data, (await driver.read_cookie(bookie))[1])
        await driver.recovery.mark(99, [B1], 1)
        await driver.create_record("bookie-notes", b"{")

    on(store, spoil)
    with sqlite3.connect(store / "metadata.db") as connection:
        connection.execute("UPDATE ledgers SET data = ? WHERE id = 4", (b"nonsense",))
        connection.execute("INSERT INTO deleted_ledgers VALUES (5, 6)")
        connection.execute("UPDATE nodes SET data = ? WHERE place = 'delay'", (b"soon",))
    connection.close()
    assert main(["metadata", "check", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert sorted((each["name"], each["subject"]) for each in report["findings"]) == [
        ("cookie-of-another-cluster", "b1"),
        ("cookie-unreadable", "b2"),
        ("id-spent", "5"),
        ("id-spent", "6"),
        ("ids-ahead", ""),
        ("ledger-bookie-unknown", "b9"),
        ("ledger-end", "3"),
        ("ledger-ensemble", "3"),
        ("ledger-unreadable", "4"),
        ("log-ledger-missing", "events"),
        ("log-unreadable", "broken"),
        ("mark-without-ledger", "99"),
        ("notes-unreadable", ""),
        ("recovery-unreadable", ""),
    ]
    on(store, lambda driver: driver.recovery.set_lost_bookie_delay_s(5))
    capsys.readouterr()
    for words in (["ledger", "list", "--json"], ["ledger", "list"], ["ledger", "verify"]):
        assert main(words) == 1  # All the others are there.
        found = capsys.readouterr()
        assert "77" in found.out
        assert "(ledger 4); `bk metadata check` lists all unreadable records" in found.err
    assert main(["status"]) == 0
    assert "6 closed, 0 open, 0 in recovery, 1 cannot be read" in capsys.readouterr().out
    assert main(["metadata", "dump"]) == 1
    damaged = [line for line in capsys.readouterr().out.splitlines() if '"damaged"' in line]
    assert [json.loads(line)["ledger"] for line in damaged] == [4]
    assert main(["metadata", "migrate", f"file:{store}", f"file:{store.parent}/target"]) == 1
    assert "cannot be carried over" in capsys.readouterr().err
