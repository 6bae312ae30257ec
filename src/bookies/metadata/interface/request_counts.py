"""Counts of requests to a metadata store, by the part of the program that asks and by the request.

*Who* is the part of the program that the running task works for, from the task's context. Tasks that it starts, also
those of its watches, inherit the context. *What* is the request's name and the kind of object. Requests that keep a
session alive are not counted, nor are an embedded store's polls for changes, which use no server.
"""

from __future__ import annotations

import contextvars

_asker: contextvars.ContextVar[str] = contextvars.ContextVar("who asks the metadata store", default="others")


def asking_as(who: str) -> contextvars.Context:
    """Return a copy of the current context for a task that works for `who`."""
    context = contextvars.copy_context()
    context.run(_asker.set, who)
    return context


class RequestCounts:
    """One driver's number of requests to its store, by `(who, what)`."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = {}

    def count(self, what: str) -> None:
        key = (_asker.get(), what)
        self.counts[key] = self.counts.get(key, 0) + 1

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def by_name(self) -> dict[str, int]:
        """Return the counts by `who: what`, the most frequent first."""
        ordered = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        return {f"{who}: {what}": count for (who, what), count in ordered}
