"""`Ownership`: the versions that a writer read when it became the writer, and the changes that they allow.

Each change is a transaction that names the versions. A process that became the writer later has changed one of them, so
the transaction of an earlier one is refused: it gets `LogFenced`. Source: distributedlog 2.6, 2.7, 4.1, 4.10.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from bookies.client.base.metadata_loop import Failures, back_off
from bookies.distributedlog.formats.log_names import parse_number
from bookies.distributedlog.formats.segment import Segment
from bookies.distributedlog.store.log_store import LogStore
from bookies.errors import LogFenced, MetadataCorrupt, MetadataError
from bookies.metadata.zookeeper.zookeeper_port import (
    Acl,
    Check,
    Create,
    Delete,
    NodeMissing,
    Operation,
    Refusal,
    SetData,
)
from bookies.runtime.ports import Runtime

NO_TXID = -999


class Ownership:
    """One writer's right to change the list. `highest`: the greatest segment number ever assigned. `max_txid`: the
    greatest transaction id of completed segments. `reserved`: a ledger that an earlier writer allocated and left."""

    def __init__(self, runtime: Runtime, store: LogStore) -> None:
        self._runtime = runtime
        self._store = store
        self.highest = 0
        self.max_txid = NO_TXID
        self.reserved: int | None = None
        self._versions = {"segments": 0, "max_txid": 0, "allocation": 0}

    async def load(self) -> None:
        """Read the versions. They must be read before the list. Raises `LogNotFound`."""
        paths, tree = self._store.paths, self._store.tree
        try:
            segments, segments_stat = await tree.get(paths.segments, sync=True)
            max_txid, max_txid_stat = await tree.get(paths.max_txid)
            allocation, allocation_stat = await tree.get(paths.allocation)
        except NodeMissing:
            raise self._store.missing() from None
        self._versions = {
            "segments": segments_stat.version,
            "max_txid": max_txid_stat.version,
            "allocation": allocation_stat.version,
        }
        self.highest = parse_number(segments, paths.segments)
        try:
            self.max_txid = parse_number(max_txid, paths.max_txid)
        except MetadataCorrupt:
            self.max_txid = NO_TXID  # As Apache: every transaction id is allowed.
        self.reserved = parse_number(allocation, paths.allocation) if allocation else None

    async def reserve(self, ledger_id: int) -> int | None:
        """Reserve a new ledger for the next segment; return the one that was reserved before, which is garbage now.

        Raises `LogFenced`.
        """
        data = b"%d" % ledger_id
        operation = SetData(self._store.paths.allocation, data, self._versions["allocation"])
        await self._commit([operation], "allocation", self._store.paths.allocation, data)
        self._versions["allocation"] += 1
        garbage, self.reserved = self.reserved, ledger_id
        return garbage

    async def start(self, segment: Segment) -> None:
        """Add a segment in progress, on the reserved ledger. Raises `LogFenced`."""
        assert self.reserved == segment.ledger_id
        paths, versions = self._store.paths, self._versions
        path, data = paths.segment(segment.name), segment.pack()
        operations: list[Operation] = [
            SetData(paths.allocation, b"", versions["allocation"]),
            Create(path, data, Acl.OPEN),
            SetData(paths.segments, b"%d" % segment.lssn, versions["segments"]),
        ]
        await self._commit(operations, "segments", path, data)
        versions["allocation"] += 1
        versions["segments"] += 1
        self.reserved = None
        self.highest = segment.lssn

    async def complete(self, segment: Segment, completed: Segment) -> None:
        """Replace a segment in progress by the completed one. Raises `LogFenced`."""
        assert completed.last_txid is not None
        paths, versions = self._store.paths, self._versions
        path, data = paths.segment(completed.name), completed.pack()
        highest, max_txid = max(self.highest, segment.lssn), max(self.max_txid, completed.last_txid)
        operations: list[Operation] = [
            Create(path, data, Acl.OPEN),
            Delete(paths.segment(segment.name)),
            SetData(paths.segments, b"%d" % highest, versions["segments"]),
            SetData(paths.max_txid, b"%d" % max_txid, versions["max_txid"]),
        ]
        await self._commit(operations, "segments", path, data)
        versions["segments"] += 1
        versions["max_txid"] += 1
        self.highest, self.max_txid = highest, max_txid

    async def append(self, segments: Sequence[Segment], changes: Sequence[Operation]) -> None:
        """Add completed segments, together with other changes of the log's znodes. Raises `LogFenced`."""
        paths, versions, last = self._store.paths, self._versions, segments[-1]
        assert last.last_txid is not None
        path, data = paths.segment(last.name), last.pack()
        max_txid = max(self.max_txid, last.last_txid)
        operations: list[Operation] = [
            *changes,
            *(Create(paths.segment(segment.name), segment.pack(), Acl.OPEN) for segment in segments),
            SetData(paths.segments, b"%d" % last.lssn, versions["segments"]),
            SetData(paths.max_txid, b"%d" % max_txid, versions["max_txid"]),
        ]
        await self._commit(operations, "segments", path, data)

    async def touch(self) -> None:
        """Change the version of the list: changes of other processes in flight are refused. Raises `LogFenced`."""
        path, data = self._store.paths.segments, b"%d" % self.highest
        await self._commit([SetData(path, data, self._versions["segments"])], "segments", path, data)

    async def remove(self, segment: Segment) -> None:
        """Delete the znode of an empty segment in progress, whose ledger was deleted before. Raises `LogFenced`.

        Its number, and so its path, is used again: without the check a process that became the writer later would lose
        its own segment.
        """
        paths, version = self._store.paths, self._versions["segments"]
        path = paths.segment(segment.name)
        await self._commit([Check(paths.segments, version), Delete(path)], "segments", path, None)

    async def _commit(self, operations: Sequence[Operation], token: str, path: str, data: bytes | None) -> None:
        """Carry out a transaction once, also if its answer is lost.

        `token`: whose version it changes or checks; `path`, `data`: what only this transaction writes; None: deletes.
        """
        failures = Failures()
        while True:
            failures.begin()
            try:
                await self._store.tree.multi(operations)
                return
            except Refusal as error:
                if (failures.count or data is None) and await self._is_done(token, path, data):
                    return
                raise LogFenced(f"another process leads log {self._store.name} now: {error}") from None
            except MetadataError as error:
                failures.add(error)
            await back_off(self._runtime, failures.count)

    async def _is_done(self, token: str, path: str, data: bytes | None) -> bool:
        """Report whether an earlier attempt was carried out, or what it deletes is gone, and nothing changed since."""
        counted = {"segments": self._store.paths.segments, "allocation": self._store.paths.allocation}[token]
        written = None
        try:
            with contextlib.suppress(NodeMissing):
                written, _ = await self._store.tree.get(path, sync=True)
            _, stat = await self._store.tree.get(counted)
        except NodeMissing:
            return False
        return written == data and stat.version == self._versions[token] + (data is not None)
