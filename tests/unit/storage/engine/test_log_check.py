"""Records against their digests: what is proven, what stays open, and what a place in doubt turns out to be."""

from __future__ import annotations

import itertools
import pathlib
import re
import struct
import tarfile

import pytest

from bookies.kernels import digest
from bookies.lab.sim.world.disk import SimDisk
from bookies.model import DigestType
from bookies.storage.engine import log_check
from bookies.storage.engine.log_check import Part, Place, Proof, check, check_places, end_of, read_part
from bookies.storage.entry_log import entry_log_format as layout
from bookies.storage.records.record_scan import RECORD_SIZE_MAX

GOLDEN = pathlib.Path(__file__).parents[3] / "golden" / "storage"
LOG_NAME = re.compile(r"ledgers/current/[0-9a-f]+\.log")
KINDS: dict[int, DigestType | None] = {
    1: DigestType.CRC32C,
    2: DigestType.CRC32,
    3: DigestType.HMAC,
    4: DigestType.DUMMY,
    5: None,
}


def record(ledger_id: int, entry_id: int, kind: DigestType, size: int = 50) -> bytes:
    header = struct.pack(">qqqq", ledger_id, entry_id, -1, 0)
    payload = bytes([entry_id + 1]) * size
    body = header + digest(kind, b"key", header, payload) + payload
    return struct.pack(">I", len(body)) + body


RECORDS = [
    *(record(1, entry, DigestType.CRC32C) for entry in range(60)),
    *(record(2, entry, DigestType.CRC32) for entry in range(60)),
    *(record(3, entry, DigestType.HMAC) for entry in range(3)),
    *(record(4, entry, DigestType.DUMMY) for entry in range(3)),
    *(record(5, entry, DigestType.CRC32) for entry in range(3)),
]
STARTS = [1024, *itertools.accumulate(map(len, RECORDS), initial=1024)][1:]
END = STARTS[-1]
SIZES = {1: 60 * 90, 2: 60 * 94, 3: 3 * 106, 4: 3 * 86, 5: 3 * 94}
LOG = layout.pack_header(END, 5) + b"".join(RECORDS) + layout.pack_ledgers_map(SIZES.items())


def parts_of(data: bytes, stop: int | None = None) -> list[Part]:
    disk = SimDisk()
    disk.put("log", data)
    file = disk.open("log", "r")
    parts, position = [], layout.HEADER_SIZE
    while position < (stop or len(data)):
        parts.append(read_part(file, position, stop or len(data), RECORD_SIZE_MAX))
        position = parts[-1].after
        if parts[-1].problem:
            break
    return parts


def flipped(at: int) -> bytes:
    return LOG[:at] + bytes([LOG[at] ^ 1]) + LOG[at + 1 :]


def proofs(data: bytes) -> list[tuple[int, int, int, Proof]]:
    """(ledger and entry of the first, number of records, what their digests say)"""
    return [
        (piece.ledger_id, piece.first, piece.stop - piece.start, proof)
        for part in parts_of(data)
        for piece, proof in check(part, KINDS)[0]
    ]


def proven_count(found: list[tuple[int, int, int, Proof]]) -> int:
    return sum(count for _, _, count, proof in found if proof is Proof.PROVEN)


@pytest.mark.parametrize("chunk_size", [1 << 20, 300, 100])
def test_runs_are_proven_or_open_whatever_is_read_at_once(chunk_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_check, "CHUNK_SIZE", chunk_size)
    parts = parts_of(LOG)
    assert not any(part.problem for part in parts)
    found = proofs(LOG)
    assert proven_count(found) == 123  # three of them by a guess
    open_count: dict[int, int] = {}
    for ledger_id, _, count, proof in found:
        assert proof is not Proof.FAILED
        if proof is Proof.OPEN:
            open_count[ledger_id] = open_count.get(ledger_id, 0) + count
    assert open_count == {3: 3, 4: 3}
    sizes: dict[int, int] = {}
    for part in parts:
        for ledger_id, size in check(part, KINDS)[1].items():
            sizes[ledger_id] = sizes.get(ledger_id, 0) + size
    assert sizes == SIZES
    if chunk_size > END:
        assert found == [
            (1, 0, 120, Proof.PROVEN),
            (3, 0, 3, Proof.OPEN),
            (4, 0, 3, Proof.OPEN),
            (5, 0, 3, Proof.PROVEN),
        ]


@pytest.mark.parametrize("ledger_id", [1, 2])
@pytest.mark.parametrize("entry_id", [0, 30, 59])
def test_a_flipped_payload_fails_alone(ledger_id: int, entry_id: int) -> None:
    found = proofs(flipped(STARTS[60 * (ledger_id - 1) + entry_id] + 70))
    assert (ledger_id, entry_id, 1, Proof.FAILED) in found
    assert proven_count(found) == 122


