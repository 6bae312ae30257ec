"""Damage of a bookie's files, random or chosen, and the check that the bookie still answers correctly.

`build` runs a bookie for a while and keeps its files and its promises. `examine` starts it again on damaged files and
requests everything it had promised. A correct body, an error and `UNKNOWN` are allowed, and the bookie may refuse to
start. A different body, `NO_ENTRY` and a lost fence are lies.

Source: storage 10.
"""

from __future__ import annotations

import asyncio
import posixpath
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar, cast

from msgspec import Struct, field
from msgspec.structs import replace

from bookies.config import BookieConfig
from bookies.errors import (
    BookKeeperError,
    DataUnknown,
    EntryNotFound,
    LedgerFenced,
    LedgerUnknownToBookie,
    ReadFailed,
    Unauthorized,
)
from bookies.kernels import Adds, Records, digest
from bookies.lab.sim.world.cluster import SimClock
from bookies.lab.sim.world.databases import SimDatabases
from bookies.lab.sim.world.disk import PROCESS_DIES, SimDisk
from bookies.lab.sim.world.loop import Participant, SimLoop
from bookies.lab.sim.world.workers import SimWorkers
from bookies.model import ENTRY_HEADER_SIZE, DigestType
from bookies.runtime.ports import Network, Runtime
from bookies.storage.journal import journal_format
from bookies.storage.records import Batch
from bookies.storage.store import LedgerStore

KEY = b"k" * 20
SETTLE_S = 30.0  # virtual; index files are rebuilt in less
T = TypeVar("T")
Files = dict[str, bytes]
Script = Callable[[LedgerStore], Awaitable[None]]

CONFIG = BookieConfig(
    journal_directories=("/journal",),
    ledger_directories=("/ledgers",),
    journal_size_max=1 << 14,
    journal_preallocate_size=4096,
    write_cache_size=1 << 20,
    entry_log_size_max=1 << 13,
    index_cache_size=1 << 20,
    index_page_size=64,
    checkpoint_interval_ms=3_600_000,
)


class Base(Struct):
    """Files of a bookie that is down, and its promises. `entries`: (ledger, entry) -> body. `fenced`: ledgers.

    `versions`: the files at earlier times, oldest first.
    """

    files: Files
    entries: dict[tuple[int, int], bytes]
    fenced: set[int]
    is_clean: bool
    config: BookieConfig = CONFIG
    versions: list[Files] = field(default_factory=list)


class Outcome(Struct):
    """The answers of a bookie with damaged files. `counts`: result -> number of answers, of the last life.

    `denied`, `false`, `unfenced`: the lies. A false body has a correct digest; readers detect other wrong bodies.
    """

    counts: Counter[str] = field(default_factory=Counter)
    denied: set[tuple[int, int]] = field(default_factory=set)
    false: set[tuple[int, int]] = field(default_factory=set)
    unfenced: set[int] = field(default_factory=set)
    refusal: str = ""
    files: Files = field(default_factory=dict)

    def deny(self, ledger_id: int, entry_id: int) -> None:
        self.denied.add((ledger_id, entry_id))

    def take(self, ledger_id: int, entry_id: int, expected: bytes, body: bytes) -> None:
        """Record and judge a returned body."""
        header = body[:ENTRY_HEADER_SIZE]
        checksum = digest(DigestType.CRC32C, b"", header, body[ENTRY_HEADER_SIZE + 4 :])
        if body == expected:
            self.counts["right"] += 1
        elif body[:16] == expected[:16] and body[ENTRY_HEADER_SIZE : ENTRY_HEADER_SIZE + 4] != checksum:
            self.counts["digest"] += 1
        else:
            self.false.add((ledger_id, entry_id))

    def lies(self) -> list[str]:
        """Return one line for each lie."""
        return [
            *(f"ledger {ledger_id} entry {entry_id}: reported missing" for ledger_id, entry_id in sorted(self.denied)),
            *(f"ledger {ledger_id} entry {entry_id}: wrong body" for ledger_id, entry_id in sorted(self.false)),
            *(f"ledger {ledger_id} has lost its fence" for ledger_id in sorted(self.unfenced)),
        ]


