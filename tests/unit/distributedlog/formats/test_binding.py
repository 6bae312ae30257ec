"""The binding of a namespace. Source: distributedlog 2.2."""

from __future__ import annotations

import pytest

from bookies.distributedlog.formats.binding import Binding, parse_binding
from bookies.errors import MetadataCorrupt

DATA = (
    b'1\nBKDL\n{"1":{"str":"zk1:2181,zk2:2181"},"2":{"str":"/ledgers"},"3":{"tf":1},"4":{"tf":0},'
    b'"5":{"str":"zk1:2181,zk2:2181"},"6":{"str":"zk1:2181"},"7":{"str":"zk1:2181"}}'
)
BINDING = Binding("zk1:2181,zk2:2181", "/ledgers", "zk1:2181", "zk1:2181,zk2:2181", "zk1:2181")


def test_the_example_of_the_specification() -> None:
    assert parse_binding(DATA, "/dl") == BINDING
    assert BINDING.pack() == DATA


def test_optional_fields() -> None:
    binding = Binding("zk:1", "/l", acl_root=".acl", first_lssn=5, is_federated=True, encodes_region=True)
    assert parse_binding(binding.pack(), "/dl") == binding
    assert b'"9":{"i64":5},"10":{"tf":1}' in binding.pack()
    assert parse_binding(b'1\nBKDL\n{"1":{"str":"a"},"2":{"str":"/b"},"77":{"str":"later"}}', "/dl") == Binding(
        "a", "/b"
    )


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"2\nBKDL\n{}", b"1\nOTHER\n{}", b"1\nBKDL\n", b"1\nBKDL\n[]", b"1\nBKDL\n{}", b'1\nBKDL\n{"1":{}}'),
        b'1\nBKDL\n{"1":{"str":"h"},"2":{"str":"/l"},"9":{"i64":1e999}}',
        b"1\nBKDL\n" + b"[" * 100_000,
    ],
)
def test_damage_is_refused(data: bytes) -> None:
    with pytest.raises(MetadataCorrupt, match="/dl"):
        parse_binding(data, "/dl")
