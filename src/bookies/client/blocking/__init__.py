"""The client without asyncio: the same methods, without `await`.

Callbacks run on the client's own thread: they must be quick, and must not call the client.
"""

from __future__ import annotations

from bookies.client.blocking.blocking import Client, connect
from bookies.client.blocking.blocking_administration import Administration
from bookies.client.blocking.blocking_ledger import LedgerReader, LedgerWriter
from bookies.client.blocking.blocking_log import Log

__all__ = ["Administration", "Client", "LedgerReader", "LedgerWriter", "Log", "connect"]
