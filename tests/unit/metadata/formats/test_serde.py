"""Ledger metadata and bookie registrations: Apache's own znodes, the worked examples, and what must be refused."""

from __future__ import annotations

import base64
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.examples import scaled

from bookies.errors import MetadataCorrupt
from bookies.metadata.formats import pack_ledger, parse_ledger
from bookies.metadata.formats.serde import as_stored, is_bookie_id, pack_bookie_info, parse_bookie_info
from bookies.model import BookieId, BookieInfo, DigestType, Endpoint, LedgerMetadata, LedgerState

GOLDEN = pathlib.Path(__file__).parents[3] / "golden" / "metadata"
STAGES = sorted(path.stem for path in GOLDEN.glob("*.json") if not path.stem.endswith("-decoded"))
HEADER = b"BookieMetadataFormatVersion\t"
DIGESTS = {"CRC32": DigestType.CRC32, "MAC": DigestType.HMAC, "CRC32C": DigestType.CRC32C, "DUMMY": DigestType.DUMMY}


def load(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def nodes(stage: str) -> Iterator[tuple[str, bytes, int]]:
    """(path, data, ctime) of each znode."""
    for node in load(stage)["nodes"]:
        yield node["path"], base64.b64decode(node["data"]), node["ctime"]


def ledger_id_of(root: str, path: str) -> int:
    return int(re.sub("[^0-9]", "", path.removeprefix(root)))


# -- golden znodes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
def test_every_ledger_of_apache_is_written_back_as_it_was(stage: str) -> None:
    for path, data, ctime_ms in nodes(stage):
        if data.startswith(HEADER):
            metadata = parse_ledger(7, data, ctime_ms)
            assert pack_ledger(metadata) == data, path


def check_decoded(metadata: LedgerMetadata, expected: dict[str, Any]) -> None:
    assert metadata.state.name == expected["state"]
    assert metadata.last_entry_id == expected["lastEntryId"]
    assert metadata.length == expected["metadataLength"]
    assert metadata.format_version == expected["format"]
    assert metadata.ensemble_size == expected["ensembleSize"]
    assert metadata.write_quorum == expected["writeQuorum"]
    assert metadata.ack_quorum == expected["ackQuorum"]
    assert {str(first): list(ensemble) for first, ensemble in metadata.ensembles} == expected["ensembles"]
    assert {key: value.hex() for key, value in metadata.custom_metadata.items()} == expected["customMetadata"]
    assert (-1 if metadata.ctime_ms is None else metadata.ctime_ms) == expected["ctime"]
    if metadata.format_version == 1:
        assert metadata.digest_type is None
        assert metadata.password is None
    else:
        assert metadata.digest_type is DIGESTS[expected["digest"]]
        assert metadata.password is not None
        assert metadata.password.hex() == expected["password"]


def test_ledgers_say_what_apache_says_of_them() -> None:
    stage, decoded = load("5-in-recovery"), load("5-in-recovery-decoded")["ledgers"]
    found = {
        ledger_id_of(stage["root"], path): (data, ctime_ms)
        for path, data, ctime_ms in nodes("5-in-recovery")
        if data.startswith(HEADER)
    }
    assert len(decoded) == 34
    for name, expected in decoded.items():
        ledger_id = stage["ledgers"][name]
        data, ctime_ms = found[ledger_id]
        check_decoded(parse_ledger(ledger_id, data, ctime_ms), expected)


def test_repaired_ledgers_say_what_apache_says_of_them() -> None:
    decoded = load("8-autorecovery-decoded")
    root = load("8-autorecovery-repaired")["root"]
    seen = 0
    for path, data, ctime_ms in nodes("8-autorecovery-repaired"):
        if data.startswith(HEADER):
            ledger_id = ledger_id_of(root, path)
            check_decoded(parse_ledger(ledger_id, data, ctime_ms), decoded[str(ledger_id)])
            seen += 1
    assert seen == len(decoded)


@pytest.mark.parametrize("stage", STAGES)
def test_every_registration_of_apache_is_written_back_as_it_was(stage: str) -> None:
    addresses = load(stage).get("addresses", {})
    for path, data, _ in nodes(stage):
        parent, _, name = path.rpartition("/")
        if data and parent.rpartition("/")[2] in ("available", "readonly"):
            info = parse_bookie_info(BookieId(name), data)
            assert pack_bookie_info(info) == data, path
            assert info.rpc_address() is not None
            if name in addresses:
                assert "{}:{}".format(*info.rpc_address() or ()) == addresses[name]["rpc"]


# -- worked examples ------------------------------------------------------------------------------------------------

CREATED = LedgerMetadata(
    ledger_id=1,
    ensemble_size=3,
    write_quorum=2,
    ack_quorum=2,
    ensembles=((0, (BookieId("bk-a:3181"), BookieId("bk-b:3181"), BookieId("bk-c:3181"))),),
    digest_type=DigestType.CRC32,
    password=b"pw",
    custom_metadata={"app": b"\x01x"},
    creator_token=300,
)
CREATED_BYTES = bytes.fromhex(
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09330a4e08"
    "021003180020ffffffffffffffffff01280132230a09626b2d613a333138310a"
    "09626b2d623a333138310a09626b2d633a3331383110003801420270774802"
    "5a090a036170701202017860ac02"
)
CLOSED = CREATED.replace(
    ensembles=(
        *CREATED.ensembles,
        (20, (BookieId("bk-a:3181"), BookieId("bk-d:3181"), BookieId("bk-c:3181"))),
    ),
    state=LedgerState.CLOSED,
    last_entry_id=41,
    length=1500,
    creator_token=0,
)
CLOSED_BYTES = bytes.fromhex(
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09330a6a08"
    "02100318dc0b2029280332230a09626b2d613a333138310a09626b2d623a3331"
    "38310a09626b2d633a33313831100032230a09626b2d613a333138310a09626b"
    "2d643a333138310a09626b2d633a3331383110143801420270774802"
    "5a090a03617070120201786000"
)
TEXT = b"""BookieMetadataFormatVersion\t2
quorumSize: 2
ensembleSize: 3
length: 0
lastEntryId: -1
state: IN_RECOVERY
segment {
  ensembleMember: "bk-a:3181"
  ensembleMember: "bk-b:3181"
  ensembleMember: "bk-c:3181"
  firstEntryId: 0
}
digestType: CRC32
password: "pw"
ackQuorumSize: 2
ctime: 1700000000000
customMetadata {
  key: "app"
  value: "\\001x"
}
"""
LINES = b"BookieMetadataFormatVersion\t1\n2\n3\n0\n0\tbk-a:3181\tbk-b:3181\tbk-c:3181\n-102\tCLOSED"
FORMAT_2 = CREATED.replace(
    state=LedgerState.IN_RECOVERY, format_version=2, creator_token=0, ctime_ms=1_700_000_000_000, stores_ctime=True
)
FORMAT_1 = CREATED.replace(
    state=LedgerState.IN_RECOVERY,
    format_version=1,
    creator_token=0,
    digest_type=None,
    password=None,
    custom_metadata={},
)


@pytest.mark.parametrize(
    ("metadata", "data"),
    [(CREATED, CREATED_BYTES), (CLOSED, CLOSED_BYTES), (FORMAT_2, TEXT), (FORMAT_1, LINES)],
    ids=["created", "closed", "text", "lines"],
)
def test_worked_examples(metadata: LedgerMetadata, data: bytes) -> None:
    assert pack_ledger(metadata) == data
    assert parse_ledger(1, data) == metadata


def test_bytes_after_the_message_are_ignored() -> None:
    assert parse_ledger(1, CREATED_BYTES + b"\x00rest") == CREATED


def test_creation_time_comes_from_the_record_or_else_from_the_store() -> None:
    assert parse_ledger(1, CREATED_BYTES, 5).ctime_ms == 5
    assert not parse_ledger(1, CREATED_BYTES, 5).stores_ctime
    assert parse_ledger(1, TEXT, 5).ctime_ms == 1_700_000_000_000


def test_text_is_read_in_any_spelling() -> None:
    text = TEXT.replace(b"\n", b"\r\n  ").replace(b'"', b"'").replace(b"segment {", b"segment: <")
    text = text.replace(b"firstEntryId: 0\r\n  }", b"firstEntryId: 0 >").replace(b"\t2\r\n", b"\t2\n")
    assert parse_ledger(1, text) == FORMAT_2


def test_without_ack_quorum_it_is_the_write_quorum() -> None:
    assert parse_ledger(1, TEXT.replace(b"ackQuorumSize: 2\n", b"")).ack_quorum == 2


def test_a_password_without_digest_type_means_crc32_and_the_reverse_means_neither() -> None:
    assert parse_ledger(1, TEXT.replace(b"digestType: CRC32\n", b"")).digest_type is DigestType.CRC32
    neither = parse_ledger(1, TEXT.replace(b'password: "pw"\n', b""))
    assert (neither.digest_type, neither.password) == (None, None)
    assert b"digestType" not in pack_ledger(neither)


def test_end_and_length_are_ignored_unless_closed() -> None:
    metadata = parse_ledger(1, TEXT.replace(b"length: 0\nlastEntryId: -1", b"length: 77\nlastEntryId: 4"))
    assert (metadata.last_entry_id, metadata.length) == (-1, 0)
    assert pack_ledger(FORMAT_2.replace(last_entry_id=4, length=77)) == TEXT


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "starts with"),
        (b"BookieMetadataFormatVersion 3\n", "starts with"),
        (HEADER, "no format version"),
        (HEADER + b"3", "no format version"),
        (HEADER + b"00000000003\n", "no format version"),
        (HEADER + b"x\n", "no format version"),
        (HEADER + b"0\n", "not compatible, expected between 1 and 3"),
        (HEADER + b"4\n", "not compatible, expected between 1 and 3"),
        (CREATED_BYTES[:-1], "announced"),
        (HEADER + b"3\n", "ends too early"),
        (HEADER + b"3\n\x00", "no quorumSize"),
        (HEADER + b"3\n" + b"\xff" * 11, "longer than ten bytes"),
        (CREATED_BYTES.replace(b"\x28\x01\x32", b"\x28\x09\x32"), "9 is not a valid LedgerState"),
        (CREATED_BYTES.replace(b"\x10\x00\x38\x01", b"\x10\x01\x38\x01"), "starts at entry 1"),
        (CREATED_BYTES.replace(b"\x10\x03\x18", b"\x10\x02\x18"), "3 bookies in the fragment at entry 0, not 2"),
        (CREATED_BYTES.replace(b"\x48\x02", b"\x48\x03"), "are 3, 2, 3"),
        (CREATED_BYTES.replace(b"\x08\x02\x10", b"\x08\x04\x10"), "are 3, 4, 2"),
        (CREATED_BYTES.replace(b"bk-b:3181", b"bk/b:3181"), "not a bookie id"),
        (CREATED_BYTES.replace(b"bk-b:3181", b"bk-b:318\xff"), "utf-8"),
        (CREATED_BYTES.replace(b"\x42\x02pw", b"\x40\x02pw"), "password has wire type 0"),
        (CLOSED_BYTES.replace(b"\x10\x14\x38", b"\x10\x00\x38"), "starts at entry 0 after 0"),
        (TEXT.replace(b"quorumSize: 2\ne", b"e"), "no quorumSize"),
        (TEXT.replace(b"length: 0\n", b""), "no length"),
        (TEXT.replace(b"state: IN_RECOVERY", b"state: BROKEN"), "state is BROKEN"),
        (TEXT.replace(b"IN_RECOVERY", b"CLOSED").replace(b"lastEntryId: -1\n", b""), "closed, but no lastEntryId"),
        (TEXT.replace(b"IN_RECOVERY", b"CLOSED").replace(b"lastEntryId: -1", b"lastEntryId: -2"), "closed at entry -2"),
        (TEXT + b"owner: 1\n", "unknown field owner"),
        (TEXT.replace(b"  firstEntryId: 0\n", b""), "no firstEntryId"),
        (TEXT.replace(b"length: 0", b"length: 99999999999999999999"), "64 bits"),
        (TEXT.replace(b"length: 0", b'length: "0"'), "length cannot be"),
        (TEXT[:-3], "ends too early"),
        (HEADER + b"2\n", "no quorumSize"),
        (HEADER + b"1\n2\n3", "ends before its third line"),
        (HEADER + b"1\n2\n3\n0\n", "no fragment"),
        (LINES + b"\n20\tbk-a\tbk-b\tbk-c", "after the terminal line"),
        (LINES.replace(b"0\tbk-a", b"x\tbk-a"), "not a number"),
        (LINES.replace(b"\tbk-a:3181", b""), "2 bookies"),
        (LINES.replace(b"-102", b"-103"), "closed at entry -103"),
    ],
)
def test_damaged_records_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(MetadataCorrupt) as raised:
        parse_ledger(12, data)
    assert words in str(raised.value)
    assert "ledger 12" in str(raised.value)


