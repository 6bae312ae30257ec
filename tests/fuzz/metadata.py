"""Fuzz targets: records in metadata stores, and the answers of those stores."""

from __future__ import annotations

import base64
import functools
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from tests.fuzz.target import Target, accepted, check, equal, round_trip

from bookies.encoding import protobuf, textproto
from bookies.errors import BookKeeperError, InvalidArgument, MetadataCorrupt, NotSupported
from bookies.metadata import dump_format
from bookies.metadata.etcd import etcd_layout, etcd_messages
from bookies.metadata.etcd.etcd_port import Get, Put
from bookies.metadata.formats import recovery_formats, serde
from bookies.metadata.interface import bookie_places, spent_ids
from bookies.metadata.shared import bookie_notes
from bookies.metadata.shared.store_driver import parse_instance_id
from bookies.metadata.zookeeper import zk_layout
from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.protocol.ledger.offload import LABEL, offload_of
from bookies.protocol.log import cursors, lease, log_model, log_segments, log_times, retention
from bookies.replication.operator import status

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "metadata"
B1 = BookieId("b1:3181")


@functools.cache
def znodes() -> dict[str, bytes]:
    """Return path and data of the znodes that Apache's bookies and clients wrote."""
    found: dict[str, bytes] = {}
    for path in sorted(GOLDEN.glob("*.json")):
        content = json.loads(path.read_text())
        for node in content.get("nodes", []):
            found[node["path"]] = base64.b64decode(node.get("data") or "")
    return found


# -- ledgers -----------------------------------------------------------------------------------------------------------


def ledger_record(data: bytes) -> None:
    """A ledger's record of any format; a record that is read can be written again and means the same."""
    metadata = accepted(MetadataCorrupt, serde.parse_ledger, 7, data, 5)
    if metadata is None:
        return
    packed = serde.pack_ledger(metadata)
    again = serde.parse_ledger(7, packed, 5)
    equal(again, metadata, "parse(pack(x)) is not x")
    equal(serde.pack_ledger(again), packed, "pack(parse(b)) is not b, for what we wrote")
    equal(serde.as_stored(metadata, packed, 5), again, "as_stored is not what parsing returns")
    accepted(MetadataCorrupt, offload_of, metadata)
    line = json.loads(json.dumps(dump_format.pack_item(metadata, passwords=True)))
    equal(dump_format.parse_item(line), metadata, "the dump of a record is another record")


def _ledger_records() -> list[bytes]:
    records = [data for data in znodes().values() if data.startswith(b"BookieMetadataFormatVersion")]
    by_size = sorted(set(records), key=len)
    return by_size[::3] + [data for data in by_size if b"\t1\n" in data[:32] or b"\t2\n" in data[:32]][:12]


# -- other records -----------------------------------------------------------------------------------------------------


def _registration(data: bytes) -> None:
    parse = functools.partial(serde.parse_bookie_info, B1)
    info = accepted(MetadataCorrupt, parse, data)
    if info is not None and data:
        equal(parse(serde.pack_bookie_info(info)) if info.endpoints or info.properties else info, info, "registration")


def _mark(data: bytes) -> None:
    replicas, ctime_ms = recovery_formats.parse_mark(data)
    if replicas:
        packed = recovery_formats.pack_mark(replicas, ctime_ms)
        equal(recovery_formats.parse_mark(packed), (replicas, ctime_ms), "parse(pack(x)) is not x")
    recovery_formats.parse_owner(data)
    recovery_formats.parse_checked(data)
    accepted(MetadataCorrupt, recovery_formats.check_layout, data)
    accepted(MetadataCorrupt, recovery_formats.parse_delay, data)


def _layouts(data: bytes) -> None:
    accepted(MetadataCorrupt, zk_layout.parse_layout, data)
    accepted(BookKeeperError, etcd_layout.check_layout, data)
    accepted(MetadataCorrupt, parse_instance_id, data, "INSTANCEID")


def _spent(data: bytes) -> None:
    ids = accepted(MetadataCorrupt, spent_ids.parse_spent, "spent", data)
    if ids is not None:
        packed = spent_ids.pack_spent(ids)
        equal(spent_ids.pack_spent(spent_ids.parse_spent("spent", packed)), packed, "pack(parse(b)) is not b")


def _names(data: bytes) -> None:
    """Names of znodes and keys, and URIs."""
    text = data.decode("utf-8", "replace")
    for manager in zk_layout.Manager:
        for ledger_id in zk_layout.ledgers_among(
            "/l", manager, f"/l/{text}".rpartition("/")[0], [text.rpartition("/")[2]]
        ):
            path = zk_layout.ledger_path("/l", manager, ledger_id)
            equal(zk_layout.ledger_id_of("/l", path or ""), ledger_id, "ledger_id_of(ledger_path(x)) is not x")
    recovery_formats.ledger_of(text)
    zk_layout.RecoveryPaths("/l/underreplication").vote_number(text)
    accepted(BookKeeperError, zk_layout.parse_uri, text)
    accepted(BookKeeperError, etcd_layout.parse_uri, text)
    keys = etcd_layout.Keys("/l")
    keys.ledger_id(keys.ledgers + text)
    keys.bucket_number(keys.buckets + text)
    keys.recovery.ledger_id(keys.recovery.marks + text)
    etcd_layout.bookies_among("/l/", [f"/l/{text}"])


