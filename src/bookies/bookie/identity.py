"""Identity of a bookie: its name, and the check that its directories are its own.

A name is fixed (`bookie_id`), or it is the address. A fixed name is independent of the bookie's address: moved to
another host or port it registers from there, and clients follow the registration. If the name is an address, a bookie
with another address is another bookie, which the cookies detect.

Source: metadata 6.4, storage 9.3.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from bookies.config import ROCKSDB, BookieConfig
from bookies.errors import ConfigError, CookieExists, CookieMismatch, CookieNotFound, StorageError
from bookies.metadata.interface import MetadataDriver
from bookies.model import BookieId
from bookies.runtime.events import Events
from bookies.runtime.ports import Disk, Lock
from bookies.storage.disks.directories import current
from bookies.storage.identity import admission, cookie, lost_directories
from bookies.storage.identity.admission import Decision
from bookies.storage.identity.index_kind import check_kind
from bookies.storage.identity.lost_directories import Uses

ANY_BOOKIE = "*"  # of `new_bookies`
_ANY_HOST = ("", "0.0.0.0", "::")
_LEGAL_ID = re.compile(r"[A-Za-z0-9._:-]+")


def identity(config: BookieConfig) -> str:
    """Return the bookie's name: the fixed one, or else the address that it publishes."""
    host, port = config.advertised_host or config.host, config.advertised_port or config.port
    return config.bookie_id or f"{host}:{port}"


def identities(config: BookieConfig) -> list[str]:
    """Return every name that this bookie could have, its own last. Under another of these it would look like a new
    bookie."""
    if config.bookie_id:
        return [config.bookie_id]
    hosts = [name for name in (config.host, config.advertised_host) if name not in _ANY_HOST]
    ports = dict.fromkeys((config.port, config.advertised_port or config.port))
    names = [f"{host}:{port}" for host in hosts for port in ports]
    own = identity(config)
    return [*dict.fromkeys(name for name in names if name != own), own]


def check_identity(config: BookieConfig) -> None:
    """Check that the bookie has a stable name and an address that others can use. Raises `ConfigError`."""
    if config.port == 0 and not config.bookie_id:
        raise ConfigError("port = 0: a bookie on any free port needs a fixed bookie_id (--bookie-id)")
    if config.host in _ANY_HOST and not config.advertised_host:
        raise ConfigError(
            f"host = {config.host!r}: it is also what clients connect to, so name one address, or advertised_host"
        )
    if config.advertised_host in ("0.0.0.0", "::"):
        raise ConfigError(
            f"advertised_host = {config.advertised_host!r}: no client can connect to that; name one address"
        )
    name = identity(config)
    if not _LEGAL_ID.fullmatch(name) or name.lower() == "readonly":
        raise ConfigError(
            f"bookie_id = {name!r}: only letters, digits and . _ : - are allowed, and not the name `readonly`"
        )
    directories = cookie.directories_of(config)
    if unknown := [directory for directory in config.lost_directories if directory not in directories]:
        raise ConfigError(
            f"lost_directories = {', '.join(unknown)}: no directory of this bookie; it has {', '.join(directories)}"
        )


class Admission(Struct, frozen=True):
    """Result of the admission check. `instance_id`: of the cluster. `left_out`: lost directories without a new disk."""

    instance_id: str
    decision: Decision
    left_out: Sequence[str] = ()


