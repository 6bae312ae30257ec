"""Settings of the source: all options, checked once, in a form that travels to the planner and to the tasks.

Source: spark 3.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bookies.config import ClientConfig
from bookies.errors import InvalidArgument
from bookies.protocol.log.log_model import check_log_name
from bookies.spark.base import plan
from bookies.spark.base.options import (
    choice,
    client_config,
    flag,
    metadata_uri,
    number,
    proper_names,
    read_password,
    seconds,
    whole_number,
)
from bookies.spark.base.selection import EARLIEST, LATEST, SELECTIONS, Selection, check_named, selection, where

BOTH = (
    *SELECTIONS, "table", "columns", "includeValue", "includeMetadata", "includeHeaders", "valueFormat", "valueSchema",
    "mode", "recordFormat", "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy", "maxBytesPerPartition", "maxRecordsPerPartition", "minPartitions",
    "failOnDataLoss", "readTier", "verifyDigest", "readAheadBytes", "readBatchBytes", "pollTimeoutMs",
    "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "pushDownFilters",
)  # fmt: skip
BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
STREAM_ONLY = (
    "maxOffsetsPerTrigger", "maxEntriesPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
    "tailWaitMs", "cursor",
)  # fmt: skip
OPTIONS = (*BOTH, *BATCH_ONLY, *STREAM_ONLY)
MODES = ("PERMISSIVE", "FAILFAST", "DROPMALFORMED")
TIERS = ("auto", "bookies", "offloaded")
READ_AHEAD = 16 << 20
READ_BATCH = 4 << 20
TAIL_WAIT_MS_MAX = 10_000  # a longer wait would keep a query from being stopped


@dataclass(frozen=True)
class Settings:
    """The checked options. Sizes in bytes, times in seconds; None: no limit.

    `starting`, `ending`: see `selection.where`.
    """

    uri: str
    password: bytes
    config: ClientConfig
    selection: Selection
    starting: str
    ending: str
    strategy: str
    size_max: int
    count_max: int | None
    parts_min: int
    fails_on_loss: bool
    read_ahead: int
    batch_size: int
    poll_timeout: float
    retries: int
    retry_interval: float
    rows_max: int | None
    bytes_max: int | None
    rows_min: int
    delay_max: float
    tail_wait: float
    cursor: str | None
    record_format: str
    mode: str
    tier: str

    def __repr__(self) -> str:
        """Describe the settings without the password."""
        return f"<Settings {self.uri} {self.selection} from {self.starting}>"


def checked(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options under their proper names. Raises `InvalidArgument`."""
    proper = proper_names(options, OPTIONS)
    if not flag(proper, "verifyDigest", True):
        raise InvalidArgument("option verifyDigest=false: digests are always verified; leave it out")
    return proper


def settings(options: Mapping[str, str], *, is_stream: bool) -> Settings:
    """Check the values of the options. `options`: as from `checked`. Raises `InvalidArgument`, `ConfigError`."""
    for name in BATCH_ONLY if is_stream else STREAM_ONLY:
        if name in options:
            usage = ("batch queries, not for streams", "leave it out") if is_stream else ("streams", "use readStream")
            raise InvalidArgument(f"option {name} is for {usage[0]}: {usage[1]}")
    starting = where(options, "starting", LATEST if is_stream else EARLIEST)
    if not is_stream and starting == LATEST:
        raise InvalidArgument("option startingOffsets=latest is for streams: a batch query would have no rows")
    rows_max = number(options, "maxOffsetsPerTrigger", 0) or number(options, "maxEntriesPerTrigger", 0) or None
    if "maxOffsetsPerTrigger" in options and "maxEntriesPerTrigger" in options:
        raise InvalidArgument("options maxOffsetsPerTrigger and maxEntriesPerTrigger mean the same: give one of them")
    rows_min = number(options, "minOffsetsPerTrigger", 0) if "minOffsetsPerTrigger" in options else 0
    if rows_max is not None and rows_min > rows_max:
        raise InvalidArgument(f"option minOffsetsPerTrigger={rows_min} is more than maxOffsetsPerTrigger={rows_max}")
    tail_wait_ms = whole_number(options, "tailWaitMs", 100)
    if tail_wait_ms > TAIL_WAIT_MS_MAX:
        raise InvalidArgument(
            f"option tailWaitMs={tail_wait_ms}: must be at most {TAIL_WAIT_MS_MAX}; more would delay stop()"
        )
    uri = metadata_uri(options)  # Before the selection: a query without any options gets the message that explains why.
    chosen = selection(options)
    ending = where(options, "ending", LATEST)
    check_named(starting, chosen, "starting")
    check_named(ending, chosen, "ending")
    read_ahead = number(options, "readAheadBytes", READ_AHEAD)
    cursor = options.get("cursor")
    return Settings(
        uri=uri,
        password=read_password(options),
        config=client_config(options, read_ahead_size=max(64 << 10, read_ahead // 4)),
        selection=chosen,
        starting=starting,
        ending=ending,
        strategy=choice(options, "startingOffsetsByTimestampStrategy", ("error", "latest")),
        size_max=number(options, "maxBytesPerPartition", plan.DEFAULT_PARTITION_SIZE),
        count_max=number(options, "maxRecordsPerPartition", 0) or None,
        parts_min=number(options, "minPartitions", 1),
        fails_on_loss=flag(options, "failOnDataLoss", True),
        read_ahead=read_ahead,
        batch_size=number(options, "readBatchBytes", READ_BATCH),
        poll_timeout=whole_number(options, "pollTimeoutMs", 120_000) / 1000,
        retries=whole_number(options, "fetchOffset.numRetries", 3),
        retry_interval=whole_number(options, "fetchOffset.retryIntervalMs", 10) / 1000,
        rows_max=rows_max,
        bytes_max=number(options, "maxBytesPerTrigger", 0) or None,
        rows_min=rows_min,
        delay_max=seconds(options, "maxTriggerDelay", 900.0),
        tail_wait=tail_wait_ms / 1000,
        cursor=None if cursor is None else check_log_name(cursor),
        record_format=choice(options, "recordFormat", ("auto", "raw", "envelope")),
        mode=choice(options, "mode", MODES),
        tier=choice(options, "readTier", TIERS),
    )
