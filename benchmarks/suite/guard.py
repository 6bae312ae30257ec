"""While drivers run: they are ended as soon as the cluster is not whole, or when they take far too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from benchmarks.suite.servers import Cluster

LOOK_S = 0.1  # between looks at the processes: a wait for children that have not ended, which costs microseconds


class DriveFailed(Exception):
    """A driver that ended without a result, with errors, or whose cluster broke; last words of whoever it was."""


class Guard:
    """Calls `end` once, from a thread of its own, when a process of the cluster has ended or `patience_s` have passed.

    Use as a context manager. Its end raises `DriveFailed` that names the process, also in place of what drivers said.
    """

    def __init__(self, cluster: Cluster, end: Callable[[], None], patience_s: float) -> None:
        self._cluster, self._end, self._patience_s = cluster, end, patience_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="guard", daemon=True)
        self._told = ""

    def __enter__(self) -> Guard:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        # A driver may tell of the bookie that it has lost before anybody has looked.
        told = self._told or self._cluster.ended()
        if told and (kind is None or issubclass(kind, DriveFailed | OSError)):
            raise DriveFailed(told) from None

    def _watch(self) -> None:
        deadline = time.monotonic() + self._patience_s
        while not self._is_over.wait(LOOK_S):
            self._told = self._cluster.ended()
            if self._told or time.monotonic() > deadline:
                self._end()
                return
