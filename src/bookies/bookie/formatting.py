"""Removal of a bookie: its directories are emptied, and the metadata store forgets it.

    VERSION is renamed to FORMATTING in every directory      no bookie starts on it from here on
    everything else in the directories is removed
    the stored cookie is removed                             if it is of these directories, and no ledger needs it
    FORMATTING is removed, in the directory named last

A ledger that has entries on the bookie keeps the stored cookie, and so the name: a bookie that is started under it
with empty directories is refused, because it would report those entries as missing. When they were copied to other
bookies, the cluster can be told to forget the bookie (`find_stored`), even if its directories are lost.

Each step is durable in all directories before the next begins, and each is idempotent. After an interruption, the
same command finishes the work: its arguments still name the directories.

Source: storage 9.3, metadata 7.5.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence

from msgspec import Struct, field

from bookies.errors import CookieMismatch, CookieNotFound, DirectoryInUse, InvalidArgument, LedgerNotFound, StorageError
from bookies.metadata.interface import MetadataDriver
from bookies.model import BookieId
from bookies.protocol.repair.fragments import is_stored_on
from bookies.runtime.ports import Disk, Lock
from bookies.storage.disks.directories import CONTROL_FILE
from bookies.storage.disks.durable_files import remove, sync_directory
from bookies.storage.identity import Cookie
from bookies.storage.identity.cookie import CURRENT, EMPTYING, FILE_NAME, parse

UNCHANGED = "Nothing was changed."
_BESIDE = (CONTROL_FILE, f".{CONTROL_FILE}.tmp", f".{FILE_NAME}.tmp")  # of ours, beside `current`
_SHOWN = 5  # ledgers named in a message


class Findings(Struct):
    """Result of a format's dry run. `missing`: directories that the cookie names and that do not exist.

    `directories`: their places on this machine, the one that was named last. `size`: bytes in their files. `ledgers`:
    ids of the ledgers that have entries here, by the metadata; `only_here`: those without another replica. `version`:
    of the stored cookie that is removed; None: there is none, or it names other directories.
    """

    cookie: Cookie
    directories: list[str]
    missing: list[str] = field(default_factory=list)
    file_count: int = 0
    size: int = 0
    ledgers: list[int] = field(default_factory=list)
    only_here: list[int] = field(default_factory=list)
    version: int | None = None

    @property
    def bookie(self) -> BookieId:
        return BookieId(self.cookie.bookie)

    @property
    def is_forgotten(self) -> bool:
        """Report whether the stored cookie is removed too."""
        return self.version is not None and not self.ledgers


def find(disk: Disk, path: str) -> Findings | None:
    """Return the bookie that owns the absolute path `path`; None if the directory is empty. Reads only.

    Raises CookieMismatch, CorruptRecord, InvalidArgument, OSError.
    """
    path = posixpath.normpath(path)
    if posixpath.basename(path) == CURRENT:
        path = posixpath.dirname(path)
    if not disk.is_directory(posixpath.join(path, CURRENT)):
        raise InvalidArgument(f"{path} is not a directory of a bookie: it has no `{CURRENT}`")
    cookie = _cookie_in(disk, path)
    if cookie is None:
        return None
    base = cookie.base_of(path)
    if base is None:
        raise CookieMismatch(
            f"{path} is not what its cookie names ({', '.join(cookie.directories)}): it is a copy, or mounted "
            f"elsewhere. {UNCHANGED} Name the directory as the bookie does; a copy can be removed like any other files"
        )
    findings = Findings(cookie, [])
    waiting, seen = [*cookie.directories], dict.fromkeys(cookie.directories)
    for named in waiting:  # grows: a bookie that died while directories were added has two versions of its cookie
        place = posixpath.normpath(posixpath.join(base or "/", named))
        if not disk.is_directory(place):
            findings.missing.append(place)
            continue
        findings.directories.append(place)
        other = _cookie_in(disk, place)
        if other is None:
            continue
        if (other.bookie, other.instance_id) != (cookie.bookie, cookie.instance_id):
            raise CookieMismatch(
                f"{place} belongs to bookie {other.bookie} of cluster {other.instance_id}, {path} to {cookie.bookie} "
                f"of {cookie.instance_id}. {UNCHANGED} Put the disks where they belong first"
            )
        waiting += [more for more in other.directories if more not in seen]
        seen |= dict.fromkeys(other.directories)
    findings.directories.sort(key=lambda place: place == path)
    for directory in findings.directories:
        for file in _files(disk, posixpath.join(directory, CURRENT)):
            findings.file_count += 1
            findings.size += _size_of(disk, file)
    return findings


async def find_stored(driver: MetadataDriver, bookie: BookieId) -> Findings:
    """Return the findings for a bookie without directories: only the store forgets it. Raises InvalidArgument,
    CorruptRecord."""
    try:
        data, _ = await driver.read_cookie(bookie)
    except CookieNotFound:
        known = ", ".join((await driver.all_bookies()).bookies) or "none"
        raise InvalidArgument(f"the cluster has no bookie {bookie}: nothing to forget; it has {known}") from None
    return Findings(parse(data, path=f"cookie of {bookie} in the metadata store"), [])


def _cookie_in(disk: Disk, directory: str) -> Cookie | None:
    """Return the directory's cookie; None if it is empty. Raises CookieMismatch, CorruptRecord."""
    current = posixpath.join(directory, CURRENT)
    names = disk.list(current) if disk.is_directory(current) else []
    for name in (EMPTYING, FILE_NAME):
        if name in names:
            path = posixpath.join(current, name)
            return parse(disk.read_bytes(path), path=path)
    if names:
        raise CookieMismatch(
            f"{directory} has files but no {FILE_NAME}, so its owner is unknown. {UNCHANGED} If the files are "
            "not needed, remove them by hand"
        )
    return None


