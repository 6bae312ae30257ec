"""May this bookie start on these directories? The cookies in them and in the metadata store have to tell one story.

Every refusal names what differs, where, both values, and what to do. A crash between any two steps of stamping is
completed by the next start, by what stands where:

- A new bookie: the directories are stamped, then the stored cookie is created. Until then they hold nothing else.
- Directories added: first the new ones are stamped, then the others again, then the stored cookie is replaced, and only
  then is any file opened. So a directory that only other *new* and empty ones speak of has never held anything.

Source: storage 1.1, 1.4, 9.3, F-37.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bookies.errors import CookieMismatch, CorruptRecord
from bookies.runtime.ports import Disk
from bookies.storage.identity.cookie import FILE_NAME, Cookie, DirectoryState, parse, read_state, write_cookie

STORE = "the metadata store"
UNCHANGED = "Nothing was changed."


class Decision(enum.Enum):
    """What the caller does with the stored cookie once the directories are stamped."""

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
    """Whether the bookie may start on these directories. Raises CookieMismatch, in words for the operator.

    `master`: the cookie that its settings make. `stored`: what the metadata store has.
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
        # Without expansion every configured directory is a known one: `verify` has compared the lists.
        if directory in known or not state.is_empty:
            _refuse_unstamped(master, directory, state)
    found = [stored, *(state.cookie for state in directories.values() if state.cookie is not None)]
    has_grown = any(_lists(each) != _lists(master) for each in found)
    return Decision.EXPANDED if unstamped or has_grown else Decision.OK


def _lists(cookie: Cookie) -> tuple[Sequence[str], ...]:
    return cookie.journals, cookie.ledger_directories, cookie.directories_of_index


def _known_directories(stored: Cookie, directories: Mapping[str, DirectoryState]) -> set[str]:
    """Directories that may have held something of this bookie.

    What a new and empty directory's cookie says does not count: stamping may have ended right after it.
    """
    known = set(stored.directories)
    speakers = [
        state.cookie
        for directory, state in directories.items()
        if state.cookie is not None and (directory in known or not state.is_empty)
    ]
    return known.union(*(each.directories for each in speakers))


def verify(
    master: Cookie, found: Cookie, where: str, *, stored: Cookie | None = None, allow_expansion: bool = False
) -> None:
    """Raise CookieMismatch unless the cookie found in `where` is of the same bookie, cluster and directories.

    `stored`: the metadata store's. If it is of layout 3, which cannot name a cluster, the others need not either.
    """
    start = f"cannot start bookie {master.bookie}: "
    if found.bookie != master.bookie:
        raise CookieMismatch(f"{start}{_other_bookie(master, found, where)}")
    is_as_old = found.layout == 3 and stored is not None and stored.layout == 3
    if found.instance_id != master.instance_id and not is_as_old:
        subject = "its cookie in the metadata store is of" if where == STORE else f"{where} belongs to"
        raise CookieMismatch(
            f"{start}{subject} another cluster (instance {found.instance_id}; this one is {master.instance_id}). "
            f"{UNCHANGED} Name the cluster it belongs to with --metadata, or use other directories"
        )
    for kind, before, now in zip(("journal", "ledger", "index"), _lists(found), _lists(master), strict=True):
        may_grow = allow_expansion and kind != "journal"
        if before == now or (may_grow and before == now[: len(before)]):
            continue
        raise CookieMismatch(
            f"{start}its {kind} directories were {_listed(before)} (says the cookie in {where}), now they are "
            f"{_listed(now)}: {_difference(master, kind, before, now)}"
        )


def _other_bookie(master: Cookie, found: Cookie, where: str) -> str:
    """Somebody else's directories, or the same bookie under its former address."""
    subject = "its cookie in the metadata store is" if where == STORE else f"{where} belongs to"
    text = f"{subject} that of bookie {found.bookie}" if where == STORE else f"{subject} bookie {found.bookie}"
    if _is_address(found.bookie) and _is_address(master.bookie):
        return (
            f"{text} (its cookie says so), a name that is an address, as this one is. {UNCHANGED} If it is the same "
            f"bookie and only its address has changed, keep its name: --bookie-id {found.bookie}; clients find the new "
            f"address by that. If the disks were swapped, put them back, or give {master.bookie} its own directories"
        )
    return (
        f"{text} (its cookie says so). {UNCHANGED} If the disks were swapped, start it with --bookie-id "
        f"{found.bookie}, or give {master.bookie} its own directories"
    )


def _is_address(bookie: str) -> bool:
    return bookie.rpartition(":")[2].isdecimal() and ":" in bookie