RECORDS: list[tuple[Callable[[bytes], None], list[bytes]]] = [
    (_registration, []),
    (_mark, [recovery_formats.pack_mark([B1], 5), recovery_formats.pack_owner("b1"), recovery_formats.LAYOUT, b"30"]),
    (_layouts, [zk_layout.pack_layout(zk_layout.Manager.LONG), b"1\nflat:1"]),
    (_spent, [b"0-4 7 9-12"]),
    (
        _names,
        [b"00/0000/L0007", b"000/0000/0000/0000/L0007", b"urL0000000007", b"zk+long://h:2181;g/ledgers?options=f"],
    ),
]


def records(data: bytes) -> None:
    """Registrations, marks, layouts, lists of ids and names, chosen by the first byte."""
    kind = data[0] % len(RECORDS) if data else 0
    RECORDS[kind][0](data[1:])


def _records() -> list[bytes]:
    registrations = [data for path, data in znodes().items() if "/available/" in path and data][:3]
    seeds = [bytes([0]) + data for data in registrations]
    return seeds + [bytes([kind]) + seed for kind, (_, given) in enumerate(RECORDS) for seed in given]


# -- JSON --------------------------------------------------------------------------------------------------------------


def _notes(data: bytes) -> None:
    round_trip(bookie_notes.parse, bookie_notes.pack, MetadataCorrupt, data)


def _places(data: bytes) -> None:
    round_trip(bookie_places.parse, bookie_places.pack, MetadataCorrupt, data)


def _manifest(data: bytes) -> None:
    errors = MetadataCorrupt, NotSupported
    manifest = accepted(errors, log_model.parse_manifest, "log", data)
    if manifest is not None:
        check(manifest.token is not None, "a manifest without a token", manifest)
        accepted(MetadataCorrupt, retention.retention_of, manifest)
    accepted(errors, log_segments.parse_segment, "segment", data)
    for parse in (cursors.parse_cursors, log_times.parse_times, retention.parse_history):
        accepted(errors, parse, "log", "t", data)
    round_trip(lambda record: lease.parse_queue("locks/x", record), lease.pack_queue, errors, data)


def _status(data: bytes) -> None:
    status.parse(data)


def _offload(data: bytes) -> None:
    record = LedgerMetadata(7, 1, 1, 1, ((0, (B1,)),), custom_metadata={LABEL: data})
    accepted(MetadataCorrupt, offload_of, record)


def _dump(data: bytes) -> None:
    line = accepted(InvalidArgument, dump_format.parse_line, data.decode("utf-8", "replace"))
    if line is not None:
        accepted(InvalidArgument, dump_format.parse_item, line)


MANIFEST = {
    "format": 1, "token": "t", "created_ms": 1, "ensemble": 3, "write_quorum": 2, "ack_quorum": 2, "digest": "crc32c",
    "epoch": 1, "next_seq": 2, "extents": [{"seq": 1, "ledger": 7, "first": 0, "last": 3}], "deleting": [9], "txns": {},
}  # fmt: skip
NOTE = {"maintenance": {"until_ms": 9, "by": "x"}, "draining": {"since_ms": 1, "by": "x"}}
TIMES = {"format": 1, "token": "t", "points": [[7, 0, 1795284255562, 50, 1008], [9, 0, 5]]}
REMOVAL = {"at_ms": 1, "before": "7:0", "reasons": ["age"], "ledgers": [1], "rows": 2, "size": 3, "passed": []}
HISTORY = {"format": 1, "token": "t", "removals": [REMOVAL]}
CURSORS = {"format": 1, "token": "t", "cursors": {"c": {"ledger": 1, "entry": 2, "moved_ms": 3, "token": 4}}}
LEASE = {"format": 1, "next_token": 3, "queue": [{"id": "a", "token": 2, "beat": 1, "ttl_ms": 1000, "text": "h:1"}]}
OFFLOAD = {
    "attempt": "a",
    "uri": "file:///x",
    "format": "arrow",
    "rows": 1,
    "bytes": 2,
    "crc": 3,
    "index": 4,
    "at_ms": 5,
}
LINES = [
    {"kind": "ids", "next_id": 5, "spent": [[1, 2]]},
    {"kind": "mark", "ledger": 1, "replicas": [], "ctime_ms": 2},
    {"kind": "recovery", "enabled": True, "delay_s": 3, "checked_at_ms": {"all ledgers": 4}},
    {"kind": "damaged", "ledger": 1, "reason": ""},
    {"kind": "cookie", "bookie": "b1", "data": {"base64": "AAAA"}},
    {"kind": "record", "name": "x", "data": "y"},
]
JSON: list[tuple[Callable[[bytes], None], list[Any]]] = [
    (_notes, [{"format": 1, "bookies": {"b1:1": NOTE}}]),
    (_places, [{"format": 1, "bookies": {"b1:1": ["/r1", "10.0.0.1"]}}]),
    (_manifest, [MANIFEST, {"extents": MANIFEST["extents"]}, CURSORS, LEASE, TIMES, HISTORY]),
    (_status, [{"written_ms": 5, "reports": [{"ledger_id": 1, "checked_ms": 2}], "lost": []}]),
    (_offload, [OFFLOAD]),
    (_dump, LINES),
]


