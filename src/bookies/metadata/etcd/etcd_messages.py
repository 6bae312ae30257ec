"""The messages of etcd's API that the metadata driver uses, as bytes. No IO.

Field numbers are those of etcd's published `rpc.proto` and `kv.proto`, version 3.4, which later versions keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from bookies.encoding import protobuf
from bookies.encoding.protobuf import Message, Schema, Value
from bookies.metadata.etcd.etcd_port import (
    Answer,
    Condition,
    Get,
    HeldBy,
    KeyValue,
    MadeAt,
    Only,
    Operation,
    Put,
)

TRANSACT = "/etcdserverpb.KV/Txn"
WATCH = "/etcdserverpb.Watch/Watch"
GRANT_LEASE = "/etcdserverpb.Lease/LeaseGrant"
KEEP_LEASE = "/etcdserverpb.Lease/LeaseKeepAlive"
REVOKE_LEASE = "/etcdserverpb.Lease/LeaseRevoke"
AUTHENTICATE = "/etcdserverpb.Auth/Authenticate"

_CREATE_REVISION, _MOD_REVISION, _OF_LEASE = 1, 2, 4  # targets of a comparison, whose result 0 is "equal"

_HEADER = Schema({"revision": (3, "int")})
_KEY_VALUE = Schema(
    {
        "key": (1, "bytes"),
        "create_revision": (2, "int"),
        "mod_revision": (3, "int"),
        "version": (4, "int"),
        "value": (5, "bytes"),
        "lease": (6, "int"),
    }
)
_COMPARE = Schema(
    {
        "target": (2, "int"),
        "key": (3, "bytes"),
        "create_revision": (5, "int"),
        "mod_revision": (6, "int"),
        "lease": (8, "int"),
    }
)
_RANGE = Schema({"key": (1, "bytes"), "range_end": (2, "bytes"), "limit": (3, "int"), "keys_only": (8, "int")})
_PUT = Schema({"key": (1, "bytes"), "value": (2, "bytes"), "lease": (3, "int")})
_DELETE = Schema({"key": (1, "bytes"), "range_end": (2, "bytes")})
_OPERATION = Schema({"range": (1, _RANGE), "put": (2, _PUT), "delete": (3, _DELETE)})
_TRANSACTION = Schema({"compare": (1, _COMPARE), "success": (2, _OPERATION), "failure": (3, _OPERATION)})
_RANGE_ANSWER = Schema({"kvs": (2, _KEY_VALUE)})
_RESULT = Schema({"range": (1, _RANGE_ANSWER)})
_ANSWER = Schema({"header": (1, _HEADER), "succeeded": (2, "int"), "responses": (3, _RESULT)})
_LEASE = Schema({"ttl": (1, "int")})
_LEASE_ID = Schema({"id": (1, "int")})
_LEASE_ANSWER = Schema({"id": (2, "int"), "ttl": (3, "int")})
_WATCH_CREATE = Schema(
    {
        "key": (1, "bytes"),
        "range_end": (2, "bytes"),
        "start_revision": (3, "int"),
        "filters": (5, "int"),
        "id": (7, "int"),
    }
)
_FILTERS = {Only.DELETIONS: 0, Only.PUTS: 1}  # a filter names the changes that are not reported
_WATCH_CANCEL = Schema({"id": (1, "int")})
_WATCH = Schema({"create": (1, _WATCH_CREATE), "cancel": (2, _WATCH_CANCEL)})
_EVENT = Schema({"type": (1, "int")})
_WATCH_ANSWER = Schema({"id": (2, "int"), "canceled": (4, "int"), "events": (11, _EVENT)})
_AUTHENTICATE = Schema({"name": (1, "bytes"), "password": (2, "bytes")})
_TOKEN = Schema({"token": (2, "bytes")})


def _key(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def _messages(fields: Iterable[tuple[str, Value]], name: str) -> list[Message]:
    return [value for field, value in fields if field == name and isinstance(value, list)]


# -- transactions ------------------------------------------------------------------------------------------------------


def pack_transaction(
    conditions: Sequence[Condition], then: Sequence[Operation], otherwise: Sequence[Operation]
) -> bytes:
    """Return a `TxnRequest`."""
    message: Message = [("compare", _compare(condition)) for condition in conditions]
    message += [("success", [_operation(operation)]) for operation in then]
    message += [("failure", [_operation(operation)]) for operation in otherwise]
    return protobuf.pack(_TRANSACTION, message)


def _compare(condition: Condition) -> Message:
    if isinstance(condition, HeldBy):
        return [("target", _OF_LEASE), ("key", _key(condition.key)), ("lease", condition.lease)]
    is_creation = isinstance(condition, MadeAt)
    target, name = (_CREATE_REVISION, "create_revision") if is_creation else (_MOD_REVISION, "mod_revision")
    return [("target", target), ("key", _key(condition.key)), (name, condition.revision)]


def _operation(operation: Operation) -> tuple[str, Value]:
    if isinstance(operation, Get):
        fields: Message = [("key", _key(operation.key))]
        if operation.stop is not None:
            fields.append(("range_end", _key(operation.stop)))
        return "range", [*fields, ("limit", operation.count_max), ("keys_only", int(operation.keys_only))]
    if isinstance(operation, Put):
        return "put", [("key", _key(operation.key)), ("value", operation.value), ("lease", operation.lease)]
    key: Message = [("key", _key(operation.key))]
    return "delete", key if operation.stop is None else [*key, ("range_end", _key(operation.stop))]


def parse_answer(data: bytes, operations: tuple[Sequence[Operation], Sequence[Operation]]) -> Answer:
    """Read a `TxnResponse`. `operations`: `then` and `otherwise` of the transaction. Raises ValueError."""
    fields = protobuf.parse(_ANSWER, data)
    is_met = any(name == "succeeded" and value == 1 for name, value in fields)
    results = _messages(fields, "responses")
    done = operations[0 if is_met else 1]
    if len(results) != len(done):
        raise ValueError(f"etcd returned {len(results)} results for {len(done)} operations")
    items = [_items(result) for result, operation in zip(results, done, strict=True) if isinstance(operation, Get)]
    headers = _messages(fields, "header")
    if not headers:
        raise ValueError("no header")
    return Answer(is_met, _number(headers[0], "revision"), items)


def _items(result: Message) -> list[KeyValue]:
    return [_key_value(dict(item)) for answer in _messages(result, "range") for item in _messages(answer, "kvs")]


def _key_value(fields: dict[str, Value]) -> KeyValue:
    key, value = fields.get("key", b""), fields.get("value", b"")
    assert isinstance(key, bytes)
    assert isinstance(value, bytes)
    numbers = (fields.get(name, 0) for name in ("create_revision", "mod_revision", "version", "lease"))
    created, modified, version, lease = (number for number in numbers if isinstance(number, int))
    return KeyValue(key.decode("utf-8", "surrogateescape"), value, created, modified, version, lease)


def _number(fields: Message, name: str) -> int:
    value = dict(fields).get(name, 0)
    assert isinstance(value, int)
    return value


# -- leases and identity -----------------------------------------------------------------------------------------------


def pack_grant(ttl_s: int) -> bytes:
    return protobuf.pack(_LEASE, [("ttl", ttl_s)])


def pack_lease(lease: int) -> bytes:
    """Return a request to renew or to revoke a lease."""
    return protobuf.pack(_LEASE_ID, [("id", lease)])


def parse_lease(data: bytes) -> tuple[int, int]:
    """Read a lease and its remaining seconds; 0: it has ended. Raises ValueError."""
    fields = protobuf.parse(_LEASE_ANSWER, data)
    return _number(fields, "id"), _number(fields, "ttl")


def pack_authenticate(user: str, password: str) -> bytes:
    return protobuf.pack(_AUTHENTICATE, [("name", user.encode()), ("password", password.encode())])


def parse_token(data: bytes) -> str:
    """Read the token of an authentication. Raises ValueError."""
    token = dict(protobuf.parse(_TOKEN, data)).get("token")
    if not isinstance(token, bytes):
        raise ValueError("no token")
    return token.decode("ascii")


# -- watches -----------------------------------------------------------------------------------------------------------


class WatchNews(Struct, frozen=True):
    """News of the watch with this number: changes, or its end by etcd."""

    number: int
    has_events: bool
    is_ended: bool


def pack_watch(number: int, key: str, stop: str | None, revision: int, *, only: Only | None = None) -> bytes:
    """Return a request to watch. `number`: identifies the watch on its stream, from 1."""
    fields: Message = [("key", _key(key))]
    if stop is not None:
        fields.append(("range_end", _key(stop)))
    filters: Message = [("filters", _FILTERS[only])] if only is not None else []
    fields += [("start_revision", revision), *filters, ("id", number)]
    return protobuf.pack(_WATCH, [("create", fields)])


def pack_unwatch(number: int) -> bytes:
    return protobuf.pack(_WATCH, [("cancel", [("id", number)])])


def parse_watch_news(data: bytes) -> WatchNews:
    """Read news of a watch. Raises ValueError."""
    fields = protobuf.parse(_WATCH_ANSWER, data)
    return WatchNews(_number(fields, "id"), bool(_messages(fields, "events")), bool(_number(fields, "canceled")))
