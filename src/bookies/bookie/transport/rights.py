"""Rights at a bookie: which requests of a user are served, which wait, and which are refused.

A user of the file of users has roles, everywhere or on ledgers with certain labels. Reads need the role reader; adds,
explicit LACs, forces and fences the role writer. The labels are those of the ledger's record, which is read once for
each ledger of a user and kept for `LABELS_S`. A user may also have rates: the bookie first delays what exceeds them,
then refuses it with TOO_MANY_REQUESTS, so it holds at most `HELD_SIZE_MAX` bytes of a user, and clients get an answer
before their time-outs. Requests of one connection are served in their order; those of other users do not wait.

Creation and deletion of ledgers are changes of metadata, which no bookie sees: the metadata store's own access control
and the gateway decide about these.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from bookies.bookie.transport.connection import Connection, Service
from bookies.bookie.transport.denials import Denials
from bookies.bookie.transport.users_file import UsersFile
from bookies.errors import BookKeeperError, Status
from bookies.kernels import Adds, Records
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import READ_AT_ONCE, Versioned
from bookies.protocol.rights import Allowance, Role, User
from bookies.protocol.rights.allowance import DELAY_S_MAX
from bookies.protocol.rights.users import LABELS_S
from bookies.runtime.events import Events
from bookies.runtime.ports import Clock
from bookies.wire.messages import (
    AddRequest,
    BatchReadRequest,
    ForceLedgerRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    Request,
    WriteLacRequest,
)

WATCH_S = 0.4  # between two looks at the file of users; a revoked user has to be out within a second
ABSENT_S = 1.0  # the same of a ledger without a record, which may be created
LABELS_WAIT_S = 4.0  # for the metadata store; less than the time-out of clients
LEDGERS_MAX = 100_000  # of one user whose roles are kept
HELD_SIZE_MAX = 8 << 20  # bytes of one user's requests that wait
HELD_REQUESTS_MAX = 10_000
REFUSED_MAX = 1000  # requests of one user whose refusals wait
PIECE_S = 0.1  # adds that came together are served in pieces that take this long at the user's rate

_NEEDED: Mapping[type, tuple[Role, str]] = {
    AddRequest: (Role.WRITER, "add"),
    WriteLacRequest: (Role.WRITER, "write a LAC"),
    ForceLedgerRequest: (Role.WRITER, "force"),
    ReadRequest: (Role.READER, "read"),
    BatchReadRequest: (Role.READER, "read"),
    ReadLacRequest: (Role.READER, "read the LAC"),
    ListEntriesRequest: (Role.READER, "list entries"),
}
_FENCE = (Role.WRITER, "fence")
NO_RECORDS = Records(b"", (0,))
_LEDGER_ID = struct.Struct(">q")  # at the start of the body of an explicit LAC


class Handlers(Service, Protocol):
    """Serves what is allowed, and refuses the rest."""

    def refuse(self, connection: Connection, request: Request, status: Status) -> None:
        """Answer a request with a status, and serve nothing. One without an effect is answered as usual."""


class _Account:
    """One user at this bookie, with all connections."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.allowance = Allowance(user.bytes_rate, user.requests_rate)
        self.held_size = 0  # bytes of requests that wait
        self.held_count = 0
        self.refused = 0  # requests whose refusals wait
        self._roles: dict[int, tuple[Role, float]] = {}  # by ledger, and until when that is kept

    @property
    def is_free(self) -> bool:
        """Report whether every request of the user is served at once."""
        return self.user.role >= Role.WRITER and not self.user.is_limited

    def renew(self, user: User) -> None:
        self.user = user
        self.allowance.renew(user.bytes_rate, user.requests_rate)
        self._roles.clear()

    def role_on(self, ledger_id: int, now: float) -> Role | None:
        """Return the role on a ledger; None: the labels have to be read."""
        if not self.user.grants or self.user.role >= Role.WRITER or ledger_id < 0:
            return self.user.role
        role, until = self._roles.get(ledger_id, (Role.ANYONE, now))
        return role if now < until else None

    def learn(self, ledger_id: int, labels: Mapping[str, bytes] | None, now: float) -> None:
        """Keep the role on a ledger with these labels; None: it has no record."""
        if len(self._roles) >= LEDGERS_MAX:
            self._roles.clear()
        self._roles[ledger_id] = self.user.role_on(labels), now + (ABSENT_S if labels is None else LABELS_S)

    def may_hold(self, size: int, requests: int) -> bool:
        """Report whether so much more may wait."""
        size, requests = self.held_size + size, self.held_count + requests
        return size <= HELD_SIZE_MAX and requests <= HELD_REQUESTS_MAX and self.allowance.holds(size, requests)

    def is_full(self, size: int) -> bool:
        """Report whether too many bytes wait, and not only the `size` bytes of one request."""
        return self.held_size > max(size, HELD_SIZE_MAX)

    def held(self, size: int, requests: int) -> None:
        self.held_size += size
        self.held_count += requests


