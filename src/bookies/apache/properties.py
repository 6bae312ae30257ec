"""Java's properties files, the format of Apache's configuration. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_SEPARATOR = re.compile(r"(?<!\\)(?:\\\\)*(?P<mark>\s*[=:]\s*|\s+)")
_REFERENCE = re.compile(r"\$\{([^${}]+)\}")


def parse_properties(text: str) -> dict[str, str]:
    """Return keys and values, in their order. A repeated key extends a list, with a comma.

    `${key}` is replaced by that key's value, if it exists.
    """
    properties: dict[str, str] = {}
    for _, line in _logical_lines(text):
        separator = _SEPARATOR.search(line)
        value = "" if separator is None else line[separator.end("mark") :]
        key, value = _key_of(line), _unescaped(value).strip()
        properties[key] = f"{properties[key]},{value}" if key in properties else value
    return {
        key: _REFERENCE.sub(lambda name: properties.get(name[1], name[0]), value) for key, value in properties.items()
    }


def key_lines(text: str) -> dict[str, int]:
    """Return the line, from 1, on which each key stands first."""
    lines: dict[str, int] = {}
    for number, line in _logical_lines(text):
        lines.setdefault(_key_of(line), number)
    return lines


def _key_of(line: str) -> str:
    separator = _SEPARATOR.search(line)
    return _unescaped(line if separator is None else line[: separator.start("mark")])


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines without comments and empty ones, with the number of the first.

    A line that ends in a backslash continues in the next.
    """
    line, first = "", 0
    for number, part in enumerate(text.splitlines(), 1):
        part = part.lstrip()
        if not line and (not part or part[0] in "#!"):
            continue
        first = first if line else number
        line += part
        if (len(line) - len(line.rstrip("\\"))) % 2:
            line = line[:-1]
            continue
        yield first, line
        line = ""
    if line:
        yield first, line


def _unescaped(text: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return _ESCAPES.get(match[2], match[2])

    return re.sub(r"\\(?:u([0-9A-Fa-f]{4})|(.))", replaced, text)


def items_of(value: str) -> tuple[str, ...]:
    """Split a list as Apache writes it: `a,b`."""
    return tuple(part.strip() for part in value.split(",") if part.strip())
