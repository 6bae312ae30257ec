"""A client of the cluster inside a driver or a task, on this process's event loop."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from bookies.spark import runtime

if TYPE_CHECKING:
    from bookies.client.client import Client


@contextlib.asynccontextmanager
async def connected(uri: str) -> AsyncGenerator[Client, None]:
    """A client for as long as the block. Raises `ConfigError`, `MetadataError`."""
    from bookies.client.client import Client
    from bookies.config import ClientConfig
    from bookies.metadata.uri import connect as connect_metadata

    worker = runtime.worker()
    async with Client(worker.runtime, connect_metadata(uri, worker.runtime), ClientConfig()) as client:
        yield client
