"""Lost directories: the decision which directories a bookie uses after a loss, and the file `lost.directories`.

An operator names the directories whose content is lost (`lost_directories`). The bookie notes each loss, with a random
mark, in every directory that it uses. A lost directory that does not exist is left out. A lost directory that exists
and is empty is used in place of the old one: it gets the notes too, and so the mark. A directory with files but without
the mark is the old disk, or a copy of it. The bookie has continued without it, so it refuses to start with it.

A loss counts as noted when the storage has noted durably that any ledger may have been in the directory. Until then
every start does so again. It counts as applied when every journal has a file, too: the files of a journal that has none
are not missing. It counts as replaced when an empty directory has the mark: if that one is lost too, the
operator has to name it again. A note is never removed. Copies differ after a crash; all of them are true.

    {"losses": [{"path": "/d2/bk", "mark": "9f86d081884c7d65", "noted": true, "applied": true, "replaced": false}]}
    3276c5e9

The first line is JSON, the second its crc32. Source: storage 9.3, 10.2.
"""

from __future__ import annotations

import json
import posixpath
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from bookies.encoding.documents import parse_json
from bookies.errors import CookieMismatch, CorruptRecord
from bookies.runtime.ports import Disk
from bookies.storage.disks.durable_files import replace_copies
from bookies.storage.identity.cookie import CURRENT, DirectoryState, write_cookie, write_in_current

FILE_NAME = "lost.directories"


class Loss(Struct, frozen=True):
    """The loss of a directory. `path`: as configured. `mark`: the directory that replaces it has it too."""

    path: str
    mark: str
    is_applied: bool = False
    is_replaced: bool = False
    is_noted: bool = False


class Uses(Struct, frozen=True):
    """The use of a bookie's directories.

    `losses`: all of them, new ones included. `is_noted`: every directory in use has them. `left_out`: directories that
    the bookie runs without. `replaced`: empty directories, to be used in place of lost ones.
    """

    losses: tuple[Loss, ...] = ()
    is_noted: bool = True
    left_out: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()


def pack(losses: Sequence[Loss]) -> bytes:
    """Return the content of the file."""
    facts = [
        {
            "path": loss.path,
            "mark": loss.mark,
            "noted": loss.is_noted,
            "applied": loss.is_applied,
            "replaced": loss.is_replaced,
        }
        for loss in losses
    ]
    line = json.dumps({"losses": facts}).encode() + b"\n"
    return line + f"{zlib.crc32(line):08x}\n".encode()


def parse(data: bytes, *, path: str = FILE_NAME) -> list[Loss]:
    """Parse the file. Raises CorruptRecord."""
    line = data[: data.find(b"\n") + 1]
    if not line or data[len(line) :] != f"{zlib.crc32(line):08x}\n".encode():
        raise CorruptRecord("the checksum is wrong", path=path, offset=0)
    try:
        losses = parse_json(line)["losses"]
        return [
            Loss(
                str(loss["path"]),
                str(loss["mark"]),
                bool(loss["applied"]),
                bool(loss["replaced"]),
                bool(loss.get("noted", loss["applied"])),
            )
            for loss in losses
        ]
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptRecord(f"not a list of losses: {error}", path=path, offset=0) from error


def union(copies: Iterable[Sequence[Loss]]) -> list[Loss]:
    """Return the losses of all copies. A loss is noted, applied, or replaced, if any copy says so."""
    losses: dict[tuple[str, str], Loss] = {}
    for copy in copies:
        for loss in copy:
            known = losses.setdefault((loss.path, loss.mark), loss)
            losses[loss.path, loss.mark] = replace(
                known,
                is_applied=known.is_applied or loss.is_applied,
                is_replaced=known.is_replaced or loss.is_replaced,
                is_noted=known.is_noted or loss.is_noted,
            )
    return list(losses.values())


def read(disk: Disk, currents: Sequence[str]) -> dict[str, list[Loss]]:
    """Return the copies in these `current` directories. Raises: CorruptRecord, OSError."""
    paths = {current: posixpath.join(current, FILE_NAME) for current in currents}
    return {
        current: parse(disk.read_bytes(path), path=path) if disk.exists(path) else [] for current, path in paths.items()
    }


