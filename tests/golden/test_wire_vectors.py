"""Every test vector of the wire protocol, by name, in both directions. Source: wire-protocol 7."""

from __future__ import annotations

import json
import pathlib
import re
from array import array
from typing import Any

import pytest
from tests.fakes.adds import add_request

from bookies.errors import Status
from bookies.kernels import Adds, Records
from bookies.model import DigestType
from bookies.wire import digest, v2
from bookies.wire.availability import pack_availability, parse_availability
from bookies.wire.client import ResponseDecoder, encode_request
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
    InvalidRequest,
    ListEntriesRequest,
    ListEntriesResponse,
    Operation,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    StartTlsRequest,
    StartTlsResponse,
    WriteLacRequest,
    WriteLacResponse,
)
from bookies.wire.server import RequestDecoder, encode_response

SIZE_MAX = 5 << 20
TEXT: dict[str, str] = json.loads((pathlib.Path(__file__).parent / "wire" / "vectors.json").read_text())
VECTORS = {name: bytes.fromhex(text) for name, text in TEXT.items()}
PASSWORD = b"testPasswd"
KEY, KEY_PW = VECTORS["K-LEDGER-EMPTY"], VECTORS["K-LEDGER-PW"]
ENTRY, ENTRY_2, LAC_PACKET = VECTORS["E-CRC32C"], VECTORS["E-CRC32C-2"], VECTORS["L-CRC32C"]
OK = Status.OK


def add(version: int, body: bytes = ENTRY, key: bytes = KEY, txn: int | None = None, **flags: bool) -> AddRequest:
    txn_ids = None if txn is None else [txn]
    return add_request(version, 1, key, [0], Records.of([body]), -1, txn_ids=txn_ids, **flags)


def read(version: int, txn: int, entry: int, **more: Any) -> ReadRequest:
    return ReadRequest(version, txn, 1, entry, **more)


REQUESTS = {
    "V2-ADD": add(2),
    "V2-ADD-RECOVERY": add(2, is_recovery=True, is_high_priority=True),
    "V2-ADD-HMAC-PW": add(2, VECTORS["E-HMAC-PW"], KEY_PW),
    "V2-READ": read(2, 0, 0),
    "V2-READ-LAC": read(2, 0, -1),
    "V2-READ-LAC-FENCE": read(2, 0, -1, master_key=KEY, is_fencing=True),
    "V2-READ-RECOVERY": read(2, 0, 0, master_key=KEY_PW, is_fencing=True, is_high_priority=True),
    "V0-READ": read(0, 0, 0),
    "V2-BATCH": BatchReadRequest(2, 7, 1, 0, 10, 1 << 20),
    "V2-BATCH-FENCE": BatchReadRequest(2, 8, 1, 0, 10, 1 << 20, KEY, is_fencing=True, is_high_priority=True),
    "V2-AUTH": AuthRequest(2, 0, "sasl", b""),
    "V3-ADD": add(3, txn=1),
    "V3-ADD-DEFERRED": add(3, txn=2, is_deferred_sync=True),
    "V3-ADD-RECOVERY": add(3, txn=3, is_recovery=True, is_high_priority=True),
    "V3-READ": read(3, 4, 0),
    "V3-READ-LAC-FENCE": read(3, 5, -1, master_key=KEY, is_fencing=True),
    "V3-LONGPOLL": read(3, 6, -1, previous_lac=0, timeout_ms=1000, wants_piggyback=True),
    "V3-WRITE-LAC": WriteLacRequest(3, 7, 1, 9, KEY, LAC_PACKET),
    "V3-READ-LAC": ReadLacRequest(3, 8, 1),
    "V3-INFO": GetBookieInfoRequest(3, 9, 3),
    "V3-STARTTLS": StartTlsRequest(3, 10),
    "V3-FORCE": ForceLedgerRequest(3, 11, 1),
    "V3-LIST": ListEntriesRequest(3, 12, 1),
    "V3-AUTH": AuthRequest(3, 13, "sasl", b""),
}

