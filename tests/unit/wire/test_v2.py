"""v2: versions, flags, refusals, what closes a connection, and the numbers. Source: wire-protocol 2."""

from __future__ import annotations

import pytest
from tests.fakes.adds import add_request

from bookies.errors import LocalProtocolError, RemoteProtocolError, Status
from bookies.kernels import Records
from bookies.wire import v2
from bookies.wire.messages import (
    AuthRequest,
    BareResponse,
    BatchReadRequest,
    BatchReadResponse,
    InvalidRequest,
    Operation,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
)

KEY = bytes(range(20))
IDS = bytes(7) + b"\x05" + bytes(7) + b"\x09"  # ledger 5, entry 9


def parse_request(payload: bytes) -> Request:
    frame = len(payload).to_bytes(4, "big") + payload
    return v2.parse_request(b"??" + frame + b"behind", 2, 2 + len(frame))


def parse_response(payload: bytes) -> Response:
    frame = len(payload).to_bytes(4, "big") + payload
    return v2.parse_response(b"??" + frame + b"behind", 2, 2 + len(frame))


def packed(message: Request | Response) -> bytes:
    pack = v2.pack_request if message.__class__.__name__.endswith("Request") else v2.pack_response
    return b"".join(pack(message))  # type: ignore[operator]


def test_the_status_tables_are_complete_in_both_directions() -> None:
    assert set(v2.STATUS_OF_CODE.values()) == set(v2.CODE_OF_STATUS) == set(Status)
    for status, code in v2.CODE_OF_STATUS.items():
        if status is not Status.UNKNOWN_LEDGER_STATE:
            assert v2.STATUS_OF_CODE[code] is status


def test_the_unknown_state_goes_out_as_an_io_error_and_is_understood() -> None:
    frame = packed(ReadResponse(2, 0, Status.UNKNOWN_LEDGER_STATE, 5, 9))
    assert frame[8:12] == (101).to_bytes(4, "big")
    response = parse_response(b"\x02\x02\x00\x00" + (107).to_bytes(4, "big") + IDS)
    assert response == ReadResponse(2, 0, Status.UNKNOWN_LEDGER_STATE, 5, 9)


@pytest.mark.parametrize("code", [-1, 3, 99, 108, 402])
def test_other_codes_are_malformed(code: int) -> None:
    with pytest.raises(RemoteProtocolError, match="error code"):
        parse_response(b"\x02\x02\x00\x00" + code.to_bytes(4, "big", signed=True) + IDS)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("02020005", (2, 2, 5)),
        ("01010002", (1, 1, 2)),
        ("00000002", (0, 2, 0)),
        ("0001ff07", (0, 7, 0)),  # version 0: the opcode is the lowest byte, there are no flags
        ("03020001", (v2.UNSUPPORTED + 3, 2, 1)),
        ("80070000", (v2.UNSUPPORTED + 128, 7, 0)),
    ],
)
def test_headers(header: str, expected: tuple[int, int, int]) -> None:
    assert v2.parse_header(bytes(4) + bytes.fromhex(header), 0, 8) == expected
    if header != "0001ff07":
        assert v2.pack_header(*expected).hex() == header


@pytest.mark.parametrize("opcode", [0, 4, 5, 6, 8, 255])
def test_unknown_opcodes_close(opcode: int) -> None:
    with pytest.raises(RemoteProtocolError, match="opcode"):
        parse_request(bytes((2, opcode, 0, 0)) + IDS)
    with pytest.raises(RemoteProtocolError, match="opcode"):
        parse_response(bytes((2, opcode, 0, 0)) + bytes(4) + IDS)


@pytest.mark.parametrize(
    "whole",
    [
        b"\x02\x02\x00\x00" + IDS,
        b"\x02\x02\x00\x01" + IDS + KEY,
        b"\x02\x07\x00\x00" + IDS + bytes(20),
        b"\x02\x07\x00\x01" + IDS + bytes(20) + KEY,
        b"\x02\x01\x00\x00" + KEY + IDS,
        b"\x02\x03\x00\x00" + b"\x0a\x01p\x12\x01t",
    ],
)
def test_short_frames_close(whole: bytes) -> None:
    parse_request(whole)
    for size in range(len(whole)):
        with pytest.raises(RemoteProtocolError):
            parse_request(whole[:size])


@pytest.mark.parametrize(
    "whole", [b"\x02\x02\x00\x00" + bytes(4) + IDS, b"\x02\x07\x00\x00" + bytes(4) + IDS + bytes(8)]
)
def test_short_responses_are_malformed(whole: bytes) -> None:
    parse_response(whole)
    for size in range(len(whole)):
        with pytest.raises(RemoteProtocolError):
            parse_response(whole[:size])


@pytest.mark.parametrize("size", range(16, 24))
def test_adds_with_a_short_body_are_refused(size: int) -> None:
    request = parse_request(b"\x02\x01\x00\x00" + KEY + (IDS + bytes(8))[:size])
    assert request == InvalidRequest(2, 0, Operation.ADD, Status.BAD_REQUEST, 5, 9)
    assert packed(BareResponse(2, 0, Operation.ADD, Status.BAD_REQUEST, 5, 9)) == (
        b"\x00\x00\x00\x18\x02\x01\x00\x00\x00\x00\x00\x64" + IDS
    )