A, B, C = BookieId("a"), BookieId("b"), BookieId("c")


@pytest.mark.parametrize(
    "changes",
    [
        {"ledger_id": -1},
        {"ledger_id": 1 << 63},
        {"ensembles": ()},
        {"ensembles": ((0, (A, B)),)},
        {"ensembles": ((1, (A, B, C)),)},
        {"ensembles": ((0, (A, B, C)), (0, (A, B, C)))},
        {"ensembles": ((0, (A, B, C)), (5, (A, B, C)), (4, (A, B, C)))},
        {"ensembles": ((0, (A, B, BookieId("c d"))),)},
        {"ensembles": ((0, (A, B, BookieId("ReadOnly"))),)},
        {"ensembles": ((0, (A, B, BookieId(""))),)},
        {"write_quorum": 4},
        {"ack_quorum": 3},
        {"ack_quorum": 0},
        {"digest_type": None},
        {"password": None},
        {"state": LedgerState.CLOSED, "last_entry_id": -2},
        {"state": LedgerState.CLOSED, "length": -1},
        {"stores_ctime": True},
        {"creator_token": 1 << 63},
        {"format_version": 4},
        {"format_version": 1},  # would lose the custom metadata
        {"format_version": 1, "custom_metadata": {}, "ack_quorum": 1},  # would lose the ack quorum
    ],
)
def test_ill_formed_records_are_never_written(changes: dict[str, Any]) -> None:
    with pytest.raises(MetadataCorrupt):
        pack_ledger(CREATED.replace(**changes))


