"""Defects without an exhibit, and lists of known data losses: each row names its exhibits, or why it has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ISSUES = "https://github.com/apache/bookkeeper/issues/"
JIRA = "https://issues.apache.org/jira/browse/BOOKKEEPER-"


@dataclass(frozen=True)
class NotMade:
    """A defect without an exhibit. `will`: what protects this code instead."""

    title: str
    links: tuple[str, ...]
    story: str
    will: str


@dataclass(frozen=True)
class Row:
    """A row. `references`: issue numbers or BOOKKEEPER-n. `exhibits`: by name. `why_not`: the part without one."""

    label: str
    references: str
    what: str
    exhibits: tuple[str, ...] = ()
    why_not: str = ""


def issues(*numbers: int) -> tuple[str, ...]:
    return tuple(f"{ISSUES}{number}" for number in numbers)


NOT_MADE = [
    NotMade(
        "A mark that went backwards",
        issues(4105, 4740, 3623),
        "Two checkpoints ran at once. The older one overwrote the mark of the newer one, whose journals were already "
        "deleted. The bookie searched for a deleted journal and did not start.",
        "The same mistake was introduced here by overwriting the newer mark with the older one, and is harmless. A "
        "replay starts with the oldest existing journal, and everything before any persisted mark is in the ledger "
        "storage. Marks still move only forward.",
    ),
    NotMade(
        "Applications that close a ledger after failed adds, or open it without recovery",
        ("https://github.com/diennea/herddb/issues/100", "https://github.com/pravega/pravega/pull/1907"),
        "Closing a handle sealed the ledger, so an error handler decided the end of the log.",
        "The API prevents it: `close` releases the handle and decides nothing, `seal` ends the ledger (promises I-23 "
        "and I-24 of every run).",
    ),
]

STORAGE = [
    Row("R-1", "BOOKKEEPER-177", "journals dropped before all index pages were written", ("mark-before-index",)),
    Row("R-2", "BOOKKEEPER-447", "index durable before the log it points into", ("index-before-log",)),
    Row("R-3", "2908", "an I/O error answered as no such entry", ("errors-as-no-such-entry",)),
    Row("R-4", "BOOKKEEPER-500", "a fence in memory only", ("fence-in-memory",)),
    Row("R-5", "208", "a fence answered before it was durable", ("fence-before-durable",)),
    Row("R-6", "BOOKKEEPER-815", "a fence lost with an evicted header", ("header-evicted",)),
    Row("R-7", "1255", "a record journaled before it was in the storage", ("journal-before-insert",)),
    Row("R-8", "867", "replay did not recreate what was in an unsynced index", ("replay-believes-the-index",)),
    Row("R-9", "BOOKKEEPER-564, 659", "a mark from the end of the checkpoint", ("mark-of-the-moment",)),
    Row("R-10", "1254", "several journals, one mark file", ("journals-share-a-mark",)),
    Row("R-11", "3329", "the flush of one directory persisted the mark for all", ("half-a-checkpoint",)),
    Row("R-12", "4105, 4740", "a mark that went backwards", (), "introduced, and harmless here: see above"),
    Row("R-13", "2087, 2105", "no mark after a replay", ("replayed-for-ever",)),
    Row("R-14", "3979", "groups acknowledged without a sync", ("acknowledged-without-sync",)),
    Row("R-15", "2879", "a bookie that outlived its journal thread", ("lives-on-without-a-journal",)),
    Row("R-16", "1345", "a log sealed during a flush was never synced", ("sealed-logs-forgotten",)),
    Row(
        "R-17",
        "BOOKKEEPER-1044, BOOKKEEPER-986",
        "failed syncs and flushes forgotten",
        ("sealed-logs-forgotten", "failed-flush-forgotten"),
    ),
    Row(
        "R-18",
        "1534",
        "source log deleted before the copies' locations were durable",
        ("copies-not-indexed", "copies-without-a-name"),
    ),
    Row(
        "R-19",
        "3959",
        "a flush put old locations over compacted ones",
        ("flush-over-moved", "moved-unconditionally"),
    ),
    Row("R-20", "4607", "a log deleted because of a garbage header", ("garbage-header",)),
    Row("R-21", "1757", "a flush recreated a deleted ledger", ("flush-makes-it-again",)),
    Row(
        "R-22",
        "BOOKKEEPER-174, BOOKKEEPER-198",
        "replay failed on entries of deleted ledgers",
        ("replay-of-the-deleted",),
    ),
    Row("R-23", "4462", "a late writer recreated a deleted ledger, unfenced", ("late-writer",)),
    Row("R-24", "1279", "the write cache overwrote entries", ("garbage-from-the-cache",)),
    Row("R-25", "1737", "the memtable kept a borrowed buffer", ("borrowed-buffer",)),
    Row("R-26", "2944", "hexadecimal names read as decimal", ("ids-in-decimal",)),
    Row("R-27", "4040, 4041", "ids of entry logs assigned twice", ("log-ids-used-again",)),
    Row("R-28", "2264, 3901, 4544", "one corrupt log stopped all collection", ("one-log-stops-all",)),
    Row("R-29", "3965", "a log forgotten although its deletion had failed", ("forgotten-before-deleted",)),
    Row(
        "R-30",
        "544, BOOKKEEPER-619, 2305",
        "a bookie that considered itself new",
        ("taken-for-new",),
        "the journal's part; stores and cookies: `tests/unit/storage/identity/test_admission.py`",
    ),
    Row("R-31", "2614", "recovery reads without fence", ("recovery-reads-without-fence",)),
    Row(
        "R-32",
        "2936",
        "wiped bookies reported lost entries as missing",
        ("limbo-denies",),
        "the client's part; here a bookie that has lost its disks does not start",
    ),
    Row("R-33", "1527, 1533", "an explicit last add confirmed lost at a restart", ("explicit-lac-forgotten",)),
]

PAINS = [
    Row("A-1", "2614, 2616, 2654", "entries acknowledged during a recovery", ("recovery-reads-without-fence",)),
    Row("A-2", "4701", "fence and add raced inside a bookie", ("fence-and-add-race",)),
    Row("A-3", "4651", "records that list bookies without the entries", ("confirmed-while-changing",)),
    Row("A-4", "870", "collection of live ledgers", ("one-proof", "errors-as-gone")),
    Row(
        "A-5",
        "4607, 4658",
        "a log with live data deleted for its header",
        ("garbage-header", "copied-up-to-the-damage"),
    ),
    Row("A-6", "2908", "a ledger cut off by an I/O error", ("errors-as-no-such-entry",)),
    Row(
        "A-7",
        "4462, 3329",
        "deletion and writing at once; several directories",
        ("late-writer", "flush-makes-it-again", "half-a-checkpoint"),
    ),
    Row("A-8", "4040", "two loggers numbered their files", ("log-ids-used-again",)),
    Row(
        "A-9", "1534, 571", "compaction removed the old file too early", ("copies-not-indexed", "copies-without-a-name")
    ),
    Row(
        "A-10",
        "4740, 3623",
        "marks that went backwards, journals missing",
        (),
        "introduced, and harmless here: see above; a missing journal stops the start: `tests/sim/test_ledger_store.py`",
    ),
    Row("A-11", "4205, 4140", "checksums that differ between code paths", ("checksum-of-a-part",)),
    Row("A-12", "", "applications that seal after failed adds", (), "the API prevents it: see above"),
    Row("A-13", "4812", "fences lost with emptied bookies", ("fences-on-emptied-disks",)),
]

CLIENT = [
    Row("D-1", "3005, 4097", "confirmed by bookies that had been replaced", ("one-phase-resend",)),
    Row("D-2", "4651", "confirmed while the ensemble changed", ("confirmed-while-changing",)),
    Row("D-4", "4261, 4459", "adds stuck behind an empty change", ("stuck-behind-a-change",)),
    Row("D-5", "", "a recovery's last add confirmed shown to readers", ("advancing-recovery",)),
    Row("D-24", "208", "a fence answered before it was durable", ("fence-before-durable",)),
    Row("D-25", "", "a close that fails for ever", ("sealed-once-and-never-again",)),
]

LISTS: list[tuple[str, str, Sequence[Row]]] = [
    ("Losses by bookies", "The rules of storage 10.1, with the defect that each one prevents.", STORAGE),
    ("Losses reported by users", "Lost data and defects that users reported.", PAINS),
    ("Mistakes of writers", "The deviations in client-protocol 10.1 that have an exhibit.", CLIENT),
]


def link(reference: str) -> str:
    name = reference.strip()
    return f"[{name}]({JIRA + name[11:] if name.startswith('BOOKKEEPER-') else ISSUES + name})"


def table(title: str, introduction: str, listed: Sequence[Row], exhibits: Sequence[Any]) -> str:
    """Format one list as a section of the page."""
    titles = {each.name: each.title for each in exhibits}
    lines = []
    for row in listed:
        references = ", ".join(map(link, row.references.split(","))) if row.references else ""
        shown = ", ".join(f"`{name}`: {titles[name]}" for name in row.exhibits)
        lines.append(f"| {row.label} | {references} | {row.what} | {'; '.join(filter(None, (shown, row.why_not)))} |")
    head = ["| row | reports | what went wrong | here |", "|---|---|---|---|"]
    return "\n".join([f"## {title}\n", introduction + "\n", *head, *lines, ""])
