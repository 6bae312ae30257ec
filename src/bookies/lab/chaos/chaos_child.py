"""Main program of processes of `bk chaos` and `bk demo`: parameters are a JSON object, the end of the input ends it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Awaitable, Callable

from bookies.admin.shared.common import run_async
from bookies.admin.shared.lines import read_lines


def run_child(work: Callable[[argparse.Namespace], Awaitable[int]]) -> None:
    """Run `work` with the process's parameters, and exit with its result."""
    parameters = argparse.Namespace(**json.loads(sys.argv[1]))
    sys.exit(run_async(lambda: work(parameters)))


async def input_ends() -> None:
    """Wait until the process is asked to end, or its owner has died."""
    async for _ in read_lines(sys.stdin.fileno()):
        pass
