"""Fuzz targets: frames of both protocols, both ends, and what authenticates a connection."""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from tests.fuzz.target import Target, accepted, check, equal
from tests.property.test_wire import singles

from bookies.encoding.digest_md5 import DigestMd5Client, DigestMd5Server, secret_of_password
from bookies.errors import (
    DigestMismatch,
    InvalidArgument,
    LocalProtocolError,
    RemoteProtocolError,
    Status,
    Unauthorized,
)
from bookies.model import DigestType
from bookies.wire import digest
from bookies.wire.auth import BookieGate, ClientOpening, Encrypt, RoleExchange, roles_of
from bookies.wire.availability import pack_availability, parse_availability
from bookies.wire.certificate import parse_certificate, pem_blocks
from bookies.wire.client import ResponseDecoder, encode_request
from bookies.wire.messages import AddRequest, AddResponses, BareResponse, InvalidRequest
from bookies.wire.sasl import MECHANISMS, SaslExchange, Secrets, sasl_client
from bookies.wire.sasl.scram import ScramClient, ScramServer, parse_plain, parse_verifier, verifier_of
from bookies.wire.server import RequestDecoder, encode_answers, encode_response

WIRE = pathlib.Path(__file__).parents[1] / "golden" / "wire"
CERTIFICATES = pathlib.Path(__file__).parent / "certificates.pem"
SIZE_MAX = 1 << 16
KEY = b"k" * 20
Feed = Callable[[bytes], Sequence[Any]]


# -- frames ------------------------------------------------------------------------------------------------------------


def fed(feed: Feed, pieces: Sequence[bytes]) -> tuple[list[Any], bool]:
    """Return (the messages one by one, whether the stream was refused)."""
    messages: list[Any] = []
    for piece in pieces:
        try:
            messages += feed(piece)
        except RemoteProtocolError:
            return singles(messages), True
    return singles(messages), False


def any_pieces(feeder: Callable[[], Feed], data: bytes) -> list[Any]:
    """Check that whole, byte by byte and cut at every point the stream means the same; return its messages."""
    single, is_refused = fed(feeder(), [data[at : at + 1] for at in range(len(data))])
    whole, is_whole_refused = fed(feeder(), [data])
    equal(is_whole_refused, is_refused, "whole and byte by byte differ in being refused")
    # What precedes a malformed frame in the same read may be lost with the connection.
    equal(whole, [] if is_refused else single, "whole and byte by byte differ")
    stride = 1 + len(data) // 48  # all cuts of short inputs; the time of an input stays bounded
    for cut in range(1 + sum(data) % stride, len(data), stride):
        messages, is_cut_refused = fed(feeder(), [data[:cut], data[cut:]])
        equal(is_cut_refused, is_refused, f"cut at {cut}: differs in being refused")
        check(messages == single[: len(messages)], f"cut at {cut}: differs", messages, single)
        check(is_refused or len(messages) == len(single), f"cut at {cut}: messages are missing", messages, single)
    return single


def requests(data: bytes) -> None:
    any_pieces(lambda: RequestDecoder(SIZE_MAX).feed, data)
    decoder = RequestDecoder(SIZE_MAX)
    for request in accepted(RemoteProtocolError, decoder.feed, data) or ():
        if isinstance(request, AddRequest):
            check(len(request.adds) == len(request.adds.records), "an add without its record", request)
            check(len(encode_answers(request, request.adds, Status.OK)) > 0, "an add without an answer", request)
        if isinstance(request, InvalidRequest):
            answer = BareResponse(request.version, request.txn_id, request.operation, request.status)
            encode_response(answer)
            continue
        if request.version not in (2, 3):
            continue  # only read: our encoder writes version 2
        stream = b"".join(map(bytes, accepted(LocalProtocolError, encode_request, request) or ()))
        if stream:
            again = RequestDecoder(1 << 24)
            equal(singles(again.feed(stream)), singles([request]), "decode(encode(request)) is not the request")


