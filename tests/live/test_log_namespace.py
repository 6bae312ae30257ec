"""`bk log --namespace`, and DistributedLog through the blocking client, on a real cluster without ZooKeeper."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
from tests.live.command import Done, bk

from bookies.admin.cluster import LocalCluster
from bookies.distributedlog import Dlsn, blocking, open_namespace
from bookies.errors import LogEnded, LogFenced, LogInUse, LogTruncated
from bookies.runtime import aio

pytestmark = pytest.mark.live

SETTINGS = {"journal_preallocate_size": 1 << 20, "index_cache_size": 1 << 20, "checkpoint_interval_ms": 100}


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("namespace") / "bk-data"
    with LocalCluster(directory, 3, lease_ms=2000, settings=SETTINGS) as cluster:
        yield cluster.metadata_uri


def log(uri: str, verb: str, *words: object) -> Done:
    return bk("log", verb, *words, "--namespace", f"{uri}#apps", metadata=uri)


def test_the_life_of_a_log(uri: str, tmp_path: pathlib.Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("a\nb\nc\n")
    assert log(uri, "append", "orders", "--input", lines, "--json").json() == {
        "log": "orders",
        "records": 3,
        "last_txid": 3,
    }
    assert log(uri, "append", "orders", "--input", lines).status == 0
    assert log(uri, "list").out.split() == ["orders"]
    assert log(uri, "read", "orders").out == "a\nb\nc\na\nb\nc\n"
    rows = log(uri, "read", "orders", "--from", "txid:3", "--json").rows()
    assert [(row["txid"], row["payload"]) for row in rows] == [(3, "c"), (4, "a"), (5, "b"), (6, "c")]
    shown = log(uri, "show", "orders", "--json").json()
    assert [(row["segment"], row["records"], row["truncation"]) for row in shown["segments"]] == [
        (1, 3, "none"),
        (2, 3, "none"),
    ]
    assert len(log(uri, "show", "orders").out.splitlines()) == 3
    for words in (("--key", "k"), ("--header", "h=1"), ("--format", "json")):
        assert (
            "a record of DistributedLog is a value" in log(uri, "append", "orders", "--input", lines, *words).sentence
        )
    assert "--json prints the records" in log(uri, "read", "orders", "--format", "json").sentence
    assert log(uri, "read", "orders", "--format", "raw").out == log(uri, "read", "orders", "--raw").out == "abcabc"
    before = rows[1]["position"]
    assert log(uri, "truncate", "orders", "--before", before, "--dry-run").out.startswith(
        "would let log orders begin at"
    )
    beyond = log(uri, "truncate", "orders", "--before", "9:0:0")
    assert (beyond.status, "has no such segment" in beyond.sentence) == (2, True)
    assert log(uri, "truncate", "orders", "--before", before).status == 0
    assert log(uri, "read", "orders").out == "a\nb\nc\n"
    refused = log(uri, "read", "orders", "--from", "17")
    assert refused.sentence == ("bk log: '17' is not a position: expected SEGMENT:ENTRY:SLOT, or its base64 form")
    assert "there is no log missing in namespace /apps" in log(uri, "read", "missing").sentence
    assert log(uri, "delete", "orders", "--dry-run").out == "would delete log orders (segments: 2)\n"
    assert log(uri, "delete", "orders", "--yes").status == 0
    assert log(uri, "list", "--json").json() == []


def test_without_asyncio(uri: str) -> None:
    with blocking.open_namespace(f"{uri}#blocking") as namespace:
        orders = namespace.log("orders")
        with orders.lead(compression="lz4") as writer:
            assert writer.append(b"1", txid=10) == Dlsn(1, 0, 0)
            writer.append_many([b"2", b"3"])
            assert writer.append_set([b"4", b"5"], compression="lz4").slot == 1
            assert (writer.name, writer.last_txid) == ("orders", 13)
            assert writer.segment is not None
            writer.flush()
            with orders.open() as reader:
                tail = reader.tail(Dlsn(1, 0, 0), timeout=30)
                assert [next(tail).payload for _ in range(5)] == [b"1", b"2", b"3", b"4", b"5"]
            writer.roll()
            with orders.lead() as other:
                other.append(b"6")
                with pytest.raises(LogFenced):
                    writer.append(b"lost")
        with orders.open() as reader:
            assert [record.sequence_id for batch in reader.read().batches() for record in batch] == list(range(6))
        position = orders.find(13)
        orders.move_cursor("billing", position)
        assert orders.cursors() == {"billing": position}
        orders.truncate(position)
        first = orders.first()
        assert first is not None
        assert first.payload == b"4"
        assert orders.find(1) == orders.find(13) == first.position  # records before it are gone
        with orders.open() as reader, pytest.raises(LogTruncated):
            next(reader.read(Dlsn(1, 0, 0), on_gap="error"))
        with orders.lead() as writer:
            writer.seal()
        with pytest.raises(LogEnded):
            orders.lead()
        with pytest.raises(LogInUse, match="subscriptions"):
            namespace.rename("orders", "archive")
        assert namespace.logs() == ["orders"]
        orders.delete()
        assert not orders.exists()


def test_a_log_whose_end_is_damaged_is_completed_before_the_damage(uri: str, tmp_path: pathlib.Path) -> None:
    async def damage() -> None:
        async with open_namespace(f"{uri}#apps") as namespace:
            writer = await namespace.log("damaged").lead(ensemble=3, write_quorum=3, ack_quorum=2)
            await writer.append(b"seven")
            await writer.flush()
            assert writer._open is not None
            await writer._open.ledger.append(b"bad")
            await writer.abandon()

    aio.run(damage())
    line = tmp_path / "line"
    line.write_text("eight\n")
    refused = log(uri, "append", "damaged", "--input", line)
    assert (refused.status, "bk log recover damaged --namespace URI --skip-damaged" in refused.err) == (1, True)
    assert log(uri, "recover", "damaged").status == 1
    skipped = log(uri, "recover", "damaged", "--skip-damaged", "--json").json()["skipped"]
    assert len(skipped) == 1
    assert log(uri, "append", "damaged", "--input", line).status == 0
    assert log(uri, "recover", "damaged").out.endswith("skipped: 0\n")
    assert log(uri, "read", "damaged", "--from", "2:0:0").out == "eight\n"
    assert bk("log", "recover", "damaged", metadata=uri).status == 2
    assert log(uri, "recover", "nothing").status == 1
