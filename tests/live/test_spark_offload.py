"""Ledgers in Parquet files: copied, compared, read back by everybody, given up, damaged, and copied through crashes."""

from __future__ import annotations

import pathlib
import random
import shutil
from collections.abc import Iterator
from typing import Any

import pyarrow.dataset
import pytest
from tests.fakes.spark_query import batch
from tests.live.job_faults import Crash, crash_once, in_this_process
from tests.live.spark_marks import PANDAS_MARKS, SMALL_BOOKIES

import bookies as bk
import bookies.spark
from bookies.admin.cluster import LocalCluster
from bookies.client.repair import Administration
from bookies.client.repair.copying import LedgerCopier
from bookies.errors import DigestMismatch, InvalidArgument, NotSupported, ReadFailed
from bookies.protocol.ledger.offload import DELETED, LABEL, RESTORING, offload_of
from bookies.spark.jobs import offload, restore
from bookies.spark.jobs.shared import common
from bookies.spark.jobs.shared.common import JobConfig
from bookies.spark.write import tier

pytestmark = PANDAS_MARKS

PASSWORD = b"secret"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("offload") / "bk-data"
    with LocalCluster(directory, 4, settings=SMALL_BOOKIES) as cluster:
        yield cluster


@pytest.fixture
def ledgers(store: bk.blocking.Client) -> list[int]:
    """Sealed ledgers of all shapes: replicated, striped, of one replica, empty; entries of 0 bytes to 1 MiB."""
    rng = random.Random(7)
    shapes = ((3, 3, 2), (4, 2, 2), (1, 1, 1), (3, 2, 1))
    sizes = ([0, 1, 100, 5_000], [0, *(rng.randrange(200) for _ in range(300)), 0], [1 << 20] * 10, [])
    made = []
    for (ensemble, write_quorum, ack_quorum), own, digest in zip(
        shapes, sizes, ("crc32c", "hmac", "crc32", "none"), strict=True
    ):
        with store.create(
            ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum, digest=digest, password=PASSWORD
        ) as writer:
            for size in own:
                writer.append(rng.randbytes(size))
            made.append(writer.ledger_id)
    return made


def config(cluster: LocalCluster, to: pathlib.Path, ledgers: list[int], **options: Any) -> JobConfig:
    run_id = options.pop("run_id", "first")
    chosen = {"to": str(to), "older_than": "0s", "ledgers": ",".join(map(str, ledgers))}
    output, mode = options.pop("output", None), options.pop("mode", common.RUN)
    return JobConfig(cluster.metadata_uri, run_id, mode, output, chosen | options, is_quiet=True)


def entries(store: bk.blocking.Client, ledger_id: int, where: str) -> list[Any]:
    with store.open(ledger_id, password=PASSWORD, tier=where) as reader:
        return list(reader.read())


def outcomes(frame: Any) -> dict[int, str]:
    return {row["ledger_id"]: row["outcome"] for row in frame.toArrow().to_pylist()}


def test_a_copy_is_read_as_the_ledger_was(
    spark: Any, cluster: LocalCluster, store: bk.blocking.Client, ledgers: list[int], tmp_path: pathlib.Path
) -> None:
    found = offload.job(spark, config(cluster, tmp_path / "cold", ledgers, output=str(tmp_path / "runs")))
    assert outcomes(found) == dict.fromkeys(ledgers, "offloaded")
    for ledger_id in ledgers:
        original = entries(store, ledger_id, "bookies")
        assert entries(store, ledger_id, "offloaded") == original
        copy = offload_of(store.metadata(ledger_id))
        assert copy is not None
        assert copy.rows == len(original)
        table = pyarrow.dataset.dataset(copy.uri, format="parquet").to_table()
        if original:
            table = table.sort_by("entry_id")
            assert table.column("value").to_pylist() == [each.payload for each in original]
            assert table.column("length").to_pylist() == [each.length for each in original]
        else:
            assert table.num_rows == 0
    [large] = [each for each in ledgers if store.metadata(each).length >= 10 << 20]
    with store.open(large, password=PASSWORD, tier="offloaded") as reader:
        assert reader.read_entry(9) == entries(store, large, "bookies")[9]
        assert len(list(reader.read(3, 5))) == 3
    other = offload.job(spark, config(cluster, tmp_path / "cold", ledgers, run_id="second"))
    assert outcomes(other) == {}
    first = found.toArrow().to_pylist()  # The table is replaced.
    again = offload.complete(spark, config(cluster, tmp_path / "cold", ledgers, output=str(tmp_path / "runs")))
    told = {row["ledger_id"]: row for row in again.frame.toArrow().to_pylist()}
    for row in first:
        assert told[row["ledger_id"]] == row | {"detail": "by an earlier attempt of this run"}
    assert len(told) == len(ledgers)
    assert f"{len(ledgers)} offloaded" in again.report.lead


