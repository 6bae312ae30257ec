"""Settings of the source: all options, checked once, in a form that travels to the planner and to the tasks.

Source: spark 3.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bookies.config import ClientConfig
from bookies.errors import InvalidArgument
from bookies.protocol.log.log_model import check_log_name
from bookies.spark.base.extents import Snapshot, parse_snapshots
from bookies.spark.base.options import (
    URI,
    client_config,
    duration,
    flag,
    metadata_uri,
    milliseconds,
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
from bookies.spark.base.selection import EARLIEST, LATEST, Selection, check_named, selection, where

TAIL_WAIT_S_MAX = 10  # a longer wait would keep a query from being stopped


@dataclass(frozen=True, kw_only=True)
class SelectionOptions:
    """Options that choose what is read; `selection.selection` parses them."""

    subscribe: str | None = option("subscribe", "logs: `orders,returns`")
    pattern: str | None = option(
        "subscribePattern", "logs whose whole name matches this regular expression. A stream picks up new ones"
    )
    assign: str | None = option(
        "assign",
        "rows of logs and entries of ledgers, first and last: "
        '`{"logs": {"orders": [0, 99]}, "ledgers": {"17": [100, null]}}`. `null` as last: to the end. `null` instead '
        "of the pair: all of it",
    )
    ledger: str | None = option("ledger", 'a ledger that is read without a log, or `load("17")`')
    ledgers: str | None = option("ledgers", 'ledgers that are read without a log, or `load(["17", "18"])`')
    label: str | None = option(
        "label", "`NAME=VALUE`: all ledgers with this label. A stream reads those that exist when it starts"
    )
    namespace: str | None = option(
        "namespace",
        "URI of a namespace of [DistributedLog](distributedlog.md#spark), whose logs `subscribe` or `subscribePattern` "
        "names",
    )
    path: str | None = option("path", "")
    paths: str | None = option("paths", "")


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """Options that choose where to start; `selection.where` parses them, except for the strategy."""

    starting_offsets: str | None = option(
        "startingOffsets",
        "first row: `earliest`, the default of batch queries; `latest`, that of streams; or JSON. A stream uses it "
        "only without a checkpoint",
    )
    starting_timestamp: str | None = option("startingTimestamp", "start of the range, in ms since 1970, for all logs")
    starting_timestamps: str | None = option(
        "startingOffsetsByTimestamp", 'start of the range, in ms since 1970, for each log: `{"orders": 1795284255562}`'
    )
    strategy: str = option(
        "startingOffsetsByTimestampStrategy",
        "a start in the future or in an empty log: `error` fails, `latest` starts at the end",
        one_of("error", "latest"),
        "error",
    )


@dataclass(frozen=True, kw_only=True)
class EndOptions:
    """Options that choose where a batch query ends; `selection.where` parses them."""

    ending_offsets: str | None = option("endingOffsets", "end of the range, exclusive. Default `latest`")
    ending_timestamp: str | None = option("endingTimestamp", "end of the range, in ms since 1970, for all logs")
    ending_timestamps: str | None = option(
        "endingOffsetsByTimestamp", "end of the range, in ms since 1970, for each log"
    )
    snapshot: Mapping[str, Snapshot] | None = option(
        "snapshot", "the rows of [a snapshot](spark-tables.md#snapshots), for all its logs", parse_snapshots
    )
    limit: int | None = option("limit", "at most this number of entries, the first ones: no others are read", size)


@dataclass(frozen=True, kw_only=True)
class ColumnOptions:
    """Options that choose the columns of the source."""

    columns: str | None = option("columns", "only these columns, separated by commas")
    includes_value: bool = option("includeValue", "with the payload", flag, "true")
    includes_headers: bool = option("includeHeaders", "add the column `headers`", flag, "false")
    includes_metadata: bool = option("includeMetadata", "add the columns `length`, `lac` and `crc32c`", flag, "false")
    fails_on_loss: bool = option(
        "failOnDataLoss",
        "rows that no longer exist: fail. `false`: report them as a row, in column `gap`",
        flag,
        "true",
    )


@dataclass(frozen=True, kw_only=True)
class PayloadOptions:
    """Options that decode the payload."""

    record_format: str = option(
        "recordFormat",
        "`auto`: the record format of the log; `raw`: an entry is the value; `envelope`: "
        "[records](formats/envelope.md); `sets`: [record sets](formats/record-set.md), a row for each record",
        one_of("auto", "raw", "envelope", "sets"),
        "auto",
    )
    value_format: str = option(
        "valueFormat",
        "`raw`: BINARY; `utf8`: STRING; `json`: one object per entry; `arrow`: one IPC stream of rows per entry; "
        "`avro`: one record; `protobuf`: one message",
        one_of("raw", "utf8", "json", "arrow", "avro", "protobuf"),
        "raw",
    )
    value_schema: str | None = option(
        "valueSchema",
        "columns of the payload for `json` and `arrow`, or `.schema(...)`, in which the names of the table above keep "
        "their meaning. Default: [the log's schema](formats/schemas.md), or what a sample of the rows has",
    )
    sample: int = option(
        "valueSchemaSample", "rows of the sample that decides the columns of `json` and `arrow`", size, "1000"
    )
    schema_file: str | None = option(
        "valueSchemaFile",
        "schema of `avro` (`.avsc`) or `protobuf` (a descriptor set of `protoc`): a file on the driver. Default: the "
        "newest one of the registry or the log",
    )
    framing: str | None = option(
        "valueFraming",
        "`confluent`: a payload begins with a zero byte and the id of its schema; `bare`: it does not. Default: `bare` "
        "if neither the registry nor the log has schemas",
        one_of("confluent", "bare"),
    )
    mode: str = option(
        "mode",
        "a malformed payload: `PERMISSIVE` returns nulls, and the payload in `_corrupt_record` if the schema has this "
        "column; `DROPMALFORMED` omits the row; `FAILFAST` fails and names the entry",
        one_of("PERMISSIVE", "FAILFAST", "DROPMALFORMED"),
        "PERMISSIVE",
    )


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Options of the plan and its tasks. Sizes in bytes, times in seconds; None: no limit."""

    size_max: int = option(
        "maxBytesPerPartition",
        "estimated bytes of a task, by the lengths in the entries. Larger ranges are split; small ranges of several "
        "logs share a task",
        size,
        "256m",
    )
    count_max: int | None = option("maxRecordsPerPartition", "entries of a task", size)
    parts_min: int = option("minPartitions", "at least this number of tasks, if there are enough entries", size, "1")
    tier: str = option(
        "readTier",
        "where [offloaded](spark-jobs.md#offload) ledgers are read: `auto` (their files, if there are any), `bookies`, "
        "`offloaded`",
        one_of("auto", "bookies", "offloaded"),
        "auto",
    )
    read_ahead: int = option("readAheadBytes", "bytes that a task fetches ahead", size, "16m")
    batch_size: int = option(
        "readBatchBytes", "bytes of a batch that a task hands to Spark; smaller batches are joined", size, "4m"
    )
    poll_timeout: float = option(
        "pollTimeoutMs", "a task fails if no replica delivers anything for this time", milliseconds, "120000"
    )
    retries: int = option("fetchOffset.numRetries", "retries of the driver's requests", whole_number, "3")
    retry_interval: float = option("fetchOffset.retryIntervalMs", "time between two of them", milliseconds, "10")
    verifies_digest: bool = option("verifyDigest", "digests are always verified; `false` is refused", flag, "true")
    pushes_filters: bool = option(
        "pushDownFilters",
        "filters on `ledger_id`, `entry_id`, `offset` limit what is read. Needs "
        "`spark.sql.python.filterPushdown.enabled`",
        flag,
        "false",
    )


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """Options of streams only. Sizes in bytes, times in seconds; None: no limit."""

    rows_max: int | None = option(
        "maxOffsetsPerTrigger",
        "rows of a batch, divided among the logs in proportion to what each has, at least one row each",
        size,
    )
    entries_max: int | None = option("maxEntriesPerTrigger", "another name of `maxOffsetsPerTrigger`", size)
    bytes_max: int | None = option(
        "maxBytesPerTrigger", "payload bytes of a batch. With `maxOffsetsPerTrigger`, both limits hold", size
    )
    rows_min: int | None = option("minOffsetsPerTrigger", "wait for this number of rows", size)
    delay_max: float = option(
        "maxTriggerDelay",
        "wait for that number at most for this time",
        duration("a duration such as 90s, 15m, 2h or 500ms"),
        "15m",
    )
    tail_wait: float = option(
        "tailWaitMs", "how long an idle query waits for news before it asks again; at most 10,000", milliseconds, "100"
    )
    cursor: str | None = option(
        "cursor", "name of a [cursor](../explanation/logs.md#cursors) in each log. The query stores its progress there"
    )


