"""A hostile bookie: it garbles, invents, repeats and withholds answers, from a seed.

It runs on any `Runtime`: as one bookie of a simulated cluster or behind a real socket. It stores entries in memory like
a correct bookie. The seeded random generator passes each answer through one of the `MISDEEDS`, or leaves it honest. The
hostile bookie never reports a stored entry, ledger or fence as missing: no protocol survives that from a bookie that
has acknowledged the entry, and an honest bookie cannot do it. It answers requests for missing data with an I/O error,
which proves neither presence nor absence. It does not forge digests.

A client keeps working with its time-outs, its memory limits and the honest bookies.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Any, cast

from msgspec import Struct, field
from msgspec.structs import replace

from bookies.errors import RemoteProtocolError, Status
from bookies.kernels import Records
from bookies.metadata.interface import MetadataDriver
from bookies.model import FRAME_SIZE_MAX, BookieId, BookieInfo, BookieMode, Endpoint
from bookies.runtime.ports import Listener, Network
from bookies.wire.availability import pack_availability
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

FAILURES = (Status.IO_ERROR, Status.BAD_REQUEST, Status.BAD_VERSION, Status.TOO_MANY_REQUESTS, Status.READ_ONLY)
HEAD_SIZE = 12  # bytes of a v2 response up to its error code, which stays as it is: it could become a lie
DRIP_S = 0.02  # between two bytes
FLOOD = 50  # unsolicited answers at once
_LENGTH = struct.Struct(">I")


class _Ledger(Struct):
    entries: dict[int, bytes] = field(default_factory=dict)
    is_fenced: bool = False
    last_add_confirmed: int = -1
    lac_body: bytes | None = None


class HostileBookie:
    """One hostile bookie. `misdeeds`: names of those it commits. `honesty`: the share of correct answers."""

    def __init__(
        self,
        network: Network,
        driver: MetadataDriver,
        name: str,
        random: Random,
        *,
        misdeeds: Sequence[str] = (),
        honesty: float = 0.5,
    ) -> None:
        unknown = [misdeed for misdeed in misdeeds if misdeed not in MISDEEDS]
        assert not unknown, unknown
        self.bookie_id = BookieId(name)
        self.address = ("", 0)  # known from `start` on
        self.counts: dict[str, int] = dict.fromkeys(("honest", *MISDEEDS), 0)
        self.misdeeds = tuple(misdeeds) or tuple(MISDEEDS)
        self.honesty = honesty
        self.random = random
        self._network = network
        self._driver = driver
        self._ledgers: dict[int, _Ledger] = {}
        self._listener: Listener | None = None
        self.connections: dict[HostileConnection, None] = {}

    async def start(self, host: str, port: int = 0) -> None:
        """Listen and register as any bookie does. The driver is already open; the caller closes it."""
        self._listener = await self._network.listen(host, port, lambda: HostileConnection(self))
        self.address = (host, self._listener.address[1])
        endpoint = Endpoint("bookie", *self.address, "bookie-rpc")
        await self._driver.register(self.bookie_id, BookieMode.WRITABLE, BookieInfo((endpoint,)))

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
            await self._listener.wait_closed()
        for connection in list(self.connections):
            connection.hang_up()

    def choose(self) -> str:
        """Choose "honest" or a misdeed for the next answer."""
        chosen = "honest" if self.random.random() < self.honesty else self.random.choice(self.misdeeds)
        self.counts[chosen] += 1
        return chosen

    # -- honest answers ------------------------------------------------------------------------------------------
    def answer(self, request: Request) -> Response:
        """Return the honest answer to a request."""
        match request:
            case AddRequest():
                return self._add(request)
            case ReadRequest():
                return self._read(request)
            case BatchReadRequest():
                return self._batch_read(request)
            case ReadLacRequest():
                ledger = self._ledgers.get(request.ledger_id, _Ledger())
                body = ledger.entries.get(max(ledger.entries, default=-1))
                status = Status.OK if body or ledger.lac_body else Status.IO_ERROR
                return ReadLacResponse(3, request.txn_id, status, request.ledger_id, ledger.lac_body, body)
            case WriteLacRequest():
                self._ledgers.setdefault(request.ledger_id, _Ledger()).lac_body = request.body
                return WriteLacResponse(3, request.txn_id, Status.OK, request.ledger_id)
            case _:
                return self._answer_other(request)

    def _answer_other(self, request: Request) -> Response:
        match request:
            case ListEntriesRequest():
                ledger = self._ledgers.get(request.ledger_id, _Ledger())
                runs = [range(entry_id, entry_id + 1) for entry_id in sorted(ledger.entries)]
                packed = pack_availability(runs)
                return ListEntriesResponse(3, request.txn_id, Status.OK, request.ledger_id, packed)
            case ForceLedgerRequest():
                return ForceLedgerResponse(3, request.txn_id, Status.OK, request.ledger_id)
            case GetBookieInfoRequest():
                return GetBookieInfoResponse(3, request.txn_id, Status.OK, 1 << 40, 1 << 39)
            case AuthRequest():
                return AuthResponse(3, request.txn_id, Status.OK, request.plugin, b"")
            case StartTlsRequest():
                return StartTlsResponse(3, request.txn_id, Status.BAD_REQUEST)
            case _:
                assert isinstance(request, InvalidRequest), request
                return BareResponse(request.version, request.txn_id, request.operation, request.status)

    def _add(self, request: AddRequest) -> AddResponses:
        """Store and answer a request of one stretch."""
        ((ledger_id, entry_ids, records),) = request.adds.stretches()
        ledger = self._ledgers.setdefault(ledger_id, _Ledger())
        status = Status.FENCED if ledger.is_fenced and not request.is_recovery else Status.OK
        if status is Status.OK:
            for index, entry_id in enumerate(entry_ids):
                ledger.entries[entry_id] = bytes(records.body(index))
            ledger.last_add_confirmed = max(ledger.last_add_confirmed, *request.adds.lacs)
        return AddResponses(request.version, status, ledger_id, entry_ids, request.txn_ids)

    def _fence(self, request: ReadRequest | BatchReadRequest) -> _Ledger:
        ledger = self._ledgers.setdefault(request.ledger_id, _Ledger())
        ledger.is_fenced |= request.is_fencing
        return ledger

    def _read(self, request: ReadRequest) -> ReadResponse:
        ledger, wanted = self._fence(request), request.entry_id
        if request.previous_lac is not None:
            wanted = request.previous_lac + 1 if ledger.last_add_confirmed > request.previous_lac else -2
        elif wanted == -1:
            wanted = max(ledger.entries, default=-1)
        body = ledger.entries.get(wanted)
        echoed = request.entry_id if request.previous_lac is None else (wanted if body is not None else -1)
        is_good = body is not None or request.previous_lac is not None
        status = Status.OK if is_good else Status.IO_ERROR
        lac = ledger.last_add_confirmed if request.version == 3 and is_good else None
        return ReadResponse(request.version, request.txn_id, status, request.ledger_id, echoed, body, lac)

    def _batch_read(self, request: BatchReadRequest) -> BatchReadResponse:
        ledger = self._fence(request)
        bodies: list[bytes] = []
        while len(bodies) < max(1, request.count_max) and sum(map(len, bodies)) < request.size_max // 2:
            body = ledger.entries.get(request.entry_id + len(bodies))
            if body is None:
                break
            bodies.append(body)
        status = Status.OK if bodies else Status.IO_ERROR
        data = Records.of(bodies).data if bodies else b""
        return BatchReadResponse(request.version, request.txn_id, status, request.ledger_id, request.entry_id, data)


class HostileConnection(asyncio.Protocol):
    """One accepted connection. The answers that are sent keep the order of their requests."""

    def __init__(self, bookie: HostileBookie) -> None:
        self.bookie = bookie
        self.random = bookie.random
        self.last_frames: list[bytes] = []
        self._decoder = RequestDecoder(FRAME_SIZE_MAX)
        self._transport: asyncio.Transport | None = None
        self._dripping: list[bytes] = []
        self._drip: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.bookie.connections[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.bookie.connections.pop(self, None)
        self._transport = None
        if self._drip is not None:
            self._drip.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            requests = list(_stretch_by_stretch(self._decoder.feed(data)))
        except RemoteProtocolError:
            self.hang_up()
            return
        for request in requests:
            response = self.bookie.answer(request)
            chosen = self.bookie.choose()
            if chosen == "honest":
                self.send(*pack(response))
            else:
                MISDEEDS[chosen](self, response)

    def send(self, *frames: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self.last_frames = list(frames[:FLOOD])
        if self._dripping:
            self._dripping += frames  # After the frames that are sent byte by byte.
        else:
            self._transport.write(b"".join(frames))

    def drip(self, frames: Sequence[bytes]) -> None:
        """Send frames byte by byte. Later frames wait until these are sent."""
        is_idle = not self._dripping
        self._dripping += [bytes([byte]) for frame in frames for byte in frame]
        if is_idle:
            self._drip_on()

    def _drip_on(self) -> None:
        if self._transport is not None and self._dripping:
            self._transport.write(self._dripping.pop(0))
            self._drip = asyncio.get_running_loop().call_later(DRIP_S, self._drip_on)

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def pack(response: Response) -> list[bytes]:
    """Return the frames of a response, one by one."""
    data = b"".join(bytes(part) for part in encode_response(response))
    frames = []
    while data:
        size = 4 + _LENGTH.unpack_from(data)[0]
        frames.append(data[:size])
        data = data[size:]
    return frames


def _stretch_by_stretch(requests: Iterable[Request]) -> Iterator[Request]:
    """Yield the requests, with adds of several ledgers as a request for each stretch."""
    for request in requests:
        if isinstance(request, AddRequest) and request.adds.stretch_count > 1:
            yield from (replace(request, adds=part) for part in request.adds.parts())
        else:
            yield request


# -- misdeeds: each receives the connection and the honest answer ------------------------------------------------------


def _changed(response: Response, **changes: Any) -> Response:
    """Return a copy with those of the changes for which the response has fields."""
    return replace(response, **{name: value for name, value in changes.items() if name in response.__struct_fields__})


def _wrong_ids(connection: HostileConnection, response: Response) -> None:
    """Send the answer with the id of another ledger, entry or request."""
    random = connection.random
    offset = random.choice((-1, 1, 1000, 1 << 40, -(1 << 40)))
    name = random.choice(("ledger_id", "entry_id", "txn_id"))
    if isinstance(response, AddResponses):
        txn_ids = response.txn_ids
        if name == "ledger_id":
            response = replace(response, ledger_id=response.ledger_id + offset)
        elif txn_ids is not None:
            response = replace(response, txn_ids=[txn_id + abs(offset) for txn_id in txn_ids])
        else:
            entry_ids = [entry_id + offset for entry_id in response.entry_ids]
            response = replace(response, entry_ids=entry_ids)
    elif hasattr(response, name):
        number = getattr(response, name) + offset
        response = _changed(response, **{name: abs(number) if name == "txn_id" else number})
    connection.send(*pack(response))


def _wrong_digest(connection: HostileConnection, response: Response) -> None:
    """Send the entry with one bit flipped, truncated, or extended."""
    name = next((name for name in ("body", "records", "last_entry_body") if getattr(response, name, None)), None)
    if name is not None:
        body = bytearray(getattr(response, name))
        change = connection.random.randrange(3)
        if change == 0:
            body[connection.random.randrange(len(body))] ^= 1 << connection.random.randrange(8)
        elif change == 1:
            del body[connection.random.randrange(len(body)) :]
        else:
            body += connection.random.randbytes(connection.random.randint(1, 100))
        response = _changed(response, **{name: bytes(body)})
    connection.send(*pack(response))


def _wrong_status(connection: HostileConnection, response: Response) -> None:
    if hasattr(response, "status"):
        response = _changed(response, status=connection.random.choice(FAILURES))
    connection.send(*pack(response))


def _wrong_version(connection: HostileConnection, response: Response) -> None:
    connection.send(*(frame[:4] + connection.random.randbytes(1) + frame[5:] for frame in pack(response)))


def _flipped_bits(connection: HostileConnection, response: Response) -> None:
    """Flip one bit of each frame: after the error code of a v2 answer, else in the first byte after the length."""
    frames = [bytearray(frame) for frame in pack(response)]
    for frame in frames:
        if len(frame) > HEAD_SIZE + 1 and getattr(response, "version", 3) != 3:
            frame[connection.random.randrange(HEAD_SIZE, len(frame))] ^= 1 << connection.random.randrange(8)
        else:
            frame[4] ^= 1 << connection.random.randrange(8)
    connection.send(*map(bytes, frames))


def _random_bytes(connection: HostileConnection, response: Response) -> None:
    connection.send(connection.random.randbytes(connection.random.choice((1, 3, 20, 2000))))


def _random_frame(connection: HostileConnection, response: Response) -> None:
    """Send a frame with a correct length and meaningless contents, then the answer."""
    body = b"\xff" + connection.random.randbytes(connection.random.choice((1, 7, 30, 3000)))
    connection.send(_LENGTH.pack(len(body)) + body, *pack(response))


def strangers(random: Random, version: int, count: int) -> Iterator[bytes]:
    """Yield frames of unsolicited answers, to adds and to reads."""
    for _ in range(count):
        ledger_id, entry_id = (1 << 50) + random.getrandbits(4), random.getrandbits(random.choice((6, 62)))
        if random.random() < 0.5:
            txn_ids = [random.getrandbits(20)] if version == 3 else None
            yield from pack(AddResponses(version, Status.OK, ledger_id, [entry_id], txn_ids))
        else:
            txn_id, body = (1 << 40) + random.getrandbits(20), random.randbytes(60)
            yield from pack(ReadResponse(version, txn_id, Status.OK, ledger_id, entry_id, body))


def _unsolicited(connection: HostileConnection, response: Response) -> None:
    """Send many unsolicited answers, then the requested one."""
    version = 3 if getattr(response, "version", 3) == 3 else 2
    connection.send(*strangers(connection.random, version, FLOOD), *pack(response))


def _duplicated(connection: HostileConnection, response: Response) -> None:
    connection.send(*(pack(response) * connection.random.choice((2, 2, 50))))


def _replayed(connection: HostileConnection, response: Response) -> None:
    """Send the previous answer again, then this one."""
    connection.send(*connection.last_frames, *pack(response))


def _silence(connection: HostileConnection, response: Response) -> None:
    """Send no answer."""


def _oversize_length(connection: HostileConnection, response: Response) -> None:
    size = connection.random.choice((0, FRAME_SIZE_MAX, 1 << 30, (1 << 31) - 1, (1 << 32) - 1))
    connection.send(_LENGTH.pack(size) + b"\0" * 40)


def _endless_frame(connection: HostileConnection, response: Response) -> None:
    """Send a frame with a permitted length, and only a part of its contents."""
    connection.send(_LENGTH.pack(FRAME_SIZE_MAX - 100) + b"\0" * 1000)


def _truncated_frame(connection: HostileConnection, response: Response) -> None:
    """Truncate the last frame, so that the next answer begins inside it; sometimes hang up."""
    frames = pack(response)
    connection.send(*frames[:-1], frames[-1][: connection.random.randrange(len(frames[-1]))])
    if connection.random.random() < 0.5:
        connection.hang_up()


def _slow_drip(connection: HostileConnection, response: Response) -> None:
    connection.drip(pack(response))


def _hang_up(connection: HostileConnection, response: Response) -> None:
    connection.hang_up()


MISDEEDS: dict[str, Callable[[HostileConnection, Response], None]] = {
    misdeed.__name__.strip("_").replace("_", " "): misdeed
    for misdeed in (
        *(_wrong_ids, _wrong_digest, _wrong_status, _wrong_version, _flipped_bits, _random_bytes, _random_frame),
        *(_unsolicited, _duplicated, _replayed, _silence, _oversize_length, _endless_frame, _truncated_frame),
        *(_slow_drip, _hang_up),
    )
}
