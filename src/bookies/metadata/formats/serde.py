"""Formats of the records in a metadata store: ledger metadata in its three formats, and bookies' registrations.

Every format starts with the same 28 bytes and its number. Format 3, the default, is a binary protobuf message after its
length; 2 is the same message as text; 1 is lines of text without digest and password. Records that Apache's parser
would refuse are refused in both directions, so an ill-formed record is neither accepted nor written. Unknown fields are
skipped in format 3 and, as in Apache, lost with the next update.

Source: metadata 4 and 6.2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from bookies.encoding import protobuf
from bookies.encoding.protobuf import Message, Schema
from bookies.errors import MetadataCorrupt
from bookies.model import (
    INVALID_ENTRY_ID,
    BookieId,
    BookieInfo,
    DigestType,
    Endpoint,
    Ensemble,
    LedgerMetadata,
    LedgerState,
)

_HEADER = b"BookieMetadataFormatVersion\t"
_VERSION_SIZE_MAX = 10  # characters up to the line feed
_IN_RECOVERY_LINE = -102  # what format 1 has in place of the last entry id
_ID_MAX = (1 << 63) - 1
_KEPT_MAX = 4096  # ensembles and bookie ids that were packed or checked lately: ledgers have them in common

_SEGMENT = Schema({"ensembleMember": (1, "bytes"), "firstEntryId": (2, "int")})
_CUSTOM = Schema({"key": (1, "bytes"), "value": (2, "bytes")})
_LEDGER = Schema(
    {
        "quorumSize": (1, "int"),
        "ensembleSize": (2, "int"),
        "length": (3, "int"),
        "lastEntryId": (4, "int"),
        "state": (5, LedgerState),
        "segment": (6, _SEGMENT),
        "digestType": (7, DigestType),
        "password": (8, "bytes"),
        "ackQuorumSize": (9, "int"),
        "ctime": (10, "int"),
        "customMetadata": (11, _CUSTOM),
        "cToken": (12, "int"),
    }
)
_ENDPOINT = Schema(
    {
        "id": (1, "bytes"),
        "port": (2, "int"),
        "host": (3, "bytes"),
        "protocol": (4, "bytes"),
        "auth": (5, "bytes"),
        "extensions": (6, "bytes"),
    }
)
_BOOKIE_INFO = Schema({"endpoints": (6, _ENDPOINT), "properties": (7, _CUSTOM)})


# -- ledgers ----------------------------------------------------------------------------------------------------------


def pack_ledger(metadata: LedgerMetadata) -> bytes:
    """Return the record, in the metadata's own format. Raises `MetadataCorrupt` if no reader would accept it."""
    try:
        _check(metadata)
        header = _HEADER + b"%d\n" % metadata.format_version
        if metadata.format_version == 1:
            return header + _pack_lines(metadata)
        message = _to_message(metadata)
        if metadata.format_version == 2:
            return header + protobuf.pack_text(_LEDGER, message)
        body = protobuf.pack(_LEDGER, message)
        return header + protobuf.pack_varint(len(body)) + body
    except ValueError as error:
        raise MetadataCorrupt(f"ledger metadata was not written: {error}", ledger_id=metadata.ledger_id) from error


def parse_ledger(
    ledger_id: int, data: bytes, ctime_ms: int | None = None, version: int | None = None
) -> LedgerMetadata:
    """Read a record of any format. `ctime_ms`: the store's own creation time, for formats 2 and 3 without one.

    Raises `MetadataCorrupt`, with the record's version in the store.
    """
    try:
        format_version, body = _parse_header(data)
        if format_version == 1:
            metadata = _parse_lines(ledger_id, body)
        elif format_version == 2:
            metadata = _from_message(ledger_id, protobuf.parse_text(_LEDGER, body), 2, ctime_ms)
        else:
            size, offset = protobuf.parse_varint(body, 0)
            if offset + size > len(body):
                raise ValueError(f"{size} bytes announced, {len(body) - offset} present")
            message = protobuf.parse(_LEDGER, body[offset : offset + size])
            metadata = _from_message(ledger_id, message, 3, ctime_ms)
        _check(metadata)
    except ValueError as error:
        corrupt = MetadataCorrupt(f"ledger metadata cannot be read: {error}", ledger_id=ledger_id)
        corrupt.version = version
        raise corrupt from error
    return metadata


