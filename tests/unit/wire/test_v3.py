"""v3: what is refused and how, the two statuses, runs of adds. Source: wire-protocol 3."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fakes.adds import add_request

from bookies.errors import LocalProtocolError, RemoteProtocolError, Status
from bookies.kernels import Records
from bookies.model import DigestType
from bookies.wire import protobuf, schema, v3
from bookies.wire.digest import package_entry
from bookies.wire.messages import (
    AddRequest,
    AddResponses,
    AuthResponse,
    BareResponse,
    BatchReadRequest,
    BatchReadResponse,
    GetBookieInfoResponse,
    InvalidRequest,
    Operation,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
    StartTlsResponse,
)
from bookies.wire.server import RequestDecoder

SIZE_MAX = 5 << 20
KEY = bytes(range(20))


def decode(*messages: dict[str, Any]) -> list[Request]:
    frames = [b"".join(protobuf.frame(schema.REQUEST.pack(message))) for message in messages]
    return RequestDecoder(SIZE_MAX).feed(b"".join(frames))


def header(operation: Operation, txn: int = 1, version: int = 3, **more: int) -> dict[str, Any]:
    return {"version": version, "operation": schema.CODE_OF_OPERATION[operation], "txnId": txn, **more}


def body(entry_id: int, lac: int = -1, ledger_id: int = 5) -> bytes:
    return package_entry(DigestType.CRC32C, b"", ledger_id, entry_id, lac, 0, b"payload")


def add(entry_id: int, txn: int = 1, **changes: Any) -> dict[str, Any]:
    fields = {"ledgerId": 5, "entryId": entry_id, "masterKey": KEY, "body": body(entry_id), **changes}
    return {"header": header(Operation.ADD, txn), "addRequest": fields}


def responses(*messages: dict[str, Any]) -> list[Response]:
    buffer, found, index = b"", [], 0
    starts = [0]
    for message in messages:
        buffer += b"".join(protobuf.frame(schema.RESPONSE.pack(message)))
        starts.append(len(buffer))
    while index < len(messages):
        index = v3.parse_responses(buffer, starts, index, found)
    return found


def test_the_tables_are_complete_in_both_directions() -> None:
    assert set(schema.CODE_OF_STATUS) == set(Status)
    assert {schema.STATUS_OF_CODE[code] for code in schema.CODE_OF_STATUS.values()} == set(Status)
    assert set(schema.CODE_OF_OPERATION) == set(Operation)
    assert sorted(schema.OPERATION_OF_CODE) == list(range(1, 13))
    for names, message in ((schema.REQUEST_NAME, schema.REQUEST), (schema.RESPONSE_NAME, schema.RESPONSE)):
        assert set(names.values()) == {field.name for field in message.fields} - {"header", "status", "requestContext"}


@pytest.mark.parametrize("operation", list(Operation))
def test_an_operation_without_its_message_is_refused_bare(operation: Operation) -> None:
    (request,) = decode({"header": header(operation, 9)})
    assert request == InvalidRequest(3, 9, operation, Status.BAD_REQUEST)
    packed = b"".join(v3.pack_response(BareResponse(3, 9, operation, Status.BAD_REQUEST)))
    values = schema.RESPONSE.parse(packed, 4, len(packed))
    assert set(values) == {"header", "status"}


@pytest.mark.parametrize("version", [1, 2])
def test_older_header_versions_are_refused_in_both_statuses(version: int) -> None:
    message = {"header": header(Operation.READ, 7, version), "readRequest": {"ledgerId": 5, "entryId": -1}}
    assert decode(message) == [InvalidRequest(3, 7, Operation.READ, Status.BAD_VERSION, 5, -1)]
    for operation, name in schema.RESPONSE_NAME.items():
        if operation in (Operation.AUTH, Operation.START_TLS):
            continue
        packed = b"".join(v3.pack_response(BareResponse(3, 7, operation, Status.BAD_VERSION, 5, -1)))
        values = schema.RESPONSE.parse(packed, 4, len(packed))
        assert values["status"] == values[name]["status"] == 503
        assert values["header"] == header(operation, 7)


def test_auth_and_start_tls_take_any_header_version() -> None:
    auth = {"header": header(Operation.AUTH, 1, 1), "authRequest": {"authPluginName": "p", "payload": b""}}
    tls = {"header": header(Operation.START_TLS, 1, 2), "startTLSRequest": {}}
    assert [type(request).__name__ for request in decode(auth, tls)] == ["AuthRequest", "StartTlsRequest"]


@pytest.mark.parametrize(
    ("changes", "ids"),
    [
        ({"ledgerId": 6}, (6, 0)),
        ({"entryId": 1}, (5, 1)),
        ({"body": b"x" * 23}, (5, 0)),
        ({"body": b""}, (5, 0)),
        ({"entryId": -5, "body": body(-5)}, (5, -5)),
        ({"ledgerId": -1, "body": body(0, ledger_id=-1)}, (-1, 0)),
    ],
)
def test_adds_that_contradict_their_body_are_refused(changes: dict[str, Any], ids: tuple[int, int]) -> None:
    refused = InvalidRequest(3, 1, Operation.ADD, Status.BAD_REQUEST, *ids)
    assert decode(add(0, **changes)) == [refused]
    before, found, after = decode(add(7, 8), add(0, **changes), add(8, 9))
    assert found == refused
    assert isinstance(before, AddRequest)
    assert isinstance(after, AddRequest)


def test_runs_of_adds_merge() -> None:
    (batch,) = decode(*[add(entry_id, 100 + entry_id) for entry_id in range(300)])
    assert isinstance(batch, AddRequest)
    assert (batch.adds.entry_ids, batch.txn_ids) == (range(300), range(100, 400))
    assert [batch.adds.records.body(index) for index in range(300)] == [body(entry_id) for entry_id in range(300)]
    assert max(batch.adds.lacs) == -1
    (batch,) = decode(*[add(e, t, body=body(e, lac)) for e, t, lac in ((4, 9, 3), (2, 8, 1), (9, 1 << 63, 2))])
    assert isinstance(batch, AddRequest)
    assert (list(batch.adds.entry_ids), batch.txn_ids, max(batch.adds.lacs)) == ([4, 2, 9], [9, 8, 1 << 63], 3)


@pytest.mark.parametrize(
    "changes", [{"masterKey": b"other"}, {"flag": 1}, {"writeFlags": 1}, {"ledgerId": 6, "body": body(1, ledger_id=6)}]
)
def test_adds_that_differ_do_not_merge(changes: dict[str, Any]) -> None:
    found = decode(add(0), add(1, **changes), add(2, **changes) if "ledgerId" not in changes else add(2))
    sizes = [len(request.adds.records) for request in found if isinstance(request, AddRequest)]
    assert sizes == ([1, 1, 1] if "ledgerId" in changes else [1, 2])


def test_priority_and_flags() -> None:
    high = add(0, flag=1, writeFlags=3)
    high["header"]["priority"] = 1
    (batch,) = decode(high)
    assert isinstance(batch, AddRequest)
    assert (batch.is_high_priority, batch.is_recovery, batch.is_deferred_sync) == (True, True, True)


def test_a_bad_message_after_good_ones_raises() -> None:
    with pytest.raises(RemoteProtocolError):
        decode(add(0), {"header": header(Operation.ADD), "addRequest": {"ledgerId": 5}})


def test_the_outer_status_counts_unless_it_is_ok() -> None:
    def read(outer: int, inner: int) -> Response:
        fields = {"status": inner, "ledgerId": 5, "entryId": 1}
        (response,) = responses({"header": header(Operation.READ, 3), "status": outer, "readResponse": fields})
        return response

    assert read(0, 0).status is Status.OK  # type: ignore[union-attr]
    assert read(403, 0).status is Status.NO_ENTRY  # type: ignore[union-attr]
    assert read(0, 403).status is Status.NO_ENTRY  # type: ignore[union-attr]
    assert read(501, 403).status is Status.IO_ERROR  # type: ignore[union-attr]


@pytest.mark.parametrize("operation", list(Operation))
def test_bare_responses(operation: Operation) -> None:
    (response,) = responses({"header": header(operation, 3), "status": 502})
    if operation is Operation.START_TLS:
        assert response == StartTlsResponse(3, 3, Status.UNAUTHORIZED)
        return
    assert response == BareResponse(3, 3, operation, Status.UNAUTHORIZED)
    with pytest.raises(RemoteProtocolError, match="without its message"):
        responses({"header": header(operation, 3), "status": 0})


def test_runs_of_answers_merge() -> None:
    def answer(entry_id: int, txn: int, status: int = 0, ledger_id: int = 5) -> dict[str, Any]:
        fields = {"status": status, "ledgerId": ledger_id, "entryId": entry_id}
        return {"header": header(Operation.ADD, txn), "status": status, "addResponse": fields}

    found = responses(answer(0, 1), answer(1, 2), answer(7, 3, 504), answer(8, 4, 504), answer(9, 5, 504, 6))
    assert found == [
        AddResponses(3, Status.OK, 5, range(2), range(1, 3)),
        AddResponses(3, Status.FENCED, 5, range(7, 9), range(3, 5)),
        AddResponses(3, Status.FENCED, 6, range(9, 10), range(5, 6)),
    ]
    found = responses(*[answer(entry_id, 1) for entry_id in (-1, -7, 1 << 40)])
    assert found == [AddResponses(3, Status.OK, 5, [-1, -7, 1 << 40], [1, 1, 1])]


def test_errors_carry_no_data_but_always_the_ids() -> None:
    for response, name in (
        (ReadResponse(3, 1, Status.NO_ENTRY, 5, 9, b"body", 1, 2), "readResponse"),
        (GetBookieInfoResponse(3, 1, Status.IO_ERROR, 1, 2), "getBookieInfoResponse"),
    ):
        packed = b"".join(v3.pack_response(response))
        values = schema.RESPONSE.parse(packed, 4, len(packed))
        assert set(values[name]) <= {"status", "ledgerId", "entryId"}
        assert values[name]["status"] == values["status"]
    # ... except that an explicit LAC without a last entry comes with whatever status. Source: wire-protocol 5.8.
    packed = b"".join(v3.pack_response(ReadLacResponse(3, 1, Status.IO_ERROR, 5, b"lac")))
    assert schema.RESPONSE.parse(packed, 4, len(packed))["readLacResponse"]["lacBody"] == b"lac"


def test_refused_authentication_is_bare() -> None:
    packed = b"".join(v3.pack_response(AuthResponse(3, 1, Status.UNAUTHORIZED, "sasl", b"")))
    assert set(schema.RESPONSE.parse(packed, 4, len(packed))) == {"header", "status"}


def test_what_v3_cannot_say() -> None:
    records = Records.of([body(0)])
    for request in (
        BatchReadRequest(3, 1, 5, 0, 1, 1),
        InvalidRequest(3, 1, Operation.ADD, Status.BAD_REQUEST),
        add_request(3, 5, KEY, [0], records, -1),
        add_request(3, 5, KEY, [0], records, -1, txn_ids=[1, 2]),
        ReadRequest(3, 1, 5, -1, KEY, is_fencing=True, wants_piggyback=True),
    ):
        with pytest.raises(LocalProtocolError):
            v3.pack_request(request)
    for response in (BatchReadResponse(3, 1, Status.OK, 5, 0), AddResponses(3, Status.OK, 5, [0])):
        with pytest.raises(LocalProtocolError):
            v3.pack_response(response)


def test_long_bodies_are_passed_through() -> None:
    long = bytes(10_000)
    assert v3.pack_response(ReadResponse(3, 1, Status.OK, 5, 9, long, max_lac=3))[1] is long
