"""Entries in bodies and answers: what is read, what is refused, and what comes back."""

from __future__ import annotations

import json

import pytest

from bookies.encoding.envelope import Record
from bookies.protocol.log import Position
from bookies.protocol.log.records import LogRecord
from bookies.web.data.forms import BINARY, ENTRIES_MAX, LINES, PREFIXED, Page, page_response, parse_entries
from bookies.web.messages import Problem, Request


def request(body: bytes, kind: str = "", **headers: str) -> Request:
    return Request("POST", "/", {}, "localhost", {"content-type": kind, **headers}, body)


def test_any_type_that_is_no_list_is_one_entry() -> None:
    for kind in ("", BINARY, "text/plain; charset=utf-8", "application/json", "application/x-www-form-urlencoded"):
        assert parse_entries(request(b"a\nb", kind)) == [Record(b"a\nb")]
    assert parse_entries(request(b"")) == [Record(b"")]


def test_lines_of_json() -> None:
    lines = [
        {"text": "ä", "key": "k", "headers": {"h": "1", "n": None}},
        {"json": {"a": [1, "ä"]}},
        {"base64": "AP8="},
    ]
    body = b"\n".join(json.dumps(line).encode() for line in lines) + b"\n\n"
    assert parse_entries(request(body, f"{LINES}; charset=utf-8")) == [
        Record("ä".encode(), b"k", [("h", b"1"), ("n", None)]),
        Record('{"a":[1,"ä"]}'.encode()),
        Record(b"\0\xff"),
    ]


def test_a_bad_line_is_named() -> None:
    with pytest.raises(Problem, match="line 2 of the body: an object is needed") as caught:
        parse_entries(request(b'{"text":"a"}\n[]', LINES))
    assert caught.value.status == 400


def test_entries_with_lengths() -> None:
    assert parse_entries(request(b"\0\0\0\1a\0\0\0\0", PREFIXED)) == [Record(b"a"), Record(b"")]
    for body in (b"\0\0\0", b"\0\0\0\2a", b"\0\0\0\1a\xff\xff\xff\xff"):
        with pytest.raises(Problem, match="cut off"):
            parse_entries(request(body, PREFIXED))


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"", PREFIXED, 400),
        (b"\n", LINES, 400),
        (b"\0\0\0\0" * (ENTRIES_MAX + 1), PREFIXED, 413),
        (b"\0\0\0\0" * 1_000_000, PREFIXED, 413),
        (b"\n" * 4_000_000, LINES, 413),
    ],
)
def test_numbers_of_entries_are_bounded(body: bytes, kind: str, status: int) -> None:
    with pytest.raises(Problem, match="a request has 1 to 1,000") as caught:
        parse_entries(request(body, kind))
    assert caught.value.status == status


def test_pages_in_each_form() -> None:
    page = Page(
        [(f"7:{at}", LogRecord(Position(7, at), value)) for at, value in enumerate((b"a", b"\xff"))], "7:2", True
    )
    answer = page_response(request(b""), page)
    assert (answer.headers["Bk-Next"], answer.headers["Bk-End"]) == ("7:2", "true")
    assert json.loads(answer.body) == {  # type: ignore[arg-type]
        "entries": [{"position": "7:0", "text": "a"}, {"position": "7:1", "base64": "/w=="}],
        "next": "7:2", "end": True,
    }  # fmt: skip
    for kind in (BINARY, PREFIXED):
        answer = page_response(request(b"", accept=kind), page)
        assert (answer.content_type, answer.body) == (kind, b"\0\0\0\1a\0\0\0\1\xff")
    lines = page_response(request(b"", accept=LINES), page)
    assert isinstance(lines.body, bytes)
    assert [json.loads(line)["position"] for line in lines.body.splitlines()] == ["7:0", "7:1"]
