"""Metrics of a bookie's storage: journal, caches, entry logs, collection, disks, scrub.

Apache's bookie has one storage for each ledger directory and labels its metrics with the directory. Ours has a single
storage over all of them, so these labels list the directories.

Source: operations 2.3, 2.4, 2.6.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from bookies.metrics.metric import Kind, Metric, Sums
from bookies.storage.engine import StorageParts
from bookies.storage.gc import CollectionLoop
from bookies.storage.gc.collection_policy import Compaction
from bookies.storage.store import LedgerStore

_PLACE = ("ledgerDir", "indexDir")
_ABSENT = Sums(0, 0)


class StorageFacts(Struct, frozen=True):
    """The running storage of a bookie at the moment of a scrape."""

    store: LedgerStore
    parts: StorageParts
    stats: dict[str, int]

    @classmethod
    def of(cls, store: LedgerStore) -> StorageFacts | None:
        """Return the facts; None while the storage does not run."""
        parts = store.parts
        return None if parts is None else cls(store, parts, store.stats())

    @property
    def place(self) -> tuple[str, str]:
        config = self.parts.config
        return ",".join(config.ledger_directories), ",".join(config.index_directories or config.ledger_directories)


class CollectionFacts(Struct, frozen=True):
    """Garbage collection at the moment of a scrape."""

    collector: CollectionLoop
    place: tuple[str, str]
    space: dict[str, Any]
    ledgers: int

    @classmethod
    def of(cls, store: LedgerStore) -> CollectionFacts | None:
        """Return the facts; None while there is no collection."""
        collector, facts = store.collector, StorageFacts.of(store)
        if collector is None or facts is None:
            return None
        return cls(collector, facts.place, collector.figures(), facts.stats["ledgers"])


def _journal(name: str, kind: Kind, help: str, read: Callable[[Any], Any], unit: str = "") -> Metric:
    def by_index(facts: StorageFacts) -> dict[str, Any]:
        return {str(number): read(journal) for number, journal in enumerate(facts.parts.journals)}

    return Metric(f"bookie_journal_{name}", kind, "storage", help, by_index, ("journalIndex",), unit)


def _placed(name: str, kind: Kind, help: str, read: Callable[[Any], Any], unit: str = "", part: str = "gc") -> Metric:
    """Return a metric with the labels of Apache's storage."""
    return Metric(f"bookie_{name}", kind, part, help, lambda facts: {facts.place: read(facts)}, _PLACE, unit)


def _stored(name: str, kind: Kind, help: str, read: Callable[[Any], Any], unit: str = "") -> Metric:
    return _placed(name, kind, help, read, unit, "storage")


def _stat(name: str, kind: Kind, help: str, key: str, unit: str = "") -> Metric:
    """Return a metric that `LedgerStore.stats` counts."""
    return Metric(name, kind, "storage", help, lambda facts: facts.stats[key], unit=unit)


def _usages(facts: StorageFacts, directories: list[str]) -> dict[str, float]:
    spaces = facts.parts.disks.space.spaces
    return {
        posixpath.dirname(path): 100 * (1 - spaces[path].usable / spaces[path].total)
        for path in directories
        if path in spaces and spaces[path].total
    }


def _writable(facts: StorageFacts, directories: list[str]) -> int:
    spaces = facts.parts.disks.space.spaces
    return sum(
        path in spaces and not spaces[path].is_full
        for path in facts.parts.health.healthy(list(dict.fromkeys(directories)))
    )


def _shares(step: int) -> Metric:
    return _placed(
        f"entry_log_usage_buckets_le_{10 * (step + 1)}",
        Kind.GAUGE,
        f"entry logs of which {10 * step} to {10 * (step + 1)} % are live; not cumulative",
        lambda facts: facts.collector.logs_by_share()[step],
    )


def _constant(name: str, kind: Kind, help: str, unit: str = "") -> Metric:
    """Return a metric that Apache has and that is always 0 here."""
    return _stored(name, kind, f"always 0: {help}", lambda _: _ABSENT if kind is Kind.SUMMARY else 0, unit)


