"""Files that a write was made of: its commit makes sure that they are still what they were when it began.

Spark opens a file once for each of its splits, and reads as far as the file goes by then. So of a file that is written
to or replaced meanwhile it may take rows of two versions, without a word. Source: spark 5.4.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow.fs

from bookies.errors import InvalidArgument
from bookies.spark.write import tier

Stamp = tuple[str, int, int | None]  # URI or path, bytes, when it was modified in nanoseconds if the file system knows


def stamps_of(files: Sequence[tuple[str, int]]) -> list[Stamp]:
    """How files are now that had so many bytes when they were listed. Raises `InvalidArgument` if one has changed."""
    found = [_stamp(path) for path, _ in files]
    for (path, size), stamp in zip(files, found, strict=True):
        if stamp[1] != size:
            raise _changed((path, size, None), stamp)
    return found


def packed(stamps: Sequence[Stamp]) -> str:
    """As the option `unchangedFiles`."""
    return json.dumps(stamps, separators=(",", ":"))


def parsed(said: str) -> list[Stamp]:
    """The option `unchangedFiles`. Raises `InvalidArgument`."""
    try:
        found = [(str(path), int(size), None if at is None else int(at)) for path, size, at in json.loads(said)]
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"option unchangedFiles={said[:80]!r}: expected a JSON list of [path, bytes, time of last change in ns]"
        ) from error
    return found


def check(stamps: Sequence[Stamp]) -> None:
    """Raises `InvalidArgument`, which names the first file that is not as it was."""
    for stamp in stamps:
        if (now := _stamp(stamp[0])) != stamp:
            raise _changed(stamp, now)


def _stamp(path: str) -> Stamp:
    """-1 bytes: there is no such file."""
    system, inside = tier.system_of(path)
    info = system.get_file_info(inside)
    if info.type is not pyarrow.fs.FileType.File:
        return path, -1, None
    return path, info.size, info.mtime_ns


def _changed(before: Stamp, now: Stamp) -> InvalidArgument:
    if now[1] < 0:
        what = "is gone"
    elif now[1] != before[1]:
        what = f"has {now[1]:,} bytes, no longer {before[1]:,}"
    else:
        what = "was written again"
    return InvalidArgument(
        f"file {before[0]} {what} since the import began, so nothing was imported: repeat the command when nobody "
        "writes to its files, or name only files that are complete"
    )
