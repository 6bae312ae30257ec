"""`bk log`, and logs through the blocking client, on a real cluster."""

from __future__ import annotations

import datetime
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from tests.live.command import Done, bk

import bookies
from bookies.admin.cluster import LocalCluster
from bookies.protocol.log import Position

pytestmark = pytest.mark.live

SETTINGS = {"journal_preallocate_size": 1 << 20, "index_cache_size": 1 << 20, "checkpoint_interval_ms": 100}


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("logs") / "bk-data"
    with LocalCluster(directory, 3, settings=SETTINGS) as cluster:
        yield cluster.metadata_uri


def log(uri: str, *words: object) -> Done:
    return bk("log", *words, metadata=uri)


def append(uri: str, name: str, tmp_path: pathlib.Path, lines: list[str], *words: object) -> Done:
    path = tmp_path / "lines"
    path.write_text("".join(f"{line}\n" for line in lines))
    return log(uri, "append", name, "--input", path, *words)


def test_the_life_of_a_log(uri: str, tmp_path: pathlib.Path) -> None:
    assert log(uri, "create", "orders").status == 0
    assert log(uri, "create", "orders").sentence == "bk log: log orders already exists"
    assert log(uri, "create", "orders", "--exist-ok", "--json").json()["epoch"] == 0
    assert append(uri, "orders", tmp_path, ["a", "b"]).status == 0
    second = append(uri, "orders", tmp_path, ["c", "d"], "--json").json()
    assert (second["log"], second["entries"], second["epoch"]) == ("orders", 2, 2)
    assert log(uri, "list").out.split() == ["orders"]
    assert log(uri, "list", "--prefix", "x", "--json").json() == []
    assert log(uri, "read", "orders").out == "a\nb\nc\nd\n"
    assert log(uri, "read", "orders", "--raw").out == "abcd"
    rows = log(uri, "read", "orders", "--json", "--from", second["first"]).rows()
    assert [row["payload"] for row in rows] == ["c", "d"]
    assert rows[0]["position"] == second["first"]
    shown = log(uri, "show", "orders")
    assert shown.out.startswith("log orders  E3/Qw3/Qa2  crc32c  epoch 2  created ")
    assert len(shown.out.splitlines()) == 4
    append(uri, "orders", tmp_path, ["e"])
    dry = log(uri, "truncate", "orders", "--before", rows[1]["position"], "--dry-run")
    assert dry.out.startswith(f"would let log orders begin at {rows[1]['position']}, and delete ledgers ")
    assert log(uri, "read", "orders").out == "a\nb\nc\nd\ne\n"
    assert log(uri, "truncate", "orders", "--before", rows[1]["position"], "--json").json()["deleting"] == []
    assert log(uri, "read", "orders").out == "d\ne\n"
    assert "is not in log orders, which begins at" in log(uri, "read", "orders", "--from", "0:0").sentence
    assert log(uri, "delete", "orders", "--dry-run").out.startswith("would delete log orders")
    assert log(uri, "delete", "orders", "--yes", "--json").json() == {"deleted": "orders"}
    assert log(uri, "list").out == ""


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (("read", "nothing"), 1, "there is no log nothing"),
        (("append", "nothing", "--input", "/dev/null"), 1, "there is no log nothing"),
        (("append", "nothing", "--input", "/nowhere"), 2, "cannot read /nowhere: no such file or directory"),
        (("delete", "nothing", "--yes"), 1, "there is no log nothing"),
        (("truncate", "nothing", "--before", "1:1"), 1, "there is no log nothing"),
        (("create", "a/b"), 2, "'a/b' is no name of a log"),
        (("create", "x", "--ack-quorum", "4"), 2, "must be ensemble >= write_quorum >= ack_quorum >= 1"),
        (("read", "nothing", "--from", "7"), 1, "there is no log nothing"),
    ],
)
def test_what_is_refused(uri: str, words: tuple[str, ...], status: int, text: str) -> None:
    done = log(uri, *words)
    assert (done.status, text in done.sentence) == (status, True), done.err


