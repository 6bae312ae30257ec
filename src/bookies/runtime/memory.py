"""How a process treats memory that was freed: the C library's allocator, and the interpreter's collector of cycles."""

from __future__ import annotations

import ctypes
import gc

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)
TRACKED_MIN = 20_000  # objects that may be part of a cycle, between two collections
KEPT_SIZE = 64 << 20  # bytes of free memory that a process keeps for itself
MAPPED_SIZE_MIN = 32 << 20  # bytes; a larger block is mapped for itself, and returned when it is freed


def keep_freed_memory() -> None:
    """Let this process use freed buffers again, instead of returning them and asking for new ones.

    A buffer of a megabyte that comes fresh from the system costs a page fault for each 4 KiB, which is as much as
    copying into it: a process that reads entries by the megabyte spends a third of its time there. Does nothing where
    there is no glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_MMAP_THRESHOLD, MAPPED_SIZE_MIN)
    mallopt(_M_TRIM_THRESHOLD, KEPT_SIZE)


def collect_rarely() -> None:
    """Let the interpreter look for cycles of garbage every `TRACKED_MIN` new objects, instead of every few hundred.

    Appends on their way are objects: a future, its callback, and what that needs. A client with thousands of them
    looks through all of them again and again, which takes a third of its processor time and finds nothing. A threshold
    that is higher already stays, and so does a collector that is turned off.
    """
    first, *others = gc.get_threshold()
    if 0 < first < TRACKED_MIN:
        gc.set_threshold(TRACKED_MIN, *others)
