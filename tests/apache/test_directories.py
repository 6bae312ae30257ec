"""Directories that Apache's bookie and ours take over from each other: nothing is missing, and fences stay.

Only with `-m apache`; see `apache.py` for what that needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import pathlib
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import pytest
from tests.apache.apache import Connection, NotServing, apache_bookie
from tests.fakes.adds import add_to
from tests.fakes.records import BOOKIE, FakeRecords

from bookies.admin import cli
from bookies.admin.verbs.convert import config_of
from bookies.config import BookieConfig
from bookies.errors import BookKeeperError, LedgerUnknownToBookie, Status
from bookies.kernels import Records
from bookies.model import DigestType
from bookies.runtime import aio
from bookies.runtime.files import OsDisk
from bookies.storage.gc.collection_policy import Compaction
from bookies.storage.sealing.keys_file import add_key
from bookies.storage.store import LedgerStore
from bookies.wire import digest

pytestmark = [pytest.mark.live, pytest.mark.apache]

KEY = digest.master_key(b"password")
MAC_KEY = digest.mac_key(b"password")
SIZES = (0, 1, 100, 5_000, 70_000)
TYPES = (DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC, DigestType.DUMMY)
FENCED_EMPTY, FENCED, WITH_LAC, GAPS, LONG = 5, 6, 7, 8, 9  # of each side's ledgers, counted from its first
BIG_ID = 1 << 33


def lac_body(ledger_id: int, last_add_confirmed: int) -> bytes:
    return digest.package_lac(DigestType.CRC32C, MAC_KEY, ledger_id, last_add_confirmed)


def entries_of(first: int) -> dict[int, list[tuple[int, bytes]]]:
    """Ledger id to (entry id, body): what one side writes, from ledger `first` on."""
    entries: dict[int, list[int]] = {first + number: list(range(len(SIZES))) for number in range(4)}
    entries |= {first + FENCED: [0, 1, 2], first + WITH_LAC: [0, 1, 2], first + GAPS: [0, 5, 1023, 1024, 3000]}
    entries |= {first + LONG: list(range(2_500)), first + BIG_ID: [0, 1]}
    found = {}
    for ledger_id, entry_ids in entries.items():
        kind = TYPES[ledger_id % 4] if ledger_id < first + 4 else DigestType.CRC32C
        found[ledger_id] = [
            (
                entry_id,
                digest.package_entry(
                    kind,
                    MAC_KEY,
                    ledger_id,
                    entry_id,
                    entry_id - 1,
                    entry_id,
                    bytes([entry_id & 0xFF]) * (SIZES[entry_id % len(SIZES)] if ledger_id < first + 4 else 50),
                ),
            )
            for entry_id in entry_ids
        ]
    return found


def write_to_apache(bookie: Connection, first: int) -> None:
    for ledger_id, entries in entries_of(first).items():
        for entry_id, body in entries:
            assert bookie.add(ledger_id, KEY, entry_id, body) is Status.OK
    assert bookie.read(first + FENCED, 2, KEY)[0] is Status.OK
    # A fence of a ledger without entries is journaled without its key, which Apache's replay needs: so an add first.
    assert bookie.add(first + FENCED_EMPTY, KEY, 0, entry(first + FENCED_EMPTY)) is Status.OK
    assert bookie.read(first + FENCED_EMPTY, 0, KEY)[0] is Status.OK
    bookie.write_lac(first + WITH_LAC, KEY, 2, lac_body(first + WITH_LAC, 2))
    # RocksDB storage flushes LACs only together with entries: without this one, a flush before now would lose the LAC.
    assert bookie.add(first + WITH_LAC, KEY, *entries_of(first)[first + WITH_LAC][-1]) is Status.OK


def entry(ledger_id: int, entry_id: int = 0) -> bytes:
    return digest.package_entry(DigestType.CRC32C, MAC_KEY, ledger_id, entry_id, entry_id - 1, 1, b"x")


def check_at_apache(bookie: Connection, first: int, gone: Collection[int] = ()) -> None:
    for ledger_id, entries in entries_of(first).items():
        if ledger_id in gone:
            assert bookie.read(ledger_id, 0)[0] is Status.NO_LEDGER
            continue
        for entry_id, body in entries:
            assert bookie.read(ledger_id, entry_id) == (Status.OK, body), (ledger_id, entry_id)
        if ledger_id != first:  # an earlier check has added to that one
            assert bookie.read(ledger_id, -1) == (Status.OK, entries[-1][1])
    assert bookie.read(first + GAPS, 4)[0] is Status.NO_ENTRY
    for number in (FENCED, FENCED_EMPTY):
        assert bookie.add(first + number, KEY, 3, entry(first + number)) is Status.FENCED, first + number
    assert bookie.add(first, KEY, 100, entry(first, 100)) is Status.OK
    assert bookie.read_lac(first + WITH_LAC) == lac_body(first + WITH_LAC, 2)


async def add(store: LedgerStore, ledger_id: int, entry_id: int, body: bytes) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answered(error: BaseException | None) -> None:
        done.set_exception(error) if error is not None else done.set_result(None)

    records = Records.of([body])
    add_to(store, ledger_id, KEY, [entry_id], records, -1, is_recovery=False, is_deferred_sync=False, done=answered)
    await done


async def noted(start: Callable[[Callable[[BaseException | None], None]], None]) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    start(lambda error: done.set_result(None) if error is None else done.set_exception(error))
    await done


async def write_to_ours(store: LedgerStore, first: int) -> None:
    for ledger_id, entries in entries_of(first).items():
        await asyncio.gather(*(add(store, ledger_id, entry_id, body) for entry_id, body in entries))
    await noted(lambda done: store.fence(first + FENCED, KEY, done))
    await noted(lambda done: store.fence(first + FENCED_EMPTY, KEY, done))
    body = lac_body(first + WITH_LAC, 2)
    await noted(lambda done: store.write_lac(first + WITH_LAC, KEY, 2, body, done))


async def check_at_ours(store: LedgerStore, first: int, gone: Collection[int] = ()) -> None:
    for ledger_id, entries in entries_of(first).items():
        if ledger_id in gone:
            with pytest.raises(LedgerUnknownToBookie):
                await store.read(ledger_id, 0)
            continue
        for entry_id, body in entries:
            assert await store.read(ledger_id, entry_id) == body, (ledger_id, entry_id)
    for number in (FENCED, FENCED_EMPTY):
        with pytest.raises(BookKeeperError, match="fenced"):
            await add(store, first + number, 3, entry(first + number))
    assert (await store.read_lac(first + WITH_LAC))[0] == lac_body(first + WITH_LAC, 2)


def ours(
    script: Callable[[LedgerStore], Awaitable[None]], config: BookieConfig | None = None, *, stops: bool = True
) -> None:
    """Our storage on the directories here, from start to an orderly stop; without `stops` the process dies."""

    async def main() -> None:
        chosen = config or config_of(OsDisk(), "ledgers")
        store = LedgerStore(aio.runtime(), chosen, lambda error: pytest.fail(repr(error)))
        await store.start()
        try:
            await script(store)
            if stops:
                await store.stop()
        finally:
            store.abort()

    aio.run(main())


def convert(target: str) -> None:
    """And remove the old index."""
    assert cli.main(["bookie", "convert", "ledgers", "--to", target]) == 0
    assert cli.main(["bookie", "convert", "ledgers", "--discard-old"]) == 0


def in_place(script: Callable[[LedgerStore], Awaitable[None]], *, stops: bool = True) -> None:
    """Our storage on Apache's databases, as they are; without `stops` the process dies."""
    config = dataclasses.replace(config_of(OsDisk(), "ledgers"), **RECLAIMS)
    assert config.ledger_index == "rocksdb"
    ours(script, config, stops=stops)