class Rights:
    """The rights of all users at one bookie. `users`: set before the first connection, if the bookie has a file."""

    def __init__(self, handlers: Handlers, driver: MetadataDriver, clock: Clock) -> None:
        self.users: UsersFile | None = None
        self.denials = Denials(clock)
        self.delays = 0  # times that requests of a user had to wait for its rate
        self.refusals = 0  # requests that exceeded a rate
        self.handlers = handlers
        self.driver = driver
        self.clock = clock
        self._events = Events("rights", clock)
        self._accounts: dict[str, _Account] = {}
        self._services: dict[_UserService, None] = {}

    def admit(self, connection: Connection, name: str) -> _UserService:
        """Return what serves a new connection of a user."""
        assert self.users is not None
        account = self._accounts.get(name)
        if account is None:
            user = self.users.current().by_name.get(name, User(name, Role.ANYONE, ()))
            account = self._accounts[name] = _Account(user)
        service = _UserService(self, connection, account)
        self._services[service] = None
        return service

    async def watch(self) -> None:
        """Apply changes of the file of users until cancelled: who lost a credential or a right is disconnected."""
        assert self.users is not None
        while True:
            await asyncio.sleep(WATCH_S)
            for service in [service for service in self._services if service.connection.is_closed]:
                service.drop()
                del self._services[service]
            by_name = self.users.current().by_name
            for name, account in list(self._accounts.items()):
                user = by_name.get(name)
                if user is account.user:
                    continue
                if user is None or account.user.lost_rights(user):
                    self._disconnect(name)
                if user is None:
                    del self._accounts[name]
                else:
                    account.renew(user)

    def _disconnect(self, name: str) -> None:
        services = [service for service in self._services if service.account.user.name == name]
        for service in services:
            service.connection.abort()
        self._events.warning("rights.revoked", user=name, connections=len(services))

    def labels_failed(self, ledgers: int, error: BaseException) -> None:
        """Log that rights could not be determined."""
        self._events.warning("rights.unknown", ledgers=ledgers, error=error)


class _Held(Struct):
    """A request that waits, and what it counts for."""

    request: Request
    size: int
    count: int