JOURNAL: tuple[Metric, ...] = (
    Metric("bookie_JOURNAL_DIRS", Kind.GAUGE, "storage", "journals", lambda facts: len(facts.parts.journals)),
    _journal(
        "JOURNAL_ADD_ENTRY",
        Kind.SUMMARY,
        "time from queuing a record until it is durable",
        lambda j: j.times.adds,
        "ms",
    ),
    _journal("JOURNAL_SYNC", Kind.SUMMARY, "write and sync of one group", lambda j: j.times.syncs, "ms"),
    _journal(
        "JOURNAL_QUEUE_LATENCY",
        Kind.SUMMARY,
        "records: wait in the queue",
        lambda j: Sums(j.times.record_count, j.times.waited_s),
        "ms",
    ),
    _journal(
        "JOURNAL_FORCE_WRITE_GROUPING_TOTAL",
        Kind.SUMMARY,
        "records that one sync makes durable",
        lambda j: Sums(j.group_count, j.times.record_count),
    ),
    _journal(
        "JOURNAL_FORCE_WRITE_BATCH_BYTES",
        Kind.SUMMARY,
        "bytes of one group",
        lambda j: Sums(j.group_count, j.size),
        "bytes",
    ),
    _journal("JOURNAL_QUEUE_SIZE", Kind.GAUGE, "records that wait for the next group", lambda j: j.queued_count),
    _journal("JOURNAL_FORCE_WRITE_QUEUE_SIZE", Kind.GAUGE, "groups being written", lambda j: int(j.is_writing)),
    _journal("JOURNAL_WRITE_BYTES", Kind.COUNTER, "bytes written", lambda j: j.size, "bytes"),
    _journal("JOURNAL_MEMORY_USED", Kind.GAUGE, "bytes queued or being written", lambda j: j.queued_size, "bytes"),
    Metric(
        "bookies_journal_sync_seconds",
        Kind.HISTOGRAM,
        "storage",
        "write and sync of one group",
        lambda facts: {str(number): journal.times.syncs for number, journal in enumerate(facts.parts.journals)},
        ("journal",),
        "seconds",
    ),
    Metric(
        "bookies_journal_add_seconds",
        Kind.HISTOGRAM,
        "storage",
        "time from queuing a record until it is durable",
        lambda facts: {str(number): journal.times.adds for number, journal in enumerate(facts.parts.journals)},
        ("journal",),
        "seconds",
    ),
    _stat(
        "bookies_journal_slow_groups_total",
        Kind.COUNTER,
        "groups that took longer than a second",
        "journal_slow_groups",
    ),
)

STORAGE: tuple[Metric, ...] = (
    _stat("bookie_WRITE_BYTES", Kind.COUNTER, "bytes of entries added", "bytes_added", "bytes"),
    _stat("bookies_entries_added_total", Kind.COUNTER, "entries added", "entries_added"),
    _stat("bookie_write_cache_size", Kind.GAUGE, "bytes not yet in an entry log", "write_cache_size", "bytes"),
    _stat("bookie_write_cache_count", Kind.GAUGE, "entries not yet in an entry log", "write_cache_entries"),
    Metric(
        "bookie_write_cache_max_size",
        Kind.GAUGE,
        "storage",
        "limit of the write cache",
        lambda facts: facts.parts.config.write_cache_size,
        unit="bytes",
    ),
    _stored("write_cache_hits", Kind.COUNTER, "reads answered from the write cache", lambda f: f.store.cache_hits),
    _stored(
        "write_cache_misses",
        Kind.COUNTER,
        "reads that needed an entry log",
        lambda facts: facts.store.resident_hits + facts.store.log_reads.count,
    ),
    _stored(
        "read_cache_hits",
        Kind.COUNTER,
        "reads answered from entry logs in the system's page cache",
        lambda facts: facts.store.resident_hits,
    ),
    _stored("read_cache_misses", Kind.COUNTER, "reads done by a worker", lambda facts: facts.store.log_reads.count),
    _constant("read_cache_size", Kind.GAUGE, "the system's page cache takes the place of a read cache", "bytes"),
    _constant("read_cache_count", Kind.GAUGE, "the system's page cache takes the place of a read cache"),
    _constant("readahead_batch_count", Kind.SUMMARY, "a batch read fetches entries together instead"),
    _constant("readahead_batch_size", Kind.SUMMARY, "a batch read fetches entries together instead", "bytes"),
    _constant("rejected_write_requests", Kind.COUNTER, "a full cache pauses connections and refuses no add"),
    Metric(
        "bookies_log_read_seconds",
        Kind.HISTOGRAM,
        "storage",
        "reads of entry logs done by a worker, with the look-up in the index",
        lambda facts: facts.store.log_reads,
        unit="seconds",
    ),
    _stored(
        "flush", Kind.SUMMARY, "flushes of the write cache", lambda facts: facts.parts.checkpointer.flusher.times, "ms"
    ),
    _stored(
        "flush_size",
        Kind.SUMMARY,
        "bytes of one flush",
        lambda facts: Sums(facts.stats["flushes"], facts.stats["flushed_size"]),
        "bytes",
    ),
    Metric(
        "bookies_checkpoint_seconds",
        Kind.HISTOGRAM,
        "storage",
        "checkpoints",
        lambda facts: facts.parts.checkpointer.times,
        unit="seconds",
    ),
    Metric(
        "bookies_index_cache_bytes",
        Kind.GAUGE,
        "storage",
        "index pages in memory: dirty ones are not yet on disk",
        lambda facts: {"dirty": facts.stats["index_dirty_size"], "clean": facts.stats["index_clean_size"]},
        ("state",),
        "bytes",
    ),
    _stat("bookies_index_files_stray", Kind.GAUGE, "index files that belong to no ledger", "index_files_stray"),
    _stored("ledgers_count", Kind.GAUGE, "ledgers in the index catalog", lambda facts: facts.stats["ledgers"]),
    _stat("bookies_replay_entries", Kind.GAUGE, "entries that the start restored from the journal", "replayed_entries"),
)