def test_a_copy_is_a_table_for_duckdb(
    spark: Any, cluster: LocalCluster, store: bk.blocking.Client, ledgers: list[int], tmp_path: pathlib.Path
) -> None:
    """A program that is not ours and knows nothing of the layout reads every column of every copy."""
    duckdb = pytest.importorskip("duckdb")
    offload.job(spark, config(cluster, tmp_path, ledgers))
    with duckdb.connect() as database:
        for ledger_id in ledgers:
            copy = offload_of(store.metadata(ledger_id))
            assert copy is not None
            with store.open(ledger_id, password=PASSWORD, tier="bookies") as reader:
                expected = [(each.id, each.length, each.payload) for each in reader.read()]
            if not expected:
                assert not list(pathlib.Path(copy.uri).glob("*.parquet"))
                continue
            query = f"SELECT entry_id, length, value FROM '{copy.uri}/*.parquet' ORDER BY entry_id"
            assert database.sql(query).fetchall() == expected
            [row] = database.sql(f"SELECT count(*), count(lac), max(length) FROM '{copy.uri}/*.parquet'").fetchall()
            assert row == (len(expected), len(expected), expected[-1][1])
        [every] = database.sql(f"SELECT count(*) FROM '{tmp_path}/*/ledger-*/*/*.parquet'").fetchall()
        assert every == (sum(len(entries(store, each, "bookies")) for each in ledgers),)


def test_the_source_reads_both_tiers_alike(
    spark: Any, cluster: LocalCluster, store: bk.blocking.Client, ledgers: list[int], tmp_path: pathlib.Path
) -> None:
    bookies.spark.register(spark)
    password = tmp_path / "password"
    password.write_bytes(PASSWORD)

    def rows(where: str, **options: object) -> list[Any]:
        reader = spark.read.format("bookkeeper").option("bookkeeper.metadataServiceUri", cluster.metadata_uri)
        reader = reader.option("bookkeeper.passwordFile", str(password)).options(readTier=where, **options)
        frame = reader.load(",".join(map(str, ledgers)))
        assert where == "bookies" or frame.rdd.getNumPartitions() >= 1
        return sorted(map(tuple, frame.collect()))

    log = store.log("keyed", password=PASSWORD)
    log.create(record_format="envelope", compaction="key")
    with log.lead() as leader:
        for _ in range(2):
            leader.append_many([bk.Record(b"%d" % number, b"%d" % (number % 7)) for number in range(30)])
            leader.roll()
    assert log.compact().removed == 53
    expected = rows("bookies", includeMetadata="true")
    small = store.log("small", password=PASSWORD)
    small.create()
    with small.lead() as leader:
        for first in (0, 20, 40):
            leader.append_many([b"%d" % number for number in range(first, first + 20)])
            leader.roll()
    assert small.roll_up().created == 1
    cold = [*ledgers, *log.manifest().storages[:2], small.manifest().storages[0]]
    offload.job(spark, config(cluster, tmp_path / "cold", cold))
    asked = {"bookkeeper.metadataServiceUri": cluster.metadata_uri, "bookkeeper.passwordFile": password}
    asked |= {"assign": '{"logs": {"keyed": [0, 59]}}'}
    keyed = batch(asked | {"readTier": "bookies"})
    assert [row["offset"] for row in keyed] == list(range(53, 60))
    assert batch(asked | {"readTier": "offloaded"}) == keyed
    asked |= {"assign": '{"logs": {"small": [15, 50]}}', "readTier": "offloaded"}
    assert [(row["offset"], row["entry_id"], int(row["value"])) for row in batch(asked)] == [
        (number, number % 20, number) for number in range(15, 51)
    ]
    assert log.roll_up().offloaded == 2
    assert rows("offloaded", includeMetadata="true") == expected
    assert rows("auto", includeMetadata="true", maxBytesPerPartition=1 << 20) == expected
    assert rows("offloaded", includeMetadata="true", maxRecordsPerPartition=7) == expected


