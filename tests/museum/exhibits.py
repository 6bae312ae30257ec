"""Exhibits: known causes of data loss in the reference implementation, each repeated as a defect in this code.

An `Exhibit` describes the history, patches one decision so that it is wrong in the same way, and names the search that
must detect the consequence: a profile of the simulator (`Hunt`), a schedule written line by line (`Schedule`), a script
of storage calls with a power failure at each disk call (`CrashSweep`; `Reclaim` for garbage collection and compaction,
in `space.py`), or a bookie's storage that is stopped and started (`Lives`, in `restarts.py`). `rows.py` lists the
defects without an exhibit, with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace
from tests.sim import conftest as lives
from tests.sim import mutant_table as mutants

from bookies import kernels
from bookies.bookie import reads
from bookies.client.write import LedgerWriter, adds
from bookies.client.write.closing import LedgerCloser
from bookies.errors import Status, status_of_error
from bookies.protocol.ledger import AddPipeline
from bookies.protocol.ledger.ledger import change_needed
from bookies.storage.cache.write_cache import Generation
from bookies.storage.checkpoint.flushes import Flusher
from bookies.storage.checkpoint.index_writes import IndexWriter
from bookies.storage.checkpoint.mark_files import MarkFiles, Marks
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


@dataclass(frozen=True)
class Hunt:
    """Seeds of a profile, from 1 on. `first`: the seed that detects the mistake; the quick test starts there."""

    profile: str
    first: int


@dataclass(frozen=True)
class CrashSweep:
    """Power failures at every disk call of a life with `script`. `first`: the disk call that detects the mistake.

    `comes_back`: only the process dies at the disk call; the next process starts, and then the power fails.
    """

    script: Script
    first: int
    is_survived: bool = False  # no power failure is needed: the assertions of `script` are enough
    comes_back: bool = False
    settings: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Reclaim:
    """Crashes at every disk call while a bookie collects or compacts. The space is checked afterwards as well.

    `script` is called with the storage, its promises and the metadata store.
    """

    script: Callable[[LedgerStore, Any, Any], Any]
    first: int
    settings: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Lives:
    """A fixed sequence of lives of a bookie's storage. `play` raises if a promise is broken."""

    play: Callable[[Any], None]
    settings: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Schedule:
    """A scenario of `tests/scenarios`."""

    name: str


Where = Hunt | CrashSweep | Reclaim | Lives | Schedule


@dataclass(frozen=True)
class Exhibit:
    """One exhibit. `links`: public reports. `story`: what happened there. `here`: the decision that is patched."""

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
    """Return the patch of one of the protocol's mutants."""
    (found,) = [each for each in mutants.MUTANTS if each.what == what]
    apply: Callable[[Patch], None] = found.apply
    return apply


def issue(*numbers: int) -> tuple[str, ...]:
    return tuple(f"{ISSUES}{number}" for number in numbers)


# -- scripts of crash sweeps -----------------------------------------------------------------------------------------
def body(ledger_id: int, entry_id: int) -> bytes:
    made: bytes = lives.entry_body(ledger_id, entry_id)
    return made


def some(ledger_id: int, first: int, count: int) -> dict[int, bytes]:
    return {entry_id: body(ledger_id, entry_id) for entry_id in range(first, first + count)}


async def two_checkpoints(store: LedgerStore, promises: Any) -> None:
    """Write entries, fences and explicit LACs, with a checkpoint; then more of them, with another checkpoint."""
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
    """Let the first attempt to write an entry log fail and the next one succeed."""
    await promises.add(store, 1, some(1, 0, 8))
    await store.checkpoint()
    await promises.add(store, 1, some(1, 8, 8))
    disk = store._runtime.disk
    disk.fail("pwritev", ".log", lambda: OSError(5, "Input/output error"), count=2)  # type: ignore[attr-defined]
    try:
        await store.checkpoint()
    except OSError:
        disk.faults.clear()  # type: ignore[attr-defined]
    await asyncio.sleep(3)  # The flush is retried.
    await promises.add(store, 2, some(2, 0, 4))
    await store.checkpoint()
    await promises.check(store)


async def many_small_logs(store: LedgerStore, promises: Any) -> None:
    """Flush the cache several times, into several logs, before a checkpoint."""
    for start in range(0, 160, 16):
        await promises.add(store, 1, some(1, start, 16))
        await promises.add(store, 2, some(2, start, 16))
        await asyncio.sleep(0.01)
    await store.checkpoint()
    await promises.add(store, 1, some(1, 160, 4))