def lock(disk: Disk, findings: Findings) -> list[Lock]:
    """Lock all directories; the caller releases the locks. Raises DirectoryInUse when the bookie runs, OSError."""
    locks: list[Lock] = []
    try:
        for directory in findings.directories:
            for locked_path in (directory, posixpath.join(directory, CURRENT)):
                if disk.is_directory(locked_path):
                    locks.append(disk.lock_directory(locked_path))
    except BaseException as error:
        for taken in locks:
            taken.release()
        if isinstance(error, DirectoryInUse):
            raise DirectoryInUse(
                f"bookie {findings.bookie} runs: {error.message}. {UNCHANGED} Stop it first"
            ) from error
        raise
    return locks


async def look_up(
    driver: MetadataDriver, findings: Findings, progress: Callable[[int], None] = lambda count: None
) -> None:
    """Complete the findings with the metadata store's facts. Raises CookieMismatch, MetadataError.

    `progress`: called with the number of ledgers checked.
    """
    instance_id = await driver.instance_id()
    if instance_id is None or findings.cookie.instance_id not in (instance_id, None):
        metadata_owner = f"belongs to cluster {instance_id}" if instance_id else "holds no cluster"
        raise CookieMismatch(
            f"bookie {findings.bookie} belongs to cluster {findings.cookie.instance_id}, but {driver.uri} "
            f"{metadata_owner}. {UNCHANGED} Name the metadata of its cluster with --metadata"
        )
    await check_stopped(driver, findings.bookie)
    try:
        data, version = await driver.read_cookie(findings.bookie)
        stored = parse(data, path=f"cookie of {findings.bookie} in the metadata store")
        if set(stored.directories) & set(findings.cookie.directories):
            findings.version = version
    except CookieNotFound:
        if findings.cookie.instance_id is None:
            raise CookieMismatch(
                f"the cookie of bookie {findings.bookie} names no cluster, and {driver.uri} has no cookie of it. "
                f"{UNCHANGED} Name the metadata of its cluster with --metadata"
            ) from None
    await find_ledgers(driver, findings, progress)


async def check_stopped(driver: MetadataDriver, bookie: BookieId) -> None:
    """Raise CookieMismatch when the bookie is registered."""
    info = await driver.bookie_info(bookie)
    if info is not None:
        host, port = info.rpc_address() or ("an unknown address", 0)
        raise CookieMismatch(
            f"bookie {bookie} is registered as running, at {host}:{port}. {UNCHANGED} Stop it, or wait until its "
            "registration expires"
        )