DISKS: tuple[Metric, ...] = (
    Metric(
        "bookie_ledger_writable_dirs",
        Kind.GAUGE,
        "storage",
        "ledger directories that are neither full nor failed",
        lambda facts: _writable(facts, facts.parts.directories.ledgers),
    ),
    Metric(
        "bookie_ledger_num_dirs",
        Kind.GAUGE,
        "storage",
        "ledger directories",
        lambda facts: len(facts.parts.directories.ledgers),
    ),
    Metric(
        "bookie_ledger_dir_<path>_usage",
        Kind.GAUGE,
        "storage",
        "use of a ledger directory's file system; other characters of the path are _",
        lambda facts: _usages(facts, facts.parts.directories.ledgers),
        unit="percent",
    ),
    Metric(
        "bookie_index_writable_dirs",
        Kind.GAUGE,
        "storage",
        "index directories that are neither full nor failed",
        lambda facts: _writable(facts, facts.parts.directories.indexes),
    ),
    Metric(
        "bookie_index_num_dirs",
        Kind.GAUGE,
        "storage",
        "index directories",
        lambda facts: len(facts.parts.directories.indexes),
    ),
    Metric(
        "bookie_index_dir_<path>_usage",
        Kind.GAUGE,
        "storage",
        "use of an index directory's file system; other characters of the path are _",
        lambda facts: _usages(facts, facts.parts.directories.indexes),
        unit="percent",
    ),
    Metric(
        "bookies_disk_used_ratio",
        Kind.GAUGE,
        "storage",
        "use of each directory's file system, 0 to 1",
        lambda facts: {
            posixpath.dirname(path): 1 - space.usable / space.total
            for path, space in facts.parts.disks.space.spaces.items()
            if space.total
        },
        ("directory",),
        "ratio",
    ),
    _stat("bookies_directories_lost", Kind.GAUGE, "lost directories that the bookie runs without", "directories_lost"),
    _stat(
        "bookies_ledgers_in_limbo",
        Kind.GAUGE,
        "ledgers of which entries or promises may be lost here; the bookie denies none of their entries",
        "ledgers_in_limbo",
    ),
    Metric(
        "bookies_directory_failed",
        Kind.GAUGE,
        "storage",
        "1: the bookie has given up the directory",
        lambda facts: {
            posixpath.dirname(path): int(path in facts.parts.health.failed)
            for path in (*facts.parts.directories.ledgers, *facts.parts.directories.indexes)
        },
        ("directory",),
    ),
)

