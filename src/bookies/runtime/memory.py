"""Memory of a process: how the C library's allocator and the interpreter's cycle collector handle freed memory."""

from __future__ import annotations

import ctypes
import gc

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3)
TRACKED_MIN = 20_000  # objects that may be part of a cycle, between two collections
KEPT_SIZE = 64 << 20  # bytes of free memory that a process keeps
MAPPED_SIZE_MIN = 32 << 20  # bytes; a larger block is mapped separately, and returned when it is freed


def keep_freed_memory() -> None:
    """Let this process reuse freed buffers, instead of returning them and requesting new ones.

    A buffer of a megabyte that comes fresh from the system costs a page fault for each 4 KiB, which is as much as
    copying into it: a process that reads entries by the megabyte spends a third of its time there. Without glibc this
    does nothing.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_MMAP_THRESHOLD, MAPPED_SIZE_MIN)
    mallopt(_M_TRIM_THRESHOLD, KEPT_SIZE)


def collect_rarely() -> None:
    """Let the interpreter collect cycles of garbage every `TRACKED_MIN` new objects, instead of every few hundred.

    Appends in flight are objects: a future, its callback, and their parts. With thousands of them each collection
    scans all of them, which takes a third of the client's processor time and finds no garbage. A higher threshold
    stays as it is, and so does a disabled collector.
    """
    first, *others = gc.get_threshold()
    if 0 < first < TRACKED_MIN:
        gc.set_threshold(TRACKED_MIN, *others)
