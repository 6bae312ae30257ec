"""Options of the sink, checked once: where to write, in which shape, under which name. Source: spark 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from bookies.client.base.keys import digest_type_of
from bookies.distributedlog.formats.log_names import check_name
from bookies.encoding.record_sets import CODECS
from bookies.errors import InvalidArgument
from bookies.formats.columns import plain
from bookies.model import DigestType
from bookies.protocol.log.log_model import RECORD_FORMATS, check_log_name
from bookies.protocol.payloads.schemas import ARROW, AVRO, COMPATIBILITIES, PROTOBUF, SCHEMA_FORMATS
from bookies.spark.base.options import (
    URI,
    duration,
    flag,
    metadata_uri,
    names_of,
    namespace_uri,
    one_of,
    option,
    proper_names,
    read_password,
    size,
    values_of,
    whole_number,
)
from bookies.spark.base.payload_options import SchemaOptions
from bookies.spark.write import unchanged

if TYPE_CHECKING:
    import pyarrow as pa

    from bookies.client.log.transaction import OnOpenTail
    from bookies.formats.payloads import Payloads

OWN_OPTIONS_OF_STREAMS = ("checkpointLocation", "queryName")  # Spark passes them along with the others
TARGETS = ("log", "topic", "path")
HEADERS = "array<struct<key:string,value:binary>>"
COLUMNS: Mapping[str, tuple[str, ...]] = {  # name -> the allowed types
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": (HEADERS,),
    "timestamp": ("timestamp",),
    "log": ("string",),
}
ENVELOPE_COLUMNS = ("key", "headers", "timestamp")
REFUSED_IN_NAMESPACE = (URI, "recordFormat", "digestType", "valueFormat")


def _milliseconds(text: str) -> float:
    """Return the seconds of a number of milliseconds above 0."""
    return size(text) / 1000


@dataclass(frozen=True, kw_only=True)
class EntryOptions:
    """Options of the log, the records and the entries. `log` None: column `log` names the log."""

    log: str | None = option("log", "the log, or `save(NAME)`. Without it the column `log` names the log of each row")
    topic: str | None = option("topic", "another name of `log`")
    path: str | None = option("path", "")
    namespace: str | None = option(
        "namespace", "URI of a namespace of [DistributedLog](distributedlog.md#write-with-spark) that has the log"
    )
    app: str | None = option(
        "txnAppId", "name of the application. For a batch write together with `txnVersion`; for a stream alone"
    )
    version: int | None = option(
        "txnVersion", "number of a batch write. It must grow with each new batch of the application", whole_number
    )
    on_open_tail: OnOpenTail = option(
        "onOpenTail",
        "if a leader is writing the log: `fail`, or `fence` to stop the leader",
        one_of("fail", "fence", expected="fail or fence"),
        "fail",
    )
    on_batch_gap: Literal["fail", "accept"] = option(
        "onBatchGap",
        "streams: if the log lacks the query's batch before, because it was moved or restored: `fail`, or `accept` to "
        "go on without the rows. Batches of a column `log` are not compared",
        one_of("fail", "accept", expected="fail or accept"),
        "fail",
    )
    creates_log: bool = option("createLog", "creates the log if it does not exist", flag, "false")
    record_format: str | None = option(
        "recordFormat",
        "format of a log that is created. An existing log must have this format",
        one_of(*RECORD_FORMATS, expected=f"one of {', '.join(RECORD_FORMATS)}"),
    )
    compression: str | None = option(
        "compression",
        "codec of the record sets of a log that is created: `zstd` or `lz4`",
        one_of(*CODECS, expected=f"one of {', '.join(CODECS)}"),
    )
    value_format: str = option(
        "valueFormat",
        "`raw`: column `value` is the payload; `json`, `arrow`, `avro`, `protobuf`: [the other columns "
        "are](#payloads-of-columns)",
        one_of("raw", *SCHEMA_FORMATS),
        "raw",
    )
    schema_file: str | None = option(
        "valueSchemaFile",
        "schema of `avro` (`.avsc`) or `protobuf` (a descriptor set of `protoc`): a file on the driver. Default: "
        "the newest schema, and of `avro` the columns that it lacks. `protobuf` requires it for the first write",
    )


@dataclass(frozen=True, kw_only=True)
class WriteOptions(SchemaOptions, EntryOptions):
    """Options of the sink. Sizes in bytes, times in seconds."""

    compatibility: str | None = option(
        "compatibility",
        "what a changed schema must fulfil: `backward`: it reads all earlier rows; `forward`: the earlier schemas read "
        "its rows; `full`: both; `none`. Default: the log's, which is `backward` at first. A registry has its own",
        one_of(*COMPATIBILITIES),
    )
    ensemble: int | None = option("ensembleSize", "bookies of a new ledger. Default: the log's", size)
    write_quorum: int | None = option("writeQuorum", "copies of an entry. Default: the log's", size)
    ack_quorum: int | None = option("ackQuorum", "copies that acknowledge an entry. Default: the log's", size)
    digest: DigestType | None = option("digestType", "digest of new ledgers. Default: the log's", digest_type_of)
    ledger_size: int = option(
        "maxLedgerBytes", "a task continues in a new ledger after this number of bytes", size, "1g"
    )
    in_flight_size: int = option("maxInFlightBytes", "bytes of a task that are sent and not acknowledged", size, "8m")
    timeout: float = option("commitTimeoutMs", "limit for the commit", _milliseconds, "120000")
    conflicts_max: int = option(
        "commitRetries", "retries of the commit after conflicts with other writers", size, "100"
    )
    orphan_grace: float = option(
        "orphanGrace",
        "age at which [the reaper](#leftovers-of-failed-tasks) deletes ledgers of an unknown batch",
        duration("a whole number and s, m, h or d, such as 24h"),
        "24h",
    )
    files: Sequence[unchanged.Stamp] = option(
        "unchangedFiles",
        "batch writes: a JSON list of `[path, bytes, time of last change in ns]`. The commit fails if one of these "
        "files has changed. `bk spark import` sets it for its input files",
        unchanged.parsed,
        "[]",
    )

    @property
    def shape(self) -> dict[str, Any]:
        """The options of new ledgers that are given."""
        names = ("ensemble", "write_quorum", "ack_quorum", "digest")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, kw_only=True)
class Settings(WriteOptions):
    """The checked options, and the columns of the rows. `txid`: of the batch, in a namespace of DistributedLog.

    payload, payloads: columns that become the payload, and their encoder; None: column `value` is the payload.
    """

    uri: str
    txid: int = 0
    password: bytes = field(repr=False)
    columns: tuple[str, ...]
    payload: pa.Schema | None = None
    payloads: Payloads | None = None

    @property
    def needs_envelope(self) -> bool:
        return any(name in self.columns for name in ENVELOPE_COLUMNS)


def settings_of(options: Mapping[str, str], schema: Any, *, is_stream: bool) -> Settings:
    """Check options and columns. Raises `InvalidArgument`, `ConfigError`: one sentence that names what is wrong."""
    allowed = names_of(WriteOptions)
    proper = proper_names(options, (*allowed, *OWN_OPTIONS_OF_STREAMS) if is_stream else allowed)
    values = values_of(WriteOptions, proper)
    value_format = values.get("value_format", "raw")
    columns, payload = _divided(schema, value_format)
    _check_format(proper, value_format)
    named = [name for name in TARGETS if values.get(name)]
    if len(named) > 1:
        raise InvalidArgument(f"options {' and '.join(named)} both name the log: keep one of them")
    if not named and "log" not in columns:
        raise InvalidArgument("choose the log to write: option log=NAME, save(NAME), or a column `log` of names")
    values["log"] = values[named[0]] if named else None
    if values.get("namespace") is not None:
        uri = _namespace_uri(proper, columns)
        check_name(values["log"])
    else:
        uri = metadata_uri(proper)
        if named:
            check_log_name(values["log"])
    values["app"] = values.get("app") or None
    _check_identity(values["app"], values.get("version"), is_stream=is_stream)
    if not is_stream and "onBatchGap" in proper:
        raise InvalidArgument(
            "option onBatchGap is for streams: the versions of batch writes may have gaps; leave it out"
        )
    if payload is not None and values["log"] is None:
        raise InvalidArgument(f"valueFormat={value_format} writes one log: option log=NAME or save(NAME)")
    return Settings(**values, uri=uri, password=read_password(proper), columns=columns, payload=payload)


def _check_format(options: Mapping[str, str], value_format: str) -> None:
    """Check that the options for payloads have a meaning. Raises `InvalidArgument`."""
    of_schemas = ("valueSchemaFile", "schemaRegistry", "schemaRegistry.subject", "schemaRegistry.userInfoFile")
    for name in (*of_schemas, "valueMessage", "compatibility"):
        is_fitting = value_format in (AVRO, PROTOBUF) or (name == "compatibility" and value_format != "raw")
        if name in options and not is_fitting:
            raise InvalidArgument(f"option {name} has no meaning with valueFormat={value_format}: leave it out")
    if "schemaRegistry" in options and "compatibility" in options:
        raise InvalidArgument("option compatibility is a log's: a registry has its own for each subject; leave it out")


def _divided(schema: Any, value_format: str) -> tuple[tuple[str, ...], pa.Schema | None]:
    """Return the columns of records, and those of the payload: None if `value` is the payload."""
    if value_format == "raw":
        return checked_columns(schema), None
    import pyarrow as pa

    from bookies.spark.base import arrow

    own = [column for column in schema.fields if column.name in COLUMNS and column.name != "value"]
    names = [column.name for column in schema.fields if column not in own]
    if not names or len(set(schema.names)) < len(schema.names):
        raise InvalidArgument(f"valueFormat={value_format} needs columns of the payload, each name once")
    if value_format == ARROW and own:
        raise InvalidArgument(
            f"column {own[0].name!r}: an entry of Arrow has many rows, and so no {own[0].name}; drop it"
        )
    _check_types(own)
    types = arrow.schema_of_spark(schema)
    payload = pa.schema([pa.field(name, plain(types.field(name).type)) for name in names])
    return (*(column.name for column in own), "value"), payload


def _namespace_uri(options: Mapping[str, str], columns: Sequence[str]) -> str:
    """Return the namespace's URI. Raises `InvalidArgument` for what a log of DistributedLog does not have."""
    for column in columns:
        if column != "value":
            raise InvalidArgument(f"column {column!r}: a record of DistributedLog is a value alone; drop the column")
    if refused := next((name for name in REFUSED_IN_NAMESPACE if name in options), None):
        raise InvalidArgument(f"option {refused} has no meaning with option namespace: leave it out")
    return namespace_uri(options)