def body_of(ledger_id: int, entry_id: int) -> bytes:
    """Return an entry's body with a CRC32C digest, the same on every bookie."""
    random = Random(f"{ledger_id}/{entry_id}")
    payload = random.randbytes(random.choice((20, 60, 200)))
    header = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, len(payload) * (entry_id + 1))
    return b"".join((header, digest(DigestType.CRC32C, b"", header, payload), payload))


def live(disk: SimDisk, seed: object, script: Script, *, stops: bool, config: BookieConfig = CONFIG) -> None:
    """Start a storage on the disk and run the script. `stops`: stop it in an orderly way, else abort it.

    Raises the script's and the storage's errors, and `RuntimeError` if the bookie dies.
    """
    loop = SimLoop()  # type: ignore[abstract]
    participant = Participant(loop, "bookie")
    failures: list[BaseException] = []
    workers = SimWorkers(Random(f"{seed}/workers"), mean_ms=0.01)
    runtime = Runtime(SimClock(loop, 0), cast(Network, None), disk, workers, Random(f"{seed}/runtime"))

    async def main() -> None:
        store = LedgerStore(runtime, config, failures.append)
        store.databases = SimDatabases(disk)
        await store.start()
        try:
            await script(store)
            if stops:
                await store.stop()
        finally:
            store.abort()

    async def within() -> None:
        await participant.create_task(main())

    try:
        loop.run(within())
    finally:
        loop.close()
        if failures or loop.errors:
            raise RuntimeError(f"the bookie died: {failures} {loop.errors}")


def build(seed: object, *, is_clean: bool, skip: int = 0, config: BookieConfig = CONFIG) -> Base:
    """Run three lives of a bookie: complete, open, fenced and multi-page ledgers, two checkpoints, and later adds.

    `is_clean`: the last life ends with an orderly stop. `skip`: number of ledgers to leave out of each life, to get
    another bookie of the cluster.
    """
    disk = SimDisk(Random(f"{seed}/disk"))
    base = Base({}, {}, set(), is_clean, config)

    def lives(ledger_ids: range, first: int, count: int, fenced: tuple[int, ...], *, checkpoints: bool) -> Script:
        async def script(store: LedgerStore) -> None:
            for entry_id in range(first, first + count):
                for ledger_id in ledger_ids[skip:]:
                    body = body_of(ledger_id, entry_id)
                    await add(store, ledger_id, entry_id, body)
                    base.entries[ledger_id, entry_id] = body
            for ledger_id in fenced:
                await _fence(store, ledger_id)
                base.fenced.add(ledger_id)
            base.versions.append(disk.files())
            if checkpoints:
                await store.checkpoint()

        return script

    def run(number: int, script: Script, *, stops: bool) -> None:
        live(disk, f"{seed}/{number}", script, stops=stops, config=config)
        disk.crash(PROCESS_DIES)
        base.versions.append(disk.files())

    run(1, lives(range(1, 5), 0, 9, (2,), checkpoints=True), stops=True)
    run(2, lives(range(3, 7), 9, 9, (5,), checkpoints=True), stops=False)
    run(3, lives(range(6, 9), 18, 9, (7,), checkpoints=False), stops=is_clean)
    base.files = base.versions.pop()
    return base


async def add(store: LedgerStore, ledger_id: int, entry_id: int, body: bytes) -> None:
    future: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    adds = Adds.of(ledger_id, range(entry_id, entry_id + 1), Records.of([body]), entry_id - 1)
    refused = store.add(
        adds,
        KEY,
        is_recovery=False,
        is_deferred_sync=False,
        accepted=lambda size: None,
        done=lambda _, error: future.set_result(error),
    )
    for _, reason in refused:
        raise reason
    if (error := await future) is not None:
        raise error


