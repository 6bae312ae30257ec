"""`RecordTree`: a namespace in the named records of a metadata store, for clusters without ZooKeeper.

A log is one record that holds its znodes, so a transaction is a compare-and-swap of that record. Znodes have the data
and the versions that they have in ZooKeeper. There are no ephemeral znodes: writers of such a namespace take no lock,
and fencing alone decides between them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote

from bookies.distributedlog.formats.log_names import STREAM
from bookies.errors import MetadataCorrupt, MetadataError, NotSupported, RecordExists, RecordNotFound, VersionConflict
from bookies.metadata.interface import MetadataDriver, Watch
from bookies.metadata.interface.driver import RecordWrite
from bookies.metadata.zookeeper.zookeeper_port import (
    ANY_VERSION,
    Acl,
    Check,
    Create,
    Delete,
    NodeExists,
    NodeMissing,
    NotEmpty,
    Operation,
    Outcome,
    SetData,
    Stat,
    WrongVersion,
)

PREFIX = "distributedlog/"
_FORMAT = "format"


class _Node(NamedTuple):
    data: bytes
    version: int


class _Document(NamedTuple):
    """A record. `nodes`: by path below the log's own."""

    nodes: dict[str, _Node]
    version: int


class RecordTree:
    """The `Tree` of one namespace, whose root is `/NAME`. The driver is open."""

    session_id: int | None = None

    def __init__(self, driver: MetadataDriver, name: str) -> None:
        self.root = f"/{name}"
        self._driver = driver
        self._prefix = f"{PREFIX}{_escaped(name)}/"
        self._watches: dict[Callable[[], None], list[Watch]] = {}

    async def close(self) -> None:
        """Cancel the watches."""
        for watch in list(self._watches):
            self.unwatch(watch)

    def on_session_lost(self, callback: Callable[[], None]) -> None:
        """There is no session to lose."""

    async def create(
        self, path: str, data: bytes, acl: Acl, *, is_ephemeral: bool = False, is_sequential: bool = False
    ) -> tuple[str, Stat]:
        if is_ephemeral or is_sequential:
            raise NotSupported(f"the metadata store {self._driver.uri} has no locks: use lock=False")
        await self.multi([Create(path, data, acl)])
        return path, _stat(0)

    async def get(self, path: str, *, sync: bool = False) -> tuple[bytes, Stat]:
        name, inner = self._place(path)
        node = (await self._load(name)).nodes.get(inner)
        if node is None:
            raise NodeMissing(path)
        return node.data, _stat(node.version)

    async def exists(self, path: str, *, sync: bool = False, watch: Callable[[], None] | None = None) -> Stat | None:
        if path == self.root:
            return _stat(0)
        name, inner = self._place(path)
        document = await self._load(name)
        self._watch(name, document, watch)
        node = document.nodes.get(inner)
        return None if node is None else _stat(node.version)

    async def children(
        self, path: str, *, sync: bool = False, watch: Callable[[], None] | None = None
    ) -> tuple[list[str], Stat]:
        if path == self.root:
            return await self._logs_below(""), _stat(0)
        name, inner = self._place(path)
        document = await self._load(name)
        self._watch(name, document, watch)
        if inner not in document.nodes:
            raise NodeMissing(path)
        names = _children(document.nodes, inner)
        if not inner:
            names += await self._logs_below(f"{name}/")
        return sorted(names), _stat(document.nodes[inner].version)

    async def delete(self, path: str, version: int = ANY_VERSION, *, session: int | None = None) -> None:
        await self.multi([Delete(path, version)])

    async def multi(self, operations: Sequence[Operation]) -> list[Outcome]:
        places = [self._place(operation.path) for operation in operations]
        names = list(dict.fromkeys(name for name, _ in places))
        while True:
            documents = dict(zip(names, await asyncio.gather(*map(self._load, names)), strict=True))
            outcomes = [
                _apply(documents[name].nodes, inner, operation, index)
                for index, ((name, inner), operation) in enumerate(zip(places, operations, strict=True))
            ]
            steps = [
                RecordWrite(self._record(name), _pack(document.nodes), document.version)
                for name, document in documents.items()
            ]
            try:
                version = await self._driver.transact(steps)
            except (VersionConflict, RecordExists, RecordNotFound):
                continue  # Another process changed a log between: apply the operations to what it wrote.
            for name, document in documents.items():
                if not document.nodes:
                    with contextlib.suppress(MetadataError):  # An empty record counts as none.
                        await self._driver.delete_record(self._record(name), version)
            return outcomes

    def unwatch(self, watch: Callable[[], None]) -> None:
        for subscription in self._watches.pop(watch, []):
            subscription.cancel()

    # -- records -------------------------------------------------------------------------------------------------
    def _place(self, path: str) -> tuple[str, str]:
        """Return the log, and the path of the znode below the log's own."""
        relative = path.removeprefix(f"{self.root}/")
        name, separator, rest = relative.partition(f"/{STREAM}")
        return name, f"{separator}{rest}"

    def _record(self, name: str) -> str:
        return self._prefix + "/".join(map(_escaped, name.split("/")))

    async def _load(self, name: str) -> _Document:
        record = self._record(name)
        try:
            data, version = await self._driver.read_record(record)
        except RecordNotFound:
            return _Document({}, 0)
        return _Document(_unpack(data, record), version)

    async def _logs_below(self, prefix: str) -> list[str]:
        """Return the first parts of the names that begin with a prefix."""
        known = await self._driver.record_names(self._prefix)
        names = ["/".join(map(_unescaped, record.removeprefix(self._prefix).split("/"))) for record in known]
        names = [name for name in names if name.startswith(prefix)]
        documents = await asyncio.gather(*map(self._load, names))
        return sorted(
            {
                name[len(prefix) :].partition("/")[0]
                for name, document in zip(names, documents, strict=True)
                if document.nodes
            }
        )

    def _watch(self, name: str, document: _Document, watch: Callable[[], None] | None) -> None:
        if watch is None:
            return

        def fire() -> None:
            self.unwatch(watch)
            watch()

        subscription = self._driver.watch_record(self._record(name), document.version, fire)
        self._watches.setdefault(watch, []).append(subscription)


