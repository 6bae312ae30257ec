"""Bookies in etcd: registrations, which live as long as a lease, and discovery. Source: metadata 6 and 10."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from bookies.errors import MetadataCorrupt, MetadataError, RegisteredElsewhere, SessionExpired
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

STALE_AFTER_S = 1.0  # without an answer for this time, a bookie's information as last read is used
PATIENCE = 2  # lease times to wait for a predecessor's registration, as in Apache
_WRITABLE, _READ_ONLY = BookieMode.WRITABLE, BookieMode.READ_ONLY


class Bookies:
    """Registration and discovery of bookies."""

    def __init__(self, values: Values, session: Session) -> None:
        self._values = values
        self._etcd = values.etcd
        self._session = session
        self._infos: dict[BookieId, BookieInfo] = {}  # as last read
        self._sets: dict[str, tuple[BookieSet, list[tuple[str, int]]]] = {}  # prefix -> as last seen, with versions

    # -- registration --------------------------------------------------------------------------------------------
    async def register(self, tasks: Tasks, bookie: BookieId, mode: BookieMode, info: BookieInfo) -> None:
        """Register a bookie, see `MetadataDriver.register`. Raises `SessionExpired` if the lease ends meanwhile."""
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
                raise unknown or RegisteredElsewhere(
                    "another process keeps this bookie registered: stop that process", bookie=bookie
                )
            if holder is not None:
                await self._wait_changed(holder, deadline)

    async def _try_register(
        self, lease: int, bookie: BookieId, mode: BookieMode, data: bytes
    ) -> tuple[bool, KeyValue | None]:
        """Try to register. Returns whether it is done; if not, also another process's registration to wait for, or None
        if the caller should retry.
        """
        key, other = self._keys(bookie, mode)
        before, other_before = await self._values.read(key, other)
        for registration in (before, other_before):
            if registration is not None and registration.lease != lease:
                return False, registration
        changes: list[Operation] = [Delete(other)] if other_before is not None else []
        if before is None or before.value != data:
            changes.append(Put(key, data, lease))
        if not changes:
            return True, None
        conditions = [_unchanged(key, before), _unchanged(other, other_before)]
        return (await self._etcd.transact(conditions, changes)).is_met, None

    def _keys(self, bookie: BookieId, mode: BookieMode) -> tuple[str, str]:
        """Return the bookie's registration keys in this mode and in the other one."""
        other = _READ_ONLY if mode is _WRITABLE else _WRITABLE
        return self._values.keys.registration(bookie, mode), self._values.keys.registration(bookie, other)

    async def _wait_changed(self, seen: KeyValue, deadline: float) -> None:
        """Wait until a key is deleted or written, the watch breaks, or the deadline has passed."""
        changed = asyncio.Event()
        callback = changed.set  # one object: `unwatch` compares callbacks
        self._etcd.watch(seen.key, None, seen.mod_revision + 1, callback)
        try:
            async with asyncio.timeout_at(deadline):
                await changed.wait()
        except TimeoutError:
            pass  # The caller reads the state.
        finally:
            self._etcd.unwatch(callback)

    async def unregister(self, bookie: BookieId) -> None:
        """Delete this session's registrations of a bookie."""
        lease, keys = self._session.lease, self._keys(bookie, _WRITABLE)
        while lease is not None:
            own = [item for item in await self._values.read(*keys) if item is not None and item.lease == lease]
            if not own:
                return
            try:
                conditions = [WrittenAt(item.key, item.mod_revision) for item in own]
                await self._etcd.transact(conditions, [Delete(item.key) for item in own])
            except OutcomeUnknown:
                continue  # The next read determines the outcome.

    # -- discovery -----------------------------------------------------------------------------------------------
    async def present(self, mode: BookieMode, watch: Callable[[], None] | None = None) -> BookieSet:
        prefix = self._values.keys.registrations(mode)
        items, revision = await self._values.below(prefix, watch, keys_only=False)
        for item in items:
            for bookie in bookies_among(prefix, [item.key]):
                self._learn(bookie, item.value)
        return self._set_of(prefix, items, revision)

    def _learn(self, bookie: BookieId, data: bytes) -> None:
        """Keep a bookie's information for times without an answer; errors are raised by a later `info`."""
        try:
            self._infos[bookie] = parse_bookie_info(bookie, data)
        except MetadataCorrupt:
            self._infos.pop(bookie, None)

    async def known(self) -> BookieSet:
        """Return the bookies with a cookie."""
        prefix = self._values.keys.cookies
        return self._set_of(prefix, *await self._values.below(prefix))

    def _set_of(self, prefix: str, items: Sequence[KeyValue], revision: int) -> BookieSet:
        """Return the set of bookies. Its version is the revision at which this driver first read the set in this state;
        an empty set begins with 0.

        Deletions leave no trace in etcd, so the keys show only that the set has changed, not at which revision.
        """
        content = [(item.key, item.mod_revision) for item in items]
        latest, known = self._sets.get(prefix, (BookieSet((), 0), []))
        if content != known and revision > latest.version:
            latest = BookieSet(bookies_among(prefix, [item.key for item in items]), revision)
            self._sets[prefix] = (latest, content)
        return latest

    async def info(self, bookie: BookieId) -> BookieInfo | None:
        """Return a bookie's current information; if etcd does not answer, the information as last read, so that writers
        can still reach their bookies.
        """
        known = self._infos.get(bookie)
        if known is None:
            return await self._read_info(bookie)
        try:
            async with asyncio.timeout(STALE_AFTER_S):
                return await self._read_info(bookie)
        except (TimeoutError, MetadataError):
            return known

    async def _read_info(self, bookie: BookieId) -> BookieInfo | None:
        for item in await self._values.read(*self._keys(bookie, _WRITABLE)):
            if item is not None:
                self._infos[bookie] = parse_bookie_info(bookie, item.value)
                return self._infos[bookie]
        self._infos.pop(bookie, None)
        return None


def pack_registration(bookie: BookieId, info: BookieInfo) -> bytes:
    """Return a registration's bytes: empty, as Apache's, if the bookie's id contains the same address; otherwise as in
    ZooKeeper. Apache reads only the key.
    """
    implied = parse_bookie_info(bookie, b"").endpoints
    known = [(e.host, e.port, e.protocol, e.auth, e.extensions) for e in info.endpoints]
    if not info.properties and known == [(e.host, e.port, e.protocol, e.auth, e.extensions) for e in implied]:
        return b""
    return pack_bookie_info(info)


def _unchanged(key: str, item: KeyValue | None) -> WrittenAt:
    return WrittenAt(key, 0 if item is None else item.mod_revision)