def checked_columns(schema: Any) -> tuple[str, ...]:
    """Return the names of the columns. Raises `InvalidArgument` for columns that a log does not accept."""
    for column in schema.fields:
        if column.name not in COLUMNS:
            raise InvalidArgument(
                f"column {column.name!r}: a log accepts the columns {', '.join(COLUMNS)}; select those, or make a "
                "payload of the others with option valueFormat"
            )
    _check_types(schema.fields)
    names = tuple(column.name for column in schema.fields)
    if "value" not in names:
        raise InvalidArgument(
            f"column 'value', which holds the entry's payload, is missing; the columns are {', '.join(names)}"
        )
    if len(set(names)) < len(names):
        raise InvalidArgument(f"a column is repeated: {', '.join(names)}; keep one of each")
    return names


def _check_types(columns: Sequence[Any]) -> None:
    for column in columns:
        type_name = column.dataType.simpleString()
        if type_name not in COLUMNS[column.name]:
            allowed = " or ".join(name.upper() for name in COLUMNS[column.name])
            raise InvalidArgument(f"column {column.name!r} is {type_name.upper()}; a log accepts {allowed}: cast it")


def _check_identity(app: str | None, version: int | None, *, is_stream: bool) -> None:
    if is_stream and version is not None:
        raise InvalidArgument("option txnVersion is for batch writes: a stream's version is its batch number")
    if not is_stream and (app is None) != (version is None):
        raise InvalidArgument("options txnAppId and txnVersion belong together: the job, and a number that grows")
