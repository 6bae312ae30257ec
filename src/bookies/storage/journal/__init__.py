"""The journal: group commit, preallocated files, log marks."""

from __future__ import annotations

from bookies.storage.journal.journal import Journal
from bookies.storage.journal.log_mark_format import LogMark

__all__ = ["Journal", "LogMark"]
