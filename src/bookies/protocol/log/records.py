"""Records of a log: how a payload becomes an entry, and an entry a record again.

The log's record format decides it. In a `raw` log the entry is the value. In an `envelope` log it is a record with key,
headers and time, whose layout is in `encoding/envelope.py`, and in a log of `sets` it is many such records, as in
`encoding/record_sets.py`. Every writer of a log keeps to its format, because readers have no other way to tell a
bare value from a damaged record.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice, repeat

from msgspec import Struct

from bookies.encoding.envelope import Header, Record, pack_fields, parse_headers, parse_record
from bookies.encoding.record_sets import RecordSet, count_of, parse_set
from bookies.errors import InvalidArgument, LogRecordCorrupt, MetadataCorrupt, NotSupported
from bookies.protocol.log.log_model import ENVELOPE, SETS, Address, Position

RESERVED = "bk-"  # beginning of names of headers that are ours
TIME_MAX = (1 << 63) - 1  # microseconds
_new = tuple.__new__  # A named tuple's own one takes twice as long.

Value = bytes | bytearray | memoryview
Headers = Mapping[str, bytes | None] | Sequence[Header]


class LogRecord(Struct, frozen=True):
    """Record read from a log. None: null, or not in the entry. `timestamp_us`: microseconds since 1970.

    The record of a raw log has a position and a value only. `slot`: its number in the entry, from 0; of a log of record
    sets only.
    """

    position: Position
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[Header] | None = None
    timestamp_us: int | None = None
    slot: int = 0

    @property
    def address(self) -> Address:
        """Return the position of its entry with its number in there."""
        return Address(*self.position, self.slot)

    @property
    def timestamp(self) -> float | None:
        """Return the time in seconds since 1970, as `append` accepts it."""
        return None if self.timestamp_us is None else self.timestamp_us / 1_000_000


# -- to entries ------------------------------------------------------------------------------------------------------


def entry_of(
    payload: Value | Record,
    now_us: int,
    key: Value | None = None,
    headers: Headers | None = None,
    timestamp: float | None = None,
) -> bytes:
    """Return the entry of an envelope log: the record that `record_of` returns. Raises `InvalidArgument`."""
    return pack_fields(*record_of(payload, now_us, key, headers, timestamp))


def record_of(
    payload: Value | Record,
    now_us: int,
    key: Value | None = None,
    headers: Headers | None = None,
    timestamp: float | None = None,
) -> Record:
    """Return the record of a payload. `now_us`: the time of a record that has none, microseconds since 1970.

    `timestamp`: seconds since 1970. Raises `InvalidArgument`.
    """
    value: Value | None = payload if not isinstance(payload, Record) else payload.value
    time_us = None if timestamp is None else _microseconds(timestamp)
    if isinstance(payload, Record):
        if key is not None or headers is not None or timestamp is not None:
            raise InvalidArgument("a Record has its own key, headers and timestamp: set them there")
        _, key, headers, time_us = payload
    elif type(value) is not bytes:
        value = _bytes("payload", value)
    fields = (
        None if value is None else _bytes("value", value),
        None if key is None else _bytes("key", key),
        None if headers is None else _checked_headers(headers),
        now_us if time_us is None else _in_range("timestamp_us", time_us),
    )
    return _new(Record, fields)


def value_of(
    log: str,
    payload: Value | Record,
    key: Value | None = None,
    headers: Headers | None = None,
    timestamp: float | None = None,
) -> Value:
    """Return the entry of a raw log. Raises `InvalidArgument` for everything that only a record can hold."""
    value, *own = payload if isinstance(payload, Record) else (payload, None, None, None)
    fields = zip(("key", "headers", "timestamp"), (key, headers, timestamp), own, strict=True)
    refused = [name for name, given, of_record in fields if given is not None or of_record is not None]
    if value is None:
        refused.append("null as the value")
    if value is None or refused:
        raise InvalidArgument(
            f"log {log} keeps raw values, without {', '.join(refused)}: append the value alone, or create a log with "
            f'record_format="{ENVELOPE}"'
        )
    return value


def check_header_name(name: str) -> str:
    """Return the name of a header that an application chose. Raises ValueError."""
    if name.startswith(RESERVED):
        raise ValueError(f"names that begin with {RESERVED} are reserved")
    return name


def _checked_headers(headers: Headers) -> list[Header]:
    try:
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
        for name, _ in pairs:
            check_header_name(name).encode()
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"headers: {error}; expected a mapping or pairs, from a name (str) to bytes or None"
        ) from None
    return [(name, None if value is None else _bytes(f"header {name}", value)) for name, value in pairs]


def _bytes(name: str, value: object) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    kinds = "bytes, bytearray, memoryview" + (" or a Record" if name == "payload" else "")
    raise InvalidArgument(f"{name}: must be {kinds}, not {type(value).__name__}")


def _microseconds(timestamp: float) -> int:
    try:
        whole = math.floor(timestamp)
        return _in_range("timestamp", whole * 1_000_000 + round((timestamp - whole) * 1_000_000))
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(f"timestamp={timestamp!r}: must be a number of seconds since 1970") from None


def _in_range(name: str, time_us: object) -> int:
    try:
        number = operator.index(time_us)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgument(f"{name}={time_us!r}: must be a whole number of microseconds since 1970") from None
    if not -TIME_MAX <= number <= TIME_MAX:
        raise InvalidArgument(f"{name}={number} microseconds: must be below {TIME_MAX} in amount")
    return number


# -- from entries ----------------------------------------------------------------------------------------------------


class Decoder:
    """Makes records of entries. `log`: its name, for errors."""

    def __init__(self, log: str, record_format: str) -> None:
        self.record_format = record_format
        self._log = log

    @property
    def is_sets(self) -> bool:
        """Report whether an entry may hold several records."""
        return self.record_format == SETS

    def of_sets(self) -> Decoder:
        """Return itself. Raises `NotSupported` for a log whose entries are no record sets."""
        if not self.is_sets:
            raise NotSupported(f"log {self._log} has record format {self.record_format}: read it with records()")
        return self

    def records(
        self, ledger_id: int, entry_ids: Iterable[int], entries: Iterable[bytes], slot: int = 0
    ) -> Iterator[LogRecord]:
        """Iterate over the records of entries; `slot`: of the first entry from this record on.

        A step that raises `LogRecordCorrupt` may be followed by others. It also raises `ConfigError`, for a codec
        without its library.
        """
        if self.record_format == SETS:
            opened = map(self._opened, repeat(ledger_id), entry_ids, entries, chain((slot,), repeat(0)))
            return chain.from_iterable(opened)
        decode = partial(_parsed, self._log) if self.record_format == ENVELOPE else plain
        return map(decode, repeat(ledger_id), entry_ids, entries)

    def intact(self, ledger_id: int, entry_ids: Iterable[int], entries: Iterable[bytes]) -> Iterator[LogRecord]:
        """Iterate over the records of entries, except for damaged ones."""
        records = self.records(ledger_id, entry_ids, entries)
        while True:
            try:
                record = next(records, None)
            except LogRecordCorrupt:
                continue
            if record is None:
                return
            yield record

    def count(self, entry: bytes) -> int:
        """Return the number of records that an entry claims to have."""
        return count_of(entry) if self.record_format == SETS else 1

    def record_set(self, ledger_id: int, entry_id: int, entry: bytes) -> tuple[Position, RecordSet]:
        """Return the record set of an entry, with its position. Raises `LogRecordCorrupt`, `ConfigError`."""
        position = _new(Position, (ledger_id, entry_id))
        try:
            record_set = parse_set(entry)
        except LogRecordCorrupt as error:
            raise self._corrupt(position, error) from error
        record_set.where = f"; it is entry {position} of log {self._log}: read on from {position.next}"
        return position, record_set

    def _corrupt(self, position: Position, error: LogRecordCorrupt) -> LogRecordCorrupt:
        ledger_id, entry_id = position
        return LogRecordCorrupt(
            f"log {self._log} has no records at ledger {ledger_id}, entry {entry_id}: {error.message}; read on from "
            f"{position.next}",
            ledger_id=ledger_id,
            entry_id=entry_id,
        )

    def _opened(self, ledger_id: int, entry_id: int, entry: bytes, slot: int) -> Iterator[LogRecord]:
        position = _new(Position, (ledger_id, entry_id))
        try:
            values, keys, headers, times = parse_set(entry).rows()
        except LogRecordCorrupt as error:
            return map(_refuse, (self._corrupt(position, error),))
        slots, none = range(slot, len(values)), repeat(None)
        columns = [none if column is None else islice(column, slot, None) for column in (values, keys, headers, times)]
        if headers is None:
            return map(LogRecord, repeat(position), *columns, slots)
        return map(partial(self._record, position), *columns, slots)

    def _record(
        self,
        position: Position,
        value: bytes | None,
        key: bytes | None,
        headers: bytes | None,
        timestamp_us: int | None,
        slot: int,
    ) -> LogRecord:
        try:
            return LogRecord(
                position, value, key, None if headers is None else parse_headers(headers), timestamp_us, slot
            )
        except MetadataCorrupt as error:
            address = Address(*position, slot)
            text = f"log {self._log} has no record at {address}: {error.message}; read on from {address.next}"
            corrupt = LogRecordCorrupt(text, ledger_id=position.ledger_id, entry_id=position.entry_id)
            corrupt.slot = slot
            raise corrupt from error


def _refuse(error: LogRecordCorrupt) -> LogRecord:
    raise error


def plain(ledger_id: int, entry_id: int, entry: bytes) -> LogRecord:
    """Return the record of an entry that is a bare value."""
    return LogRecord(_new(Position, (ledger_id, entry_id)), entry)


def _parsed(log: str, ledger_id: int, entry_id: int, entry: bytes) -> LogRecord:
    position = _new(Position, (ledger_id, entry_id))
    try:
        return LogRecord(position, *parse_record(entry))
    except MetadataCorrupt as error:
        raise LogRecordCorrupt(
            f"log {log} has no record at ledger {ledger_id}, entry {entry_id}: {error.message}; read on from "
            f"{position.next}",
            ledger_id=ledger_id,
            entry_id=entry_id,
        ) from error
