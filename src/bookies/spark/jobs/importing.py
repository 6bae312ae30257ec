"""`import`: files of Parquet, JSON lines, CSV or text into a log, in one transaction.

All rows become visible at once, or none; none if a file has changed since the run began. The transaction is named by
the run id, so a run that is repeated under its id, after whatever happened to it, imports nothing twice; its version is
a number made of the files' names and sizes, so that other files under the same run id are refused. What it wrote in
vain is the reaper's (`bk log reap`).

Rows are in the order of the files as they are named (those of a directory by name), and of the lines in them. Of
Parquet and CSV the column `value` becomes the entry, with key, headers and timestamp for logs that keep them; files
without such a column become one JSON object a row. Source: spark 5.4.
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
from bookies.spark.jobs.shared.packing import TASK_SIZE, Estimate
from bookies.spark.jobs.shared.progress import Progress, size_text
from bookies.spark.jobs.shared.report import Report, Section, Table
from bookies.spark.write import tier, unchanged

if TYPE_CHECKING:
    from bookies.client.client import Client

ENDINGS = {  # of files, and the formats that they say
    ".parquet": "parquet", ".jsonl": "json", ".ndjson": "json", ".json": "json", ".csv": "csv", ".txt": "text",
    ".log": "text",
}  # fmt: skip
OPTIONS = (
    Option("files", None, "files or directories, or URIs of such", metavar="FILE", is_positional=True, is_many=True),
    Option("log", None, "the log to append to", metavar="NAME"),
    Option("format", None, "of the files (default: by their endings)", choices=("parquet", "json", "csv", "text")),
    Option("create_log", False, "make the log if there is none", bool),
    Option("fence", False, "stop a leader who writes the log, in place of refusing", bool),
)
IMPORTED = "run_id STRING, log STRING, outcome STRING, files BIGINT, entries BIGINT, bytes BIGINT, ledgers BIGINT"
IMPORT_RATE = 50e6  # bytes a second, for the estimate
FILES_MAX = 1000  # of one transaction
NO_UTF8 = "file {} is not in UTF-8: {}; convert it, as with iconv -f latin1 -t utf8"
HEADER_SIZE = 1 << 20  # bytes in which the first line of a CSV file ends
COLUMNS = ("value", "key", "headers", "timestamp")
ALREADY, IMPORTED_NOW, WOULD = "imported before", "imported", "would import"


def job(spark: Any, config: JobConfig) -> Any:
    """One row: what came into the log, now or when this run was first made."""
    return complete(spark, config).frame


def complete(spark: Any, config: JobConfig) -> Complete:
    from bookies.spark.frames import register

    config = common.checked(config, OPTIONS)
    if not config.options["log"] or not config.options["files"]:
        raise InvalidArgument("say which files and which log: bk spark import FILE... --log NAME")
    if config.bytes_per_s is not None:
        raise InvalidArgument("--rate: import keeps to no rate; leave it out, or import fewer files at a time")
    log = check_log_name(config.options["log"])
    register(spark)
    files = files_of(config.options["files"])
    kind = config.options["format"] or format_of([path for path, _ in files])
    size = sum(size for _, size in files)
    stamps = unchanged.stamps_of(files)
    app, version = f"import-{config.run_id}", version_of(files, kind)
    if config.mode == common.RUN:
        if config.directory is not None:
            common.is_repeated(spark, config, "import")
        before = common.ask(config.uri, lambda client: imported(client, log, app))
        if before is not None:
            _check_same(config, log, before, version)
            return _complete(spark, config, log, ALREADY, files, common.ask(config.uri, _outcome(log, app)))
    frame = frame_of(spark, [path for path, _ in files], kind)
    plan = Estimate(len(files), max(1, -(-size // TASK_SIZE)), size, {}, size / IMPORT_RATE)
    if config.mode == common.PLAN:
        return _complete(spark, config, log, WOULD, files, (0, size, 0))
    if kind == "csv":
        check_utf8(spark, [path for path, _ in files])
    with Progress(spark, "import", config.run_id, plan, 0, is_kept=True, is_quiet=config.is_quiet) as progress:
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
            # Spark tells neither that a file has become shorter, nor in one sentence that the commit was refused.
            if common.ask(config.uri, lambda client: imported(client, log, app)) is None:
                unchanged.check(stamps)
            raise
        _check_same(config, log, common.ask(config.uri, lambda client: imported(client, log, app)), version)
    return _complete(spark, config, log, IMPORTED_NOW, files, common.ask(config.uri, _outcome(log, app)))


# -- the files -------------------------------------------------------------------------------------------------------


def files_of(named: Sequence[str]) -> list[tuple[str, int]]:
    """(URI or path, bytes) of each file, those of directories by name. Raises `InvalidArgument`."""
    found: list[tuple[str, int]] = []
    for each in [named] if isinstance(named, str) else named:
        uri = tier.absolute(each)
        system, path = tier.system_of(uri)
        info = system.get_file_info(path)
        if info.type is pa.fs.FileType.NotFound:
            raise InvalidArgument(f"there is no file {each}")
        if info.type is pa.fs.FileType.File:
            found.append((uri, info.size))
            continue
        found += sorted(_inside(system, uri, path))
    if not found:
        raise InvalidArgument(f"there are no files in {', '.join(named)}")
    if len(found) > FILES_MAX:
        raise InvalidArgument(
            f"{len(found):,} files are too many for one transaction: import up to {FILES_MAX:,} at a time, each "
            "under a run id of its own"
        )
    return found


def _inside(system: Any, uri: str, path: str) -> Iterator[tuple[str, int]]:
    """The files of a directory and those below it; of one that has an export those that this lists."""
    exported = listed(uri)
    if exported is not None:
        yield from ((f"{uri}/{name}", size) for name, size in exported)
    for one in system.get_file_info(pa.fs.FileSelector(path)):
        name = one.base_name
        if name[:1] in "_.":
            continue
        if one.type is pa.fs.FileType.Directory:
            yield from _inside(system, f"{uri}/{name}", one.path)
        elif one.type is pa.fs.FileType.File and exported is None:
            yield f"{uri}/{name}", one.size


def format_of(paths: Sequence[str]) -> str:
    """What the endings of the files say. Raises `InvalidArgument`."""
    kinds = sorted({next((kind for end, kind in ENDINGS.items() if path.endswith(end)), "") for path in paths})
    if len(kinds) > 1 or not kinds[0]:
        raise InvalidArgument(
            f"the endings of the files do not say what is in them ({', '.join(kind or 'unknown' for kind in kinds)}): "
            "say --format parquet, json, csv or text"
        )
    return kinds[0]


def frame_of(spark: Any, paths: Sequence[str], kind: str) -> Any:
    """The rows of all files, in order, with the columns that a log takes.

    Files are read one by one and put behind each other: Spark, given several, reads the largest first.
    """
    frames = [_rows(spark, path, kind) for path in paths]
    names = frames[0].columns
    for path, frame in zip(paths, frames, strict=True):
        if frame.columns != names:
            raise InvalidArgument(f"file {path} has columns {', '.join(frame.columns)}, not {', '.join(names)}")
    return reduce(lambda one, two: one.union(two), frames)


def _rows(spark: Any, named: str, kind: str) -> Any:
    from pyspark.sql import functions as f

    path = _uri(named)
    if kind in ("json", "text"):
        lines = common.reader_of(spark).text(path)
        if kind == "text":
            return lines
        return lines.where(f.trim("value") != "").mapInArrow(JsonLines(named), "value STRING")
    if kind == "parquet":
        check_parquet(named)
        frame = common.reader_of(spark).parquet(path)
    else:  # As RFC 4180 has it, and `export` writes it.
        schema = ", ".join(f"`{name.replace('`', '``')}` STRING" for name in header_of(named))
        # With a schema: Spark, when it looks for one in such files, takes their names for patterns whatever is said.
        reader = common.reader_of(spark).options(header=True, multiLine=True, escape='"', mode="FAILFAST")
        frame = reader.option("columnPruning", False).schema(schema).csv(path)  # Else short rows pass for whole ones.
        if "value" in frame.columns:  # CSV has no null, so this one was empty.
            frame = frame.withColumn("value", f.coalesce("value", f.lit("")))
    if "value" in frame.columns:
        return frame.select(*[name for name in COLUMNS if name in frame.columns])
    return frame.select(f.to_json(f.struct("*")).alias("value"))


def check_parquet(path: str) -> None:
    """Raises `InvalidArgument`, which names the file; Spark does not always."""
    system, inside = tier.system_of(path)
    try:
        pq.read_metadata(inside, filesystem=system)
    except pa.ArrowException as error:
        raise InvalidArgument(f"file {path} is no Parquet file, or damaged: {error}") from error


def _uri(path: str) -> str:
    return path if "://" in path else f"file://{path}"


def check_utf8(spark: Any, paths: Sequence[str]) -> None:
    """Spark reads CSV in another encoding without a word, and with U+FFFD in it. Raises `InvalidArgument`."""
    from pyspark.sql import functions as f

    reader = common.reader_of(spark)
    lines = [reader.text(_uri(path)).select("value", f.lit(path).alias("path")) for path in paths]
    bad = reduce(lambda one, two: one.union(two), lines).where(~f.is_valid_utf8("value")).limit(1)
    for row in bad.selectExpr("path", "make_valid_utf8(value) AS line").collect():
        raise InvalidArgument(NO_UTF8.format(row["path"], row["line"][:SHOWN_SIZE]))


def header_of(path: str) -> list[str]:
    """The columns of a CSV file, as Spark would call them. Raises `InvalidArgument`."""
    system, inside = tier.system_of(path)
    with system.open_input_stream(inside) as file:
        data = file.read(HEADER_SIZE)
    try:
        lines = io.StringIO(data.decode("utf-8-sig", errors="replace"), "")
        row = next((row for row in csv.reader(lines) if row), None)
    except csv.Error as error:
        raise InvalidArgument(f"file {path} is no CSV: {error}") from error
    if row is None:
        raise InvalidArgument(f"file {path} is empty: a CSV file begins with the names of its columns")
    counts = Counter(name.lower() for name in row)
    return [
        f"_c{at}" if not name else f"{name}{at}" if counts[name.lower()] > 1 else name for at, name in enumerate(row)
    ]


# -- the log ---------------------------------------------------------------------------------------------------------


def version_of(files: Sequence[tuple[str, int]], kind: str) -> int:
    """The transaction's version: a number that is the same for the same files, and as good as never for others."""
    said = json.dumps([kind, *files]).encode()
    return int.from_bytes(hashlib.sha256(said).digest()[:7], "big") + 1


