"""The guard of a command that runs under `bk lock`: a process that ends the command if `bk lock` cannot.

`bk lock` ends its command before another process can have the lock. If it is killed or suspended itself, the guard does
so. Otherwise the commands of two holders would run at the same time.

Messages come through standard input, each two numbers: the process group of the command, and the time by which it must
have ended unless a later message follows (`deadline_s`). Group 0: the command has ended.
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
from typing import Self

MESSAGE = struct.Struct("<Qd")
POLL_S = 0.05  # between two looks whether a process of the group is left


def deadline_s(left_s: float) -> float:
    """Return the time in `left_s` seconds, of a clock that runs while the machine sleeps: other holders do not wait."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) + left_s


class Guard:
    """The guard, as `bk lock` sees it. Use it as a context; its end is the end of the command."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls) -> Self:
        """Start the process. Raises OSError."""
        # A session of its own: what a terminal or a shell sends to `bk lock` must not end the guard first.
        return cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", __name__),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        )

    def extend(self, group: int, left_s: float) -> None:
        """Let the command run for `left_s` more seconds."""
        self._send(group, left_s)

    async def end(self) -> None:
        """End the guard, without its command."""
        self._send(0, 0.0)
        await self._process.wait()

    def _send(self, group: int, left_s: float) -> None:
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():  # otherwise it has ended the command
            self._process.stdin.write(MESSAGE.pack(group, deadline_s(left_s)))


def main() -> None:
    """Follow the messages, and end the command when they end or do not come in time."""
    group = 0
    deadline: float | None = None
    while True:
        left_s = None if deadline is None else max(0.0, deadline - deadline_s(0.0))
        if not select.select([0], [], [], left_s)[0]:
            _end(group, grace_s=0.0)  # `bk lock` is suspended, and no time is left.
            return
        if len(message := os.read(0, MESSAGE.size)) < MESSAGE.size:
            if deadline is not None:  # `bk lock` is dead.
                _end(group, deadline - deadline_s(0.0))
            return
        group, deadline = MESSAGE.unpack(message)
        if not group:
            return


def _end(group: int, grace_s: float) -> None:
    """End a process group, with SIGKILL after `grace_s`."""
    end_s = deadline_s(grace_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):  # None is left, or another user's.
        os.killpg(group, signal.SIGTERM)
        while deadline_s(0.0) < end_s:
            time.sleep(POLL_S)
            os.killpg(group, 0)
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
