"""Files into logs and logs into files: what comes out is what went in, once, whatever happened on the way."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from tests.live.job_faults import Crash, crash_once, in_this_process
from tests.live.spark_marks import PANDAS_MARKS, SMALL_BOOKIES

import bookies as bk
from bookies.admin.cluster import LocalCluster
from bookies.errors import BookKeeperError, InvalidArgument, LogNotFound
from bookies.spark.base import envelope
from bookies.spark.jobs import exporting, importing, repair, usage
from bookies.spark.jobs.shared import common, failures
from bookies.spark.jobs.shared.common import JobConfig

pytestmark = PANDAS_MARKS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("files") / "bk-data"
    with LocalCluster(directory, 3, settings=SMALL_BOOKIES) as cluster:
        yield cluster


def config(cluster: LocalCluster, run_id: str, mode: str = common.RUN, **options: Any) -> JobConfig:
    return JobConfig(cluster.metadata_uri, run_id, mode, None, options, is_quiet=True)


def entries(store: bk.blocking.Client, log: str) -> list[bytes]:
    with store.log(log).open() as reader:
        return [entry.payload for entry in reader.read()]


def only(frame: Any) -> dict[str, Any]:
    [row] = frame.toArrow().to_pylist()
    found: dict[str, Any] = row
    return found


def test_lines_go_in_and_come_out_in_order(
    spark: Any, cluster: LocalCluster, store: bk.blocking.Client, tmp_path: pathlib.Path
) -> None:
    lines = [json.dumps({"id": number, "text": "ä" * (number % 9)}) for number in range(500)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_text("\n".join(lines[:10]) + "\n")  # the smallest file first
    (tmp_path / "in/b.jsonl").write_text("\n".join(lines[10:]))
    (tmp_path / "in/_ignored").write_text("x")
    asked = {"files": [str(tmp_path / "in")], "log": "orders", "create_log": True}
    dry = only(importing.job(spark, config(cluster, "monday", common.DRY_RUN, **asked)))
    assert (dry["outcome"], dry["entries"]) == ("would import", 500)
    assert "orders" not in store.logs()
    found = only(importing.job(spark, config(cluster, "monday", **asked)))
    assert (found["outcome"], found["entries"], found["files"]) == ("imported", 500, 2)
    assert found["bytes"] == sum(len(line.encode()) for line in lines)
    again = only(importing.job(spark, config(cluster, "monday", **asked)))
    assert (again["outcome"], again["entries"]) == ("imported before", 500)
    assert entries(store, "orders") == [line.encode() for line in lines]

    for kind in ("json", "text", "csv", "parquet"):
        to = tmp_path / kind
        report = exporting.complete(spark, config(cluster, f"out-{kind}", source="orders", to=str(to), format=kind))
        assert report.report.is_good
        manifest = json.loads((to / "_manifest.json").read_text())
        assert manifest["entries"] == 500
        for each in manifest["files"]:
            data = (to / each["file"]).read_bytes()
            assert (each["sha256"], each["file_size"]) == (hashlib.sha256(data).hexdigest(), len(data))
        back = only(
            importing.job(spark, config(cluster, f"back-{kind}", files=[str(to)], log=f"copy-{kind}", create_log=True))
        )
        assert back["entries"] == 500
        assert entries(store, f"copy-{kind}") == entries(store, "orders")


def test_records_with_keys_survive_parquet(
    spark: Any, cluster: LocalCluster, store: bk.blocking.Client, tmp_path: pathlib.Path
) -> None:
    values = pa.array([b"one", None, b"three"], pa.binary())
    packed = envelope.encode(values, key=pa.array([b"k1", b"k2", None], pa.binary()))
    made = store.log("keyed")
    made.create(record_format="envelope", compaction="key")
    with made.lead() as leader:
        for _ in range(2):
            leader.append_entries(packed.to_pylist())
            leader.roll()
    assert made.compact().removed == 2  # Exported are the entries that are left, at their positions.
    report = exporting.complete(spark, config(cluster, "keyed", source="keyed", to=str(tmp_path / "out"))).report
    assert report.lead.startswith("4 entries")
    rows = pq.read_table(tmp_path / "out", columns=["ledger_id", "entry_id", "offset"]).to_pydict().values()
    first, last = made.manifest().ledger_ids[:2]
    assert [*zip(*rows, strict=True)] == [(first, 2, 2), (last, 0, 3), (last, 1, 4), (last, 2, 5)]
    assert made.roll_up().left == 1
    exporting.job(spark, config(cluster, "keyed-rolled", source="keyed", to=str(tmp_path / "rolled")))
    assert pq.read_table(tmp_path / "rolled") == pq.read_table(tmp_path / "out")
    store.log("keyed-copy").create(record_format="envelope")
    importing.job(spark, config(cluster, "keyed-back", files=[str(tmp_path / "out")], log="keyed-copy"))
    assert entries(store, "keyed-copy") == entries(store, "keyed")
    with pytest.raises(InvalidArgument, match="export it with --format parquet"):
        exporting.job(spark, config(cluster, "keyed-json", source="keyed", to=str(tmp_path / "j"), format="json"))


@pytest.mark.parametrize("kind", ["text", "json", "csv", "parquet"])
def test_names_of_files_are_no_patterns(
    spark: Any, cluster: LocalCluster, store: bk.blocking.Client, tmp_path: pathlib.Path, kind: str
) -> None:
    directory = tmp_path / "in [1]*"
    directory.mkdir()
    names = sorted(["data1", "data[1]", "a*", "ab", "q?", "qq", "x{1,2}", "x1", "b\\c", "p%20q", "c d", "#h"])
    values = [json.dumps({"name": name}) for name in names]
    for name, value in zip(names, values, strict=True):
        path = directory / f"{name}.{exporting.FORMATS[kind]}"
        if kind == "parquet":
            pq.write_table(pa.table({"value": [value]}), path)
        else:
            path.write_text("value\n" + '"' + value.replace('"', '""') + '"\n' if kind == "csv" else value)
    asked = config(cluster, "patterns", files=[str(directory)], log=f"patterns-{kind}", create_log=True)
    found = only(importing.job(spark, replace(asked, output=str(tmp_path / "runs {a,b}"))))
    assert found["entries"] == len(names)
    assert entries(store, f"patterns-{kind}") == [value.encode() for value in values]


def test_rows_without_a_value_become_objects(
    spark: Any, cluster: LocalCluster, store: bk.blocking.Client, tmp_path: pathlib.Path
) -> None:
    pq.write_table(pa.table({"id": [1, 2], "name": ["a", "b"]}), tmp_path / "people.parquet")
    importing.job(
        spark, config(cluster, "people", files=[str(tmp_path / "people.parquet")], log="people", create_log=True)
    )
    assert entries(store, "people") == [b'{"id":1,"name":"a"}', b'{"id":2,"name":"b"}']


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [
        (exporting.FileWriter, "append", False),
        (exporting.FileWriter, "finish", False),
        (exporting.FileWriter, "finish", True),
        (exporting, "write_manifest", False),
    ],
    ids=str,
)
def test_an_export_goes_on_after_a_crash(
    spark: Any,
    cluster: LocalCluster,
    store: bk.blocking.Client,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    after: bool,
) -> None:
    in_this_process(monkeypatch)
    ids, payloads = [], [b"entry %d" % number for number in range(60)]
    for start in range(0, 60, 20):
        with store.create() as writer:
            writer.append_many(payloads[start : start + 20])
            ids.append(str(writer.ledger_id))
    asked = config(cluster, "crash", source=",".join(ids), to=str(tmp_path), format="text")
    with monkeypatch.context() as faulty:
        crash_once(faulty, owner, name, after=after, skip=0 if owner is exporting else 1)
        with pytest.raises(Crash):
            exporting.job(spark, asked)
    assert not (tmp_path / "_manifest.json").exists()
    exporting.job(spark, asked)
    assert (tmp_path / "_manifest.json").exists()
    files = sorted(tmp_path.glob("part-*"))
    assert len(files) == 3
    assert b"".join(each.read_bytes() for each in files).splitlines() == payloads


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_run_id_is_of_one_import(
    spark: Any, cluster: LocalCluster, store: bk.blocking.Client, tmp_path: pathlib.Path, is_kept: bool
) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text(f"{name}\n")
    log = f"once-{is_kept}"

    def run(name: str) -> dict[str, Any]:
        asked = config(cluster, "once", files=[str(tmp_path / f"{name}.txt")], log=log, create_log=True)
        return only(importing.job(spark, replace(asked, output=str(tmp_path / "runs") if is_kept else None)))

    assert run("one")["outcome"] == "imported"
    with pytest.raises(
        InvalidArgument, match="was begun with .*one.*, not with" if is_kept else "imported other files"
    ):
        run("two")
    again = run("one")
    assert (again["outcome"], again["entries"]) == ("imported before", 1)
    (tmp_path / "one.txt").write_text("one\nand more\n")
    with pytest.raises(InvalidArgument, match="or these when they had other sizes"):
        run("one")
    assert entries(store, log) == [b"one"]


def test_files_that_change_while_they_are_imported_are_not_mixed(
    spark: Any, cluster: LocalCluster, store: bk.blocking.Client, tmp_path: pathlib.Path, monkeypatch: Any
) -> None:
    """Replaced by another of the same size, shortened, or gone: just after the import has looked at them."""
    names = [tmp_path / f"{name}.txt" for name in "abc"]
    whole = "".join(f"{number:07d}\n" for number in range(2000))
    frame_of = importing.frame_of

    def run(change: Callable[[], object]) -> Any:
        for name in names:
            name.write_text(whole)

        def changed(*arguments: Any) -> Any:
            frame = frame_of(*arguments)
            change()
            return frame

        monkeypatch.setattr(importing, "frame_of", changed)
        asked = config(cluster, "changing", files=[str(tmp_path)], log="changing", create_log=True)
        return only(importing.job(spark, asked))

    def replace_one() -> None:
        (tmp_path / "_new").write_text(whole[::-1])
        os.replace(tmp_path / "_new", names[1])

    changes = {
        "b.txt was written again": replace_one,
        "c.txt has 8 bytes, no longer 16,000": lambda: names[2].write_text(whole[:8]),
        "a.txt has 16,008 bytes, no longer 16,000": lambda: names[0].write_text(whole + "another\n"),
        "a.txt was removed": lambda: names[0].unlink(),
    }
    for text, change in changes.items():
        with pytest.raises(InvalidArgument, match=f"{text} since the import began, so nothing was imported"):
            run(change)
        with contextlib.suppress(LogNotFound):
            assert not store.log("changing").manifest().extents
    assert run(lambda: None)["outcome"] == "imported"
    assert len(entries(store, "changing")) == 6000
    # Tasks that were stopped in the middle may have left something, and that goes.
    assert {each.outcome for each in store.log("changing").reap(orphan_grace=0, replay_grace=0)} <= {"deleted"}
    assert list(store.log("changing").reap(orphan_grace=0, replay_grace=0)) == []
    assert len(entries(store, "changing")) == 6000


def test_import_keeps_to_no_rate(spark: Any, cluster: LocalCluster, tmp_path: pathlib.Path) -> None:
    (tmp_path / "one.txt").write_text("one\n")
    asked = config(cluster, "rate", files=[str(tmp_path)], log="rate", create_log=True)
    with pytest.raises(InvalidArgument, match="import has no rate limit"):
        importing.job(spark, replace(asked, bytes_per_s=1e6))


def test_text_of_all_kinds_survives_csv(
    spark: Any, cluster: LocalCluster, store: bk.blocking.Client, tmp_path: pathlib.Path
) -> None:
    rng = random.Random(5)
    signs = [*'",;\r\n\\ \t\\0#ä\ufeff\U0001f600ab', "\r\n", '""', "value"]
    texts = ["", " ", '"', "\\", "\r", "\n", "\r\n", "null", ""]
    texts += ["".join(rng.choices(signs, k=rng.randrange(8))) for _ in range(1000)]
    log = store.log("texts")
    log.create()
    with log.lead() as leader:
        leader.append_many([text.encode() for text in texts])
    exporting.job(spark, config(cluster, "texts", source="texts", to=str(tmp_path / "out"), format="csv"))
    importing.job(
        spark, config(cluster, "texts-back", files=[str(tmp_path / "out")], log="texts-copy", create_log=True)
    )
    assert entries(store, "texts-copy") == [text.encode() for text in texts]


def test_csv_that_would_be_changed_on_its_way_is_refused(
    spark: Any, cluster: LocalCluster, store: bk.blocking.Client, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "a.csv"
    asked = config(cluster, "csv", files=[str(path)], log="csv", create_log=True)
    path.write_bytes("value\ncaf\u00e9\n".encode("latin-1"))
    with pytest.raises(InvalidArgument, match=r"a\.csv is not in UTF-8: caf.; convert it"):
        importing.job(spark, asked)
    path.write_text("id,value\n1,one\n2\n")
    with pytest.raises(Exception, match="MALFORMED_RECORD_IN_PARSING"):
        importing.job(spark, asked)
    path.write_text("")
    with pytest.raises(InvalidArgument, match=r"a\.csv is empty"):
        importing.job(spark, asked)
    assert "csv" not in store.logs() or entries(store, "csv") == []
    path.write_text("id,value\n1,\n2,two\n")  # an empty field of somebody else's
    assert only(importing.job(spark, asked))["entries"] == 2
    assert entries(store, "csv") == [b"", b"two"]


def test_what_a_task_has_to_say_reaches_the_user(
    spark: Any, cluster: LocalCluster, store: bk.blocking.Client, tmp_path: pathlib.Path
) -> None:
    """A sentence of ours as it is; Spark's own where there is none."""

    def refusal(job: Any, **options: Any) -> str:
        with pytest.raises(BookKeeperError) as refused, failures.plain_errors():
            job(spark, config(cluster, "told", **options))
        said: str = refused.value.message
        return said

    pq.write_table(pa.table({"value": [b"one", None]}), tmp_path / "null.parquet")
    pq.write_table(pa.table({"value": [1, 2]}), tmp_path / "number.parquet")
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n{"a": 1} garbage\n')
    (tmp_path / "ragged.csv").write_text("id,value\n1,one\n2\n")
    to = {"log": "told", "create_log": True}
    said = refusal(importing.job, files=[str(tmp_path / "null.parquet")], **to)
    assert said.startswith("column 'value' is null in 1 of 2 rows")
    assert "column 'value'" in refusal(importing.job, files=[str(tmp_path / "number.parquet")], **to)
    said = refusal(importing.job, files=[str(tmp_path / "bad.jsonl")], **to)
    assert said.startswith(f'file {tmp_path}/bad.jsonl: a line is not a JSON object: {{"a": 1}} garbage')
    said = refusal(importing.job, files=[str(tmp_path / "ragged.csv")], **to)
    assert said.startswith("Spark reports: ")
    assert "ragged.csv" in said
    assert "Malformed CSV record: 2" in said
    assert "no tables there" in refusal(usage.job, tables=str(tmp_path / "NOPE"))
    assert "it has no column" in refusal(repair.job, plan=str(tmp_path / "number.parquet"))
    assert "no repair plan there" in refusal(repair.job, plan=str(tmp_path / "NOPE"))


