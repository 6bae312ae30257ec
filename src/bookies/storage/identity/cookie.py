"""The cookie, which names the owner of a directory: its text, and its file `VERSION` in every directory.

A bookie that starts on an empty or foreign disk reports entries as missing that it once acknowledged, and recovery then
truncates ledgers. The metadata store and every directory therefore have the same cookie, and `admission.decide` lets
the bookie start only if they agree.

Source: storage 9.1, 9.2, F-36.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence

from msgspec import Struct

from bookies.config import BookieConfig
from bookies.encoding import textproto
from bookies.errors import CookieMismatch, CorruptRecord, StorageError
from bookies.runtime.ports import Disk

FILE_NAME = "VERSION"
LAYOUT = 5  # the layout that we write
CURRENT = "current"  # sub-directory of every configured directory that holds all files
EMPTYING = "FORMATTING"  # the cookie of a directory that `bk bookie format` is emptying: the bookie cannot start

_FIELDS = ("bookieHost", "journalDir", "ledgerDirs", "instanceId", "indexDirs")
_REQUIRED = 3
_ENCRYPTION = "encryption"  # a field of ours, only while files have encrypted entries: Apache's bookie refuses to start
_CIPHER = "AES-256-GCM"
_OLD_SUFFIXES = (".txn", ".idx", ".log")


class Cookie(Struct, frozen=True):
    """The content of a cookie.

    `journal_directories`: as configured, joined with commas. The other directories: as configured, without `current`.
    Layouts 3 and 4 have no `index_directories`, layout 3 has no `instance_id` either. `is_encrypted`: files of the
    directories may have encrypted entries; never in the metadata store.
    """

    bookie: str
    journal_directories: str
    ledger_directories: tuple[str, ...]
    instance_id: str | None = None
    index_directories: tuple[str, ...] | None = None
    layout: int = LAYOUT
    is_encrypted: bool = False

    @property
    def journals(self) -> tuple[str, ...]:
        return tuple(self.journal_directories.split(","))

    @property
    def directories(self) -> list[str]:
        """Return all distinct directories: journals, ledgers, indexes."""
        return list(dict.fromkeys((*self.journals, *self.ledger_directories, *self.directories_of_index)))

    @property
    def directories_of_index(self) -> tuple[str, ...]:
        return self.ledger_directories if self.index_directories is None else self.index_directories

    def base_of(self, path: str) -> str | None:
        """Return the base of the cookie's relative names if `path` is one of its directories; None if it is not.

        If it is not, `path` is a copy or mounted elsewhere, and the directories that the cookie names may be in use.
        """
        for directory in self.directories:
            name = posixpath.normpath(directory)
            if path == name:
                return ""
            if not posixpath.isabs(name) and f"/{path}".endswith(f"/{name}"):
                return path[: -len(name)]
        return None

    def pack(self) -> bytes:
        """Return the bytes of the file and of the stored cookie. Q-16: the version line of a written cookie is 5."""
        values = (
            self.bookie,
            self.journal_directories,
            _pack_list(self.ledger_directories),
            self.instance_id,
            None if self.index_directories is None else _pack_list(self.index_directories),
        )
        fields = [(name, value) for name, value in zip(_FIELDS, values, strict=True) if value is not None]
        if self.is_encrypted:
            fields.append((_ENCRYPTION, _CIPHER))
        return b"%d\n" % LAYOUT + textproto.pack(fields)


def master_cookie(config: BookieConfig, bookie: str, instance_id: str | None) -> Cookie:
    """Return the cookie that a bookie of this configuration has in this cluster."""
    return Cookie(
        bookie,
        ",".join(config.journal_directories),
        config.ledger_directories,
        instance_id,
        config.index_directories or None,
    )


def directories_of(config: BookieConfig) -> list[str]:
    """Return all distinct directories of a bookie, as configured: journals, ledgers, indexes."""
    return list(dict.fromkeys((*config.journal_directories, *config.ledger_directories, *config.index_directories)))


def parse(data: bytes, *, path: str = FILE_NAME) -> Cookie:
    """Parse a cookie of layout 3, 4 or 5. Raises CorruptRecord."""
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
            layout > 3 and _ENCRYPTION in values,
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
        if name not in (*_FIELDS, _ENCRYPTION) or not isinstance(value, bytes):
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
        raise ValueError(f"{len(directories)} directories, but the count is {count!r}")
    return tuple(directories)


class DirectoryState(Struct, frozen=True):
    """State of a configured directory. `is_empty`: its `current` is missing or has no file other than `VERSION`."""

    cookie: Cookie | None
    is_empty: bool
    exists: bool = True


def read_state(disk: Disk, directory: str) -> DirectoryState:
    """Read the state of a configured directory.

    Raises CorruptRecord; CookieMismatch if its layout has no `current`, or it is being emptied.
    """
    current = os.path.join(directory, CURRENT)
    if not disk.is_directory(current):
        names = disk.list(directory) if disk.is_directory(directory) else []
        old = [name for name in names if name == FILE_NAME or name.endswith(_OLD_SUFFIXES)]
        if old:
            raise CookieMismatch(
                f"{directory} holds {old[0]} outside of `{CURRENT}`: files of a layout before 3, which is too old. "
                "Nothing was changed. Upgrade them with Apache's own `bookkeeper upgrade` first, or configure another "
                "directory"
            )
        return DirectoryState(None, True, disk.is_directory(directory))
    names = disk.list(current)
    if EMPTYING in names:
        raise CookieMismatch(
            f"{directory} is partly emptied: `bk bookie format` was interrupted. Nothing was changed. "
            f"Run it again: bk bookie format {directory}"
        )
    path = os.path.join(current, FILE_NAME)
    # A crash while a cookie is written in place leaves an empty file, which counts as no cookie.
    data = disk.read_bytes(path) if FILE_NAME in names else b""
    return DirectoryState(parse(data, path=path) if data else None, not [name for name in names if name != FILE_NAME])


def remove_cookie(disk: Disk, directory: str) -> None:
    """Remove the cookie durably from a directory that has no other file."""
    current = os.path.join(directory, CURRENT)
    disk.unlink(os.path.join(current, FILE_NAME))
    disk.sync_directory(current)


def write_cookie(disk: Disk, directory: str, data: bytes) -> None:
    """Write the cookie of a configured directory durably; create the directory and its `current` if necessary."""
    write_in_current(disk, directory, FILE_NAME, data)


def is_encrypted(disk: Disk, current: str) -> bool:
    """Report whether the cookie in a `current` says that there are encrypted entries.

    Raises: OSError, CorruptRecord.
    """
    path = posixpath.join(current, FILE_NAME)
    data = disk.read_bytes(path) if disk.exists(path) else b""
    return bool(data) and parse(data, path=path).is_encrypted


def note_encryption(disk: Disk, currents: Sequence[str], *, is_on: bool) -> None:
    """Let the cookie in each `current` that has one say durably whether there are encrypted entries.

    Only the field changes. Raises: OSError, DiskFull, CorruptRecord; StorageError for layout 3, which has no fields.
    """
    field = textproto.pack([(_ENCRYPTION, _CIPHER)])
    for current in currents:
        path = posixpath.join(current, FILE_NAME)
        data = disk.read_bytes(path) if disk.exists(path) else b""
        if not data or is_encrypted(disk, current) == is_on:
            continue
        if parse(data, path=path).layout == 3:
            raise StorageError(
                f"{path} is a cookie of layout 3, which cannot say that entries are encrypted. Nothing was encrypted. "
                "Replace it in all directories by what `bk cookie generate` prints, and in the metadata store with "
                "`bk cookie update`; then start again"
            )
        data = data.rstrip(b"\n") + b"\n" + field if is_on else data.replace(field, b"")
        write_cookie(disk, posixpath.dirname(current), data)


def write_in_current(disk: Disk, directory: str, name: str, data: bytes) -> None:
    """Write a file of a configured directory durably, as `write_cookie` does.

    The temporary file is in the parent. Q-1: a directory without `VERSION` is new only if `current` is completely
    empty.
    """
    current = os.path.join(directory, CURRENT)
    disk.make_directories(current)
    temporary = os.path.join(directory, f".{name}.tmp")
    file = disk.open(temporary, "w+")
    try:
        file.truncate(0)
        file.pwrite(data, 0)
        file.fsync()
    finally:
        file.close()
    disk.rename(temporary, os.path.join(current, name))
    disk.sync_directory(current)
    disk.sync_directory(directory)