BATCH_ONLY, STREAM_ONLY = names_of(EndOptions), names_of(StreamOptions)


@dataclass(frozen=True, kw_only=True)
class ReadOptions(
    StreamOptions, TaskOptions, SchemaOptions, PayloadOptions, ColumnOptions, EndOptions, StartOptions, SelectionOptions
):
    """All options of the source."""

    table: str | None = option("table", "`entries`, or one of the [tables](spark-jobs.md#tables)")


@dataclass(frozen=True, kw_only=True)
class Settings(ReadOptions):
    """The checked options, and what several of them say together. `starting`, `ending`: see `selection.where`."""

    uri: str
    password: bytes
    config: ClientConfig
    selection: Selection
    starting: str
    ending: str

    def __repr__(self) -> str:
        """Describe the settings without the password."""
        return f"<Settings {self.uri} {self.selection} from {self.starting}>"


def checked(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options under their proper names. Raises `InvalidArgument`."""
    return proper_names(options, names_of(ReadOptions))


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Check the value of each option. `options`: as from `checked`. Raises `InvalidArgument`."""
    chosen = ReadOptions(**values_of(ReadOptions, options))
    if not chosen.verifies_digest:
        raise InvalidArgument("option verifyDigest=false: digests are always verified; leave it out")
    if chosen.value_schema is not None and chosen.value_format not in ("json", "arrow"):
        raise InvalidArgument(f"option valueSchema is for valueFormat=json or arrow, not for {chosen.value_format}")
    if chosen.cursor is not None:
        check_log_name(chosen.cursor)
    if chosen.tail_wait > TAIL_WAIT_S_MAX:
        raise InvalidArgument(
            f"option tailWaitMs={options['tailWaitMs']}: must be at most {TAIL_WAIT_S_MAX * 1000}; more would delay "
            "stop()"
        )
    return chosen


def settings(options: Mapping[str, str], *, is_stream: bool) -> Settings:
    """Check that the options agree. `options`: as from `checked`. Raises `InvalidArgument`, `ConfigError`."""
    for name in BATCH_ONLY if is_stream else STREAM_ONLY:
        if name in options:
            usage = ("batch queries, not for streams", "leave it out") if is_stream else ("streams", "use readStream")
            raise InvalidArgument(f"option {name} is for {usage[0]}: {usage[1]}")
    starting = where(options, "starting", LATEST if is_stream else EARLIEST)
    if not is_stream and starting == LATEST:
        raise InvalidArgument("option startingOffsets=latest is for streams: a batch query would have no rows")
    values = dict(vars(read_options(options)))
    if values["rows_max"] and values["entries_max"]:
        raise InvalidArgument("options maxOffsetsPerTrigger and maxEntriesPerTrigger mean the same: give one of them")
    values["rows_max"] = rows_max = values["rows_max"] or values["entries_max"]
    if rows_max is not None and (values["rows_min"] or 0) > rows_max:
        raise InvalidArgument(
            f"option minOffsetsPerTrigger={values['rows_min']} is more than maxOffsetsPerTrigger={rows_max}"
        )
    # Before the selection: a query without any options gets the message that explains why.
    uri = metadata_uri(options) if values["namespace"] is None else _namespace_uri(options)
    chosen = selection(options)
    ending = where(options, "ending", LATEST)
    check_named(starting, chosen, "starting")
    check_named(ending, chosen, "ending")
    if values["snapshot"] is not None:
        _check_snapshot(values["snapshot"], options, chosen)
    return Settings(
        **values,
        uri=uri,
        password=read_password(options),
        config=client_config(options, read_ahead_size=max(64 << 10, values["read_ahead"] // 4)),
        selection=chosen,
        starting=starting,
        ending=ending,
    )


def _check_snapshot(noted: Mapping[str, Snapshot], options: Mapping[str, str], chosen: Selection) -> None:
    """Check that the snapshot is of the logs that are read. Raises `InvalidArgument`."""
    for name in (*names_of(StartOptions), *names_of(EndOptions), "assign", "namespace"):
        if name in options and name not in ("snapshot", "limit"):
            raise InvalidArgument(f"option {name}: the snapshot decides which rows are read; leave it out")
    other = (
        ["ledgers of a label"] if chosen.label is not None else [str(key) for key in chosen.keys if key not in noted]
    )
    if chosen.pattern is None and other:
        raise InvalidArgument(
            f"option snapshot is of {', '.join(noted)}, not of {other[0]}: choose with option subscribe among those"
        )


def _namespace_uri(options: Mapping[str, str]) -> str:
    """Return the namespace's URI. Raises `InvalidArgument` for options that have no meaning in a namespace."""
    refused = [name for name in ("cursor", URI) if name in options]
    if options.get("recordFormat", "auto").lower() == "envelope":
        refused.append("recordFormat=envelope")
    if not ("subscribe" in options or "subscribePattern" in options):
        raise InvalidArgument("option namespace: name its logs with option subscribe or subscribePattern")
    if refused:
        raise InvalidArgument(f"option {refused[0]} has no meaning with option namespace: leave it out")
    return namespace_uri(options)
