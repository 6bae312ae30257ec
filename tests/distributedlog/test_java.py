"""Java's DistributedLog 4.17.3 and ours on one namespace: bytes, znodes, writers in turn, readers, operations."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from tests.distributedlog.peers import KINDS, Peer, Refused, Stage, java_command, stage

pytestmark = pytest.mark.apache
BOTH = pytest.mark.parametrize("writer", KINDS)


def other(kind: str) -> str:
    return KINDS[1 - KINDS.index(kind)]


@pytest.fixture(scope="module", params=["ours", "java"], ids=["our-bookie", "java-bookie"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("stage"), request.param, binder=other(request.param)) as it:
        yield it


def acked(peer: Peer) -> list[tuple[int, str]]:
    """Transaction ids and addresses, as they were acknowledged."""
    return [(int(line.split()[1]), line.split()[2]) for line in peer.lines("acked")]


def await_deletion(peer: Peer, name: str) -> None:
    """Ask for the logs until this one is gone: Java's `deleteLog` returns when the first of its znodes is deleted."""
    deadline = time.monotonic() + 30
    while f"name {name}" in peer.ask("logs"):
        assert time.monotonic() < deadline, f"{name} is still there"


def read(place: Stage, kind: str, log: str, start: str = "1:0:0") -> list[str]:
    peer = place.peer(kind, log)
    try:
        return peer.ask("read", start)
    finally:
        peer.kill()


@BOTH
def test_either_reads_what_the_other_wrote(place: Stage, writer: str) -> None:
    name = f"written-by-{writer}"
    for kind, settings in (
        (writer, ()),
        (other(writer), ("compressionType=lz4",)),
        (writer, ("maxLogSegmentBytes=400",)),
    ):
        peer = place.peer(kind, name, *settings)
        peer.ask("lead")
        first = 1 + 100 * (len(place.peers) % 1000)
        peer.ask("write", first, 40)
        peer.ask("set", first + 50, 5, "lz4")
        peer.ask("set", first + 51, 3, "none")
        peer.ask("close")
        peer.kill()
    records = read(place, "ours", name)
    assert len(records) == 3 * 48
    assert records == read(place, "java", name)


def znodes(place: Stage, path: str) -> dict[str, str]:
    """Every znode below a path, without what differs between any two runs: ledger ids, times, sessions."""
    client = KazooClient(place.zookeeper)
    client.start()
    found: dict[str, str] = {}

    def walk(at: str) -> None:
        data, stat = client.get(at)
        text = data.decode("latin-1")
        if "/ledgers/" in at:
            numbers = text.split(";")
            numbers[1] = "L"
            if at.rpartition("/")[2].startswith("logrecs"):
                numbers[4] = "T"
            text = ";".join(numbers)
        elif at.endswith("/allocation") and text:
            text = "L"
        name = re.sub(r"_s *-?\d+_", "_sSESSION_", at.removeprefix(path))
        name = re.sub(r"member_[^_]+_", "member_CLIENT_", name)
        found[name] = f"{re.sub('(java|ours)-[0-9]+', 'CLIENT', text)}@{stat.version}"
        for child in client.get_children(at):
            walk(f"{at}/{child}")

    try:
        walk(path)
    finally:
        client.stop()
        client.close()
    return found


def test_znodes_are_equal_byte_for_byte(place: Stage) -> None:
    """The same life of a log, by Java and by us, looked at after every step."""
    lives: list[list[dict[str, str]]] = []
    for kind in KINDS:
        name, steps = f"life-of-{kind}", list[dict[str, str]]()
        writer = place.peer(kind, name, "enableImmediateFlush=false")

        def look(name: str = name, steps: list[dict[str, str]] = steps) -> None:
            steps.append(znodes(place, f"/logs/{name}"))

        writer.ask("create", name)
        look()
        writer.ask("lead")
        look()
        writer.ask("write", 10, 1)
        look()
        writer.ask("write", 11, 1)
        writer.ask("write", 12, 1)
        writer.ask("close")
        look()
        writer.ask("lead")
        for txid in (20, 21, 22):
            writer.ask("write", txid, 1)
        writer.ask("truncate", "1:1:0")
        look()
        writer.ask("close")
        look()
        writer.ask("lead")
        writer.ask("truncate", "2:2:0")
        look()
        writer.ask("commit", "billing", "2:1:0")
        look()
        writer.ask("write", 30, 1)
        writer.kill()  # A writer that dies: the other kind recovers.
        rescuer = place.peer(other(kind), name, "enableImmediateFlush=false")
        rescuer.ask("lead")
        rescuer.ask("write", 31, 1)
        rescuer.ask("end")
        rescuer.ask("close")
        look()
        rescuer.kill()
        lives.append(steps)
    for number, (java, ours) in enumerate(zip(*lives, strict=True)):
        assert java == ours, f"step {number}"


