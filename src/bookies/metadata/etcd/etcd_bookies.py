"""Bookies in etcd: their registrations, which live as long as a lease, and who is there. Source: metadata 6 and 10."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from bookies.errors import MetadataCorrupt, MetadataError, SessionExpired
from bookies.metadata.etcd.etcd_layout import bookies_among
from bookies.metadata.etcd.etcd_port import (
    Delete,
    KeyValue,
    LeaseMissing,
    Operation,
    OutcomeUnknown,
    Put,
    WrittenAt,
)
from bookies.metadata.etcd.etcd_session import Session
from bookies.metadata.etcd.etcd_values import Values
from bookies.metadata.formats.serde import pack_bookie_info, parse_bookie_info
from bookies.metadata.interface.driver import BookieSet
from bookies.model import BookieId, BookieInfo, BookieMode
from bookies.runtime.tasks import Tasks

STALE_AFTER_S = 1.0  # without an answer what a bookie published when it was last read has to do
PATIENCE = 2  # lives of a lease that a predecessor's registration may outlive it, as Apache's
_WRITABLE, _READ_ONLY = BookieMode.WRITABLE, BookieMode.READ_ONLY


class Bookies:
    """See the module."""

    def __init__(self, values: Values, session: Session) -> None:
        self._values = values
        self._etcd = values.etcd
        self._session = session
        self._infos: dict[BookieId, BookieInfo] = {}  # as last read
        self._sets: dict[str, tuple[BookieSet, list[tuple[str, int]]]] = {}  # prefix -> as last seen, with versions

    # -- registration --------------------------------------------------------------------------------------------
    async def register(self, tasks: Tasks, bookie: BookieId, mode: BookieMode, info: BookieInfo) -> None:
        """See `MetadataDriver.register`. Raises `SessionExpired` when the lease goes meanwhile."""
        data, loop = pack_registration(bookie, info), asyncio.get_running_loop()
        lease = await self._session.begin(tasks)
        deadline: float | None = None
        unknown: OutcomeUnknown | None = None
        while True:
            holder: KeyValue | None = None
            try:
                is_done, holder = await self._try_register(lease, bookie, mode, data)
            except OutcomeUnknown as error:
                is_done, unknown = False, error
            except LeaseMissing:
                self._session.lose(lease)
                is_done = False
            if self._session.lease != lease:
                raise SessionExpired("the session with etcd was lost during the registration", bookie=bookie)
            if is_done:
                return
            if deadline is None:
                deadline = loop.time() + PATIENCE * self._session.ttl_s
            if loop.time() >= deadline:
                raise unknown or MetadataError("another process keeps this bookie registered", bookie=bookie)
            if holder is not None:
                await self._wait_changed(holder, deadline)

    async def _try_register(
        self, lease: int, bookie: BookieId, mode: BookieMode, data: bytes
    ) -> tuple[bool, KeyValue | None]:
        """Whether it is done; if not, another process's registration that is in the way, or None: try again."""
        key, other = self._keys(bookie, mode)
        found, found_other = await self._values.read(key, other)
        for each in (found, found_other):
            if each is not None and each.lease != lease:
                return False, each
        changes: list[Operation] = [Delete(other)] if found_other is not None else []
        if found is None or found.value != data:
            changes.append(Put(key, data, lease))
        if not changes:
            return True, None
        conditions = [_as_seen(key, found), _as_seen(other, found_other)]
        return (await self._etcd.transact(conditions, changes)).is_met, None

    def _keys(self, bookie: BookieId, mode: BookieMode) -> tuple[str, str]:
        """In this mode, and in the other one."""
        other = _READ_ONLY if mode is _WRITABLE else _WRITABLE
        return self._values.keys.registration(bookie, mode), self._values.keys.registration(bookie, other)

    async def _wait_changed(self, seen: KeyValue, deadline: float) -> None:
        """Wait until a key is deleted or written, nobody can tell, or the deadline has passed."""
        changed = asyncio.Event()
        told = changed.set  # the same object each time, by which it is known
        self._etcd.watch(seen.key, None, seen.mod_revision + 1, told)
        try:
            async with asyncio.timeout_at(deadline):
                await changed.wait()
        except TimeoutError:
            pass  # The caller looks.
        finally:
            self._etcd.unwatch(told)

    async def unregister(self, bookie: BookieId) -> None:
        """What is ours of it."""
        lease, keys = self._session.lease, self._keys(bookie, _WRITABLE)
        while lease is not None:
            own = [each for each in await self._values.read(*keys) if each is not None and each.lease == lease]
            if not own:
                return
            try:
                conditions = [WrittenAt(each.key, each.mod_revision) for each in own]
                await self._etcd.transact(conditions, [Delete(each.key) for each in own])
            except OutcomeUnknown:
                continue  # Looking again tells.

    # -- discovery -----------------------------------------------------------------------------------------------
    async def present(self, mode: BookieMode, watch: Callable[[], None] | None = None) -> BookieSet:
        prefix = self._values.keys.registrations(mode)
        items, revision = await self._values.below(prefix, watch, keys_only=False)
        for each in items:
            for bookie in bookies_among(prefix, [each.key]):
                self._learn(bookie, each.value)
        return self._seen(prefix, items, revision)

    def _learn(self, bookie: BookieId, data: bytes) -> None:
        """Where it is, for the time when nobody can be asked; a failure is one when somebody wants to know."""
        try:
            self._infos[bookie] = parse_bookie_info(bookie, data)
        except MetadataCorrupt:
            self._infos.pop(bookie, None)

    async def known(self) -> BookieSet:
        """With a cookie."""
        prefix = self._values.keys.cookies
        return self._seen(prefix, *await self._values.below(prefix))

    def _seen(self, prefix: str, items: Sequence[KeyValue], revision: int) -> BookieSet:
        """The version of a set: the revision at which it was first seen to be so; an empty one begins with 0.

        Deletions leave no trace in etcd, so the keys there tell only that the set is another one, not since when.
        """
        content = [(each.key, each.mod_revision) for each in items]
        latest, known = self._sets.get(prefix, (BookieSet((), 0), []))
        if content != known and revision > latest.version:
            latest = BookieSet(bookies_among(prefix, [each.key for each in items]), revision)
            self._sets[prefix] = (latest, content)
        return latest

    async def info(self, bookie: BookieId) -> BookieInfo | None:
        """As it is now; while etcd does not answer, as it was last: a writer must not lose its bookies with it."""
        known = self._infos.get(bookie)
        if known is None:
            return await self._read_info(bookie)
        try:
            async with asyncio.timeout(STALE_AFTER_S):
                return await self._read_info(bookie)
        except (TimeoutError, MetadataError):
            return known

    async def _read_info(self, bookie: BookieId) -> BookieInfo | None:
        for found in await self._values.read(*self._keys(bookie, _WRITABLE)):
            if found is not None:
                self._infos[bookie] = parse_bookie_info(bookie, found.value)
                return self._infos[bookie]
        self._infos.pop(bookie, None)
        return None


def pack_registration(bookie: BookieId, info: BookieInfo) -> bytes:
    """Empty, as Apache's, where the bookie's id says as much; otherwise as in ZooKeeper. Apache reads only the key."""
    implied = parse_bookie_info(bookie, b"").endpoints
    known = [(each.host, each.port, each.protocol, each.auth, each.extensions) for each in info.endpoints]
    if not info.properties and known == [(e.host, e.port, e.protocol, e.auth, e.extensions) for e in implied]:
        return b""
    return pack_bookie_info(info)


def _as_seen(key: str, found: KeyValue | None) -> WrittenAt:
    return WrittenAt(key, 0 if found is None else found.mod_revision)
