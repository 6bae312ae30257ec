"""Records of a log as JSON, an object each: what programs append, and what they read. See docs/reference/http.md."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from bookies.encoding.documents import parse_json
from bookies.encoding.envelope import Header, Record
from bookies.protocol.log.records import TIME_MAX, LogRecord, check_header_name
from bookies.protocol.log.sequences import HEADER, parse_number

PRINTED = ("position", "writer", "sequence")  # fields of a record that was read: the next append decides them


def parse_object(line: bytes) -> Record:
    """Return the record of a line: `{"text": ...}`, `{"json": ...}` or `{"base64": ...}`.

    It may have `key`, `headers` and `time_ms`. What else `row_of` prints is ignored. Raises ValueError.
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
    key = content.get("key")
    return Record(
        _value(kind, content[kind]),
        None if key is None else _text(key, "key"),
        _parse_headers(content["headers"]) if "headers" in content else None,
        _microseconds(content["time_ms"]) if "time_ms" in content else None,
    )


def _value(kind: str, value: object) -> bytes:
    if kind == "json":
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    data = _text(value, kind)
    return base64.b64decode(data, validate=True) if kind == "base64" else data


def _microseconds(time_ms: object) -> int:
    if type(time_ms) is not int or not 0 <= time_ms <= TIME_MAX // 1000:
        raise ValueError("time_ms has to be a whole number, milliseconds since 1970")
    return time_ms * 1000


def _text(value: object, name: str) -> bytes:
    if not isinstance(value, str):
        raise ValueError(f"{name} has to be a string")
    return value.encode()


def _parse_headers(value: object) -> list[Header]:
    if not isinstance(value, dict):
        raise ValueError("headers has to be an object of strings")
    return [
        (check_header_name(name), None if item is None else _text(item, f"headers.{name}"))
        for name, item in value.items()
    ]


def row_of(position: str, record: Record | LogRecord) -> dict[str, Any]:
    """Return a record as JSON: `text` if the value is UTF-8, else `base64`."""
    row: dict[str, Any] = {"position": position, **_textual(record.value or b"")}
    if record.key is not None:
        row["key"] = record.key.decode("utf-8", "backslashreplace")
    others: dict[str, str | None] = {}
    for name, value in record.headers or ():
        numbered = parse_number(value) if name == HEADER else None
        if numbered is not None:
            row["writer"], row["sequence"] = numbered
        else:
            others[name] = None if value is None else value.decode("utf-8", "backslashreplace")
    if others:
        row["headers"] = others
    if record.timestamp_us is not None:
        row["time_ms"] = record.timestamp_us // 1000
    return row


def _textual(value: bytes) -> Mapping[str, str]:
    try:
        return {"text": value.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
