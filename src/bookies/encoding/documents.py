"""JSON and TOML that another program or an operator wrote: every malformed text raises ValueError.

Python's parsers let some texts pass that no caller expects: nesting that exceeds the interpreter's stack raises
RecursionError, infinite numbers fail only in `int`, and half of a surrogate pair fails only when it is written again.
"""

from __future__ import annotations

import json
import math
from typing import Any


def parse_json(data: str | bytes) -> Any:
    """Return the value of a JSON text in UTF-8. Raises ValueError."""
    text = data if isinstance(data, str) else data.decode("utf-8")
    try:
        value = _DECODER.decode(text)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


def parse_toml(data: bytes) -> dict[str, Any]:
    """Return the tables of a TOML file. Raises ValueError."""
    import tomllib  # few processes read such a file

    try:
        return tomllib.loads(data.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)
