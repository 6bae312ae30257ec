"""Java's properties files, as Apache's configuration is written. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_SEPARATOR = re.compile(r"(?<!\\)(?:\\\\)*(?P<mark>\s*[=:]\s*|\s+)")
_REFERENCE = re.compile(r"\$\{([^${}]+)\}")


def parse_properties(text: str) -> dict[str, str]:
    """Keys and values, in their order. A key that comes again adds to a list, with a comma. `${key}` is replaced by
    that key's value, where there is one.
    """
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        separator = _SEPARATOR.search(line)
        key = line if separator is None else line[: separator.start("mark")]
        value = "" if separator is None else line[separator.end("mark") :]
        key, value = _unescaped(key), _unescaped(value).strip()
        found[key] = f"{found[key]},{value}" if key in found else value
    return {key: _REFERENCE.sub(lambda name: found.get(name[1], name[0]), value) for key, value in found.items()}


def _logical_lines(text: str) -> Iterator[str]:
    """Without comments and empty ones; lines that end in a backslash go on in the next."""
    line = ""
    for part in text.splitlines():
        part = part.lstrip()
        if not line and (not part or part[0] in "#!"):
            continue
        line += part
        if (len(line) - len(line.rstrip("\\"))) % 2:
            line = line[:-1]
            continue
        yield line
        line = ""
    if line:
        yield line


def _unescaped(text: str) -> str:
    def replaced(found: re.Match[str]) -> str:
        if found[1]:
            return chr(int(found[1], 16))
        return _ESCAPES.get(found[2], found[2])

    return re.sub(r"\\(?:u([0-9A-Fa-f]{4})|(.))", replaced, text)


def items_of(value: str) -> tuple[str, ...]:
    """A list as Apache writes it: `a,b`."""
    return tuple(part.strip() for part in value.split(",") if part.strip())