# -- the protocol ----------------------------------------------------------------------------------------------------
exhibit(
    "recovery-reads-without-fence",
    "Entries acknowledged during a recovery",
    issue(2614, 2616, 2654),
    Hunt("races", 1),
    "A recovery fenced bookies only when it asked for the last add confirmed, and read the tail with plain reads. A "
    "bookie that the first request had not reached reported an entry as missing, and a moment later accepted it from "
    "the old writer. The ledger was closed before an entry that the writer had seen acknowledged. A model checker "
    "found the defect ten years after the protocol was written down.",
    "Recovery reads carry no fence.",
)(mutant("recovery reads without fence"))


@exhibit(
    "fences-on-emptied-disks",
    "Acknowledgements after the end, from bookies that were emptied",
    issue(4812),
    Schedule("X-81"),
    "A ledger was recovered and sealed while its writer was idle. The bookies of its ensemble were then emptied in "
    "turn, as when pods are drained and provisioned anew, and started again under their ids. The fences were on the "
    "disks that were gone. The writer appended again, an ack quorum accepted the entries, and they were after the end "
    "of the ledger.",
    "Writers use new connections, and bookies accept adds to ledgers older than their directories, without a check of "
    "the ledger's record.",
)
def _(patch: Patch) -> None:
    mutant("a writer sends on new connections without a check")(patch)
    mutant("a bookie stores adds of former ledgers without a check")(patch)


@exhibit(
    "fence-and-add-race",
    "A fence and an add that did not see each other",
    issue(4701),
    Hunt("races", 3),
    "Inside a bookie one object serialized fences and adds of a ledger. It could be evicted from its cache and "
    "recreated while the old object was still in use. The add held one lock, the fence the other. A bookie accepted "
    "and acknowledged a writer's entry just after it had promised a recovery to refuse further adds.",
    "An add that follows another add of its ledger within 50 ms uses the fence state that was valid for the earlier "
    "add.",
)
def _(patch: Patch) -> None:
    original_check, original_store = LedgerStore._check_add, LedgerStore._store
    accepted: dict[tuple[int, int], float] = {}  # when each storage's ledger last accepted an add

    def check_add(parts: Any, ledger: Any, *arguments: Any, **flags: Any) -> None:
        now = asyncio.get_running_loop().time()
        if ledger is None or now - accepted.get((id(parts), ledger.ledger_id), -1.0) >= 0.05:
            original_check(parts, ledger, *arguments, **flags)
            return
        header = ledger.header
        ledger.header = replace(header, state=header.state & ~STATE_FENCED)
        try:
            original_check(parts, ledger, *arguments, **flags)
        finally:
            ledger.header = header

    def store(self: LedgerStore, parts: Any, ledgers: Any, *arguments: Any) -> None:
        original_store(self, parts, ledgers, *arguments)
        now = asyncio.get_running_loop().time()
        accepted.update({(id(parts), ledger.ledger_id): now for ledger in ledgers})

    patch.setattr(LedgerStore, "_check_add", staticmethod(check_add))
    patch.setattr(LedgerStore, "_store", store)


exhibit(
    "confirmed-while-changing",
    "Records that list bookies which never got the entry (D-2)",
    issue(4651),
    Hunt("races", 1),
    "The adds of a handle and its ensemble change ran on different threads. While one thread computed the first entry "
    "of the new fragment from the last confirmed entry, later entries were confirmed on the old bookies. The record "
    "then placed those entries on bookies that had never received them.",
    "Entries are confirmed while an ensemble change is in progress.",
)(mutant("deliver while changing"))

exhibit(
    "one-phase-resend",
    "Entries confirmed by bookies that had just been replaced (D-1)",
    issue(3005, 4097),
    Hunt("races", 2),
    "After an ensemble change each pending entry was reset, sent again and delivered, one after the other. Delivering "
    "one entry also delivered the following ones, which still counted acknowledgements of the replaced bookies. "
    "Confirmed entries had no replica in the recorded ensemble. Fixes were proposed and not merged.",
    "Entries are confirmed before all acknowledgements of replaced bookies have been dropped.",
)(mutant("one-phase resend: deliver before everything is undone"))


exhibit(
    "advancing-recovery",
    "Readers shown entries that a losing recovery had found (D-5)",
    (),
    Hunt("limbo", 3),
    "Entries that a recovery writes back carry the recovery's own, advancing last add confirmed, although only the "
    "close decides the end. With two concurrent recoveries a tailing reader can be shown an entry as confirmed that "
    "the winner leaves out. Found by analysis of the reference implementation; no report is known.",
    "Entries that a recovery writes back carry the last entry written back instead of the recovery's starting point.",
)(mutant("advancing last add confirmed in what a recovery writes back"))

