"""Directories and their health, free space, durable file operations."""

from __future__ import annotations

from bookies.storage.disks.directory_health import DirectoryHealth

__all__ = ["DirectoryHealth"]