async def _fence(store: LedgerStore, ledger_id: int) -> None:
    future: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    store.fence(ledger_id, KEY, future.set_result)
    if (error := await future) is not None:
        raise error


def examine(base: Base, files: Files, seed: object, then: Script | None = None) -> Outcome:
    """Run two lives on these files. Request all promised data at once, after repairs, and after a restart.

    `then`: run at the end of the second life, before a last round of requests.
    """
    disk = SimDisk(Random(f"{seed}/disk"))
    for path, data in files.items():
        disk.put(path, data)
    outcome = Outcome()

    async def first(store: LedgerStore) -> None:
        await _ask(store, base, outcome)
        await asyncio.sleep(SETTLE_S)
        await _ask(store, base, outcome)
        await _ask_fences(store, base, outcome)

    async def second(store: LedgerStore) -> None:
        await asyncio.sleep(SETTLE_S)
        outcome.counts.clear()
        await _ask(store, base, outcome)
        await _ask_fences(store, base, outcome)
        if then is not None:
            await then(store)
            await _ask(store, base, outcome)

    try:
        live(disk, f"{seed}/a", first, stops=True, config=base.config)
        live(disk, f"{seed}/b", second, stops=True, config=base.config)
    except (BookKeeperError, OSError) as error:
        outcome.refusal = str(error)
    outcome.files = disk.files()
    return outcome


async def _ask(store: LedgerStore, base: Base, outcome: Outcome) -> None:
    """Request every entry, and the last entry and the entry list of each ledger."""

    async def ask(request: Awaitable[T], ledger_id: int, entry_id: int, *, counts: bool = False) -> T | None:
        """Return the answer; None, recorded as a lie: the entry is reported as missing; None: the request failed."""
        try:
            return await request
        except (EntryNotFound, LedgerUnknownToBookie):
            outcome.deny(ledger_id, entry_id)
        except (ReadFailed, DataUnknown) as error:
            outcome.counts[type(error).__name__] += counts
        return None

    last: dict[int, int] = {}
    for (ledger_id, entry_id), body in base.entries.items():
        last[ledger_id] = max(last.get(ledger_id, -1), entry_id)
        answer = await ask(store.read(ledger_id, entry_id), ledger_id, entry_id, counts=True)
        if answer is not None:
            outcome.take(ledger_id, entry_id, body, answer)
    for ledger_id, entry_id in last.items():
        answer = await ask(store.read(ledger_id, -1), ledger_id, entry_id)
        if answer is not None and struct.unpack_from(">q", answer, 8)[0] < entry_id:
            outcome.deny(ledger_id, entry_id)
        runs = await ask(store.list_entries(ledger_id), ledger_id, entry_id)
        for owner, entry_id in base.entries if runs is not None else ():
            if owner == ledger_id and not any(entry_id in run for run in runs or ()):
                outcome.deny(ledger_id, entry_id)


async def _ask_fences(store: LedgerStore, base: Base, outcome: Outcome) -> None:
    """Send an ordinary add to each fenced ledger."""
    for ledger_id in sorted(base.fenced):
        try:
            await add(store, ledger_id, 1_000, body_of(ledger_id, 1_000))
        except (LedgerFenced, DataUnknown, ReadFailed, Unauthorized) as error:
            outcome.counts[f"fenced: {type(error).__name__}"] += 1
        else:
            outcome.unfenced.add(ledger_id)


# -- damage --------------------------------------------------------------------------------------------------------
KINDS = ("flip", "truncate", "append", "remove", "replace", "zero")