def _responses(wire: str, data: bytes) -> None:
    messages = any_pieces(lambda: ResponseDecoder(wire, SIZE_MAX).feed, data)
    check(all(message is not None for message in messages), "no message", messages)
    for response in accepted(RemoteProtocolError, ResponseDecoder(wire, SIZE_MAX).feed, data) or ():
        if (
            response.version not in (2, 3)
            or isinstance(response, AddResponses)
            or (wire, response.version) == ("v2", 3)
        ):
            continue
        stream = b"".join(map(bytes, accepted(LocalProtocolError, encode_response, response) or ()))
        check(len(stream) < SIZE_MAX + 4096, "a response grows", response)


def v2_responses(data: bytes) -> None:
    _responses("v2", data)


def v3_responses(data: bytes) -> None:
    _responses("v3", data)


def _is(frame: dict[str, Any], direction: str) -> bool:
    """Report whether a captured frame has this direction; those without bytes are TLS records."""
    return bool(frame["dir"] == direction and "hex" in frame)


def _captured(direction: str, version: int | None = None) -> list[bytes]:
    """Return Apache's frames of one direction, one by one and the sessions of several together."""
    streams: dict[bytes, None] = {}
    for group in ("v2", "v3", "session", "raw", "auth-tls"):
        for case in json.loads((WIRE / f"{group}.json").read_text())["cases"]:
            frames = [bytes.fromhex(frame["hex"]) for frame in case["frames"] if _is(frame, direction)]
            frames = [frame for frame in frames if len(frame) <= 600]
            streams |= dict.fromkeys([*frames, b"".join(frames[:6])])
    return [stream for stream in streams if stream and (version is None or (version == 3) is (stream[4] >= 8))]


# -- lists and digests -------------------------------------------------------------------------------------------------


def availability(data: bytes) -> None:
    runs = accepted(RemoteProtocolError, lambda: parse_availability(data, runs_max=4096))
    if runs is not None:
        check(all(run.step == 1 and len(run) > 0 for run in runs[:100] if run.stop < 1 << 62), "an empty run", runs)
        check(all(one.stop < other.start for one, other in itertools.pairwise(runs)), "runs overlap", runs)
        if all(run.stop < 1 << 62 and run.stop - run.start < 1 << 40 for run in runs):
            equal(parse_availability(pack_availability(runs)), runs, "parse(pack(x)) is not x")


def bodies(data: bytes) -> None:
    """Entry bodies and LAC packets from a bookie, with every digest."""
    kind = list(DigestType)[data[0] % 4] if data else DigestType.CRC32C
    body = data[1:]
    header = accepted(DigestMismatch, lambda: digest.verify_entry(kind, KEY, body, 7, None))
    if header is not None:
        payload = body[header.payload_offset :]
        ids = header.ledger_id, header.entry_id, header.last_add_confirmed, header.length
        equal(digest.package_entry(kind, KEY, *ids, payload), body, "package(verify(body)) is not the body")
    last = accepted(DigestMismatch, lambda: digest.verify_lac(kind, KEY, body, 7))
    if last is not None:
        packed = digest.package_lac(kind, KEY, 7, last)
        equal(packed, body[: len(packed)], "package(verify(packet)) is not the packet")


def _bodies() -> list[bytes]:
    found = []
    for number, kind in enumerate(DigestType):
        body = digest.package_entry(kind, KEY, 7, 3, 2, 40, b"payload")
        found += [bytes([number]) + body, bytes([number]) + digest.package_lac(kind, KEY, 7, 2)]
    return found


# -- authentication ----------------------------------------------------------------------------------------------------


FRED = secret_of_password("fred", "secret")
USERS = {"fred": Secrets(FRED, verifier_of("secret", b"salt"))}


def sasl(data: bytes) -> None:
    """Both sides of DIGEST-MD5 and of SCRAM on the same bytes; only the right response is let in."""
    server = DigestMd5Server({"fred": FRED}.get, "nonce")
    if accepted(Unauthorized, server.evaluate, data) is not None:
        check(server.user == "fred", "a user without a password", server.user)
    client = DigestMd5Client("fred", "secret", "cnonce")
    answer = accepted(Unauthorized, client.respond, data)
    if answer is not None:
        check(len(answer) <= 4 * len(data) + 1024, "the response outgrows the challenge", len(answer))
    accepted(Unauthorized, client.respond, data)  # after a challenge: the proof of the server
    _scram(data)


