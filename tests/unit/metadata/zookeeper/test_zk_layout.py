"""Paths, names and texts in ZooKeeper: the worked examples, Apache's own znodes, and what must be refused."""

from __future__ import annotations

import base64
import json
import pathlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookies.errors import ConfigError, MetadataCorrupt
from bookies.metadata.interface.spent_ids import SPENT_SIZE
from bookies.metadata.zookeeper.zk_layout import (
    LEDGER_ID_MAX,
    Manager,
    Paths,
    bookies_among,
    generated_number,
    high_numbers,
    ledger_id_of,
    ledger_path,
    ledgers_among,
    pack_layout,
    parse_layout,
    parse_uri,
    record_name,
    tops_among,
)
from bookies.model import BookieId, BookieMode

GOLDEN = pathlib.Path(__file__).parents[3] / "golden" / "metadata"
FLAT, HIERARCHICAL, LONG, LEGACY = Manager.FLAT, Manager.HIERARCHICAL, Manager.LONG, Manager.LEGACY
STAGES = sorted(path.stem for path in GOLDEN.glob("[1-8]-*.json") if not path.stem.endswith("-decoded"))


def load(stage: str) -> Any:
    return json.loads((GOLDEN / f"{stage}.json").read_text())


@pytest.mark.parametrize(
    ("ledger_id", "flat", "hierarchical", "long"),
    [
        (0, "L0000000000", "00/0000/L0000", "000/0000/0000/0000/L0000"),
        (9999, "L0000009999", "00/0000/L9999", "000/0000/0000/0000/L9999"),
        (10000, "L0000010000", "00/0001/L0000", "000/0000/0000/0001/L0000"),
        (12345678, "L0012345678", "00/1234/L5678", "000/0000/0000/1234/L5678"),
        (2147483646, "L2147483646", "21/4748/L3646", "000/0000/0021/4748/L3646"),
        (2147483647, None, "000/0000/0021/4748/L3647", "000/0000/0021/4748/L3647"),
        (4294967296, None, "000/0000/0042/9496/L7296", "000/0000/0042/9496/L7296"),
        (LEDGER_ID_MAX, None, "922/3372/0368/5477/L5807", "922/3372/0368/5477/L5807"),
    ],
)
def test_paths_of_ledgers(ledger_id: int, flat: str | None, hierarchical: str, long: str) -> None:
    for manager, path in ((FLAT, flat), (HIERARCHICAL, hierarchical), (LONG, long)):
        if path is not None:
            assert ledger_path("/ledgers", manager, ledger_id) == f"/ledgers/{path}"
            assert ledger_id_of("/ledgers", f"/ledgers/{path}") == ledger_id


@given(st.integers(0, LEDGER_ID_MAX), st.sampled_from([FLAT, HIERARCHICAL, LONG]))
def test_every_id_comes_back_from_its_path(ledger_id: int, manager: Manager) -> None:
    path = ledger_path("/a/b", manager, ledger_id)
    assert path is not None
    assert ledger_id_of("/a/b", path) == ledger_id


def test_ids_without_a_path() -> None:
    for manager in Manager:
        assert ledger_path("/l", manager, -1) is None
        assert ledger_path("/l", manager, LEDGER_ID_MAX + 1) is None
    assert ledger_path("/l", LEGACY, 9_999_999_999) == "/l/99/9999/L9999"
    assert ledger_path("/l", LEGACY, 10_000_000_000) is None


@pytest.mark.parametrize(
    "path",
    [
        "LAYOUT",
        "INSTANCEID",
        "available",
        "idgen",
        "ID-0000000004",
        "L000",
        "00/0000/L000",
        "00/0000/ID-0",
        "0/0000/L0000",
        "00/000/L0000",
        "000/0000/L0000",
        "00/0000/0000/0000/L0000",
        "922/3372/0368/5477/L5808",
        "underreplication/ledgers/0000/0000/urL0",
    ],
)
def test_what_is_no_ledger(path: str) -> None:
    assert ledger_id_of("/ledgers", f"/ledgers/{path}") is None


