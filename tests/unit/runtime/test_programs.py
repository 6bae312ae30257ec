"""Programs that answer a question."""

from __future__ import annotations

import asyncio
import pathlib
import signal
import sys

import pytest

from bookies.runtime import programs
from bookies.runtime.programs import LINE_MAX, NICENESS, output_of, start_program


def test_what_a_program_prints() -> None:
    code = "import sys; print('/r1', *sys.argv[1:])"
    assert asyncio.run(output_of([sys.executable, "-c", code, "a b", ";"])) == "/r1 a b ;\n"


def test_failures() -> None:
    with pytest.raises(OSError, match=r"python\S* ended with status 3: no such host"):
        asyncio.run(
            output_of([sys.executable, "-c", "import sys; print('no such host', file=sys.stderr); sys.exit(3)"])
        )
    with pytest.raises(FileNotFoundError):
        asyncio.run(output_of(["/nowhere/topology"]))


def test_one_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setattr(programs, "TIME_MAX_S", 0.2)
    with pytest.raises(OSError, match=r"has not ended after 0\.2 s"):
        asyncio.run(output_of([sys.executable, "-c", "import time; time.sleep(60)"]))


def test_one_that_runs_on_is_interrupted_or_killed() -> None:
    code = (
        "import os, sys, time\n"
        "try:\n"
        "    print('x' * 5000, 'begun', sep='\\n', file=sys.stderr, flush=True)\n"
        "    time.sleep(600)\n"
        "except KeyboardInterrupt: print(os.environ['GIVEN'], os.nice(0), file=sys.stderr, end=''); sys.exit(7)\n"
    )

    async def main() -> None:
        program = await start_program([sys.executable, "-c", code], {"GIVEN": "some value"})
        lines = program.lines()
        assert await anext(lines) == "x" * LINE_MAX
        assert await anext(lines) == "begun"
        program.interrupt()
        assert [line async for line in lines] == [f"some value {NICENESS}"]
        assert await program.wait() == 7
        program.interrupt()  # nothing is left to interrupt
        program.kill()
        program = await start_program([sys.executable, "-c", "import time; time.sleep(600)"], {})
        program.kill()
        assert await program.wait() == -signal.SIGKILL
        program = await start_program([sys.executable, "-c", "import sys; sys.stdin.read(1)"], {})
        program.process.stdin.close()  # type: ignore[union-attr]  (as when this process ends)
        assert await program.wait() == 0

    asyncio.run(main())
