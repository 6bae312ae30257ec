"""Replicated logs made of ledgers: writer, reader, cursors, transactions."""

from __future__ import annotations

from bookies.client.log.base.log_reader import LogReader
from bookies.client.log.log import Log
from bookies.client.log.log_writer import LogWriter

__all__ = ["Log", "LogReader", "LogWriter"]