def test_bindings_are_equal_byte_for_byte(place: Stage) -> None:
    bound = []
    client = KazooClient(place.zookeeper)
    client.start()
    for kind in KINDS:
        peer = Peer(kind, f"distributedlog://{place.zookeeper}/bound/{kind}", place.folder, f"binder-{kind}")
        peer.ask("bind", place.zookeeper, "/ledgers")
        peer.kill()
        bound.append(client.get(f"/bound/{kind}")[0])
    client.stop()
    client.close()
    assert bound[0] == bound[1]


@BOTH
def test_the_lock_excludes_the_other(place: Stage, writer: str) -> None:
    name = f"locked-by-{writer}"
    first, second = place.peer(writer, name), place.peer(other(writer), name, "lockTimeoutSeconds=0")
    first.ask("lead")
    first.ask("write", 1, 1)
    with pytest.raises(Refused, match=rf"(OwnershipAcquireFailed|LogInUse).*{first.name}"):
        second.ask("lead")
    first.ask("close")
    second.ask("lead")
    second.ask("write", 2, 1)
    second.ask("close")
    assert len(read(place, "ours", name)) == 2
    first.kill()
    second.kill()


@BOTH
def test_either_tails_what_the_other_writes(place: Stage, writer: str) -> None:
    name = f"tailed-of-{writer}"
    leader = place.peer(writer, name, "maxLogSegmentBytes=2000")
    leader.ask("create", name)
    tails = [place.peer(kind, name) for kind in KINDS]
    for tail in tails:
        tail.begin("tail", "1:0:0")
    leader.ask("lead")
    for first in range(1, 500, 100):
        leader.ask("write", first, 100)
        for tail in tails:
            tail.wait_heard(first + 99, "record")
    leader.ask("end")
    leader.ask("close")
    for tail in tails:
        tail.wait_heard(500, "record")
        assert [line.split()[1:3] for line in tail.lines("record")] == [[str(txid), at] for txid, at in acked(leader)]
        tail.kill()
    leader.kill()


def test_both_give_the_same_answers(place: Stage) -> None:
    name = "asked"
    writer = place.peer("java", name, "maxLogSegmentBytes=600")
    writer.ask("lead")
    for txid in range(100, 400, 3):
        writer.ask("write", txid, 1)
    writer.ask("set", 500, 7, "lz4")
    writer.ask("write", 500, 2)
    writer.ask("close")
    peers = [place.peer(kind, name) for kind in KINDS]
    questions: list[tuple[object, ...]] = [("first",), ("last",), ("segments",), ("cursors",)]
    questions += [("find", txid) for txid in (0, 100, 101, 102, 103, 250, 396, 397, 398, 499, 500, 501, 502, 600)]
    questions += [("count", at) for at in ("1:0:0", "1:1:0", "2:0:0", "3:1:0")]

    def compare(*extra: tuple[object, ...]) -> None:
        for question in (*questions, *extra):
            java, ours = (peer.ask(*question) for peer in peers)
            assert sorted(java) == sorted(ours), question

    compare()
    peers[0].ask("commit", "billing", "2:1:0")
    peers[1].ask("commit", "shipping", "3:1:0")
    compare()
    peers[1].ask("truncate", "3:1:0")
    assert read(place, "java", name, "3:1:0") == read(place, "ours", name, "3:1:0")
    peers[1].ask("purge", 130)
    assert peers[0].ask("segments") == peers[1].ask("segments")
    assert len(peers[0].ask("segments")) < len(writer.lines("acked"))
    for peer in (writer, *peers):
        peer.kill()


@BOTH
def test_either_renames_and_deletes(place: Stage, writer: str) -> None:
    peer, later = place.peer(writer, "old"), place.peer(other(writer), f"new-{writer}")
    peer.ask("lead")
    peer.ask("write", 1, 3)
    peer.ask("close")
    peer.ask("rename", "old", f"new-{writer}")
    assert [line.split()[1] for line in later.ask("read", "1:0:0")] == ["1", "2", "3"]
    assert f"name new-{writer}" in later.ask("logs")
    assert sorted(peer.ask("logs")) == sorted(later.ask("logs"))
    later.ask("delete", f"new-{writer}")
    await_deletion(peer, f"new-{writer}")
    peer.kill()
    later.kill()


def test_writers_take_turns_and_are_killed(place: Stage) -> None:
    """BOOKIES_ALTERNATIONS: writers that are killed while they append, Java's and ours in turn, twenty by default."""
    name, rounds = "alternated", int(os.environ.get("BOOKIES_ALTERNATIONS", "20"))
    tails = [place.peer(kind, name) for kind in KINDS]
    tails[0].ask("create", name)
    for tail in tails:
        tail.begin("tail", "1:0:0")
    acknowledged: list[tuple[int, str]] = []
    for number in range(rounds):
        writer = place.peer(KINDS[number % 2], name, "maxLogSegmentBytes=3000")
        writer.ask("lead")
        writer.begin("write", 1 + number * 1_000_000, 1_000_000)
        writer.wait_heard(60 + number * 37 % 200, "acked")
        writer.kill()
        acknowledged += acked(writer)
    last = place.peer("ours", name)
    last.ask("lead")
    last.ask("write", 1 + rounds * 1_000_000, 5)
    last.ask("end")
    last.kill()
    records = read(place, "ours", name)
    assert records == read(place, "java", name)
    assert [int(line.split()[3]) for line in records] == list(range(len(records)))
    present = {int(line.split()[1]): line.split()[2] for line in records}
    assert len(present) == len(records), "a record is in the log twice"
    assert list(present) == sorted(present)
    assert {txid: present.get(txid) for txid, _ in acknowledged} == dict(acknowledged)
    for tail in tails:
        tail.wait_heard(len(records), "record")
        assert [line.split()[1:3] for line in tail.lines("record")] == [line.split()[1:3] for line in records]
        tail.kill()