COLLECTION: tuple[Metric, ...] = (
    _placed("ACTIVE_ENTRY_LOG_TOTAL", Kind.GAUGE, "sealed entry logs", lambda facts: facts.space["entry_logs"]),
    _placed("ACTIVE_LEDGER_TOTAL", Kind.GAUGE, "ledgers", lambda facts: facts.ledgers),
    _placed(
        "ACTIVE_ENTRY_LOG_SPACE_BYTES",
        Kind.GAUGE,
        "live bytes of sealed entry logs",
        lambda facts: facts.space["live_bytes"],
        "bytes",
    ),
    _placed(
        "ENTRY_LOG_SPACE_BYTES",
        Kind.GAUGE,
        "bytes of sealed entry logs",
        lambda facts: facts.space["entry_log_bytes"],
        "bytes",
    ),
    *(_shares(step) for step in range(10)),
    _placed(
        "MINOR_COMPACTION_TOTAL",
        Kind.COUNTER,
        "minor compactions",
        lambda facts: facts.collector.compactions.counts[Compaction.MINOR],
    ),
    _placed(
        "MAJOR_COMPACTION_TOTAL",
        Kind.COUNTER,
        "major compactions",
        lambda facts: facts.collector.compactions.counts[Compaction.MAJOR],
    ),
    _placed("DELETED_LEDGER_TOTAL", Kind.COUNTER, "ledgers deleted here", lambda facts: facts.space["ledgers_deleted"]),
    _placed(
        "RECLAIMED_DELETION_SPACE_BYTES",
        Kind.COUNTER,
        "bytes of deleted entry logs that held no live entry",
        lambda facts: facts.space["bytes_given_back"] - facts.space["bytes_given_back_by_compaction"],
        "bytes",
    ),
    _placed(
        "RECLAIMED_COMPACTION_SPACE_BYTES",
        Kind.COUNTER,
        "bytes given back by compaction",
        lambda facts: facts.space["bytes_given_back_by_compaction"],
        "bytes",
    ),
    _placed(
        "RECLAIM_FAILED_TO_DELETE",
        Kind.COUNTER,
        "steps of a collection that failed",
        lambda facts: facts.space["jobs_failed"],
    ),
    _placed("THREAD_RUNTIME", Kind.SUMMARY, "runs of the collection", lambda facts: facts.collector.runs, "ms"),
    Metric(
        "bookies_ledgers_in_quarantine",
        Kind.GAUGE,
        "gc",
        "deleted ledgers that can still be restored",
        lambda facts: facts.space["ledgers_in_quarantine"],
    ),
    Metric(
        "bookies_ledgers_pinned",
        Kind.GAUGE,
        "gc",
        "ledgers that an operator has restored",
        lambda facts: facts.space["ledgers_pinned"],
    ),
    Metric(
        "bookies_logs_without_room",
        Kind.GAUGE,
        "gc",
        "entry logs that were not compacted because no disk has room for the copy",
        lambda facts: facts.space["logs_without_room"],
    ),
    Metric(
        "bookies_collector_alarm",
        Kind.GAUGE,
        "gc",
        "1: a collection waits for an operator, because it would remove implausibly many ledgers",
        lambda facts: int(facts.space["alarm"] is not None),
    ),
    Metric(
        "bookies_entry_logs_set_aside",
        Kind.GAUGE,
        "gc",
        "damaged entry logs that are neither deleted nor compacted",
        lambda facts: len(facts.space["logs_set_aside"]),
    ),
)


def _scrub(name: str, kind: Kind, help: str, key: str, unit: str = "") -> Metric:
    return Metric(f"bookies_scrub_{name}", kind, "scrub", help, lambda gauges: gauges[key], unit=unit)


SCRUB: tuple[Metric, ...] = (
    _scrub("running", Kind.GAUGE, "1: a pass is in progress", "scrub_is_running"),
    _scrub("read_bytes", Kind.GAUGE, "bytes that the present or last pass has read", "scrub_read_size", "bytes"),
    _scrub("left_bytes", Kind.GAUGE, "bytes that the pass still has to read", "scrub_left_size", "bytes"),
    _scrub("verified_bytes", Kind.GAUGE, "bytes that the pass has verified", "scrub_verified_size", "bytes"),
    _scrub(
        "oldest_unverified_seconds",
        Kind.GAUGE,
        "time since the verification of the data that was verified longest ago",
        "scrub_oldest_unverified_s",
        "seconds",
    ),
    _scrub("damaged_entries", Kind.GAUGE, "damaged entries that the pass has found", "scrub_damaged_entries"),
    Metric(
        "bookies_scrub_period_seconds",
        Kind.GAUGE,
        "bookie",
        "the setting scrub_period_ms: time in which the scrub verifies all data once; 0: never",
        lambda bookie: bookie.config.scrub_period_ms / 1000,
        unit="seconds",
    ),
    _scrub("failures_total", Kind.COUNTER, "failures of the scrub itself", "scrub_failures"),
)
