"""Bookies that are down, and every kind of damage of each of their files."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import itertools
import posixpath
import struct
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import NamedTuple

from msgspec.structs import replace
from tests.fakes.records import BOOKIE, FakeRecords

from bookies.errors import DataUnknown
from bookies.lab.sim.faults import damage
from bookies.lab.sim.faults.damage import Base, Files
from bookies.lab.sim.world.disk import PROCESS_DIES, SimDisk
from bookies.storage.checkpoint.failover import Note, pack_note
from bookies.storage.engine import quarantine_format
from bookies.storage.engine.quarantine_format import QuarantineRecord, QuarantineState
from bookies.storage.entry_log import entry_log_format
from bookies.storage.gc.collection_policy import Compaction
from bookies.storage.identity import cookie
from bookies.storage.index import catalog_format, index_format
from bookies.storage.journal import journal_format, journal_trailer, log_mark_format
from bookies.storage.journal.log_mark_format import LogMark
from bookies.storage.store import LedgerStore

CURRENT = "/ledgers/current"
OURS = ("index.catalog", "removedLedgers", "scrub.progress", "failed.directories", "journal.place")
SPREAD = dataclasses.replace(
    damage.CONFIG,
    journal_directories=("/journal0", "/journal1"),
    ledger_directories=("/ledgers0", "/ledgers1", "/ledgers2"),
)
IN_DATABASES = dataclasses.replace(damage.CONFIG, ledger_index="rocksdb")
IN_SPLIT = dataclasses.replace(IN_DATABASES, ledger_directories=("/ledgers0", "/ledgers1"))
COMPACTING = dataclasses.replace(
    damage.CONFIG,
    entry_log_size_max=1 << 12,
    gc_interval_ms=1 << 40,
    gc_quarantine_ms=0,
    minor_compaction_interval_ms=0,
    major_compaction_interval_ms=0,
)


class World(NamedTuple):
    """A bookie that is down. `others`: the files of another bookie of the cluster, under the same names."""

    name: str
    base: Base
    others: Files


class Mutation(NamedTuple):
    """One damage of one file."""

    world: World
    path: str
    name: str
    files: Files


# -- worlds ----------------------------------------------------------------------------------------------------------
def _with_identity(base: Base, bookie: str, sequence: int) -> Base:
    """Add the files that a whole bookie has beside its storage: cookie, mode, deleted ledgers."""
    stamp = cookie.master_cookie(base.config, bookie, "cluster").pack()
    gone = {900 + number: QuarantineRecord(QuarantineState.DELETED, 1_700_000_000_000) for number in range(4)}
    removed = quarantine_format.pack(sequence, gone, quarantine_format.identity_of(bookie, "cluster"))
    for files in (base.files, *base.versions):
        for directory in {posixpath.dirname(path) for path in files if posixpath.basename(path) == "lastId"}:
            files[f"{directory}/VERSION"] = stamp
            files[f"{directory}/BOOKIE_STATUS"] = b"1,READ_WRITE,1700000000000,false\n"
            files[f"{directory}/removedLedgers"] = removed
    return base


def _as_apache(files: Files) -> Files:
    """Return the files as Apache's bookie would have left them: without what only ours writes."""
    kept = {}
    for path, data in files.items():
        name = posixpath.basename(path)
        if name in OURS or name.endswith((".newest", ".spare")):
            continue
        kept[path] = b"" if name == "DIRTY" else _without_trailers(data) if name.endswith(".txn") else data
    return kept


def _without_trailers(data: bytes) -> bytes:
    plain, size = bytearray(data), journal_trailer.TRAILER_SIZE
    for at in range(journal_trailer.SECTOR - size, len(data), journal_trailer.SECTOR):
        if data[at : at + 4] == journal_trailer.MAGIC:
            plain[at : at + size] = bytes(size)
    return bytes(plain)


def _apache(base: Base) -> Base:
    return replace(base, files=_as_apache(base.files), versions=[_as_apache(v) for v in base.versions])


