"""What is asked of a metadata store, counted: by whom and what for.

*Who* is the part of the program that the running task works for, as its context says; tasks that it begins, those of
its watches too, inherit that. *What* is a request to the store by name, and of what kind of thing it is. What keeps a
session alive is not counted, and of the stores of this host neither is looking for changes, which asks nobody else.
"""

from __future__ import annotations

import contextvars

_asker: contextvars.ContextVar[str] = contextvars.ContextVar("who asks the metadata store", default="others")


def asking_as(who: str) -> contextvars.Context:
    """The present context, for a task that works for `who`."""
    context = contextvars.copy_context()
    context.run(_asker.set, who)
    return context


class RequestCounts:
    """How often this driver has asked its store, by `(who, what)`."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = {}

    def count(self, what: str) -> None:
        key = (_asker.get(), what)
        self.counts[key] = self.counts.get(key, 0) + 1

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def by_name(self) -> dict[str, int]:
        """`who: what`, the most frequent first."""
        found = sorted(self.counts.items(), key=lambda each: (-each[1], each[0]))
        return {f"{who}: {what}": count for (who, what), count in found}