class _UserService:
    """Serves one connection of a user. See `connection.UserService`."""

    def __init__(self, rights: Rights, connection: Connection, account: _Account) -> None:
        self.connection = connection
        self.account = account
        self._rights = rights
        self._held: deque[_Held] = deque()
        self._assumed: deque[int] = deque()  # bytes of the answers of reads in progress, as charged
        self._is_waiting = False  # for labels or for the rate

    def handle(self, connection: Connection, requests: list[Request]) -> None:
        """See `connection.Service`."""
        account = self.account
        if account.is_free and not self._held:
            self._rights.handlers.handle(connection, requests)
            return
        for request in requests:
            if self._is_waiting and not account.may_hold(*_first_cost(request, account.user, self._read_size)):
                self._refuse(_Held(request, *_cost_of(request, self._read_size)))
                continue
            for piece in _pieces(request, account.user):
                held = _Held(piece, *_cost_of(piece, self._read_size))
                self._held.append(held)
                account.held(held.size, held.count)
            if self._is_waiting:
                self._trim()
        if not self._is_waiting:
            self._go_on()

    def answered(self, size: int) -> None:
        """See `connection.UserService`. The size replaces the one that was assumed for a read."""
        if self.account.user.is_limited:
            assumed = self._assumed.popleft() if self._assumed else 0
            self.account.allowance.charge(size - assumed, 0, self._rights.clock.monotonic())

    @property
    def _read_size(self) -> int:
        """Return the bytes that the answer to a read is assumed to have: not more than a small part of the rate."""
        rate = self.account.user.bytes_rate
        return 0 if rate is None else int(min(self.connection.share.size_guess, rate * PIECE_S))

    def _go_on(self) -> None:
        """Serve what waits, until something has to wait for labels or for the rate."""
        self._is_waiting = False
        ready: list[Request] = []
        while self._held and not self._is_waiting:
            if self.connection.is_closed:
                self._take()
            else:
                self._weigh(self._held[0], ready)
        if ready:
            self._rights.handlers.handle(self.connection, ready)

    def _weigh(self, held: _Held, ready: list[Request]) -> None:
        """Add the first request that waits to those to serve, or refuse it, or let it wait."""
        account, now = self.account, self._rights.clock.monotonic()
        unknown = [ledger_id for ledger_id in _ledgers_of(held.request) if account.role_on(ledger_id, now) is None]
        if unknown:
            if self._waits():
                self.connection.start(self._learn(sorted(set(unknown))[:READ_AT_ONCE]))
            return
        wait_s = account.allowance.wait_s(now)
        if wait_s > DELAY_S_MAX:
            self._refuse(self._take())
        elif wait_s > 0:
            if self._waits():
                self._rights.delays += 1
                asyncio.get_running_loop().call_later(wait_s, self._go_on)
        else:
            self._take()
            account.allowance.charge(held.size, held.count, now)
            self._assume(held.request, held.size)
            ready += self._allowed(held.request, now)

    def _assume(self, request: Request, size: int) -> None:
        """Note what was charged for the answer to a read. The order of answers does not matter for the sum."""
        if self.account.user.is_limited and isinstance(request, ReadRequest | BatchReadRequest):
            self._assumed.append(size)

    def _waits(self) -> bool:
        """Let the first request wait, and as many others as may. Report whether any does."""
        self._trim()
        self._is_waiting = bool(self._held)
        return self._is_waiting

    def _trim(self) -> None:
        """Refuse the last of what waits, as far as it may not. One of each connection may exceed the rate."""
        account, held = self.account, self._held
        while held and not account.may_hold(0, 0) and (len(held) > 1 or account.is_full(held[0].size)):
            self._refuse(self._take(is_last=True))

    def drop(self) -> None:
        """Drop what waits: the connection is closed."""
        while self._held:
            self._take()

    def _take(self, *, is_last: bool = False) -> _Held:
        """Remove and return the first request that waits, or the last."""
        held = self._held.pop() if is_last else self._held.popleft()
        self.account.held(-held.size, -held.count)
        return held

    def _refuse(self, held: _Held) -> None:
        """Refuse what exceeds the rate, after a while: a client that sends it again at once would cost others more."""
        self._rights.refusals += held.count
        if self.account.refused < REFUSED_MAX:
            self.account.refused += 1
            request = held.request
            if isinstance(request, AddRequest):  # Its answer needs no records.
                request = replace(request, adds=replace(request.adds, records=NO_RECORDS))
            asyncio.get_running_loop().call_later(DELAY_S_MAX, self._answer_refused, request)
        else:
            self._answer_now(held.request)

    def _answer_refused(self, request: Request) -> None:
        self.account.refused -= 1
        if not self.connection.is_closed:
            self._answer_now(request)

    def _answer_now(self, request: Request) -> None:
        self._assume(request, 0)
        self._rights.handlers.refuse(self.connection, request, Status.TOO_MANY_REQUESTS)

    def _allowed(self, request: Request, now: float) -> list[Request]:
        """Return what is allowed of a request, and refuse the rest."""
        needed = _FENCE if _is_fencing(request) else _NEEDED.get(type(request))
        if needed is None:
            return [request]
        account, (role, operation) = self.account, needed
        ids = _ledgers_of(request)
        denied = {ledger_id for ledger_id in ids if (account.role_on(ledger_id, now) or Role.ANYONE) < role}
        if not denied:
            return [request]
        for ledger_id in sorted(denied):
            self._rights.denials.denied(account.user, self.connection.peer, operation, f"ledger {ledger_id}", role)
        if isinstance(request, AddRequest) and denied != set(ids):
            numbers = range(request.adds.stretch_count)
            kept, left = (
                request.adds.picked([number for number in numbers if (ids[number] in denied) is is_denied])
                for is_denied in (False, True)
            )
            self._rights.handlers.refuse(self.connection, replace(request, adds=left), Status.UNAUTHORIZED)
            return [replace(request, adds=kept)]
        self._rights.handlers.refuse(self.connection, request, Status.UNAUTHORIZED)
        return []

    async def _learn(self, ledger_ids: Sequence[int]) -> None:
        """Read the labels of ledgers, then go on. If the metadata store fails, what waits is refused."""
        rights = self._rights
        try:
            async with asyncio.timeout(LABELS_WAIT_S):
                records = await rights.driver.current_ledgers(ledger_ids)
        except asyncio.CancelledError:
            self.drop()
            self._is_waiting = False
            raise
        except (BookKeeperError, TimeoutError) as error:
            rights.labels_failed(len(ledger_ids), error)
            while self._held:
                request = self._take().request
                self._assume(request, 0)
                rights.handlers.refuse(self.connection, request, _unknown(request))
            self._is_waiting = False
            return
        now = rights.clock.monotonic()
        for ledger_id, record in zip(ledger_ids, records, strict=True):
            labels = record.metadata.custom_metadata if isinstance(record, Versioned) else None
            self.account.learn(ledger_id, labels, now)
        self._go_on()