@pytest.mark.parametrize(
    ("directories", "is_direct"),
    [(1, False), (1, True), (2, False), (3, False)],
    ids=["normal", "direct", "two", "three"],
)
def test_databases_in_place_there_and_back(
    directories: int, is_direct: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zookeeper").mkdir()
    names = ["ledgers", "ledgers2", "ledgers3"][:directories]
    settings = {"ledgerDirectories": ",".join(names), "allowMultipleDirsUnderSameDiskPartition": True}
    settings |= DIRECT if is_direct else {}
    gone = {first + LONG for first in (0, 100, 200, 300)}
    kept = [ledger_id for first in (0, 100, 200, 300) for ledger_id in (*entries_of(first), first + FENCED_EMPTY)]

    async def first_life(store: LedgerStore) -> None:
        await check_at_ours(store, 0)
        await write_to_ours(store, 100)

    async def second_life(store: LedgerStore) -> None:
        for first in (0, 100, 200):
            await check_at_ours(store, first)
        assert not store.limbo
        await write_to_ours(store, 300)
        await store.checkpoint()

    async def third_life(store: LedgerStore) -> None:
        store.collect(FakeRecords.of(*(ledger_id for ledger_id in kept if ledger_id not in gone)), BOOKIE)
        assert store.collector is not None
        for _ in range(2):
            await store.collector.collect(is_forced=True, is_awaited=True)
        await store.collector.compact(Compaction.MAJOR, is_awaited=True)
        figures = store.collector.figures()
        assert int(str(figures["logs_compacted"])) >= directories
        assert not figures["logs_set_aside"]
        for first in (0, 100, 200, 300):
            await check_at_ours(store, first, gone)

    with apache_bookie(tmp_path, "rocksdb", **settings) as bookie:
        write_to_apache(bookie, 0)
    in_place(first_life)
    with apache_bookie(tmp_path, "rocksdb", **settings) as bookie:
        for first in (0, 100):
            check_at_apache(bookie, first)
        write_to_apache(bookie, 200)
    in_place(second_life, stops=False)
    with apache_bookie(tmp_path, "rocksdb", **settings) as bookie:
        for first in (200, 300):
            check_at_apache(bookie, first)
    in_place(third_life)
    with apache_bookie(tmp_path, "rocksdb", **settings) as bookie:
        for first in (0, 100, 200, 300):
            check_at_apache(bookie, first, gone)
    for name in names:  # each has its share
        assert list((tmp_path / name / "current").glob("*.log"))


RECLAIMS: dict[str, Any] = {"gc_quarantine_ms": 0, "gc_share_max": 100, "major_compaction_threshold": 99}
DIRECT = {
    "dbStorage_directIOEntryLogger": "true",
    "dbStorage_directIOEntryLoggerTotalWriteBufferSizeMB": 16,
    "dbStorage_directIOEntryLoggerTotalReadBufferSizeMB": 16,
    "dbStorage_directIOEntryLoggerReadBufferSizeMB": 1,
    "logSizeLimit": 1 << 20,
}


@pytest.mark.parametrize(
    ("storage", "directories", "more"),
    [("sorted", 1, {}), ("interleaved", 2, {}), ("rocksdb", 1, DIRECT), ("rocksdb", 3, {})],
    ids=["sorted", "interleaved", "rocksdb-direct", "rocksdb"],
)
def test_there_and_back(
    storage: str, directories: int, more: dict[str, object], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zookeeper").mkdir()
    names = ",".join(["ledgers", "ledgers2", "ledgers3"][:directories])
    settings = {"ledgerDirectories": names, "allowMultipleDirsUnderSameDiskPartition": True, **more}
    with apache_bookie(tmp_path, storage, **settings) as bookie:
        write_to_apache(bookie, 0)
    if storage == "rocksdb":
        convert("index-files")
        # Started by mistake it must not make empty databases.
        with (
            pytest.raises(NotServing, match=r"current/(locations|ledgers)"),
            apache_bookie(tmp_path, storage, **settings),
        ):
            pass

    async def first_life(store: LedgerStore) -> None:
        await check_at_ours(store, 0)
        await write_to_ours(store, 100)

    async def second_life(store: LedgerStore) -> None:
        await store.repair()  # index files that Apache's bookie has changed since are not those of our catalog
        for first in (0, 100, 200):
            await check_at_ours(store, first)

    ours(first_life)
    if storage == "rocksdb":
        convert("rocksdb")
    with apache_bookie(tmp_path, storage, **settings) as bookie:
        for first in (0, 100):
            check_at_apache(bookie, first)
        write_to_apache(bookie, 200)
    if storage == "rocksdb":
        convert("index-files")
    ours(second_life)


@pytest.mark.parametrize("storage", ["sorted", "rocksdb"])
def test_encrypted_entries_are_refused_until_they_are_decrypted(
    storage: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the cookie, and without it by the journal: Apache's bookie would return ciphertext."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zookeeper").mkdir()
    with apache_bookie(tmp_path, storage) as bookie:
        write_to_apache(bookie, 0)
    add_key(OsDisk(), str(tmp_path / "keys"), b"k" * 32)
    config = config_of(OsDisk(), "ledgers")
    config = dataclasses.replace(config, **RECLAIMS, encryption_keys_file=str(tmp_path / "keys"))

    async def write(store: LedgerStore) -> None:
        await check_at_ours(store, 0)
        await write_to_ours(store, 100)

    async def decrypt(store: LedgerStore) -> None:
        await check_at_ours(store, 100)
        store.collect(FakeRecords.of(*store.ledger_ids()), BOOKIE)
        assert store.collector is not None
        await store.collector.re_encrypt(is_awaited=True)

    ours(write, config)
    stamps = {path: path.read_bytes() for path in tmp_path.glob("*/current/VERSION")}
    with pytest.raises(NotServing, match="encryption"), apache_bookie(tmp_path, storage):
        pass
    for path, data in stamps.items():
        path.write_bytes(b"".join(line for line in data.splitlines(keepends=True) if b"encryption" not in line))
    with contextlib.suppress(NotServing, OSError), apache_bookie(tmp_path, storage):
        pass  # it says that it serves, and shuts down
    log = (tmp_path / "apache.log").read_text()
    assert "Exception while replaying journals, shutting down" in log
    assert "Invalid journal version" in log
    for path, data in stamps.items():
        path.write_bytes(data)
    keys = tmp_path / "keys"
    keys.write_text("plain\n" + keys.read_text())
    ours(decrypt, config)
    with apache_bookie(tmp_path, storage) as bookie:
        for first in (0, 100):
            check_at_apache(bookie, first)
