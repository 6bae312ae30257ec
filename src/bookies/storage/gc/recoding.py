"""Re-encryption: which entry logs have entries in another form than the bookie stores now, and under which keys.

A log is *stale* if its header names other keys than the current one, or keys while entries are stored as they are, or
no key while entries are sealed. A compaction writes its live entries with the current key.

On the loop's thread; the collector's worker reads the headers.
"""

from __future__ import annotations

from collections.abc import Iterable

from bookies.errors import CorruptRecord, InvalidArgument
from bookies.runtime.ports import Disk, Worker
from bookies.storage.engine import StorageParts
from bookies.storage.entry_log import LogUsage
from bookies.storage.entry_log.log_usage import find_logs, keys_of
from bookies.storage.sealing.sealed_format import label_of

UNENCRYPTED = "none"
ALL = 101  # percent of live bytes below which a log is sealed: every active log


class Recoding:
    """The stale logs of a bookie."""

    def __init__(self, parts: StorageParts, worker: Worker) -> None:
        self._parts = parts
        self._worker = worker

    def check(self) -> None:
        """Raise InvalidArgument for a bookie without keys."""
        if self._parts.sealer is None:
            raise InvalidArgument("this bookie has no encryption keys: set encryption_keys_file and restart it")

    async def prepare(self) -> None:
        """Let no entry outside of sealed logs have a former key. Raises: DiskFull, OSError, SyncFailed."""
        sealer, checkpointer = self._parts.sealer, self._parts.checkpointer
        assert sealer is not None
        current = sealer.current
        await checkpointer.checkpoint()  # the write cache has no entry any more that was sealed before
        sealer.settle(current)
        await checkpointer.roll_log(ALL)

    async def stale(self, usages: Iterable[LogUsage]) -> list[LogUsage]:
        """Return the stale ones of these logs, the largest share of dead bytes first."""
        sealer = self._parts.sealer
        wanted = () if sealer is None or sealer.current is None else (sealer.current,)
        stale = []
        for usage in sorted(usages, key=lambda usage: usage.share):
            try:
                if await self._worker.run(keys_of, self._parts.runtime.disk, usage.path) != wanted:
                    stale.append(usage)
            except (CorruptRecord, OSError):
                continue  # the scrub reports its entries
        return stale

    async def describe(self) -> dict[str, object]:
        """Return the key in use, the keys known, and the bytes of entry logs by key. A log with several keys counts for
        the oldest, because it needs that one. Raises: OSError if a directory cannot be read.
        """
        parts = self._parts
        good = parts.health.healthy(parts.directories.ledgers)
        paths = await self._worker.run(find_logs, parts.runtime.disk, parts.logs, good)
        sizes = await self._worker.run(_sizes, parts.runtime.disk, list(paths.values()))
        sealer = parts.sealer
        current = None if sealer is None else sealer.current
        return {
            "key_in_use": UNENCRYPTED if current is None else label_of(current),
            "keys_known": ", ".join(map(label_of, sealer.key_ids)) if sealer else UNENCRYPTED,
            "bytes_under_key": sizes,
        }


def _sizes(disk: Disk, paths: Iterable[str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for path in paths:
        try:
            keys = keys_of(disk, path)
            label = label_of(keys[-1]) if keys else UNENCRYPTED
        except (CorruptRecord, OSError):
            label = "unknown: damaged header"
        file = disk.open(path, "r")
        sizes[label] = sizes.get(label, 0) + file.size()
        file.close()
    return sizes
