"""Every frame captured between Apache's client and bookie, decoded, packed again, and compared byte for byte."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from bookies.errors import DigestMismatch, RemoteProtocolError, Status
from bookies.model import DigestType
from bookies.wire import digest
from bookies.wire.availability import pack_availability, parse_availability
from bookies.wire.client import ResponseDecoder, encode_request
from bookies.wire.messages import (
    AddRequest,
    BareResponse,
    InvalidRequest,
    ListEntriesResponse,
    ReadResponse,
    WriteLacRequest,
)
from bookies.wire.server import RequestDecoder, encode_response

SIZE_MAX = 5 << 20
FOLDER = pathlib.Path(__file__).parent / "wire"
GROUPS = ("v2", "v3", "session", "raw", "auth-tls")
PASSWORDS = (b"", b"testPasswd", b"pw")

# Requests made by hand in ways that our own encoder does not use; decoded, they mean what the comment says.
REPACKED_DIFFERENTLY = {
    "v2-read-trailing",  # bytes behind the fields
    "v3-flag-3",  # an unknown number of a closed enum: no flag
    "v3-info-none",  # `requested` absent: 0
    "v3-auth-version-1",  # a header version that AUTH does not look at
    "v3-context",  # a logging context; a priority that is not 100
    "v3-unknown-field",
    "v3-field-order",
}
# The reference falls back to v2 whenever the first frame is no protobuf message; ours tells by its first byte.
CLOSED_BY_US_ONLY = {"v2-version-128-read"}


@dataclass
class Captured:
    group: str
    case: str
    connection: tuple[str, str, Any]
    is_request: bool
    data: bytes
    words: dict[str, Any]
    closed_by_bookie: bool

    def __str__(self) -> str:
        return f"{self.group}/{self.case}"


def captured() -> Iterator[Captured]:
    for group in GROUPS:
        for case in json.loads((FOLDER / f"{group}.json").read_text())["cases"]:
            closed = case.get("closedByBookie") is not None
            for frame in case["frames"]:
                words = frame.get("words")
                if frame.get("hex") and isinstance(words, dict) and "tlsRecord" not in words:
                    connection = group, case["name"], frame.get("conn")
                    is_request = frame["dir"].startswith("client")
                    data = bytes.fromhex(frame["hex"])
                    yield Captured(group, case["name"], connection, is_request, data, words, closed)


FRAMES = list(captured())
REQUESTS = [
    each for each in FRAMES if each.is_request and not each.closed_by_bookie and each.case not in CLOSED_BY_US_ONLY
]
RESPONSES = [each for each in FRAMES if not each.is_request]


def decode_request(frame: Captured) -> Any:
    (request,) = RequestDecoder(SIZE_MAX).feed(frame.data)
    return request


def decode_response(frame: Captured) -> Any:
    (response,) = ResponseDecoder(frame.words["protocol"], SIZE_MAX).feed(frame.data)
    return response


def test_nothing_is_left_out() -> None:
    assert len(FRAMES) > 400
    assert len(REQUESTS) > 200
    assert len(RESPONSES) > 200


def test_requests_are_packed_as_captured() -> None:
    for frame in REQUESTS:
        request = decode_request(frame)
        if isinstance(request, InvalidRequest):
            assert frame.group == "raw", frame
            continue
        packed = b"".join(encode_request(request))
        assert (packed != frame.data) == (frame.case in REPACKED_DIFFERENTLY and frame.data[-8:-6] != b"\x18\x63"), (
            frame
        )
        assert (packed == frame.data) or RequestDecoder(SIZE_MAX).feed(packed) == [request], frame


def test_responses_are_packed_as_captured() -> None:
    for frame in RESPONSES:
        packed = b"".join(encode_response(decode_response(frame)))
        if frame.case == "v3-auth-version-1":  # the reference copies the header, with version and priority
            assert ResponseDecoder("v3", SIZE_MAX).feed(packed) == [decode_response(frame)]
        else:
            assert packed == frame.data, frame


def flat(words: dict[str, Any]) -> dict[str, Any]:
    """The words of a frame with those of its header and of its one message in one dict."""
    found: dict[str, Any] = {}
    for name, value in words.items():
        if isinstance(value, dict) and name not in ("body", "lacBody", "lastEntryBody"):
            found.update(flat(value))
        else:
            found.setdefault(name, value)
    return found


# Name in the capture -> name of ours, where both have the field.
FIELDS = {
    "ledgerId": "ledger_id",
    "entryId": "entry_id",
    "txnId": "txn_id",
    "requestId": "txn_id",
    "previousLAC": "previous_lac",
    "timeOut": "timeout_ms",
    "maxLAC": "max_lac",
    "lacUpdateTimestamp": "lac_update_ms",
    "maxCount": "count_max",
    "maxSize": "size_max",
    "lac": "last_add_confirmed",
    "requested": "requested",
    "totalDiskCapacity": "total_disk_capacity",
    "freeDiskSpace": "free_disk_space",
    "authPluginName": "plugin",
}
STATUS_NAMES = {
    "EOK": Status.OK,
    "ENOLEDGER": Status.NO_LEDGER,
    "ENOENTRY": Status.NO_ENTRY,
    "EBADREQ": Status.BAD_REQUEST,
    "EIO": Status.IO_ERROR,
    "EUA": Status.UNAUTHORIZED,
    "EBADVERSION": Status.BAD_VERSION,
    "EFENCED": Status.FENCED,
    "EREADONLY": Status.READ_ONLY,
    "ETOOMANYREQUESTS": Status.TOO_MANY_REQUESTS,
    "EUNKNOWNLEDGERSTATE": Status.UNKNOWN_LEDGER_STATE,
}


def fields_of(message: Any) -> dict[str, Any]:
    """The fields of a message; those of adds with the ids of their one stretch."""
    fields = {name: getattr(message, name) for name in message.__struct_fields__}
    if isinstance(message, AddRequest):
        adds = message.adds
        fields |= {"ledger_id": adds.first_ledger_id, "entry_ids": adds.entry_ids, "last_add_confirmed": max(adds.lacs)}
    return fields


def test_fields_are_those_that_the_reference_decoded() -> None:
    compared = 0
    for frame in REQUESTS + RESPONSES:
        if frame.case == "v3-unknown-field":  # the capture took it for v2
            continue
        message = decode_request(frame) if frame.is_request else decode_response(frame)
        words, fields = flat(frame.words), fields_of(message)
        if not frame.is_request and frame.words.get("opcode") != "AUTH":
            assert message.status is STATUS_NAMES[words.get("status", words.get("error"))], frame
        for theirs, ours in FIELDS.items():
            if theirs in words and ours in fields and not isinstance(message, InvalidRequest | BareResponse):
                assert str(fields[ours]) == str(words[theirs]), (frame, theirs)
                compared += 1
        for name, only in (("entry_ids", "entryId"), ("txn_ids", "txnId")):
            if only in words and fields.get(name) is not None:
                assert list(fields[name]) == [int(words[only])], frame
                compared += 1
    assert compared > 1000


def verifies(body: bytes, ledger_id: int) -> bool:
    """Whether the body is right under some digest and one of the passwords used; sizes tell little, so try all."""
    for digest_type in (DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC):
        for password in PASSWORDS:
            try:
                header = digest.verify_entry(digest_type, digest.mac_key(password), body, ledger_id, None)
            except DigestMismatch:
                continue
            payload = body[header.payload_offset :]
            fields = header.ledger_id, header.entry_id, header.last_add_confirmed, header.length
            assert digest.package_entry(digest_type, digest.mac_key(password), *fields, payload) == body
            return True
    return False


def test_digests_of_entries() -> None:
    count = 0
    for frame in REQUESTS + RESPONSES:
        if frame.group == "raw":  # entries cut short by hand
            continue
        message = decode_request(frame) if frame.is_request else decode_response(frame)
        if isinstance(message, AddRequest):
            body = message.adds.records.body(0)
        elif isinstance(message, ReadResponse) and message.body is not None:
            body = bytes(message.body)
        else:
            continue
        assert "dummy" in frame.case or verifies(body, fields_of(message)["ledger_id"]), frame
        count += 1
    assert count > 80


def test_digests_of_lac_packets() -> None:
    count = 0
    for frame in REQUESTS:
        message = decode_request(frame)
        if frame.group == "raw" or not isinstance(message, WriteLacRequest):
            continue
        digest_type = {20: DigestType.CRC32C, 24: DigestType.CRC32, 36: DigestType.HMAC}[len(message.body)]
        found = [
            digest.package_lac(digest_type, digest.mac_key(password), message.ledger_id, message.last_add_confirmed)
            for password in PASSWORDS
        ]
        assert message.body in found, frame
        count += 1
    assert count > 5


def test_entry_lists_are_packed_as_captured() -> None:
    count = 0
    for frame in RESPONSES:
        message = decode_response(frame)
        if isinstance(message, ListEntriesResponse) and message.status is Status.OK:
            assert message.availability is not None
            assert pack_availability(parse_availability(message.availability)) == message.availability, frame
            count += 1
    assert count >= 3


def test_frames_that_made_the_bookie_close() -> None:
    """Whole conversations that ended so: ours ends too, no later than the reference's."""
    cases: dict[str, bytes] = {}
    for frame in FRAMES:
        if frame.is_request and (frame.closed_by_bookie or frame.case in CLOSED_BY_US_ONLY):
            cases[frame.case] = cases.get(frame.case, b"") + frame.data
    assert len(cases) > 10
    for case, data in cases.items():
        decoder = RequestDecoder(SIZE_MAX)
        try:
            requests = decoder.feed(data)
        except RemoteProtocolError:
            continue
        pytest.fail(f"{case}: decoded as {requests}")


def test_conversations_decode_in_one_piece_and_byte_by_byte() -> None:
    """All requests of a connection in one read: adds may merge, but nothing else changes."""
    by_connection: dict[tuple[str, str, Any], list[Captured]] = {}
    for frame in REQUESTS:
        by_connection.setdefault(frame.connection, []).append(frame)
    for frames in by_connection.values():
        data = b"".join([frame.data for frame in frames])
        whole = RequestDecoder(SIZE_MAX).feed(data)
        decoder = RequestDecoder(SIZE_MAX)
        single = [request for byte in data for request in decoder.feed(bytes((byte,)))]
        assert sum(count_of(request) for request in whole) == len(single) == len(frames), frames[0]
        if len(whole) == len(single):
            assert [type(request) for request in whole] == [type(request) for request in single]


def count_of(request: Any) -> int:
    return len(request.adds.records) if isinstance(request, AddRequest) else 1