@pytest.mark.parametrize("text", ["a", "bk-1.example.org:3181", "A_[]\\^;<=>?@", "9"])
def test_bookie_ids(text: str) -> None:
    assert is_bookie_id(text)


@pytest.mark.parametrize("text", ["", "readonly", "READonly", "a/b", "a b", "a%", "a,b", "a\tb", "ä", "a\n"])
def test_no_bookie_ids(text: str) -> None:
    assert not is_bookie_id(text)


# -- any record -----------------------------------------------------------------------------------------------------

bookie_ids = st.from_regex(r"[A-Za-z0-9.:_-]{1,12}", fullmatch=True).filter(is_bookie_id).map(BookieId)


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    version = draw(st.sampled_from([1, 2, 3]))
    ensemble_size = draw(st.integers(1, 5))
    write_quorum = draw(st.integers(1, ensemble_size))
    firsts = sorted(draw(st.sets(st.integers(1, 1 << 40), max_size=3)))
    ensemble = st.tuples(*[bookie_ids] * ensemble_size)
    state = draw(st.sampled_from(LedgerState))
    is_closed = state is LedgerState.CLOSED
    stores_ctime = version > 1 and draw(st.booleans())
    return LedgerMetadata(
        ledger_id=draw(st.integers(0, (1 << 63) - 1)),
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=write_quorum if version == 1 else draw(st.integers(1, write_quorum)),
        ensembles=tuple((first, draw(ensemble)) for first in [0, *firsts]),
        state=state,
        last_entry_id=draw(st.integers(-1, (1 << 63) - 1)) if is_closed else -1,
        length=draw(st.integers(0, (1 << 63) - 1)) if is_closed else 0,
        digest_type=None if version == 1 else draw(st.sampled_from(DigestType)),
        password=None if version == 1 else draw(st.binary(max_size=20)),
        custom_metadata={} if version == 1 else draw(st.dictionaries(st.text(max_size=8), st.binary(max_size=8))),
        format_version=version,
        ctime_ms=draw(st.integers(0, 1 << 50)) if stores_ctime else None,
        stores_ctime=stores_ctime,
        creator_token=draw(st.integers(0, (1 << 63) - 2)) if version == 3 else 0,
    )


