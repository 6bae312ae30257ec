"""The cookie: whose directories these are. A changed set of disks, identity or cluster must stop a bookie's start.

A bookie that starts on an empty or foreign disk truthfully denies entries it once acknowledged, and recovery then cuts
ledgers short. So the same cookie stands in the metadata store and, as `VERSION`, in every directory, and `decide` lets
the bookie start only if they tell one story. `check_directories` reads and writes them; the metadata store is the
caller's.

Source: storage 9.1 to 9.3, F-36, F-37.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bookies.config import BookieConfig
from bookies.errors import CookieMismatch, CorruptRecord
from bookies.kernels import textproto
from bookies.runtime.ports import Disk

FILE_NAME = "VERSION"
LAYOUT = 5  # what we write
CURRENT = "current"  # sub-directory of every configured directory that holds all files

_FIELDS = ("bookieHost", "journalDir", "ledgerDirs", "instanceId", "indexDirs")
_REQUIRED = 3
_OLD_SUFFIXES = (".txn", ".idx", ".log")


@dataclass(frozen=True, slots=True)
class Cookie:
    """`journal_directories`: as configured, joined with commas. The others: as configured, without `current`."""

    bookie: str
    journal_directories: str
    ledger_directories: tuple[str, ...]
    instance_id: str | None = None
    index_directories: tuple[str, ...] | None = None
    layout: int = LAYOUT

    @property
    def directories_of_index(self) -> tuple[str, ...]:
        return self.ledger_directories if self.index_directories is None else self.index_directories

    def pack(self) -> bytes:
        """The file's bytes, which are the stored cookie's too; always layout 5 (Q-16)."""
        values = (
            self.bookie,
            self.journal_directories,
            _pack_list(self.ledger_directories),
            self.instance_id,
            None if self.index_directories is None else _pack_list(self.index_directories),
        )
        fields = [(name, value) for name, value in zip(_FIELDS, values, strict=True) if value is not None]
        return b"%d\n" % LAYOUT + textproto.pack(fields)


def master_cookie(config: BookieConfig, bookie: str, instance_id: str | None) -> Cookie:
    """The cookie that a bookie of this configuration has in this cluster."""
    return Cookie(
        bookie,
        ",".join(config.journal_directories),
        config.ledger_directories,
        instance_id,
        config.index_directories or None,
    )


def directories_of(config: BookieConfig) -> list[str]:
    """All distinct directories of a bookie, as configured: journals, ledgers, indexes."""
    return list(dict.fromkeys((*config.journal_directories, *config.ledger_directories, *config.index_directories)))


def parse(data: bytes, *, path: str = FILE_NAME) -> Cookie:
    """A cookie of layout 3, 4 or 5. Raises CorruptRecord."""
    first, _, rest = data.partition(b"\n")
    if first not in (b"3", b"4", b"5"):
        raise CorruptRecord(f"not a cookie of layout 3, 4 or 5: it begins with {first[:20]!r}", path=path, offset=0)
    layout = int(first)
    try:
        values = _parse_lines(rest) if layout == 3 else _parse_fields(rest)
        bookie, journals, ledgers = (values[name] for name in _FIELDS[:_REQUIRED])
        indexes = values.get("indexDirs") if layout == LAYOUT else None
        return Cookie(
            bookie,
            journals,
            _parse_list(ledgers),
            values.get("instanceId"),
            None if indexes is None else _parse_list(indexes),
            layout,
        )
    except ValueError as error:
        raise CorruptRecord(f"cannot read the cookie: {error}", path=path, offset=len(first) + 1) from error


def _parse_lines(text: bytes) -> dict[str, str]:
    lines = text.decode("utf-8").split("\n")
    if len(lines) < _REQUIRED:
        raise ValueError(f"{len(lines) + 1} lines instead of 4")
    return dict(zip(_FIELDS[:_REQUIRED], lines, strict=False))


def _parse_fields(text: bytes) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, value in textproto.parse(text):
        if name not in _FIELDS or not isinstance(value, bytes):
            raise ValueError(f"unknown field {name}")
        values[name] = value.decode("utf-8")
    missing = [name for name in _FIELDS[:_REQUIRED] if name not in values]
    if missing:
        raise ValueError(f"no {missing[0]}")
    return values


def _pack_list(directories: Sequence[str]) -> str:
    return "\t".join((str(len(directories)), *directories))


def _parse_list(text: str) -> tuple[str, ...]:
    count, *directories = text.split("\t")
    if count != str(len(directories)):
        raise ValueError(f"{len(directories)} directories where {count!r} are announced")
    return tuple(directories)


class Decision(enum.Enum):
    """What the caller does with the stored cookie once the directories are stamped."""

    OK = "nothing to do"
    NEW_BOOKIE = "create the stored cookie"
    EXPANDED = "replace the stored cookie"


@dataclass(frozen=True, slots=True)
class DirectoryState:
    """One configured directory. `is_empty`: nothing in its `current`, or no `current`; `VERSION` does not count."""

    cookie: Cookie | None
    is_empty: bool
    exists: bool = True


def decide(
    master: Cookie,
    stored: Cookie | None,
    directories: Mapping[str, DirectoryState],
    *,
    allow_expansion: bool = False,
) -> Decision:
    """Whether the bookie may start on these directories. Raises CookieMismatch, in words for the operator.

    A crash between stamping the directories and creating the stored cookie is completed by the next start: then the
    directories hold nothing but the cookie. Source: storage 9.3.
    """
    if stored is not None:
        _verify(master, stored, "the metadata store", allow_expansion)
    for directory, state in directories.items():
        if state.cookie is not None:
            _verify(master, state.cookie, directory, allow_expansion)
    unstamped = {directory: state for directory, state in directories.items() if state.cookie is None}
    if stored is None:
        used = [directory for directory, state in directories.items() if not state.is_empty]
        if used:
            _refuse_unknown(master, used[0], unstamped)
        return Decision.NEW_BOOKIE
    if not unstamped:
        return Decision.OK
    known: set[str] = set()
    for each in (stored, *(state.cookie for state in directories.values() if state.cookie is not None)):
        known.update((*each.journal_directories.split(","), *each.ledger_directories, *each.directories_of_index))
    for directory, state in unstamped.items():
        # Without expansion every configured directory is a known one: `_verify` has compared the lists.
        if directory in known or not state.is_empty:
            _refuse_unstamped(master, directory, state)
    return Decision.EXPANDED


def _verify(master: Cookie, found: Cookie, where: str, allow_expansion: bool) -> None:
    """Raise CookieMismatch unless the cookie found in `where` is that of the same bookie with the same disks."""
    start = f"cannot start bookie {master.bookie}: "
    is_directory = where != "the metadata store"
    if found.bookie != master.bookie:
        raise CookieMismatch(
            f"{start}{where} belongs to bookie {found.bookie} (its cookie says so). Nothing was changed. If the disks "
            f"were swapped, start it with --bookie-id {found.bookie}, or give {master.bookie} its own directories"
        )
    if found.instance_id != master.instance_id:
        subject = f"{where} belongs to" if is_directory else "its cookie in the metadata store is of"
        raise CookieMismatch(
            f"{start}{subject} another cluster (instance {found.instance_id}; this one is {master.instance_id}). "
            "Nothing was changed. Name the cluster it belongs to with --metadata, or use other directories"
        )
    for what, before, now, may_grow in (
        ("journal", tuple(found.journal_directories.split(",")), tuple(master.journal_directories.split(",")), False),
        ("ledger", found.ledger_directories, master.ledger_directories, allow_expansion),
        ("index", found.directories_of_index, master.directories_of_index, allow_expansion),
    ):
        if before == now or (may_grow and set(before) <= set(now)):
            continue
        raise CookieMismatch(
            f"{start}its {what} directories were {_listed(before)} (says the cookie in {where}), now they are "
            f"{_listed(now)}. Nothing was changed. With others it would deny entries that it has acknowledged: "
            "configure them as they were, in the same order"
        )


def _listed(directories: Sequence[str]) -> str:
    return ", ".join(directories) or "none"


def _refuse_unknown(master: Cookie, used: str, unstamped: Mapping[str, DirectoryState]) -> None:
    """There is data but no stored cookie (F-37)."""
    start = f"cannot start bookie {master.bookie}: the metadata store has no cookie of it, yet "
    if used in unstamped:
        raise CookieMismatch(
            f"{start}{used} is not empty and has no {FILE_NAME}. Nothing was changed. A new bookie needs empty "
            "directories: name others, or remove what is in there"
        )
    raise CookieMismatch(
        f"{start}{used} holds data of it: this is another metadata store, or the bookie was removed from it. "
        "Nothing was changed. If the store is the wrong one, name the right one with --metadata; if the bookie was "
        "given up, empty its directories to start it as new"
    )


def _refuse_unstamped(master: Cookie, directory: str, state: DirectoryState) -> None:
    """There is a stored cookie, but a directory without one."""
    start = f"cannot start bookie {master.bookie}: "
    if not state.is_empty:
        raise CookieMismatch(
            f"{start}{directory} has files but no {FILE_NAME}, so it is not known whose they are. Nothing was changed. "
            f"Restore its {FILE_NAME} if it is this bookie's, or name another directory"
        )
    raise CookieMismatch(
        f"{start}{directory} {'is empty' if state.exists else 'does not exist'}: a disk is missing or was wiped. "
        "Nothing was changed. Without it the bookie would deny entries that it has acknowledged; its ledgers stay "
        "readable from their other replicas. Bring the disk back, or, if it is lost for good, start a bookie under a "
        "new id with empty directories"
    )


def check_directories(
    disk: Disk,
    master: Cookie,
    directories: Sequence[str],
    stored: bytes | None,
    *,
    allow_expansion: bool = False,
) -> Decision:
    """Read the cookies of all `directories`, decide, and stamp them if the bookie is new or has grown.

    `directories`: as configured, see `directories_of`. `stored`: the metadata store's cookie of this bookie. Returns
    what is left to do with that, after every directory is stamped durably. Raises CookieMismatch, CorruptRecord,
    OSError; then nothing was changed, but for directories already stamped when a disk failed.
    """
    states = {directory: read_state(disk, directory) for directory in directories}
    decision = decide(
        master,
        None if stored is None else parse(stored, path=f"cookie of {master.bookie} in the metadata store"),
        states,
        allow_expansion=allow_expansion,
    )
    if decision is not Decision.OK:
        data = master.pack()
        for directory in directories:
            write_cookie(disk, directory, data)
    return decision


def read_state(disk: Disk, directory: str) -> DirectoryState:
    """What stands in one configured directory. Raises CorruptRecord; CookieMismatch if its layout has no `current`."""
    current = os.path.join(directory, CURRENT)
    if not disk.is_directory(current):
        names = disk.list(directory) if disk.is_directory(directory) else []
        old = [name for name in names if name == FILE_NAME or name.endswith(_OLD_SUFFIXES)]
        if old:
            raise CookieMismatch(
                f"{directory} holds {old[0]} outside of `{CURRENT}`: files of a version that is too old. "
                "Nothing was changed. Upgrade them with an old Apache release first, or name another directory"
            )
        return DirectoryState(None, True, disk.is_directory(directory))
    names = disk.list(current)
    path = os.path.join(current, FILE_NAME)
    # A file of no bytes is what a crash leaves of a cookie written in place; it says nothing.
    data = disk.read_bytes(path) if FILE_NAME in names else b""
    return DirectoryState(parse(data, path=path) if data else None, not [name for name in names if name != FILE_NAME])


def write_cookie(disk: Disk, directory: str, data: bytes) -> None:
    """Stamp a configured directory durably, creating it and its `current`.

    The temporary file is in the parent: anything in `current` would make a directory without a cookie look used (Q-1).
    """
    current = os.path.join(directory, CURRENT)
    disk.make_directories(current)
    temporary = os.path.join(directory, f".{FILE_NAME}.tmp")
    file = disk.open(temporary, "w+")
    try:
        file.truncate(0)
        file.pwrite(data, 0)
        file.fsync()
    finally:
        file.close()
    disk.rename(temporary, os.path.join(current, FILE_NAME))
    disk.sync_directory(current)
    disk.sync_directory(directory)
