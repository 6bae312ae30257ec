"""Formats of lines: what `export` writes, and `import` accepts.

JSON is one object per line, by RFC 8259: no second value after it, no `NaN`, no single quotes. CSV is RFC 4180, with
every text in quotes: an empty text differs from a missing one, and a text may contain line ends.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from bookies.errors import InvalidArgument

SHOWN_SIZE = 100  # characters of a line in a message about it


def check_object(line: bytes) -> None:
    """Check that the line is one JSON object in UTF-8. Raises ValueError."""
    try:
        # Numbers are parsed as text: any number of digits is valid.
        value = json.loads(line.decode(), parse_constant=_refuse, parse_int=str, parse_float=str)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("it is not an object")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


class JsonLines:
    """Check of batches of lines, for `mapInArrow`. `path`: of their file, for the error."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches. Raises `InvalidArgument`."""
        for batch in batches:
            for line in batch.column("value").cast(pa.binary()).to_pylist():
                try:
                    check_object(line)
                except ValueError as error:
                    shown = line.decode(errors="replace")[:SHOWN_SIZE]
                    raise InvalidArgument(
                        f"file {self._path}: a line is not a JSON object: {shown} ({error}); use --format text to "
                        "import any line as an entry"
                    ) from None
            yield batch


def csv_lines(rows: Sequence[Sequence[Any]]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC).writerows(rows)
    return buffer.getvalue().encode()
