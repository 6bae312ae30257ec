"""Protobuf text format: the canonical form written, any form read.

A message is a list of (field name, value) pairs in the order of the text; a repeated field is several pairs. Values
are `int`, `float`, `bytes` (strings and bytes alike, undecoded), `Symbol` (enum values, true, false, inf) and lists
(nested messages). `dict(parse(text))` is the protobuf reading of singular fields: the last one wins.

Source: metadata 0.1, storage 9.2.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Union

_DEPTH_MAX = 32  # nested messages; the documents kept in this format have one level

_TOKEN = re.compile(
    rb"""(?P<space>(?:[ \t\r\n\f\v]|\#[^\n]*)+)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<float>-?\s*(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eEfF]))(?:[eE][+-]?[0-9]+)?[fF]?)(?![0-9A-Za-z_.])
    |(?P<int>-?\s*(?:0[xX][0-9a-fA-F]+|[0-9]+))(?![0-9A-Za-z_.])
    |(?P<name>-?[A-Za-z_][A-Za-z0-9_]*)
    |(?P<mark>[:;,{}<>\[\]])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(
    rb"\\(?:(?P<octal>[0-7]{1,3})|[xX](?P<hex>[0-9a-fA-F]{1,2})"
    rb"|u(?P<u4>[0-9a-fA-F]{4})|U(?P<u8>[0-9a-fA-F]{8})|(?P<letter>.))",
    re.DOTALL,
)
_LETTERS = {
    b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v",
    b"\\": b"\\", b'"': b'"', b"'": b"'", b"?": b"?",
}  # fmt: skip
_CANONICAL = {
    byte: bytes([byte]).decode("ascii") if 0x20 <= byte <= 0x7E else f"\\{byte:03o}" for byte in range(256)
} | {character[0]: "\\" + letter.decode("ascii") for letter, character in _LETTERS.items() if letter != b"?"}


class Symbol(str):
    """A bare word: the name of an enum value, `true` or `false`."""

    __slots__ = ()


Value = Union[int, float, bytes, Symbol, "Message"]
Message = list[tuple[str, Value]]


def pack(fields: Sequence[tuple[str, object]], *, indent: str = "") -> bytes:
    """Return the canonical text of a message; fields are written in the order given.

    Values: `int`, `bool`, `Symbol`, `bytes`, `str` (written as its UTF-8 bytes), a sequence of pairs for a nested
    message. Raises TypeError for any other value.
    """
    return _pack_lines(fields, indent).encode("ascii")


def _pack_lines(fields: Sequence[tuple[str, object]], indent: str) -> str:
    lines = []
    for name, value in fields:
        if isinstance(value, bool):
            lines.append(f"{indent}{name}: {'true' if value else 'false'}\n")
        elif isinstance(value, int | Symbol):
            lines.append(f"{indent}{name}: {value}\n")
        elif isinstance(value, str | bytes):
            lines.append(f"{indent}{name}: {quote(value)}\n")
        elif isinstance(value, Sequence):
            lines.append(f"{indent}{name} {{\n{_pack_lines(value, indent + '  ')}{indent}}}\n")
        else:
            raise TypeError(f"{name}: cannot write a {type(value).__name__} in protobuf text format")
    return "".join(lines)


def quote(value: str | bytes) -> str:
    """Return a string literal: double quotes, and escapes for everything but printable ASCII."""
    data = value.encode("utf-8") if isinstance(value, str) else value
    return '"' + "".join([_CANONICAL[byte] for byte in data]) + '"'


def parse(text: bytes) -> Message:
    """Parse any spelling of a message: white space, comments, either quote, `<...>`, `[...]`, optional `:` and commas.

    Raises ValueError that names the line.
    """
    return _Parser(text).message(b"", 0)


class _Parser:
    def __init__(self, text: bytes) -> None:
        self._text = text
        self._at = 0  # end of the current token
        self._start = 0
        self._kind = ""
        self._token = b""
        self._advance()

    def _advance(self) -> None:
        """Move to the next token; at the end of the text both kind and token are empty."""
        self._kind, self._token = "space", b""
        while self._kind == "space":
            self._start = self._at
            if self._at >= len(self._text):
                self._kind, self._token = "", b""
                return
            match = _TOKEN.match(self._text, self._at)
            if match is None or match.lastgroup is None:
                raise self._error(f"cannot read {self._text[self._at : self._at + 20]!r}")
            self._kind, self._token = match.lastgroup, match[0]
            self._at = match.end()

    def _error(self, problem: str) -> ValueError:
        line = self._text.count(b"\n", 0, self._start) + 1
        return ValueError(f"line {line}: {problem}")

    def _skip(self, *marks: bytes) -> bool:
        if self._kind == "mark" and self._token in marks:
            self._advance()
            return True
        return False

    def message(self, closing: bytes, depth: int) -> Message:
        """Parse fields up to and including the `closing` mark, or to the end of the text if that is empty."""
        if depth > _DEPTH_MAX:
            raise self._error(f"messages nested more than {_DEPTH_MAX} deep")
        fields: Message = []
        while self._token != closing:
            if self._kind != "name":
                raise self._error(f"expected a field name, not {self._token!r}" if self._kind else "ends too early")
            name = self._token.decode("ascii")
            self._advance()
            has_colon = self._skip(b":")
            if self._skip(b"["):
                while not self._skip(b"]"):
                    fields.append((name, self._value(has_colon, depth)))
                    self._skip(b",")
            else:
                fields.append((name, self._value(has_colon, depth)))
            self._skip(b",", b";")
        if closing:
            self._advance()
        return fields

    def _value(self, has_colon: bool, depth: int) -> Value:
        kind, token = self._kind, self._token
        if kind == "mark" and token in (b"{", b"<"):
            self._advance()
            return self.message(b"}" if token == b"{" else b">", depth + 1)
        if not has_colon:
            raise self._error("expected ':' or a nested message")
        if kind == "string":
            parts = []
            while self._kind == "string":
                parts.append(self._unquote(self._token))
                self._advance()
            return b"".join(parts)
        value = self._bare_value(kind, token)
        self._advance()
        return value

    def _bare_value(self, kind: str, token: bytes) -> Value:
        try:
            if kind == "int":
                return _parse_int(token)
            if kind == "float":
                return float(b"".join(token.split()).rstrip(b"fF"))
        except ValueError as error:
            raise self._error(f"bad number {token!r}") from error
        if kind == "name":
            return Symbol(token.decode("ascii"))
        raise self._error(f"expected a value, not {token!r}" if kind else "ends too early")

    def _unquote(self, literal: bytes) -> bytes:
        return _ESCAPE.sub(self._unescape, literal[1:-1])

    def _unescape(self, match: re.Match[bytes]) -> bytes:
        digits = match["u4"] or match["u8"]
        try:
            if match["octal"]:
                return bytes([int(match["octal"], 8)])
            if match["hex"]:
                return bytes([int(match["hex"], 16)])
            if digits:
                return chr(int(digits, 16)).encode("utf-8")
            return _LETTERS[match["letter"]]
        except (ValueError, KeyError, OverflowError) as error:
            raise self._error(f"bad escape {match[0]!r}") from error


def _parse_int(token: bytes) -> int:
    """Parse decimal, 0x hexadecimal or 0 octal, with an optional minus."""
    digits = b"".join(token.split())
    sign = -1 if digits.startswith(b"-") else 1
    digits = digits.lstrip(b"-")
    if digits[:2].lower() == b"0x":
        return sign * int(digits, 16)
    return sign * int(digits, 8 if len(digits) > 1 and digits.startswith(b"0") else 10)
