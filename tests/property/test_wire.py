"""Any stream of messages, in any pieces, means the same; hostile bytes only ever raise RemoteProtocolError."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.adds import add_request
from tests.fakes.examples import scaled

from bookies.errors import RemoteProtocolError, Status
from bookies.kernels import Records
from bookies.model import DigestType
from bookies.wire.availability import parse_availability
from bookies.wire.client import ResponseDecoder, encode_request
from bookies.wire.digest import package_entry
from bookies.wire.messages import (
    AddRequest,
    AddResponses,
    AuthRequest,
    AuthResponse,
    BareResponse,
    BatchReadRequest,
    BatchReadResponse,
    ForceLedgerRequest,
    ForceLedgerResponse,
    GetBookieInfoRequest,
    GetBookieInfoResponse,
    ListEntriesRequest,
    ListEntriesResponse,
    Operation,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
    StartTlsRequest,
    StartTlsResponse,
    WriteLacRequest,
    WriteLacResponse,
)
from bookies.wire.server import RequestDecoder, encode_response

SIZE_MAX = 1 << 16
KEYS = [bytes(range(20)), b"k" * 20]

i64 = st.integers(-(1 << 63), (1 << 63) - 1)
ids = st.one_of(st.integers(0, 3), st.integers(0, (1 << 63) - 1))
txn_ids = st.one_of(st.integers(0, 3), st.integers(0, (1 << 64) - 1))
data = st.binary(max_size=12)
maybe = st.none() | i64
keys = st.sampled_from(KEYS)
statuses = st.sampled_from(list(Status))
errors = st.sampled_from([status for status in Status if status is not Status.OK])
flags = st.booleans()


@st.composite
def add_batches(draw: st.DrawFn, version: int) -> AddRequest:
    ledger_id, first, count = draw(st.integers(0, 2)), draw(ids), draw(st.integers(1, 12))
    entry_ids = [(first + index) % (1 << 63) for index in range(count)]
    payload = draw(data)
    bodies = [
        package_entry(DigestType.CRC32C, b"", ledger_id, entry_id, draw(st.integers(-1, 3)), 0, payload)
        for entry_id in entry_ids
    ]
    lac = max(int.from_bytes(body[16:24], "big", signed=True) for body in bodies)
    return add_request(
        version,
        ledger_id,
        draw(keys if version == 2 else keys | data),
        entry_ids,
        Records.of(bodies),
        lac,
        is_recovery=draw(flags),
        is_high_priority=draw(flags),
        is_deferred_sync=version == 3 and draw(flags),
        txn_ids=None if version == 2 else [draw(txn_ids) for _ in entry_ids],
    )


def read_requests(version: int) -> st.SearchStrategy[ReadRequest]:
    txn = txn_ids if version == 3 else st.just(0)
    fencing = st.builds(
        ReadRequest, st.just(version), txn, i64, i64, keys, is_fencing=st.just(True), is_high_priority=flags
    )
    plain = st.builds(ReadRequest, st.just(version), txn, i64, i64, is_high_priority=flags)
    if version == 2:
        return plain | fencing
    poll = st.builds(ReadRequest, st.just(3), txn, i64, i64, previous_lac=i64, timeout_ms=maybe, wants_piggyback=flags)
    return plain | fencing | poll


v2_requests: st.SearchStrategy[Any] = st.one_of(
    add_batches(2),
    read_requests(2),
    st.builds(BatchReadRequest, st.just(2), i64, i64, i64, st.integers(-(1 << 31), (1 << 31) - 1), i64),
    st.builds(AuthRequest, st.just(2), st.just(0), st.text(max_size=5), data),
)
three = st.just(3)
v3_requests: st.SearchStrategy[Any] = st.one_of(
    add_batches(3),
    read_requests(3),
    st.builds(AuthRequest, three, txn_ids, st.text(max_size=5), data),
    st.builds(WriteLacRequest, three, txn_ids, i64, i64, data, data, st.booleans()),
    st.builds(ReadLacRequest, three, txn_ids, i64),
    st.builds(GetBookieInfoRequest, three, txn_ids, i64),
    st.builds(ForceLedgerRequest, three, txn_ids, i64),
    st.builds(ListEntriesRequest, three, txn_ids, i64),
    st.builds(StartTlsRequest, three, txn_ids),
)


@st.composite
def answers_to_adds(draw: st.DrawFn, version: int) -> AddResponses:
    entry_ids = draw(st.lists(i64, min_size=1, max_size=12))
    txns = [draw(txn_ids) for _ in entry_ids] if version == 3 else None
    return AddResponses(version, draw(statuses), draw(st.integers(0, 2)), entry_ids, txns)


v2_responses: st.SearchStrategy[Any] = st.one_of(
    answers_to_adds(2),
    st.builds(ReadResponse, st.just(2), st.just(0), st.just(Status.OK), i64, i64, data),
    st.builds(ReadResponse, st.just(2), st.just(0), errors, i64, i64),
    st.builds(BatchReadResponse, st.just(2), i64, st.just(Status.OK), i64, i64, data),
    st.builds(BatchReadResponse, st.just(2), i64, errors, i64, i64),
    st.builds(AuthResponse, st.just(2), st.just(0), st.just(Status.OK), st.text(max_size=5), data),
)
v3_responses: st.SearchStrategy[Any] = st.one_of(
    answers_to_adds(3),
    st.builds(ReadResponse, three, txn_ids, st.just(Status.OK), i64, i64, st.none() | data, maybe, maybe),
    st.builds(ReadResponse, three, txn_ids, errors, i64, i64),
    st.builds(AuthResponse, three, txn_ids, st.just(Status.OK), st.text(max_size=5), data),
    st.builds(WriteLacResponse, three, txn_ids, statuses, i64, st.none() | st.booleans()),
    st.builds(ReadLacResponse, three, txn_ids, statuses, i64, st.none() | data, st.none() | data),
    st.builds(GetBookieInfoResponse, three, txn_ids, st.just(Status.OK), maybe, maybe),
    st.builds(ForceLedgerResponse, three, txn_ids, statuses, i64),
    st.builds(ListEntriesResponse, three, txn_ids, statuses, i64, st.none() | data),
    st.builds(StartTlsResponse, three, txn_ids, statuses),
    st.builds(
        BareResponse,
        three,
        txn_ids,
        st.sampled_from([each for each in Operation if each is not Operation.START_TLS]),
        errors.filter(lambda status: status is not Status.BAD_VERSION),
    ),
)

# A connection's worth: v3 may come before v2, never after.
requests = st.builds(list.__add__, st.lists(v3_requests, max_size=5), st.lists(v2_requests, max_size=5))
Feed = Callable[[bytes], list[Any]]


def singles(messages: Sequence[Any]) -> list[Any]:
    """Batches taken apart, so that it does not matter how adds were merged."""
    found: list[Any] = []
    for message in messages:
        if isinstance(message, AddRequest):
            txns = iter(message.txn_ids or [None] * len(message.adds))
            flags = message.is_recovery, message.is_high_priority, message.is_deferred_sync
            for ledger_id, entry_ids, records in message.adds.stretches():
                for index, entry_id in enumerate(entry_ids):
                    shared = message.version, ledger_id, message.master_key
                    found.append((*shared, entry_id, next(txns), records.body(index), flags))
        elif isinstance(message, AddResponses):
            status = message.status
            if message.version == 2 and status is Status.UNKNOWN_LEDGER_STATE:
                status = Status.IO_ERROR
            txns = message.txn_ids or [None] * len(message.entry_ids)
            for entry_id, txn_id in zip(message.entry_ids, txns, strict=True):
                found.append((message.version, status, message.ledger_id, entry_id, txn_id))
        elif message.version == 2 and getattr(message, "status", None) is Status.UNKNOWN_LEDGER_STATE:
            message.status = Status.IO_ERROR
            found.append(message)
        else:
            found.append(message)
    return found


def check_stream(expected: list[Any], stream: bytes, feeder: Callable[[], Feed], cuts: list[int]) -> None:
    whole = feeder()(stream)
    assert singles(whole) == singles(expected)
    for message in whole:
        if isinstance(message, AddRequest):
            for lac, (_, _, records) in zip(message.adds.lacs, message.adds.stretches(), strict=True):
                lacs = [records.body(index)[16:24] for index in range(len(records))]
                assert lac == max(int.from_bytes(each, "big", signed=True) for each in lacs)
    feed = feeder()
    single = [message for index in range(len(stream)) for message in feed(stream[index : index + 1])]
    assert singles(single) == singles(expected)
    feed = feeder()
    bounds = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    pieces = [message for first, last in itertools.pairwise(bounds) for message in feed(stream[first:last])]
    assert singles(pieces) == singles(expected)
    for cut in cuts:  # cut off there: a prefix of the messages, and no complaint
        found = singles(feeder()(stream[: cut % (len(stream) + 1)]))
        assert found == singles(expected)[: len(found)]


def server() -> Feed:
    return RequestDecoder(SIZE_MAX).feed


@given(requests, st.lists(st.integers(0, 1 << 16), max_size=4))
@scaled(120)
def test_requests_in_any_pieces(messages: list[Request], cuts: list[int]) -> None:
    stream = b"".join([buffer for message in messages for buffer in encode_request(message)])
    check_stream(messages, stream, server, cuts)


@given(st.lists(v2_responses, max_size=8), st.lists(st.integers(0, 1 << 16), max_size=4))
@scaled(80)
def test_v2_responses_in_any_pieces(messages: list[Response], cuts: list[int]) -> None:
    stream = b"".join([buffer for message in messages for buffer in encode_response(message)])
    check_stream(messages, stream, lambda: ResponseDecoder("v2", SIZE_MAX).feed, cuts)


@given(st.lists(v3_responses, max_size=8), st.lists(st.integers(0, 1 << 16), max_size=4))
@scaled(80)
def test_v3_responses_in_any_pieces(messages: list[Response], cuts: list[int]) -> None:
    stream = b"".join([buffer for message in messages for buffer in encode_response(message)])
    check_stream(messages, stream, lambda: ResponseDecoder("v3", SIZE_MAX).feed, cuts)


def decoders() -> list[Feed]:
    return [server(), ResponseDecoder("v2", SIZE_MAX).feed, ResponseDecoder("v3", SIZE_MAX).feed]


@given(st.binary(max_size=200))
@scaled(200)
def test_random_bytes(noise: bytes) -> None:
    framed = len(noise).to_bytes(4, "big") + noise
    for stream in (noise, framed, framed + framed):
        for feed in decoders():
            try:
                feed(stream)
            except RemoteProtocolError:
                pass


streams = st.one_of(
    st.builds(lambda messages: b"".join([b for m in messages for b in encode_request(m)]), requests),
    st.builds(lambda messages: b"".join([b for m in messages for b in encode_response(m)]), st.lists(v2_responses)),
    st.builds(lambda messages: b"".join([b for m in messages for b in encode_response(m)]), st.lists(v3_responses)),
)


@given(streams, st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=4))
@scaled(150)
def test_changed_bytes(stream: bytes, changes: list[tuple[int, int]]) -> None:
    changed = bytearray(stream)
    for position, value in changes:
        if changed:
            changed[position % len(changed)] = value
    for feed in decoders():
        try:
            feed(bytes(changed))
        except RemoteProtocolError:
            pass


@given(add_batches(3), st.integers(0, 1 << 16), st.integers(0, 255))
@scaled(150)
def test_runs_of_v3_adds_accept_what_single_adds_do(batch: AddRequest, position: int, value: int) -> None:
    """The fast way through a run against the general one: frame by frame, with one byte changed somewhere."""
    check_runs(b"".join(map(bytes, encode_request(batch))), position, value, lambda: RequestDecoder(SIZE_MAX).feed)


@given(answers_to_adds(3), st.integers(0, 1 << 16), st.integers(0, 255))
@scaled(150)
def test_runs_of_v3_answers_accept_what_single_answers_do(answers: AddResponses, position: int, value: int) -> None:
    stream = b"".join(map(bytes, encode_response(answers)))
    check_runs(stream, position, value, lambda: ResponseDecoder("v3", SIZE_MAX).feed)


def check_runs(stream: bytes, position: int, value: int, feeder: Callable[[], Feed]) -> None:
    frames: list[bytearray] = []
    while stream:
        size = 4 + int.from_bytes(stream[:4], "big")
        frames.append(bytearray(stream[:size]))
        stream = stream[size:]
    changed = frames[position % len(frames)]
    changed[4 + position // len(frames) % (len(changed) - 4)] = value  # not in the length word
    if frames[0][4] < 8:
        return  # a v2 connection now, where the rest would be malformed

    def found(chunks: list[bytes]) -> list[Any] | None:
        try:
            return singles([message for chunk in chunks for message in feeder()(chunk)])
        except RemoteProtocolError:
            return None

    one_by_one = found([bytes(frame) for frame in frames])
    if any(frame[4] < 8 for frame in frames):
        return
    assert found([b"".join(frames)]) == one_by_one


@given(st.binary(max_size=200))
def test_hostile_lists_of_entries(noise: bytes) -> None:
    for encoded in (noise, bytes(4) + noise, bytes(7) + b"\x02" + bytes(56) + noise):
        try:
            parse_availability(encoded)
        except RemoteProtocolError:
            pass
