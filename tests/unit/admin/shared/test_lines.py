"""Lines that become entries: in order, and none after one that is wrong."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from bookies.admin.shared.lines import WrongLine, append_lines, read_lines


class Writer:
    """Confirms each batch when the next lines have been written to the pipe. `further`: those, by batch."""

    def __init__(self, pipe: int, *further: bytes) -> None:
        self.appended: list[Any] = []
        self._pipe = pipe
        self._further = list(further)

    async def append_many(self, payloads: list[Any]) -> None:
        self.appended.append(payloads)
        if self._further:
            os.write(self._pipe, self._further.pop(0))
        else:
            os.close(self._pipe)


def parse(lines: list[bytes]) -> tuple[list[bytes], WrongLine | None]:
    good = lines[: lines.index(b"wrong")] if b"wrong" in lines else lines
    return [line.upper() for line in good if line], WrongLine("line") if len(good) < len(lines) else None


def run(*pieces: bytes) -> tuple[list[Any], list[int], int | None]:
    """Return what was appended, what was confirmed, and the count; None: a line was wrong."""
    reading, writing = os.pipe()
    os.write(writing, pieces[0])
    writer, confirmed = Writer(writing, *pieces[1:]), list[int]()
    try:
        count: int | None = asyncio.run(append_lines(writer, read_lines(reading), confirmed.append, parse))
    except WrongLine:
        count = None
    os.close(reading)
    return writer.appended, confirmed, count


@pytest.mark.parametrize(
    ("pieces", "appended", "confirmed", "count"),
    [
        ((b"a\n\nb\n", b"c\n"), [[b"A", b"B"], [b"C"]], [2, 3], 3),
        ((b"a\n", b"b\nwrong\nc\n"), [[b"A"], [b"B"]], [1, 2], None),
    ],
)
def test_lines_are_parsed_and_appended_up_to_a_wrong_one(
    pieces: tuple[bytes, ...], appended: list[Any], confirmed: list[int], count: int | None
) -> None:
    assert run(*pieces) == (appended, confirmed, count)