def test_an_export_replaces_its_own_files_only(
    spark: Any, cluster: LocalCluster, store: bk.blocking.Client, tmp_path: pathlib.Path
) -> None:
    log = store.log("large")
    log.create()
    with log.lead() as leader:
        leader.append_many([b"%04d" % number + b"x" * 1000 for number in range(2500)])
    to, runs = tmp_path / "large", str(tmp_path / "runs")
    asked = config(cluster, "large", source="large", to=str(to), format="text", file_size=1)
    assert exporting.job(spark, asked).count() == 3
    exporting.job(spark, config(cluster, "large", source="large", to=str(to), format="text"))
    assert len(list(to.glob("part-*"))) == 1
    with pytest.raises(InvalidArgument, match="has an export of large as text, of run large"):
        exporting.job(spark, config(cluster, "other", source="large", to=str(to), format="text"))
    importing.job(spark, config(cluster, "large-back", files=[str(to)], log="large-copy", create_log=True))
    assert entries(store, "large-copy") == entries(store, "large")

    kept = replace(config(cluster, "kept", source="large", to=str(to / "kept"), file_size=1), output=runs)
    exporting.job(spark, kept)
    lost, left = sorted((to / "kept").glob("part-*"))[:2]
    lost.unlink()
    before = left.stat()
    exporting.job(spark, kept)
    assert lost.exists()
    assert left.stat() == before


def test_what_cannot_be_done_is_told_in_a_sentence(
    spark: Any, cluster: LocalCluster, store: bk.blocking.Client, tmp_path: pathlib.Path
) -> None:
    with store.create() as writer:
        writer.append(b"two\nlines")
    found = exporting.complete(
        spark, config(cluster, "lines", source=str(writer.ledger_id), to=str(tmp_path / "out"), format="text")
    )
    assert "has more than one line" in only(found.frame)["detail"]
    assert not found.report.is_good
    assert not list((tmp_path / "out").iterdir())
    with pytest.raises(InvalidArgument, match="there is no file"):
        importing.job(spark, config(cluster, "none", files=[str(tmp_path / "none.csv")], log="x"))
    (tmp_path / "a.dat").write_text("x")
    with pytest.raises(InvalidArgument, match="give --format"):
        importing.job(spark, config(cluster, "dat", files=[str(tmp_path / "a.dat")], log="x"))
    (tmp_path / "bad.json").write_text('{"id": 1}\n{"id":\n')
    with pytest.raises(Exception, match="a line is not a JSON object"):
        importing.job(spark, config(cluster, "bad", files=[str(tmp_path / "bad.json")], log="bad", create_log=True))
    assert entries(store, "bad") == []