@pytest.mark.parametrize("version", [3, 127, 128, 255])
def test_versions_above_2_are_refused_and_echoed(version: int) -> None:
    ours = v2.UNSUPPORTED + version
    for opcode, operation, payload, request_id in (
        (1, Operation.ADD, KEY + IDS + bytes(16), 0),
        (2, Operation.READ, IDS, 0),
        (7, Operation.BATCH_READ, IDS + bytes(7) + b"\x04" + bytes(12), 4),
    ):
        request = parse_request(bytes((version, opcode, 0, 0)) + payload)
        assert request == InvalidRequest(ours, request_id, operation, Status.BAD_VERSION, 5, 9)
        answer = packed(BareResponse(ours, request_id, operation, Status.BAD_VERSION, 5, 9))
        assert answer[4:12] == bytes((version, opcode, 0, 0, 0, 0, 0, 103))
        assert answer[12:28] == IDS
        assert len(answer) == (36 if opcode == 7 else 28)


def test_only_version_2_carries_a_key_for_fencing() -> None:
    assert parse_request(b"\x01\x02\x00\x01" + IDS) == ReadRequest(1, 0, 5, 9, None, is_fencing=True)
    assert parse_request(b"\x02\x02\x00\x01" + IDS + KEY) == ReadRequest(2, 0, 5, 9, KEY, is_fencing=True)
    assert parse_request(b"\x02\x02\x00\x00" + IDS + KEY) == ReadRequest(2, 0, 5, 9)
    assert parse_request(b"\x01\x07\x00\x01" + IDS + bytes(20)) == BatchReadRequest(1, 0, 5, 9, 0, 0, is_fencing=True)


def test_unknown_flags_are_ignored() -> None:
    assert parse_request(b"\x02\x02\xff\xf8" + IDS) == ReadRequest(2, 0, 5, 9)


@pytest.mark.parametrize(
    "request_",
    [
        ReadRequest(2, 0, 5, -1),
        ReadRequest(1, 0, 5, 9, is_high_priority=True),
        ReadRequest(0, 0, 5, 9),
        ReadRequest(2, 0, 5, 9, KEY, is_fencing=True, is_high_priority=True),
        BatchReadRequest(2, 7, 5, 9, -1, -1),
        BatchReadRequest(2, -7, 5, 9, 1, 2, KEY, is_fencing=True),
        AuthRequest(2, 0, "plügin", b"token"),
    ],
)
def test_requests_survive(request_: Request) -> None:
    assert parse_request(packed(request_)[4:]) == request_


def test_what_v2_cannot_say() -> None:
    records = Records.of([IDS + bytes(16)])
    for request in (
        ReadLacRequest(2, 0, 5),
        ReadRequest(2, 0, 5, -1, previous_lac=0),
        ReadRequest(2, 0, 5, -1, is_fencing=True),
        ReadRequest(2, 0, 5, -1, b"short", is_fencing=True),
        add_request(2, 5, KEY, [9], records, 0, is_deferred_sync=True),
        add_request(2, 5, b"short", [9], records, 0),
    ):
        with pytest.raises(LocalProtocolError):
            v2.pack_request(request)
    for response in (ReadLacResponse(2, 0, Status.OK, 5), BareResponse(2, 0, Operation.READ_LAC, Status.UNAUTHORIZED)):
        with pytest.raises(LocalProtocolError):
            v2.pack_response(response)


def test_errors_carry_no_body() -> None:
    assert len(packed(ReadResponse(2, 0, Status.IO_ERROR, 5, 9, b"body"))) == 28
    assert len(packed(BatchReadResponse(2, 3, Status.NO_ENTRY, 5, 9, b"records"))) == 36


def test_long_bodies_are_passed_through() -> None:
    body = bytes(10_000)
    head, passed = v2.pack_response(ReadResponse(2, 0, Status.OK, 5, 9, body))
    assert passed is body
    assert head[:4] == (10_024).to_bytes(4, "big")
    view = memoryview(body)
    assert v2.pack_response(BatchReadResponse(2, 3, Status.OK, 5, 9, view))[1] is view


@pytest.mark.parametrize("entry_id", [0, -1, 1 << 40])
def test_reads_without_a_key_are_packed_in_one_go_to_the_same_bytes(entry_id: int) -> None:
    for plain, general in (
        (ReadRequest(2, 0, 7, entry_id), ReadRequest(2, 0, 7, entry_id, is_high_priority=True)),
        (BatchReadRequest(2, 9, 7, entry_id, 5, 600), BatchReadRequest(2, 9, 7, entry_id, 5, 600, None, False, True)),
    ):
        expected = bytearray(b"".join(v2.pack_request(general)))
        assert expected[7] == v2.FLAG_HIGH_PRIORITY
        expected[7] = 0
        assert b"".join(v2.pack_request(plain)) == expected
