"""`LogStore`: one log's znodes. Create, list, truncate, delete, rename, subscriptions. Source: distributedlog 2, 4.9.

`Ownership`, in `ownership.py`, is what a writer adds to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from urllib.parse import quote

from bookies.distributedlog.formats.dlsn import BEFORE_FIRST, Dlsn, parse_dlsn
from bookies.distributedlog.formats.log_names import LAYOUT_VERSION, STREAM, LogPaths
from bookies.distributedlog.formats.segment import Segment, is_segment_name, parse_segment
from bookies.distributedlog.model.segment_list import Change, Segments, ordered
from bookies.distributedlog.store.tree import Tree
from bookies.errors import InvalidArgument, LogExists, LogInUse, LogNotFound, MetadataCorrupt, VersionConflict
from bookies.metadata.zookeeper.zookeeper_port import (
    Acl,
    Check,
    Create,
    Delete,
    NodeExists,
    NodeMissing,
    NotEmpty,
    Operation,
    SetData,
    WrongVersion,
)

LIST_ATTEMPTS_MAX = 8  # of a list that changes while it is read


class LogStore:
    """The znodes of the log `name` below the path `namespace`."""

    def __init__(self, tree: Tree, namespace: str, name: str) -> None:
        self.name = name
        self.tree = tree
        self.paths = LogPaths(namespace, name)
        self._namespace = namespace

    def missing(self) -> LogNotFound:
        """Return the error for a log that does not exist."""
        return LogNotFound(f"there is no log {self.name} in namespace {self._namespace}: create it first")

    async def exists(self) -> bool:
        """Report whether the log exists."""
        return await self.tree.exists(self.paths.segments, sync=True) is not None

    async def create(self, *, exist_ok: bool = True) -> None:
        """Create the znodes that are missing, at once. Raises `LogExists` unless `exist_ok`."""
        while True:
            contents = self.paths.contents()
            stats = await asyncio.gather(*(self.tree.exists(path, sync=True) for path, _ in contents))
            absent = [content for content, stat in zip(contents, stats, strict=True) if stat is None]
            if len(absent) < len(contents) - 1 and not exist_ok:
                raise LogExists(f"log {self.name} exists already")
            if not absent:
                if (await self.tree.get(self.paths.version))[0] != LAYOUT_VERSION:
                    raise MetadataCorrupt(f"log {self.name} has an unknown layout of its znodes")
                return
            operations = [Create(path, data, Acl.OPEN) for path, data in absent]
            ancestors = [Create(path, b"", Acl.OPEN) for path in await self._missing_ancestors()]
            try:
                await self.tree.multi([*ancestors, *operations])
            except (NodeExists, NodeMissing):
                continue  # Another process creates or deletes it at this moment.
            return

    async def _missing_ancestors(self) -> list[str]:
        parts = self.name.split("/")[:-1]
        paths = ["/".join([self._namespace, *parts[: count + 1]]) for count in range(len(parts))]
        return [path for path in paths if await self.tree.exists(path) is None]

    async def segments(self, watch: Callable[[], None] | None = None) -> Segments:
        """Return the list. The watch is called after its next change. Raises `LogNotFound`, `MetadataCorrupt`."""
        attempts = 0
        while True:
            attempts += 1
            try:
                names, _ = await self.tree.children(self.paths.segments, sync=True, watch=watch)
            except NodeMissing:
                raise self.missing() from None
            names = [name for name in names if is_segment_name(name)]
            data = await asyncio.gather(*(self._segment_or_none(name) for name in names))
            present = [segment for segment in data if segment is not None]
            is_whole = len(present) == len(names)
            try:
                listed = ordered(present)
                if is_whole or attempts >= LIST_ATTEMPTS_MAX:
                    return listed
            except MetadataCorrupt:
                if attempts >= LIST_ATTEMPTS_MAX:
                    raise
            if watch is not None:
                self.tree.unwatch(watch)

    async def _segment_or_none(self, name: str) -> Segment | None:
        try:
            data, _ = await self.tree.get(self.paths.segment(name))
        except NodeMissing:
            return None
        return parse_segment(name, data)

    async def replace(self, changes: Sequence[Change]) -> None:
        """Replace the data of segments, all at once. Raises `VersionConflict` if one was deleted meanwhile.

        The znodes are deleted and created again, because readers watch the list alone.
        """
        operations: list[Operation] = []
        for old, new in changes:
            operations += [
                Delete(self.paths.segment(old.name)),
                Create(self.paths.segment(new.name), new.pack(), Acl.OPEN),
            ]
        try:
            await self.tree.multi(operations)
        except (NodeMissing, NodeExists) as error:
            raise VersionConflict(f"the segments of log {self.name} have changed meanwhile: {error}") from None

    async def remove(self, segment: Segment) -> None:
        """Delete a segment's znode; a missing one counts as success. Its ledger is deleted before."""
        try:
            await self.tree.delete(self.paths.segment(segment.name))
        except NodeMissing:
            pass

    # -- the log as a whole --------------------------------------------------------------------------------------
    async def reserved_ledger(self) -> int | None:
        """Return the ledger that was allocated for the next segment and never used."""
        try:
            data, _ = await self.tree.get(self.paths.allocation)
        except NodeMissing:
            return None
        return int(data) if data.isdigit() else None

    async def delete_all(self) -> None:
        """Delete the log's znodes. Other logs below its name stay."""
        await self._delete_below(self.paths.root)
        try:
            await self.tree.delete(self.paths.parent)
        except (NodeMissing, NotEmpty):
            pass

    async def _delete_below(self, path: str) -> None:
        try:
            names, _ = await self.tree.children(path)
            for name in names:
                await self._delete_below(f"{path}/{name}")
            await self.tree.delete(path)
        except NodeMissing:
            pass

    async def rename(self, to: LogStore) -> None:
        """Move the znodes to another log's place, at once.

        Raises `LogExists`, `LogNotFound`, `LogInUse` (a writer or a reader holds a lock, or there are subscriptions).
        """
        if await to.tree.exists(to.paths.root, sync=True) is not None:
            raise LogExists(f"log {to.name} exists already")
        segments = await self.segments()
        old: list[Operation] = []
        new: list[Operation] = [Create(path, b"", Acl.OPEN) for path in await to._missing_ancestors()]
        if await to.tree.exists(to.paths.parent) is None:
            new.append(Create(to.paths.parent, b"", Acl.OPEN))
        for (source, _), (target, _) in list(zip(self.paths.contents(), to.paths.contents(), strict=True))[1:]:
            data, stat = await self.tree.get(source)
            new.append(Create(target, data, Acl.OPEN))
            old.append(Delete(source, stat.version))
        for segment in segments:
            new.append(Create(to.paths.segment(segment.name), segment.pack(), Acl.OPEN))
            old.append(Delete(self.paths.segment(segment.name)))
        try:
            await self.tree.multi([*new, *reversed(old)])
        except NotEmpty:
            raise LogInUse(f"log {self.name} has a writer, a locked reader or subscriptions: end them first") from None
        except (NodeMissing, NodeExists, WrongVersion) as error:
            raise VersionConflict(f"log {self.name} has changed meanwhile: {error}") from None
        try:
            await self.tree.delete(self.paths.parent)
        except (NodeMissing, NotEmpty):
            pass

    # -- subscriptions -------------------------------------------------------------------------------------------
    async def cursors(self) -> dict[str, Dlsn]:
        """Return the committed position of each subscriber. A text that is none counts as the beginning."""
        try:
            names, _ = await self.tree.children(self.paths.subscribers, sync=True)
        except NodeMissing:
            return {}
        return {name: position for name in names if (position := await self.cursor(name)) is not None}

    async def cursor(self, name: str) -> Dlsn | None:
        """Return the committed position of a subscriber; None: there is none."""
        try:
            data, _ = await self.tree.get(self.paths.subscriber(_checked(name)), sync=True)
        except NodeMissing:
            return None
        try:
            return parse_dlsn(data.decode("ascii", "replace"))
        except InvalidArgument:
            return BEFORE_FIRST

    async def move_cursor(self, name: str, position: Dlsn) -> None:
        """Write the position of a subscriber, which is created if it is missing. Raises `LogNotFound`."""
        path, data = self.paths.subscriber(_checked(name)), position.base64().encode()
        if not await self.exists():
            raise self.missing()
        while True:
            operations: list[Operation] = [SetData(path, data)]
            if await self.tree.exists(path) is None:
                operations = [Create(path, data, Acl.OPEN)]
                if await self.tree.exists(self.paths.subscribers) is None:
                    operations.insert(0, Create(self.paths.subscribers, b"", Acl.OPEN))
            try:
                await self.tree.multi([Check(self.paths.root), *operations])
            except (NodeExists, NodeMissing):
                if not await self.exists():
                    raise self.missing() from None
                continue
            return

    async def delete_cursor(self, name: str) -> None:
        """Delete a subscriber. A missing one counts as deleted."""
        await self._delete_below(self.paths.subscriber(_checked(name)))


def _checked(name: str) -> str:
    """Return the name of a subscriber. Raises `InvalidArgument`."""
    if not isinstance(name, str) or not name or name != quote(name, safe="") or name in (".", "..", STREAM):
        raise InvalidArgument(f"{name!r} is not the name of a cursor: use letters, digits, - . _ ~")
    return name
