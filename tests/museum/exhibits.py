"""What the reference system lost data by, and the same mistake made in our code.

An `Exhibit` tells what happened, patches one decision of ours so that it is wrong in the same way, and names where to
look for the consequence: a profile of the simulator (`Hunt`), or a script of storage calls with the power failing at
each disk call (`CrashSweep`). `NotYet` are those whose code does not exist here.
"""

from __future__ import annotations

import asyncio
import importlib.util
import pathlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import pytest

from bookies.bookie import reads
from bookies.errors import Status, status_of_error
from bookies.storage import checkpoint, entry_log
from bookies.storage.checkpoint import Checkpointer, MarkFiles
from bookies.storage.entry_log import EntryLogWriter
from bookies.storage.index_format import STATE_FENCED
from bookies.storage.journal import JournalWriter
from bookies.storage.ledger_store import LedgerStore
from bookies.storage.write_cache import Generation

Patch = pytest.MonkeyPatch
Script = Callable[[LedgerStore, Any], Any]
ISSUES = "https://github.com/apache/bookkeeper/issues/"
JIRA = "https://issues.apache.org/jira/browse/BOOKKEEPER-"


def load_neighbour(path: str) -> ModuleType:
    """A module of the tests by its path below them."""
    name = "museum_" + pathlib.Path(path).stem
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, pathlib.Path(__file__).parent.parent / path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


mutants = load_neighbour("sim/mutant_table.py")
lives = load_neighbour("sim/conftest.py")


@dataclass(frozen=True)
class Hunt:
    """Seeds from 1 on of a profile. `first`: the one that finds it; the quick test begins there."""

    profile: str
    first: int


@dataclass(frozen=True)
class CrashSweep:
    """The power fails at disk call after disk call of a life with `script`. `first`: the call that shows it."""

    script: Script
    first: int
    is_survived: bool = False  # without the power failing at all: what `script` asserts is enough
    settings: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Exhibit:
    """`links`: to the public reports. `story`: what happened there. `here`: the decision that is patched."""

    name: str
    title: str
    links: tuple[str, ...]
    story: str
    here: str
    where: Hunt | CrashSweep
    apply: Callable[[Patch], None]


@dataclass(frozen=True)
class NotYet:
    title: str
    links: tuple[str, ...]
    story: str
    will: str


EXHIBITS: list[Exhibit] = []


