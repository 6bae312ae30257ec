"""ZooKeeper's protocol as bytes: requests, replies, events. Pure functions; `zk_client` does the IO.

Every packet is its length (4 bytes) and its body, numbers big-endian. A request is the connection's next number
(`xid`), the operation and the operation's fields. A reply is the same number, a transaction number (`zxid`), an error
code and the result; the server answers requests of one connection in order. Source: decision 17.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Sequence

from msgspec import Struct

from bookies.metadata.zookeeper.zookeeper_port import Acl, Check, Create, Delete, Operation, SetData, Stat

PACKET_SIZE_MAX = 64 * 1024 * 1024  # bytes of a reply; the children of one znode may be many
XID_EVENT, XID_PING, XID_AUTHENTICATION = -1, -2, -4
PASSWORD_NONE = bytes(16)

_INT = struct.Struct(">i")
_LENGTH_AND_HEADER = struct.Struct(">iii")
_REPLY_HEADER = struct.Struct(">iqi")
_CONNECT = struct.Struct(">iqiq")  # version of the protocol, last zxid seen, timeout in ms, session
_CONNECTED = struct.Struct(">iiq")  # version of the protocol, timeout in ms, session
_STAT = struct.Struct(">qqqqiiiqiiq")
_MULTI_HEADER = struct.Struct(">i?i")
_EVENT = struct.Struct(">ii")
_ALL_RIGHTS = 31
_EPHEMERAL, _SEQUENTIAL = 1, 2


class Code(enum.IntEnum):
    """Operation of a request."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET = 4
    SET = 5
    SYNC = 9
    PING = 11
    CHILDREN = 12  # with the znode's stat
    CHECK = 13
    MULTI = 14
    CREATE_WITH_STAT = 15
    AUTHENTICATE = 100
    SASL = 102
    CLOSE = -11


class Fault(enum.IntEnum):
    """Error code of a reply. Other codes exist; all are negative."""

    ROLLED_BACK = 0  # of an operation in a refused transaction, before the one at fault
    RUNTIME_INCONSISTENCY = -2  # and after it
    SERVER_FAULTS_END = -100  # codes below it refuse a request, which has changed nothing
    NODE_MISSING = -101
    NO_RIGHTS = -102
    WRONG_VERSION = -103
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    INVALID_ACL = -114
    AUTHENTICATION_FAILED = -115
    SESSION_MOVED = -118


class EventKind(enum.IntEnum):
    """Kind of change that a watch reports."""

    CREATED = 1
    DELETED = 2
    DATA_CHANGED = 3
    CHILDREN_CHANGED = 4


class Broken(ValueError):
    """A packet of the server cannot be parsed."""


class Reply(Struct):
    """Header of a reply. `fault`: 0, or see `Fault`."""

    xid: int
    zxid: int
    fault: int


class Granted(Struct):
    """The server's answer to a new connection. `timeout_ms` of 0 or less: the session asked for has ended."""

    timeout_ms: int
    session: int
    password: bytes


# -- requests --------------------------------------------------------------------------------------------------------
def text(value: str) -> bytes:
    encoded = value.encode()
    return _INT.pack(len(encoded)) + encoded


def buffer(value: bytes) -> bytes:
    return _INT.pack(len(value)) + value


def packet(body: bytes) -> bytes:
    """Return a packet without header, as the first one of a connection."""
    return _INT.pack(len(body)) + body


def request(xid: int, code: int, body: bytes) -> bytes:
    """Return the packet of a request. `body`: the operation's fields."""
    return _LENGTH_AND_HEADER.pack(8 + len(body), xid, code) + body


def connect_request(zxid: int, timeout_ms: int, session: int, password: bytes) -> bytes:
    """Return the first packet of a connection. `zxid`: the last one seen; a server that lags behind it refuses.
    `session`: to be continued; 0: a new one. A server that has lost the majority is not wanted.
    """
    return packet(_CONNECT.pack(0, zxid, timeout_ms, session) + buffer(password) + b"\0")


def authentication(scheme: str, data: bytes) -> bytes:
    return request(XID_AUTHENTICATION, Code.AUTHENTICATE, _INT.pack(0) + text(scheme) + buffer(data))


def _acl(acl: Acl) -> bytes:
    scheme, identity = acl.value.split(":")
    return _INT.pack(1) + _INT.pack(_ALL_RIGHTS) + text(scheme) + text(identity)


_OPEN, _CREATOR = _acl(Acl.OPEN), _acl(Acl.CREATOR)


def watched_path(path: str, is_watched: bool) -> bytes:
    """Return the fields of the reads: `EXISTS`, `GET` and `CHILDREN`."""
    return text(path) + (b"\1" if is_watched else b"\0")