@pytest.mark.parametrize("stage", STAGES)
def test_the_ledgers_among_the_znodes_of_apache(stage: str) -> None:
    """Exactly the znodes that hold ledger metadata; and each is found by going down from the root."""
    dump = load(stage)
    root = dump["nodes"][0]["path"]
    layout = next(node["data"] for node in dump["nodes"] if node["path"] == f"{root}/LAYOUT")
    manager = parse_layout(base64.b64decode(layout))
    assert pack_layout(manager) == base64.b64decode(layout)
    children: dict[str, list[str]] = {}
    expected = set()
    for node in dump["nodes"]:
        parent, _, name = node["path"].rpartition("/")
        children.setdefault(parent, []).append(name)
        if base64.b64decode(node["data"]).startswith(b"BookieMetadataFormatVersion"):
            ledger_id = ledger_id_of(root, node["path"])
            assert ledger_id is not None
            assert ledger_path(root, manager, ledger_id) == node["path"]
            expected.add(ledger_id)
        else:
            assert ledger_id_of(root, node["path"]) is None
    found = [
        ledger_id
        for parent, names in children.items()
        if parent == root or parent.removeprefix(root + "/").split("/")[0] in dict(tops_among(manager, children[root]))
        for ledger_id in ledgers_among(root, manager, parent, names)
    ]
    assert sorted(found) == sorted(expected)


def test_the_parts_of_the_root_that_hold_ledgers() -> None:
    names = ["922", "00", "LAYOUT", "idgen", "000", "21", "0", "0000", "available", "L0000000007"]
    assert tops_among(LEGACY, names) == [("00", 3), ("21", 3)]
    assert tops_among(LONG, names) == [("000", 5), ("922", 5)]
    assert tops_among(HIERARCHICAL, names) == [("00", 3), ("21", 3), ("000", 5), ("922", 5)]
    # Where nobody would look for this id it is no ledger.
    assert ledgers_among("/l", HIERARCHICAL, "/l/99/9999", ["L9999", "L0000", "x"]) == []
    assert ledgers_among("/l", LEGACY, "/l/99/9999", ["L9999", "L0000", "x"]) == [9_999_990_000, 9_999_999_999]


# -- LAYOUT -----------------------------------------------------------------------------------------------------------


def test_the_layout_record() -> None:
    expected = (
        "32 0a 6f 72 67 2e 61 70 61 63 68 65 2e 62 6f 6f 6b 6b 65 65 70 65 72 2e 6d 65 74 61 2e 48 69 65 72 61 72 63 "
        "68 69 63 61 6c 4c 65 64 67 65 72 4d 61 6e 61 67 65 72 46 61 63 74 6f 72 79 3a 31"
    )
    assert pack_layout(HIERARCHICAL) == bytes.fromhex(expected)
    for manager in Manager:
        assert parse_layout(pack_layout(manager)) is manager
        assert parse_layout(pack_layout(manager).replace(b"\norg", b"\ndlshade.org")) is manager
    assert parse_layout(b"1\nflat:1") is FLAT
    assert parse_layout(b"1\nhierarchical:1\n") is HIERARCHICAL


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "not a BookKeeper layout"),
        (b"2\n", "not a BookKeeper layout"),
        (b"3\n" + pack_layout(FLAT)[2:], "its format is 3"),
        (pack_layout(FLAT)[:-1] + b"2", "incompatible layout version 2 of .*FlatLedgerManagerFactory"),
        (b"2\na:b:1", "not a BookKeeper layout"),
        (b"2\ncom.example.Manager:1", "com.example.Manager.* bookies does not support"),
        (b"1\nlonghierarchical:1", "bookies does not support"),
        (b"\xff\n\xff", "not a BookKeeper layout"),
    ],
)
def test_layouts_that_are_refused(data: bytes, sentence: str) -> None:
    with pytest.raises(MetadataCorrupt, match=sentence):
        parse_layout(data)


