"""Keys of etcd as the parts of the driver use them: repeated steps, versions that were seen, whole prefixes.

The version of ours is the revision that wrote a key last. Revisions count the changes of the whole store, so they never
come back, also when a key is deleted and made anew. Source: metadata 5 and 10.
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
ATTEMPTS_MAX = 4  # of an operation whose outcome is unknown and that can be repeated


def there_at(key: str, version: int) -> WrittenAt:
    """Condition: the key is there, with this version. What etcd takes for one, 0, is that of a missing key."""
    return WrittenAt(key, version or _NEVER)


class Values:
    """See the module."""

    def __init__(self, etcd: Etcd, keys: Keys) -> None:
        self.etcd = etcd
        self.keys = keys
        self._known: dict[str, int] = {}  # key -> version, oldest first

    async def read(self, *keys: str) -> list[KeyValue | None]:
        """All at one moment. None: there is no such key."""
        found, _ = await self._read_at(*keys)
        return found

    async def _read_at(self, *keys: str) -> tuple[list[KeyValue | None], int]:
        answer = await self.etcd.transact((), [Get(key) for key in keys])
        return [items[0] if items else None for items in answer.found], answer.revision

    async def below(
        self, prefix: str, watch: Callable[[], None] | None = None, *, keys_only: bool = True
    ) -> tuple[list[KeyValue], int]:
        """Everything whose key begins with the prefix, and the store's revision. The watch hears of later changes."""
        stop = stop_of(prefix)
        answer = await self.etcd.transact((), [Get(prefix, stop, keys_only=keys_only)])
        if watch is not None:
            self.etcd.watch(prefix, stop, answer.revision + 1, watch)
        return answer.found[0], answer.revision

    async def version(self, key: str, watch: Callable[[], None]) -> int:
        """0 for a missing key. The watch hears of what comes later."""
        answer = await self.etcd.transact((), [Get(key, keys_only=True)])
        self.etcd.watch(key, None, answer.revision + 1, watch)
        return answer.found[0][0].mod_revision if answer.found[0] else MISSING

    async def repeat(self, operation: Callable[[], Awaitable[T]]) -> T:
        """An operation that may be carried out twice, until its outcome is known."""
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
        """The version that this driver saw last, 0 for a missing key; None if it has not looked, or long ago."""
        return self._known.get(key)
