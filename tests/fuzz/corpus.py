"""The corpora in the repository: one text file for each target, one input a line in base64."""

from __future__ import annotations

import base64
import pathlib
import sys
from types import FrameType
from typing import Any

from tests.fuzz.target import Target

FOLDER = pathlib.Path(__file__).parent / "corpus"
SIZE_MAX = 20_000  # bytes of the inputs of one target

Step = tuple[str, int, int]  # file, line before, line


def stored(target: Target) -> list[bytes]:
    """Return the inputs that earlier runs have found worth keeping."""
    path = FOLDER / f"{target.name}.txt"
    return [base64.b64decode(line) for line in path.read_text().split()] if path.exists() else []


def inputs(target: Target) -> list[bytes]:
    """Return the inputs from which a search begins, and which `make test` replays."""
    return list(dict.fromkeys([b"", *target.seeds(), *stored(target)]))


def keep(target: Target, found: pathlib.Path) -> None:
    """Add inputs in a folder to the corpus: the smallest ones that together reach all that it reaches."""
    seeds = {b"", *target.seeds()}
    known: set[Step] = set().union(*(_reached(target, data) for data in seeds))
    candidates = {*stored(target), *(path.read_bytes() for path in found.iterdir())} - seeds
    kept: list[bytes] = []
    for data in sorted(candidates, key=lambda one: (len(one), one)):
        new = _reached(target, data) - known
        if new and sum(map(len, kept)) + len(data) <= SIZE_MAX:
            known |= new
            kept.append(data)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{target.name}.txt").write_text("".join(f"{base64.b64encode(data).decode()}\n" for data in kept))


def _reached(target: Target, data: bytes) -> set[Step]:
    """Return the steps from line to line in the product that an input takes."""
    steps: set[Step] = set()

    def called(frame: FrameType, event: str, argument: Any) -> Any:
        name, last = frame.f_code.co_filename, 0
        if "/src/bookies/" not in name:
            return None

        def moved(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            if event == "line":
                steps.add((name, last, frame.f_lineno))
                last = frame.f_lineno
            return moved

        return moved

    sys.settrace(called)
    try:
        target.run(data)
    finally:
        sys.settrace(None)
    return steps