def as_stored(metadata: LedgerMetadata, data: bytes, ctime_ms: int | None = None) -> LedgerMetadata:
    """Return what `parse_ledger` returns for `data`, the packed `metadata`; in format 3 without parsing."""
    if metadata.format_version != 3:
        return parse_ledger(metadata.ledger_id, data, ctime_ms)
    last_entry_id, length = _end_of(metadata)
    return metadata.replace(
        last_entry_id=last_entry_id,
        length=length,
        password=None if metadata.password is None else bytes(metadata.password),
        custom_metadata=MappingProxyType({key: bytes(value) for key, value in metadata.custom_metadata.items()}),
        ctime_ms=metadata.ctime_ms if metadata.stores_ctime else ctime_ms,
    )


def _parse_header(data: bytes) -> tuple[int, bytes]:
    if not data.startswith(_HEADER):
        raise ValueError(f"starts with {data[:28]!r}")
    end = data.find(b"\n", len(_HEADER), len(_HEADER) + _VERSION_SIZE_MAX + 1)
    number = data[len(_HEADER) : end]
    if end < 0 or not number.isdigit():
        raise ValueError("no format version")
    if int(number) not in (1, 2, 3):
        raise ValueError(f"format version {int(number)} is not compatible, expected between 1 and 3")
    return int(number), data[end + 1 :]


_BOOKIE_ID = re.compile(r"[A-Za-z0-9.:-_-]+")  # the range from colon to underscore is Apache's


@lru_cache(_KEPT_MAX)
def is_bookie_id(text: str) -> bool:
    """Report whether Apache would accept the text as a bookie id. Source: metadata 6.4."""
    return _BOOKIE_ID.fullmatch(text) is not None and text.lower() != "readonly"


def _check(metadata: LedgerMetadata) -> None:
    """Check a record. Raises ValueError with the first problem. Source: metadata 4.2."""
    if not 0 <= metadata.ledger_id <= _ID_MAX:
        raise ValueError(f"ledger id {metadata.ledger_id} is out of range")
    if not metadata.ensemble_size >= metadata.write_quorum >= metadata.ack_quorum >= 1:
        sizes = f"{metadata.ensemble_size}, {metadata.write_quorum}, {metadata.ack_quorum}"
        raise ValueError(f"ensemble size, write quorum and ack quorum are {sizes}")
    if not metadata.ensembles:
        raise ValueError("no fragment")
    previous = -1
    for first, ensemble in metadata.ensembles:
        if first > _ID_MAX or (first != 0 if previous < 0 else first <= previous):
            raise ValueError(f"a fragment starts at entry {first} after {previous}")
        if len(ensemble) != metadata.ensemble_size:
            raise ValueError(f"{len(ensemble)} bookies in the fragment at entry {first}, not {metadata.ensemble_size}")
        for bookie in ensemble:
            if not is_bookie_id(bookie):
                raise ValueError(f"{bookie!r} is not a bookie id")
        previous = first
    if metadata.is_closed and not (-1 <= metadata.last_entry_id <= _ID_MAX and 0 <= metadata.length <= _ID_MAX):
        raise ValueError(f"closed at entry {metadata.last_entry_id} with length {metadata.length}")
    if (metadata.digest_type is None) is not (metadata.password is None):
        raise ValueError("digest type or password is missing: a record has both or none")


def _end_of(metadata: LedgerMetadata) -> tuple[int, int]:
    """Return (last entry id, length) as stored: they have a meaning only if the ledger is closed."""
    return (metadata.last_entry_id, metadata.length) if metadata.is_closed else (INVALID_ENTRY_ID, 0)


def _to_message(metadata: LedgerMetadata) -> Message:
    if metadata.format_version not in (2, 3):
        raise ValueError(f"format version {metadata.format_version}")
    last_entry_id, length = _end_of(metadata)
    message: Message = [
        ("quorumSize", metadata.write_quorum),
        ("ensembleSize", metadata.ensemble_size),
        ("length", length),
        ("lastEntryId", last_entry_id),
        ("state", int(metadata.state)),
    ]
    for first, ensemble in metadata.ensembles:
        packed = _packed_segment(first, ensemble) if metadata.format_version == 3 else _segment_of(first, ensemble)
        message.append(("segment", packed))
    if metadata.digest_type is not None and metadata.password is not None:
        message += [("digestType", int(metadata.digest_type)), ("password", bytes(metadata.password))]
    message.append(("ackQuorumSize", metadata.ack_quorum))
    if metadata.stores_ctime:
        if metadata.ctime_ms is None:
            raise ValueError("the creation time must be stored, but is unknown")
        message.append(("ctime", metadata.ctime_ms))
    for key, value in metadata.custom_metadata.items():
        message.append(("customMetadata", [("key", key.encode("utf-8")), ("value", bytes(value))]))
    if metadata.format_version == 3:
        message.append(("cToken", metadata.creator_token))
    return message


