"""Metadata: the port to a namespace's znodes, its implementation on named records, and what is in the znodes."""

from __future__ import annotations

from bookies.distributedlog.store.lock import LogLock
from bookies.distributedlog.store.log_store import LogStore
from bookies.distributedlog.store.ownership import Ownership
from bookies.distributedlog.store.record_tree import RecordTree
from bookies.distributedlog.store.tree import Tree

__all__ = ["LogLock", "LogStore", "Ownership", "RecordTree", "Tree"]
