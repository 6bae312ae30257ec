"""Logs of Apache's DistributedLog, which Java's DistributedLog and this package read and write alternately.

`open_namespace(uri)` opens a namespace, `Namespace.log(name)` is a log; `blocking` has the same without asyncio.
"""

from __future__ import annotations

from bookies.distributedlog import blocking
from bookies.distributedlog.dlog import Dlog
from bookies.distributedlog.dlog_append import DlogAppend
from bookies.distributedlog.dlog_reader import DlogReader, Record, RecordBatches, Records
from bookies.distributedlog.dlog_writer import DlogWriter
from bookies.distributedlog.formats.dlsn import BEFORE_FIRST, FIRST, Dlsn, parse_dlsn
from bookies.distributedlog.formats.segment import Segment
from bookies.distributedlog.namespace import Namespace, bind, open_namespace

__all__ = [
    "BEFORE_FIRST",
    "FIRST",
    "Dlog",
    "DlogAppend",
    "DlogReader",
    "DlogWriter",
    "Dlsn",
    "Namespace",
    "Record",
    "RecordBatches",
    "Records",
    "Segment",
    "bind",
    "blocking",
    "open_namespace",
    "parse_dlsn",
]