def test_positions_and_deletions_are_taken_with_care(uri: str, tmp_path: pathlib.Path) -> None:
    log(uri, "create", "care")
    append(uri, "care", tmp_path, ["a"])
    assert log(uri, "read", "care", "--from", "7").sentence.startswith("bk log: '7' is no position in a log")
    assert "is after" in log(uri, "truncate", "care", "--before", f"{first_ledger(uri, 'care')}:9").sentence
    assert "not in" in log(uri, "truncate", "care", "--before", "999:9", "--dry-run").sentence
    assert log(uri, "delete", "care").sentence.endswith("This cannot be undone; confirm with --yes")
    assert log(uri, "read", "care").out == "a\n"


def first_ledger(uri: str, name: str) -> int:
    return int(log(uri, "show", name, "--json").json()["extents"][0]["ledger"])


def test_cursors_hold_truncations_back(uri: str, tmp_path: pathlib.Path) -> None:
    log(uri, "create", "held")
    first = append(uri, "held", tmp_path, ["a", "b"], "--json").json()["first"]
    ledger = first.partition(":")[0]
    assert f"billing  {ledger}:1" in log(uri, "cursors", "held", "--move", f"billing={ledger}:1").out
    [row] = log(uri, "cursors", "held", "--json").json()
    assert (row["cursor"], row["position"], row["is_truncated"]) == ("billing", f"{ledger}:1", False)
    refused = log(uri, "truncate", "held", "--before", f"{ledger}:2")
    assert f"because of its cursors billing (at {ledger}:1)" in refused.sentence
    assert log(uri, "truncate", "held", "--before", f"{ledger}:2", "--force").status == 0
    assert f"billing  {ledger}:1 (truncated)" in log(uri, "cursors", "held").out
    assert log(uri, "cursors", "held", "--delete", "billing", "--json").json() == []
    assert "expected NAME=LEDGER:ENTRY" in log(uri, "cursors", "held", "--move", "billing").sentence


def test_the_cursors_of_a_log_with_a_password_and_numbers(uri: str) -> None:
    log(uri, "create", "locked", "--format", "envelope")
    with bookies.blocking.connect(uri) as store, store.log("locked", password=b"secret").lead() as writer:
        position = writer.append(b"a", producer="sensor", sequence=1)
        store.log("locked").move_cursor("billing", position)
        # The ledger is open: only a reader with the password finds its end.
        assert "unknown" in log(uri, "cursors", "locked").out
        shown = log(uri, "cursors", "locked", "--password", "secret").out
    assert "unknown" not in shown
    [own] = [line for line in shown.splitlines() if "numbered entries" in line]
    assert own.startswith("bk-sequences")


def test_times_and_retention(uri: str, tmp_path: pathlib.Path) -> None:
    log(uri, "create", "timed")
    middles = []
    for part in range(4):
        append(uri, "timed", tmp_path, [f"{part}a", f"{part}b"])
        time.sleep(0.01)
        middles.append(datetime.datetime.now().isoformat())
    assert log(uri, "read", "timed", "--since", "1h", "--until", middles[0]).out.splitlines() == ["0a", "0b"]
    assert log(uri, "read", "timed", "--since", middles[1]).out.splitlines() == ["2a", "2b", "3a", "3b"]
    assert log(uri, "read", "timed", "--until", "1d").out == ""
    assert log(uri, "read", "timed", "--since", "1960-01-01").out.splitlines()[0] == "0a"
    assert log(uri, "read", "timed", "--until", "1000000d").out == ""
    assert "must be a duration before now" in log(uri, "read", "timed", "--since", "soon").sentence
    assert "not allowed with" in log(uri, "read", "timed", "--since", "1h", "--from", "1:0").err
    assert all(extent["begun_ms"] for extent in log(uri, "show", "timed", "--json").json()["extents"])

    shown = log(uri, "retention", "timed", "--rows", 3, "--age", "7d")
    assert "keeps at least the entries of the last 7 days or the newest 3 entries, whichever is less" in shown.out
    assert "until one does, only --apply removes entries" in shown.err
    for words, text in (
        (("--age", "soon"), "must be a duration such as 12h or 7d"),
        (("--size", "1x"), "must be a number of bytes"),
        (("--rows", 0), "keeps nothing"),
        (("--off", "--rows", 1), "go without limits"),
        (("--dry-run",), "--dry-run is for --apply"),
    ):
        assert text in log(uri, "retention", "timed", *words).sentence
    planned = log(uri, "retention", "timed", "--apply", "--dry-run", "--json").json()["would_remove"]
    removed = log(uri, "retention", "timed", "--apply", "--json").json()["removed"]
    assert [row["entries"] for row in removed] == [row["entries"] for row in planned] == [4]
    assert log(uri, "read", "timed").out.splitlines() == ["2a", "2b", "3a", "3b"]
    assert [row["reasons"] for row in log(uri, "history", "timed", "--json").json()] == [["rows"]]
    assert "keeps all entries" in log(uri, "retention", "timed", "--off").out


