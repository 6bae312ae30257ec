"""Keys and texts in etcd: the worked examples, and what must be refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookies.errors import ConfigError, MetadataCorrupt
from bookies.metadata.etcd.etcd_layout import (
    LEDGER_ID_MAX,
    Keys,
    bookies_among,
    check_layout,
    parse_uri,
    stop_of,
)
from bookies.model import BookieId, BookieMode

KEYS = Keys("/s")


def test_ledgers() -> None:
    assert KEYS.ledger(5) == "/s/ledgers/00000000-0000-0000-0000-000000000005"
    assert KEYS.ledger(LEDGER_ID_MAX) == "/s/ledgers/00000000-0000-0000-7fff-ffffffffffff"
    assert KEYS.ledger((127 << 56) + 1) == "/s/ledgers/00000000-0000-0000-7f00-000000000001"
    assert KEYS.ledger(-1) is KEYS.ledger(LEDGER_ID_MAX + 1) is None
    for name in ("", "x", "00000000-0000-0000-8000-000000000000", "00000000-0000-0000-0000-00000000000A"):
        assert KEYS.ledger_id(KEYS.ledgers + name) is None


@given(st.integers(0, LEDGER_ID_MAX), st.integers(0, LEDGER_ID_MAX))
def test_keys_of_ledgers_are_in_the_order_of_their_ids(one: int, two: int) -> None:
    first, second = KEYS.ledger(one), KEYS.ledger(two)
    assert first is not None
    assert second is not None
    assert KEYS.ledger_id(first) == one
    assert (first < second) == (one < two)
    assert KEYS.ledgers < first < stop_of(KEYS.ledgers)


def test_other_keys() -> None:
    bookie = BookieId("h:1")
    assert KEYS.cookie(bookie) == "/s/cookies/h:1"
    assert KEYS.registration(bookie, BookieMode.WRITABLE) == "/s/bookies/writable/h:1"
    assert KEYS.registration(bookie, BookieMode.READ_ONLY) == "/s/bookies/readonly/h:1"
    assert KEYS.bucket(7) == "/s/buckets/007"
    assert KEYS.record("logs/a") == "/s/records/logs/a"
    assert KEYS.spent_list(LEDGER_ID_MAX) == "/s/spent/7fffffffffff"
    assert stop_of(KEYS.cookies) == "/s/cookies0"
    assert bookies_among("/s/cookies/", ["/s/cookies/b:1", "/s/cookies/a b", "/s/cookies/a:1"]) == ("a:1", "b:1")


def test_layouts() -> None:
    ours = dict(KEYS.fixed("x"))["/s/layout"]
    check_layout(ours)
    check_layout(ours + b"\n")
    for data in (b"", b"\xff", ours + b"1", b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1"):
        with pytest.raises(MetadataCorrupt, match="another driver, or a newer version, created the cluster"):
            check_layout(data)


@pytest.mark.parametrize(
    ("uri", "hosts", "scope"),
    [
        ("etcd://e/x", ("e:2379",), "/x"),
        ("ETCD+any://e1:1;e2:2,e3/prod/bk", ("e1:1", "e2:2", "e3:2379"), "/prod/bk"),
        (" etcd://[::1]:7/x ", ("[::1]:7",), "/x"),
    ],
)
def test_uris(uri: str, hosts: tuple[str, ...], scope: str) -> None:
    place = parse_uri(uri)
    assert (place.hosts, place.scope, place.options) == (hosts, scope, None)


def test_options() -> None:
    assert parse_uri("etcd://e/x?options=/a/b.toml").options == "/a/b.toml"


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("etcd:e/x", "is not a metadata URI for etcd: expected etcd://HOST:2379;HOST:2379/SCOPE"),
        ("etcd:///x", "names no etcd server in ''"),
        ("etcd://e;/x", "names no etcd server in ''"),
        ("etcd://e:99999/x", "names no etcd server in 'e:99999'"),
        ("etcd://user@e/x", "names no etcd server in 'user@e'"),
        ("etcd://e", "has no scope"),
        ("etcd://e/", "has no scope"),
        ("etcd://e/x/", "may not end in /"),
        ("etcd://e/x//y", "have an empty part"),
        ("etcd://e/x?user=y", "only options=FILE is known"),
        ("etcd://e/x?options=", "only options=FILE is known"),
    ],
)
def test_wrong_uris(uri: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_uri(uri)
    assert said in str(raised.value)
    assert repr(uri) in str(raised.value)