def test_bookies_forget_only_what_was_checked_again(
    spark: Any, cluster: LocalCluster, store: bk.blocking.Client, ledgers: list[int], tmp_path: pathlib.Path
) -> None:
    first, second = ledgers[:2]
    originals = {each: entries(store, each, "bookies") for each in (first, second)}
    offload.job(spark, config(cluster, tmp_path, [first, second]))
    copy = offload_of(store.metadata(second))
    assert copy is not None
    damage(next(pathlib.Path(copy.uri).glob("*.parquet")))
    dry = offload.job(
        spark, config(cluster, tmp_path, [first, second], delete_after="0s", mode=common.DRY_RUN, run_id="dry")
    )
    assert set(outcomes(dry).values()) == {"would be forgotten"}
    assert DELETED not in store.metadata(first).custom_metadata
    found = offload.complete(spark, config(cluster, tmp_path, [first, second], delete_after="0s", run_id="later"))
    assert outcomes(found.frame) == {first: "bookies-deleted", second: "failed"}
    assert not found.report.is_good
    assert DELETED in store.metadata(first).custom_metadata
    assert DELETED not in store.metadata(second).custom_metadata
    assert entries(store, first, "auto") == originals[first]
    assert entries(store, second, "auto") == originals[second]  # from the bookies


