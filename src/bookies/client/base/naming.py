"""Errors of requests to a log that name it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from bookies.errors import CursorMoved, InvalidArgument, LogTruncated


@contextlib.contextmanager
def named(log: str) -> Iterator[None]:
    """Let refusals of positions, cursors and entries name the log, unless they do."""
    try:
        yield
    except (CursorMoved, InvalidArgument, LogTruncated) as error:
        text = f"log {log}"
        if text not in error.message:
            error.args = (f"{text}: {error.message}",)
        raise
