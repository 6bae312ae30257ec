"""Writes by Linux's asynchronous IO: no thread waits for the device.

A thread that waits for a write is woken by the device and wakes the loop, after the loop has woken it: three context
switches around one call. Here the loop submits the write and learns of its end from a descriptor that it watches.

The submission does not wait for writes past the page cache into blocks that exist. Some file systems accept such
writes and do all of the work at the submission (ext4 with `data=journal`); where that is detected, no write is
accepted for a while. Measured for 4 KiB until durable: 0.12 ms instead of 0.15 (p50), for a third of the processor
time.

On a busy machine other processes interrupt submissions, which then last as long as those that wait. Only the latter
have slept: after a slow submission the sleeps of the next ones are counted. A thread for each write costs a bookie
half as much processor time again for lone adds.

All calls are on the loop's thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import platform
import resource
import struct
from collections.abc import Callable
from time import perf_counter

Ended = Callable[[int], None]
"""Of a write: the bytes written, or an error number, negative."""

DEPTH = 4  # writes in progress at once
BLOCKING_S = 0.0001  # seconds; a submission that takes longer, and most of the write's time, is slow
BLOCKING_MAX = 32  # when slow submissions that have slept outnumber others by this many, threads are better
PAUSE_S = 10.0  # for this time
_IO_SETUP, _IO_DESTROY, _IO_GETEVENTS, _IO_SUBMIT = range(4)
_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}  # the C library has no functions for these
_PWRITE = 1
_REPORTS_TO_EVENTFD = 1
# Fields: user data, key and flags, opcode and priority, descriptor; memory, size, offset; flags and eventfd.
_CONTROL_BLOCK = struct.Struct("<QIiHhIQQqQII")
_EVENT = struct.Struct("<QQqq")  # user data, address, result, second result


class _Memory:
    """Memory that the system reads and writes.

    `blocks`: the control block of each write in progress. `list_addresses`: a submission passes a list of pointers to
    control blocks; a list of one for each of them. `events`: ends of writes. `no_time`: the address of a time of zero.
    """

    def __init__(self) -> None:
        self.blocks = ctypes.create_string_buffer(_CONTROL_BLOCK.size * DEPTH)
        first = ctypes.addressof(self.blocks)
        self._lists = [ctypes.c_void_p(first + number * _CONTROL_BLOCK.size) for number in range(DEPTH)]
        self.list_addresses = [ctypes.addressof(pointer) for pointer in self._lists]
        self.events = ctypes.create_string_buffer(_EVENT.size * DEPTH)
        self.events_address = ctypes.addressof(self.events)
        self._time = (ctypes.c_long * 2)(0, 0)
        self.no_time = ctypes.addressof(self._time)


class _Blocking:
    """Detection of submissions that wait for the device: see the module.

    `balance`: submissions that waited, minus those that did not; at least 0. `paused_until_s`: before that threads are
    better.
    """

    def __init__(self) -> None:
        self.balance = 0
        self.paused_until_s = 0.0

    def ended(self, begun: float, submitted: float, *, has_slept: bool) -> None:
        """Note the end of a write whose submission was slow, or any while `balance` is not 0. Times in seconds."""
        seconds = submitted - begun
        if has_slept and seconds > BLOCKING_S and seconds > ((now := perf_counter()) - begun) / 2:
            self.balance += 1
            if self.balance > BLOCKING_MAX:
                self.balance, self.paused_until_s = 0, now + PAUSE_S
        elif self.balance:
            self.balance -= 1


class DirectWrites:
    """The writes of one loop. Made by `begin`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, calls: tuple[int, int, int, int], context: int) -> None:
        self._loop = loop
        self._calls = calls
        self._context = context
        self._memory = _Memory()
        self._free = list(range(DEPTH))
        # Callback; when it began, when it was submitted; whether the thread has, or may have, slept in between.
        self._ended: dict[int, tuple[Ended, float, float, bool]] = {}
        self._blocking = _Blocking()
        self._is_useful = True
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            loop.add_reader(self._eventfd, self._ready)
        except BaseException:
            os.close(self._eventfd)
            raise

    @classmethod
    def begin(cls, loop: asyncio.AbstractEventLoop) -> DirectWrites | None:
        """Create the writer; None if the system does not support it or has no more of it."""
        calls = _CALLS.get(platform.machine()) if hasattr(os, "eventfd") else None
        if calls is None or struct.calcsize("P") != 8:
            return None
        context = ctypes.c_ulong(0)
        if system_call(calls[_IO_SETUP], DEPTH, ctypes.addressof(context)) < 0:
            return None
        try:
            return cls(loop, calls, context.value)
        except (OSError, NotImplementedError):  # no descriptors left; a loop that cannot watch descriptors
            system_call(calls[_IO_DESTROY], context.value)
            return None

    def submit(self, descriptor: int, address: int, size: int, offset: int, ended: Ended) -> bool:
        """Begin to write `size` bytes of memory, which must not change until `ended` is called, never before this
        returns.

        False: no write was begun.
        """
        begun = perf_counter()
        if not self._free or not self._is_useful or begun < self._blocking.paused_until_s:
            return False
        number = self._free[-1]
        at, to = number * _CONTROL_BLOCK.size, self._eventfd
        _CONTROL_BLOCK.pack_into(
            self._memory.blocks,
            at,
            number,
            0,
            0,
            _PWRITE,
            0,
            descriptor,
            address,
            size,
            offset,
            0,
            _REPORTS_TO_EVENTFD,
            to,
        )
        sleeps = _sleep_count() if self._blocking.balance else -1
        if system_call(self._calls[_IO_SUBMIT], self._context, 1, self._memory.list_addresses[number]) != 1:
            return False
        submitted = perf_counter()
        self._free.pop()
        self._ended[number] = ended, begun, submitted, sleeps < 0 or _sleep_count() > sleeps
        return True

    def close(self) -> None:
        """Wait for writes in progress, and release everything. Idempotent."""
        if self._eventfd < 0:
            return
        while self._ended:
            self._take(is_waiting=True)
        if not self._loop.is_closed():
            self._loop.remove_reader(self._eventfd)
        system_call(self._calls[_IO_DESTROY], self._context)
        os.close(self._eventfd)
        self._eventfd = -1

    def _ready(self) -> None:
        os.eventfd_read(self._eventfd)
        self._take()

    def _take(self, *, is_waiting: bool = False) -> None:
        """Report finished writes; `is_waiting`: wait until there is one."""
        memory = self._memory
        timeout = 0 if is_waiting else memory.no_time
        count = system_call(
            self._calls[_IO_GETEVENTS], self._context, int(is_waiting), DEPTH, memory.events_address, timeout
        )
        if count < 0 and count != -errno.EINTR:  # The system reports no results, now or later.
            self._is_useful = False
            for number in list(self._ended):
                self._tell(number, count)
        # All events are copied first: a callback may submit the next write, whose end would overwrite them.
        for number, _, result, _ in _EVENT.iter_unpack(memory.events.raw[: max(0, count) * _EVENT.size]):
            self._tell(number, result)

    def _tell(self, number: int, result: int) -> None:
        ended, begun, submitted, has_slept = self._ended.pop(number)
        self._free.append(number)
        if submitted - begun > BLOCKING_S or self._blocking.balance:
            self._blocking.ended(begun, submitted, has_slept=has_slept)
        ended(result)


def _sleep_count() -> int:
    """Return how often this thread has slept."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


# With the types declared, a call converts plain numbers, without an object for each of them.
_syscall = ctypes.CFUNCTYPE(ctypes.c_long, *[ctypes.c_long] * 6, use_errno=True)(("syscall", ctypes.CDLL(None)))


def system_call(number: int, one: int, two: int = 0, three: int = 0, four: int = 0, five: int = 0) -> int:
    """Return the result of a system call, or an error number, negative. Arguments are numbers and addresses."""
    result: int = _syscall(number, one, two, three, four, five)
    return result if result >= 0 else -ctypes.get_errno()