def plan(
    states: Mapping[str, DirectoryState],
    copies: Mapping[str, Sequence[Loss]],
    named: Collection[str],
    needed: Sequence[Sequence[str]],
    mark: str,
) -> Uses:
    """Return how to use the directories of a bookie that has started before. Raises CookieMismatch with the remedy.

    `copies`: the notes in each directory. `named`: directories that the operator has declared lost. `needed`: groups
    of directories, of each of which at least one must be used. `mark`: of new losses.
    """
    losses = union(copies.values())
    left_out: list[str] = []
    replaced: list[str] = []
    for directory, state in states.items():
        lacking = _lacking(directory, copies.get(directory, ()), losses)
        if lacking and not state.is_empty:
            raise CookieMismatch(
                f"{directory} has files, but it was declared lost: this is the old disk or a copy of it, and the "
                "bookie has continued without it. Nothing was changed. Empty the directory to use it again"
            )
        if directory in named and state.is_empty and all(loss.is_replaced for loss in lacking):
            lacking = [Loss(directory, mark)]
            losses += lacking
        if lacking and all(loss.is_replaced for loss in lacking):
            raise CookieMismatch(
                f"{directory} {'is empty' if state.exists else 'does not exist'}: the disk that replaced a lost one is "
                "missing or was wiped. Nothing was changed. Bring it back or, if its content is lost too, start the "
                f"bookie with --set lost_directories={directory}"
            )
        if lacking:
            (replaced if state.exists else left_out).append(directory)
    for group in needed:
        if all(directory in left_out for directory in group):
            raise CookieMismatch(
                f"{', '.join(group)}: declared lost, and the bookie cannot do without it. Nothing was changed. Mount "
                "an empty disk and create the directory there"
            )
    losses = [replace(loss, is_replaced=loss.is_replaced or loss.path not in left_out) for loss in losses]
    is_noted = all(list(copies[directory]) == losses for directory in states if directory not in left_out)
    return Uses(tuple(losses), is_noted, tuple(left_out), tuple(replaced))


def _lacking(directory: str, own: Sequence[Loss], losses: Sequence[Loss]) -> list[Loss]:
    """Return the losses of the directory that are noted elsewhere, but not in it."""
    marks = [loss.mark for loss in own if loss.path == directory]
    return [loss for loss in losses if loss.path == directory and loss.mark not in marks]


def write(disk: Disk, cookie: bytes, kept: Sequence[str], uses: Uses) -> None:
    """Stamp the directories that replace lost ones, and note the losses in all that are used. Raises: OSError.

    The mark follows the cookie: a directory that a crash leaves with a cookie alone is empty, and is stamped again.
    """
    for directory in uses.replaced:
        write_cookie(disk, directory, cookie)
        write_in_current(disk, directory, FILE_NAME, pack(uses.losses))
    for directory in kept:
        write_in_current(disk, directory, FILE_NAME, pack(uses.losses))


def unapplied(disk: Disk, currents: Sequence[str]) -> list[Loss]:
    """Return the losses that the storage has to apply. Raises: CorruptRecord, OSError."""
    return [loss for loss in union(read(disk, currents).values()) if not loss.is_applied]


def note_applied(disk: Disk, currents: Sequence[str], *, is_whole: bool) -> None:
    """Note that all losses are noted, and with `is_whole` applied.

    Raises: CorruptRecord, DiskFull, OSError, if no directory accepts it.
    """
    losses = [
        replace(loss, is_noted=True, is_applied=loss.is_applied or is_whole)
        for loss in union(read(disk, currents).values())
    ]
    replace_copies(disk, [posixpath.join(current, FILE_NAME) for current in currents], pack(losses))


def currents_of(directories: Iterable[str]) -> list[str]:
    """Return the `current` directories of configured ones."""
    return [posixpath.join(directory, CURRENT) for directory in directories]