def _apply(nodes: dict[str, _Node], path: str, operation: Operation, index: int) -> Outcome:
    node = nodes.get(path)
    if isinstance(operation, Create):
        if node is not None:
            raise NodeExists(operation.path, index)
        if path and path.rpartition("/")[0] not in nodes:
            raise NodeMissing(operation.path, index)
        nodes[path] = _Node(operation.data, 0)
        return operation.path
    if node is None:
        raise NodeMissing(operation.path, index)
    if operation.version not in (ANY_VERSION, node.version):
        raise WrongVersion(operation.path, index)
    if isinstance(operation, SetData):
        nodes[path] = _Node(operation.data, node.version + 1)
        return _stat(node.version + 1)
    if isinstance(operation, Delete):
        if _children(nodes, path):
            raise NotEmpty(operation.path, index)
        del nodes[path]
    else:
        assert isinstance(operation, Check)
    return None


def _children(nodes: dict[str, _Node], path: str) -> list[str]:
    return [child.rpartition("/")[2] for child in nodes if child and child.rpartition("/")[0] == path]


def _stat(version: int) -> Stat:
    return Stat(0, 0, 0, 0, 0, version, 0, 0, 0)


def _pack(nodes: dict[str, _Node]) -> bytes:
    values = {path: [node.data.decode("latin-1"), node.version] for path, node in sorted(nodes.items())}
    return json.dumps({_FORMAT: 1, "nodes": values}, separators=(",", ":")).encode()


def _unpack(data: bytes, record: str) -> dict[str, _Node]:
    try:
        document = json.loads(data)
        if document[_FORMAT] != 1:
            raise NotSupported(f"record {record} has format {document[_FORMAT]}; this version reads format 1 only")
        return {path: _Node(text.encode("latin-1"), version) for path, (text, version) in document["nodes"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetadataCorrupt(f"record {record} is not a log of DistributedLog: {error!r}") from None


def _escaped(part: str) -> str:
    """Return a part of a name in the characters of record names."""
    return quote(part, safe="").replace("_", "_5F").replace("~", "_7E").replace("%", "_")


def _unescaped(part: str) -> str:
    return unquote(part.replace("_", "%"))
