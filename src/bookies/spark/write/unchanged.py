"""Check of the files that a write reads: its commit verifies that they have not changed since it began.

Spark opens a file once for each of its splits, and reads up to its end at that moment. If a file is written to or
replaced meanwhile, Spark may silently read rows of two versions. Source: spark 5.4.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow.fs

from bookies.encoding.documents import parse_json
from bookies.errors import InvalidArgument
from bookies.spark.write import tier

Stamp = tuple[str, int, int | None]  # URI or path, bytes, time of modification in ns if the file system has it


def stamps_of(files: Sequence[tuple[str, int]]) -> list[Stamp]:
    """Return the current stamps of files. Raises `InvalidArgument` if one has changed.

    `files`: with the bytes that they had when they were listed.
    """
    stamps = [_stamp(path) for path, _ in files]
    for (path, size), stamp in zip(files, stamps, strict=True):
        if stamp[1] != size:
            raise _changed((path, size, None), stamp)
    return stamps


def packed(stamps: Sequence[Stamp]) -> str:
    """Return the value of option `unchangedFiles`."""
    return json.dumps(stamps, separators=(",", ":"))


def parsed(text: str) -> tuple[Stamp, ...]:
    """Parse option `unchangedFiles`. Raises `InvalidArgument`."""
    try:
        stamps = parse_json(text)
        return tuple((str(path), int(size), None if at is None else int(at)) for path, size, at in stamps)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"option unchangedFiles={text[:80]!r}: expected a JSON list of [path, bytes, time of last change in ns]"
        ) from error


def check(stamps: Sequence[Stamp]) -> None:
    """Compare the files with their stamps. Raises `InvalidArgument`, which names the first file that has changed."""
    for stamp in stamps:
        if (now := _stamp(stamp[0])) != stamp:
            raise _changed(stamp, now)


def _stamp(path: str) -> Stamp:
    """Return the current stamp of a file; -1 bytes if it does not exist."""
    system, inside = tier.system_of(path)
    info = system.get_file_info(inside)
    if info.type is not pyarrow.fs.FileType.File:
        return path, -1, None
    return path, info.size, info.mtime_ns


def _changed(before: Stamp, now: Stamp) -> InvalidArgument:
    if now[1] < 0:
        change = "was removed"
    elif now[1] != before[1]:
        change = f"has {now[1]:,} bytes, no longer {before[1]:,}"
    else:
        change = "was written again"
    return InvalidArgument(
        f"file {before[0]} {change} since the import began, so nothing was imported: repeat the command when its files "
        "are no longer written to, or name only files that are complete"
    )
