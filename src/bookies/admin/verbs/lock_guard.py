"""The guard of a command that runs under `bk lock`: a process that ends the command if `bk lock` cannot.

`bk lock` ends its command before another process can have the lock. If it is killed or suspended itself, the guard does
so. Otherwise the commands of two holders would run at the same time.

Messages come through standard input, each two numbers: the process group of the command, and the time by which it must
have ended unless a later message follows (`now_s`). Group 0: the command has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import struct
import sys
import time
from collections.abc import AsyncIterator, Callable

MESSAGE = struct.Struct("<Qd")
POLL_S = 0.05  # between two looks whether a process of the group is left


def now_s() -> float:
    """Return the time of a clock that runs while the machine sleeps: other holders do not wait for it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@contextlib.asynccontextmanager
async def guarding() -> AsyncIterator[Callable[[int, float], None]]:
    """Run a guard, as `bk lock` does until its command has ended. Raises OSError.

    Yields a function that lets the command, a process group, run for that many more seconds. The process that becomes
    the command calls it first.
    """
    reading, writing = os.pipe()

    def extend(group: int, left_s: float) -> None:
        with contextlib.suppress(BrokenPipeError):  # The guard has ended the command.
            os.write(writing, MESSAGE.pack(group, now_s() + left_s))

    try:
        try:
            # A session of its own: what a terminal or a shell sends to `bk lock` must not end the guard first.
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", __name__),
                stdin=reading,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(reading)
        try:
            yield extend
        finally:
            extend(0, 0.0)
            await process.wait()
    finally:
        os.close(writing)


def main() -> None:
    """Follow the messages, and end the command when they end or do not come in time."""
    group = 0
    deadline: float | None = None
    while True:
        left_s = None if deadline is None else max(0.0, deadline - now_s())
        if not select.select([0], [], [], left_s)[0]:
            _end(group, grace_s=0.0)  # `bk lock` is suspended, and no time is left.
            return
        if len(message := os.read(0, MESSAGE.size)) < MESSAGE.size:
            if deadline is not None:  # `bk lock` is dead.
                _end(group, deadline - now_s())
            return
        group, deadline = MESSAGE.unpack(message)
        if not group:
            return


def _end(group: int, grace_s: float) -> None:
    """End a process group, with SIGKILL after `grace_s`."""
    end_s = now_s() + grace_s
    with contextlib.suppress(ProcessLookupError, PermissionError):  # None is left, or another user's.
        os.killpg(group, signal.SIGTERM)
        while now_s() < end_s:
            time.sleep(POLL_S)
            os.killpg(group, 0)
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