def test_the_slots_of_a_piece_are_those_of_the_index() -> None:
    part = parts_of(LOG)[0]
    slots = part.slots_of(31, part.pieces[1])
    assert slots[:8] == layout.location(31, STARTS[60] + 4).to_bytes(8, "big")
    assert len(slots) == 480


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (LOG[: END - 5], "cut off"),
        (LOG[:END] + bytes(3000), ""),
        (LOG[:END] + bytes(3000) + b"x", "zeros, yet"),
        (LOG[:END] + bytes(8) + RECORDS[0], "zeros, yet"),
        (LOG[:END] + b"\x7f" * 50, "no record has 2,139,062,143 bytes"),
        (LOG[:END] + b"\xf1" * 50, "no record can begin with 0xf1f1f1f1"),
        (LOG[:END] + struct.pack(">Iqq", 16, -7, 3), "entry 3 of ledger -7"),
        (LOG[:END] + b"\0\0", "cut off"),
    ],
)
def test_what_is_no_record_is_a_problem(data: bytes, problem: str) -> None:
    parts = parts_of(data)
    assert (parts[-1].problem == "") is (problem == "")
    assert problem in parts[-1].problem
    assert sum(len(part.pieces) for part in parts) >= 5


def test_the_direct_layout_is_read_over_its_padding() -> None:
    with tarfile.open(GOLDEN / "db-directio-clean" / "data.tar.gz") as found:
        logs = {each.name: found.extractfile(each).read() for each in found if LOG_NAME.fullmatch(each.name)}  # type: ignore[union-attr]
    assert logs
    for data in logs.values():
        sizes: dict[int, int] = {}
        for part in parts_of(data):
            assert not part.problem
            checked, some = check(part, {})
            assert any(proof is Proof.PROVEN for _, proof in checked) or not checked
            for ledger_id, size in some.items():
                sizes[ledger_id] = sizes.get(ledger_id, 0) + size
        ledgers_map = layout.read_ledgers_map(lambda size, offset, data=data: data[offset : offset + size], len(data))
        assert ledgers_map is None or sizes == ledgers_map


PLACES = [Place(start, *struct.unpack_from(">qq", each, 4)) for start, each in zip(STARTS, RECORDS, strict=False)]


def wrong(
    data: bytes, places: list[Place] = PLACES, stop: int | None = None, records_stop: int | None = None
) -> list[tuple[int, str]]:
    disk = SimDisk()
    disk.put("log", data)
    file = disk.open("log", "r")
    stop = len(data) if stop is None else stop
    found, size = check_places(
        file, [*places, end_of(END)], stop, KINDS, (1, 2, 3, 4, 5), RECORD_SIZE_MAX, records_stop
    )
    assert size > 0
    return [(places.index(place), problem) for place, problem in found]


@pytest.mark.parametrize(
    ("number", "at", "problem"),
    [
        (0, 80, "its CRC32C does not match"),
        (70, 80, "its CRC32 does not match"),
        (121, 80, ""),  # a payload behind a digest that needs a key
        (124, 30, ""),
        (121, 10, "another record is there"),
        (124, 18, "another record is there"),
        (121, 3, "overlap the next record"),
        (124, 2, "overlap the next record"),
        (3, 0, "no record has"),
    ],
)
def test_a_place_is_judged_by_itself(number: int, at: int, problem: str) -> None:
    found = wrong(flipped(STARTS[number] + at))
    assert [each for each, _ in found] == ([number] if problem else [])
    assert all(problem in text for _, text in found)


def test_a_length_that_nobody_can_check_is_wrong_if_no_record_begins_behind_it() -> None:
    assert wrong(LOG, PLACES[::2]) == []  # the others are of no use to anybody, yet there
    short = LOG[: STARTS[121]] + struct.pack(">I", 90) + LOG[STARTS[121] + 4 :]
    assert wrong(short, PLACES) == [(121, "no record begins where it ends")]


@pytest.mark.parametrize("kind", [DigestType.HMAC, DigestType.DUMMY])
def test_an_entry_before_a_torn_end_is_intact(kind: DigestType) -> None:
    """A crash tore what follows the last synced record, or the collection has replaced it by the map meanwhile."""
    number = max(index for index, place in enumerate(PLACES) if KINDS[place.ledger_id] is kind)
    places, end = PLACES[: number + 1], STARTS[number + 1]
    torn = LOG[: end + 40]
    assert wrong(torn, places, records_stop=end) == []
    assert wrong(torn, places) == [(number, "no record begins where it ends")]
    completed = LOG[:end] + layout.pack_ledgers_map([(ledger_id, 100) for ledger_id in KINDS])
    assert len(completed) > len(torn)
    assert wrong(completed, places, stop=len(torn)) == []


def test_what_is_not_there_or_cannot_be_read_is_wrong() -> None:
    assert [each for each, text in wrong(LOG[: STARTS[126]]) if "ends before" in text] == [126, 127, 128]
    assert wrong(LOG) == []
