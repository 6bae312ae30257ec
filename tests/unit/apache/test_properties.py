"""Java's properties files, with what people really write into them."""

from __future__ import annotations

import pytest

from bookies.apache.properties import items_of, parse_properties


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=1\nb = 2 \n c:3\nd 4\ne", {"a": "1", "b": "2", "c": "3", "d": "4", "e": ""}),
        ("# a=1\n  ! b=2\n\n   \nc=#3", {"c": "#3"}),
        ("a=1,\\\n  2,\\\n  3\nb=4", {"a": "1,2,3", "b": "4"}),
        ("a=1\na=2\n", {"a": "1,2"}),
        ("uri=zk+hierarchical://h:2181;i:2181/ledgers", {"uri": "zk+hierarchical://h:2181;i:2181/ledgers"}),
        ("a\\:b=c\\=d\\u0041\\t.", {"a:b": "c=dA\t."}),
        ("home=/data\nj=${home}/j,${other}", {"home": "/data", "j": "/data/j,${other}"}),
        ("a=b\\", {"a": "b"}),
        ("a=1\r\nb=2\r\n", {"a": "1", "b": "2"}),
        ("", {}),
    ],
)
def test_files_are_read_as_java_does(text: str, found: dict[str, str]) -> None:
    assert parse_properties(text) == found


def test_lists_have_no_empty_parts() -> None:
    assert items_of(" /a, /b,,/c ,") == ("/a", "/b", "/c")
    assert items_of("") == ()
