"""Fuzz targets: what DistributedLog wrote, in ledgers and in znodes. Its formats: `distributedlog/formats/`."""

from __future__ import annotations

from collections.abc import Sequence

from tests.fuzz.target import Target, accepted, check, equal, round_trip

from bookies.distributedlog.formats import binding, compression, dlsn, entries, log_names, segment
from bookies.errors import ConfigError, InvalidArgument, LogRecordCorrupt, MetadataCorrupt, NotSupported

CODECS = (compression.NONE, compression.LZ4)


def dlog_entries(data: bytes) -> None:
    """Entries with an envelope and without, and record sets: whatever is accepted survives packing."""
    for is_enveloped in (True, False):
        found = accepted(LogRecordCorrupt, lambda each=is_enveloped: entries.parse_entry(data, is_enveloped=each))
        if not found:
            continue
        slots = [record.slot for record in found]
        check(slots == list(range(len(found))), "the slots are not consecutive", slots)
        check(is_enveloped or sum(len(record.payload) for record in found) <= len(data), "more bytes than there were")
        new = [entries.NewRecord(record.txid, record.flags & ~entries.SET, record.payload) for record in found]
        for codec in CODECS:
            again = entries.parse_entry(entries.pack_entry(new, 7, codec))
            wanted = [(record.slot, record.txid, record.flags & ~entries.SET, record.payload) for record in found]
            equal(
                [(each.slot, each.txid, each.flags, each.payload) for each in again], wanted, "parse(pack(x)) is not x"
            )
    payloads = accepted(LogRecordCorrupt, entries.parse_set, data)
    if payloads:
        for codec in CODECS:
            packed = accepted(InvalidArgument, entries.pack_set, payloads, codec)  # It may be too large.
            check(packed is None or entries.parse_set(packed) == payloads, "parse(pack(x)) is not x", payloads)


def _dlog_entries() -> Sequence[bytes]:
    records = [entries.NewRecord(txid, 0, b"%d" % txid * 9) for txid in range(5)]
    inner = [entries.pack_set([b"a", b"", b"ccc" * 50], codec) for codec in CODECS]
    sets = [entries.NewRecord(9, entries.SET, packed, 3) for packed in inner]
    special = [entries.control_record(7), entries.end_of_stream_record()]
    packed = [entries.pack_entry(some, 3, codec) for some in (records, sets, special) for codec in CODECS]
    return [*packed, packed[0][entries.ENVELOPE_SIZE :], *inner]


def dlog_znodes(data: bytes) -> None:
    """Segments, positions, bindings, numbers, names and URIs."""
    refusals = (MetadataCorrupt, NotSupported)
    found = accepted(refusals, segment.parse_segment, "logrecs_1", data)
    if found is not None:
        equal(segment.parse_segment("logrecs_1", found.pack()), found, "parse(pack(x)) is not x")
    round_trip(lambda given: binding.parse_binding(given, "/n"), binding.Binding.pack, MetadataCorrupt, data)
    round_trip(lambda given: log_names.parse_number(given, "/n"), b"%d".__mod__, MetadataCorrupt, data)
    for version in (0, 1):
        round_trip(dlsn.unpack_dlsn, lambda position, form=version: position.pack(form), InvalidArgument, data)
    text = data.decode("utf-8", "replace")
    position = accepted(InvalidArgument, dlsn.parse_dlsn, text)
    if position is not None:
        equal(dlsn.parse_dlsn(str(position)), position, "parse(str(x)) is not x")
        equal(dlsn.parse_dlsn(position.base64()), position, "parse(base64(x)) is not x")
    name = accepted(InvalidArgument, log_names.check_name, text)
    if name is not None:
        equal(log_names.check_name(name), name, "a checked name has another form")
    place = accepted(ConfigError, log_names.parse_namespace_uri, text)
    if place is not None:
        again = log_names.parse_namespace_uri(f"{log_names.SCHEMES[0]}://{place.hosts}{place.path}")
        equal(again, place, "parse(uri(x)) is not x")


def _dlog_znodes() -> Sequence[bytes]:
    values = {"last_txid": 90, "completed_ms": 1_700_000_000_000, "record_count": 12, "last_entry": 8, "last_slot": 1}
    segments = [
        segment.Segment("logrecs_1", version, 77, 5, 30, status=1, region=2, **some)
        for version in range(1, segment.VERSION + 1)
        for some in ({}, values)
    ]
    bound = binding.Binding("zk1:2181,zk2:2181", "/ledgers", "zk3:2181", first_lssn=1, is_federated=True)
    position = dlsn.Dlsn(3, 8, 1)
    texts = [
        str(position),
        position.base64(),
        "distributedlog://zk:2181,zk2:2181/a/b",
        "web/shop",
        "0",
        "9" * 5000 + ":0:0",
    ]
    texts += ['1\nBKDL\n{"1":{"str":"h"},"2":{"str":"/l"},"9":{"i64":1e999}}', "1\nBKDL\n" + "[" * 1500]
    return [*(each.pack() for each in segments), bound.pack(), position.pack(0), *(text.encode() for text in texts)]


TARGETS = [
    Target("dlog-entries", dlog_entries, _dlog_entries),
    Target("dlog-znodes", dlog_znodes, _dlog_znodes, 6_000),
]
