"""The writer emits one form; the reader takes every form, and nothing that is none."""

from __future__ import annotations

import pytest

from bookies.encoding.protobuf import Schema, pack_text, parse_text
from bookies.encoding.textproto import Symbol, pack, parse, quote
from bookies.model import LedgerState


def test_canonical_form() -> None:
    text = pack(
        [
            ("name", "b1"),
            ("port", -3181),
            ("ok", True),
            ("state", Symbol("OPEN")),
            ("segment", [("first", 0), ("inner", [("key", b"\x00\xff")])]),
            ("segment", [("first", 7)]),
        ]
    )
    assert text == (
        b'name: "b1"\n'
        b"port: -3181\n"
        b"ok: true\n"
        b"state: OPEN\n"
        b"segment {\n  first: 0\n  inner {\n"
        b'    key: "\\000\\377"\n'
        b"  }\n}\n"
        b"segment {\n  first: 7\n}\n"
    )


def test_escapes_are_canonical() -> None:
    assert quote(b"\a\b\f\n\r\t\v\\\"'") == '"\\a\\b\\f\\n\\r\\t\\v\\\\\\"\\\'"'
    assert quote("é\x7f~?") == '"\\303\\251\\177~?"'


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (b"", []),
        (b" \t\r\n # only a remark", []),
        (b"a:1 b:2,c:3;d:4", [("a", 1), ("b", 2), ("c", 3), ("d", 4)]),
        (b"a: 0x1F b: 017 c: -5 d: - 5", [("a", 31), ("b", 15), ("c", -5), ("d", -5)]),
        (b"a: 1.5 b: -2e3 c: .5f d: 1f", [("a", 1.5), ("b", -2000.0), ("c", 0.5), ("d", 1.0)]),
        (b"a: 'it''s' b: \"x\" \"y\"\n'z'", [("a", b"its"), ("b", b"xyz")]),
        (b"a: '\\x41\\102\\u00e9\\U0001F600\\?'", [("a", b"AB\xc3\xa9\xf0\x9f\x98\x80?")]),
        ('a: "Grüße"'.encode(), [("a", "Grüße".encode())]),
        (b"m { a: 1 } n: { b: 2 } o < c: 3 >", [("m", [("a", 1)]), ("n", [("b", 2)]), ("o", [("c", 3)])]),
        (b"a: [1, 2] m [{b: 1}, {b: 2}] e: []", [("a", 1), ("a", 2), ("m", [("b", 1)]), ("m", [("b", 2)])]),
        (b"e: OPEN f: true g: -inf", [("e", "OPEN"), ("f", "true"), ("g", "-inf")]),
    ],
)
def test_every_spelling_is_read(text: bytes, fields: object) -> None:
    assert parse(text) == fields


def test_the_last_of_a_singular_field_counts() -> None:
    assert dict(parse(b"a: 1\na: 2\n")) == {"a": 2}


@pytest.mark.parametrize(
    "text",
    [
        b"a",
        b"a:",
        b"a 1",
        b"a: {",
        b"a { b: 1",
        b"}",
        b"a: 1 }",
        b"a { b: 1 >",
        b"a: [1",
        b'a: "x',
        b'a: "x\ny"',
        b"a: 12b",
        b"a: 09",
        b"a: 0x",
        b'a: "\\q"',
        b'a: "\\777"',
        b'a: "\\U00110000"',
        b": 1",
        b"1: 1",
        b"a: @",
        b"\xff\xfe",
        b"a {" * 100,
    ],
)
def test_what_is_no_message(text: bytes) -> None:
    with pytest.raises(ValueError, match="line 1: "):
        parse(text)


def test_errors_name_the_line() -> None:
    with pytest.raises(ValueError, match="line 3: bad number"):
        parse(b"a: 1\nb: 2\nc: 09\n")


def test_only_known_values_are_written() -> None:
    with pytest.raises(TypeError, match="cannot write a float"):
        pack([("a", 1.5)])


def test_a_number_of_an_enumeration_is_one_that_it_has() -> None:
    schema = Schema({"state": (1, LedgerState)})
    assert parse_text(schema, b"state: 3") == [("state", LedgerState.CLOSED)]
    assert pack_text(schema, [("state", 3)]) == b"state: CLOSED\n"
    with pytest.raises(ValueError, match="-5 is not a valid LedgerState"):
        parse_text(schema, b"state: -5\nstate: OPEN\n")