async def admit(
    disk: Disk, config: BookieConfig, driver: MetadataDriver, locks: list[Lock], events: Events, mark: str
) -> Admission:
    """Compare the bookie's identity with the cookies in directories and metadata store, and stamp a new or grown
    bookie.

    `locks`: locks the directories; without locks two new bookies could stamp the same ones. The storage has its own
    lock, on `current`, so the caller releases these when the storage has started. `mark`: random text, for directories
    that are lost now.

    Raises: CookieMismatch, CorruptRecord and other StorageError, ConfigError, OSError; MetadataError.
    """
    bookie_id, directories = BookieId(identity(config)), cookie.directories_of(config)
    _check_disks(disk, config, events)
    instance_id = await _cluster_of(disk, config, driver, directories)
    stored_cookies: dict[str, tuple[bytes, int]] = {}
    for name in identities(config):
        try:
            stored_cookies[name] = await driver.read_cookie(BookieId(name))
        except CookieNotFound:
            continue
    if not stored_cookies:
        _check_may_be_new(disk, config, driver.uri, directories)
    *others, stored = stored_cookies or (None,)
    master = cookie.master_cookie(config, bookie_id, instance_id)
    data = None if stored is None else stored_cookies[stored][0]
    before = None if data is None else cookie.parse(data, path=f"cookie of {stored} in the metadata store")
    known = [] if before is None else before.directories
    if config.allow_storage_expansion:
        _check_expansion(disk, config, before)
    for directory in directories:
        # A directory that the store names is not created: a disk may have to be mounted there.
        if directory not in known and (stored is None or config.allow_storage_expansion):
            disk.make_directories(directory)
        if disk.is_directory(directory):
            locks.append(disk.lock_directory(directory))
    uses = Uses() if data is None else _uses(disk, config, bookie_id, directories, mark)
    kept = [directory for directory in directories if directory not in (*uses.left_out, *uses.replaced)]
    decision = admission.check_directories(
        disk,
        master,
        kept,
        data,
        others={name: stored_cookies[name][0] for name in others if name is not None},
        allow_expansion=config.allow_storage_expansion,
    )
    if not uses.is_noted:
        lost_directories.write(disk, master.pack(), kept, uses)
    if uses.left_out or uses.replaced:
        left_out, replaced = ", ".join(uses.left_out) or None, ", ".join(uses.replaced) or None
        events.warning("bookie.directories_lost", bookie=bookie_id, left_out=left_out, replaced=replaced)
    if decision is Decision.NEW_BOOKIE:
        await _create_cookie(disk, driver, bookie_id, directories, master.pack())
        events.info("bookie.new", bookie=bookie_id, instance=instance_id)
    elif decision is Decision.EXPANDED:
        if bookie_id in stored_cookies:
            await driver.write_cookie(bookie_id, master.pack(), stored_cookies[bookie_id][1])
        else:
            await driver.create_cookie(bookie_id, master.pack())
        added = [directory for directory in directories if directory not in known]
        events.info("bookie.expanded", bookie=bookie_id, directories=", ".join(added))
    return Admission(instance_id, decision, uses.left_out)


def _check_expansion(disk: Disk, config: BookieConfig, before: cookie.Cookie | None) -> None:
    """Raise StorageError if the directories have databases, and their number may change.

    F-2: databases place each ledger by the number of directories, so no cookie may allow another number. `before`: the
    stored cookie. A directory that it names as another kind, a journal's for example, is new as a ledger directory.
    """
    indexes = config.index_directories or config.ledger_directories
    check_kind(disk, [current(directory) for directory in indexes], is_rocksdb=config.ledger_index == ROCKSDB)
    if config.ledger_index != ROCKSDB or before is None:
        return
    added = [directory for directory in config.ledger_directories if directory not in before.ledger_directories]
    added += [directory for directory in indexes if directory not in before.directories_of_index]
    if added:
        raise StorageError(
            f"{added[0]} is new, and ledger_index = rocksdb: the number of directories decides where each ledger is, "
            "so it cannot change. Nothing was changed. Leave the directory out, or convert the index to index files "
            "first: bk bookie convert DIRECTORY --to index-files"
        )