def _after_failure() -> Base:
    """Return a bookie whose first ledger directory, with the catalog, failed in its last life and is back."""
    base = damage.build("failed", is_clean=False, config=SPREAD)
    disk = SimDisk(Random("failed"))
    for path, data in base.files.items():
        disk.put(path, data)

    async def script(store: LedgerStore) -> None:
        disk.fail("", "/ledgers0", lambda: OSError(errno.EIO, "Input/output error"), count=1 << 40)
        for ledger_id in (1, 3, 6, 8):
            for entry_id in range(30, 36):
                body = damage.body_of(ledger_id, entry_id)
                with contextlib.suppress(DataUnknown):  # its index file was there, and is built again
                    await damage.add(store, ledger_id, entry_id, body)
                    base.entries[ledger_id, entry_id] = body
            await store.checkpoint()
        await asyncio.sleep(damage.SETTLE_S)
        await store.checkpoint()

    damage.live(disk, "failed", script, stops=False, config=SPREAD)
    disk.faults.clear()
    disk.crash(PROCESS_DIES)
    return replace(base, files=disk.files(), versions=[*base.versions, base.files])


def _while_compacting() -> Base:
    """Return a bookie that died between a complete output of a compaction and the move of the slots."""
    base = damage.build("compacting", is_clean=True, config=COMPACTING)
    disk = SimDisk(Random("compacting"))
    for path, data in base.files.items():
        disk.put(path, data)
    gone = 3
    for key in [key for key in base.entries if key[0] == gone]:
        del base.entries[key]

    async def script(store: LedgerStore) -> None:
        records = FakeRecords.of(*(ledger_id for ledger_id in range(1, 9) if ledger_id != gone))
        store.collect(records, BOOKIE)
        assert store.collector is not None
        await store.collector.collect(is_forced=True, is_awaited=True)
        await store.collector.compact(Compaction.MAJOR, is_awaited=True)

    disk.fail("link", ".compacted", lambda: OSError(errno.EIO, "Input/output error"), count=1 << 40, skip=1)
    damage.live(disk, "compacting", script, stops=False, config=COMPACTING)
    disk.faults.clear()
    disk.crash(PROCESS_DIES)
    return replace(base, files=disk.files(), versions=[*base.versions, base.files])


WORLDS = (
    *("stopped", "killed", "apache-stopped", "apache-killed", "spread", "failed", "compacting"),
    *("rocksdb-stopped", "rocksdb-killed", "apache-rocksdb", "rocksdb-split", "apache-rocksdb-split"),
)


@cache
def worlds() -> dict[str, World]:
    stopped = _with_identity(damage.build("sweep", is_clean=True), "b1", 5)
    killed = _with_identity(damage.build("sweep", is_clean=False), "b1", 5)
    others = _with_identity(damage.build("other", is_clean=False, skip=1), "b2", 9).files
    spread = _with_identity(damage.build("spread", is_clean=False, config=SPREAD), "b1", 5)
    spread_others = damage.build("other", is_clean=False, skip=1, config=SPREAD).files
    in_databases, split = (
        [_with_identity(damage.build("sweep", is_clean=is_clean, config=config), "b1", 5) for is_clean in (True, False)]
        for config in (IN_DATABASES, IN_SPLIT)
    )
    database_others, split_others = (
        _with_identity(damage.build("other", is_clean=False, skip=1, config=config), "b2", 9).files
        for config in (IN_DATABASES, IN_SPLIT)
    )
    made = [
        World("stopped", stopped, others),
        World("killed", killed, others),
        World("apache-stopped", _apache(stopped), _as_apache(others)),
        World("apache-killed", _apache(killed), _as_apache(others)),
        World("spread", spread, spread_others),
        World("failed", _after_failure(), spread_others),
        World("compacting", _while_compacting(), others),
        World("rocksdb-stopped", in_databases[0], database_others),
        World("rocksdb-killed", in_databases[1], database_others),
        World("apache-rocksdb", _apache(in_databases[0]), _as_apache(database_others)),
        World("rocksdb-split", split[1], split_others),
        World("apache-rocksdb-split", _apache(split[0]), _as_apache(split_others)),
    ]
    assert tuple(world.name for world in made) == WORLDS
    return {world.name: world for world in made}