def fields(operation: Operation) -> bytes:
    """Return the fields of a change or check."""
    if isinstance(operation, Create):
        flags = _EPHEMERAL * operation.is_ephemeral + _SEQUENTIAL * operation.is_sequential
        acl = _OPEN if operation.acl is Acl.OPEN else _CREATOR
        return text(operation.path) + buffer(operation.data) + acl + _INT.pack(flags)
    if isinstance(operation, SetData):
        return text(operation.path) + buffer(operation.data) + _INT.pack(operation.version)
    return text(operation.path) + _INT.pack(operation.version)


_CODES: dict[type, Code] = {Create: Code.CREATE, SetData: Code.SET, Delete: Code.DELETE, Check: Code.CHECK}
_MULTI_HEADERS = {operation: _MULTI_HEADER.pack(code, False, -1) for operation, code in _CODES.items()}
_MULTI_END = _MULTI_HEADER.pack(-1, True, -1)


def transaction(operations: Sequence[Operation]) -> bytes:
    """Return the fields of `MULTI`."""
    parts = [_MULTI_HEADERS[type(operation)] + fields(operation) for operation in operations]
    return b"".join([*parts, _MULTI_END])


# -- replies ---------------------------------------------------------------------------------------------------------
def split(received: bytearray) -> list[bytes]:
    """Take the complete packets' bodies from the bytes received. Raises `Broken` for an impossible length."""
    bodies = []
    at = 0
    while len(received) - at >= 4:
        size = _INT.unpack_from(received, at)[0]
        if not 0 <= size <= PACKET_SIZE_MAX:
            raise Broken(f"a packet of {size} bytes")
        if len(received) - at - 4 < size:
            break
        bodies.append(bytes(received[at + 4 : at + 4 + size]))
        at += 4 + size
    del received[:at]
    return bodies


class Reader:
    """Reads the fields of a packet in order. Raises `Broken` at its end."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def _fields(self, fields: struct.Struct) -> tuple[int, ...]:
        try:
            values = fields.unpack_from(self._body, self._at)
        except struct.error as error:
            raise Broken(f"a packet of {len(self._body)} bytes is too short: {error}") from error
        self._at += fields.size
        return values

    def number(self) -> int:
        return self._fields(_INT)[0]

    def buffer(self) -> bytes:
        """Read bytes. None, which the protocol knows, counts as empty."""
        size = max(self._fields(_INT)[0], 0)
        value = self._body[self._at : self._at + size]
        if len(value) < size:
            raise Broken(f"a packet of {len(self._body)} bytes ends in a field of {size}")
        self._at += size
        return value

    def text(self) -> str:
        try:
            return self.buffer().decode()
        except UnicodeDecodeError as error:
            raise Broken(f"a path that is not UTF-8: {error}") from error

    def stat(self) -> Stat:
        czxid, mzxid, ctime, mtime, version, cversion, _, owner, _, count, pzxid = self._fields(_STAT)
        return Stat(czxid, mzxid, pzxid, ctime, mtime, version, cversion, owner, count)

    def reply(self) -> Reply:
        return Reply(*self._fields(_REPLY_HEADER))

    def granted(self) -> Granted:
        _, timeout_ms, session = self._fields(_CONNECTED)
        return Granted(timeout_ms, session, self.buffer())

    def event(self) -> tuple[int, str]:
        """Read a watch's kind (see `EventKind`, others exist) and path."""
        kind, _ = self._fields(_EVENT)
        return kind, self.text()

    # results of requests
    def nothing(self) -> None:
        return None

    def created(self) -> tuple[str, Stat]:
        return self.text(), self.stat()

    def data(self) -> tuple[bytes, Stat]:
        return self.buffer(), self.stat()

    def children(self) -> tuple[list[str], Stat]:
        names = [self.text() for _ in range(self.number())]
        return sorted(names), self.stat()

    def outcomes(self) -> list[str | Stat | int | None]:
        """Read a transaction's results in order: a path, a stat, nothing, or the number of a `Fault`."""
        outcomes: list[str | Stat | int | None] = []
        while True:
            code, is_end, _ = self._fields(_MULTI_HEADER)
            if is_end:
                return outcomes
            read = _OUTCOMES.get(code)
            if read is None:
                raise Broken(f"a result of operation {code} in a transaction")
            outcomes.append(read(self))


_OUTCOMES: dict[int, Callable[[Reader], str | Stat | int | None]] = {
    Code.CREATE: Reader.text,
    Code.SET: Reader.stat,
    Code.DELETE: Reader.nothing,
    Code.CHECK: Reader.nothing,
    -1: Reader.number,
}