async def find_ledgers(driver: MetadataDriver, findings: Findings, progress: Callable[[int], None]) -> None:
    """Find the ledgers that have entries on the bookie, by the metadata."""
    count = 0
    async for ledger_ids in driver.ledger_ids():
        for ledger_id in ledger_ids:
            count += 1
            progress(count)
            try:
                record = (await driver.read_ledger(ledger_id)).metadata
            except LedgerNotFound:
                continue
            if is_stored_on(record, findings.bookie):
                findings.ledgers.append(ledger_id)
                if record.write_quorum == 1:
                    findings.only_here.append(ledger_id)


def objections(findings: Findings) -> list[str]:
    """Return the objections to a format, each with its consequence."""
    texts = []
    if findings.ledgers:
        count = "1 ledger has" if len(findings.ledgers) == 1 else f"{len(findings.ledgers):,} ledgers have"
        text = (
            f"{count} entries on it ({_list_ids(findings.ledgers)}): copy them to other bookies first, bk bookie "
            f"recover {findings.bookie}. Otherwise they have one replica less, and no bookie can be started under this "
            "name until they are copied: it would report entries of this one as missing"
        )
        if findings.only_here:
            text += (
                f"; {len(findings.only_here):,} have their entries nowhere else "
                f"({_list_ids(findings.only_here)}), which are lost"
            )
        texts.append(text)
    if findings.missing:
        texts.append(
            f"{', '.join(findings.missing)} {'is' if len(findings.missing) == 1 else 'are'} missing: mount the disk. "
            "Otherwise its files stay, and a new bookie with the same name and directories would take them over"
        )
    return texts


def _list_ids(ledgers: Sequence[int]) -> str:
    return ", ".join(map(str, ledgers[:_SHOWN])) + (", ..." if len(ledgers) > _SHOWN else "")


async def perform(
    disk: Disk, driver: MetadataDriver, findings: Findings, progress: Callable[[int], None] = lambda count: None
) -> None:
    """Format the bookie. The caller holds the locks. Raises OSError, DiskFull, StorageError, MetadataError: then repeat
    it.

    `progress`: called with the number of files removed.
    """
    currents = [posixpath.join(path, CURRENT) for path in findings.directories]
    currents = [path for path in currents if disk.is_directory(path)]
    for current in currents:
        names = disk.list(current)
        if FILE_NAME in names and EMPTYING not in names:
            disk.rename(posixpath.join(current, FILE_NAME), posixpath.join(current, EMPTYING))
        sync_directory(disk, current)
    count = 0
    for current in currents:
        count = _empty(disk, current, count, progress)
        for name in _BESIDE:
            remove(disk, posixpath.join(posixpath.dirname(current), name))
    if findings.is_forgotten:
        assert findings.version is not None
        await driver.delete_cookie(findings.bookie, findings.version)
    for current in currents:
        if disk.exists(posixpath.join(current, EMPTYING)):
            disk.unlink(posixpath.join(current, EMPTYING))
            sync_directory(disk, current)


def _empty(disk: Disk, directory: str, count: int, progress: Callable[[int], None]) -> int:
    """Remove everything but the mark, durably. Return `count` plus the number of removed files."""
    for name in disk.list(directory):
        path = posixpath.join(directory, name)
        if name == EMPTYING:
            continue
        if disk.is_directory(path):
            count = _empty(disk, path, count, progress)
            disk.remove_directory(path)
        else:
            disk.unlink(path)
            count += 1
            progress(count)
    sync_directory(disk, directory)
    return count


def _files(disk: Disk, directory: str) -> list[str]:
    """Return the paths of all files below a directory, if it exists."""
    files: list[str] = []
    for name in disk.list(directory) if disk.is_directory(directory) else []:
        path = posixpath.join(directory, name)
        files += _files(disk, path) if disk.is_directory(path) else [path]
    return files


def _size_of(disk: Disk, path: str) -> int:
    try:
        file = disk.open(path, "r")
    except (OSError, StorageError):
        return 0  # It cannot be read, which may be why it is to be removed.
    try:
        return file.size()
    finally:
        file.close()
