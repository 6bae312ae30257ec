"""Records of a log: iterations over them, and the open record set of a writer."""

from __future__ import annotations

from bookies.client.log.records.log_records import LogEntries, LogRecords, LogSets
from bookies.client.log.records.open_sets import OpenSets, SetAppend

__all__ = ["LogEntries", "LogRecords", "LogSets", "OpenSets", "SetAppend"]
