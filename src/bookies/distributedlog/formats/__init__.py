"""Formats: addresses, entries, segments, the binding, names and paths. Pure. Source: distributedlog 1.4, 2, 3."""

from __future__ import annotations

from bookies.distributedlog.formats.binding import Binding, parse_binding
from bookies.distributedlog.formats.dlsn import Dlsn, parse_dlsn, unpack_dlsn
from bookies.distributedlog.formats.entries import SlotRecord, pack_entry, parse_entry
from bookies.distributedlog.formats.log_names import LogPaths, check_name, parse_namespace_uri
from bookies.distributedlog.formats.segment import Segment, parse_segment

__all__ = [
    "Binding",
    "Dlsn",
    "LogPaths",
    "Segment",
    "SlotRecord",
    "check_name",
    "pack_entry",
    "parse_binding",
    "parse_dlsn",
    "parse_entry",
    "parse_namespace_uri",
    "parse_segment",
    "unpack_dlsn",
]