# -- names ------------------------------------------------------------------------------------------------------------


def test_paths_of_everything_else() -> None:
    paths = Paths("/ledgers")
    bookie = BookieId("bk-a:3181")
    assert paths.registration(bookie, BookieMode.WRITABLE) == "/ledgers/available/bk-a:3181"
    assert paths.registration(bookie, BookieMode.READ_ONLY) == "/ledgers/available/readonly/bk-a:3181"
    assert paths.cookie(bookie) == "/ledgers/cookies/bk-a:3181"
    assert paths.id_prefix(FLAT) == "/ledgers/ID-"
    assert paths.id_prefix(LONG) == paths.id_prefix(HIERARCHICAL) == "/ledgers/idgen/ID-"
    assert paths.high_id_prefix(1) == "/ledgers/idgen-long/HOB-0000000001/ID-"
    assert paths.record("logs/a.b") == "/ledgers-bookies/records/logs,a.b"
    assert record_name("logs,a.b") == "logs/a.b"
    assert paths.spent_list(0) == paths.spent_list(SPENT_SIZE - 1) != paths.spent_list(SPENT_SIZE)


def test_names_in_listings() -> None:
    names = ["readonly", "b:1", "READONLY", "a-1", "x y", "a,b", "c@d"]
    assert bookies_among(names) == ("a-1", "b:1", "c@d")
    assert high_numbers(["HOB-0000000010", "HOB-0000000009", "ID-0000000001", "HOB-1", "HOB-x"]) == [9, 10]


@pytest.mark.parametrize(
    ("name", "number"),
    [("ID-0000000000", 0), ("ID-2147483646", 2147483646), ("ID-2147483647", None), ("ID--2147483648", None)],
)
def test_generated_numbers(name: str, number: int | None) -> None:
    assert generated_number(f"/ledgers/idgen/{name}") == number


# -- URIs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "hosts", "root", "manager"),
    [
        ("zk://zk1/ledgers", "zk1", "/ledgers", None),
        ("zk+null://zk1:2181/ledgers", "zk1:2181", "/ledgers", None),
        ("ZK+Hierarchical://a:1;b:2;c/x/y", "a:1,b:2,c", "/x/y", HIERARCHICAL),
        ("zk+longhierarchical://a:1,b:2/ledgers", "a:1,b:2", "/ledgers", LONG),
        (" zk+flat://[::1]:2181/ledgers ", "[::1]:2181", "/ledgers", FLAT),
    ],
)
def test_uris(uri: str, hosts: str, root: str, manager: Manager | None) -> None:
    place = parse_uri(uri)
    assert (place.hosts, place.root, place.manager, place.options) == (hosts, root, manager, None)


def test_a_uri_with_options() -> None:
    assert parse_uri("zk://a/ledgers?options=/etc/bk.toml").options == "/etc/bk.toml"


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("zk:/ledgers", "is not a metadata URI for ZooKeeper: expected zk"),
        ("zk://a:99999/ledgers", "names no ZooKeeper server in 'a:99999'"),
        ("zk://a", "empty ledger root path"),
        ("zk://a/", "empty ledger root path"),
        ("zk:///ledgers", "names no ZooKeeper server"),
        ("zk://a;;b/ledgers", "names no ZooKeeper server"),
        ("zk://a:port/ledgers", "names no ZooKeeper server in 'a:port'"),
        ("zk://a/ledgers/", "may not end in /"),
        ("zk://a/x//y", "have an empty part"),
        ("zk://a/../x", "is not a ZooKeeper path"),
        ("zk+legacyhierarchical://a/x", "known are flat, hierarchical, longhierarchical"),
        ("zk+legacy://a/x", "known are flat"),
        ("zk+ms://a/x", "no ledger manager is called 'ms'"),
        ("zk://a/x?timeout=3", "only options=FILE is known"),
        ("zk://a/x?options=", "only options=FILE"),
    ],
)
def test_uris_that_are_refused(uri: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_uri(uri)
