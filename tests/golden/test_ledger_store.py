"""The storage on directories of Apache's bookies: what it serves is what they served, and what it leaves is readable.

Damaged directories come with what Apache's bookie made of them. Where that denies entries that were acknowledged, ours
must refuse to start, or answer with an error.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import pathlib
import tarfile
from collections.abc import Awaitable, Callable
from functools import cache
from random import Random
from typing import Any, cast

import pytest
from tests.fakes.adds import add_to
from tests.fakes.records import FakeRecords

from bookies.config import BookieConfig
from bookies.errors import BookKeeperError, DataUnknown, EntryNotFound, LedgerUnknownToBookie, ReadFailed
from bookies.kernels import Records
from bookies.lab.sim.world.cluster import SimClock
from bookies.lab.sim.world.disk import SimDisk
from bookies.lab.sim.world.loop import Participant, SimLoop
from bookies.lab.sim.world.workers import SimWorkers
from bookies.runtime.ports import Network, Runtime
from bookies.storage.entry_log import entry_log_format
from bookies.storage.index import index_format
from bookies.storage.offline import inspection
from bookies.storage.store import LedgerStore
from bookies.wire.availability import pack_availability

GOLDEN = pathlib.Path(__file__).parent / "storage"
CASES = [
    name
    for name in sorted(path.parent.name for path in GOLDEN.glob("*/data.tar.gz"))
    if not name.startswith("db-") and name != "compaction-interrupted"
]
DUPLICATED = 10  # one entry was added twice: with us the later copy counts, as in Apache's interleaved storage
FENCED_IN_JOURNAL_ONLY = 6  # Apache's replay loses this fence, because no key record precedes it; ours must not
DAMAGED = json.loads((GOLDEN / "damaged" / "variants.json").read_text())["variants"]
VARIANTS = {each["name"]: each for each in DAMAGED if not each["name"].startswith("cookie-")}


# A journal that is not there can be put back; one of a later version can be read by whoever wrote it.
REFUSED = {"journal-missing-mark-0", "journal-missing-mark-set", "journal-version-7"}
# Damage to the journal with acknowledged records behind it, or in a place that no crash can reach: everything else is
# served, and nothing is denied.
HOLES = {
    "journal-bad-magic",
    "journal-huge-length",
    "journal-long-length",
    "journal-negative-length",
    "journal-negative-length-skip",
    "journal-version-3-with-fence",
    "journal-version-5-with-lac",
    "journal-zero-word",
}


@cache
def archive(path: pathlib.Path) -> dict[str, bytes]:
    with tarfile.open(path) as found:
        return {member.name: found.extractfile(member).read() for member in found if member.isfile()}  # type: ignore[union-attr]


def serve(disk: SimDisk, settings: dict[str, object], script: Callable[[LedgerStore], Awaitable[None]]) -> None:
    """Start on the disk, run the script, stop."""
    loop = SimLoop()
    clock = SimClock(loop, 0)
    runtime = Runtime(clock, cast(Network, None), disk, SimWorkers(Random(1), mean_ms=0.01), Random(1))
    config = BookieConfig(
        **{"journal_directories": ("journal",), "ledger_directories": ("ledgers",), **settings}  # type: ignore[arg-type]
    )

    async def main() -> None:
        store = LedgerStore(runtime, config, lambda error: pytest.fail(repr(error)))
        await store.start()
        try:
            await script(store)
            await store.stop()
        finally:
            store.abort()

    try:
        participant = Participant(loop, "bookie")
        loop.run(_within(participant, main()))
        assert not loop.errors, loop.errors
        assert not disk.open_files
    finally:
        loop.close()


async def _within(participant: Participant, work: Any) -> None:
    await participant.create_task(work)


def disk_with(files: dict[str, bytes]) -> SimDisk:
    disk = SimDisk()
    for path, data in files.items():
        disk.put(path, data)
    return disk


def settings_of(configuration: dict[str, str]) -> dict[str, object]:
    """Apache's configuration keys as ours."""
    names = {
        "journalDirectories": "journal_directories",
        "ledgerDirectories": "ledger_directories",
        "indexDirectories": "index_directories",
    }
    return {ours: tuple(configuration[theirs].split(",")) for theirs, ours in names.items() if theirs in configuration}


async def probe_add(store: LedgerStore, ledger_id: int, key: bytes, entry_id: int) -> str:
    """What an ordinary add gives."""
    body = ledger_id.to_bytes(8, "big") + entry_id.to_bytes(8, "big") + bytes(24)
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def done(error: BaseException | None) -> None:
        future.set_result(type(error).__name__ if error else "accepted")

    try:
        add_to(
            store,
            ledger_id,
            key,
            [entry_id],
            Records.of([body]),
            -1,
            is_recovery=False,
            is_deferred_sync=False,
            done=done,
        )
    except BookKeeperError as error:
        return type(error).__name__
    return await future