def _check_same(config: JobConfig, log: str, found: Mapping[str, Any] | None, version: int) -> None:
    """Raises `InvalidArgument`: what the log has under this run id is of other files. Older packages said version 0."""
    if found is not None and int(found.get("version", 0)) not in (0, version):
        raise InvalidArgument(
            f"run {config.run_id} has imported other files into log {log}, or these when they had other sizes, so "
            "nothing is imported now. Under another run id all files that are named come in, also what the log has "
            "already: choose another run id, and name only what is new"
        )


async def imported(client: Client, log: str, app: str) -> dict[str, Any] | None:
    """What the log says of a transaction of this name; None: nothing."""
    try:
        manifest = await client.log(log).manifest()
    except LogNotFound:
        return None
    found = manifest.txns.get(app)
    return None if found is None else dict(found)


def _outcome(log: str, app: str) -> Any:
    """A question for `ask`: (entries, bytes, ledgers) that the transaction brought and the log still lists."""

    async def question(client: Client) -> tuple[int, int, int]:
        extents = [
            each for each in (await client.log(log).manifest()).extents if (each.txn or "").startswith(f"{app}:")
        ]
        return sum(each.rows or 0 for each in extents), sum(each.bytes or 0 for each in extents), len(extents)

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
    lead = f"{outcome}: {entries:,} entries, {size_text(size)} from {len(files):,} files, log {log}"
    sections = [Section("Files", table=Table(("file", "bytes"), list(files), (1,)))]
    return Complete(frame, Report("Import", lead, True, {"run": config.run_id, **config.options}, sections))
