"""ZooKeeper's protocol: our packets beside those of another client of it, and damaged ones."""

from __future__ import annotations

import pytest
from kazoo.protocol import serialization as theirs
from kazoo.security import OPEN_ACL_UNSAFE

from bookies.metadata.zookeeper import zk_wire
from bookies.metadata.zookeeper.zk_wire import Broken, Code, Fault, Granted, Reader, Reply
from bookies.metadata.zookeeper.zookeeper_port import Acl, Check, Create, Delete, SetData, Stat

STAT = Stat(3, 4, 5, 6, 7, 8, 9, 10, 11)
STAT_BYTES = zk_wire._STAT.pack(3, 4, 6, 7, 8, 9, 0, 10, 0, 11, 5)


@pytest.mark.parametrize(
    ("ours", "other"),
    [
        (zk_wire.fields(Create("/a", b"data", Acl.OPEN)), theirs.Create("/a", b"data", OPEN_ACL_UNSAFE, 0)),
        (zk_wire.fields(SetData("/a", b"data", 7)), theirs.SetData("/a", b"data", 7)),
        (zk_wire.fields(Delete("/a", 7)), theirs.Delete("/a", 7)),
        (zk_wire.fields(Check("/a", 7)), theirs.CheckVersion("/a", 7)),
        (zk_wire.watched_path("/a", False), theirs.GetData("/a", None)),
        (zk_wire.watched_path("/a", True), theirs.GetChildren2("/a", print)),
        (zk_wire.text("/a"), theirs.Sync("/a")),
        (
            zk_wire.transaction([SetData("/a", b"data"), Create("/b", b"", Acl.OPEN), Check("/c", 1), Delete("/d")]),
            theirs.Transaction(
                [
                    theirs.SetData("/a", b"data", -1),
                    theirs.Create("/b", b"", OPEN_ACL_UNSAFE, 0),
                    theirs.CheckVersion("/c", 1),
                    theirs.Delete("/d", -1),
                ]
            ),
        ),
    ],
)
def test_requests_are_those_of_another_client(ours: bytes, other: theirs.Create) -> None:
    assert ours == bytes(other.serialize())


def test_a_creation_for_the_creator_alone() -> None:
    """An empty identity is a text of no bytes, as Java's client sends it; others send none (-1)."""
    assert zk_wire.fields(Create("/ä", b"", Acl.CREATOR, is_ephemeral=True, is_sequential=True)) == (
        b"\0\0\0\3/\xc3\xa4" + b"\0\0\0\0" + b"\0\0\0\1\0\0\0\x1f" + b"\0\0\0\4auth\0\0\0\0" + b"\0\0\0\3"
    )


def test_the_codes_are_those_of_another_client() -> None:
    pairs = {
        Code.CREATE: theirs.Create,
        Code.CREATE_WITH_STAT: theirs.Create2,
        Code.DELETE: theirs.Delete,
        Code.EXISTS: theirs.Exists,
        Code.GET: theirs.GetData,
        Code.SET: theirs.SetData,
        Code.SYNC: theirs.Sync,
        Code.CHILDREN: theirs.GetChildren2,
        Code.CHECK: theirs.CheckVersion,
        Code.MULTI: theirs.Transaction,
        Code.PING: theirs.Ping,
        Code.CLOSE: theirs.Close,
        Code.AUTHENTICATE: theirs.Auth,
        Code.SASL: theirs.SASL,
    }
    assert {code: other.type for code, other in pairs.items()} == {code: code.value for code in Code}


def test_the_first_packets_are_those_of_another_client() -> None:
    other = bytes(theirs.Connect(0, 99, 30_000, 77, b"p" * 16, False).serialize())
    assert zk_wire.connect_request(99, 30_000, 77, b"p" * 16) == zk_wire.packet(other)
    assert zk_wire.authentication("digest", b"a:b") == zk_wire.request(
        -4, 100, bytes(theirs.Auth(0, "digest", "a:b").serialize())
    )


def test_packets_arrive_in_pieces() -> None:
    both = zk_wire.packet(b"one") + zk_wire.packet(b"") + zk_wire.packet(b"three")
    received, found = bytearray(), []
    for number in both:
        received.append(number)
        found += zk_wire.split(received)
    assert found == [b"one", b"", b"three"]
    assert not received


@pytest.mark.parametrize("size", [-1, zk_wire.PACKET_SIZE_MAX + 1])
def test_impossible_lengths(size: int) -> None:
    with pytest.raises(Broken, match=f"a packet of {size} bytes"):
        zk_wire.split(bytearray(size.to_bytes(4, "big", signed=True)))


def test_replies() -> None:
    assert Reader(b"\0\0\0\1" + b"\0" * 7 + b"\2" + b"\xff\xff\xff\x9b").reply() == Reply(1, 2, Fault.NODE_MISSING)
    assert Reader(zk_wire.text("/a") + STAT_BYTES).created() == ("/a", STAT)
    assert Reader(zk_wire.buffer(b"data") + STAT_BYTES).data() == (b"data", STAT)
    assert Reader(b"\xff\xff\xff\xff" + STAT_BYTES).data() == (b"", STAT)  # no data at all
    names = b"\0\0\0\2" + zk_wire.text("b") + zk_wire.text("a")
    assert Reader(names + STAT_BYTES).children() == (["a", "b"], STAT)
    assert Reader(b"\0\0\0\1\0\0\0\3" + zk_wire.text("/a")).event() == (1, "/a")
    granted = zk_wire._CONNECTED.pack(0, 4000, 77) + zk_wire.buffer(b"p" * 16)
    assert Reader(granted).granted() == Granted(4000, 77, b"p" * 16)
    assert Reader(b"").nothing() is None


def test_outcomes_of_transactions() -> None:
    header = zk_wire._MULTI_HEADER
    done = header.pack(Code.CREATE, False, 0) + zk_wire.text("/a") + header.pack(Code.SET, False, 0) + STAT_BYTES
    done += header.pack(Code.DELETE, False, 0) + header.pack(Code.CHECK, False, 0)
    assert Reader(done + zk_wire._MULTI_END).outcomes() == ["/a", STAT, None, None]
    refused = header.pack(-1, False, -110) + zk_wire._INT.pack(-110) + zk_wire._MULTI_END
    assert Reader(refused).outcomes() == [Fault.NODE_EXISTS]
    with pytest.raises(Broken, match="operation 77"):
        Reader(header.pack(77, False, 0)).outcomes()


@pytest.mark.parametrize("body", [b"\0\0", zk_wire._INT.pack(5) + b"four", zk_wire._INT.pack(2) + b"\xff\xfe"])
def test_packets_that_cannot_be_parsed(body: bytes) -> None:
    with pytest.raises(Broken):
        Reader(body).text()