def json_records(data: bytes) -> None:
    """Records that are JSON, chosen by the first byte."""
    kind = data[0] % len(JSON) if data else 0
    JSON[kind][0](data[1:])


def _json_records() -> list[bytes]:
    seeds = [bytes([kind]) + json.dumps(seed).encode() for kind, (_, given) in enumerate(JSON) for seed in given]
    odd = [b"[" * 2000, b'{"a":' * 1500, b"1e999", b"NaN", b'"\\ud800"', b"1" * 2000, b"null", b"[]"]
    return (
        seeds + [bytes([kind]) + text for kind in range(len(JSON)) for text in odd[:2]] + [b"\0" + text for text in odd]
    )


# -- etcd and the codecs -----------------------------------------------------------------------------------------------


def etcd_answers(data: bytes) -> None:
    """Answers of an etcd server."""
    gets = [Get("/l/a"), Get("/l/b", "/l/c")]
    for then, otherwise in ((gets, []), ([Put("/l/a", b"x")], gets[:1]), ([], [])):
        answer = accepted(ValueError, etcd_messages.parse_answer, data, (then, otherwise))
        if answer is not None:
            done = then if answer.is_met else otherwise
            equal(len(answer.items), sum(isinstance(operation, Get) for operation in done), "items for each read")
    accepted(ValueError, etcd_messages.parse_lease, data)
    accepted(ValueError, etcd_messages.parse_token, data)
    accepted(ValueError, etcd_messages.parse_watch_news, data)


def _etcd_answers() -> list[bytes]:
    item = protobuf.Schema({"key": (1, "bytes"), "mod": (3, "int"), "value": (5, "bytes")})
    found = protobuf.Schema({"kvs": (2, item)})
    result = protobuf.Schema({"range": (1, found)})
    header = protobuf.Schema({"revision": (3, "int")})
    whole = protobuf.Schema({"header": (1, header), "ok": (2, "int"), "responses": (3, result)})
    kvs: protobuf.Message = [("kvs", [("key", b"/l/a"), ("mod", 5), ("value", b"v")])]
    answers: list[protobuf.Message] = [[("range", kvs)], [("range", [])]]
    message: protobuf.Message = [("header", [("revision", 9)]), ("ok", 1), *(("responses", one) for one in answers)]
    return [protobuf.pack(whole, message), protobuf.pack(whole, message[:1]), b"\x10\x05\x18\x0a", b"\x12\x03abc"]


_INNER = protobuf.Schema({"key": (1, "bytes"), "value": (2, "int")})
_SCHEMA = protobuf.Schema({"number": (1, "int"), "text": (2, "bytes"), "inner": (3, _INNER), "state": (4, LedgerState)})


def codecs(data: bytes) -> None:
    """Protobuf, binary and text, by any schema."""
    for parse, pack in ((protobuf.parse, protobuf.pack), (protobuf.parse_text, protobuf.pack_text)):
        message = accepted(ValueError, parse, _SCHEMA, data)
        if message is not None:
            packed = pack(_SCHEMA, message)
            equal(parse(_SCHEMA, packed), message, "parse(pack(x)) is not x")
            equal(pack(_SCHEMA, parse(_SCHEMA, packed)), packed, "pack(parse(b)) is not b, for what we wrote")
    accepted(ValueError, textproto.parse, data)


def _codecs() -> list[bytes]:
    message: protobuf.Message = [
        ("number", -5),
        ("text", b"a\n\xff"),
        ("inner", [("key", b"k"), ("value", 1)]),
        ("state", 1),
    ]
    text = b'number: 0x1f # c\ntext: \'a\' "\\x41\\101\\u0041" inner < key: "k", value: -07 >; number: [1, 2]'
    return [protobuf.pack(_SCHEMA, message), protobuf.pack_text(_SCHEMA, message), text]


TARGETS: Sequence[Target] = [
    Target("ledger-record", ledger_record, _ledger_records, 768),
    Target("records", records, _records, 512),
    Target("json-records", json_records, _json_records, 4096),
    Target("etcd-answers", etcd_answers, _etcd_answers, 512),
    Target("protobuf", codecs, _codecs, 512),
]
