"""The start of a bookie's storage: lock, find, replay, flush, checkpoint, new journal files.

The start writes only after it has found everything that must exist. F-38: any failure, the flush after replay included,
fails the start. A start that fails for lack of free space leaves no new file, so it may be retried. With an empty
replay, or enough space for it, a bookie starts on full disks and stays read-only until there is space for the rest.

The start does not read entry logs, so it takes as long as the replay. The exception is a missing catalog (the first
start on Apache's directories) or an incomplete one: then only the entry logs tell which ledgers existed.

Source: storage 9.5, 2.10.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from bookies.errors import DiskFull, StorageError
from bookies.runtime.events import Events
from bookies.runtime.ports import Disk
from bookies.storage.checkpoint.failover import Note, cut_lost, drop_stale, read_notes, remove_notes
from bookies.storage.disks.directories import RUN_ID_SIZE, Directories
from bookies.storage.disks.durable_files import replace_copies
from bookies.storage.engine.opening_databases import note_uncertain, open_databases, rebuild_lost
from bookies.storage.engine.opening_sealed import check_keys
from bookies.storage.engine.rebuild import ledgers_in_logs, without_slots
from bookies.storage.engine.replay import ReplayReport, Restorer, replay
from bookies.storage.engine.storage_parts import StorageParts
from bookies.storage.engine.torn_logs import complete_outputs, empty_logs, is_behind, torn_logs
from bookies.storage.entry_log.entry_log import greatest_log_id
from bookies.storage.entry_log.entry_log_format import LOG_ID_MAX, pack_last_id
from bookies.storage.entry_log.log_directories import LogDirectories
from bookies.storage.entry_log.log_usage import find_logs
from bookies.storage.identity.index_kind import check_kind
from bookies.storage.identity.lost_directories import currents_of, note_applied, unapplied
from bookies.storage.index.catalog import LogsFound
from bookies.storage.index.catalog_format import checker, pack
from bookies.storage.index.index_files import find_index_files
from bookies.storage.index.index_format import SLOT_SIZE
from bookies.storage.index.slot_scans import logs_named
from bookies.storage.journal import LogMark, journal_format
from bookies.storage.journal.journal import journal_ids
from bookies.storage.journal.journal_place import check_places, note_place
from bookies.storage.journal.journal_trailer import SIZE_MAX, find_group
from bookies.storage.journal.log_marks import find_marks
from bookies.storage.rocksdb.database_files import REOPEN_ROOM, OpenDatabases, OpenedDatabases

ROOM_MIN = 1 << 20  # bytes required in addition to the entries: headers, pages, names


async def open_storage(parts: StorageParts, events: Events) -> None:
    """Start the storage until the journals accept records. Raises: StorageError, OSError; then it must not serve.

    The message of DiskFull names the remedy.
    """
    runtime, config = parts.runtime, parts.config
    directories, checkpointer, worker = parts.directories, parts.checkpointer, parts.checkpointer.worker
    await worker.run(directories.acquire)
    await worker.run(partial(check_kind, runtime.disk, directories.indexes, is_rocksdb=parts.databases is not None))
    await worker.run(check_places, runtime.disk, directories.journals)
    is_encrypted = await worker.run(check_keys, runtime.disk, directories, parts.logs, parts.sealer)
    stores = list(dict.fromkeys([*directories.ledgers, *directories.indexes]))
    note = await worker.run(read_notes, runtime.disk, stores)
    returned = [path for path in directories.indexes if path in note.failed]
    await worker.run(cut_lost, runtime.disk, [path for path in directories.ledgers if path in note.failed], note.lost)
    catalog = await worker.run(parts.index.catalog_writer.file.load, returned)
    found_marks = await worker.run(checkpointer.mark_files.read)
    async with _explain_disk_full(parts, directories.indexes, REOPEN_ROOM, discards=False):
        opened = await open_databases(parts, catalog, found_marks, events)
    paths = await _remaining_paths(parts, opened, returned, events)
    lost, lost_paths, parts.index.catalog.logs = await worker.run(_find_losses, runtime.disk, directories, parts.logs)
    if returned:
        equal = _files_in(returned, [paths[ledger_id] for ledger_id in parts.index.places.rivals])
        newest = {ledger_id: path for ledger_id, path in paths.items() if path not in equal}
        count = await worker.run(drop_stale, runtime.disk, returned, newest, parts.index.catalog_writer.file.path)
        events.warning("storage.directory_back", paths=", ".join(returned), stale_files=count)
    parts.index.adopt_files(paths, catalog, parts.removals.is_deleted)
    note_uncertain(parts, opened)
    parts.index.catalog.resolve(await worker.run(parts.index.read_checksums, parts.index.catalog.unsettled()))
    parts.index.catalog.logs = await worker.run(_skip_lost_logs, parts, paths, lost)
    marks = await worker.run(_marks_of, parts, found_marks, lost)
    is_cut = catalog is not None and is_behind(catalog.synced, found_marks, directories.run_id)
    lacks_ledgers = is_cut or not parts.index.catalog.is_trusted
    doubtful = _unverified_ledgers(parts, paths, is_cut=is_cut) if lacks_ledgers and catalog is not None else []
    may_be_foreign = bool(paths) and (catalog is None or is_cut)
    await _note_torn_logs(parts, note, may_be_foreign=may_be_foreign, lacks_ledgers=lacks_ledgers)
    checkpointer.mark_files.assume(marks)
    is_counted = not (parts.index.catalog.is_trusted and parts.index.catalog.uncounted_from < 0)
    restorer = Restorer(
        parts.cache, parts.index, checkpointer.flusher, parts.readers, parts.removals.skips, parts.sealer
    )
    restorer.report.is_encryption_noted = is_encrypted
    size = await worker.run(_size_to_replay, runtime.disk, directories.journals, marks)
    async with _explain_disk_full(parts, stores, size):
        if not parts.index.catalog.is_trusted:
            await worker.run(parts.index.catalog_writer.file.replace, list(pack(parts.index.catalog.contents())))
        for number, directory in enumerate(directories.journals):
            marks[number] = await replay(runtime, config, directory, marks[number], worker, restorer)
    parts.report = restorer.report
    parts.report.has_losses = bool(lost)
    if parts.index.catalog.is_trusted and (restorer.report.entry_count or not is_counted):
        first = parts.index.catalog.uncounted_from
        checkpointer.log.uncounted_id = first if first >= 0 else -1 - first
    if opened.lost:
        await rebuild_lost(parts, opened)
    elif lacks_ledgers and parts.databases is None:
        await _find_ledgers(parts, doubtful)
    in_records = ((text, "") for text in restorer.report.holes)
    for text, place in [*in_records, *lost_paths, *opened.holes(parts.index.catalog.holes)]:
        parts.index.catalog.note_torn({})  # torn parts may have the lost entries
        await parts.index.mark_all_uncertain(text, partial(_may_be_in, parts, place))
    _log_report(restorer.report, events)
    for journal, mark in zip(parts.journals, marks, strict=True):
        journal.mark = mark
    has_changes = restorer.report.entry_count > 0 or parts.index.is_dirty
    await _doubt_found(parts, events)  # without space the next start does so again
    await _checkpoint(parts, stores, marks, has_changes=has_changes)
    # Only after the mark is persisted: with a newer file, the torn end of the last one would count as damage.
    if parts.report.is_covered:
        await _reset_marks(parts, lost)
        await worker.run(remove_notes, runtime.disk, stores)
        if parts.databases is not None:
            await worker.run(_settle, parts.databases)
        await worker.run(directories.remove_leftovers)
        await _note_losses(parts)
    async with _explain_disk_full(parts, stores, 0):
        await worker.run(directories.mark_dirty, parts.index.catalog.run_id)
    if config.gc_interval_ms:
        await checkpointer.log.cover_all()


async def _checkpoint(
    parts: StorageParts, stores: Sequence[str], marks: Sequence[LogMark], *, has_changes: bool
) -> None:
    """Make durable what was replayed. A start that has nothing to keep goes on without room. Raises: DiskFull."""
    size = parts.report.size + parts.index.cache.dirty_size
    try:
        async with _explain_disk_full(parts, stores, size, discards=has_changes):
            await parts.checkpointer.checkpoint(tuple(marks))
            parts.report.is_covered = True
    except DiskFull:
        if has_changes:
            raise


async def _remaining_paths(
    parts: StorageParts, opened: OpenedDatabases, returned: Sequence[str], events: Events
) -> dict[int, str]:
    """Return the paths of the ledgers, and load which of them are removed. Raises: OSError.

    Of several files of a ledger none is trusted, unless one alone is not in a directory that has failed.
    """
    worker, indexes = parts.checkpointer.worker, parts.directories.indexes
    paths = opened.paths
    if parts.databases is None:
        indexes = sorted(indexes, key=lambda path: path in returned)  # files elsewhere are newer
        rivals: dict[int, list[str]] = {}
        paths = await worker.run(find_index_files, parts.runtime.disk, indexes, rivals)
        for ledger_id, others in rivals.items():
            old = _files_in(returned, (paths[ledger_id], *others))
            others = [path for path in others if path not in old or paths[ledger_id] in old]
            if others:
                parts.index.places.rivals[ledger_id] = others
    await parts.removals.load(paths, worker)
    for error in parts.removals.files.damaged:
        events.error("storage.removals_damaged", path=error.path, error=error, consequence="its ledgers are kept")
    return paths


def _files_in(directories: Iterable[str], paths: Iterable[str]) -> set[str]:
    return {path for path in paths if path.startswith(tuple(directory + "/" for directory in directories))}


async def _doubt_found(parts: StorageParts, events: Events) -> None:
    """Put deleted ledgers of which there is data into limbo: what they had before is gone, fences included."""
    ledger_ids = parts.removals.doubted()
    for ledger_id in ledger_ids:
        await parts.index.distrust(ledger_id)
    if ledger_ids:
        names = ", ".join(map(str, ledger_ids[:20])) + ", ..." * (len(ledger_ids) > 20)
        events.warning(
            "storage.deleted_ledgers_found",
            count=len(ledger_ids),
            ledgers=names,
            consequence="they are in quarantine until the metadata store has been asked about them",
        )


async def _note_losses(parts: StorageParts) -> None:
    """Open the journals, and note that all ledgers are in limbo because of the losses, if there are any."""
    if not await open_journals(parts) and parts.report.has_losses:
        with contextlib.suppress(DiskFull):  # then the next start puts them into limbo again
            note = partial(note_applied, parts.runtime.disk, parts.directories.all, is_whole=False)
            await parts.checkpointer.worker.run(note)


async def _note_torn_logs(parts: StorageParts, note: Note, *, may_be_foreign: bool, lacks_ledgers: bool) -> None:
    """Record in the catalog which logs a power failure may have torn, before new writes to entry logs.

    Torn parts of earlier runs no longer exist: the first scan of the entry logs has truncated them. `may_be_foreign`:
    Apache's bookie may have run here last; its new logs are empty until their first flush.
    """
    known, directories = parts.index.catalog, parts.directories
    worker, disk = parts.checkpointer.worker, parts.runtime.disk
    synced = known.synced
    known.run_id = directories.run_id or parts.runtime.random.randbytes(RUN_ID_SIZE)
    if lacks_ledgers:
        known.note_incomplete()
    if lacks_ledgers or synced is None or synced.run_id != directories.run_id:
        is_foreign = may_be_foreign and await worker.run(_has_no_group, disk, directories)
        first = (0 if synced is None else synced.greatest_id + 1) if is_foreign else LOG_ID_MAX + 1
        may_be_empty = is_foreign or 0 in known.torn.values()
        torn = await worker.run(empty_logs, disk, parts.logs, known.torn, first) if may_be_empty else {}
        known.note_torn(torn)
        return
    known.note_torn(await worker.run(torn_logs, disk, parts.logs, note.failed, known.torn, synced))


def _unverified_ledgers(parts: StorageParts, ledger_ids: Iterable[int], *, is_cut: bool) -> list[int]:
    """Return the ledgers whose index file cannot be verified, because the catalog is damaged.

    A crash leaves no index file that the catalog does not name. `is_cut`: the catalog is older than the marks, so its
    facts about other ledgers may be out of date too.
    """
    known = parts.index.catalog
    is_stale = is_cut and not known.is_trusted
    return [ledger_id for ledger_id in ledger_ids if is_stale or ledger_id not in known.ledgers]


async def _find_ledgers(parts: StorageParts, doubtful: Sequence[int]) -> None:
    """Find ledgers that only the entry logs name, and mark doubtful ones as uncertain. Raises: OSError."""
    for ledger_id in doubtful:
        await parts.index.mark_uncertain(ledger_id)
    worker, disk, index = parts.checkpointer.worker, parts.runtime.disk, parts.index
    in_logs = await worker.run(ledgers_in_logs, disk, parts.logs)
    unknown = [ledger_id for ledger_id in in_logs if ledger_id not in index.catalog.ledgers]
    paths = {ledger_id: path for ledger_id in unknown if (path := index.path_of(ledger_id)) is not None}
    for ledger_id in in_logs:
        if not parts.removals.is_deleted(ledger_id):
            await index.rebuild_if_missing(ledger_id)
    for ledger_id in await worker.run(without_slots, disk, paths) if paths else ():
        await index.mark_uncertain(ledger_id)


async def open_journals(parts: StorageParts) -> bool:
    """Create the first file of this process in each journal. False: there is no space for one. Raises: OSError.

    If necessary, deletes backups of old journal files. Losses are applied then, before a record is accepted: from now
    on each journal must have files.
    """
    worker, disk = parts.checkpointer.worker, parts.runtime.disk
    for number, journal in enumerate(parts.journals):
        if journal.is_open:
            continue
        ids = await worker.run(journal_ids, disk, journal.directory)
        first_id = (ids[-1] if ids else parts.runtime.clock.wall_ms()) + 1
        place = journal.directory, number, len(parts.journals)
        try:
            await worker.run(note_place, disk, *place)
            await journal.open(first_id)
        except DiskFull:
            await journal.make_room(journal.mark.journal_id)
            with contextlib.suppress(DiskFull):
                await worker.run(note_place, disk, *place)
                await journal.open(first_id)
    if not all(journal.is_open for journal in parts.journals):
        return False
    if parts.report.has_losses:
        try:
            await worker.run(partial(note_applied, disk, parts.directories.all, is_whole=True))
        except DiskFull:
            return False
        parts.report.has_losses = False
    return True


@contextlib.asynccontextmanager
async def _explain_disk_full(
    parts: StorageParts, places: Sequence[str], size: int, *, discards: bool = True
) -> AsyncIterator[None]:
    """Turn DiskFull into a message about the fullest of `places`, where `size` bytes were to be written."""
    try:
        yield
    except DiskFull as error:
        if discards:
            log = parts.checkpointer.log
            await log.worker.run(log.writer.discard)
        text = await parts.checkpointer.worker.run(_explain_full, parts.runtime.disk, places, size)
        raise DiskFull(text) from error


def _explain_full(disk: Disk, places: Sequence[str], size: int) -> str:
    free, place = min((disk.usage(place)[1], place) for place in places)
    missing = max(size + ROOM_MIN - free, ROOM_MIN)
    return (
        f"{place}: the disk is full, {free:,} bytes are usable; free {missing:,} bytes or add space, then start again; "
        "no data was lost: the journal still has all of it"
    )


def _size_to_replay(disk: Disk, directories: Sequence[str], marks: Sequence[LogMark]) -> int:
    """Return the bytes of the journal files from the marks on."""
    size = 0
    for directory, mark in zip(directories, marks, strict=True):
        for number in journal_ids(disk, directory):
            if number >= mark.journal_id:
                file = disk.open(posixpath.join(directory, journal_format.file_name(number)), "r")
                size += file.size() - (mark.offset if number == mark.journal_id else 0)
                file.close()
    return size


def _has_no_group(disk: Disk, directories: Directories) -> bool:
    """Report whether the newest journal files have no group of ours: Apache's bookie has run last. Raises: OSError."""
    for directory in directories.journals:
        for journal_id in journal_ids(disk, directory)[-1:]:
            file = disk.open(f"{directory}/{journal_format.file_name(journal_id)}", "r")
            try:
                if find_group(file.pread, min(file.size(), SIZE_MAX), 0, None) is not None:
                    return False
            finally:
                file.close()
    return True


