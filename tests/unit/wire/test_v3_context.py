"""The identity of a trace in v3 requests: carried by one add or read, and ignored unless it is well formed."""

from __future__ import annotations

from typing import Any

import pytest

from bookies import kernels
from bookies.errors import LocalProtocolError
from bookies.wire import protobuf, schema, v2
from bookies.wire.client import adds_as_v3, encode_request
from bookies.wire.messages import AddRequest, ReadRequest
from bookies.wire.server import RequestDecoder
from bookies.wire.v3_context import ids_of, trace_of

SIZE_MAX = 5 << 20
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
READ = {"header": {"version": 3, "operation": 1, "txnId": 7}, "readRequest": {"ledgerId": 5, "entryId": 9}}


def adds(count: int, trace: str = "") -> bytes:
    head = v2.add_head(bytes(20), is_recovery=False, is_high_priority=False)
    packed, _, _ = kernels.pack_add_frames(head, 5, 100, 99, 0, [b"payload"] * count, 3, b"")
    return adds_as_v3(packed, 300, trace=trace)[0]


def trace_received(*context: tuple[str, str]) -> str:
    """What a bookie reads from a request with this context."""
    pairs = [{"key": key, "value": value} for key, value in context]
    frame = b"".join(protobuf.frame(schema.REQUEST.pack({**READ, "requestContext": pairs})))
    (request,) = RequestDecoder(SIZE_MAX).feed(frame)
    assert isinstance(request, ReadRequest)
    assert (request.txn_id, request.ledger_id, request.entry_id) == (7, 5, 9)
    return request.trace


def test_an_add_carries_a_trace_and_is_not_merged_with_its_neighbours() -> None:
    requests = RequestDecoder(SIZE_MAX).feed(adds(2) + adds(1, TRACE) + adds(3))
    found: list[Any] = [(len(each.adds), each.trace) for each in requests if isinstance(each, AddRequest)]
    assert found == [(2, ""), (1, TRACE), (3, "")]
    assert b"".join(encode_request(requests[1])) == adds(1, TRACE)


def test_a_read_carries_a_trace() -> None:
    request = ReadRequest(3, 7, 5, 9, trace=TRACE)
    frame = b"".join(encode_request(request))
    assert RequestDecoder(SIZE_MAX).feed(frame) == [request]
    assert ids_of(TRACE) == (0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7)


def test_several_entries_have_no_common_trace() -> None:
    with pytest.raises(LocalProtocolError, match="one entry"):
        adds(2, TRACE)


def test_the_pair_is_found_among_others() -> None:
    assert trace_received(("user", "ann"), ("traceparent", TRACE)) == TRACE
    assert trace_received() == ""


@pytest.mark.parametrize(
    "value",
    [
        "",
        TRACE[:-1] + "0",  # not sampled
        TRACE.upper(),
        TRACE.replace("4bf92f35", "4bf92f3g"),
        TRACE + "-more",
        TRACE + "\n",
        "01" + TRACE[2:],
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01",
        TRACE * 10_000,
    ],
)
def test_what_is_not_well_formed_is_ignored(value: str) -> None:
    assert trace_received(("traceparent", value)) == ""


def test_a_context_of_many_pairs_is_bounded() -> None:
    message = schema.REQUEST.pack({**READ, "requestContext": [{"key": "k", "value": "v"}] * 10_000})
    data = b"".join(message)
    values = schema.REQUEST.parse(data, 0, len(data))
    assert len(values["requestContext"]) == 64
    assert trace_of(values) == ""
