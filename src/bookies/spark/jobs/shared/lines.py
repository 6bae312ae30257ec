"""Lines that are entries, and entries that are lines: what `export` writes, `import` takes, and nothing else.

JSON is one object a line, by RFC 8259: one, and nothing behind it; no `NaN`, no single quotes. CSV is RFC 4180, with
every text in quotes, so that an empty one can be told from none and a line may end within it.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from bookies.errors import InvalidArgument

SHOWN_SIZE = 100  # characters of a line in a sentence about it


def check_object(line: bytes) -> None:
    """Raises ValueError unless it is one JSON object in UTF-8."""
    try:
        # Numbers are looked at as text: how many digits they have is not our business.
        found = json.loads(line.decode(), parse_constant=_refuse, parse_int=str, parse_float=str)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is no object")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


class JsonLines:
    """For `mapInArrow`: batches of lines, as they are. `path`: of their file, for the error."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Raises `InvalidArgument`."""
        for batch in batches:
            for line in batch.column("value").cast(pa.binary()).to_pylist():
                try:
                    check_object(line)
                except ValueError as error:
                    shown = line.decode(errors="replace")[:SHOWN_SIZE]
                    raise InvalidArgument(
                        f"file {self._path}: a line is no JSON object: {shown} ({error}); with --format text any line "
                        "is an entry"
                    ) from None
            yield batch


def csv_lines(rows: Sequence[Sequence[Any]]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC).writerows(rows)
    return buffer.getvalue().encode()
