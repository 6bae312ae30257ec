"""Records of a log as JSON, an object each: what programs append, and what they read. See docs/reference/http.md."""

from __future__ import annotations

import base64
import json
from typing import Any

from bookies.encoding.documents import parse_json
from bookies.encoding.envelope import Header, Record
from bookies.protocol.log.records import TIME_MAX, LogRecord, check_header_name
from bookies.protocol.log.sequences import HEADER, parse_number

PRINTED = ("position", "writer", "sequence")  # fields of a record that was read: the next append decides them


def parse_object(line: bytes) -> Record:
    """Return the record of a line: `{"text": ...}`, `{"json": ...}` or `{"base64": ...}`. The text null is no value.

    It may have `key`, `headers` and `time_ms`. A key, and the value of a header, is a string, null or
    `{"base64": ...}`; a header that occurs several times has a list of them. What else `row_of` prints is ignored.
    Raises ValueError.
    """
    content = parse_json(line)
    if not isinstance(content, dict):
        raise ValueError("an object is needed")
    kinds = [name for name in ("text", "json", "base64") if name in content]
    if len(kinds) != 1:
        raise ValueError("it needs one of text, json and base64, and may have key, headers and time_ms")
    if unknown := content.keys() - {*kinds, "key", "headers", "time_ms", *PRINTED}:
        names = ", ".join(sorted(unknown))
        raise ValueError(f"unknown: {names}; it may have key, headers and time_ms beside text, json or base64")
    (kind,) = kinds
    return Record(
        _value(kind, content[kind]),
        _bytes(content.get("key"), "key"),
        _parse_headers(content["headers"]) if "headers" in content else None,
        _microseconds(content["time_ms"]) if "time_ms" in content else None,
    )


def _value(kind: str, value: object) -> bytes | None:
    if kind == "json":
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    if kind == "base64":
        return base64.b64decode(_text(value, kind), validate=True)
    return None if value is None else _text(value, kind)


def _microseconds(time_ms: object) -> int:
    if type(time_ms) is not int or not -TIME_MAX // 1000 < time_ms <= TIME_MAX // 1000:
        raise ValueError("time_ms has to be a whole number, milliseconds since 1970")
    return time_ms * 1000


def _text(value: object, name: str) -> bytes:
    if not isinstance(value, str):
        raise ValueError(f"{name} has to be a string")
    return value.encode()


def _bytes(value: object, name: str) -> bytes | None:
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return base64.b64decode(_text(value["base64"], name), validate=True)
    return None if value is None else _text(value, name)


def _parse_headers(value: object) -> list[Header]:
    if not isinstance(value, dict):
        raise ValueError("headers has to be an object of strings")
    return [
        (check_header_name(name), _bytes(item, f"headers.{name}"))
        for name, items in value.items()
        for item in (items if isinstance(items, list) else [items])
    ]


def row_of(position: str, record: Record | LogRecord) -> dict[str, Any]:
    """Return a record as JSON that `parse_object` reads back: `text` if the value is UTF-8 or null, else `base64`."""
    value = _shown(record.value)
    row: dict[str, Any] = {"position": position, **(value if isinstance(value, dict) else {"text": value})}
    if record.key is not None:
        row["key"] = _shown(record.key)
    others: dict[str, list[Any]] = {}
    for name, content in record.headers or ():
        numbered = parse_number(content) if name == HEADER else None
        if numbered is not None:
            row["writer"], row["sequence"] = numbered
        else:
            others.setdefault(name, []).append(_shown(content))
    if others:
        row["headers"] = {name: items[0] if len(items) == 1 else items for name, items in others.items()}
    if record.timestamp_us is not None:
        row["time_ms"] = record.timestamp_us // 1000
    return row


def _shown(data: bytes | None) -> str | dict[str, str] | None:
    """Return data as a string, if it is UTF-8."""
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data or b"").decode()}