FOREIGN_READ = v2.UNSUPPORTED + 3, 0, Operation.READ, Status.BAD_VERSION, 1, 0

RESPONSES = {
    "V2-ADD-OK": AddResponses(2, OK, 1, [0]),
    "V2-ADD-FENCED": AddResponses(2, Status.FENCED, 1, [0]),
    "V2-READ-OK": ReadResponse(2, 0, OK, 1, 0, ENTRY),
    "V2-READ-LAC-OK": ReadResponse(2, 0, OK, 1, -1, ENTRY),
    "V2-READ-NOENTRY": ReadResponse(2, 0, Status.NO_ENTRY, 1, 0),
    "V2-READ-BADVERSION-RESP": ReadResponse(v2.UNSUPPORTED + 3, 0, Status.BAD_VERSION, 1, 0),
    "V2-BATCH-OK": BatchReadResponse(2, 7, OK, 1, 0, Records.of([ENTRY, ENTRY_2]).data),
    "V2-BATCH-NOENTRY": BatchReadResponse(2, 7, Status.NO_ENTRY, 1, 0),
    "V2-AUTH-DISABLED-RESP": AuthResponse(2, 0, OK, "AuthDisabledPlugin", b""),
    "V3-ADD-OK": AddResponses(3, OK, 1, [0], [1]),
    "V3-ADD-FENCED": AddResponses(3, Status.FENCED, 1, [0], [1]),
    "V3-READ-OK": ReadResponse(3, 4, OK, 1, 0, ENTRY, max_lac=-1),
    "V3-READ-NOENTRY": ReadResponse(3, 4, Status.NO_ENTRY, 1, 0),
    "V3-READ-LAC-FENCE-OK": ReadResponse(3, 5, OK, 1, -1, ENTRY),
    "V3-LONGPOLL-EMPTY": ReadResponse(3, 6, OK, 1, -1, max_lac=0),
    "V3-LONGPOLL-ENTRY": ReadResponse(3, 6, OK, 1, 1, ENTRY_2, max_lac=1, lac_update_ms=1_700_000_000_000),
    "V3-WRITE-LAC-OK": WriteLacResponse(3, 7, OK, 1),
    "V3-READ-LAC-OK": ReadLacResponse(3, 8, OK, 1, LAC_PACKET, ENTRY),
    "V3-READ-LAC-NONE": ReadLacResponse(3, 8, Status.NO_ENTRY, 1),
    "V3-INFO-OK": GetBookieInfoResponse(3, 9, OK, 1_000_000_000_000, 250_000_000_000),
    "V3-STARTTLS-OK": StartTlsResponse(3, 10, OK),
    "V3-STARTTLS-BAD": StartTlsResponse(3, 10, Status.BAD_REQUEST),
    "V3-FORCE-OK": ForceLedgerResponse(3, 11, OK, 1),
    "V3-LIST-OK": ListEntriesResponse(3, 12, OK, 1, VECTORS["A-0-1-2-5"]),
    "V3-AUTH-DISABLED-RESP": AuthResponse(3, 13, OK, "AuthDisabledPlugin", b""),
    "V3-EUA-BARE": BareResponse(3, 1, Operation.ADD, Status.UNAUTHORIZED),
    "V3-EBADREQ-BARE": BareResponse(3, 14, Operation.BATCH_READ, Status.BAD_REQUEST),
}

DIGESTS = {"CRC32": DigestType.CRC32, "HMAC": DigestType.HMAC, "CRC32C": DigestType.CRC32C, "DUMMY": DigestType.DUMMY}


def normalized(message: Any) -> Any:
    """Ids as lists, so that a range equals a list of the same numbers."""
    for name in ("entry_ids", "txn_ids"):
        if getattr(message, name, None) is not None:
            setattr(message, name, list(getattr(message, name)))
    if isinstance(message, AddRequest):
        adds = message.adds
        message.adds = Adds.of(
            adds.first_ledger_id,
            array("q", adds.entry_ids),
            Records(adds.records.data, list(adds.records.starts)),
            max(adds.lacs),
        )
    return message


