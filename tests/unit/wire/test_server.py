"""Which protocol a connection speaks, adds in batches, START_TLS in the middle. Source: wire-protocol 1.3, 5.3."""

from __future__ import annotations

import pytest

from bookies import kernels
from bookies.errors import RemoteProtocolError, Status
from bookies.kernels import Records
from bookies.wire import v2
from bookies.wire.client import encode_request
from bookies.wire.messages import (
    AddRequest,
    InvalidRequest,
    Operation,
    ReadLacRequest,
    ReadRequest,
    Request,
    StartTlsRequest,
)
from bookies.wire.server import RequestDecoder

SIZE_MAX = 5 << 20
KEY = bytes(range(20))
V2_READ, V3_READ = ReadRequest(2, 0, 5, 9), ReadRequest(3, 4, 5, 9)


def frames(*requests: Request) -> bytes:
    return b"".join([buffer for request in requests for buffer in encode_request(request)])


def adds(first: int, count: int, ledger_id: int = 5, *, is_recovery: bool = False, size: int = 10) -> bytes:
    head = v2.add_head(KEY, is_recovery=is_recovery)
    return kernels.pack_add_frames(head, ledger_id, first, first - 1, 0, [bytes(size)] * count, 3, b"")[0]


def test_a_connection_may_go_from_v3_to_v2() -> None:
    decoder = RequestDecoder(SIZE_MAX)
    assert decoder.feed(frames(V3_READ, V2_READ)) == [V3_READ, V2_READ]
    assert decoder.is_v2
    assert decoder.feed(frames(V2_READ)) == [V2_READ]


def test_a_connection_never_goes_back() -> None:
    decoder = RequestDecoder(SIZE_MAX)
    assert decoder.feed(frames(V2_READ)) == [V2_READ]
    with pytest.raises(RemoteProtocolError):
        decoder.feed(frames(V3_READ))


def test_once_v2_the_first_byte_is_a_version_whatever_it_is() -> None:
    decoder = RequestDecoder(SIZE_MAX)
    decoder.feed(frames(V2_READ))
    refused = InvalidRequest(v2.UNSUPPORTED + 10, 0, Operation.READ, Status.BAD_VERSION, 5, 9)
    assert decoder.feed(b"\x00\x00\x00\x14\x0a\x02\x00\x00" + frames(V2_READ)[8:]) == [refused]


def test_what_is_neither_closes() -> None:
    for first in range(8, 256, 31):
        with pytest.raises(RemoteProtocolError):
            RequestDecoder(SIZE_MAX).feed(b"\x00\x00\x00\x02" + bytes((first, 0)))


def test_adds_of_one_read_are_one_batch() -> None:
    (batch,) = RequestDecoder(SIZE_MAX).feed(adds(40, 100))
    assert isinstance(batch, AddRequest)
    assert (batch.version, batch.adds.first_ledger_id, batch.master_key, batch.adds.entry_ids) == (
        2,
        5,
        KEY,
        range(40, 140),
    )
    assert (max(batch.adds.lacs), batch.is_recovery, batch.txn_ids) == (39, False, None)
    assert len(batch.adds.records) == 100
    assert frames(batch) == adds(40, 100)


def test_requests_end_where_key_or_flags_change_and_stretches_where_the_ledger_does() -> None:
    data = adds(0, 3) + adds(0, 2, 6) + adds(3, 1) + adds(4, 2, is_recovery=True) + frames(V2_READ) + adds(6, 1, size=9)
    found = RequestDecoder(SIZE_MAX).feed(data)
    summary = [
        ([(ledger_id, list(ids)) for ledger_id, ids, _ in request.adds.stretches()], request.is_recovery)
        if isinstance(request, AddRequest)
        else request
        for request in found
    ]
    assert summary == [
        ([(5, [0, 1, 2]), (6, [0, 1]), (5, [3])], False),
        ([(5, [4, 5])], True),
        V2_READ,
        ([(5, [6])], False),
    ]


def test_an_add_cut_off_waits() -> None:
    data = adds(0, 10)
    decoder = RequestDecoder(SIZE_MAX)
    (first,) = decoder.feed(data[:-1])
    (second,) = decoder.feed(data[-1:])
    assert isinstance(first, AddRequest)
    assert isinstance(second, AddRequest)
    assert (list(first.adds.entry_ids), list(second.adds.entry_ids)) == (list(range(9)), [9])


def test_adds_with_negative_ids_are_refused_alone() -> None:
    found = RequestDecoder(SIZE_MAX).feed(adds(-2, 4))
    refused = [InvalidRequest(2, 0, Operation.ADD, Status.BAD_REQUEST, 5, entry_id) for entry_id in (-2, -1)]
    assert found[:2] == refused
    rest = [request for request in found[2:] if isinstance(request, AddRequest)]
    assert [list(batch.adds.entry_ids) for batch in rest] == [[0], [1]]
    assert b"".join([frames(batch) for batch in rest]) == adds(-2, 4)[len(adds(-2, 2)) :]
    found = RequestDecoder(SIZE_MAX).feed(adds(0, 2, -5))
    assert found == [InvalidRequest(2, 0, Operation.ADD, Status.BAD_REQUEST, -5, entry_id) for entry_id in (0, 1)]


def test_the_last_add_confirmed_of_a_refused_add_does_not_count() -> None:
    refused, _, _ = kernels.pack_add_frames(v2.add_head(KEY), 5, -7, 1000, 0, [b"x"], 3, b"")
    accepted, _, _ = kernels.pack_add_frames(v2.add_head(KEY), 5, 0, -1, 0, [b"x"], 3, b"")
    _, batch = RequestDecoder(SIZE_MAX).feed(refused + accepted)
    assert isinstance(batch, AddRequest)
    assert max(batch.adds.lacs) == -1


def test_a_bad_length_behind_good_frames_raises() -> None:
    with pytest.raises(RemoteProtocolError):
        RequestDecoder(SIZE_MAX).feed(frames(V2_READ) + b"\xff\xff\xff\xff")


def test_start_tls_can_hold_back_what_follows() -> None:
    tls, record = StartTlsRequest(3, 1), b"\x16\x03\x03\x00\xdf rest of a TLS record"
    decoder = RequestDecoder(SIZE_MAX, stops_at_start_tls=True)
    assert decoder.feed(frames(V3_READ, tls) + record) == [V3_READ, tls]
    assert decoder.take_rest() == record
    assert decoder.take_rest() == b""
    assert decoder.feed(frames(V2_READ)) == [V2_READ]  # what comes out of the TLS layer
    # Without TLS the bytes behind are plain, and nothing has to be fed again.
    assert RequestDecoder(SIZE_MAX).feed(frames(tls, V3_READ)) == [tls, V3_READ]
    decoder = RequestDecoder(SIZE_MAX, stops_at_start_tls=True)
    assert decoder.feed(frames(tls, V3_READ)) == [tls]
    assert decoder.feed(decoder.take_rest()) == [V3_READ]


def test_decoded_batches_share_nothing_with_the_buffer() -> None:
    data = bytearray(adds(0, 60))
    (batch,) = RequestDecoder(SIZE_MAX).feed(data)
    data[:] = bytes(len(data))
    assert isinstance(batch, AddRequest)
    assert frames(batch) == adds(0, 60)
    assert isinstance(batch.adds.records, Records)


def test_other_v3_requests_pass() -> None:
    assert RequestDecoder(SIZE_MAX).feed(frames(ReadLacRequest(3, 1, 5))) == [ReadLacRequest(3, 1, 5)]
