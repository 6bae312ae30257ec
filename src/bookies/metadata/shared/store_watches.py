"""The watches of one driver of an embedded store: what they wait for, and what an observation means for each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from bookies.metadata.interface import Watch
from bookies.metadata.interface.driver import BookieSet
from bookies.metadata.interface.watches import MISSING, NEVER_SEEN, Subscription
from bookies.metadata.shared.nodes import Change, Key, Observation, Page, Table
from bookies.model import BookieId

_NO_SET = BookieSet((), NEVER_SEEN)


class StoreWatches:
    """Watches of keys and of sets of bookies, each with the version that it delivered last."""

    def __init__(self) -> None:
        self._keys: dict[Table, dict[Subscription[Key, int], None]] = {
            table: {} for table in (Table.LEDGERS, Table.RECORDS, Table.NODES)
        }
        self._sets: dict[Subscription[Table, BookieSet], None] = {}
        self._seen: dict[Table, BookieSet] = {}
        self._observed: frozenset[Key] = frozenset()

    def __bool__(self) -> bool:
        return bool(self._sets) or any(self._keys.values())

    def add_key(self, key: Key, known: int, callback: Callable[[int], None]) -> Watch:
        """Deliver the version of a key, `MISSING` without one, when it differs from `known`."""
        return Subscription(self._keys[key.table], key, callback, known)

    def add_set(self, table: Table, callback: Callable[[BookieSet], None]) -> Watch:
        return Subscription(self._sets, table, callback, NEVER_SEEN)

    def clear(self) -> None:
        """End all watches."""
        for watches in self._keys.values():
            watches.clear()
        self._sets.clear()

    def keys(self) -> list[Key]:
        """Return the watched keys, for an observation."""
        keys = list(dict.fromkeys(watch.key for watches in self._keys.values() for watch in watches))
        self._observed = frozenset(keys)
        return keys

    def may_concern(self, changes: Iterable[Change]) -> bool:
        """Report whether changes may concern a watch that was observed; a later one is observed anyway.

        An observation reads all watched keys. Without this check each write would cost as much as there are watches.
        """
        tables = (Table.LEDGERS, Table.RECORDS)  # of watches of one key; others also concern sets and counters
        return any(change.key.table not in tables or change.key in self._observed for change in changes)

    def sets(self) -> dict[Table, int]:
        """Return the watched tables, with the versions of their sets as last seen."""
        return {watch.key: self._seen.get(watch.key, _NO_SET).version for watch in self._sets}

    def deliver(self, seen: Observation, keys: Collection[Key]) -> None:
        """Call back where the observation of these keys differs from the last delivery."""
        for watches in self._keys.values():
            for watch in watches:
                version = seen.versions.get(watch.key, MISSING)
                if watch.key in keys and version != watch.known:  # Other watches are newer than this observation.
                    watch.known = version
                    watch.deliver(version)
        self._seen.update((table, set_of(page)) for table, page in seen.sets.items())
        for set_watch in self._sets:
            bookies = self._seen.get(set_watch.key, _NO_SET)
            if bookies.version > set_watch.known:
                set_watch.known = bookies.version
                set_watch.deliver(bookies)


def set_of(page: Page) -> BookieSet:
    """Return the set of bookies that a table holds."""
    return BookieSet(tuple(BookieId(str(name)) for name, _ in page.items), page.version)
