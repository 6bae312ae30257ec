"""What the reference system lost data by, and the same mistake made in our code.

An `Exhibit` tells what happened, patches one decision of ours so that it is wrong in the same way, and names where to
look for the consequence: a profile of the simulator (`Hunt`), a schedule written line by line (`Schedule`), a script
of storage calls with the power failing at each disk call (`CrashSweep`, and `Reclaim` where space is given back, in
`space.py`), or a bookie's storage that is stopped and started (`Lives`, in `restarts.py`). `rows.py` has those that
are not made here, and says why.
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

from bookies import kernels
from bookies.bookie import reads
from bookies.client.write import LedgerWriter, adds
from bookies.client.write.closing import LedgerCloser
from bookies.errors import Status, status_of_error
from bookies.protocol.ledger import AddPipeline
from bookies.protocol.ledger.ledger import change_needed
from bookies.storage.cache.write_cache import Generation
from bookies.storage.engine import checkpoint
from bookies.storage.engine.checkpoint import Checkpointer, MarkFiles
from bookies.storage.entry_log import entry_log
from bookies.storage.entry_log.entry_log import EntryLogWriter
from bookies.storage.index.index_format import STATE_FENCED
from bookies.storage.journal import LogMark
from bookies.storage.journal import log_marks as marks
from bookies.storage.journal.journal import JournalWriter
from bookies.storage.store import LedgerStore

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
    """The power fails at disk call after disk call of a life with `script`. `first`: the call that shows it.

    `comes_back`: there only the process dies; the next one starts, and then the power fails.
    """

    script: Script
    first: int
    is_survived: bool = False  # without the power failing at all: what `script` asserts is enough
    comes_back: bool = False
    settings: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Reclaim:
    """The same while a bookie collects or compacts; afterwards the space is looked at as well.

    `script` is called with the storage, its promises and the metadata store.
    """

    script: Callable[[LedgerStore, Any, Any], Any]
    first: int
    settings: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Lives:
    """A fixed sequence of lives of a bookie's storage; `play` raises when a promise is broken."""

    play: Callable[[Any], None]
    settings: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Schedule:
    """A scenario of `tests/scenarios`."""

    name: str


Where = Hunt | CrashSweep | Reclaim | Lives | Schedule


@dataclass(frozen=True)
class Exhibit:
    """`links`: to the public reports. `story`: what happened there. `here`: the decision that is patched."""

    name: str
    title: str
    links: tuple[str, ...]
    story: str
    here: str
    where: Where
    apply: Callable[[Patch], None]


EXHIBITS: list[Exhibit] = []


