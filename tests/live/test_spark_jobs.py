"""Fleet jobs in a real Spark session over real bookies, whose files are damaged."""

from __future__ import annotations

import argparse
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from tests.fakes.scripts import load_script
from tests.live.command import bk
from tests.live.spark_marks import PANDAS_MARKS, SMALL_BOOKIES

import bookies as bk_client
from bookies.admin.cluster import LocalCluster
from bookies.admin.verbs import spark_command
from bookies.errors import BookKeeperError, ConfigError, InvalidArgument
from bookies.model import LedgerMetadata
from bookies.spark.jobs import compacting, reconcile, repair, scrub, usage, whatif
from bookies.spark.jobs.shared import common
from bookies.spark.jobs.shared.common import JobConfig
from bookies.spark.jobs.shared.packing import Item
from bookies.spark.jobs.shared.report import page, text
from bookies.spark.read import tables

pytestmark = [*PANDAS_MARKS, pytest.mark.usefixtures("without_adaptive_execution")]

ROOT = pathlib.Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def bench() -> Any:
    """`benchmarks/scrub.py`, which knows how to damage files and to judge what was found."""
    return load_script("benchmarks/scrub.py")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("jobs") / "bk-data"
    with LocalCluster(directory, 4, settings=SMALL_BOOKIES) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def records(cluster: LocalCluster, bench: Any) -> list[LedgerMetadata]:
    """Write eight ledgers and one log of one ledger. Every replica is stored, so a scrub finds only what is damaged."""
    found: list[LedgerMetadata] = bench.write(cluster, 8, 200, 100)
    with cluster.connect() as store:
        log = store.log("orders")
        log.create(ack_quorum=3)
        with log.lead() as leader:
            for number in range(10):
                leader.append(b"order %d" % number)
    return found


def config(cluster: LocalCluster, **options: Any) -> JobConfig:
    known = ("run_id", "mode", "output", "bytes_per_s")
    rest = {name: value for name, value in options.items() if name not in known}
    given = {name: options[name] for name in known if name in options}
    return JobConfig(cluster.metadata_uri, options=rest, is_quiet=True, **given)


