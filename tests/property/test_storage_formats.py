"""File formats on random content, cut anywhere, and on hostile bytes: nothing invented, nothing lost in silence."""

from __future__ import annotations

import struct
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.examples import scaled

from bookies.encoding import textproto
from bookies.errors import CorruptRecord
from bookies.kernels import Records
from bookies.storage.entry_log import entry_log_format
from bookies.storage.identity import cookie
from bookies.storage.index import index_format
from bookies.storage.journal import journal_format, log_mark_format
from bookies.storage.records import Batch, EndKind
from bookies.storage.records.record_scan import ScanEnd

IDS = st.integers(0, (1 << 63) - 1)
SMALL_IDS = st.integers(0, 9)
CHUNKS = st.sampled_from([16, 61, 512, 4096, 1 << 20])
HOSTILE = st.one_of(
    st.binary(max_size=300),
    # Words that look like something: zeros, lengths, masks, small ids, reserved ids.
    st.lists(
        st.sampled_from(
            [
                bytes(4),
                b"\0\0\0\x10",
                b"\0\0\0\x24",
                b"\0\0\1\0",
                b"\xff\xff\xff\0",
                b"\xff" * 4,
                b"\xf0" * 4,
                b"\xff\xff\xf0\0",
                b"\xff\xff\xe0\0",
                b"\xff\xff\x80\0",
                b"\x7f\xff\xff\xff",
            ]
        ),
        max_size=80,
    ).map(b"".join),
)


def pread(data: bytes) -> Callable[[int, int], bytes]:
    return lambda size, offset: data[offset : offset + size]


@st.composite
def journal_records(draw: st.DrawFn) -> tuple[tuple[int, int], bytes]:
    """(ids, record) of any kind that a version 6 journal may hold."""
    ledger_id = draw(IDS)
    kind = draw(st.integers(0, 9))
    if kind == 0:
        key = draw(st.binary(max_size=40))
        return (ledger_id, journal_format.LEDGER_KEY), journal_format.pack_ledger_key(ledger_id, key)
    if kind == 1:
        return (ledger_id, journal_format.FENCE), journal_format.pack_fence(ledger_id)
    if kind == 2:
        body = draw(st.binary(min_size=16, max_size=36))
        return (ledger_id, journal_format.EXPLICIT_LAC), journal_format.pack_explicit_lac(ledger_id, body)
    entry_id = draw(IDS)
    body = struct.pack(">qq", ledger_id, entry_id) + draw(st.binary(max_size=40)) + bytes(draw(st.integers(0, 900)))
    return (ledger_id, entry_id), Records.of([body]).data


@st.composite
def journals(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, int]], list[int]]:
    """(file, ids of its records, where each record ends)."""
    alignment = draw(st.sampled_from([512, 1024, 4096]))
    data = bytearray(journal_format.pack_header())
    ids: list[tuple[int, int]] = []
    ends: list[int] = []
    for group in draw(st.lists(st.lists(journal_records(), min_size=1, max_size=5), max_size=5)):
        for pair, record in group:
            data += record
            ids.append(pair)
            ends.append(len(data))
        data += journal_format.pack_padding(len(data), alignment)
    return bytes(data), ids, ends


def scan_journal(data: bytes, chunk_size: int, *, is_newest: bool) -> tuple[list[tuple[int, int]], ScanEnd]:
    version, start = journal_format.parse_header(data[:512], len(data))
    *batches, end = journal_format.scan(
        pread(data), len(data), start, version, is_newest=is_newest, chunk_size=chunk_size
    )
    assert isinstance(end, ScanEnd)
    return check_batches(batches, data), end


def check_batches(batches: list[Batch | ScanEnd], data: bytes) -> list[tuple[int, int]]:
    """The ids; and that every batch is what stands at its place in the file."""
    ids = []
    for batch in batches:
        assert isinstance(batch, Batch)
        assert len(batch.ids) == len(batch.records) > 0
        start = batch.records.starts[0]
        assert batch.records.tobytes() == data[batch.offset + start : batch.end]
        for index, pair in enumerate(batch.ids):
            assert struct.unpack_from(">qq", batch.records.body(index)) == pair
        ids += batch.ids
    return ids


@given(journals(), st.integers(0, 5000), CHUNKS)
def test_journals_are_read_as_written(
    journal: tuple[bytes, list[tuple[int, int]], list[int]], zeros: int, chunk_size: int
) -> None:
    data, ids, _ = journal
    for is_newest in (True, False):
        found, end = scan_journal(data + bytes(zeros), chunk_size, is_newest=is_newest)
        assert found == ids
        # Fewer zeros than a word has are what a torn length word would look like.
        assert end.kind is (
            EndKind.CLEAN if zeros >= 4 or not zeros else EndKind.TORN if is_newest else EndKind.CORRUPT
        )