def _difference(master: Cookie, kind: str, before: Sequence[str], now: Sequence[str]) -> str:
    """What has changed between two lists of directories, and what to do about it."""
    gone = [each for each in before if each not in now]
    new = [each for each in now if each not in before]
    as_before = "configure them as they were, in the same order"
    if gone:
        return (
            f"{_listed(gone)} {'is' if len(gone) == 1 else 'are'} not named any more. {UNCHANGED} Without what is in "
            f"there the bookie would deny entries that it has acknowledged: {as_before}; a disk that is mounted "
            "elsewhere now has to be mounted, or linked, under its old name. To do without it for good, give the "
            f"bookie up: `bk bookie recover {master.bookie}` copies what it holds to others, `bk bookie format` "
            "empties its directories"
        )
    if not new:
        return (
            f"they are in another order. {UNCHANGED} Which directory a ledger belongs to, and which mark a journal "
            f"has, goes by position: {as_before}"
        )
    if kind == "journal":
        return (
            f"{_listed(new)} {'is' if len(new) == 1 else 'are'} new. {UNCHANGED} Which journal a ledger is in follows "
            f"from their number, so journals cannot be added: {as_before}"
        )
    if list(now[: len(before)]) != list(before):
        return (
            f"{_listed(new)} {'is' if len(new) == 1 else 'are'} new and not behind the others. {UNCHANGED} Name the "
            "old ones as they were, in the same order, and the new ones behind them"
        )
    return (
        f"{_listed(new)} {'is' if len(new) == 1 else 'are'} new. {UNCHANGED} To add empty directories start it once "
        f"with --set allow_storage_expansion=true; to go on without them {as_before}"
    )


def _listed(directories: Sequence[str]) -> str:
    return ", ".join(directories) or "none"


def _refuse_unknown(master: Cookie, used: str, unstamped: Mapping[str, DirectoryState]) -> None:
    """There is data but no stored cookie (F-37)."""
    start = f"cannot start bookie {master.bookie}: the metadata store has no cookie of it, yet "
    if used in unstamped:
        raise CookieMismatch(
            f"{start}{used} is not empty and has no {FILE_NAME}. {UNCHANGED} A new bookie needs empty "
            "directories: name others, or remove what is in there"
        )
    raise CookieMismatch(
        f"{start}{used} holds data of it: this is another metadata store, or the bookie was removed from it. "
        f"{UNCHANGED} If the store is the wrong one, name the right one with --metadata; if the bookie was "
        f"given up, empty its directories to start it as new: bk bookie format {used}"
    )


def _refuse_unstamped(master: Cookie, directory: str, state: DirectoryState) -> None:
    """There is a stored cookie, but a directory without one."""
    start = f"cannot start bookie {master.bookie}: "
    if not state.is_empty:
        raise CookieMismatch(
            f"{start}{directory} has files but no {FILE_NAME}, so it is not known whose they are. {UNCHANGED} "
            f"Restore its {FILE_NAME} if it is this bookie's (all its directories have the same one), or name another "
            "directory"
        )
    raise CookieMismatch(
        f"{start}{directory} {'is empty' if state.exists else 'does not exist'}: a disk is missing or was wiped. "
        f"{UNCHANGED} Without it the bookie would deny entries that it has acknowledged; its ledgers stay "
        f"readable from their other replicas. Bring the disk back, or, if it is lost for good, let others have what "
        f"this bookie held (bk bookie recover {master.bookie}), give it up (bk bookie format) and start it as a new one"
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
    """Read the cookies of all `directories`, decide, and stamp them if the bookie is new or has grown.

    `directories`: as configured, see `cookie.directories_of`. `stored`: the metadata store's cookie of this bookie.
    `others`: what the store has under other names that the bookie could have had, which must match as well. Returns
    what is left to do with that, after every directory is stamped durably. Raises CookieMismatch, CorruptRecord,
    OSError; then nothing was changed, but for directories already stamped when a disk failed.
    """
    for bookie, data in (others or {}).items():
        verify(master, _parse_stored(data, bookie), STORE, allow_expansion=allow_expansion)
    found = None if stored is None else _parse_stored(stored, master.bookie)
    states = {directory: state_of(disk, master.bookie, directory) for directory in directories}
    decision = decide(master, found, states, allow_expansion=allow_expansion)
    if decision is not Decision.OK:
        data = master.pack()
        # New ones first: see the head of this file.
        for directory in sorted(directories, key=lambda each: states[each].cookie is not None):
            write_cookie(disk, directory, data)
    return decision


def _parse_stored(data: bytes, bookie: str) -> Cookie:
    return parse(data, path=f"cookie of {bookie} in the metadata store")


def state_of(disk: Disk, bookie: str, directory: str) -> DirectoryState:
    """What stands in one configured directory of a bookie that is to start. Raises CookieMismatch, CorruptRecord."""
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


@dataclass(frozen=True, slots=True)
class SharedDisk:
    """Two directories of a kind on one file system."""

    kind: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"the {self.kind} directories {self.first} and {self.second} are on one file system"


def shared_disks(disk: Disk, journals: Sequence[str], others: Sequence[str]) -> list[SharedDisk]:
    """Neighbours on one file system, among the journals and among the ledger and index directories."""
    found = []
    for kind, directories in (("journal", journals), ("ledger or index", others)):
        if len(directories) < 2:
            continue
        devices = sorted((disk.device(_existing(disk, each)), number) for number, each in enumerate(directories))
        for (device, first), (other, second) in pairwise(devices):
            if device == other:
                found.append(SharedDisk(kind, directories[first], directories[second]))
    return found


def _existing(disk: Disk, directory: str) -> str:
    """The directory, or the nearest one above that exists: there it would be made."""
    while directory and not disk.is_directory(directory):
        directory = os.path.dirname(directory.rstrip("/"))
    return directory or "."
