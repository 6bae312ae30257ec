"""The segments of a log's list in the metadata store: read and cached, created before a swap, deleted after it.

`protocol/log/log_segments.py` defines them and shows why no step here can lose a live segment. Source: spark 4.2.
"""

from __future__ import annotations

from collections.abc import Iterable

from bookies.errors import MetadataCorrupt, RecordExists, RecordNotFound, VersionConflict
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import RecordAt, RecordWrite
from bookies.protocol.log import Manifest
from bookies.protocol.log.log_model import Extent, parse_manifest
from bookies.protocol.log.log_segments import SEGMENTS, Stored, joined, parse_segment

LOGS = "logs/"  # prefix of the heads' names


class LogStore:
    """One log's list as it is stored: its head, and its segments. Each segment is read once."""

    def __init__(self, driver: MetadataDriver, log: str) -> None:
        self.record = LOGS + log
        self._log = log
        self._driver = driver
        self._extents: dict[str, tuple[Extent, ...]] = {}
        self._last: tuple[bytes, Manifest] | None = None  # the head read last, and the whole list

    async def read(self) -> tuple[Manifest, int]:
        """Return the whole list and the version of its head. Raises `RecordNotFound`, `MetadataCorrupt`."""
        missing = 0
        while True:
            data, version = await self._driver.read_record(self.record)
            if self._last is not None and data == self._last[0]:
                return self._last[1], version
            head = parse_manifest(self._log, data)
            lost = await self._load(head)
            if not lost:
                self._last = data, joined(head, self._extents)
                return self._last[1], version
            if missing == version:
                raise MetadataCorrupt(f"segment {lost} of log {self._log} is lost")
            missing = version  # The head may have changed since. If it has not, the segment is lost.

    async def _load(self, head: Manifest) -> str:
        """Read the segments that are not cached. Return the name of a missing one; empty: all are there."""
        names = [segment.name for segment in head.segments]
        self._extents = {name: self._extents[name] for name in names if name in self._extents}
        for name in names:
            if name in self._extents:
                continue
            try:
                content, _ = await self._driver.read_record(name)
            except RecordNotFound:
                return name
            if not content:
                return name  # It is being deleted.
            self._extents[name] = parse_segment(name, content)
        return ""

    async def prepare(self, stored: Stored) -> list[RecordAt]:
        """Create the new segments of a list; return what a swap of the head must check."""
        return [RecordAt(name, await self._make(name, content)) for name, (content, _) in stored.new.items()]

    async def _make(self, name: str, content: bytes) -> int:
        try:
            return await self._driver.create_record(name, content)
        except RecordExists:
            stored, version = await self._driver.read_record(name)
            return version if stored else await self._driver.write_record(name, content, version)

    def swapped(self, stored: Stored) -> None:
        """Cache the new segments of a list that was stored."""
        self._extents.update({name: extents for name, (_, extents) in stored.new.items()})

    async def delete(self, names: Iterable[str], head_version: int) -> None:
        """Delete segments that the head of this version does not name, as long as it is the head.

        Raises `MetadataError`. Conflicts are ignored: the next sweep tries again.
        """
        for name in names:
            try:
                content, version = await self._driver.read_record(name)
                if content:
                    version = await self._driver.transact(
                        [RecordAt(self.record, head_version), RecordWrite(name, b"", version)]
                    )
                await self._driver.delete_record(name, version)
            except (RecordNotFound, VersionConflict):
                continue

    async def sweep(self, manifest: Manifest, head_version: int) -> None:
        """Delete segments that this list does not name, left by processes that crashed."""
        listed = {segment.name for segment in manifest.segments}
        names = await self._driver.record_names(f"{SEGMENTS}{self._log}/")
        await self.delete([name for name in names if name not in listed], head_version)