def test_apaches_tool_reads_ours(place: Stage) -> None:
    name = "shown"
    writer = place.peer("ours", name)
    writer.ask("lead")
    writer.ask("write", 100, 40)
    writer.ask("set", 200, 3, "lz4")
    writer.ask("close")
    writer.kill()
    assert name in tool(place, "list").split("\n")
    shown = tool(place, "show", "-s", name)
    assert "firstTxId=100, lastTxid=200" in shown
    assert "endOfStreamMarked=false, recordCount=43" in shown
    dumped = tool(place, "dump", "-s", name, "-o", "1", "-l", "43")
    assert [int(number) for number in re.findall(r"\(txn = (\d+),", dumped)] == [*range(100, 140), 200, 200, 200]
    assert re.findall(r"\bs\d\b", dumped) == ["s0", "s1", "s2"]


@BOTH
def test_apaches_tool_counts_inspects_and_truncates(place: Stage, writer: str) -> None:
    """Positions are `SEGMENT,ENTRY,SLOT`. With -f, `inspect` and `truncate` ask no question."""
    name = f"tooled-{writer}"
    peer = place.peer(writer, name, "maxLogSegmentBytes=200")
    peer.ask("lead")
    for first in range(1, 41, 10):
        peer.ask("write", first, 10)
    peer.ask("close")
    assert "total is 40 records" in tool(place, "count", "-s", name, "1,0,0")
    inspected = tool(place, "inspect", "-f", "-ft", name)
    assert inspected.partition("Corrupted Candidates :")[2].strip() == ""
    before = peer.ask("segments")
    assert len(before) > 1
    assert "finished" in tool(place, "truncate", "-f", "-ft", name)
    after = place.peer(other(writer), name)
    assert after.ask("segments") == before[-1:]  # The newest one stays.
    records = read(place, "ours", name)
    assert records == read(place, "java", name)
    assert f"total is {len(records)} records" in tool(place, "count", "-s", name, "1,0,0")
    assert "finished" in tool(place, "truncate", "-f", "-d", "-ft", name)
    await_deletion(after, name)
    peer.kill()
    after.kill()


@BOTH
def test_either_truncates_and_purges_what_the_other_wrote(place: Stage, writer: str) -> None:
    name = f"cut-of-{writer}"
    author, cutter = place.peer(writer, name, "maxLogSegmentBytes=400"), place.peer(other(writer), name)
    author.ask("lead")
    for first in range(1, 61, 10):
        author.ask("write", first, 10)
    author.ask("close")
    cutter.ask("lead")
    at = acked(author)[30][1]
    cutter.ask("truncate", at)
    cutter.ask("close")
    for kind in KINDS:
        assert read(place, kind, name, at)[0].split()[1] == "31"
    cutter.ask("purge", 31)
    answers = [place.peer(kind, name).ask("segments") for kind in KINDS]
    assert answers[0] == answers[1]
    assert read(place, "ours", name) == read(place, "java", name, at)
    author.kill()
    cutter.kill()


def test_java_reads_and_continues_batches_of_sparks_sink(place: Stage) -> None:
    name = "batches"
    ours, java = place.peer("ours", name), place.peer("java", name)
    java.ask("create", name)
    java.ask("lead")
    java.ask("write", 10, 5)
    with pytest.raises(Refused, match="LogInUse"):
        ours.ask("batch", 1, 3, 4)
    java.ask("close")
    assert ours.ask("batch", 1, 3, 4) == ["done True"]
    assert ours.ask("batch", 1, 3, 4) == ["done False"]
    java.ask("lead")
    java.ask("write", 100, 5)
    java.ask("close")
    assert ours.ask("batch", 2, 2) == ["done True"]
    records = read(place, "java", name)
    assert records == read(place, "ours", name)
    txids = [int(line.split()[1]) for line in records]
    assert txids == [*range(10, 15), *[15] * 7, *range(100, 105), *[105] * 2]
    java.ask("delete", name)
    await_deletion(ours, name)
    java.kill()
    ours.kill()


def tool(place: Stage, command: str, *words: str) -> str:
    """What a command of Apache's `dlog tool` prints."""
    program = ["org.apache.distributedlog.tools.Tool", "org.apache.distributedlog.tools.DistributedLogTool"]
    done = subprocess.run(
        [*java_command(place.folder)[:-1], *program, command, "-u", place.uri, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
