"""Decisions without IO: the list of segments, the search by transaction id, the writer's buffer."""

from __future__ import annotations

from bookies.distributedlog.model.buffer import RecordBuffer
from bookies.distributedlog.model.segment_list import LastRecord, Segments, ordered

__all__ = ["LastRecord", "RecordBuffer", "Segments", "ordered"]