def _pieces(request: Request, user: User) -> Iterator[Request]:
    """Yield adds that came together in pieces, each of a small part of the user's rate; other requests as they are."""
    count = 0 if not isinstance(request, AddRequest) else _piece_size(request.adds, user)
    if not isinstance(request, AddRequest) or count >= len(request.adds):
        yield request
        return
    txn_ids = request.txn_ids
    for part in request.adds.parts():
        for start in range(0, len(part), count):
            stop = min(start + count, len(part))
            records, lac = part.records.slice(start, stop).alone(), part.lacs[0]
            adds = Adds.of(part.first_ledger_id, part.entry_ids[start:stop], records, lac)
            yield replace(request, adds=adds, txn_ids=txn_ids and txn_ids[start:stop])


def _first_cost(request: Request, user: User, read_size: int) -> tuple[int, int]:
    """Return the bytes and requests of about the first piece of a request."""
    size, count = _cost_of(request, read_size)
    if not isinstance(request, AddRequest):
        return size, count
    piece = _piece_size(request.adds, user)
    return size * piece // count, piece


def _piece_size(adds: Adds, user: User) -> int:
    """Return the number of entries that take `PIECE_S` of the user's rate, at least one."""
    if not user.is_limited:
        return len(adds)
    requests = len(adds) if user.requests_rate is None else user.requests_rate * PIECE_S
    rate = user.bytes_rate
    return max(1, int(min(requests, len(adds) if rate is None else rate * PIECE_S * len(adds) / adds.records.size)))


def _unknown(request: Request) -> Status:
    """Return the status if the rights cannot be determined: no definite statement."""
    is_write = isinstance(request, AddRequest | WriteLacRequest | ForceLedgerRequest)
    return Status.UNKNOWN_LEDGER_STATE if is_write else Status.IO_ERROR


def _is_fencing(request: Request) -> bool:
    return isinstance(request, ReadRequest | BatchReadRequest) and request.is_fencing


def _cost_of(request: Request, read_size: int) -> tuple[int, int]:
    """Return the bytes and requests that a request counts for. `read_size`: assumed bytes of the answer to a read."""
    if isinstance(request, AddRequest):
        return request.adds.records.size, len(request.adds)
    is_read = isinstance(request, ReadRequest | BatchReadRequest)
    return read_size if is_read else 0, 1


def _ledgers_of(request: Request) -> Sequence[int]:
    """Return the ledgers that a request is about. An explicit LAC is about that in its body, too."""
    if isinstance(request, AddRequest):
        return request.adds.ledger_ids
    if isinstance(request, WriteLacRequest) and len(request.body) >= _LEDGER_ID.size:
        return (request.ledger_id, _LEDGER_ID.unpack_from(request.body)[0])
    if isinstance(
        request,
        ReadRequest | BatchReadRequest | ReadLacRequest | ListEntriesRequest | ForceLedgerRequest | WriteLacRequest,
    ):
        return (request.ledger_id,)
    return ()
