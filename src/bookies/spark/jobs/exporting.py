"""Job `export`: a log, or ledgers, to files: Parquet, JSON lines, text, CSV; with a manifest of the files' contents.

    DIR/part-EXTENT-ENTRY.parquet    entries of one ledger, in order; the names are in the order of the log
    DIR/_manifest.json               for each file: rows, bytes, the CRC of the entries, the SHA-256 of the file

An open ledger is exported up to its last add confirmed. A file gets its name only when it is complete, and the manifest
is written last. A run that stopped continues with the missing files. A directory with another export is refused, and
so is one with entries that the log no longer has. Source: spark 5.4.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs
from msgspec import Struct

from bookies.client.read.kept_entries import read_kept
from bookies.client.read.offloaded import content_of
from bookies.errors import InvalidArgument, LedgerNotFound
from bookies.protocol.ledger.offload import Content
from bookies.protocol.log.kept import span
from bookies.protocol.log.log_model import ENVELOPE, SETS
from bookies.spark.base import runtime
from bookies.spark.base.extents import Stored, stored_of
from bookies.spark.base.plan import even_parts
from bookies.spark.jobs.complete import Complete
from bookies.spark.jobs.exported import claim, digest_of, is_there, leave, write_manifest
from bookies.spark.jobs.shared import common, ledger_selection
from bookies.spark.jobs.shared.common import JobConfig, Option, Outcome, Tools
from bookies.spark.jobs.shared.lines import check_object, csv_lines
from bookies.spark.jobs.shared.packing import Item
from bookies.spark.jobs.shared.report import Report, Section, Table
from bookies.spark.write import tier
from bookies.units import decimal_size_text

if TYPE_CHECKING:
    from bookies.client.base import EntryBatch
    from bookies.client.client import Client
    from bookies.client.read import LedgerReader

FORMATS = {"parquet": "parquet", "json": "jsonl", "text": "txt", "csv": "csv"}  # name -> ending of the files
OPTIONS = (
    Option("source", None, "a log by name, or ledgers by number: 17,18", metavar="LOG|LEDGERS", is_positional=True),
    Option("to", None, "a directory, or a URI such as s3://bucket/orders", metavar="DIR", is_positional=True),
    Option("format", "parquet", "format of the files", choices=tuple(FORMATS)),
    Option("file_size", 256, "approximate megabytes of payload in a file", int),
)  # fmt: skip
EXPORTED = "run_id STRING, file STRING, ledger_id BIGINT, outcome STRING, entries BIGINT, bytes BIGINT, detail STRING"
CSV_HEADER = ("ledger_id", "entry_id", "value")
BATCH_SIZE = 8 << 20  # bytes of payload that are written at a time


def job(spark: Any, config: JobConfig) -> Any:
    """Return a row for each file."""
    return complete(spark, config).frame


def complete(spark: Any, config: JobConfig) -> Complete:
    config = common.checked(config, OPTIONS)
    source, to, file_format = (config.options[name] for name in ("source", "to", "format"))
    if not source or not to:
        raise InvalidArgument("name what to export and the target: a log or ledgers, and a directory")
    if config.options["file_size"] < 1:
        raise InvalidArgument(f"file_size={config.options['file_size']}: must be 1 or more")
    common.refuse_speculation(spark)
    to = tier.absolute(str(to))
    token, is_envelope, pieces = common.ask(config.uri, lambda client: pieces_of(client, str(source)))
    if is_envelope and file_format != "parquet":
        raise InvalidArgument(
            f"log {source} has records with key, headers and timestamp, which {file_format} cannot hold: export it "
            "with --format parquet"
        )
    items = [item for piece in pieces for item in items_of(piece, to, file_format, config.options["file_size"] << 20)]
    cluster = common.ask(config.uri, lambda client: client.administration().instance_id())
    identity = {"run": config.run_id, "cluster": cluster, "source": str(source), "format": file_format}
    if token is not None:
        identity["token"] = token
    starts = {piece.seq: (piece.ledger_id, piece.first) for piece in pieces}
    claim(to, identity, starts, is_dry=config.mode != common.RUN)
    work = Export(file_format, is_envelope, config.mode == common.DRY_RUN)
    run = common.execute(spark, config, "export", items, work, _still_there(to, items))
    if config.mode == common.PLAN:
        return Complete.planned("export", run)
    planned = {item.name: item for item in items}
    rows, files = [], []
    for name, outcome, detail in run.details():
        if name not in planned:
            continue  # From an earlier attempt, when the log was shorter.
        arguments = json.loads(planned[name].arguments)
        counts = detail.get("entries", 0), detail.get("bytes", 0)
        explanation = str(detail.get("error", ""))
        rows.append((config.run_id, arguments["file"], arguments["ledger"], outcome, *counts, explanation))
        if outcome == common.DONE:
            files.append({name: arguments[name] for name in ("file", "ledger", "first", "last")} | detail)
    rows.sort()
    is_good = all(row[3] == common.DONE for row in rows)
    if config.mode == common.RUN and is_good:
        write_manifest(to, identity, is_envelope=is_envelope, files=files)
    elif config.mode == common.RUN:
        leave(to)
    frame = common.save(common.frame_of(spark, rows, EXPORTED), config, "exported")
    return Complete(frame, _report(config, rows, is_good=is_good))


class Piece(Struct, frozen=True):
    """Entries first..last of a ledger. `seq`: of its extent; `row`: of the first one in its log, None without a log.

    `stored`: of a compacted extent, which has only some of these entries.
    """

    seq: int
    ledger_id: int
    first: int
    last: int
    size: int
    row: int | None
    stored: Stored | None = None


async def pieces_of(client: Client, source: str) -> tuple[str | None, bool, list[Piece]]:
    """Return the token of the log, whether the entries are envelopes, and the readable pieces.

    Raises `LogNotFound`, `LedgerNotFound`.
    """
    if set(source) <= set("0123456789,- "):
        pieces = []
        for number, ledger_id in enumerate(ledger_selection.numbers_of(source)):
            last, size, _ = await _end(client, ledger_id)
            pieces.append(Piece(number, ledger_id, 0, last, size, None))
        return None, False, pieces
    names = ledger_selection.logs_of(source)
    if len(names) > 1:
        raise InvalidArgument(f"{source!r} are {len(names)} logs: export one at a time, each to a directory of its own")
    [name] = names
    manifest = await client.log(name).manifest()
    if manifest.record_format == SETS:
        raise InvalidArgument(
            f"log {name} has record sets, which no export can hold: read it with Spark, and write files"
        )
    pieces, row = [], manifest.rows_truncated
    for extent in manifest.extents:
        if extent.last is None:
            last, size, is_sealed = await _end(client, extent.ledger_id)
        else:
            last, size, is_sealed = extent.last, extent.bytes or 0, True
        last = max(last, extent.first - 1)
        pieces.append(Piece(extent.seq, extent.ledger_id, extent.first, last, size, row, stored_of(extent)))
        row += last - extent.first + 1
        if not is_sealed:
            break  # Later extents may be read only once this one has its end.
    return manifest.token, manifest.record_format == ENVELOPE, pieces


async def _end(client: Client, ledger_id: int) -> tuple[int, int, bool]:
    """Return the last readable entry, the payload bytes, and whether the end is final."""
    record = await client.metadata(ledger_id)
    if record.is_closed:
        return record.last_entry_id, record.length, True
    async with client.open(ledger_id, password=record.password or b"") as reader:
        return reader.last_add_confirmed, reader.length, reader.is_sealed


def items_of(piece: Piece, to: str, file_format: str, size_max: int) -> list[Item]:
    """Return the files of a piece; none for an empty one."""
    count = piece.last - piece.first + 1
    stored = piece.stored
    if count < 1 or (stored is not None and stored.kept == 0):
        return []
    parts = max(1, min(count, -(-piece.size // size_max)))
    items = []
    for first, last in even_parts(piece.first, piece.last, parts):
        name = f"part-{piece.seq:08d}-{first:012d}.{FORMATS[file_format]}"
        row = None if piece.row is None else piece.row + first - piece.first
        arguments = {"ledger": piece.ledger_id, "first": first, "last": last, "row": row, "to": to, "file": name}
        if stored is not None:
            arguments |= {"stored": stored.ledger_id, "kept": stored.kept, "shift": stored.shift}
        # After a compaction a repeated run exports the extent again: the tombstones of its records may be gone.
        storage = piece.ledger_id if stored is None else stored.ledger_id
        items.append(Item(f"{piece.seq}:{storage}:{first}:{last}", piece.size // parts, (), json.dumps(arguments)))
    return items


# -- in a task -------------------------------------------------------------------------------------------------------


class Export(Struct, frozen=True):
    """Export of one file."""

    kind: str
    is_envelope: bool
    is_dry: bool

    async def carry_out(self, tools: Tools, item: Item) -> Outcome:
        arguments = json.loads(item.arguments)
        try:
            record = await tools.client.metadata(arguments.get("stored", arguments["ledger"]))
            async with tools.client.open(record.ledger_id, password=record.password or b"") as reader:
                stored, ids = range(arguments["first"], arguments["last"] + 1), None
                if (kept := arguments.get("kept")) is not None:
                    ids = await read_kept(reader, kept, arguments["shift"])
                    stored = span(ids, stored.start, stored.stop - 1)
                if self.is_dry:
                    return Outcome(common.DONE, {"entries": len(stored), "bytes": item.size})
                return await self._written(tools, arguments, reader, stored, ids)
        except LedgerNotFound as error:
            cause = f"ledger {error.ledger_id} was deleted"
            remedy = "" if arguments["row"] is None else ", or replaced by a compaction: repeat the export"
            return Outcome(common.FAILED, {"error": cause + remedy})

    async def _written(
        self,
        tools: Tools,
        arguments: Mapping[str, Any],
        reader: LedgerReader,
        stored: range,
        ids: Sequence[int] | None,
    ) -> Outcome:
        """Write entries of a ledger to the file. `stored`: which; `ids`: of all of them, if a compaction kept some."""
        files = runtime.worker().files()
        writer = await files.run(FileWriter, arguments, self.kind, self.is_envelope)
        try:
            if stored:
                shift = arguments.get("shift", 0)
                async for batch in reader.read_batches(shift + stored.start, shift + stored.stop - 1):
                    own = range(batch.first_entry_id - shift, batch.last_entry_id - shift + 1)
                    await files.run(writer.append, batch, own if ids is None else ids[own.start : own.stop])
                    await tools.spent(reader.metadata.ensemble_at(batch.first_entry_id), batch.size)
            return Outcome(common.DONE, await files.run(writer.finish))
        finally:
            await files.run(writer.discard)


class FileWriter:
    """Writer of one file, under a temporary name until it is complete. All calls block; raise OSError.

    `arguments`: of the item.
    """

    def __init__(self, arguments: Mapping[str, Any], file_format: str, is_envelope: bool) -> None:
        self._system, directory = tier.system_of(arguments["to"])
        self._system.create_dir(directory, recursive=True)
        self._file = tier.NewFile(self._system, directory, arguments["file"])
        self._kind, self._is_envelope = file_format, is_envelope
        self._ledger_id: int = arguments["ledger"]
        self._before: int | None = None if arguments["row"] is None else arguments["row"] - arguments["first"]
        self._content = Content()
        if file_format == "csv":
            self._file.sink.write(csv_lines([CSV_HEADER]))

    def append(self, batch: EntryBatch, ids: Sequence[int]) -> None:
        """Append entries under their ids. Raises `InvalidArgument` for entries that the format cannot hold."""
        self._content = self._content.joined(content_of(batch))
        if self._kind == "parquet":
            self._file.write_table(pa.Table.from_batches([self._columns(batch, ids)]))
        else:
            self._file.sink.write(b"".join(_lines(batch, self._kind)))

    def _columns(self, batch: EntryBatch, ids: Sequence[int]) -> pa.RecordBatch:
        from bookies.spark.base import arrow, envelope

        values = arrow.values([batch])
        columns = {"ledger_id": pa.repeat(self._ledger_id, len(batch)), "entry_id": arrow.id_column(ids)}
        if self._before is not None:
            columns["offset"] = arrow.id_column(ids, self._before)
        columns |= envelope.decode(values) if self._is_envelope else {"value": values}
        return pa.RecordBatch.from_pydict(columns)

    def finish(self) -> dict[str, Any]:
        """Rename the file to its name, and return its description."""
        self._file.finish()
        digest, size = digest_of(self._system, self._file.path)
        content = self._content
        return {
            "entries": content.rows,
            "bytes": content.size,
            "crc": content.crc,
            "file_size": size,
            "sha256": digest,
        }

    def discard(self) -> None:
        """Delete an incomplete file. Idempotent."""
        self._file.discard()


def _lines(batch: EntryBatch, file_format: str) -> Iterator[bytes]:
    for entry_id, payload in zip(batch.entry_ids, batch.payloads(), strict=True):
        try:
            text = payload.decode()
            if file_format == "json":
                check_object(payload)
        except ValueError as error:
            expected = "JSON object" if file_format == "json" else "UTF-8 text"
            raise InvalidArgument(
                f"entry {entry_id} of ledger {batch.ledger_id} is not a {expected}: export it with --format parquet"
            ) from error
        if file_format == "csv":
            yield csv_lines([(batch.ledger_id, entry_id, text)])
        elif b"\n" in payload or b"\r" in payload:
            raise InvalidArgument(
                f"entry {entry_id} of ledger {batch.ledger_id} has more than one line: export it with --format parquet "
                "or csv"
            )
        else:
            yield payload + b"\n"


# -- on the driver ---------------------------------------------------------------------------------------------------


def _still_there(to: str, items: Sequence[Item]) -> common.Holds:
    """Return a check that the file of an item is as an earlier attempt wrote it."""
    names = {item.name: str(json.loads(item.arguments)["file"]) for item in items}

    def holds(name: str, detail: Mapping[str, Any]) -> bool:
        return name not in names or "file_size" not in detail or is_there(to, names[name], detail)

    return holds


def _report(config: JobConfig, rows: Sequence[tuple[Any, ...]], *, is_good: bool) -> Report:
    outcomes = Counter(row[3] for row in rows)
    entries, size = sum(row[4] for row in rows), sum(row[5] for row in rows)
    lead = f"{entries:,} entries, {decimal_size_text(size)} in {outcomes[common.DONE]:,} files"
    if config.mode == common.DRY_RUN:
        lead = f"would write {lead}; a dry run, nothing was written"
    elif not is_good:
        lead += f"; {len(rows) - outcomes[common.DONE]:,} files could not be written, so there is no manifest"
    headers = ("file", "ledger", "outcome", "entries", "bytes", "detail")
    sections = [Section("Files", table=Table(headers, [row[1:] for row in rows], (1, 3, 4)))]
    return Report("Export", lead, is_good, {"run": config.run_id, "mode": config.mode, **config.options}, sections)
