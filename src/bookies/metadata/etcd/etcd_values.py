"""Keys of etcd for the parts of the driver: repeated operations, remembered versions, whole prefixes.

Our version of a key is the revision that wrote it last. Revisions count the changes of the whole store, so a version
never returns, even if the key is deleted and recreated. Source: metadata 5 and 10.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from bookies.metadata.etcd.etcd_layout import Keys, stop_of
from bookies.metadata.etcd.etcd_port import Etcd, Get, KeyValue, OutcomeUnknown, WrittenAt
from bookies.metadata.interface.watches import MISSING
from bookies.metadata.shared.store_driver import VERSIONS_COUNT_MAX

T = TypeVar("T")

_NEVER = -1  # a revision that no key has
ATTEMPTS_MAX = 4  # attempts of a repeatable operation while its outcome is unknown


def there_at(key: str, version: int) -> WrittenAt:
    """Return the condition that the key exists with this version. In etcd, version 0 would match a missing key."""
    return WrittenAt(key, version or _NEVER)


class Values:
    """Access to the keys of one cluster."""

    def __init__(self, etcd: Etcd, keys: Keys) -> None:
        self.etcd = etcd
        self.keys = keys
        self._known: dict[str, int] = {}  # key -> version, oldest first

    async def read(self, *keys: str) -> list[KeyValue | None]:
        """Read several keys at one moment; None: there is no such key."""
        items, _ = await self._read_at(*keys)
        return items

    async def _read_at(self, *keys: str) -> tuple[list[KeyValue | None], int]:
        answer = await self.etcd.transact((), [Get(key) for key in keys])
        return [items[0] if items else None for items in answer.items], answer.revision

    async def below(
        self, prefix: str, watch: Callable[[], None] | None = None, *, keys_only: bool = True
    ) -> tuple[list[KeyValue], int]:
        """Return all keys that begin with the prefix, and the store's revision. The watch reports later changes."""
        stop = stop_of(prefix)
        answer = await self.etcd.transact((), [Get(prefix, stop, keys_only=keys_only)])
        if watch is not None:
            self.etcd.watch(prefix, stop, answer.revision + 1, watch)
        return answer.items[0], answer.revision

    async def version(self, key: str, watch: Callable[[], None]) -> int:
        """Return a key's version; 0 for a missing key. The watch reports later changes."""
        answer = await self.etcd.transact((), [Get(key, keys_only=True)])
        self.etcd.watch(key, None, answer.revision + 1, watch)
        return answer.items[0][0].mod_revision if answer.items[0] else MISSING

    async def repeat(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Repeat an operation, which may be carried out twice, until its outcome is known."""
        for _ in range(ATTEMPTS_MAX - 1):
            try:
                return await operation()
            except OutcomeUnknown:
                continue
        return await operation()

    # -- versions ------------------------------------------------------------------------------------------------
    def remember(self, key: str, version: int) -> None:
        self._known.pop(key, None)
        self._known[key] = version
        if len(self._known) > VERSIONS_COUNT_MAX:
            del self._known[next(iter(self._known))]

    def last_seen(self, key: str) -> int | None:
        """Return the version that this driver read last, 0 for a missing key; None: not read, or not remembered."""
        return self._known.get(key)