def test_small_ledgers_are_merged(uri: str, tmp_path: pathlib.Path) -> None:
    log(uri, "create", "small", "--ensemble", 1)
    for number in range(4):
        append(uri, "small", tmp_path, [f"{number}", "more"])
    before = log(uri, "read", "small", "--json").rows()
    words = ("roll-up", "small", "--below", "1k")
    forecast = log(uri, *words, "--dry-run")
    assert forecast.out == "would merge 4 of 4 ledgers of log small into 1, 20 B; ledgers afterwards: 1\n"
    facts = log(uri, *words, "--rate", "100000", "--json").json()
    assert (facts["merged"], facts["created"], facts["bytes"], facts["left"]) == (4, 1, 20, 1)
    assert log(uri, *words).out == "log small has no neighbouring closed ledgers below 1k to merge\n"
    assert log(uri, "read", "small", "--json").rows() == before
    [shared] = {extent["stored"] for extent in log(uri, "show", "small", "--json").json()["extents"]}
    assert f"2 in ledger {shared}" in log(uri, "show", "small").out
    cut = log(uri, "truncate", "small", "--before", before[2]["position"], "--dry-run")
    assert "delete no ledger yet" in cut.out
    for wrong, text in ((("--below", "x"), "--below x: must be"), (("--rate", "0"), "--rate 0: must be above 0")):
        refused = log(uri, "roll-up", "small", *wrong)
        assert (refused.status, text in refused.sentence) == (2, True)


def test_a_tail_goes_on_from_leader_to_leader(uri: str, tmp_path: pathlib.Path) -> None:
    log(uri, "create", "live")
    append(uri, "live", tmp_path, ["before"])
    start = f"{first_ledger(uri, 'live')}:0"
    words = ["log", "tail", "live", "--from", start, "--json", "--metadata", uri]
    tail = subprocess.Popen([sys.executable, "-m", "bookies.admin.cli", *words], stdout=subprocess.PIPE)
    try:
        assert tail.stdout is not None
        assert json.loads(tail.stdout.readline())["payload"] == "before"
        for number in range(2):
            append(uri, "live", tmp_path, [f"{number}"])
            assert json.loads(tail.stdout.readline())["payload"] == f"{number}"
    finally:
        tail.terminate()
        assert tail.wait(120) == 130
        tail.stdout.close()


def test_the_blocking_client_with_record_sets(uri: str) -> None:
    with bookies.blocking.connect(uri) as store:
        log = store.log("sets-of-records")
        log.create(record_format="sets", compression="zstd")
        with log.lead() as writer:
            outcomes = [writer.append_nowait(b"%d" % number, key=b"k") for number in range(100)]
            writer.wait_writable()
            writer.flush()
            assert {outcome.result(timeout=0) for outcome in outcomes} <= {
                Position(writer.ledger_id, entry_id) for entry_id in range(100)
            }
        with log.open() as reader:
            sets = list(reader.read().sets())
            assert [value for _, found in sets for value in found.values()] == [b"%d" % number for number in range(100)]
            assert [position for position, _ in sets] == sorted({outcome.result() for outcome in outcomes})
            assert {record.key for record in reader.read().records()} == {b"k"}
        plain = store.log("values-alone")
        plain.create()
        with plain.lead() as writer, pytest.raises(bookies.NotSupported, match="append_nowait collects record sets"):
            writer.append_nowait(b"1")
        with plain.open() as reader, pytest.raises(bookies.NotSupported, match="read it with records"):
            reader.read().sets()