exhibit(
    "fence-before-durable",
    "A bookie that forgets that it was fenced (D-24)",
    issue(208),
    Hunt("crashes", 2),
    'A bookie answered a fencing request before its record was durable. It still does so if the answer is "no such '
    'entry". The recovery counts the answer as a fence. After a power failure the bookie accepts entries of the old '
    "writer.",
    "The answer to a fencing request does not wait for the journal.",
)(mutant("answer to a fencing request before the fence is durable"))


@exhibit(
    "errors-as-no-such-entry",
    "An I/O error that cut off a ledger's end",
    issue(2908),
    Hunt("limbo", 1),
    'A bookie whose entry log file was missing answered "no such entry". For a recovery that is a promise that this '
    "bookie never acknowledged the entry. With enough such answers the recovery closes the ledger before an "
    "acknowledged entry.",
    "A bookie that cannot read an entry reports it as missing.",
)
def _(patch: Patch) -> None:
    def status(error: BaseException) -> Status:
        found = status_of_error(error)
        return Status.NO_ENTRY if found in (Status.IO_ERROR, Status.UNKNOWN_LEDGER_STATE) else found

    patch.setattr(reads, "status_of_error", status)


exhibit(
    "limbo-denies",
    "Bookies that had lost their disks and reported entries as missing",
    ("https://github.com/apache/bookkeeper/pull/2936",),
    Hunt("limbo", 1),
    'A bookie with an empty disk, or without its journal after a power failure, answered "no such entry" for entries '
    "that it had acknowledged before. Since then it can answer *unknown*, which a recovery must not count as missing.",
    'A recovery counts *unknown* as "no such entry".',
)(mutant("limbo as negative"))


@exhibit(
    "stuck-behind-a-change",
    "Adds stuck after an ensemble change (D-4)",
    issue(4261, 4459),
    Hunt("answers", 15),
    "Entries that reach their quorum during an ensemble change wait for the end of the change. A late failure report "
    "about a bookie that had already been replaced started another change. That change had no effect, and at its end "
    "the entries completed meanwhile were not checked. These adds waited until an unrelated event, or for ever.",
    "A failure reported by a bookie that is no longer in the ensemble starts a change. It takes 2 ms, and confirms no "
    "entry at its end.",
)
def _(patch: Patch) -> None:
    failed, agreed, change = AddPipeline.failed, AddPipeline._agreed, LedgerWriter._change

    def failed_anywhere(self: AddPipeline, position: int, bookie: Any, entry_ids: Any, error: Any) -> Any:
        if self.ensemble[position] == bookie or not self.is_open or self._write_back is not None:
            return failed(self, position, bookie, entry_ids, error)
        if self.is_changing:
            self._replacement.late[position] = bookie
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
    "The outcome of a close is kept for the life of a handle. If the metadata store is unavailable for a moment, every "
    "further close of this handle fails with the same error, and the ledger stays open until a recovery. Found in the "
    "code of the reference implementation; no report is known.",
    "A failed seal is not retried.",
)
def _(patch: Patch) -> None:
    patch.setattr(LedgerCloser, "_may_write_again", lambda self: False)


@exhibit(
    "checksum-of-a-part",
    "A checksum that left out a part of the entry",
    issue(4205, 4140),
    Hunt("calm", 1),
    "An optimized checksum was wrong for buffers that consist of several parts. Entries were stored with digests that "
    "matched on no other code path, so they could not be read.",
    "The digest of a payload of more than 4,096 bytes covers only its first 4,096 bytes. Beyond this exhibit every "
    "kernel has a slow twin and golden vectors (`tests/golden`, `tests/property`).",
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
    CrashSweep(two_checkpoints, 73),
    "A checkpoint moved the journal's mark and deleted old journals, although some index pages for their entries had "
    "not been written. After a crash no index led to these entries.",
    "A checkpoint persists its mark without writing the index.",
)
def _(patch: Patch) -> None:
    async def write(self: IndexWriter, *arguments: object) -> None:
        await self.log.worker.run(self.log.writer.sync)

    patch.setattr(IndexWriter, "write", write)


@exhibit(
    "index-before-log",
    "An index that points to unwritten data",
    (f"{JIRA}447",),
    CrashSweep(two_checkpoints, 115),
    "Index pages reached the disk before the entry log that they point to. After a crash a bookie could not read its "
    "own last entry and did not start.",
    "The entry log is not synced before the index.",
)
def _(patch: Patch) -> None:
    patch.setattr(EntryLogWriter, "sync", lambda self: (self.extents(), self._greatest_id()))