def damage(path: pathlib.Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


def test_a_damaged_copy_delivers_nothing(
    spark: Any, cluster: LocalCluster, store: bk.blocking.Client, ledgers: list[int], tmp_path: pathlib.Path
) -> None:
    with pytest.raises(NotSupported, match="it is not offloaded"):
        entries(store, ledgers[0], "offloaded")
    offload.job(spark, config(cluster, tmp_path, ledgers))
    damaged = 0
    for ledger_id in ledgers[:3]:
        copy = offload_of(store.metadata(ledger_id))
        assert copy is not None
        for file in sorted(pathlib.Path(copy.uri).iterdir()):
            good = file.read_bytes()
            original = entries(store, ledger_id, "bookies")
            for at in range(0, len(good), max(1, len(good) // 12)):
                file.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
                found = entries_or_none(store, ledger_id)
                assert found in (None, original)  # the same when nothing depends on that byte
                damaged += found is None
            file.write_bytes(good[:-100])
            with pytest.raises(ReadFailed, match="damaged or gone"):
                entries(store, ledger_id, "offloaded")
            file.unlink()
            with pytest.raises(ReadFailed, match="damaged or gone"):
                entries(store, ledger_id, "offloaded")
            file.write_bytes(good)
        assert entries(store, ledger_id, "offloaded") == original
    assert damaged > 30


def entries_or_none(store: bk.blocking.Client, ledger_id: int) -> list[Any] | None:
    """What the copy delivers; None when it refuses."""
    try:
        return entries(store, ledger_id, "offloaded")
    except (ReadFailed, DigestMismatch):
        return None


STEPS = [
    (tier.PartsWriter, "append", False),
    (tier.PartsWriter, "finish", False),
    (tier.PartsWriter, "finish", True),
    (tier, "check_part", False),
    (tier, "write_index", False),
    (tier, "write_index", True),
    (Administration, "change_record", False),
    (Administration, "change_record", True),
    (common, "save", False),
]


@pytest.mark.parametrize(("owner", "name", "after"), STEPS, ids=lambda each: getattr(each, "__name__", str(each)))
def test_a_crash_between_any_two_steps_is_made_good(
    spark: Any,
    cluster: LocalCluster,
    store: bk.blocking.Client,
    ledgers: list[int],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    after: bool,
) -> None:
    monkeypatch.setattr(offload, "PART_SIZE", 3 << 20)  # the largest one is copied in four parts
    in_this_process(monkeypatch)
    asked = config(cluster, tmp_path, ledgers)
    with monkeypatch.context() as faulty:
        crash_once(faulty, owner, name, after=after, skip=2 if owner is tier else 0)
        with pytest.raises(Crash):
            offload.job(spark, asked)
    for ledger_id in ledgers:  # whatever the record names can be read
        if LABEL in store.metadata(ledger_id).custom_metadata:
            assert entries(store, ledger_id, "offloaded") == entries(store, ledger_id, "bookies")
    offload.job(spark, asked)
    for ledger_id in ledgers:
        copy = offload_of(store.metadata(ledger_id))
        assert copy is not None
        assert entries(store, ledger_id, "offloaded") == entries(store, ledger_id, "bookies")
        [attempt] = pathlib.Path(copy.uri).parent.iterdir()
        assert all(not each.name.startswith("_part") for each in attempt.iterdir())


def test_lost_attempts_are_swept_and_named_ones_stay(
    spark: Any,
    cluster: LocalCluster,
    store: bk.blocking.Client,
    ledgers: list[int],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_this_process(monkeypatch)
    with monkeypatch.context() as faulty:
        crash_once(faulty, tier, "write_index", after=False, skip=2)
        with pytest.raises(Crash):
            offload.job(spark, config(cluster, tmp_path, ledgers, run_id="lost"))
    offload.job(spark, config(cluster, tmp_path, ledgers, run_id="good"))
    copies = (str(tmp_path), cluster_of(tmp_path), tier.OFFLOAD_DIGITS)
    lost = [each for each in tier.attempts(*copies) if each.attempt.startswith("lost")]
    assert len(lost) >= 2
    dry = offload.job(spark, config(cluster, tmp_path, ledgers, run_id="x", sweep_after="0s", mode=common.DRY_RUN))
    assert set(outcomes(dry).values()) == {"would be swept"}
    offload.job(spark, config(cluster, tmp_path, ledgers, run_id="sweep", sweep_after="0s"))
    for ledger_id in ledgers:
        assert entries(store, ledger_id, "offloaded") == entries(store, ledger_id, "bookies")
    named = {offload_of(store.metadata(each)).attempt for each in ledgers}  # type: ignore[union-attr]
    assert {each.attempt for each in tier.attempts(*copies)} == named


def test_parts_that_were_swept_before_the_commit_are_written_again(
    spark: Any,
    cluster: LocalCluster,
    store: bk.blocking.Client,
    ledgers: list[int],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The results of the run say that they are there. Spark itself carries out the run: its rows are the matter."""
    to, output = tmp_path / "cold", str(tmp_path / "runs")
    asked = config(cluster, to, ledgers, run_id="stopped", output=output)
    with monkeypatch.context() as faulty:
        crash_once(faulty, offload, "_committed", after=False)
        with pytest.raises(Crash):
            offload.job(spark, asked)
    assert len(list(to.glob("*/*/*/part-*"))) == 3
    offload.job(spark, config(cluster, to, [], run_id="sweeper", older_than="9999d", sweep_after="0s"))
    assert not list(to.glob("*/*/*/part-*"))
    assert outcomes(offload.job(spark, asked)) == dict.fromkeys(ledgers, "offloaded")
    for ledger_id in ledgers:
        assert entries(store, ledger_id, "offloaded") == entries(store, ledger_id, "bookies")


def test_a_copy_whose_files_are_gone_is_never_named(
    spark: Any,
    cluster: LocalCluster,
    store: bk.blocking.Client,
    ledgers: list[int],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody sweeps between the look at the files and the commit; the run is repeated then."""
    in_this_process(monkeypatch)
    write_index = tier.write_index

    def sweep_and_write(directory: str, index: Any) -> int:
        for each in pathlib.Path(directory).glob("part-*"):
            each.unlink()
        return write_index(directory, index)

    asked = config(cluster, tmp_path, ledgers[:2])
    with monkeypatch.context() as swept:
        swept.setattr(tier, "write_index", sweep_and_write)
        found = offload.job(spark, asked).toArrow().to_pylist()
    assert {row["outcome"] for row in found} == {"failed"}
    assert all("is missing" in row["detail"] and "repeat the run" in row["detail"] for row in found)
    assert all(offload_of(store.metadata(each)) is None for each in ledgers[:2])
    assert outcomes(offload.job(spark, asked)) == dict.fromkeys(ledgers[:2], "offloaded")
    assert entries(store, ledgers[1], "offloaded") == entries(store, ledgers[1], "bookies")


def cluster_of(to: pathlib.Path) -> str:
    [found] = to.iterdir()
    return found.name


def forgotten(spark: Any, cluster: LocalCluster, ledgers: list[int], to: pathlib.Path) -> None:
    offload.job(spark, config(cluster, to, ledgers, run_id="copy"))
    offload.job(spark, config(cluster, to, ledgers, run_id="forget", delete_after="0s"))


@pytest.mark.parametrize(
    ("owner", "name", "after", "skip"),
    [
        (Administration, "change_record", True, 0),
        (LedgerCopier, "write", False, 1),
        (LedgerCopier, "check", False, 0),
        (Administration, "change_record", False, 1),
        (Administration, "change_record", True, 1),
        (None, "", False, 0),
    ],
    ids=str,
)
def test_a_ledger_comes_back_to_bookies_under_its_number(
    spark: Any,
    cluster: LocalCluster,
    store: bk.blocking.Client,
    ledgers: list[int],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    after: bool,
    skip: int,
) -> None:
    originals = {each: entries(store, each, "bookies") for each in ledgers}
    in_this_process(monkeypatch)
    forgotten(spark, cluster, ledgers, tmp_path)
    chosen = {"ledgers": ",".join(map(str, ledgers))}
    asked = JobConfig(cluster.metadata_uri, run_id="restore", options=chosen, is_quiet=True)
    if owner is not None:
        with monkeypatch.context() as faulty:
            crash_once(faulty, owner, name, after=after, skip=skip)
            with pytest.raises(Crash):
                restore.job(spark, asked)
        for ledger_id in ledgers:
            assert entries(store, ledger_id, "auto") == originals[ledger_id]
    restore.job(spark, asked)
    for ledger_id in ledgers:
        labels = store.metadata(ledger_id).custom_metadata
        assert LABEL in labels
        assert not {DELETED, RESTORING} & set(labels)
        assert entries(store, ledger_id, "auto") == originals[ledger_id]
        assert store.administration().check_ledger(ledger_id, percentage=100).is_ok
    shutil.rmtree(tmp_path)
    for ledger_id in ledgers:
        assert entries(store, ledger_id, "auto") == originals[ledger_id]


def test_a_ledger_whose_copy_is_gone_stays_with_bookies_that_have_it(
    spark: Any,
    cluster: LocalCluster,
    store: bk.blocking.Client,
    ledgers: list[int],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bookies wait a day before they forget; until then `restore` needs no copy."""
    chosen = ledgers[:2]
    originals = {each: entries(store, each, "bookies") for each in chosen}
    in_this_process(monkeypatch)
    forgotten(spark, cluster, chosen, tmp_path)
    for each in tmp_path.rglob("part-*"):
        each.unlink()
    options = {"ledgers": ",".join(map(str, chosen))}
    found = restore.job(spark, JobConfig(cluster.metadata_uri, run_id="restore", options=options, is_quiet=True))
    rows = found.toArrow().to_pylist()
    assert {row["outcome"] for row in rows} == {"done"}
    assert all("its bookies still had all of it" in row["detail"] for row in rows)
    for ledger_id in chosen:
        assert not {LABEL, DELETED, RESTORING} & set(store.metadata(ledger_id).custom_metadata)
        assert entries(store, ledger_id, "auto") == originals[ledger_id]


def test_wrong_options_are_told_in_a_sentence(spark: Any, cluster: LocalCluster, tmp_path: pathlib.Path) -> None:
    with pytest.raises(InvalidArgument, match="option to is missing"):
        offload.job(spark, JobConfig(cluster.metadata_uri, is_quiet=True))
    with pytest.raises(InvalidArgument, match="such as 7d"):
        offload.job(spark, config(cluster, tmp_path, [], older_than="soon"))
    with pytest.raises(InvalidArgument, match="expected numbers"):
        offload.job(spark, JobConfig(cluster.metadata_uri, options={"to": str(tmp_path), "ledgers": "one"}))
