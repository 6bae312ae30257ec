"""The embedded metadata store: a file that the processes of one host share, without a server.

`EmbeddedDriver` is one session with the database `metadata.db` in a directory. Every call of SQLite runs on a worker,
never on the event loop. The driver polls for changes by other processes, which costs a few microseconds and happens
only while there are watches; its own changes are noticed at once. Decision 0002 explains the choice of SQLite.
"""

from __future__ import annotations

import asyncio
import os.path
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from bookies.errors import MetadataError, NoCluster
from bookies.metadata.embedded.sqlite import BUSY_TIMEOUT_S, SqliteStore, is_busy
from bookies.metadata.shared.nodes import Change
from bookies.metadata.shared.store_driver import StoreDriver, instance_id_of
from bookies.runtime.ports import Runtime, Worker

T = TypeVar("T")

FILE_NAME = "metadata.db"
POLL_INTERVAL_S = 0.15
_RETRY_INTERVAL_S = 0.05


class EmbeddedDriver(StoreDriver):
    """One session with the embedded store in `directory`. `open` requires the directory and, unless `may_create`, the
    store.
    """

    poll_interval_s = POLL_INTERVAL_S
    has_heartbeat = True

    def __init__(self, directory: str, runtime: Runtime, *, lease_ms: int = 10_000, may_create: bool = True) -> None:
        self.database = SqliteStore(os.path.join(directory, FILE_NAME), runtime.clock.wall_ms)
        super().__init__(f"file:{directory}", self.database, lease_ms)
        self._directory = directory
        self._may_create = may_create
        self._runtime = runtime
        self._worker: Worker | None = None

    async def open(self) -> None:
        self._worker = worker = self._runtime.workers.start("metadata")
        try:
            if not await worker.run(self._runtime.disk.is_directory, self._directory):
                next_step = "`bk up` creates a cluster; for a store of your own, create the directory"
                raise NoCluster(f"there is no metadata store at {self._directory}: {next_step}")
            if not self._may_create and not await worker.run(self._runtime.disk.exists, self.database.path):
                raise NoCluster(
                    f"there is no cluster in {self._directory}, which has no {FILE_NAME}: name the cluster's metadata "
                    "directory (with `bk up`: bk-data/metadata), or create a cluster with `bk up` or by starting its "
                    "first bookie"
                )
            await self._open_database()
        except BaseException:
            await self._close_database()
            raise
        await super().open()

    async def _open_database(self) -> None:
        """Open the database. Retries if other processes are creating it: SQLite does not always wait for them."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + BUSY_TIMEOUT_S
        while True:
            try:
                await self._call("open", self.database.open)
                return
            except MetadataError as error:
                if not is_busy(error) or loop.time() >= deadline:
                    raise
            await asyncio.sleep(_RETRY_INTERVAL_S)

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            await self._close_database()

    async def _close_database(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            try:
                await worker.run(self.database.guard, self.database.close)
            finally:
                worker.close()

    async def _call(self, operation: str, function: Callable[..., T], *arguments: object) -> T:
        assert self._worker is not None
        result: T = await self._worker.run(self.database.guard, function, *arguments)
        is_end = function == self.database.end_session
        if is_end or (
            function == self.database.commit and self._watches.may_concern(cast("Sequence[Change]", arguments[1]))
        ):
            self._has_news.set()
        return result

    def _wall_ms(self) -> int:
        return self._runtime.clock.wall_ms()

    def _new_instance_id(self) -> str:
        return instance_id_of(self._runtime.random.getrandbits(128))