@exhibit(
    "fence-in-memory",
    "A fence that lived in memory only",
    (f"{JIRA}500",),
    CrashSweep(two_checkpoints, 59),
    "The fence was kept in memory. After a restart the bookie accepted entries for the ledger from a writer that a "
    "recovery had ended.",
    "A fence changes the header in memory only.",
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
    CrashSweep(adds_during_a_checkpoint, 82),
    "The record of a new ledger was written to the journal before the ledger was inserted into the storage. A "
    "checkpoint in between moved the mark past the record. After a restart the ledger did not exist.",
    "Entries are inserted a moment after their journal record is queued.",
)
def _(patch: Patch) -> None:
    original = Generation.add

    def add(self: Generation, *arguments: Any) -> None:
        asyncio.get_running_loop().call_later(0.0003, original, self, *arguments)

    patch.setattr(Generation, "add", add)


@exhibit(
    "mark-of-the-moment",
    "A mark that covers entries still in memory",
    (f"{JIRA}564", *issue(659)),
    CrashSweep(adds_during_a_checkpoint, 137),
    "A checkpoint used the journal's current position as its mark, although newer entries were still only in the "
    "memtable. The journal that contained them was deleted.",
    "The mark is read at the end of the checkpoint instead of at its start.",
)
def _(patch: Patch) -> None:
    original = Flusher.flush_all

    async def flush_all(self: Flusher, marks: Marks) -> Marks:
        await original(self, marks)
        await self._index_writer.write()
        return self._rotated()

    patch.setattr(Flusher, "flush_all", flush_all)


@exhibit(
    "acknowledged-without-sync",
    "Groups acknowledged without a sync",
    issue(3979),
    CrashSweep(two_checkpoints, 112),
    'A pooled request object kept the flag "synced" from its last use. Later groups of the journal were acknowledged '
    "without a sync.",
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
    patch.setattr(JournalWriter, "begin", lambda writer, buffers, size: None)  # every group uses `commit`


@exhibit(
    "sealed-logs-forgotten",
    "Entry logs that were never synced",
    (*issue(1345), f"{JIRA}1044", f"{JIRA}986"),
    CrashSweep(many_small_logs, 402, settings=(("entry_log_size_max", 4096), ("write_cache_size", 8192))),
    "A full entry log was handed over for a sync while the flush was scanning the list of logs to sync. Another log, "
    "whose sync had failed, was dropped from the list. In both cases the checkpoint continued as if the log were "
    "durable.",
    "Sealed entry logs are not synced.",
)
def _(patch: Patch) -> None:
    seal = EntryLogWriter._seal

    def seal_only(self: EntryLogWriter, active: Any) -> None:
        with pytest.MonkeyPatch.context() as once:
            once.setattr(entry_log, "sync_data", lambda file: None)
            seal(self, active)

    def sync_active_only(self: EntryLogWriter) -> Any:
        for active in list(self._active.values()):
            self._sync_active(active)
        return self.extents(), self._greatest_id()

    patch.setattr(EntryLogWriter, "_seal", seal_only)
    patch.setattr(EntryLogWriter, "sync", sync_active_only)


@exhibit(
    "failed-flush-forgotten",
    "A failed flush that was not repeated",
    (f"{JIRA}986",),
    CrashSweep(a_failed_flush, 1, is_survived=True),
    "When the memtable could not be written, it was dropped together with the error. The next checkpoint succeeded and "
    "moved the mark past entries that were stored nowhere.",
    "A failed flush counts as completed.",
)
def _(patch: Patch) -> None:
    original = Flusher._flush_ended
    patch.setattr(Flusher, "_flush_ended", lambda self, error: original(self, None))


@exhibit(
    "explicit-lac-forgotten",
    "An announced last add confirmed that a restart forgot",
    issue(1527, 1533),
    CrashSweep(two_checkpoints, 59),
    "Explicit last add confirmed values were answered and kept in memory. After a restart readers received an older "
    "value than before.",
    "An explicit last add confirmed is answered without being journaled.",
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
    CrashSweep(two_checkpoints, 160, settings=(("journals", 2),)),
    "Several journals wrote their marks to the same file. After a restart one of them was replayed from the position "
    "of another.",
    "All journals use the name of one mark file. The catalog, which contains all marks too, is not read.",
)
def _(patch: Patch) -> None:
    original = MarkFiles.__init__

    def initialize(self: MarkFiles, *arguments: Any) -> None:
        original(self, *arguments)
        self._names = [self._names[0]] * len(self._names)

    patch.setattr(MarkFiles, "__init__", initialize)
    patch.setattr(marks, "credible_mark", lambda disk, directory, found, *rest: found[0] if found else LogMark())
