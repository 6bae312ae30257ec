"""Programs that answer a question, such as Apache's scripts that report the location of hosts, or that run for long."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence

TIME_MAX_S = 30.0
ERROR_OUTPUT_MAX = 300  # characters of a program's error output
LINE_MAX = 1000  # bytes of a line
PIECE_SIZE = 4096
NICENESS, OOM_SCORE = 10, 500  # of a program that gives way to this process


async def output_of(command: Sequence[str]) -> str:
    """Return a program's output. Raises OSError when it cannot be run, fails, or takes too long.

    It is not run by a shell: `command` is its path and its arguments.
    """
    name = os.path.basename(command[0])
    program = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(TIME_MAX_S):
            printed, error_output = await program.communicate()
    except TimeoutError:
        raise OSError(f"{name} has not ended after {TIME_MAX_S:g} s") from None
    finally:
        if program.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                program.kill()
            await program.wait()
    if program.returncode:
        reason = error_output.decode("utf-8", "replace").strip()[:ERROR_OUTPUT_MAX]
        raise OSError(f"{name} ended with status {program.returncode}{': ' if reason else ''}{reason}")
    return printed.decode("utf-8", "replace")


async def start_program(command: Sequence[str], variables: Mapping[str, str]) -> StartedProgram:
    """Start a program in a session of its own; see `ports.StartProgram`. Its standard output is dropped.

    It gives way to this process: the system serves it later, and ends it first when memory runs out.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,  # never written to: it ends with this process
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **variables},
        start_new_session=True,
    )
    _give_way(process.pid)
    return StartedProgram(process)


def _give_way(pid: int) -> None:
    with contextlib.suppress(OSError):  # the program has ended, or the system has no such file
        os.setpriority(os.PRIO_PROCESS, pid, NICENESS)
        with open(f"/proc/{pid}/oom_score_adj", "w") as file:
            file.write(str(OOM_SCORE))


class StartedProgram:
    """A program that runs; see `ports.Program`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def lines(self) -> AsyncIterator[str]:
        stream, rest = self.process.stderr, b""
        assert stream is not None
        while piece := await stream.read(PIECE_SIZE):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield _shortened(line)
            rest = rest[:LINE_MAX]
        if rest:
            yield _shortened(rest)

    async def wait(self) -> int:
        return await self.process.wait()

    def interrupt(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def _shortened(line: bytes) -> str:
    return line[:LINE_MAX].decode("utf-8", "replace").rstrip()