def _marks_of(parts: StorageParts, in_files: Sequence[Sequence[LogMark]], lost: Sequence[str]) -> list[LogMark]:
    """Return the replay position of each journal. A lost one is replayed from its first file, if it has any by now.

    `in_files`: the marks in the mark files, by journal. Raises: OSError.
    """
    journals, noted = parts.directories.journals, parts.index.catalog.marks
    marks = find_marks(parts.runtime.disk, journals, in_files, noted, parts.config.frame_size_max + 64 * 1024)
    return [LogMark() if path in lost else mark for path, mark in zip(journals, marks, strict=True)]


async def _reset_marks(parts: StorageParts, lost: Sequence[str]) -> None:
    """Let no mark name a journal file that is lost with its directory. Raises: DiskFull."""
    for number, directory in enumerate(parts.directories.journals):
        if directory in lost:
            await parts.checkpointer.worker.run(parts.checkpointer.mark_files.reset, number)


def _find_losses(
    disk: Disk, directories: Directories, in_directories: LogDirectories
) -> tuple[list[str], list[tuple[str, str]], LogsFound]:
    """Return the directories whose loss is not applied, holes (text, directory) of those whose loss is not noted, and
    the entry logs, with complete outputs of compactions.

    Raises: OSError; StorageError if another journal has no file after an unclean stop: each start creates one before
    `DIRTY`.
    """
    losses = unapplied(disk, directories.all)
    lost = currents_of(loss.path for loss in losses)
    for directory in directories.journals:
        if directory not in lost and not directories.was_clean and not journal_ids(disk, directory):
            raise StorageError(
                f"{directory}: this bookie did not stop in an orderly way, and all its journal files are missing; "
                "acknowledged entries would be lost. Nothing was changed. Restore the files, or decommission this "
                "bookie: bk bookie format"
            )
    logs = frozenset((*find_logs(disk, in_directories), *complete_outputs(disk, in_directories)))
    unnoted = currents_of(loss.path for loss in losses if not loss.is_noted)
    holes = [(f"{path}: lost with all files", path) for path in unnoted]
    return lost, holes, LogsFound(logs, greatest_log_id(disk, in_directories))


