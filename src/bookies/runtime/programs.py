"""Programs that answer a question, such as Apache's scripts that report the location of hosts."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence

TIME_MAX_S = 30.0
ERROR_OUTPUT_MAX = 300  # characters of a program's error output


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
