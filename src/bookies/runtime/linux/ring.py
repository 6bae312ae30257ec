"""Reads by Linux's io_uring: through the page cache, and no thread waits for the device.

A read by a thread costs three context switches, and the thread competes with the loop for the interpreter. Here the
loop submits the read and learns of its end from a descriptor that it watches. Measured for 1 KiB at random from a
cold file, six in flight: 41 us of processor time for a read instead of 106, and twice the rate.

The kernel and this process share two rings of memory. The numbers in them are read and written without barriers,
which only the memory order of x86-64 allows. Elsewhere, where a container forbids the calls, and on kernels before
5.6 threads read.

All calls are on the loop's thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import mmap
import os
import platform
import struct
from collections.abc import Callable

from bookies.runtime.linux.direct import system_call

ReadEnded = Callable[[bytes | None], None]
"""See `ports.ReadEnded`."""

DEPTH = 64  # reads in progress at once, a power of two
SIZE_MAX = 16 * 1024  # bytes of a read; a larger one is worth a thread
_SETUP, _ENTER, _REGISTER = 425, 426, 427  # the C library has no functions for these
_REGISTER_EVENTFD = 4
_WAIT = 1
_READ = 22  # opcode
_SUBMISSIONS_AT = 0x10000000  # offset of the submissions in the ring's descriptor
# Of `io_uring_params`: submissions, completions; the features; then offsets of fields in the rings' memory: head, tail,
# mask, entries, flags, dropped or overflow, and array or entries.
_PARAMETERS = struct.Struct("<II12xI16x10I10I")
# Opcode, flags, priority, descriptor; offset, address, size, flags; user data.
_SUBMISSION = struct.Struct("<BBHiQQIIQ24x")
_COMPLETION = struct.Struct("<Qi4x")  # user data, result
_UNKNOWN = (-errno.EINVAL, -errno.EOPNOTSUPP)  # the answer of a kernel that does not know the opcode
_ONE_MAPPING = 1  # feature: both rings are in one mapping


_LOST: list[object] = []  # memory that the system may still write to


class _Rings:
    """The memory that is shared with the kernel: requests, and what became of them."""

    def __init__(self, descriptor: int, parameters: bytes) -> None:
        count, completions, _, *offsets = _PARAMETERS.unpack_from(parameters)
        array_at = offsets[6]
        self._tail = offsets[1] // 4
        self._done_head, self._done_tail, self._done_at = offsets[10] // 4, offsets[11] // 4, offsets[15]
        self._mask, self._done_mask = count - 1, completions - 1
        size = max(array_at + count * 4, self._done_at + completions * _COMPLETION.size)
        self._memory = mmap.mmap(descriptor, size)
        self._requests = mmap.mmap(descriptor, count * _SUBMISSION.size, offset=_SUBMISSIONS_AT)
        self._numbers = memoryview(self._memory)[: size // 4 * 4].cast("I")
        for number in range(count):
            self._numbers[array_at // 4 + number] = number

    def put(self, number: int, file: int, address: int, size: int, offset: int) -> None:
        """Add a request to read."""
        tail = self._numbers[self._tail]
        at = (tail & self._mask) * _SUBMISSION.size
        _SUBMISSION.pack_into(self._requests, at, _READ, 0, 0, file, offset, address, size, 0, number)
        self._numbers[self._tail] = (tail + 1) & 0xFFFFFFFF

    def take_back(self) -> None:
        """Remove the last request, which the kernel has not seen."""
        self._numbers[self._tail] = (self._numbers[self._tail] - 1) & 0xFFFFFFFF

    def take(self) -> tuple[int, int] | None:
        """Return the number and the result of a request that has ended; None if there is no other."""
        head = self._numbers[self._done_head]
        if head == self._numbers[self._done_tail]:
            return None
        at = self._done_at + (head & self._done_mask) * _COMPLETION.size
        number, result = _COMPLETION.unpack_from(self._memory, at)
        self._numbers[self._done_head] = (head + 1) & 0xFFFFFFFF
        return number, result

    def close(self) -> None:
        self._numbers.release()
        self._memory.close()
        self._requests.close()


class RingReads:
    """The reads of one loop. Made by `begin`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int, parameters: bytes) -> None:
        self._loop = loop
        self._descriptor = descriptor
        self._rings = _Rings(descriptor, parameters)
        self._room = ctypes.create_string_buffer(SIZE_MAX * DEPTH)
        self._address = ctypes.addressof(self._room)
        self._free = list(range(DEPTH))
        self._ended: dict[int, ReadEnded] = {}
        self._is_useful = True
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        number = ctypes.c_int(self._eventfd)
        try:
            if system_call(_REGISTER, descriptor, _REGISTER_EVENTFD, ctypes.addressof(number), 1) < 0:
                raise OSError("the ring reports to no eventfd")
            loop.add_reader(self._eventfd, self._ready)
        except BaseException:
            os.close(self._eventfd)
            raise

    @classmethod
    def begin(cls, loop: asyncio.AbstractEventLoop) -> RingReads | None:
        """Create the reader; None if the system does not support it, forbids it, or has no more of it."""
        if platform.machine() != "x86_64" or struct.calcsize("P") != 8 or not hasattr(os, "eventfd"):
            return None
        parameters = ctypes.create_string_buffer(_PARAMETERS.size)
        descriptor = system_call(_SETUP, DEPTH, ctypes.addressof(parameters))
        if descriptor < 0:
            return None
        try:
            if _PARAMETERS.unpack_from(parameters)[2] & _ONE_MAPPING:
                return cls(loop, descriptor, parameters.raw)
        except (OSError, NotImplementedError):  # no descriptors left; a loop that cannot watch descriptors
            pass
        os.close(descriptor)
        return None

    def submit(self, file: int, size: int, offset: int, ended: ReadEnded) -> bool:
        """Begin to read `size` bytes of a descriptor, which may be closed at once. Fewer come only at the file's end.

        `ended` is called at the end, never before this returns. False: no read was begun.
        """
        if not self._free or size > SIZE_MAX or not self._is_useful:
            return False
        number = self._free[-1]
        self._rings.put(number, file, self._address + number * SIZE_MAX, size, offset)
        if system_call(_ENTER, self._descriptor, 1) != 1:
            self._rings.take_back()
            return False
        self._free.pop()
        self._ended[number] = ended
        return True

    def close(self) -> None:
        """Wait for reads in progress, and release everything. Idempotent."""
        if self._eventfd < 0:
            return
        while self._ended:
            count = system_call(_ENTER, self._descriptor, 0, 1, _WAIT)
            self._take()
            if count < 0 and count != -errno.EINTR:  # The system does not wait: the memory has to stay.
                _LOST.append(self._room)
                for number in list(self._ended):
                    self._ended.pop(number)(None)
        if not self._loop.is_closed():
            self._loop.remove_reader(self._eventfd)
        self._rings.close()
        os.close(self._descriptor)
        os.close(self._eventfd)
        self._eventfd = -1

    def _ready(self) -> None:
        os.eventfd_read(self._eventfd)
        self._take()

    def _take(self) -> None:
        """Report the ends of reads."""
        while self._eventfd >= 0 and (end := self._rings.take()) is not None:
            number, result = end
            self._is_useful = self._is_useful and result not in _UNKNOWN
            data = ctypes.string_at(self._address + number * SIZE_MAX, result) if result >= 0 else None
            self._free.append(number)
            self._ended.pop(number)(data)