def _segment_of(first: int, ensemble: Ensemble) -> Message:
    return [*(("ensembleMember", bookie.encode("ascii")) for bookie in ensemble), ("firstEntryId", first)]


@lru_cache(_KEPT_MAX)
def _packed_segment(first: int, ensemble: Ensemble) -> bytes:
    return protobuf.pack(_SEGMENT, _segment_of(first, ensemble))


def _from_message(ledger_id: int, message: Message, version: int, ctime_ms: int | None) -> LedgerMetadata:
    numbers = {name: value for name, value in message if isinstance(value, int)}
    for name in ("quorumSize", "ensembleSize", "length", "state"):
        if name not in numbers:
            raise ValueError(f"no {name}")
    state = LedgerState(numbers["state"])
    if state is LedgerState.CLOSED and "lastEntryId" not in numbers:
        raise ValueError("closed, but no lastEntryId")
    is_closed = state is LedgerState.CLOSED
    password = next((value for name, value in reversed(message) if name == "password"), None)
    assert password is None or isinstance(password, bytes)
    write_quorum = numbers["quorumSize"]
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=numbers["ensembleSize"],
        write_quorum=write_quorum,
        ack_quorum=numbers.get("ackQuorumSize", write_quorum),
        ensembles=tuple(_segment(value) for name, value in message if name == "segment" and isinstance(value, list)),
        state=state,
        last_entry_id=numbers["lastEntryId"] if is_closed else INVALID_ENTRY_ID,
        length=numbers["length"] if is_closed else 0,
        # A password without a digest type means CRC32, as with older Apache clients.
        digest_type=None if password is None else DigestType(numbers.get("digestType", DigestType.CRC32)),
        password=password,
        custom_metadata=_map_of(message, "customMetadata"),
        format_version=version,
        ctime_ms=numbers.get("ctime", ctime_ms),
        stores_ctime="ctime" in numbers,
        creator_token=numbers.get("cToken", 0) if version == 3 else 0,
    )


def _segment(message: Message) -> tuple[int, Ensemble]:
    numbers = {name: value for name, value in message if isinstance(value, int)}
    if "firstEntryId" not in numbers:
        raise ValueError("a fragment has no firstEntryId")
    members = [value.decode("utf-8") for _, value in message if isinstance(value, bytes)]
    return numbers["firstEntryId"], tuple(BookieId(member) for member in members)


def _map_of(message: Message, field: str) -> Mapping[str, bytes]:
    entries = [dict(value) for name, value in message if name == field and isinstance(value, list)]
    pairs: dict[str, bytes] = {}
    for entry in entries:
        key, value = entry.get("key", b""), entry.get("value", b"")
        assert isinstance(key, bytes)
        assert isinstance(value, bytes)
        pairs[key.decode("utf-8")] = value
    return MappingProxyType(pairs)


# -- ledgers, format 1 ------------------------------------------------------------------------------------------------


def _pack_lines(metadata: LedgerMetadata) -> bytes:
    """Return a format 1 body. It has no digest, password and creation time: clients open the ledger with their own."""
    if metadata.ack_quorum != metadata.write_quorum:
        raise ValueError(f"format 1 has no ack quorum ({metadata.ack_quorum}) beside the write quorum")
    if metadata.custom_metadata:
        raise ValueError("format 1 has no custom metadata")
    last_entry_id, length = _end_of(metadata)
    lines = [str(metadata.write_quorum), str(metadata.ensemble_size), str(length)]
    lines += ["\t".join((str(first), *ensemble)) for first, ensemble in metadata.ensembles]
    lines.append("")
    if metadata.state is LedgerState.CLOSED:
        lines[-1] = f"{last_entry_id}\tCLOSED"
    elif metadata.state is LedgerState.IN_RECOVERY:
        lines[-1] = f"{_IN_RECOVERY_LINE}\tCLOSED"
    return "\n".join(lines).encode("ascii")


