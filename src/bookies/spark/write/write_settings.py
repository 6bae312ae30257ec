"""Options of the sink, checked once: where to write, in which shape, under which name. Source: spark 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bookies.client.base.keys import digest_type_of
from bookies.distributedlog.formats.log_names import check_name
from bookies.encoding.record_sets import CODECS
from bookies.errors import InvalidArgument
from bookies.model import DigestType
from bookies.protocol.log.log_model import RECORD_FORMATS, check_log_name
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
from bookies.spark.write import unchanged

if TYPE_CHECKING:
    from bookies.client.log.transaction import OnOpenTail

OWN_OPTIONS_OF_STREAMS = ("checkpointLocation",)  # Spark passes them along with the others
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
REFUSED_IN_NAMESPACE = (URI, "recordFormat", "digestType")


def _milliseconds(text: str) -> float:
    """Return the seconds of a number of milliseconds above 0."""
    return size(text) / 1000


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Options of the sink. Sizes in bytes, times in seconds. `log` None: column `log` names the log."""

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
    """The checked options, and the columns of the rows. `txid`: of the batch, in a namespace of DistributedLog."""

    uri: str
    txid: int = 0
    password: bytes = field(repr=False)
    columns: tuple[str, ...]

    @property
    def needs_envelope(self) -> bool:
        return any(name in self.columns for name in ENVELOPE_COLUMNS)


def settings_of(options: Mapping[str, str], schema: Any, *, is_stream: bool) -> Settings:
    """Check options and columns. Raises `InvalidArgument`, `ConfigError`: one sentence that names what is wrong."""
    allowed = names_of(WriteOptions)
    proper = proper_names(options, (*allowed, *OWN_OPTIONS_OF_STREAMS) if is_stream else allowed)
    columns = checked_columns(schema)
    values = values_of(WriteOptions, proper)
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
    return Settings(**values, uri=uri, password=read_password(proper), columns=columns)


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
                f"column {column.name!r}: a log accepts the columns {', '.join(COLUMNS)}; select those"
            )
        type_name = column.dataType.simpleString()
        if type_name not in COLUMNS[column.name]:
            allowed = " or ".join(name.upper() for name in COLUMNS[column.name])
            raise InvalidArgument(f"column {column.name!r} is {type_name.upper()}; a log accepts {allowed}: cast it")
    names = tuple(column.name for column in schema.fields)
    if "value" not in names:
        raise InvalidArgument(
            f"column 'value', which holds the entry's payload, is missing; the columns are {', '.join(names)}"
        )
    if len(set(names)) < len(names):
        raise InvalidArgument(f"a column is repeated: {', '.join(names)}; keep one of each")
    return names


def _check_identity(app: str | None, version: int | None, *, is_stream: bool) -> None:
    if is_stream and version is not None:
        raise InvalidArgument("option txnVersion is for batch writes: a stream's version is its batch number")
    if not is_stream and (app is None) != (version is None):
        raise InvalidArgument("options txnAppId and txnVersion belong together: the job, and a number that grows")