def damage(files: Files, others: Files, path: str, kind: str, random: Random) -> Files:
    """Return the files with one of them damaged. `others`: files of another bookie, for "replace"."""
    data = bytearray(files[path])
    changed = dict(files)
    if kind == "remove":
        del changed[path]
        return changed
    if kind == "replace":
        names = [path] if path in others else sorted(other for other in others if _kind_of(other) == _kind_of(path))
        data = bytearray(others[names[0]]) if names else bytearray()
    elif kind == "append":
        data += random.randbytes(random.choice((1, 7, 8, 64, 1000)))
    elif not data:
        data += b"\0"
    elif kind == "truncate":
        del data[random.randrange(len(data)) :]
    elif kind == "zero":
        start = random.randrange(len(data)) & ~511
        data[start : start + 512] = bytes(len(data[start : start + 512]))
    else:
        # Most of a file may be unused zeros. Only written bytes are worth damaging.
        used = max(1, len(bytes(data).rstrip(b"\0")))
        for _ in range(random.choice((1, 1, 2, 8))):
            data[random.randrange(used)] ^= 1 << random.randrange(8)
    changed[path] = bytes(data)
    return changed


def _kind_of(path: str) -> str:
    return posixpath.splitext(path)[1] or posixpath.basename(path)


def may_be_lost(base: Base, files: Files, path: str) -> Base:
    """Return the base without the promises that the damage may break, because it looks like the result of a crash.

    This holds only for the last groups of a journal, if no group follows them in their file: groups that were synced,
    acknowledged and then lost look like groups that were never written.
    """
    if base.is_clean or _kind_of(path) != ".txn" or path not in files:
        return base
    before, after = base.files[path], files[path]
    after = after.ljust(len(before), b"\0") if len(after) >= len(before) else after
    changed = [at for at in range(len(before)) if before[at : at + 1] != after[at : at + 1]]
    if not changed:
        return base
    end_of_damage = changed[-1] - changed[-1] % journal_format.ALIGNMENT + journal_format.ALIGNMENT

    def pread(size: int, offset: int) -> bytes:
        return before[offset : offset + size]

    entries, fenced = dict(base.entries), set(base.fenced)
    start, version = journal_format.HEADER_SIZE, journal_format.VERSION
    for item in journal_format.scan(pread, len(before), start, version, is_newest=True):
        if not isinstance(item, Batch):
            continue
        for index, (ledger_id, entry_id) in enumerate(item.ids):
            begin, end = item.offset + item.records.starts[index], item.offset + item.records.starts[index + 1]
            if begin >= end_of_damage:
                return base
            if end > changed[0] - journal_format.ALIGNMENT:
                entries.pop((ledger_id, entry_id), None)
                fenced -= {ledger_id} if entry_id == journal_format.FENCE else set()
    return replace(base, entries=entries, fenced=fenced)


class Summary(Struct):
    """Results of many mutations. `lies`: (mutation, lie)."""

    count: int = 0
    refused: int = 0
    unharmed: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    lies: list[tuple[str, str]] = field(default_factory=list)

    def add(self, other: Summary) -> None:
        self.count += other.count
        self.refused += other.refused
        self.unharmed += other.unharmed
        self.answers += other.answers
        self.lies += other.lies


def fuzz(first: int, count: int, bases: tuple[Base, Base], others: Files) -> Summary:
    """Examine mutations number `first` to `first + count - 1`. The number determines file and kind of damage."""
    summary = Summary()
    for number in range(first, first + count):
        random = Random(f"damage/{number}")
        base = bases[number % 2]
        path = random.choice(sorted(base.files))
        kind = random.choice(KINDS)
        files = damage(base.files, others, path, kind, random)
        name = f"{number}: {kind} {path} ({'stopped' if base.is_clean else 'killed'})"
        try:
            outcome = examine(may_be_lost(base, files, path), files, number)
        except Exception as error:  # noqa: BLE001  (any error shows that the bookie died)
            summary.lies.append((name, f"died: {error!r}"))
            outcome = Outcome()
        summary.count += 1
        summary.refused += bool(outcome.refusal)
        summary.unharmed += not outcome.refusal and outcome.counts["right"] == len(base.entries)
        summary.answers += outcome.counts
        summary.lies.extend((name, text) for text in outcome.lies())
    return summary
