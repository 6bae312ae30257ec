"""Programs that answer a question."""

from __future__ import annotations

import asyncio
import pathlib
import sys

import pytest

from bookies.runtime import programs
from bookies.runtime.programs import output_of


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
