"""Messages of etcd's API: worked examples as bytes, by the published numbers of the fields."""

from __future__ import annotations

import pytest

from bookies.encoding import protobuf
from bookies.metadata.etcd import etcd_messages as messages
from bookies.metadata.etcd.etcd_port import (
    Answer,
    Delete,
    Get,
    HeldBy,
    KeyValue,
    MadeAt,
    Only,
    Put,
    WrittenAt,
)


def field(number: int, content: bytes) -> bytes:
    """One with a length."""
    return protobuf.pack_varint(number << 3 | 2) + protobuf.pack_varint(len(content)) + content


def test_a_transaction() -> None:
    packed = messages.pack_transaction(
        [WrittenAt("a", 5), MadeAt("b", 0), WrittenAt("c", -1), HeldBy("d", 300)],
        [Put("a", b"xy", 9), Delete("b"), Delete("c/", "c0")],
        [Get("a", "b", 100, keys_only=True), Get("a")],
    )
    assert packed == b"".join(
        [
            field(1, b"\x10\x02\x1a\x01a\x30\x05"),
            field(1, b"\x10\x01\x1a\x01b\x28\x00"),
            field(1, b"\x10\x02\x1a\x01c\x30" + b"\xff" * 9 + b"\x01"),
            field(1, b"\x10\x04\x1a\x01d\x40\xac\x02"),
            field(2, field(2, b"\x0a\x01a\x12\x02xy\x18\x09")),
            field(2, field(3, b"\x0a\x01b")),
            field(2, field(3, b"\x0a\x02c/\x12\x02c0")),
            field(3, field(1, b"\x0a\x01a\x12\x01b\x18\x64\x40\x01")),
            field(3, field(1, b"\x0a\x01a\x18\x00\x40\x00")),
        ]
    )


def test_an_answer() -> None:
    header = field(1, b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x18\x2a")  # an unsigned id of the cluster
    item = field(2, b"\x0a\x02\xffk\x10\x05\x18\x06\x20\x02\x2a\x01v\x30\x09")
    data = header + b"\x10\x01" + field(3, field(2, field(1, b"\x18\x2a"))) + field(3, field(1, item + b"\x20\x01"))
    data += field(3, field(1, b""))
    answer = messages.parse_answer(data, ([Put("k", b""), Get("k"), Get("x")], []))
    found = KeyValue("\udcffk", b"v", 5, 6, 2, 9)
    assert answer == Answer(True, 42, [[found], []])
    assert messages.parse_answer(header, ([Put("k", b"")], [])) == Answer(False, 42, [])
    with pytest.raises(ValueError, match="0 results for 1 operations"):
        messages.parse_answer(header, ([], [Get("k")]))


def test_leases_and_identity() -> None:
    assert messages.pack_grant(10) == b"\x08\x0a"
    assert messages.pack_lease(300) == b"\x08\xac\x02"
    assert messages.parse_lease(field(1, b"\x18\x01") + b"\x10\xac\x02\x18\x0a") == (300, 10)
    assert messages.parse_lease(b"\x10\xac\x02") == (300, 0)
    assert messages.pack_authenticate("u", "ö") == b"\x0a\x01u\x12\x02\xc3\xb6"
    assert messages.parse_token(field(2, b"abc.1")) == "abc.1"
    with pytest.raises(ValueError, match="no token"):
        messages.parse_token(b"")


def test_watches() -> None:
    assert messages.pack_watch(3, "a", None, 7) == field(1, b"\x0a\x01a\x18\x07\x38\x03")
    assert messages.pack_watch(3, "a/", "a0", 7) == field(1, b"\x0a\x02a/\x12\x02a0\x18\x07\x38\x03")
    puts, deletions = (messages.pack_watch(3, "a", None, 7, only=only) for only in (Only.PUTS, Only.DELETIONS))
    assert puts == field(1, b"\x0a\x01a\x18\x07\x28\x01\x38\x03")  # a filter against deletions
    assert deletions == field(1, b"\x0a\x01a\x18\x07\x28\x00\x38\x03")
    assert messages.pack_unwatch(3) == field(2, b"\x08\x03")
    made = messages.parse_watch_news(b"\x10\x03\x18\x01")
    assert made == messages.WatchNews(3, has_events=False, is_ended=False)
    changed = messages.parse_watch_news(b"\x10\x03" + field(11, b"\x08\x01" + field(2, b"\x0a\x01a")))
    assert changed == messages.WatchNews(3, has_events=True, is_ended=False)
    put = messages.parse_watch_news(b"\x10\x03" + field(11, field(2, b"\x0a\x01a")))
    assert put.has_events
    compacted = messages.parse_watch_news(b"\x10\x03\x20\x01\x28\x63")
    assert compacted == messages.WatchNews(3, has_events=False, is_ended=True)


@pytest.mark.parametrize("data", [b"", b"\x10\x01"])
def test_an_answer_without_a_header(data: bytes) -> None:
    with pytest.raises(ValueError, match="no header"):
        messages.parse_answer(data, ((), ()))


def test_a_key_without_a_name_has_an_empty_one() -> None:
    """Protobuf leaves out what is empty."""
    data = b"\x0a\x02\x18\x05" + b"\x10\x01" + b"\x1a\x06\x0a\x04\x12\x02\x18\x05"
    answer = messages.parse_answer(data, ((Get("k"),), ()))
    assert [(item.key, item.mod_revision) for item in answer.items[0]] == [("", 5)]