def rows(frame: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return found


# -- tables ----------------------------------------------------------------------------------------------------------


def test_tables_say_what_the_metadata_says(spark: Any, cluster: LocalCluster, records: list[LedgerMetadata]) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    def table(name: str, **options: object) -> Any:
        reader = spark.read.format("bookkeeper").option("bookkeeper.metadataServiceUri", cluster.metadata_uri)
        return reader.options(table=name, **options).load()

    ledgers = table("ledgers", ledgersPerPartition=3)
    for name in tables.TABLES:
        frame = table(name)
        derived = to_arrow_schema(frame.schema, timezone="UTC")
        assert derived.remove_metadata() == tables.arrow_schema(name, frame.columns), name
    found = {row["ledger_id"]: row for row in rows(ledgers)}
    assert ledgers.rdd.getNumPartitions() >= 3
    for record in records:
        row = found[record.ledger_id]
        assert (row["state"], row["last_entry"], row["length"]) == ("closed", 199, 20_000)
        assert row["write_quorum"] == record.write_quorum
    replicas = rows(table("replicas").where(f"ledger_id = {records[3].ledger_id}"))
    assert sum(row["bytes"] for row in replicas) == 2 * 20_000
    assert [row["mode"] for row in rows(table("bookies"))] == ["writable"] * 4
    assert all(row["free_bytes"] for row in rows(table("bookies")))
    [extent, *_] = rows(table("manifests"))
    assert (extent["log"], extent["seq"]) == ("orders", 0)


# -- scrub, repair ---------------------------------------------------------------------------------------------------


def test_what_is_damaged_is_found_and_mended(
    spark: Any, cluster: LocalCluster, bench: Any, records: list[LedgerMetadata], tmp_path: pathlib.Path
) -> None:
    cluster.stop()
    done = bench.damage(cluster, records, 40, 4, 7)
    cluster.start()
    runs = str(tmp_path / "runs")
    lines = list(bench.play(spark, cluster, records, done, runs))
    assert lines[0].startswith("scrub:  40 of 40 flipped bits, 4 of 4 missing replicas, 0 others blamed")
    assert lines[2].startswith("scrub:  0 findings")
    coverage = rows(spark.read.parquet(f"{runs}/second/coverage"))
    assert sum(row["entries"] for row in coverage) >= 8 * 200 * 2
    with cluster.connect() as store:
        administration = store.administration()
        ledger_id, bookie, entry_id = done.flipped[0]
        _, [fragment] = administration.fragments(ledger_id)
        assert bookie in fragment.ensemble
        assert administration.renew_entries(ledger_id, bookie, [range(entry_id, entry_id + 1)]) == 1
    again = repair.complete(spark, config(cluster, plan=f"{runs}/first/plan", mode=common.DRY_RUN))
    assert {row["outcome"] for row in rows(again.frame)} == {"satisfied"}
    with pytest.raises(InvalidArgument, match="no repair plan there"):
        repair.job(spark, config(cluster, plan=str(tmp_path / "nowhere")))
    with pytest.raises(InvalidArgument, match="option plan is missing"):
        repair.job(spark, config(cluster))


def test_a_run_goes_on_where_it_was_interrupted(
    spark: Any, cluster: LocalCluster, records: list[LedgerMetadata], tmp_path: pathlib.Path
) -> None:
    """The work of the second attempt counts what it is given; the first one loses some results."""
    calm = common.checked(config(cluster, run_id="r", output=str(tmp_path)), ())
    items = [Item(str(number), 0) for number in range(20)]
    first = common.execute(spark, calm, "test", items, Echo(fails="7"))
    outcomes = {item: outcome for item, outcome, _ in first.details()}
    assert outcomes == {str(number): "failed" if number == 7 else "done" for number in range(20)}
    for path in list((tmp_path / "r" / "results").glob("*.parquet"))[1:]:
        path.unlink()  # As when it is killed before these tasks have ended.
    left = {item for item, outcome, _ in common.Run(calm, first.estimate, 0, common._results(spark, calm)).details()}
    second = common.execute(spark, calm, "test", items, Echo(fails=""))
    assert second.skipped == len(left - {"7"}) > 0
    assert {outcome for _, outcome, _ in second.details()} == {"done"}
    assert len(second.details()) == 20
    third = common.execute(spark, calm, "test", items, Echo(fails=""))
    assert (third.skipped, third.estimate.items, len(third.details())) == (20, 0, 20)
    with pytest.raises(InvalidArgument, match="choose another run id"):
        common.execute(spark, calm, "another job", items, Echo(fails=""))


class Echo:
    """Does nothing; fails at one item."""

    def __init__(self, fails: str) -> None:
        self.fails = fails

    async def carry_out(self, tools: common.Tools, item: Item) -> common.Outcome:
        if item.name == self.fails:
            raise ValueError("as asked")
        return common.Outcome(common.DONE, {"bookies": len(tools.registered)})


def test_a_plan_does_nothing(spark: Any, cluster: LocalCluster, records: list[LedgerMetadata]) -> None:
    found = scrub.complete(spark, config(cluster, mode=common.PLAN, bytes_per_s=1e6))
    assert "nothing was done" in found.report.lead
    assert {row["name"] for row in rows(found.frame)} >= {f"{each.ledger_id}:0-199" for each in records}


def test_speculation_is_refused_where_something_is_written(spark: Any) -> None:
    class Speculating:
        class conf:
            @staticmethod
            def get(name: str, default: str) -> str:
                return "true"

    with pytest.raises(ConfigError, match=r"spark\.speculation=false"):
        common.refuse_speculation(Speculating())


# -- reconcile, usage, whatif ----------------------------------------------------------------------------------------


def test_what_does_not_fit_together_is_told(spark: Any, cluster: LocalCluster, records: list[LedgerMetadata]) -> None:
    with cluster.connect() as store:
        with store.create(labels={"app": "x"}) as ledger:
            ledger.append(b"soon gone")
        store.delete(ledger.ledger_id)
        with store.create() as later:
            later.append(b"so that its id is below the highest")
        log = store.log("broken")
        log.create()
        with log.lead() as leader:
            leader.append(b"one")
        [extent, *_] = log.manifest().extents
        store.delete(extent.ledger_id)
    found = rows(reconcile.job(spark, config(cluster, older_than=0.0)))
    kinds = {kind: [row for row in found if row["kind"] == kind] for kind in {row["kind"] for row in found}}
    assert {row["ledger_id"] for row in kinds["unreferenced"]} >= {each.ledger_id for each in records}
    assert [(row["log"], row["ledger_id"]) for row in kinds["missing-ledger"]] == [("broken", extent.ledger_id)]
    leftovers = [row for row in kinds["leftover"] if row["ledger_id"] == ledger.ledger_id]
    assert len(leftovers) == 3
    assert {row["entries"] for row in leftovers} == {1}
    assert "unknown-bookie" not in kinds
    assert "unreferenced" not in {row["kind"] for row in rows(reconcile.job(spark, config(cluster)))}
    with cluster.connect() as store:
        store.log("broken").delete()


def test_usage_adds_up(
    spark: Any, cluster: LocalCluster, records: list[LedgerMetadata], tmp_path: pathlib.Path
) -> None:
    found = usage.complete(spark, config(cluster, run_id="u", output=str(tmp_path), top=3))
    table = rows(found.frame)
    by_age = [row for row in table if row["section"] == "age"]
    assert sum(row["bytes"] for row in by_age) >= 8 * 20_000
    assert {row["name"] for row in table if row["section"] == "log"} >= {"orders", usage.NO_LOG}
    bookies = [row for row in table if row["section"] == "bookie"]
    assert [row["name"] for row in bookies] == ["b1", "b2", "b3", "b4"]
    assert sum(row["stored"] for row in bookies) == sum(row["stored"] for row in by_age)
    assert len([row for row in table if row["section"] == "largest"]) == 3
    kept = usage.job(spark, config(cluster, tables=str(tmp_path / "u" / "tables"), top=3))
    assert [row["bytes"] for row in rows(kept) if row["section"] == "bookie"] == [row["bytes"] for row in bookies]
    assert "<td class=bars>" in page(found.report)
    assert "By bookie" in text(found.report)


def test_usage_of_many_ledgers_is_known_beforehand(spark: Any, cluster: LocalCluster, tmp_path: pathlib.Path) -> None:
    """10^5 synthetic ledgers, ledger n of n bytes, of four applications, on bookies by turns."""
    from pyspark.sql import functions as f

    count = 100_000
    label = f.create_map(f.lit("app"), f.concat(f.lit("a"), (f.col("id") % 4).cast("string")))
    ledgers = spark.range(count).select(
        f.col("id").alias("ledger_id"), f.lit("closed").alias("state"), f.col("id").alias("length"),
        f.lit(2).alias("write_quorum"), f.current_timestamp().alias("created"), label.alias("labels"),
    )  # fmt: skip
    replicas = spark.range(2 * count).select(
        (f.col("id") / 2).cast("bigint").alias("ledger_id"),
        f.concat(f.lit("b"), (f.col("id") % 10).cast("string")).alias("bookie"),
        (f.col("id") / 2).cast("bigint").alias("bytes"),
    )
    manifests = spark.range(100).select(f.col("id").alias("ledger_id"), f.lit("first").alias("log"))
    nothing = f.lit(None).cast("bigint")
    bookies = spark.range(10).select(
        f.concat(f.lit("b"), f.col("id").cast("string")).alias("bookie"),
        nothing.alias("total_bytes"),
        nothing.alias("free_bytes"),
    )
    for name, frame in zip(usage.TABLES, (ledgers, replicas, manifests, bookies), strict=True):
        frame.write.parquet(str(tmp_path / name))
    table = rows(usage.job(spark, config(cluster, tables=str(tmp_path))))
    found = {(row["section"], row["name"]): (row["ledgers"], row["bytes"], row["stored"]) for row in table}
    total = count * (count - 1) // 2
    assert found["age", "under an hour"] == (count, total, 2 * total)
    assert found["log", "first"] == (100, 4950, 9900)
    assert found["log", usage.NO_LOG] == (count - 100, total - 4950, 2 * (total - 4950))
    assert found["label", "app=a1"] == (25_000, sum(range(1, count, 4)), 2 * sum(range(1, count, 4)))
    assert sum(value[2] for (section, _), value in found.items() if section == "bookie") == 2 * total
    assert ("largest", str(count - 1)) in found


def test_what_dies_with_bookies(spark: Any, cluster: LocalCluster, records: list[LedgerMetadata]) -> None:
    found = whatif.complete(spark, config(cluster, dead="b1"))
    outcomes = {row["ledger_id"]: row["outcome"] for row in rows(found.frame)}
    for record in records:
        expected = None
        if "b1" in record.last_ensemble:
            expected = "single" if record.write_quorum == 2 else "reduced"
        assert outcomes.get(record.ledger_id) == expected
    domains = {"fault_domains": "b1=r1,b2=r1,b3=r2,b4=r2"}
    found = whatif.complete(spark, config(cluster, domains="r1", **domains))
    assert "without b1, b2" in found.report.lead
    lost = {row["ledger_id"] for row in rows(found.frame) if row["outcome"] == "lost"}
    assert lost <= {each.ledger_id for each in records if each.write_quorum == 2}
    with pytest.raises(InvalidArgument, match="there is no bookie b9"):
        whatif.job(spark, config(cluster, dead="b9"))


def test_the_snippets_of_the_page_run(
    spark: Any, cluster: LocalCluster, records: list[LedgerMetadata], tmp_path: pathlib.Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"spark": spark, "uri": cluster.metadata_uri}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/reference/spark-jobs.md").read_text(), re.DOTALL)
    assert len(blocks) >= 3
    for block in blocks:
        # Relative to where the Java process was started, which is not where this test is.
        there = block.replace('output="runs"', f'output="{tmp_path / "runs"}"')
        exec(compile(there, "docs/reference/spark-jobs.md", "exec"), names)


# -- the command -----------------------------------------------------------------------------------------------------


def keep_session(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands use the session, which they would stop at their end, as under spark-submit."""
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "0")


def test_the_command_uses_the_session_that_there_is(
    spark: Any,
    cluster: LocalCluster,
    records: list[LedgerMetadata],
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keep_session(spark, monkeypatch)

    def run(*words: str) -> tuple[int, str]:
        parser = argparse.ArgumentParser()
        spark_command.configure(parser)
        status = spark_command.run(parser.parse_args([*words, "--metadata", cluster.metadata_uri]))
        return status, capsys.readouterr().out

    report = tmp_path / "scrub.html"
    output = ["--output", str(tmp_path), "--run-id", "one", "--rate", "100"]
    document = tmp_path / "scrub.json"
    status, out = run("scrub", "--level", "1", "--report", str(report), "--report", str(document), *output)
    assert (status, "no findings" in out) == (0, True)
    assert report.read_text().startswith("<!doctype html>")
    assert "<h2>Read and written</h2>" in report.read_text()
    counters = json.loads(document.read_text())["counters"]
    assert counters["tasks"] >= 1
    assert counters["bytes_received"] > 0 == counters["replicas_sent"]
    status, out = run("whatif", "--dead", "b2", "--json")
    assert {json.loads(line)["outcome"] for line in out.splitlines()} <= {"lost", "single", "reduced", "stuck"}
    status, out = run("scrub", "--plan-only")
    assert (status, "nothing was done" in out) == (0, True)


def test_a_sentence_of_a_task_is_the_commands(
    spark: Any, cluster: LocalCluster, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_session(spark, monkeypatch)
    (tmp_path / "bad.jsonl").write_text("5\n")
    with cluster.connect() as store:
        store.log("refused").create(ensemble=1, write_quorum=1, ack_quorum=1)
    done = bk("spark", "import", tmp_path / "bad.jsonl", "--log", "refused", metadata=cluster.metadata_uri)
    assert done.status == 2, done.err
    assert "bk spark: file " in done.err
    assert "bad.jsonl: a line is not a JSON object: 5 (it is not an object)" in done.err
    assert "this is a bug" not in done.err


# -- compact ---------------------------------------------------------------------------------------------------------


def keyed(store: bk_client.blocking.Client, name: str) -> Any:
    """Log of four closed ledgers: keys that repeat, none, two deleted ones, numbers of a writer, a damaged record."""
    log = store.log(name)
    log.create(record_format="envelope", compaction="key")
    with log.lead() as leader:
        for part in range(4):
            for number in range(20):
                leader.append(bk_client.Record(b"%d-%d" % (part, number), b"k%d" % (number % (6 + part))))
            leader.append(bk_client.Record(b"%d" % part, None))
            leader.append(bk_client.Record(b"%d" % part, b"own%d" % part))
            leader.append(bk_client.Record(b"n", b"numbered"), producer="p", sequence=part + 1)
            leader.append(bk_client.Record(None, (b"own0", b"own1", b"numbered", b"k1")[part]))
            leader.roll()
    return log


def test_a_log_is_compacted_as_the_client_does_it(
    spark: Any, cluster: LocalCluster, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster.connect() as store:
        twin, log = keyed(store, "twin"), keyed(store, "by-key")

        def records(log: Any) -> list[tuple[int, int, bytes | None, bytes | None]]:
            ledgers = log.manifest().ledger_ids
            with log.open() as reader:
                return [
                    (ledgers.index(record.position.ledger_id), record.position.entry_id, record.key, record.value)
                    for record in reader.read().records()
                ]

        before = records(log)
        removed = twin.compact(tombstone_age=0.001).removed
        asked = config(cluster, log="by-key", tombstone_age="1ms", run_id="monday", output=str(tmp_path))
        monkeypatch.setattr(compacting, "_swap", lost)
        with pytest.raises(BookKeeperError, match="the store is away"):
            compacting.job(spark, asked)
        monkeypatch.undo()
        assert records(log) == before
        ledgers = {ledger.ledger_id for ledger in store.ledgers()}
        found = compacting.complete(spark, asked)  # It swaps the ledgers in that the interrupted run has written.
        assert set(log.manifest().storages) <= ledgers
        assert found.report.is_good
        assert found.report.lead.startswith(f"removed {removed} of 96 entries, in 4 of 4 ledgers; ")
        assert [(row["extent"], row["outcome"]) for row in rows(found.frame)] == [(part, "done") for part in range(4)]
        assert sum(row["removed"] for row in rows(found.frame)) == removed
        assert records(log) == records(twin)
        assert {record[2] for record in before} == {record[2] for record in records(log)}
        twin.compact(tombstone_age=0.001)  # Their records are gone.
        compacting.job(spark, replace(config(cluster, log="by-key", tombstone_age="1ms"), bytes_per_s=1e6))
        assert records(log) == records(twin)
        assert {record[2] for record in before} - {record[2] for record in records(log)} == {b"own0", b"own1", b"k1"}
        plan = compacting.complete(spark, config(cluster, log="by-key", mode=common.PLAN)).report
        assert plan.lead.startswith("4 items in")
        with pytest.raises(InvalidArgument, match="must be a duration such as 1d"):
            compacting.job(spark, config(cluster, log="by-key", tombstone_age="soon"))


async def lost(*_: object) -> None:
    raise BookKeeperError("the store is away")