def exhibit(
    name: str, title: str, links: tuple[str, ...], where: Hunt | CrashSweep, story: str, here: str
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def declare(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
        EXHIBITS.append(Exhibit(name, title, links, story, here, where, apply))
        return apply

    return declare


def mutant(what: str) -> Callable[[Patch], None]:
    """One of the protocol's mutants."""
    (found,) = [each for each in mutants.MUTANTS if each.what == what]
    apply: Callable[[Patch], None] = found.apply
    return apply


def issue(*numbers: int) -> tuple[str, ...]:
    return tuple(f"{ISSUES}{number}" for number in numbers)


# -- what a bookie is asked in a crash sweep -------------------------------------------------------------------------
def body(ledger_id: int, entry_id: int) -> bytes:
    made: bytes = lives.entry_body(ledger_id, entry_id)
    return made


def some(ledger_id: int, first: int, count: int) -> dict[int, bytes]:
    return {entry_id: body(ledger_id, entry_id) for entry_id in range(first, first + count)}


async def two_checkpoints(store: LedgerStore, promises: Any) -> None:
    """Entries, fences and explicit LACs; a checkpoint; more of them; another."""
    await asyncio.gather(
        promises.add(store, 1, some(1, 0, 8)), promises.fence(store, 3), promises.write_lac(store, 4, 17)
    )
    await store.checkpoint()
    await asyncio.gather(promises.add(store, 1, some(1, 8, 8)), promises.add(store, 2, some(2, 0, 4)))
    await asyncio.gather(promises.fence(store, 2), promises.write_lac(store, 4, 18))
    await store.checkpoint()
    await promises.add(store, 5, some(5, 0, 4))


async def adds_during_a_checkpoint(store: LedgerStore, promises: Any) -> None:
    await promises.add(store, 1, some(1, 0, 16))
    for start in (16, 32):
        running = asyncio.ensure_future(store.checkpoint())
        for entry_id in range(start, start + 16):
            await promises.add(store, 1, some(1, entry_id, 1))
        await running


async def a_failed_flush(store: LedgerStore, promises: Any) -> None:
    """The first attempt to write the entry log fails, in whichever log; the next succeeds."""
    await promises.add(store, 1, some(1, 0, 8))
    await store.checkpoint()
    await promises.add(store, 1, some(1, 8, 8))
    disk = store._runtime.disk
    disk.fail("pwritev", ".log", lambda: OSError(5, "Input/output error"), count=2)  # type: ignore[attr-defined]
    try:
        await store.checkpoint()
    except OSError:
        disk.faults.clear()  # type: ignore[attr-defined]
    await asyncio.sleep(3)  # It is tried again.
    await promises.add(store, 2, some(2, 0, 4))
    await store.checkpoint()
    await promises.check(store)


async def many_small_logs(store: LedgerStore, promises: Any) -> None:
    """The cache is flushed several times, into several logs, before a checkpoint."""
    for start in range(0, 160, 16):
        await promises.add(store, 1, some(1, start, 16))
        await promises.add(store, 2, some(2, start, 16))
        await asyncio.sleep(0.01)
    await store.checkpoint()
    await promises.add(store, 1, some(1, 160, 4))


# -- the protocol ----------------------------------------------------------------------------------------------------
exhibit(
    "recovery-reads-without-fence",
    "Entries acknowledged behind the back of a recovery",
    issue(2614, 2616, 2654),
    Hunt("races", 1),
    "A recovery fenced bookies only when it asked for the last add confirmed, and read the tail with plain reads. A "
    "bookie that the first request had not reached said that it had no such entry, and took the entry from the old "
    "writer a moment later; the ledger was closed before an entry that the writer saw acknowledged. A model checker "
    "found it, ten years after the protocol was written down.",
    "Recovery reads carry no fence.",
)(mutant("recovery reads without fence"))


@exhibit(
    "fence-and-add-race",
    "A fence and an add that did not see each other",
    issue(4701),
    Hunt("races", 1),
    "Inside a bookie the object that serialised fence and add of a ledger could leave its cache and be made again "
    "while the old one was in use. The add held one lock, the fence the other: a writer's entry was accepted and "
    "acknowledged by a bookie that had just promised a recovery to take no more.",
    "An add that follows another of its ledger within 50 ms decides by the fence as it was for that one.",
)
def _(patch: Patch) -> None:
    original = LedgerStore._insert
    stale: dict[tuple[int, int], float] = {}  # when each storage's ledger last took an add

    def insert(self: LedgerStore, parts: Any, ledger: Any, *arguments: Any) -> None:
        now, key, header = asyncio.get_running_loop().time(), (id(self), ledger.ledger_id), ledger.header
        if header.is_fenced and now - stale.get(key, -1.0) < 0.05:
            ledger.header = replace(header, state=header.state & ~STATE_FENCED)
            try:
                original(self, parts, ledger, *arguments)
            finally:
                ledger.header = header
        else:
            original(self, parts, ledger, *arguments)
        stale[key] = now

    patch.setattr(LedgerStore, "_insert", insert)


exhibit(
    "confirmed-while-changing",
    "Records that list bookies which never got the entry (D-2)",
    issue(4651),
    Hunt("races", 2),
    "The adds of a handle and the change of its ensemble ran on different threads. While the first entry of the new "
    "fragment was being computed from the last confirmed one, later entries were confirmed on the old bookies; the "
    "record then said that those entries were on bookies which had never seen them.",
    "Entries are confirmed while an ensemble change is under way.",
)(mutant("deliver while changing"))

exhibit(
    "one-phase-resend",
    "Entries confirmed by bookies that had just been replaced (D-1)",
    issue(3005, 4097),
    Hunt("races", 2),
    "After an ensemble change each pending entry was unset, sent again and delivered, one after the other. Delivering "
    "one also delivered those behind it, which still counted acknowledgements of the bookies that were gone: confirmed "
    "entries had no replica in the ensemble on record. Corrections were proposed and not merged.",
    "Confirming goes on before all acknowledgements of replaced bookies have been forgotten.",
)(mutant("one-phase resend: deliver before everything is undone"))


exhibit(
    "advancing-recovery",
    "Readers shown entries that a losing recovery had found (D-5)",
    (),
    Hunt("limbo", 3),
    "What a recovery writes back carries its own, advancing last add confirmed, although the end is decided only by "
    "the close. With two recoveries at once a tailing reader can be shown an entry as confirmed that the winner leaves "
    "out. Found by analysis of the reference; no report of it is known.",
    "A recovery's write-backs carry the last entry written back instead of its starting point.",
)(mutant("advancing last add confirmed in what a recovery writes back"))

exhibit(
    "fence-before-durable",
    "A bookie that forgets that it was fenced (D-24)",
    issue(208),
    Hunt("crashes", 7),
    'A fencing request was answered although its record was not durable; one that ended with "no such entry" still '
    "is. The recovery counts the answer as a fence. After a power failure the bookie takes entries of the old writer.",
    "The answer to a fencing request does not wait for the journal.",
)(mutant("answer to a fencing request before the fence is durable"))


@exhibit(
    "errors-as-no-such-entry",
    "An I/O error that cut off a ledger's end",
    issue(2908),
    Hunt("limbo", 1),
    'A bookie whose entry log file was gone answered "no such entry". To a recovery that is a promise that the entry '
    "was never acknowledged by this bookie, and with enough of them it closes the ledger before an entry that was.",
    "A bookie that cannot read an entry says that it never had it.",
)
def _(patch: Patch) -> None:
    def status(error: BaseException) -> Status:
        found = status_of_error(error)
        return Status.NO_ENTRY if found in (Status.IO_ERROR, Status.UNKNOWN_LEDGER_STATE) else found

    patch.setattr(reads, "status_of_error", status)


# -- the storage -----------------------------------------------------------------------------------------------------
@exhibit(
    "mark-before-index",
    "Journals dropped before the index was written",
    (f"{JIRA}177",),
    CrashSweep(two_checkpoints, 46),
    "The journal's mark was moved and old journals were deleted although some index pages of the entries they held had "
    "not been written. After a crash nothing led to these entries.",
    "A checkpoint persists its mark without writing the index.",
)
def _(patch: Patch) -> None:
    async def write_index(self: Checkpointer) -> None:
        await self._log_worker.run(self._log.sync)

    patch.setattr(Checkpointer, "_write_index", write_index)


@exhibit(
    "index-before-log",
    "An index that points to what was never written",
    (f"{JIRA}447",),
    CrashSweep(two_checkpoints, 72),
    "Index pages reached the disk before the entry log that they point into. After a crash a bookie could not read its "
    "own last entry, and did not start.",
    "The entry log is not synced before the index.",
)
def _(patch: Patch) -> None:
    patch.setattr(EntryLogWriter, "sync", lambda self: None)


@exhibit(
    "fence-in-memory",
    "A fence that lived in memory only",
    (f"{JIRA}500", f"{JIRA}815"),
    CrashSweep(two_checkpoints, 27),
    "The fenced state was kept in memory, and later was lost when the open index file was evicted. After a restart the "
    "ledger took entries again from a writer that a recovery had ended.",
    "A fence changes the header in memory and nothing else.",
)
def _(patch: Patch) -> None:
    def fence(self: LedgerStore, ledger_id: int, done: Any, master_key: bytes) -> None:
        ledger = self._authorized(ledger_id, master_key)
        ledger.header = ledger.header.with_state(STATE_FENCED)
        asyncio.get_running_loop().call_soon(done, None)

    patch.setattr(LedgerStore, "_fence", fence)


@exhibit(
    "journal-before-insert",
    "A record journaled before it was in the storage",
    issue(1255),
    CrashSweep(adds_during_a_checkpoint, 47),
    "The record of a new ledger went to the journal before the ledger was inserted into the storage. A checkpoint in "
    "between moved the mark past it; after a restart the ledger did not exist.",
    "Entries are inserted a moment after their journal record is queued.",
)
def _(patch: Patch) -> None:
    original = Generation.add

    def add(self: Generation, *arguments: Any) -> None:
        asyncio.get_running_loop().call_later(0.0003, original, self, *arguments)

    patch.setattr(Generation, "add", add)


@exhibit(
    "mark-of-the-moment",
    "A mark that covers what is still only in memory",
    (f"{JIRA}564", *issue(659)),
    CrashSweep(adds_during_a_checkpoint, 137),
    "A checkpoint took the journal's position of the moment for its mark, although newer entries were still only in "
    "the memtable. The journal that had them was deleted.",
    "The mark is read when the checkpoint has done its work instead of when it began.",
)
def _(patch: Patch) -> None:
    original = Checkpointer._flush_all

    async def flush_all(self: Checkpointer) -> checkpoint.Marks:
        await original(self)
        await self._write_index()
        return self._marks()

    patch.setattr(Checkpointer, "_flush_all", flush_all)


@exhibit(
    "acknowledged-without-sync",
    "Groups acknowledged without a sync",
    issue(3979),
    CrashSweep(two_checkpoints, 74),
    "A pooled request object kept the mark of being synced from its last use, so that later groups of the journal were "
    "acknowledged without any sync.",
    "Only the first group of a journal file is synced.",
)
def _(patch: Patch) -> None:
    original = JournalWriter.commit

    def commit(self: JournalWriter, buffers: Any, size: int, spare: Any) -> Any:
        with pytest.MonkeyPatch.context() as once:
            if self._journal_id == getattr(self, "synced_id", None):
                once.setattr(type(self._file), "fdatasync", lambda file: None)
                once.setattr(type(self._file), "write_durably", lambda file, *what: file.pwritev(*what))
            self.synced_id = self._journal_id  # type: ignore[attr-defined]
            return original(self, buffers, size, spare)

    patch.setattr(JournalWriter, "commit", commit)


@exhibit(
    "sealed-logs-forgotten",
    "Logs that nobody synced",
    (*issue(1345), f"{JIRA}1044", f"{JIRA}986"),
    CrashSweep(many_small_logs, 286, settings=(("entry_log_size_max", 4096), ("write_cache_size", 8192))),
    "A log that was full was handed over for a sync while the flush was looking at the list of those to sync; another "
    "whose sync had failed was dropped from the list. Either way the checkpoint went on as if it were durable.",
    "Logs that were sealed are not synced.",
)
def _(patch: Patch) -> None:
    seal = EntryLogWriter._seal

    def seal_only(self: EntryLogWriter) -> None:
        with pytest.MonkeyPatch.context() as once:
            once.setattr(entry_log, "sync_data", lambda file: None)
            seal(self)

    patch.setattr(EntryLogWriter, "_seal", seal_only)
    patch.setattr(EntryLogWriter, "sync", lambda self: self._sync_active())


@exhibit(
    "failed-flush-forgotten",
    "A flush that failed and was not repeated",
    (f"{JIRA}986",),
    CrashSweep(a_failed_flush, 1, is_survived=True),
    "When the memtable could not be written it was dropped with the error; the next checkpoint succeeded and moved the "
    "mark past entries that were nowhere any more.",
    "A flush that fails is taken for one that has ended.",
)
def _(patch: Patch) -> None:
    original = Checkpointer._flush_ended
    patch.setattr(Checkpointer, "_flush_ended", lambda self, error: original(self, None))


@exhibit(
    "explicit-lac-forgotten",
    "An announced end that a restart forgot",
    issue(1527, 1533),
    CrashSweep(two_checkpoints, 27),
    "Explicit last add confirmed values were answered and kept in memory; after a restart readers were told an older "
    "end than before.",
    "An explicit last add confirmed is answered without going to the journal.",
)
def _(patch: Patch) -> None:
    def write_lac(self: LedgerStore, ledger_id: int, done: Any, master_key: bytes, lac: int, data: bytes) -> None:
        ledger = self._authorized(ledger_id, master_key)
        self._open().index.set_explicit_lac(ledger, data)
        asyncio.get_running_loop().call_soon(done, None)

    patch.setattr(LedgerStore, "_write_lac", write_lac)


@exhibit(
    "journals-share-a-mark",
    "Several journals with one mark",
    issue(1254),
    CrashSweep(two_checkpoints, 104, settings=(("journals", 2),)),
    "Several journals wrote their marks into the same file. After a restart one of them was replayed from the position "
    "of another.",
    "All journals use the name of one mark file.",
)
def _(patch: Patch) -> None:
    original = MarkFiles.__init__

    def initialize(self: MarkFiles, *arguments: Any) -> None:
        original(self, *arguments)
        self._names = [self._names[0]] * len(self._names)

    patch.setattr(MarkFiles, "__init__", initialize)


NOT_YET = [
    NotYet(
        "Adds stuck behind an ensemble change (D-4)",
        issue(4261, 4459),
        "Entries that reached their quorum during an ensemble change wait for its end. When the change turned out to "
        "need nothing more to be sent, nobody looked at them again until something unrelated happened.",
        "Made here, by dropping what the end of a change confirms, and not found yet by the seeds tried: mostly the "
        "next acknowledgement confirms it all the same. A schedule of its own is missing.",
    ),
    NotYet(
        "Garbage collection deletes live ledgers",
        (
            "https://github.com/YahooArchive/bookkeeper/pull/15",
            "https://github.com/YahooArchive/bookkeeper/pull/17",
            *issue(870),
        ),
        "A listing of ledgers came back empty or short, and everything it did not name was deleted.",
        "No such code yet. With it: listings that shrink, end early or come from another cluster, in the simulator's "
        "metadata store; nothing is deleted without a second proof.",
    ),
    NotYet(
        "An entry log with live data deleted because its header is garbage",
        issue(4607, 4658),
        "The header of a new log was not initialised; a collector read it as a log without ledgers.",
        "No such code yet: our logs are never deleted. With it: rot in headers and maps before a collection.",
    ),
    NotYet(
        "A mark that went backwards",
        issue(4105, 4740, 3623),
        "Two checkpoints ran at once, and the older one wrote its mark over that of the newer, whose journals were "
        "already deleted. The bookie looked for a journal that was gone and did not start.",
        "Made here as well, by writing the older mark over the newer one, and harmless: a replay begins with the "
        "oldest journal there is, and everything before a mark that was ever persisted is in the ledger storage. "
        "Marks move only forward all the same.",
    ),
    NotYet(
        "Entries lost between deleting and writing",
        issue(4462, 3329),
        "A late writer made a deleted ledger again, unfenced; with several directories a flush of one moved the mark "
        "of all.",
        "No deletion at a bookie yet. With it: adds and recovery adds racing deletions. The second half holds here by "
        "construction, one checkpoint covers all directories, and is swept with two of them.",
    ),
    NotYet(
        "Two entry loggers number their files independently",
        issue(4040, 4041),
        "After switching the implementation of the entry log a stale counter gave out ids of files that existed.",
        "There is one entry log here. Ids come from file names and `lastId`, whichever is greater, as "
        "unit tests check.",
    ),
    NotYet(
        "Compaction removes the old file before the new locations are durable",
        issue(1534, 571, 3959),
        "The source log was deleted before the index of the copies was flushed; or a flush put the old locations back.",
        "No such code yet. With it: a crash at each disk call of a compaction, as the sweeps here do for checkpoints.",
    ),
    NotYet(
        "Checksums that differ between code paths",
        issue(4205, 4140),
        "An optimised checksum was wrong for buffers made of parts.",
        "Not a decision to patch: golden vectors and a slow twin of every kernel (`tests/golden`, `tests/property`).",
    ),
    NotYet(
        "Applications that close a ledger after failed adds, or open it without recovery",
        ("https://github.com/diennea/herddb/issues/100", "https://github.com/pravega/pravega/pull/1907"),
        "Closing a handle meant sealing the ledger, so that an error handler decided the end of the log.",
        "A matter of the API: `close` lets go and decides nothing, `seal` ends the ledger (promises I-23 and "
        "I-24 of every run).",
    ),
]