@pytest.mark.parametrize("name", CASES)
def test_serves_what_apache_served(name: str) -> None:
    expected = json.loads((GOLDEN / name / "expected.json").read_text())
    disk = disk_with(archive(GOLDEN / name / "data.tar.gz"))
    settings = settings_of(expected["configuration"])

    async def check(store: LedgerStore) -> None:
        await asyncio.sleep(1)  # without a catalog, what a ledger of a crashed bookie has is found in the logs
        for ledger in expected["ledgers"]:
            await check_ledger(store, ledger, name)

    async def probe(store: LedgerStore) -> None:
        await asyncio.sleep(1)
        for ledger in expected["ledgers"]:
            if ledger["addProbe"] is not None and ledger["ledger"] != FENCED_IN_JOURNAL_ONLY:
                key = bytes.fromhex(ledger["masterKey"])
                outcome = await probe_add(store, ledger["ledger"], key, 5_000)
                assert (outcome == "LedgerFenced") is ledger["fenced"], f"ledger {ledger['ledger']}: {outcome}"

    serve(disk, settings, check)
    serve(disk, settings, check)  # after our checkpoint and orderly stop
    serve(disk, settings, probe)
    check_files(disk, set(archive(GOLDEN / name / "data.tar.gz")))


async def check_ledger(store: LedgerStore, ledger: dict[str, Any], case: str) -> None:
    ledger_id = ledger["ledger"]
    for entry in ledger["entries"]:
        body = await store.read(ledger_id, entry["entry"])
        if ledger_id == DUPLICATED and case.startswith("sorted"):
            assert body[:16] == ledger_id.to_bytes(8, "big") + entry["entry"].to_bytes(8, "big")
            continue
        assert hashlib.sha256(body).hexdigest() == entry["bodySha256"], f"ledger {ledger_id} entry {entry['entry']}"
        batch = await store.read_batch(ledger_id, entry["entry"], 3, 100_000)
        assert batch[4 : 4 + len(body)] == body
    if isinstance(ledger["lastEntry"], int) and ledger["entries"]:
        last = await store.read(ledger_id, -1)
        assert int.from_bytes(last[8:16], "big") == ledger["lastEntry"]
        assert await store.last_add_confirmed(ledger_id) >= ledger["maxLac"] or ledger_id == DUPLICATED
        if ledger["entryList"] is not None:  # Apache's RocksDB storage cannot tell
            assert pack_availability(await store.list_entries(ledger_id)).hex() == ledger["entryList"]
    explicit_lac = bytes.fromhex(ledger["explicitLacBody"])
    if explicit_lac:
        assert (await store.read_lac(ledger_id))[0] == explicit_lac
    if ledger_id == FENCED_IN_JOURNAL_ONLY and not case.startswith("compaction"):
        replayed_by_apache = case.endswith("-replayed")
        outcome = (
            await probe_add(store, ledger_id, bytes.fromhex(ledger["masterKey"]), 0) if not replayed_by_apache else ""
        )
        assert replayed_by_apache or outcome == "LedgerFenced"


