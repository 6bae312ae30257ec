"""Encrypted entries at start and stop: whether all keys are there, and what the cookies tell Apache's bookie.

Invariants
- Before a file with sealed entries exists, the cookie in every directory has the field `encryption`, which Apache's
  bookie does not know and therefore refuses. Only an orderly stop removes it, when no file has such entries.
- A bookie without a key that an entry log needs does not start: it would report its entries as damaged, one by one.
  Nor does one without any keys if a header does not tell whether there are such entries: it would serve them sealed.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence

from bookies.errors import CorruptRecord, StorageError
from bookies.runtime.ports import Disk
from bookies.storage.disks.directories import Directories
from bookies.storage.entry_log import entry_log_format
from bookies.storage.entry_log.log_directories import LogDirectories
from bookies.storage.entry_log.log_usage import keys_of
from bookies.storage.identity.cookie import is_encrypted, note_encryption
from bookies.storage.journal import LogMark, journal_format
from bookies.storage.journal.journal import journal_ids
from bookies.storage.sealing.sealed_format import PLAIN, label_of
from bookies.storage.sealing.sealer import Sealer

FILES_NAMED = 3  # in a message


def check_keys(disk: Disk, directories: Directories, logs: LogDirectories, sealer: Sealer | None) -> bool:
    """Check that every key is there, and note in the cookies that entries will be sealed. Blocks.

    Returns whether the cookies say so. Raises: StorageError, DiskFull, OSError. Without keys, and without the field in
    the cookies, no file is read.
    """
    is_noted = any(is_encrypted(disk, current) for current in directories.all)
    if sealer is None and not is_noted:
        return False
    missing: dict[int, list[str]] = {}
    for path, keys in _sealed_logs(disk, logs):
        if keys is None and sealer is None:  # nothing else would keep what may be encrypted from being served as it is
            raise StorageError(
                f"{path} may hold encrypted entries, because its header is damaged or cannot be read: set "
                f"encryption_keys_file; a file with the word {PLAIN} is enough. Nothing was changed"
            )
        for key_id in keys or ():  # of a damaged log each read reports its entries
            if sealer is None or not sealer.has(key_id):
                missing.setdefault(key_id, []).append(path)
    if missing:
        raise StorageError(_describe(missing, has_keys=sealer is not None))
    if sealer is not None and sealer.seals:
        note_encryption(disk, directories.all, is_on=True)
        return True
    return is_noted


def forget_encryption(disk: Disk, directories: Directories, logs: LogDirectories, marks: Sequence[LogMark]) -> bool:
    """Remove the field from the cookies if no file that counts can have sealed entries; return whether it did. Blocks.

    `marks`: the persisted ones; journals before them do not count. Raises: OSError, DiskFull.
    """
    if next(_sealed_logs(disk, logs), None) is not None:
        return False
    for directory, mark in zip(directories.journals, marks, strict=True):
        for journal_id in journal_ids(disk, directory):
            path = posixpath.join(directory, journal_format.file_name(journal_id))
            if journal_id >= mark.journal_id and _is_sealed_journal(disk, path):
                return False
    note_encryption(disk, directories.all, is_on=False)
    return True


def _sealed_logs(disk: Disk, logs: LogDirectories) -> Iterator[tuple[str, Sequence[int] | None]]:
    """Yield the path and the keys of each entry log with sealed entries, outputs of compactions included.

    None in place of the keys: the header is damaged or cannot be read, so it cannot be told.
    """
    for directory in logs.paths:
        for name in disk.list(directory):
            output = entry_log_format.parse_compacted_name(name)
            if entry_log_format.parse_file_name(name) is None and (output is None or output[1] is None):
                continue  # no log, or an output that was interrupted, which is dropped
            path = posixpath.join(directory, name)
            keys: Sequence[int] | None
            try:
                keys = keys_of(disk, path)
            except (CorruptRecord, OSError):
                keys = None
            if keys is None or keys:
                yield path, keys


def _is_sealed_journal(disk: Disk, path: str) -> bool:
    file = disk.open(path, "r")
    try:
        version, _ = journal_format.parse_header(file.pread(24, 0), file.size(), path=path)
    except CorruptRecord:
        return True  # it cannot be told
    finally:
        file.close()
    return version == journal_format.SEALED_VERSION


def _describe(missing: dict[int, list[str]], *, has_keys: bool) -> str:
    lines = []
    for key_id, paths in sorted(missing.items()):
        more = f" and {len(paths) - FILES_NAMED} others" if len(paths) > FILES_NAMED else ""
        lines.append(f"{label_of(key_id)}, needed by {', '.join(paths[:FILES_NAMED])}{more}")
    remedy = (
        "Add it to encryption_keys_file, after the first one, and start again"
        if has_keys
        else "Set encryption_keys_file to the file that has it, and start again"
    )
    return (
        f"an encryption key is missing: {'; '.join(lines)}. {remedy}. Nothing was changed. If the key is lost, so are "
        "these entries here: decommission the bookie (bk bookie recover, bk bookie format)"
    )