def _uses(disk: Disk, config: BookieConfig, bookie_id: BookieId, directories: Sequence[str], mark: str) -> Uses:
    """Return which directories the bookie uses, by the notes of losses. Raises CookieMismatch, CorruptRecord, OSError.

    It needs every journal, one ledger directory, and one index directory; with databases, all of them.
    """
    states = {directory: admission.state_of(disk, bookie_id, directory) for directory in directories}
    notes = lost_directories.read(disk, lost_directories.currents_of(directories))
    copies = dict(zip(directories, notes.values(), strict=True))
    indexes = config.index_directories or config.ledger_directories
    groups = [config.ledger_directories, indexes]
    if config.ledger_index == ROCKSDB:
        groups = [(directory,) for directory in (*config.ledger_directories, *indexes)]
    needed = [*((journal,) for journal in config.journal_directories), *groups]
    try:
        return lost_directories.plan(states, copies, config.lost_directories, needed, mark)
    except CookieMismatch as error:
        raise CookieMismatch(f"cannot start bookie {bookie_id}: {error.message}") from error


def _check_may_be_new(disk: Disk, config: BookieConfig, uri: str, directories: Sequence[str]) -> None:
    """Raise CookieMismatch if the settings do not let this bookie become a new one, and its directories are empty."""
    bookie_id = BookieId(identity(config))
    if ANY_BOOKIE in config.new_bookies or bookie_id in config.new_bookies:
        return
    if all(admission.state_of(disk, bookie_id, directory).is_empty for directory in directories):
        raise CookieMismatch(
            f"cannot start bookie {bookie_id}: it would be a new one, because {uri} has no cookie of it and "
            f"{', '.join(dict.fromkeys(directories))} hold no data, and new_bookies does not name it. Nothing was "
            "changed. If it had data, mount its disks and name its metadata store. If it is new: `bk bookie init`"
        )


async def _cluster_of(disk: Disk, config: BookieConfig, driver: MetadataDriver, directories: list[str]) -> str:
    """Return the cluster's instance id. Creates a cluster if there is none and no directory belongs to another."""
    bookie_id, instance_id = BookieId(identity(config)), await driver.instance_id()
    if instance_id is not None:
        return instance_id
    for directory in directories:
        if admission.state_of(disk, bookie_id, directory).cookie is not None:
            # The directory belongs to some cluster; creating another one here would only add to the confusion.
            raise CookieMismatch(
                f"cannot start bookie {bookie_id}: {directory} belongs to a cluster, but there is none at "
                f"{driver.uri}. Nothing was changed. Name the cluster's metadata with --metadata"
            )
    if ANY_BOOKIE not in config.new_bookies:
        raise CookieMismatch(
            f"cannot start bookie {bookie_id}: there is no cluster at {driver.uri}, and new_bookies does not let a "
            "bookie create one. Nothing was changed. Name the cluster's metadata store. If the cluster is new: "
            "`bk metadata init`"
        )
    return await driver.initialize_cluster()


async def _create_cookie(
    disk: Disk, driver: MetadataDriver, bookie_id: BookieId, directories: list[str], data: bytes
) -> None:
    """Create the cookie, the last step of a new bookie. Raises CookieMismatch when another bookie of that name was
    faster."""
    try:
        await driver.create_cookie(bookie_id, data)
    except CookieExists as error:
        # On another machine with the same directory names, these empty directories would pass for that bookie's.
        for directory in directories:
            cookie.remove_cookie(disk, directory)
        raise CookieMismatch(
            f"cannot start bookie {bookie_id}: another bookie of that name has just been started for the first time "
            "elsewhere. Nothing was changed. Give each its own name: --bookie-id"
        ) from error


def _check_disks(disk: Disk, config: BookieConfig, events: Events) -> None:
    """Raise ConfigError when directories share a disk and the settings do not allow it."""
    others = list(dict.fromkeys((*config.ledger_directories, *config.index_directories)))
    for shared in admission.shared_disks(disk, config.journal_directories, others):
        if not config.allow_multiple_dirs_under_same_disk_partition:
            raise ConfigError(
                f"{shared}: they fill up, slow down and fail together. Nothing was changed. Name directories on "
                "different disks, or set allow_multiple_dirs_under_same_disk_partition=true"
            )
        events.info("bookie.shared_disk", kind=shared.kind, first=shared.first, second=shared.second)