@pytest.mark.parametrize("name", REQUESTS)
def test_requests(name: str) -> None:
    frame, request = VECTORS[name], REQUESTS[name]
    assert b"".join(encode_request(request)) == frame
    (decoded,) = RequestDecoder(SIZE_MAX).feed(frame)
    assert normalized(decoded) == request


@pytest.mark.parametrize("name", RESPONSES)
def test_responses(name: str) -> None:
    frame, response = VECTORS[name], RESPONSES[name]
    assert b"".join(encode_response(response)) == frame
    (decoded,) = ResponseDecoder("v3" if name.startswith("V3") else "v2", SIZE_MAX).feed(frame)
    assert normalized(decoded) == response


def test_a_version_above_2_is_refused_with_that_version() -> None:
    (request,) = RequestDecoder(SIZE_MAX).feed(VECTORS["V2-READ-BADVERSION"])
    assert request == InvalidRequest(*FOREIGN_READ)
    assert b"".join(encode_response(BareResponse(*FOREIGN_READ))) == VECTORS["V2-READ-BADVERSION-RESP"]


def test_keys() -> None:
    assert digest.master_key(b"") == KEY
    assert digest.master_key(PASSWORD) == KEY_PW
    assert digest.mac_key(b"") == VECTORS["K-MAC-EMPTY"]
    assert digest.mac_key(PASSWORD) == VECTORS["K-MAC-PW"]


@pytest.mark.parametrize("name", [name for name in VECTORS if name.startswith("E-")])
def test_entries(name: str) -> None:
    _, kind, *variant = name.split("-")
    mac_key = digest.mac_key(PASSWORD if variant == ["PW"] else b"")
    ids, payload = (1, 0, -1, 5), b"hello"
    if variant == ["2"]:
        ids, payload = (1, 1, 0, 11), b"world!"
    elif variant == ["EMPTY"]:
        ids, payload = (0x0102030405060708, 10, 9, 1024), b""
    assert digest.package_entry(DIGESTS[kind], mac_key, *ids, payload) == VECTORS[name]
    header = digest.verify_entry(DIGESTS[kind], mac_key, VECTORS[name], ids[0], ids[1])
    assert (header.ledger_id, header.entry_id, header.last_add_confirmed, header.length) == ids
    assert VECTORS[name][header.payload_offset :] == payload


@pytest.mark.parametrize("name", [name for name in VECTORS if name.startswith("L-")])
def test_lac_packets(name: str) -> None:
    _, kind, *variant = name.split("-")
    mac_key = digest.mac_key(PASSWORD if variant == ["PW"] else b"")
    assert digest.package_lac(DIGESTS[kind], mac_key, 1, 9) == VECTORS[name]
    assert digest.verify_lac(DIGESTS[kind], mac_key, VECTORS[name] + b"ignored", 1) == 9


def test_entry_list() -> None:
    runs = [range(3), range(5, 6)]
    assert pack_availability(runs) == VECTORS["A-0-1-2-5"]
    assert parse_availability(VECTORS["A-0-1-2-5"]) == runs


def test_no_vector_is_left_out() -> None:
    tested = {*REQUESTS, *RESPONSES, "V2-READ-BADVERSION", "A-0-1-2-5"}
    assert {name for name in VECTORS if name[0] not in "KEL"} == tested


@pytest.mark.parametrize("name", ["v2-add", "v2-add-ok", "v3-add", "v3-add-ok"])
def test_the_examples_in_the_documentation(name: str) -> None:
    text = (pathlib.Path(__file__).parents[2] / "docs" / "reference" / "protocol.md").read_text()
    example = text.split(f"```{name}\n")[1].split("```")[0]
    digits = "".join([re.split(r" {3,}(?=\S)", line.strip())[0] for line in example.splitlines()])
    assert bytes.fromhex(digits) == VECTORS[name.upper()]
