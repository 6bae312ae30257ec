"""What the soak's query says about the rows that it is given."""

from __future__ import annotations

import pathlib

import pytest

from bookies.lab.chaos.soak.soak_log import LOG_PAYLOAD_SIZE
from bookies.lab.chaos.soak.soak_stream import EMPTY, checked, read_state, write_state

Row = tuple[str, int, bytes]


def rows(log: str, *pairs: tuple[int, int]) -> list[Row]:
    """Rows with these offsets and numbers."""
    return [(log, offset, f"{log} {number} ".encode().ljust(LOG_PAYLOAD_SIZE, b".")) for offset, number in pairs]


def after(*batches: tuple[int, list[Row]], folder: pathlib.Path) -> dict[str, object]:
    """The state behind these batches, each read from the file that the last one has left."""
    path = folder / "stream.json"
    for batch, found in batches:
        write_state(path, checked(read_state(path), batch, found))
    return read_state(path)


def test_rows_that_follow_each_other_are_right(tmp_path: pathlib.Path) -> None:
    first = rows("a", (40, 40), (41, 41)) + rows("b", (0, 0))
    again = rows("a", (42, 41), (43, 42)) + rows("b", (1, 1))  # number 41 was appended twice
    state = after((0, first), (1, again), (1, again), (2, []), folder=tmp_path)
    assert state == EMPTY | {
        "batch": 2,
        "digest": state["digest"],
        "seen": {"a": [43, 42], "b": [1, 1]},
        "rows": 6,
        "repeated": 1,
    }


@pytest.mark.parametrize(
    ("batches", "sentence"),
    [
        ([(0, rows("a", (0, 0), (2, 1)))], "exactly once: log a: offset 2 follows 0"),
        ([(0, rows("a", (0, 0))), (1, rows("a", (0, 0)))], "exactly once: log a: offset 0 follows 0"),
        ([(0, rows("a", (0, 0), (1, 2)))], "none lost: log a: entry 2 follows 0 at offset 1"),
        ([(0, [("a", 0, b"a 7 .")])], "none lost: log a: entry None follows None at offset 0"),
        ([(4, rows("a", (0, 0))), (4, rows("a", (1, 1)))], "exactly once: batch 4 has other rows when it is repeated"),
        ([(4, rows("a", (0, 0))), (3, rows("a", (1, 1)))], "exactly once: batch 3 follows batch 4"),
    ],
)
def test_each_mistake_is_said(batches: list[tuple[int, list[Row]]], sentence: str, tmp_path: pathlib.Path) -> None:
    assert after(*batches, folder=tmp_path)["violations"] == [sentence]