def test_the_blocking_client(uri: str) -> None:
    with bookies.blocking.connect(uri) as store:
        log = store.log("blocking", password=b"s3cret")
        log.create(ensemble=2, exist_ok=True)
        assert repr(log) == "<Log blocking>"
        with log.lead(roll_size=4, is_candidate=lambda: True) as writer:
            assert (writer.name, writer.epoch) == ("blocking", 1)
            first = writer.append(b"one")
            writer.append_many([b"two", b"three"])
            writer.roll()
            last = writer.append(b"four")
            assert last == Position(writer.ledger_id, 0)
            writer.truncate(first)
            assert writer.manifest.epoch == 1
            assert "LogWriter blocking" in repr(writer)
            writer.close()
        assert store.logs("block") == ["blocking"]
        with log.open() as reader:
            assert reader.name == "blocking"
            assert [entry.payload for entry in reader.read()] == [b"one", b"two", b"three", b"four"]
            assert next(reader.tail(last)).payload == b"four"
            assert reader.manifest == log.manifest()
            assert "LogReader blocking" in repr(reader)
        assert log.at(0.0) == first
        assert log.at(time.time() + 60) == Position(log.manifest().ledger_ids[-1], 0)
        log.truncate(last)
        log.lead().abandon()
        log.set_retention(age=3600.0, size=1)
        assert log.retention().size == 1
        assert log.apply_retention() == log.history()
        assert log.retention_decision().removal is None
        assert log.begun()
        log.delete()
        assert store.logs("block") == []


def test_records_of_an_envelope_log(uri: str, tmp_path: pathlib.Path) -> None:
    assert log(uri, "create", "records", "--format", "envelope").status == 0
    append(uri, "records", tmp_path, ["bare"])
    append(uri, "records", tmp_path, ["keyed"], "--key", "k", "--header", "h=1=2", "--header", "e=")
    lines = ['{"text": "ä", "key": "own"}', "", '{"base64": "AP8=", "headers": {"n": null}}']
    words = ("--format", "json", "--key", "k", "--header", "h=1")
    assert append(uri, "records", tmp_path, lines, *words, "--json").json()["entries"] == 2
    assert log(uri, "read", "records").out == "bare\nkeyed\nä\n\0\udcff\n"
    rows = log(uri, "read", "records", "--format", "json").rows()
    assert [{name: row[name] for name in row if name not in ("position", "time_ms")} for row in rows] == [
        {"text": "bare"},
        {"text": "keyed", "key": "k", "headers": {"h": "1=2", "e": ""}},
        {"text": "ä", "key": "own", "headers": {"h": "1"}},
        {"base64": "AP8=", "key": "k", "headers": {"n": None}},
    ]
    assert all(abs(row["time_ms"] / 1000 - time.time()) < 3600 for row in rows)
    assert log(uri, "read", "records", "--from", rows[3]["position"], "--format", "json").rows() == rows[3:]
    stored = [row["payload"] for row in log(uri, "read", "records", "--json").rows()]
    assert len(stored) == 4
    assert stored[0].endswith("bare")
    with bookies.blocking.connect(uri) as store:
        with store.log("records").open() as reader:
            raw = b"".join(entry.payload for entry in reader.read())
            found = list(reader.read().records())
        assert log(uri, "read", "records", "--raw").out == log(uri, "read", "records", "--format", "raw").out
        assert log(uri, "read", "records", "--raw").out == raw.decode("utf-8", "surrogateescape")
        assert [(str(record.position), record.key) for record in found] == [
            (row["position"], key) for row, key in zip(rows, (None, b"k", b"own", b"k"), strict=True)
        ]
        with store.log("records").lead() as writer:
            bad = writer.append_entries([b"no record"])
            writer.append(b"after", key=b"k")
            tail = next(reader_of(store, bad.next))
        assert (tail.value, tail.key) == (b"after", b"k")
    for form in ("text", "json"):
        done = log(uri, "read", "records", "--format", form)
        assert (done.status, len(done.out.splitlines())) == (1, 4)
        assert f"log records has no record at ledger {bad.ledger_id}, entry 0: " in done.sentence
        assert f"; read on from {bad.next}" in done.sentence
    assert log(uri, "read", "records", "--from", bad.next).out == "after\n"