@given(journals(), st.data(), CHUNKS)
def test_a_cut_journal_gives_a_prefix(
    journal: tuple[bytes, list[tuple[int, int]], list[int]], data: st.DataObject, chunk_size: int
) -> None:
    content, ids, ends = journal
    size = data.draw(st.integers(512, len(content)))
    found, end = scan_journal(content[:size], chunk_size, is_newest=True)
    assert found == ids[: sum(each <= size for each in ends)]
    assert end.kind is not EndKind.CORRUPT
    assert (end.kind is EndKind.CLEAN) == (end.offset == size)


@given(HOSTILE, HOSTILE, CHUNKS, st.booleans(), st.sampled_from(sorted(journal_format.HEADER_SIZES)))
@scaled(150)
def test_hostile_journals(head: bytes, tail: bytes, chunk_size: int, is_newest: bool, version: int) -> None:
    header = (journal_format.MAGIC + version.to_bytes(4, "big")).ljust(journal_format.HEADER_SIZES[version], b"\0")
    for data in (header + head + bytes(-len(head) % 512) + tail, head + tail):
        try:
            found, end = scan_journal(data, chunk_size, is_newest=is_newest)
        except CorruptRecord:
            continue
        assert end.offset <= len(data)
        assert all(ledger_id >= 0 for ledger_id, _ in found)
        assert is_newest or end.kind is not EndKind.TORN


@given(st.integers(0, 1 << 40), st.sampled_from([512, 1024, 4096, 1 << 20]))
def test_padding_aligns(position: int, alignment: int) -> None:
    size = journal_format.padding_size(position, alignment)
    assert (position + size) % alignment == 0
    assert size == 0 or 8 <= size < alignment + 8


@st.composite
def entry_logs(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, int]], list[int], dict[int, int]]:
    """(log without map, ids, where each record ends, bytes of each ledger)."""
    data = bytearray(entry_log_format.pack_header())
    pairs: list[tuple[int, int]] = []
    ends: list[int] = []
    sizes: dict[int, int] = {}
    for ledger_id, entry_id, size in draw(st.lists(st.tuples(SMALL_IDS, IDS, st.integers(0, 900)), max_size=20)):
        record = Records.of([struct.pack(">qq", ledger_id, entry_id) + bytes(size)]).data
        data += record
        pairs.append((ledger_id, entry_id))
        ends.append(len(data))
        sizes[ledger_id] = sizes.get(ledger_id, 0) + len(record)
    return bytes(data), pairs, ends, sizes


def scan_log(data: bytes, chunk_size: int) -> tuple[list[tuple[int, int]], ScanEnd]:
    *batches, end = entry_log_format.scan(pread(data), len(data), chunk_size=chunk_size)
    assert isinstance(end, ScanEnd)
    return check_batches(batches, data), end


@given(entry_logs(), CHUNKS)
def test_closed_logs_are_read_as_written(
    log: tuple[bytes, list[tuple[int, int]], list[int], dict[int, int]], chunk_size: int
) -> None:
    data, ids, _, sizes = log
    assert scan_log(data, chunk_size) == (ids, ScanEnd(EndKind.CLEAN, len(data), "end of file"))
    fields = entry_log_format.pack_map_fields(len(data), len(sizes))
    closed = data[:8] + fields + data[20:] + entry_log_format.pack_ledgers_map(sizes.items())
    assert entry_log_format.read_ledgers_map(pread(closed), len(closed)) == (sizes or None)
    assert scan_log(closed, chunk_size) == (ids, ScanEnd(EndKind.CLEAN, len(closed), "end of file"))


@given(entry_logs(), st.data(), CHUNKS)
def test_a_cut_log_is_clean_only_between_records(
    log: tuple[bytes, list[tuple[int, int]], list[int], dict[int, int]], data: st.DataObject, chunk_size: int
) -> None:
    content, ids, ends, _ = log
    size = data.draw(st.integers(1024, len(content)))
    found, end = scan_log(content[:size], chunk_size)
    assert found == ids[: sum(each <= size for each in ends)]
    assert end.kind is (EndKind.CLEAN if size in (1024, *ends) else EndKind.TORN)