async def collect(store: LedgerStore) -> None:
    """Collect and compact everything there is; the metadata has all ledgers."""
    store.collect(FakeRecords.of(*range(1, 9)), BOOKIE, "cluster")
    assert store.collector is not None
    await store.collector.collect(is_forced=False, is_awaited=True)
    await store.collector.compact(Compaction.MAJOR, is_awaited=True)
    await store.collector.collect(is_forced=True, is_awaited=True)


# -- damage ----------------------------------------------------------------------------------------------------------
Changed = Iterator[tuple[str, bytes | None]]
Damage = Callable[[World, str, int], Changed]


def _used(data: bytes) -> int:
    return len(data.rstrip(b"\0"))


def cut(world: World, path: str, step: int) -> Changed:
    data = world.base.files[path]
    for size in range(Random(f"cut {path}").randrange(step), min(len(data), _used(data) + 1), step):
        yield f"cut at {size}", data[:size]


def overwritten(world: World, path: str, step: int) -> Changed:
    """Yield the file with a part overwritten: with zeros, ones, random bytes."""
    data, random = world.base.files[path], Random(f"overwrite {path}")
    for size in (1, 8, 64, 512):
        for at in range(random.randrange(step) // size * size, _used(data), max(step, size)):
            for fill, new in (("zeros", bytes(size)), ("ones", b"\xff" * size), ("noise", random.randbytes(size))):
                changed = data[:at] + new[: len(data) - at] + data[at + size :]
                if changed != data:
                    yield f"{size} {fill} at {at}", changed


def flipped(world: World, path: str, step: int) -> Changed:
    data, random = world.base.files[path], Random(f"flip {path}")
    for at in range(random.randrange(step), _used(data), step):
        bit = random.randrange(8)
        yield f"bit {bit} flipped at {at}", data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def grown(world: World, path: str, step: int) -> Changed:
    random = Random(f"grow {path}")
    for size in (1, 7, 8, 64, 512, 1000):
        yield f"{size} bytes of noise appended", world.base.files[path] + random.randbytes(size)
        yield f"{size} zeros appended", world.base.files[path] + bytes(size)


def older(world: World, path: str, step: int) -> Changed:
    """Yield earlier versions of the same file."""
    known = {world.base.files[path]}
    for number, files in enumerate(world.base.versions):
        if path in files and files[path] not in known:
            known.add(files[path])
            yield f"version {number}", files[path]


def swapped(world: World, path: str, step: int) -> Changed:
    """Yield the other files of the same kind, of this bookie and of another."""
    data = world.base.files[path]
    for source, files in (("", world.base.files), ("another bookie's ", world.others)):
        for other in sorted(files):
            if kind_of(other) == kind_of(path) and files[other] != data:
                yield f"replaced by {source}{other}", files[other]


def removed(world: World, path: str, step: int) -> Changed:
    yield "removed", None


def forged(world: World, path: str, step: int) -> Changed:
    """Yield files that are well-formed and wrong."""
    data, kind = world.base.files[path], kind_of(path)
    if kind == "lastMark":
        yield from _marks(world, data)
    elif kind == ".idx":
        header = index_format.parse_header(data)
        rest = data[index_format.HEADER_SIZE :]
        yield "header without state", index_format.pack_header(replace(header, state=0)) + rest
        yield "header without key", index_format.pack_header(replace(header, master_key=b"")) + rest
        yield "empty", index_format.pack_header(header)
        yield "empty page", index_format.pack_header(header) + bytes(64)
        for at in range(index_format.HEADER_SIZE, _used(data), max(8, step // 8 * 8)):
            yield f"slot at {at} cleared", data[:at] + bytes(8) + data[at + 8 :]
    elif kind == ".log":
        yield from _logs(data)
    elif kind == ".txn":
        for version in range(1, 8):
            yield f"version {version}", data[:4] + version.to_bytes(4, "big") + data[8:]
        for start in range(512, _used(data), 512):
            yield f"group at {start} left out", data[:start] + data[start + 512 :]
            yield f"zeros from {start}", data[:start].ljust(len(data), b"\0")
    elif kind == "index.catalog":
        yield from _catalogs(data)
    elif kind == "lastId":
        for number in (0, 1, 2, 3, 0x7FFFFFFF):
            yield f"id {number:x}", entry_log_format.pack_last_id(number)
    elif kind == "DIRTY":
        yield "another run", b"0" * 32 + b"\n"
        yield "empty", b""
    elif kind == "removedLedgers":
        for bookie in ("b1", "b2"):
            identity = quarantine_format.identity_of(bookie, "cluster")
            yield f"none of {bookie}", quarantine_format.pack(99, {}, identity)
        states = {1: QuarantineRecord(QuarantineState.QUARANTINED, 1_700_000_000_000)}
        yield "a ledger in quarantine", quarantine_format.pack(99, states, b"")
    elif kind == "failed.directories":
        yield "none", pack_note(Note())
        yield "another", pack_note(Note(["/ledgers1/current"]))


def _marks(world: World, data: bytes) -> Changed:
    mark = log_mark_format.parse(data) or LogMark()
    ids = sorted(
        number for path in world.base.files if (number := journal_format.parse_file_name(posixpath.basename(path)))
    )
    for journal_id in (0, 1, *ids, ids[-1] + 1, 1 << 62):
        for offset in (0, 8, 512, 1024, 1536, mark.offset, 4096, 1 << 40):
            if (journal_id, offset) != mark:
                yield f"mark {journal_id:x} {offset}", log_mark_format.pack(LogMark(journal_id, offset))


def _logs(data: bytes) -> Changed:
    header = entry_log_format.parse_header(data)
    if header is None:
        return
    rest, offset, count = data[entry_log_format.HEADER_SIZE :], header.map_offset, header.ledger_count
    for map_offset, ledgers in ((0, 0), (1024, 1), (offset, count - 1), (offset, 0), (offset + 1, 1), (len(data), 1)):
        if ledgers >= 0:
            yield f"map {ledgers} at {map_offset}", entry_log_format.pack_header(map_offset, ledgers) + rest
    if offset:
        sizes = entry_log_format.read_ledgers_map(lambda size, at: data[at : at + size], len(data)) or {}
        for left_out in sizes:
            fewer = {ledger_id: size for ledger_id, size in sizes.items() if ledger_id != left_out}
            records = data[entry_log_format.HEADER_SIZE : offset]
            table = entry_log_format.pack_ledgers_map(fewer.items())
            yield (
                f"map without ledger {left_out}",
                entry_log_format.pack_header(offset if fewer else 0, len(fewer)) + records + (table if fewer else b""),
            )
        yield (
            "map of another ledger",
            (
                entry_log_format.pack_header(offset, 1)
                + data[entry_log_format.HEADER_SIZE : offset]
                + entry_log_format.pack_ledgers_map([(77, 100)])
            ),
        )


def _catalogs(data: bytes) -> Changed:
    """Yield catalogs that end at a record, and those that lack one."""
    bounds = [catalog_format.FILE_HEADER_SIZE]
    while bounds[-1] < len(data):
        bounds.append(bounds[-1] + 8 + struct.unpack_from(">I", data, bounds[-1])[0])
    for start, end in itertools.pairwise(bounds):
        yield f"cut off before the record at {start}", data[:start]
        yield f"without the record at {start}", data[:start] + data[end:]
        yield f"with the record at {start} twice", data[:end] + data[start:]


DAMAGES: dict[str, Damage] = {
    "cut": cut,
    "overwritten": overwritten,
    "flipped": flipped,
    "grown": grown,
    "older": older,
    "swapped": swapped,
    "removed": removed,
    "forged": forged,
}


def kind_of(path: str) -> str:
    """Return the format of a file."""
    name = posixpath.basename(path)
    if name.startswith("lastMark"):
        return "lastMark"
    extension = posixpath.splitext(name)[1]
    return extension if extension in (".txn", ".idx", ".log", ".newest", ".spare", ".compacted") else name


def mutations(world: World, path: str, kind: str, step: int) -> Iterator[Mutation]:
    """Yield every `step`-th damage of this kind."""
    for name, data in DAMAGES[kind](world, path, step):
        files = dict(world.base.files)
        if data is None:
            del files[path]
        else:
            files[path] = data
        yield Mutation(world, path, name, files)