@scaled(150)
@given(ledgers())
def test_every_record_comes_back(metadata: LedgerMetadata) -> None:
    assert parse_ledger(metadata.ledger_id, pack_ledger(metadata)) == metadata


@scaled(150)
@given(ledgers(), st.integers(-1, 1 << 50), st.integers(0, 1 << 50), st.integers(0, 1 << 50))
def test_a_record_that_was_just_written_need_not_be_read(
    metadata: LedgerMetadata, last: int, length: int, ctime_ms: int
) -> None:
    """Whatever of it means nothing and is not written."""
    custom = dict(metadata.custom_metadata)
    record = metadata.replace(last_entry_id=last, length=length, custom_metadata=custom)
    data = pack_ledger(record)
    found = as_stored(record, data, ctime_ms)
    custom["later"] = b"not written"
    assert found == parse_ledger(metadata.ledger_id, data, ctime_ms)


@scaled(300)
@given(st.data())
def test_garbage_is_refused_or_makes_a_record_that_can_be_written(data: st.DataObject) -> None:
    whole = bytearray(data.draw(st.sampled_from([CREATED_BYTES, CLOSED_BYTES, TEXT, LINES])))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(27, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(28, len(whole)))])
    try:
        metadata = parse_ledger(1, cut)
    except MetadataCorrupt:
        return
    assert parse_ledger(1, pack_ledger(metadata)) == metadata


