"""Responses in batches, v2 adds sent as v3, START_TLS first. Source: wire-protocol 1.3, 1.4."""

from __future__ import annotations

import pytest

from bookies import kernels
from bookies.errors import RemoteProtocolError, Status
from bookies.wire import v2
from bookies.wire.client import ResponseDecoder, adds_as_v3, encode_request
from bookies.wire.messages import (
    AddRequest,
    AddResponses,
    BareResponse,
    Operation,
    ReadResponse,
    Response,
    StartTlsResponse,
)
from bookies.wire.server import RequestDecoder, encode_response

SIZE_MAX = 5 << 20
KEY = bytes(range(20))


def frames(*responses: Response) -> bytes:
    return b"".join([buffer for response in responses for buffer in encode_response(response)])


def comparable(responses: list[Response]) -> list[object]:
    return [
        (response.version, response.status, response.ledger_id, list(response.entry_ids), list(response.txn_ids or []))
        if isinstance(response, AddResponses)
        else response
        for response in responses
    ]


@pytest.mark.parametrize("wire", ["v2", "v3"])
def test_adjacent_answers_to_adds_merge(wire: str) -> None:
    version = int(wire[1])
    read = ReadResponse(version, 7 if version == 3 else 0, Status.OK, 5, 9, b"body")
    txn_ids = (lambda *numbers: numbers) if version == 3 else lambda *numbers: None
    data = frames(
        AddResponses(version, Status.OK, 5, range(100), range(100) if version == 3 else None),
        AddResponses(version, Status.OK, 5, [7, 3], txn_ids(1, 2)),
        AddResponses(version, Status.FENCED, 5, [8], txn_ids(3)),
        AddResponses(version, Status.FENCED, 6, [8], txn_ids(4)),
        read,
        AddResponses(version, Status.FENCED, 6, [9], txn_ids(5)),
    )
    assert comparable(ResponseDecoder(wire, SIZE_MAX).feed(data)) == comparable(
        [
            AddResponses(version, Status.OK, 5, [*range(100), 7, 3], [*range(100), 1, 2] if version == 3 else None),
            AddResponses(version, Status.FENCED, 5, [8], txn_ids(3)),
            AddResponses(version, Status.FENCED, 6, [8], txn_ids(4)),
            read,
            AddResponses(version, Status.FENCED, 6, [9], txn_ids(5)),
        ]
    )


@pytest.mark.parametrize("status", [Status.OK, Status.FENCED, Status.READ_ONLY])
def test_a_lone_answer_to_an_add_is_read_alike_whole_and_in_pieces(status: Status) -> None:
    data = frames(AddResponses(2, status, 5, range(7, 8)))
    whole, pieces = ResponseDecoder("v2", SIZE_MAX), ResponseDecoder("v2", SIZE_MAX)
    expected = [AddResponses(2, status, 5, range(7, 8))]
    assert whole.feed(data) == expected
    assert pieces.feed(data[:9]) == []
    # As many bytes as the answer has, and yet not the answer: the rest of it, and the front of the next one.
    assert pieces.feed(data[9:] + data[:9]) == expected
    assert pieces.feed(data[9:]) == expected
    assert pieces.feed(data) == expected


def test_bytes_of_the_size_of_a_lone_answer_may_be_others() -> None:
    answer = frames(AddResponses(2, Status.OK, 5, [7]))
    missing = ReadResponse(2, 0, Status.NO_ENTRY, 5, 7)
    assert len(frames(missing)) == len(answer)
    assert ResponseDecoder("v2", SIZE_MAX).feed(frames(missing)) == [missing]
    with pytest.raises(RemoteProtocolError, match="error code 3"):
        ResponseDecoder("v2", SIZE_MAX).feed(answer[:8] + b"\x00\x00\x00\x03" + answer[12:])
    with pytest.raises(RemoteProtocolError):
        ResponseDecoder("v2", SIZE_MAX).feed(bytes(len(answer)))


def test_consecutive_ids_are_a_range() -> None:
    (answers,) = ResponseDecoder("v2", SIZE_MAX).feed(frames(AddResponses(2, Status.OK, 5, list(range(3, 90)))))
    assert isinstance(answers, AddResponses)
    assert answers.entry_ids == range(3, 90)


def test_an_answer_to_an_add_with_more_bytes_still_counts() -> None:
    frame = frames(AddResponses(2, Status.OK, 5, [1]))
    (answers,) = ResponseDecoder("v2", SIZE_MAX).feed(b"\x00\x00\x00\x19" + frame[4:] + b"?")
    assert answers == AddResponses(2, Status.OK, 5, [1])


def test_an_unknown_code_in_the_middle_closes() -> None:
    good = frames(AddResponses(2, Status.OK, 5, [1]))
    with pytest.raises(RemoteProtocolError, match="error code 3"):
        ResponseDecoder("v2", SIZE_MAX).feed(good + good[:8] + b"\x00\x00\x00\x03" + good[12:])


@pytest.mark.parametrize("is_recovery", [False, True])
@pytest.mark.parametrize("is_high_priority", [False, True])
@pytest.mark.parametrize("is_deferred_sync", [False, True])
@pytest.mark.parametrize("size", [0, 10, 5000])
def test_adds_as_v3(is_recovery: bool, is_high_priority: bool, is_deferred_sync: bool, size: int) -> None:
    head = v2.add_head(KEY, is_recovery=is_recovery, is_high_priority=is_high_priority)
    payloads = [bytes(size), *[bytes(size + 1)] * 60]
    packed, _, _ = kernels.pack_add_frames(head, 5, 100, 99, 0, payloads, 3, b"")
    frames_v3, txn_id = adds_as_v3(packed, 1 << 14, is_deferred_sync=is_deferred_sync)
    assert txn_id == (1 << 14) + 61
    (batch,) = RequestDecoder(SIZE_MAX).feed(frames_v3)
    assert isinstance(batch, AddRequest)
    assert (batch.version, batch.adds.first_ledger_id, batch.master_key) == (3, 5, KEY)
    assert (batch.adds.entry_ids, batch.txn_ids) == (range(100, 161), range(1 << 14, txn_id))
    assert (batch.is_recovery, batch.is_high_priority) == (is_recovery, is_high_priority)
    assert batch.is_deferred_sync == is_deferred_sync
    assert b"".join(encode_request(batch)) == frames_v3
    (original,) = RequestDecoder(SIZE_MAX).feed(packed)
    assert isinstance(original, AddRequest)
    assert original.adds.records.tobytes() == batch.adds.records.tobytes()


def test_what_a_bookie_says_about_start_tls_later_is_dropped() -> None:
    """Apache's bookies do, in v3, when the peer has encrypted and not authenticated; wire-protocol 5.3, item 5."""
    read = ReadResponse(2, 0, Status.NO_ENTRY, 5, 9)
    late = StartTlsResponse(3, 1, Status.IO_ERROR)
    decoder = ResponseDecoder("v2", SIZE_MAX)
    assert decoder.feed(frames(late) + frames(read)) == [read]
    with pytest.raises(RemoteProtocolError):
        decoder.feed(frames(BareResponse(3, 1, Operation.READ_LAC, Status.IO_ERROR)))


def test_a_bad_length_behind_good_frames_raises() -> None:
    with pytest.raises(RemoteProtocolError):
        ResponseDecoder("v2", SIZE_MAX).feed(frames(AddResponses(2, Status.OK, 5, [1])) + bytes(4))
