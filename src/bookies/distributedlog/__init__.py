"""Logs of Apache's DistributedLog, which Java's DistributedLog and this package read and write alternately."""

from __future__ import annotations
