"""The start check: the cookies in a bookie's directories and in the metadata store have to agree.

Every refusal names the difference, its place, both values, and the remedy. After a crash between any two steps the next
start completes the stamping:

- A new bookie stamps its directories, and then creates the stored cookie. Until then the directories are empty.
- Added directories are stamped first, then the others again, then the stored cookie is replaced. Files are opened only
  after that. So a directory that is named only by other *new* and empty directories has never held data.

Source: storage 1.1, 1.4, 9.3, F-37.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from bookies.errors import CookieMismatch, CorruptRecord
from bookies.runtime.ports import Disk
from bookies.storage.identity.cookie import FILE_NAME, Cookie, DirectoryState, parse, read_state, write_cookie

STORE = "the metadata store"
UNCHANGED = "Nothing was changed."


class Decision(enum.Enum):
    """The remaining step for the caller, on the stored cookie, once the directories are stamped."""

    OK = "nothing to do"
    NEW_BOOKIE = "create the stored cookie"
    EXPANDED = "replace the stored cookie"


def decide(
    master: Cookie,
    stored: Cookie | None,
    directories: Mapping[str, DirectoryState],
    *,
    allow_expansion: bool = False,
) -> Decision:
    """Decide whether the bookie may start on these directories. Raises CookieMismatch with the remedy.

    `master`: the cookie of the current settings. `stored`: the cookie in the metadata store.
    """
    if stored is not None:
        verify(master, stored, STORE, stored=stored, allow_expansion=allow_expansion)
    for directory, state in directories.items():
        if state.cookie is not None:
            verify(master, state.cookie, directory, stored=stored, allow_expansion=allow_expansion)
    unstamped = {directory: state for directory, state in directories.items() if state.cookie is None}
    if stored is None:
        used = [directory for directory, state in directories.items() if not state.is_empty]
        if used:
            _refuse_unknown(master, used[0], unstamped)
        return Decision.NEW_BOOKIE
    known = _known_directories(stored, directories)
    for directory, state in unstamped.items():
        # Without expansion every configured directory is known, because `verify` has compared the lists.
        if directory in known or not state.is_empty:
            _refuse_unstamped(master, directory, state)
    cookies = [stored, *(state.cookie for state in directories.values() if state.cookie is not None)]
    has_grown = any(_lists(cookie) != _lists(master) for cookie in cookies)
    return Decision.EXPANDED if unstamped or has_grown else Decision.OK


def _lists(cookie: Cookie) -> tuple[Sequence[str], ...]:
    return cookie.journals, cookie.ledger_directories, cookie.directories_of_index


def _known_directories(stored: Cookie, directories: Mapping[str, DirectoryState]) -> set[str]:
    """Return the directories that may have held data of this bookie.

    Cookies of new and empty directories do not count: a crash may have interrupted the stamping right after them.
    """
    known = set(stored.directories)
    cookies = [
        state.cookie
        for directory, state in directories.items()
        if state.cookie is not None and (directory in known or not state.is_empty)
    ]
    return known.union(*(cookie.directories for cookie in cookies))


def verify(
    master: Cookie, cookie: Cookie, where: str, *, stored: Cookie | None = None, allow_expansion: bool = False
) -> None:
    """Raise CookieMismatch unless the `cookie` from `where` has the same bookie, cluster and directories.

    `stored`: the metadata store's cookie. If it has layout 3, which names no cluster, the others of layout 3 may lack
    the cluster too.
    """
    start = f"cannot start bookie {master.bookie}: "
    if cookie.bookie != master.bookie:
        raise CookieMismatch(f"{start}{_other_bookie(master, cookie, where)}")
    is_as_old = cookie.layout == 3 and stored is not None and stored.layout == 3
    if cookie.instance_id != master.instance_id and not is_as_old:
        subject = "its cookie in the metadata store is of" if where == STORE else f"{where} belongs to"
        raise CookieMismatch(
            f"{start}{subject} another cluster (instance {cookie.instance_id}; this one is {master.instance_id}). "
            f"{UNCHANGED} Name the right cluster with --metadata, or use other directories"
        )
    for role, before, now in zip(("journal", "ledger", "index"), _lists(cookie), _lists(master), strict=True):
        may_grow = allow_expansion and role != "journal"
        if before == now or (may_grow and before == now[: len(before)]):
            continue
        raise CookieMismatch(
            f"{start}its {role} directories were {_listed(before)} (cookie in {where}), now they are "
            f"{_listed(now)}: {_difference(master, role, before, now)}"
        )


def _other_bookie(master: Cookie, cookie: Cookie, where: str) -> str:
    """Describe another bookie's cookie, which may be the same bookie's under its former address."""
    subject = "its cookie in the metadata store is" if where == STORE else f"{where} belongs to"
    text = f"{subject} that of bookie {cookie.bookie}" if where == STORE else f"{subject} bookie {cookie.bookie}"
    if _is_address(cookie.bookie) and _is_address(master.bookie):
        return (
            f"{text} (according to its cookie). Both names are addresses. {UNCHANGED} If only the address of this "
            f"bookie has changed, keep its name: --bookie-id {cookie.bookie}; clients then find the new address by its "
            f"name. If the disks were swapped, put them back, or give {master.bookie} its own directories"
        )
    return (
        f"{text} (according to its cookie). {UNCHANGED} If the disks were swapped, start it with --bookie-id "
        f"{cookie.bookie}, or give {master.bookie} its own directories"
    )


def _is_address(bookie: str) -> bool:
    return bookie.rpartition(":")[2].isdecimal() and ":" in bookie


def _difference(master: Cookie, role: str, before: Sequence[str], now: Sequence[str]) -> str:
    """Describe the difference between two lists of directories, and the remedy."""
    removed = [directory for directory in before if directory not in now]
    new = [directory for directory in now if directory not in before]
    as_before = "configure them as they were, in the same order"
    if removed:
        return (
            f"{_listed(removed)} {'is' if len(removed) == 1 else 'are'} no longer configured. {UNCHANGED} Without the "
            f"data there the bookie would report acknowledged entries as missing: {as_before}. A disk that is mounted "
            "elsewhere now must be mounted, or linked, under its old name. If the data is lost, decommission the "
            f"bookie: `bk bookie recover {master.bookie}` copies its entries to others, `bk bookie format` empties "
            "its directories"
        )
    if not new:
        return (
            f"they are in another order. {UNCHANGED} The directory of a ledger, and the mark of a journal, depend on "
            f"the position in the list: {as_before}"
        )
    if role == "journal":
        return (
            f"{_listed(new)} {'is' if len(new) == 1 else 'are'} new. {UNCHANGED} The journal of a ledger depends on "
            f"the number of journals, so journals cannot be added: {as_before}"
        )
    if list(now[: len(before)]) != list(before):
        return (
            f"{_listed(new)} {'is' if len(new) == 1 else 'are'} new and not after the others. {UNCHANGED} List the "
            "old ones as they were, in the same order, and the new ones after them"
        )
    return (
        f"{_listed(new)} {'is' if len(new) == 1 else 'are'} new. {UNCHANGED} To add empty directories start it once "
        f"with --set allow_storage_expansion=true; to continue without them {as_before}"
    )


def _listed(directories: Sequence[str]) -> str:
    return ", ".join(directories) or "none"


def _refuse_unknown(master: Cookie, used: str, unstamped: Mapping[str, DirectoryState]) -> None:
    """Refuse a start with data but without a stored cookie.

    F-37: start as new only if every directory is empty but for a matching cookie.
    """
    start = f"cannot start bookie {master.bookie}: the metadata store has no cookie of it, yet "
    if used in unstamped:
        raise CookieMismatch(
            f"{start}{used} is not empty and has no {FILE_NAME}. {UNCHANGED} A new bookie needs empty "
            "directories: configure others, or remove the files there"
        )
    raise CookieMismatch(
        f"{start}{used} holds data of it: this is another metadata store, or the bookie was removed from it. "
        f"{UNCHANGED} If the store is the wrong one, name the right one with --metadata. If the bookie was "
        f"decommissioned, empty its directories to start it as new: bk bookie format {used}"
    )


def _refuse_unstamped(master: Cookie, directory: str, state: DirectoryState) -> None:
    """Refuse a start with a stored cookie and a directory without one."""
    start = f"cannot start bookie {master.bookie}: "
    if not state.is_empty:
        raise CookieMismatch(
            f"{start}{directory} has files but no {FILE_NAME}, so their owner is unknown. {UNCHANGED} "
            f"Restore its {FILE_NAME} if it is this bookie's (all its directories have the same one), or configure "
            "another directory"
        )
    raise CookieMismatch(
        f"{start}{directory} {'is empty' if state.exists else 'does not exist'}: a disk is missing or was wiped. "
        f"{UNCHANGED} Without it the bookie would report acknowledged entries as missing; its ledgers stay readable "
        f"from their other replicas. Bring the disk back. If its content is lost, start the bookie with --set "
        f"lost_directories={directory}: it then fetches the entries that were there from other bookies"
    )


def check_directories(
    disk: Disk,
    master: Cookie,
    directories: Sequence[str],
    stored: bytes | None,
    *,
    others: Mapping[str, bytes] | None = None,
    allow_expansion: bool = False,
) -> Decision:
    """Read the cookies of all `directories`, decide, and stamp them if the bookie is new or has new directories.

    `directories`: as configured, see `cookie.directories_of`. `stored`: the metadata store's cookie of this bookie.
    `others`: stored cookies under other names that the bookie could have had, which must match as well. Returns what
    is left to do with the stored cookie, after every directory is stamped durably. Raises CookieMismatch,
    CorruptRecord, OSError. Then no directory was changed, except those already stamped when a disk failed.
    """
    for bookie, data in (others or {}).items():
        verify(master, _parse_stored(data, bookie), STORE, allow_expansion=allow_expansion)
    stored_cookie = None if stored is None else _parse_stored(stored, master.bookie)
    states = {directory: state_of(disk, master.bookie, directory) for directory in directories}
    decision = decide(master, stored_cookie, states, allow_expansion=allow_expansion)
    if decision is not Decision.OK:
        is_encrypted = any(state.cookie is not None and state.cookie.is_encrypted for state in states.values())
        data = replace(master, is_encrypted=is_encrypted).pack()
        # New directories first: see the head of this file.
        for directory in sorted(directories, key=lambda path: states[path].cookie is not None):
            write_cookie(disk, directory, data)
    return decision


def _parse_stored(data: bytes, bookie: str) -> Cookie:
    return parse(data, path=f"cookie of {bookie} in the metadata store")


def state_of(disk: Disk, bookie: str, directory: str) -> DirectoryState:
    """Read the state of a configured directory at a bookie's start. Raises CookieMismatch, CorruptRecord."""
    try:
        return read_state(disk, directory)
    except CookieMismatch as error:
        raise CookieMismatch(f"cannot start bookie {bookie}: {error.message}") from error
    except CorruptRecord as error:
        text = (
            f"the {FILE_NAME} of {directory} cannot be read. {UNCHANGED} All directories of a bookie have the same "
            "one: copy it from another"
        )
        raise CorruptRecord(text, path=error.path, offset=error.offset) from error


class SharedDisk(Struct, frozen=True):
    """Two directories of the same kind on one file system."""

    kind: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"the {self.kind} directories {self.first} and {self.second} are on one file system"


def shared_disks(disk: Disk, journals: Sequence[str], others: Sequence[str]) -> list[SharedDisk]:
    """Return pairs on one file system, among the journals and among the ledger and index directories."""
    shared = []
    for role, directories in (("journal", journals), ("ledger or index", others)):
        if len(directories) < 2:
            continue
        devices = sorted((disk.device(_existing(disk, path)), number) for number, path in enumerate(directories))
        for (device, first), (other, second) in pairwise(devices):
            if device == other:
                shared.append(SharedDisk(role, directories[first], directories[second]))
    return shared


def _existing(disk: Disk, directory: str) -> str:
    """Return the directory or its nearest existing parent, in which it would be created."""
    while directory and not disk.is_directory(directory):
        directory = os.path.dirname(directory.rstrip("/"))
    return directory or "."
