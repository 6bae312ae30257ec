"""Job `import`: files of Parquet, JSON lines, CSV or text into a log, in one transaction.

All rows become visible at once, or none; none if a file has changed since the run began. The run id names the
transaction, so a run that is repeated under its id imports no row twice, however it was interrupted. The transaction's
version is a number derived from the files' names and sizes, so other files under the same run id are refused. The
reaper (`bk log reap`) deletes what failed attempts wrote.

Rows are in the order of the files as they are named (those of a directory by name), and of the lines in them. In
Parquet and CSV the column `value` becomes the entry, with key, headers and timestamp for logs that keep them. Files
without such a column become one JSON object per row. Source: spark 5.4.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from bookies.errors import InvalidArgument, LogNotFound
from bookies.protocol.log.log_model import check_log_name
from bookies.spark.jobs.complete import Complete
from bookies.spark.jobs.exported import listed
from bookies.spark.jobs.shared import common
from bookies.spark.jobs.shared.common import JobConfig, Option
from bookies.spark.jobs.shared.lines import SHOWN_SIZE, JsonLines
from bookies.spark.jobs.shared.packing import Estimate, seconds_of
from bookies.spark.jobs.shared.progress import Begun, Progress
from bookies.spark.jobs.shared.report import Report, Section, Table
from bookies.spark.write import tier, unchanged
from bookies.units import decimal_size_text

if TYPE_CHECKING:
    from bookies.client.client import Client

ENDINGS = {  # ending of a file -> its format
    ".parquet": "parquet", ".jsonl": "json", ".ndjson": "json", ".json": "json", ".csv": "csv", ".txt": "text",
    ".log": "text",
}  # fmt: skip
OPTIONS = (
    Option("files", None, "files, directories, or URIs of either", metavar="FILE", is_positional=True, is_many=True),
    Option("log", None, "the log to append to", metavar="NAME"),
    Option(
        "format", None, "format of the files (default: by their endings)", choices=("parquet", "json", "csv", "text")
    ),
    Option("create_log", False, "create the log if it does not exist", bool),
    Option("fence", False, "fence a leader that writes the log, instead of refusing", bool),
)
IMPORTED = "run_id STRING, log STRING, outcome STRING, files BIGINT, entries BIGINT, bytes BIGINT, ledgers BIGINT"
FILES_MAX = 1000  # of one transaction
NO_UTF8 = "file {} is not in UTF-8: {}; convert it, for example with iconv -f latin1 -t utf8"
HEADER_SIZE = 1 << 20  # bytes read for the first line of a CSV file
COLUMNS = ("value", "key", "headers", "timestamp")
ALREADY, IMPORTED_NOW, WOULD = "imported before", "imported", "would import"


def job(spark: Any, config: JobConfig) -> Any:
    """Return one row: what this run imported, now or earlier."""
    return complete(spark, config).frame


def complete(spark: Any, config: JobConfig) -> Complete:
    from bookies.spark.frames import register

    config = common.checked(config, OPTIONS)
    if not config.options["log"] or not config.options["files"]:
        raise InvalidArgument("name the files and the log: bk spark import FILE... --log NAME")
    if config.bytes_per_s is not None:
        raise InvalidArgument("--rate: import has no rate limit; leave it out, or import fewer files at a time")
    log = check_log_name(config.options["log"])
    register(spark)
    files = files_of(config.options["files"])
    file_format = config.options["format"] or format_of([path for path, _ in files])
    size = sum(size for _, size in files)
    stamps = unchanged.stamps_of(files)
    app, version = f"import-{config.run_id}", version_of(files, file_format)
    if config.mode == common.RUN:
        if config.directory is not None:
            common.is_repeated(spark, config, "import")
        before = common.ask(config.uri, lambda client: imported(client, log, app))
        if before is not None:
            _check_same(config, log, before, version)
            return _complete(spark, config, log, ALREADY, files, common.ask(config.uri, _outcome(log, app)))
    frame = frame_of(spark, [path for path, _ in files], file_format)
    tasks = frame.rdd.getNumPartitions()
    cores = config.processes or spark.sparkContext.defaultParallelism
    plan = Estimate(len(files), tasks, size, {}, seconds_of("import", size, tasks, cores))
    if config.mode == common.PLAN:
        return _complete(spark, config, log, WOULD, files, (0, size, 0))
    if file_format == "csv":
        check_utf8(spark, [path for path, _ in files])
    with Progress(spark, Begun("import", config.run_id, plan), is_quiet=config.is_quiet) as progress:
        progress.begin()
        if config.mode == common.DRY_RUN:
            counted = frame.selectExpr(
                "count(*) AS entries", "coalesce(sum(octet_length(value)), 0) AS bytes"
            ).collect()
            return _complete(spark, config, log, WOULD, files, (counted[0][0], counted[0][1], 0))
        options = {
            "bookkeeper.metadataServiceUri": config.uri,
            "log": log,
            "txnAppId": app,
            "txnVersion": str(version),
            "onOpenTail": "fence" if config.options["fence"] else "fail",
            "createLog": str(bool(config.options["create_log"])).lower(),
            "unchangedFiles": unchanged.packed(stamps),
        }
        try:
            frame.write.format("bookkeeper").mode("append").options(**options).save()
        except Exception:
            # Spark does not report a shortened file, nor a refused commit in one sentence.
            if common.ask(config.uri, lambda client: imported(client, log, app)) is None:
                unchanged.check(stamps)
            raise
        _check_same(config, log, common.ask(config.uri, lambda client: imported(client, log, app)), version)
    return _complete(spark, config, log, IMPORTED_NOW, files, common.ask(config.uri, _outcome(log, app)))


# -- the files -------------------------------------------------------------------------------------------------------


def files_of(names: Sequence[str]) -> list[tuple[str, int]]:
    """Return URI or path, and bytes, of each file; those of directories by name. Raises `InvalidArgument`."""
    files: list[tuple[str, int]] = []
    for name in [names] if isinstance(names, str) else names:
        uri = tier.absolute(name)
        system, path = tier.system_of(uri)
        info = system.get_file_info(path)
        if info.type is pa.fs.FileType.NotFound:
            raise InvalidArgument(f"there is no file {name}")
        if info.type is pa.fs.FileType.File:
            files.append((uri, info.size))
            continue
        files += sorted(_inside(system, uri, path))
    if not files:
        raise InvalidArgument(f"there are no files in {', '.join(names)}")
    if len(files) > FILES_MAX:
        raise InvalidArgument(
            f"{len(files):,} files are too many for one transaction: import up to {FILES_MAX:,} at a time, each "
            "under a run id of its own"
        )
    return files


def _inside(system: Any, uri: str, path: str) -> Iterator[tuple[str, int]]:
    """Yield the files in and below a directory. If it has an export, yield the files that the export lists."""
    exported = listed(uri)
    if exported is not None:
        yield from ((f"{uri}/{name}", size) for name, size in exported)
    for info in system.get_file_info(pa.fs.FileSelector(path)):
        name = info.base_name
        if name[:1] in "_.":
            continue
        if info.type is pa.fs.FileType.Directory:
            yield from _inside(system, f"{uri}/{name}", info.path)
        elif info.type is pa.fs.FileType.File and exported is None:
            yield f"{uri}/{name}", info.size


def format_of(paths: Sequence[str]) -> str:
    """Return the format that the endings of the files indicate. Raises `InvalidArgument`."""
    formats = sorted(
        {next((file_format for end, file_format in ENDINGS.items() if path.endswith(end)), "") for path in paths}
    )
    if len(formats) > 1 or not formats[0]:
        raise InvalidArgument(
            f"the endings of the files do not determine the format ({', '.join(end or 'unknown' for end in formats)}): "
            "give --format parquet, json, csv or text"
        )
    return formats[0]


def frame_of(spark: Any, paths: Sequence[str], file_format: str) -> Any:
    """Return the rows of all files, in order, with the columns that a log accepts.

    Files are read one by one and concatenated: given several, Spark reads the largest first.
    """
    frames = [_rows(spark, path, file_format) for path in paths]
    names = frames[0].columns
    for path, frame in zip(paths, frames, strict=True):
        if frame.columns != names:
            raise InvalidArgument(f"file {path} has columns {', '.join(frame.columns)}, not {', '.join(names)}")
    return reduce(lambda one, two: one.union(two), frames)


def _rows(spark: Any, named: str, file_format: str) -> Any:
    from pyspark.sql import functions as f

    path = _uri(named)
    if file_format in ("json", "text"):
        lines = common.reader_of(spark).text(path)
        if file_format == "text":
            return lines
        return lines.where(f.trim("value") != "").mapInArrow(JsonLines(named), "value STRING")
    if file_format == "parquet":
        check_parquet(named)
        frame = common.reader_of(spark).parquet(path)
    else:  # RFC 4180, as `export` writes it.
        schema = ", ".join(f"`{name.replace('`', '``')}` STRING" for name in header_of(named))
        # With a schema: when Spark infers one from CSV, it treats names as patterns despite the option.
        reader = common.reader_of(spark).options(header=True, multiLine=True, escape='"', mode="FAILFAST")
        frame = reader.option("columnPruning", False).schema(schema).csv(path)  # Otherwise Spark accepts short rows.
        if "value" in frame.columns:  # CSV has no null, so the value was empty.
            frame = frame.withColumn("value", f.coalesce("value", f.lit("")))
    if "value" in frame.columns:
        return frame.select(*[name for name in COLUMNS if name in frame.columns])
    return frame.select(f.to_json(f.struct("*")).alias("value"))


def check_parquet(path: str) -> None:
    """Check that the file is Parquet. Raises `InvalidArgument` with its name, which Spark does not always report."""
    system, inside = tier.system_of(path)
    try:
        pq.read_metadata(inside, filesystem=system)
    except pa.ArrowException as error:
        raise InvalidArgument(f"file {path} is not a Parquet file, or is damaged: {error}") from error


def _uri(path: str) -> str:
    return path if "://" in path else f"file://{path}"


def check_utf8(spark: Any, paths: Sequence[str]) -> None:
    """Check that CSV files are UTF-8: Spark silently reads other encodings with U+FFFD. Raises `InvalidArgument`."""
    from pyspark.sql import functions as f

    reader = common.reader_of(spark)
    lines = [reader.text(_uri(path)).select("value", f.lit(path).alias("path")) for path in paths]
    bad = reduce(lambda one, two: one.union(two), lines).where(~f.is_valid_utf8("value")).limit(1)
    for row in bad.selectExpr("path", "make_valid_utf8(value) AS line").collect():
        raise InvalidArgument(NO_UTF8.format(row["path"], row["line"][:SHOWN_SIZE]))


def header_of(path: str) -> list[str]:
    """Return the columns of a CSV file as Spark would name them. Raises `InvalidArgument`."""
    system, inside = tier.system_of(path)
    with system.open_input_stream(inside) as file:
        data = file.read(HEADER_SIZE)
    try:
        lines = io.StringIO(data.decode("utf-8-sig", errors="replace"), "")
        row = next((row for row in csv.reader(lines) if row), None)
    except csv.Error as error:
        raise InvalidArgument(f"file {path} is not CSV: {error}") from error
    if row is None:
        raise InvalidArgument(f"file {path} is empty: a CSV file begins with the names of its columns")
    counts = Counter(name.lower() for name in row)
    return [
        f"_c{at}" if not name else f"{name}{at}" if counts[name.lower()] > 1 else name for at, name in enumerate(row)
    ]


# -- the log ---------------------------------------------------------------------------------------------------------


def version_of(files: Sequence[tuple[str, int]], file_format: str) -> int:
    """Return the transaction's version: the same number for the same files, and practically unique."""
    content = json.dumps([file_format, *files]).encode()
    return int.from_bytes(hashlib.sha256(content).digest()[:7], "big") + 1


