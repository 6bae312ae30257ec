"""The short way of plain reads in v3 says and understands what the general way does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookies.errors import RemoteProtocolError, Status
from bookies.wire import protobuf, schema, v3, v3_reads
from bookies.wire.messages import ReadRequest, ReadResponse

INT64 = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-1, 300)
TXN = st.integers(0, (1 << 64) - 1) | st.integers(0, 300)


def general_request(request: ReadRequest) -> bytes:
    operation, fields = v3._fields_of_request(request)
    header = {"version": 3, "operation": schema.CODE_OF_OPERATION[operation], "txnId": request.txn_id}
    return b"".join(protobuf.frame(schema.REQUEST.pack({"header": header, "readRequest": fields})))


def general_response(response: ReadResponse) -> bytes:
    operation, fields = v3._fields_of_response(response)
    header = {"version": 3, "operation": schema.CODE_OF_OPERATION[operation], "txnId": response.txn_id}
    values = {"header": header, "status": 0, "readResponse": {"status": 0, **(fields or {})}}
    return b"".join(protobuf.frame(schema.RESPONSE.pack(values)))


@given(TXN, INT64, INT64)
def test_requests_are_the_same_bytes(txn_id: int, ledger_id: int, entry_id: int) -> None:
    request = ReadRequest(3, txn_id, ledger_id, entry_id)
    packed = b"".join(v3.pack_request(request))
    assert packed == general_request(request)
    assert v3_reads.maybe_parse_read(b"before" + packed + b"behind", 6, 6 + len(packed)) == request


@given(TXN, INT64, INT64, st.binary(max_size=300) | st.just(b"x" * 20_000), st.none() | INT64)
def test_answers_are_the_same_bytes(
    txn_id: int, ledger_id: int, entry_id: int, body: bytes, max_lac: int | None
) -> None:
    response = ReadResponse(3, txn_id, Status.OK, ledger_id, entry_id, body, max_lac)
    packed = b"".join(v3.pack_response(response))
    assert packed == general_response(response)
    assert v3_reads.maybe_parse_read_answer(b"before" + packed + b"behind", 6, 6 + len(packed)) == response


@pytest.mark.parametrize(
    "request_",
    [
        ReadRequest(3, 1, 2, 3, b"k" * 20, is_fencing=True),
        ReadRequest(3, 1, 2, 3, is_high_priority=True),
        ReadRequest(3, 1, 2, -1, previous_lac=4, timeout_ms=5, wants_piggyback=True),
        ReadRequest(3, 1, 2, -1, previous_lac=4),
        ReadRequest(3, 1, 2, -1, timeout_ms=4),
    ],
)
def test_other_reads_take_the_general_way(request_: ReadRequest) -> None:
    packed = b"".join(v3.pack_request(request_))
    assert v3_reads.maybe_parse_read(packed, 0, len(packed)) is None
    parsed: list[object] = []
    assert v3.parse_requests(packed, (0, len(packed)), 0, parsed) == 1  # type: ignore[arg-type]
    assert parsed == [request_]


@pytest.mark.parametrize(
    "response",
    [
        ReadResponse(3, 1, Status.NO_ENTRY, 2, 3),
        ReadResponse(3, 1, Status.OK, 2, 3, None, 5),
        ReadResponse(3, 1, Status.OK, 2, 3, b"body", 5, 6),
    ],
)
def test_other_answers_take_the_general_way(response: ReadResponse) -> None:
    packed = b"".join(v3.pack_response(response))
    assert v3_reads.maybe_parse_read_answer(packed, 0, len(packed)) is None
    parsed: list[object] = []
    assert v3.parse_responses(packed, (0, len(packed)), 0, parsed) == 1  # type: ignore[arg-type]
    assert parsed == [response]


@given(st.data())
def test_what_the_short_way_accepts_the_general_way_understands_alike(data: st.DataObject) -> None:
    """Bytes changed, inserted and removed; frames cut off by their end."""
    is_request = data.draw(st.booleans())
    ids = data.draw(TXN), data.draw(INT64), data.draw(INT64)
    if is_request:
        frame = bytearray(b"".join(v3.pack_request(ReadRequest(3, *ids))))
    else:
        lac = data.draw(st.none() | INT64)
        answer = ReadResponse(3, ids[0], Status.OK, ids[1], ids[2], data.draw(st.binary(max_size=20)), lac)
        frame = bytearray(b"".join(v3.pack_response(answer)))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(4, len(frame) - 1))
        change = data.draw(st.sampled_from(["set", "insert", "remove"]))
        if change == "set":
            frame[at] = data.draw(st.sampled_from([0, 1, 3, 8, 16, 24, 34, 40, 127, 128, 255]))
        elif change == "insert":
            frame.insert(at, data.draw(st.integers(0, 255)))
        elif len(frame) > 6:
            del frame[at]
    buffer, end = bytes(frame) + b"\x01\x80" * 8, len(frame)
    short = (v3_reads.maybe_parse_read if is_request else v3_reads.maybe_parse_read_answer)(buffer, 0, end)
    if short is None:
        return
    try:
        values = (schema.REQUEST if is_request else schema.RESPONSE).parse(buffer, 4, end)
    except RemoteProtocolError as error:
        raise AssertionError(f"refused in general: {error}") from error
    assert values["header"] == {"version": 3, "operation": 1, "txnId": short.txn_id}
    fields = values["readRequest" if is_request else "readResponse"]
    assert (fields["ledgerId"], fields["entryId"]) == (short.ledger_id, short.entry_id)
    if isinstance(short, ReadResponse):
        assert values["status"] == fields["status"] == 0
        assert (fields["body"], fields.get("maxLAC")) == (short.body, short.max_lac)
