"""Files and directories by path or URI, through Arrow's file systems."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa
import pyarrow.fs

from bookies.errors import InvalidArgument


def absolute(uri: str) -> str:
    """Return a directory as a URI or an absolute path. Raises `InvalidArgument`."""
    uri = uri.rstrip("/") or "/"
    if "://" not in uri:
        uri = os.path.abspath(uri.removeprefix("file:"))  # `file:/path`, as Spark spells it
    try:
        pa.fs.FileSystem.from_uri(uri)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InvalidArgument(f"{uri!r} is not a directory that Arrow can use: {error}") from error
    return uri


def system_of(uri: str) -> tuple[Any, str]:
    """Return the file system, and the path in it."""
    system, path = pa.fs.FileSystem.from_uri(uri)
    return system, path