def _check_same(config: JobConfig, log: str, before: Mapping[str, Any] | None, version: int) -> None:
    """Check that the log has the same files under this run id. Raises `InvalidArgument`.

    Older packages wrote version 0.
    """
    if before is not None and int(before.get("version", 0)) not in (0, version):
        raise InvalidArgument(
            f"run {config.run_id} has imported other files into log {log}, or these when they had other sizes, so "
            "nothing is imported now. Another run id imports all named files, including those that the log already "
            "has: choose another run id, and name only new files"
        )


async def imported(client: Client, log: str, app: str) -> dict[str, Any] | None:
    """Return the log's entry about a transaction of this name; None if there is none."""
    try:
        manifest = await client.log(log).manifest()
    except LogNotFound:
        return None
    txn = manifest.txns.get(app)
    return None if txn is None else dict(txn)


def _outcome(log: str, app: str) -> Any:
    """Return a question for `ask`: entries, bytes and ledgers of the transaction that the log still lists."""

    async def question(client: Client) -> tuple[int, int, int]:
        extents = [
            extent for extent in (await client.log(log).manifest()).extents if (extent.txn or "").startswith(f"{app}:")
        ]
        return sum(extent.rows or 0 for extent in extents), sum(extent.bytes or 0 for extent in extents), len(extents)

    return question


def _complete(
    spark: Any,
    config: JobConfig,
    log: str,
    outcome: str,
    files: Sequence[tuple[str, int]],
    counts: tuple[int, int, int],
) -> Complete:
    entries, size, ledgers = counts
    row = (config.run_id, log, outcome, len(files), entries, size, ledgers)
    frame = common.save(common.frame_of(spark, [row], IMPORTED), config, "imported")
    lead = f"{outcome}: {entries:,} entries, {decimal_size_text(size)} from {len(files):,} files, log {log}"
    sections = [Section("Files", table=Table(("file", "bytes"), list(files), (1,)))]
    return Complete(frame, Report("Import", lead, True, {"run": config.run_id, **config.options}, sections))