@given(HOSTILE, st.integers(-1, 1 << 62), st.integers(0, (1 << 32) - 1), CHUNKS)
@scaled(150)
def test_hostile_logs(content: bytes, map_offset: int, count: int, chunk_size: int) -> None:
    for offset in (map_offset, 1024, 1024 + len(content) // 2):
        data = entry_log_format.pack_header(offset, count) + content
        found, end = scan_log(data, chunk_size)
        assert 1024 <= end.offset <= len(data)
        assert all(pair >= (0, 0) for pair in found)
        ledgers_map = entry_log_format.read_ledgers_map(pread(data), len(data))
        assert ledgers_map is None or len(ledgers_map) == count


@given(st.integers(0, entry_log_format.LOG_ID_MAX), st.integers(1028, (1 << 31) - 1))
def test_locations(log_id: int, offset: int) -> None:
    number = entry_log_format.location(log_id, offset)
    assert 0 < number < 1 << 63
    assert entry_log_format.split_location(number) == (log_id, offset)
    assert entry_log_format.parse_file_name(entry_log_format.file_name(log_id)) == log_id
    assert entry_log_format.parse_last_id(entry_log_format.pack_last_id(log_id)) == log_id


@given(
    st.binary(max_size=900), st.integers(0, (1 << 32) - 1), st.one_of(st.just(b""), st.binary(min_size=16, max_size=90))
)
def test_index_headers(key: bytes, state: int, lac: bytes) -> None:
    header = index_format.IndexHeader(key, state, lac)
    packed = index_format.pack_header(header)
    assert index_format.parse_header(packed) == header
    used = 20 + len(key) + len(lac)
    assert index_format.parse_header(packed[:used]) == header


@given(HOSTILE, st.sampled_from([b"", b"BKLE", b"BKLE\0\0\0\0", b"BKLE\0\0\0\1"]))
def test_hostile_index_headers(content: bytes, start: bytes) -> None:
    try:
        header = index_format.parse_header(start + content)
    except CorruptRecord:
        return
    assert index_format.pack_header(header)[: len(start)] == start


@given(IDS)
def test_names_of_ledgers_journals_and_marks(number: int) -> None:
    assert index_format.parse_path(index_format.path_of(number)) == number
    assert journal_format.parse_file_name(journal_format.file_name(number)) == number
    mark = log_mark_format.LogMark(number, number // 3)
    assert log_mark_format.parse(log_mark_format.pack(mark)) == mark


PATHS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\t"), min_size=1)


@given(PATHS, st.lists(PATHS, min_size=1), st.lists(PATHS, min_size=1), st.one_of(st.none(), st.lists(PATHS)), PATHS)
def test_cookies(
    bookie: str, journal_paths: list[str], ledgers: list[str], indexes: list[str] | None, instance: str
) -> None:
    made = cookie.Cookie(
        bookie, ",".join(journal_paths), tuple(ledgers), instance, None if indexes is None else tuple(indexes)
    )
    assert made.pack().isascii()
    assert cookie.parse(made.pack()) == made


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: b"5\n" + text.encode("utf-8"))))
def test_hostile_cookies(data: bytes) -> None:
    try:
        cookie.parse(data)
    except CorruptRecord:
        pass


NAMES = st.from_regex(r"[a-z][a-zA-Z0-9_]{0,8}", fullmatch=True)
SCALARS = st.one_of(
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.binary(max_size=30),
    st.from_regex(r"[A-Z][A-Z_]{0,8}", fullmatch=True).map(textproto.Symbol),
)
MESSAGES = st.recursive(
    st.lists(st.tuples(NAMES, SCALARS), max_size=5),
    lambda inner: st.lists(st.tuples(NAMES, st.one_of(SCALARS, inner)), max_size=5),
    max_leaves=20,
)


@given(MESSAGES)
def test_protobuf_text(message: textproto.Message) -> None:
    text = textproto.pack(message)
    assert text.isascii()
    assert textproto.parse(text) == message
    assert textproto.parse(text.replace(b"\n", b"\r\n\t ")) == message


@given(
    st.one_of(
        st.binary(max_size=100),
        st.lists(
            st.sampled_from(
                [b"a", b":", b"{", b"}", b"<", b">", b"[", b"]", b" ", b"1", b"-", b".5e", b'"', b"'", b"\\x"]
            ),
            max_size=30,
        ).map(b"".join),
    )
)
@scaled(150)
def test_hostile_protobuf_text(text: bytes) -> None:
    try:
        message = textproto.parse(text)
    except ValueError:
        return
    assert isinstance(message, list)