def _skip_lost_logs(parts: StorageParts, paths: Mapping[int, str], lost: Sequence[str]) -> LogsFound:
    """After a loss, let `lastId` reach every log that an index slot names: no later log gets the id of a lost one.

    The directories that are left may not tell: all may be lost, or a full disk has refused its `lastId`. Return the
    logs as found. Raises: DiskFull, OSError.
    """
    disk, catalog, page_size = parts.runtime.disk, parts.index.catalog, parts.config.index_page_size
    greatest_id = catalog.logs.greatest_id
    files = parts.index.places.new_files(1, "r")
    try:
        for ledger_id, path in paths.items() if lost else ():
            for _, data, is_right in files.slots(path, checker(catalog.ledgers.get(ledger_id), page_size)):
                if is_right:
                    greatest_id = max([greatest_id, *logs_named(data[: len(data) - len(data) % SLOT_SIZE])])
    finally:
        files.close()
    if greatest_id > catalog.logs.greatest_id:
        ends = [posixpath.join(directory, "lastId") for directory in parts.directories.ledgers]
        replace_copies(disk, ends, pack_last_id(parts.logs.file_id(greatest_id)))
    return replace(catalog.logs, greatest_id=greatest_id)


def _settle(databases: Iterable[OpenDatabases]) -> None:
    for opened in databases:
        opened.settled()


def _may_be_in(parts: StorageParts, place: str, ledger_id: int) -> bool:
    """Report whether files of the ledger may be in a directory; empty: in any."""
    directories = parts.directories
    if parts.databases is None or not place or place in directories.journals:
        return True
    of_space = zip(directories.ledgers, directories.indexes, strict=True)
    return place in list(of_space)[parts.logs.space_of(ledger_id)]


def _log_report(report: ReplayReport, events: Events) -> None:
    if report.entry_count or report.torn:
        events.info("storage.replayed", files=report.file_count, entries=report.entry_count, bytes=report.size)
    for path, offset, problem in report.torn:
        events.info("storage.torn_end", path=path, offset=offset, problem=problem)
    for ledger_id in report.keyless:
        events.warning("storage.ledger_without_key", ledger=ledger_id, consequence="the ledger is fenced")
    for text in report.holes:
        events.error(
            "storage.journal_damaged",
            problem=text,
            consequence="reads return UNKNOWN instead of NO_ENTRY; only recovery adds are accepted",
        )
