"""Fuzz targets: what DistributedLog wrote, in ledgers and in znodes. Its formats: `distributedlog/formats/`."""

from __future__ import annotations

from collections.abc import Sequence

from tests.fakes.dlog_entries import Row, control, end_of_stream, packed
from tests.fuzz import kernels
from tests.fuzz.target import Target, accepted, check, equal, round_trip

from bookies.distributedlog import Record
from bookies.distributedlog.formats import binding, compression, dlsn, entries, log_names, segment
from bookies.errors import ConfigError, InvalidArgument, LogRecordCorrupt, MetadataCorrupt, NotSupported
from bookies.kernels.dlog_entries import cut_records

TYPES = Record, dlsn.Dlsn
CODECS = (compression.NONE, compression.LZ4)


def dlog_entries(data: bytes) -> None:
    """Entries with an envelope and without, and record sets: whatever is accepted survives packing."""
    for is_enveloped in (True, False):
        found = accepted(LogRecordCorrupt, lambda each=is_enveloped: entries.parse_entry(data, is_enveloped=each))
        if not found:
            continue
        slots = [record.slot for record in found]
        check(slots == list(range(len(found))), "the slots are not consecutive", slots)
        _cuts(data, found, is_enveloped)
        new = [Row(record.txid, record.flags & ~entries.SET, record.payload) for record in found]
        for codec in CODECS:
            again = entries.parse_entry(packed(new, 7, codec))
            wanted = [(record.slot, record.txid, record.flags & ~entries.SET, record.payload) for record in found]
            equal(
                [(each.slot, each.txid, each.flags, each.payload) for each in again], wanted, "parse(pack(x)) is not x"
            )
    payloads = accepted(LogRecordCorrupt, entries.parse_set, data)
    if payloads:
        for codec in CODECS:
            packed_set = accepted(InvalidArgument, entries.pack_set, payloads, codec)  # It may be too large.
            check(packed_set is None or entries.parse_set(packed_set) == payloads, "parse(pack(x)) is not x", payloads)


def _cuts(data: bytes, found: list[entries.SlotRecord], is_enveloped: bool) -> None:
    """Both kernels cut an accepted entry into the same records, unless it has a record set."""
    body = entries.body_of(data, 0, len(data)) if is_enveloped else (data, 0, len(data))
    kernels.both("cut_records", TYPES, body, (3, 4), -1, 1)
    cut = cut_records(TYPES, body, (3, 4), -1, 1)
    if cut is None:
        return
    wanted = [
        (record.payload, record.txid, (3, 4, record.slot), record.position - 1)
        for record in found
        if record.slot >= 1 and not record.flags & (entries.CONTROL | entries.END_OF_STREAM)
    ]
    equal([tuple(record) for record in cut[0]], wanted, "a cut entry has other records than a parsed one")
    equal(cut[1:], (found[-1].position, found[-1].flags), "a cut entry has another end than a parsed one")


def _dlog_entries() -> Sequence[bytes]:
    records = [Row(txid, 0, b"%d" % txid * 9) for txid in range(5)]
    inner = [entries.pack_set([b"a", b"", b"ccc" * 50], codec) for codec in CODECS]
    sets = [Row(9, entries.SET, each, 3) for each in inner]
    special = [control(7), end_of_stream()]
    seeds = [packed(some, 3, codec) for some in (records, sets, special) for codec in CODECS]
    return [*seeds, seeds[0][entries.ENVELOPE_SIZE :], *inner]


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
    least = dlsn.Dlsn(0, -(1 << 63), 5).base64()  # The fuzzer found that its text was refused.
    return [
        *(each.pack() for each in segments),
        bound.pack(),
        position.pack(0),
        least.encode(),
        *(text.encode() for text in texts),
    ]


TARGETS = [
    Target("dlog-entries", dlog_entries, _dlog_entries),
    Target("dlog-znodes", dlog_znodes, _dlog_znodes, 6_000),
]