def _scram(data: bytes) -> None:
    """Both sides of SCRAM on the same bytes, and texts of verifiers."""
    server = ScramServer("nonce")
    if accepted(Unauthorized, server.begin, data) is not None:
        server.challenge(verifier_of("secret", b"salt"))
        check(accepted(Unauthorized, server.evaluate, data) is None, "a proof without the password", server.user)
    answer = accepted(Unauthorized, ScramClient("fred", "secret", "cnonce").respond, data)
    if answer is not None:
        check(len(answer) <= len(data) + 128, "the response outgrows the challenge", len(answer))
    accepted(Unauthorized, parse_plain, data)
    accepted(ValueError, parse_verifier, data.decode("latin-1"))


def _sasl() -> list[bytes]:
    challenge = DigestMd5Server({"fred": FRED}.get, "nonce").challenge()
    response = DigestMd5Client("fred", "secret", "cnonce").respond(challenge)
    scram, server = ScramClient("fred", "secret", "cnonce"), ScramServer("nonce")
    server.begin(scram.first())
    first = server.challenge(verifier_of("secret", b"salt"))
    texts = [scram.first(), first, scram.respond(first) or b"", verifier_of("secret", b"salt").text.encode()]
    return [challenge, response, response.replace(b"utf-8", b"latin-1"), b'a="\\"b",c=d', b"rspauth=0", *texts]


def gates(data: bytes) -> None:
    """A whole connection before it is authenticated: the bookie's gate, then the client's opening."""
    kinds = (
        lambda: SaslExchange(USERS.get, lambda user: True, "nonce", b"key"),
        lambda: RoleExchange(["herd"]),
        lambda: None,
    )
    mode, stream = (data[0], data[1:]) if data else (0, b"")
    gate = BookieGate(kinds[mode % 3](), requires_tls=bool(mode & 4) or mode % 3 == 2)
    for request in accepted(RemoteProtocolError, RequestDecoder(SIZE_MAX).feed, stream) or ():
        if gate.is_open:
            break
        for effect in gate.received(request):
            if isinstance(effect, Encrypt):
                gate.encrypted([[("organizationalUnitName", stream[-20:].decode("latin-1"))]])
    client = sasl_client(MECHANISMS[mode // 48 % 3], "fred", "secret", "cnonce")
    opening = ClientOpening(2 + mode // 8 % 2, ("", "start", "direct")[mode // 16 % 3], client, lambda: 1)
    opening.connected()
    wire = ("v2", "v3")[mode // 8 % 2]
    for response in accepted(RemoteProtocolError, ResponseDecoder(wire, SIZE_MAX).feed, stream) or ():
        accepted(Unauthorized, opening.received, response)


def _gates() -> list[bytes]:
    auth = json.loads((WIRE / "auth-tls.json").read_text())["cases"]
    streams = [
        b"".join(bytes.fromhex(frame["hex"]) for frame in case["frames"] if _is(frame, direction))
        for case in auth
        for direction in ("client->bookie", "bookie->client")
    ]
    return [bytes([mode]) + stream for mode in (0, 1, 2, 8, 24) for stream in streams if len(stream) < 1500]


def certificates(data: bytes) -> None:
    certificate = accepted(InvalidArgument, parse_certificate, data)
    if certificate is not None:
        roles_of(certificate.subject)
    for _, block in accepted(InvalidArgument, pem_blocks, data.decode("latin-1")) or ():
        accepted(InvalidArgument, parse_certificate, block)


def _certificates() -> list[bytes]:
    blocks = CERTIFICATES.read_text().split("\n\n")
    return [*(block.encode() for block in blocks), *(pem_blocks(block)[0][1] for block in blocks)]


TARGETS = [
    Target("requests", requests, lambda: _captured("client->bookie"), 1024),
    Target("v2-responses", v2_responses, lambda: _captured("bookie->client", 2), 1024),
    Target("v3-responses", v3_responses, lambda: _captured("bookie->client", 3), 1024),
    Target("availability", availability, lambda: [pack_availability([range(3), range(5, 9)])], 512),
    Target("bodies", bodies, _bodies, 256),
    Target("sasl", sasl, _sasl, 512),
    Target("gates", gates, _gates, 1536),
    Target("certificates", certificates, _certificates),
]
