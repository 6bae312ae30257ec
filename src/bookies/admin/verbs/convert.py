"""`bk bookie convert`: conversion of a stopped bookie's index from Apache's RocksDB databases to index files, or back.

Before index files become databases, the journal is replayed as in `bk bookie repair`. In the other direction the next
start of the bookie replays it, because the journal format is the same.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator

from bookies.admin.shared import Progress, UsageError
from bookies.admin.shared.common import size_text
from bookies.admin.shared.report import Report
from bookies.admin.verbs.repair import replay_and_repair
from bookies.config import BookieConfig
from bookies.runtime import aio
from bookies.runtime.files import OsDisk
from bookies.storage.disks.directories import current
from bookies.storage.identity.cookie import is_encrypted
from bookies.storage.offline import bookie_at
from bookies.storage.offline.offline_bookie import kept_page_size
from bookies.storage.rocksdb.conversion import INDEX_FILES, ROCKSDB, Conversion
from bookies.storage.rocksdb.conversion_check import Survey
from bookies.storage.rocksdb.rocksdb_port import RocksDatabases
from bookies.storage.rocksdb.to_index_files import ToIndexFiles
from bookies.storage.rocksdb.to_rocksdb import ToRocks

TARGETS: dict[str, type[Conversion]] = {INDEX_FILES: ToIndexFiles, ROCKSDB: ToRocks}


def convert(arguments: argparse.Namespace) -> Report:
    """Convert, discard or cancel. Status 0: done, or possible with --dry-run; 1: unreadable entries."""
    disk = OsDisk()
    if not disk.is_directory(arguments.path):
        raise UsageError(f"{arguments.path} is not a directory")
    config = config_of(disk, arguments.path)
    progress = Progress("entries", None, quiet=arguments.json)
    conversion_type = TARGETS[arguments.to or INDEX_FILES]
    conversion = conversion_type(disk, RocksDatabases(), config, lambda step, entries: progress.update(entries, step))
    try:
        if arguments.discard_old or arguments.cancel:
            return _tidy(conversion, arguments)
        return _convert(conversion, config, arguments)
    finally:
        progress.clear()
        conversion.close()


def config_of(disk: OsDisk, path: str) -> BookieConfig:
    """Return the directories of the bookie that owns `path`. Raises StorageError if one of them is missing."""
    config = bookie_at(disk, path).config()
    indexes = [current(directory) for directory in config.index_directories or config.ledger_directories]
    page_size = kept_page_size(disk, indexes)
    return config if page_size is None else dataclasses.replace(config, index_page_size=page_size)


def _tidy(conversion: Conversion, arguments: argparse.Namespace) -> Report:
    conversion.open()
    if arguments.cancel:
        conversion.cancel()
        text, count = "the conversion was cancelled; the old index is in use", 0
    else:
        count = conversion.discard_old()
        text = f"the old index removed: {count} of its directories" if count else "no old index is kept here"
    return Report({"discarded": count}, [text])


def _convert(conversion: Conversion, config: BookieConfig, arguments: argparse.Namespace) -> Report:
    conversion.open()
    if arguments.to == ROCKSDB and any(is_encrypted(OsDisk(), current(path)) for path in config.ledger_directories):
        raise UsageError(
            f"{arguments.path} has encrypted entries, which Apache's bookie cannot read. Nothing was changed. Decrypt "
            "them first: docs/howto/encrypt-entries-at-rest.md"
        )
    if not arguments.dry_run and not conversion.restart():
        conversion.finish()
        return _report(arguments, None)
    if arguments.to == ROCKSDB and not arguments.dry_run and not conversion.is_in_databases:
        conversion.close()
        aio.run(replay_and_repair(config))
        conversion.open()
    survey = conversion.survey()
    if survey.damaged_count and not arguments.keep_damaged:
        return _report(arguments, survey, is_done=False, status=1)
    if not arguments.dry_run:
        conversion.convert(survey)
    return _report(arguments, survey, is_done=not arguments.dry_run)


def _report(arguments: argparse.Namespace, survey: Survey | None, *, is_done: bool = True, status: int = 0) -> Report:
    facts: dict[str, object] = {"to": arguments.to, "done": is_done}
    if survey is not None:
        facts |= {"ledgers": len(survey.headers), "entries": survey.entries, "orphans": survey.orphans}
        facts |= {"logs_linked": survey.logs_linked, "logs_copied": survey.logs_copied}
        facts |= {"copied_bytes": survey.copied_size, "logs_spared": survey.logs_spared}
        facts |= {"damaged": survey.damaged_count, "damaged_entries": survey.damaged, "problems": survey.problems}
    result = "nothing was changed"
    if is_done:
        result = (
            f"the index is in {arguments.to} now. The old one is kept; when the bookie runs well, delete it with "
            f"bk bookie convert {arguments.path} --discard-old"
        )
    return Report(facts, [*([] if survey is None else _survey_lines(survey, is_done=is_done)), result], status)


def _survey_lines(survey: Survey, *, is_done: bool) -> Iterator[str]:
    yield f"{len(survey.headers):,} ledgers, {survey.entries:,} entries, looked up in the entry logs one by one"
    if survey.orphans:
        yield f"{survey.orphans:,} entries of ledgers that the bookie had deleted: left out"
    yield from _about_logs(survey, is_done=is_done)
    for problem in survey.problems:
        yield f"{problem}: these ledgers answer UNKNOWN instead of NO_ENTRY, and accept only recovery adds"
    for ledger_id, entry_id in survey.damaged[:10]:
        yield f"entry {entry_id} of ledger {ledger_id} is not where the index says"
    if survey.damaged_count:
        yield f"{survey.damaged_count:,} entries cannot be read; --keep-damaged converts anyway: reads of them fail"


def _about_logs(survey: Survey, *, is_done: bool) -> Iterator[str]:
    """Yield lines about entry logs that several directories need: with databases, each has the logs of its ledgers."""
    verb = "were" if is_done else "would be"
    if survey.logs_linked:
        yield f"{survey.logs_linked:,} entry logs {verb} linked into directories that need them too"
    if survey.logs_copied:
        yield (
            f"{survey.logs_copied:,} entry logs, {size_text(survey.copied_size)}, {verb} copied to directories on "
            "other file systems that need them too; a conversion back to index files frees that space"
        )
    if survey.logs_spared:
        yield f"{survey.logs_spared:,} links and copies of entry logs that other directories have {verb} removed"
