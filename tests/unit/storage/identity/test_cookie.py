"""The cookie as text."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bookies.config import BookieConfig
from bookies.errors import CorruptRecord
from bookies.storage.identity import Cookie, cookie
from bookies.storage.identity.cookie import parse

EXAMPLE = rb"""5
bookieHost: "192.0.2.10:3181"
journalDir: "/data/journal"
ledgerDirs: "2\t/data/ledger0\t/data/ledger1"
instanceId: "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
indexDirs: "2\t/data/index0\t/data/index1"
"""
COOKIE = Cookie(
    "192.0.2.10:3181",
    "/data/journal",
    ("/data/ledger0", "/data/ledger1"),
    "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0",
    ("/data/index0", "/data/index1"),
)


def test_the_worked_example() -> None:
    assert COOKIE.pack() == EXAMPLE
    assert parse(EXAMPLE) == COOKIE


def test_what_is_not_configured_is_left_out() -> None:
    text = Cookie("b1", "j0,j1", ("l",)).pack()
    assert text == b'5\nbookieHost: "b1"\njournalDir: "j0,j1"\nledgerDirs: "1\\tl"\n'
    assert parse(text) == Cookie("b1", "j0,j1", ("l",))


def test_odd_paths() -> None:
    odd = Cookie("b\u00e9", 'a "b"', ("/x y", "/\u65e5\u672c\\"), "i", ())
    assert odd.pack().isascii()
    assert parse(odd.pack()) == odd


def test_older_layouts() -> None:
    layout_4 = EXAMPLE.replace(b"5\n", b"4\n", 1).replace(b'indexDirs: "2\\t/data/index0\\t/data/index1"\n', b"")
    found = parse(layout_4)
    assert found == replace(COOKIE, layout=4, index_directories=None)
    assert found.pack().startswith(b"5\n")
    layout_3 = b"3\n192.0.2.10:3181\n/data/journal\n2\t/data/ledger0\t/data/ledger1\n"
    assert parse(layout_3) == replace(found, layout=3, instance_id=None)


def test_any_text_format_is_read() -> None:
    text = b"5\n ledgerDirs:'1\tl' # new\n journalDir : \"\\x6a\" bookieHost: 'b' '1';"
    assert parse(text) == Cookie("b1", "j", ("l",))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"5",
        b"2\nb\nj\n1\tl\n",
        b"6\n" + EXAMPLE[2:],
        b"\0" * 64,
        b"3\nb1\n",
        b"3\n\xff\xff\nj\n1\tl\n",
        EXAMPLE[:40],
        EXAMPLE.replace(b"journalDir", b"journal"),
        EXAMPLE.replace(b'"/data/journal"', b"7"),
        EXAMPLE.replace(b'"2\\t/data/ledger0', b'"3\\t/data/ledger0'),
        EXAMPLE.replace(b'"2\\t/data/ledger0\\t/data/ledger1"', b'""'),
        EXAMPLE.replace(b"/data/journal", b"\\377"),
    ],
)
def test_what_is_no_cookie(data: bytes) -> None:
    with pytest.raises(CorruptRecord, match="VERSION at byte"):
        parse(data)


def test_the_cookie_of_a_configuration() -> None:
    config = BookieConfig(journal_directories=("j0", "j1"), ledger_directories=("l", "j0"), index_directories=("i",))
    assert cookie.master_cookie(config, "b1", "c") == Cookie("b1", "j0,j1", ("l", "j0"), "c", ("i",))
    assert cookie.directories_of(config) == ["j0", "j1", "l", "i"]
    assert cookie.master_cookie(BookieConfig(), "b1", None).index_directories is None