def check_files(disk: SimDisk, theirs: set[str]) -> None:
    """What we left behind is what the formats say: logs with maps, readable index files, nothing damaged."""
    for path, data in disk.files().items():
        if path.endswith(".log") and path.count("/") == 2 and path not in theirs:

            def pread(size: int, offset: int, data: bytes = data) -> bytes:
                return data[offset : offset + size]

            *_, end = entry_log_format.scan(pread, len(data))
            assert end.kind.value == "clean", path  # type: ignore[union-attr]
            assert entry_log_format.read_ledgers_map(pread, len(data)) is not None, path
        if path.endswith(".idx"):
            index_format.parse_header(data[: index_format.HEADER_SIZE], path=path)
    for directory in ("journal", "ledgers"):
        if disk.is_directory(directory):
            for row in inspection.directory_rows(disk, directory):
                assert not inspection.is_damaged(row), row


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_never_denies_what_damage_hides(name: str) -> None:
    variant = VARIANTS[name]
    files = dict(archive(GOLDEN / "damaged" / f"{variant['base']}.tar.gz"))
    for operation in variant["operations"]:
        apply(files, operation)
    # What nobody can see from the files: entries that an index of Apache's does not mention, and a journal that ends
    # early where a crash may have cut it.
    is_invisible = name in ("index-header-only", "index-slot-zero") or (
        name.startswith(("journal-torn", "journal-header", "journal-empty", "journal-version-1"))
        or name in ("journal-unknown-special", "journal-unknown-ledger")
    )
    served = []

    async def check(store: LedgerStore) -> None:
        assert store.has_unknown_ledgers == (name in HOLES)
        for ledger_id in (1, 2, 3):
            for entry_id in range(6):
                try:
                    try:
                        body = await store.read(ledger_id, entry_id)
                    except DataUnknown:
                        await asyncio.sleep(1)  # index files are built again
                        body = await store.read(ledger_id, entry_id)
                except (EntryNotFound, LedgerUnknownToBookie):
                    assert is_invisible, f"ledger {ledger_id} entry {entry_id} was denied"
                except ReadFailed:
                    assert not name.startswith(("none", "mark", "lastid", "index-rloc"))
                except DataUnknown:
                    assert name in HOLES
                else:
                    assert int.from_bytes(body[8:16], "big") == entry_id
                    served.append((ledger_id, entry_id))
            if ledger_id == 3 and not is_invisible:
                key = hashlib.sha1(b"ledger").digest()
                assert await probe_add(store, 3, key, 6) in ("LedgerFenced", "DataUnknown", "Unauthorized")

    disk = disk_with(files)
    refusal: Exception | None = None
    try:
        serve(disk, {}, check)
    except (BookKeeperError, OSError) as error:
        refusal = error
    assert not disk.locks
    assert (refusal is not None) == (name in REFUSED), repr(refusal)
    if name.startswith("index") and not is_invisible:
        assert len(served) == (17 if name == "index-slot-missing-log" else 18)
    if name in HOLES and name != "journal-version-3-with-fence":
        assert served


def apply(files: dict[str, bytes], operation: dict[str, Any]) -> None:
    """Do to a file what a variant says."""
    kind = operation["op"]
    path = operation["file"]
    data = bytes.fromhex(operation.get("hex", ""))
    if kind == "write":
        offset = operation["offset"]
        files[path] = files[path][:offset] + data + files[path][offset + len(data) :]
    elif kind == "truncate":
        files[path] = files[path][: operation["size"]]
    elif kind == "append":
        files[path] += data
    elif kind == "create":
        files[path] = data
    elif kind == "rename":
        files[operation["to"]] = files.pop(path)
    else:
        assert kind == "delete"
        for each in [each for each in files if each == path or each.startswith(path + "/")]:
            del files[each]


@pytest.mark.parametrize("name", [*CASES, "compaction-interrupted"])
def test_the_scrub_blames_nothing_of_apaches(name: str) -> None:
    """Nobody says which digests the ledgers have, so those that it finds out by itself are checked."""
    expected = json.loads((GOLDEN / name / "expected.json").read_text())
    disk = disk_with(archive(GOLDEN / name / "data.tar.gz"))

    async def check(store: LedgerStore) -> None:
        await asyncio.sleep(1)
        await store.checkpoint()
        store.scrub(FakeRecords.of())
        assert store.scrubber is not None
        await (await store.scrubber.start_pass())
        status = store.scrubber.status()
        assert (status["damage"], status["parts_failed"], status["index_files_damaged"]) == ([], 0, 0)
        assert store.stats()["scrub_verified_size"] > 0

    serve(disk, settings_of(expected["configuration"]), check)


@pytest.mark.parametrize("name", sorted(each for each in VARIANTS if each not in REFUSED))
def test_the_scrub_ends_whatever_is_damaged(name: str) -> None:
    variant = VARIANTS[name]
    files = dict(archive(GOLDEN / "damaged" / f"{variant['base']}.tar.gz"))
    for operation in variant["operations"]:
        apply(files, operation)

    async def check(store: LedgerStore) -> None:
        await asyncio.sleep(1)
        store.scrub(FakeRecords.of())
        assert store.scrubber is not None
        await (await store.scrubber.start_pass())
        found = {(each["ledger"], entry) for each in damage(store) for entry in range(each["first"], each["last"] + 1)}
        for ledger_id in (1, 2, 3):
            for entry_id in range(6):
                try:
                    await store.read(ledger_id, entry_id)
                except ReadFailed:
                    assert (ledger_id, entry_id) in found
                except BookKeeperError:
                    pass  # Nobody is led to it.
                else:
                    assert (ledger_id, entry_id) not in found

    serve(disk_with(files), {}, check)


def damage(store: LedgerStore) -> list[dict[str, Any]]:
    assert store.scrubber is not None
    found = store.scrubber.status()["damage"]
    assert isinstance(found, list)
    return [each for each in found if each["ledger"] is not None]