# -- what bookies publish -------------------------------------------------------------------------------------------

INFO = BookieInfo(
    (Endpoint("bookie", "bk-a", 3181, "bookie-rpc"), Endpoint("httpserver", "0.0.0.0", 8080, "http")),
)
INFO_BYTES = bytes.fromhex(
    "321d0a06626f6f6b696510ed181a04626b2d61220a626f6f6b69652d727063"
    "321e0a0a6874747073657276657210903f1a07302e302e302e30220468747470"
)


def test_the_worked_example_of_a_registration() -> None:
    assert len(INFO_BYTES) == 63
    assert pack_bookie_info(INFO) == INFO_BYTES
    assert parse_bookie_info(BookieId("x"), INFO_BYTES) == INFO


def test_registration_with_everything() -> None:
    endpoint = Endpoint("bookie", "hé", 1, "bookie-rpc", ("sasl", "x"), ("tls",))
    info = BookieInfo((endpoint,), {"rack": "/a", "empty": ""})
    assert parse_bookie_info(BookieId("x"), pack_bookie_info(info)) == info


def test_zero_bytes_mean_the_address_in_the_id() -> None:
    assert parse_bookie_info(BookieId("bk-a:3181"), b"").rpc_address() == ("bk-a", 3181)
    assert parse_bookie_info(BookieId("bk-a"), b"").rpc_address() is None
    assert parse_bookie_info(BookieId(":1"), b"").rpc_address() is None


@pytest.mark.parametrize("data", [b"\x32", b"\x32\x05ab", b"\x32\x00", INFO_BYTES[:-1], b"\x30\x01", b"\x3b\x3c"])
def test_damaged_registrations_are_refused(data: bytes) -> None:
    with pytest.raises(MetadataCorrupt, match="bookie bk"):
        parse_bookie_info(BookieId("bk"), data)


def test_fields_of_later_versions_are_skipped() -> None:
    later = b"\x08\x01\x11" + bytes(8) + b"\x1d" + bytes(4) + b"\x22\x02ab"
    assert parse_bookie_info(BookieId("x"), later + INFO_BYTES) == INFO