def _parse_lines(ledger_id: int, body: bytes) -> LedgerMetadata:
    """Read a format 1 body. As in Apache, the creation time is unknown, even if the store keeps one."""
    lines = body.decode("utf-8").split("\n")
    if len(lines) < 3:
        raise ValueError("the record ends before its third line")
    write_quorum, ensemble_size, length = (_number(line) for line in lines[:3])
    state, last_entry_id = LedgerState.OPEN, INVALID_ENTRY_ID
    ensembles: list[tuple[int, Ensemble]] = []
    for line in lines[3:]:
        columns = line.split("\t")
        if columns == [""]:
            continue
        if state is not LedgerState.OPEN:
            raise ValueError("the record continues after the terminal line")
        if columns[1:] == ["CLOSED"]:
            last_entry_id = _number(columns[0])
            state = LedgerState.IN_RECOVERY if last_entry_id == _IN_RECOVERY_LINE else LedgerState.CLOSED
        else:
            ensembles.append((_number(columns[0]), tuple(BookieId(column) for column in columns[1:])))
    is_closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=write_quorum,
        ensembles=tuple(ensembles),
        state=state,
        last_entry_id=last_entry_id if is_closed else INVALID_ENTRY_ID,
        length=length if is_closed else 0,
        digest_type=None,
        password=None,
        format_version=1,
    )


def _number(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,19}", text):
        raise ValueError(f"{text!r:.40} is not a number")
    return int(text)


# -- bookies ----------------------------------------------------------------------------------------------------------


def pack_bookie_info(info: BookieInfo) -> bytes:
    """Return the bytes stored at a bookie's registration. Source: metadata 6.2."""
    message: Message = []
    for endpoint in info.endpoints:
        fields: Message = [
            ("id", endpoint.id.encode("utf-8")),
            ("port", endpoint.port),
            ("host", endpoint.host.encode("utf-8")),
            ("protocol", endpoint.protocol.encode("utf-8")),
        ]
        fields += [("auth", name.encode("utf-8")) for name in endpoint.auth]
        fields += [("extensions", name.encode("utf-8")) for name in endpoint.extensions]
        message.append(("endpoints", fields))
    for key, value in info.properties.items():
        message.append(("properties", [("key", key.encode("utf-8")), ("value", value.encode("utf-8"))]))
    return protobuf.pack(_BOOKIE_INFO, message)


def parse_bookie_info(bookie: BookieId, data: bytes) -> BookieInfo:
    """Read a registration. Zero bytes, as bookies before 4.11 write, mean the address in the id itself.

    Raises `MetadataCorrupt`.
    """
    if not data:
        host, _, port = bookie.rpartition(":")
        if not host or not re.fullmatch(r"[0-9]{1,5}", port):
            return BookieInfo()  # unreachable: neither the id nor the data has an address
        return BookieInfo((Endpoint(bookie, host, int(port), "bookie-rpc"),))
    try:
        message = protobuf.parse(_BOOKIE_INFO, data)
        endpoints = tuple(
            _endpoint(value) for name, value in message if name == "endpoints" and isinstance(value, list)
        )
        properties = {key: value.decode("utf-8") for key, value in _map_of(message, "properties").items()}
    except ValueError as error:
        raise MetadataCorrupt(f"the bookie's registration cannot be read: {error}", bookie=bookie) from error
    return BookieInfo(endpoints, MappingProxyType(properties))


def _endpoint(message: Message) -> Endpoint:
    texts: dict[str, list[str]] = {"id": [], "host": [], "protocol": [], "auth": [], "extensions": []}
    port = None
    for name, value in message:
        if isinstance(value, bytes):
            texts[name].append(value.decode("utf-8"))
        elif isinstance(value, int):
            port = value
    if port is None or not (texts["id"] and texts["host"] and texts["protocol"]):
        raise ValueError("an endpoint has no id, port, host or protocol")
    auth, extensions = tuple(texts["auth"]), tuple(texts["extensions"])
    return Endpoint(texts["id"][-1], texts["host"][-1], port, texts["protocol"][-1], auth, extensions)
