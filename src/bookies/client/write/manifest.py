"""One process's copy of a log's list of ledgers, and the loop that changes the list by compare-and-swap.

It works as `metadata_loop.py` does for a ledger's record: a change is a function from the list that was read to the
list to write, or None if no change is left to make. The loop only writes what it derived from what it read at that
version. After a conflict or a lost reply it reads again and calls the function again. Only the content of the list
matters, not who changed it.

Source: client-protocol 5.2, 5.3; the changes are in `protocol/log/log_model.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from bookies.client.base.metadata_loop import FAILURES_MAX, PROMPT_CONFLICTS, back_off
from bookies.client.base.segments import LOGS, LogStore
from bookies.errors import LogNotFound, MetadataError, RecordNotFound, VersionConflict
from bookies.metadata.interface import MetadataDriver, Watch
from bookies.metadata.interface.driver import RecordWrite, Step
from bookies.protocol.log import Manifest
from bookies.protocol.log.log_model import check_log_name
from bookies.protocol.log.log_segments import Stored, stored
from bookies.runtime.ports import Runtime


class ManifestLoop:
    """One log's list. Changes through one loop are serialised. Call `refresh` first."""

    current: Manifest

    def __init__(self, runtime: Runtime, driver: MetadataDriver, name: str) -> None:
        self.name = check_log_name(name)
        self.record = LOGS + name
        self.version = 0
        self._store = LogStore(driver, name)
        self._runtime = runtime
        self._driver = driver
        self._turn = asyncio.Lock()

    async def refresh(self) -> Manifest:
        """Read the list.

        Raises `LogNotFound`, also if the log was deleted and recreated under that name, and `MetadataError`.
        """
        try:
            manifest, version = await self._store.read()
        except RecordNotFound:
            raise LogNotFound(f"there is no log {self.name}: create it first") from None
        if version > self.version:
            if self.version and manifest.token != self.current.token:
                raise LogNotFound(f"log {self.name} was deleted, and there is another one of that name")
            self.current, self.version = manifest, version
        return self.current

    async def update(
        self,
        change: Callable[[Manifest], Manifest | None],
        guard: Callable[[Manifest], Awaitable[Sequence[Step]]] | None = None,
    ) -> Manifest:
        """Change the list until the function returns None. Safe to cancel: no partial change.

        `guard`: called before each swap; returns what else must hold at the moment of the swap, and may raise.

        Raises what the function raises, `LogNotFound`, `InvalidArgument` (the list would be too long for the store),
        and `MetadataError` if the store stays unusable; then the change may or may not have been made.
        """
        async with self._turn:
            conflicts = failures = 0
            while True:
                basis = self.current, self.version  # A `refresh` may replace both while the swap waits.
                if (changed := change(basis[0])) is None:
                    break
                layout = stored(self.name, changed)
                try:
                    version = await self._swap(layout, basis, guard)
                    if version > self.version:
                        self.current, self.version = layout.manifest, version
                    break
                except RecordNotFound:
                    if not layout.new:
                        raise LogNotFound(f"log {self.name} was deleted") from None
                    conflicts += 1  # The log is missing, or one of its new segments: the next read shows which.
                except VersionConflict:
                    conflicts += 1
                    failures = 0
                except MetadataError as error:
                    failures = _counted(failures, error)
                while True:
                    await self._pause(max(0, conflicts - PROMPT_CONFLICTS) + failures)
                    try:
                        await self.refresh()
                        break
                    except MetadataError as error:
                        failures = _counted(failures, error)
            return self.current

    async def _swap(
        self,
        layout: Stored,
        basis: tuple[Manifest, int],
        guard: Callable[[Manifest], Awaitable[Sequence[Step]]] | None,
    ) -> int:
        """Store a list if the stored one is still its basis, a list and its version; return the new version."""
        manifest, basis_version = basis
        if guard is None and not layout.new and not layout.dropped:
            return await self._driver.write_record(self.record, layout.head, basis_version)
        checks = [] if guard is None else list(await guard(manifest))
        checks += await self._store.prepare(layout)
        version = await self._driver.transact([RecordWrite(self.record, layout.head, basis_version), *checks])
        self._store.swapped(layout)
        with contextlib.suppress(MetadataError):  # Otherwise the next sweep deletes them.
            await self._store.delete(layout.dropped, version)
        return version

    async def sweep(self) -> None:
        """Delete segments that the list does not name. Raises `MetadataError`."""
        await self._store.sweep(self.current, self.version)

    async def _pause(self, count: int) -> None:
        if count > 0:
            await back_off(self._runtime, count)

    def watch(self, callback: Callable[[], None]) -> Watch:
        """Call back when the stored list differs from this copy, possibly with a delay."""
        return self._driver.watch_record(self.record, self.version, callback)


def _counted(failures: int, error: MetadataError) -> int:
    """Return the number of store failures plus one. Raises the error if the store has failed too often."""
    if not error.retriable or failures + 1 >= FAILURES_MAX:
        raise error
    return failures + 1