def exhibit(
    name: str, title: str, links: tuple[str, ...], where: Where, story: str, here: str
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


exhibit(
    "limbo-denies",
    "Bookies that had lost their disks and said so little",
    ("https://github.com/apache/bookkeeper/pull/2936",),
    Hunt("limbo", 1),
    'A bookie with an empty disk, or one without a journal after a power failure, answered "no such entry" for what it '
    "had acknowledged before. Since then it can say that it does not know, which no recovery may take for a no.",
    'A recovery counts "I do not know" as "no such entry".',
)(mutant("limbo as negative"))


@exhibit(
    "stuck-behind-a-change",
    "Adds stuck behind an ensemble change (D-4)",
    issue(4261, 4459),
    Hunt("answers", 5),
    "Entries that reach their quorum while the ensemble changes wait for the end of the change. A late report about a "
    "bookie that had been replaced already started one more change, which found nothing to do, and did not look at "
    "what had been completed meanwhile. These adds waited until something unrelated happened, or for ever.",
    "A failure reported by a bookie that is not in the ensemble any more starts a change; it takes 2 ms, and nothing "
    "is confirmed at its end.",
)
def _(patch: Patch) -> None:
    failed, agreed, change = AddPipeline.failed, AddPipeline._agreed, LedgerWriter._change

    def failed_anywhere(self: AddPipeline, position: int, bookie: Any, entry_ids: Any, error: Any) -> Any:
        if self.ensemble[position] == bookie or not self.is_open or self._is_recovery:
            return failed(self, position, bookie, entry_ids, error)
        if self.is_changing:
            self._late[position] = bookie
            return ()
        return self._handle_failure({position: bookie})

    def agreed_in_silence(self: AddPipeline, ensemble: Any) -> Any:
        with pytest.MonkeyPatch.context() as once:
            if ensemble == self.ensemble:
                once.setattr(self, "_deliver", lambda: (), raising=True)
            return agreed(self, ensemble)

    async def change_slowly(self: LedgerWriter, effect: Any) -> None:
        if not change_needed(self._record.current.metadata, effect.failed):
            await asyncio.sleep(0.002)
        await change(self, effect)

    patch.setattr(AddPipeline, "failed", failed_anywhere)
    patch.setattr(AddPipeline, "_agreed", agreed_in_silence)
    patch.setattr(LedgerWriter, "_change", change_slowly)


@exhibit(
    "sealed-once-and-never-again",
    "A close that fails for ever (D-25)",
    (),
    Schedule("sealing_again"),
    "The outcome of closing is kept for the life of a handle. When the metadata store is away for a moment, every "
    "further close of this handle fails with the same error, and the ledger stays open until somebody recovers it. "
    "Seen in the code of the reference; no report of it is known.",
    "A seal that has failed is not tried again.",
)
def _(patch: Patch) -> None:
    patch.setattr(LedgerCloser, "_may_write_again", lambda self: False)


@exhibit(
    "checksum-of-a-part",
    "A checksum that left out a part of the entry",
    issue(4205, 4140),
    Hunt("calm", 1),
    "An optimised checksum was wrong for buffers that consist of parts. Entries were stored with digests that nobody "
    "else agreed with, so they could not be read.",
    "The digest of a payload of more than 4,096 bytes covers only these. Beyond this exhibit every kernel has a slow "
    "twin and golden vectors (`tests/golden`, `tests/property`).",
)
def _(patch: Patch) -> None:
    original = adds.pack_add_frames

    def pack_add_frames(
        head: bytes, ledger_id: int, first: int, lac: int, length: int, payloads: Any, *how: Any
    ) -> Any:
        frames, starts, end = original(head, ledger_id, first, lac, length, payloads, *how)
        wrong = bytearray(frames)
        for start, payload in zip(starts, payloads, strict=False):
            value = kernels.digest(*how, frames[start + 28 : start + 60], payload[:4096])
            wrong[start + 60 : start + 60 + len(value)] = value
        return bytes(wrong), starts, end

    patch.setattr(adds, "pack_add_frames", pack_add_frames)


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
    async def write_index(self: Checkpointer, marks: object = None) -> None:
        await self._log_worker.run(self._log.sync)

    patch.setattr(Checkpointer, "write_index", write_index)


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
    (f"{JIRA}500",),
    CrashSweep(two_checkpoints, 27),
    "The fenced state was kept in memory. After a restart the ledger took entries again from a writer that a recovery "
    "had ended.",
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
        await self.write_index()
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
    patch.setattr(JournalWriter, "begin", lambda writer, buffers, size: None)  # all go by `commit`


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
    CrashSweep(two_checkpoints, 135, settings=(("journals", 2),)),
    "Several journals wrote their marks into the same file. After a restart one of them was replayed from the position "
    "of another.",
    "All journals use the name of one mark file, and the catalog, which has all marks too, is not asked.",
)
def _(patch: Patch) -> None:
    original = MarkFiles.__init__

    def initialize(self: MarkFiles, *arguments: Any) -> None:
        original(self, *arguments)
        self._names = [self._names[0]] * len(self._names)

    patch.setattr(MarkFiles, "__init__", initialize)
    patch.setattr(marks, "credible_mark", lambda disk, directory, found, size_max: found[0] if found else LogMark())


load_neighbour("museum/restarts.py")
load_neighbour("museum/space.py")