def reader_of(store: bookies.blocking.Client, start: Position) -> Iterator[bookies.LogRecord]:
    with store.log("records").open() as reader:
        yield from reader.tail(start, timeout=60).records()


def test_records_that_do_not_fit_are_refused(uri: str, tmp_path: pathlib.Path) -> None:
    log(uri, "create", "raw")
    log(uri, "create", "json", "--format", "envelope")
    lines = ['{"json": [1]}', '{"text": "a"}', '{"text": "a", "time": 1}', '{"text": "b"}']
    done = append(uri, "json", tmp_path, lines, "--format", "json")
    assert (done.status, done.sentence) == (
        2,
        "bk log: line 3: unknown: time; it may have key, headers and time_ms beside text, json or base64; the "
        "lines before it are in log json, and none from it on",
    )
    assert log(uri, "read", "json").out == "[1]\na\n"
    done = append(uri, "raw", tmp_path, ["x"], "--key", "k", "--header", "h=1")
    assert (done.status, done.sentence) == (
        2,
        "bk log: log raw keeps raw values, without key, headers: append the value alone, or create a log with "
        'record_format="envelope"',
    )
    assert log(uri, "show", "raw", "--json").json()["epoch"] == 0  # no leader was stopped for it
    assert append(uri, "raw", tmp_path, ['{"text": "v"}'], "--format", "json").status == 0
    assert log(uri, "read", "raw", "--format", "json").rows()[0]["text"] == "v"
    assert append(uri, "raw", tmp_path, ['{"text": "v", "key": "k"}'], "--format", "json").status == 2
    assert log(uri, "read", "raw").out == "v\n"
    epoch = log(uri, "show", "json", "--json").json()["epoch"]
    assert "--header h: expected NAME=VALUE" in append(uri, "json", tmp_path, ["x"], "--header", "h").sentence
    assert (
        "names that begin with bk- are reserved" in append(uri, "json", tmp_path, ["x"], "--header", "bk-x=1").sentence
    )
    assert log(uri, "show", "json", "--json").json()["epoch"] == epoch
    assert "omit it, or --format text" in log(uri, "read", "json", "--json", "--format", "text").sentence
    assert log(uri, "read", "json", "--raw", "--format", "json").status == 2


def test_what_transactions_leave_behind_is_listed_and_reaped(uri: str) -> None:
    assert log(uri, "create", "transactions", "--ensemble", 1, "--format", "envelope").status == 0
    assert log(uri, "show", "transactions", "--json").json()["record_format"] == "envelope"
    with bookies.blocking.connect(uri) as store:
        orders = store.log("transactions")
        with orders.transaction("loader", 1) as txn:
            txn.append(b"a", key=b"k")
            txn.append_many([b"b"])
        with store.create(
            ensemble=1, labels={"sink.log": "transactions", "sink.app": "lost", "sink.version": "3"}
        ) as left:
            left.append(b"from a task that died")
    listed = log(uri, "reap", "transactions", "--dry-run")
    assert [line.split()[:2] for line in listed.out.splitlines()[1:]] == [[str(left.ledger_id), "lost:3"]]
    assert log(uri, "reap", "transactions", "--dry-run", "--app", "loader", "--json").json() == []
    assert log(uri, "reap", "transactions", "--json").json()[0]["outcome"] == "deleted"
    assert log(uri, "reap", "transactions", "--json").json() == []
    assert log(uri, "read", "transactions").out == "a\nb\n"
