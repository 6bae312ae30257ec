"""The binding: data of a namespace's znode that names its BookKeeper cluster. Source: distributedlog 2.2."""

from __future__ import annotations

import json
from typing import Any

from msgspec import Struct

from bookies.encoding.documents import parse_json
from bookies.errors import MetadataCorrupt

_HEADER = "1\nBKDL\n"
# Thrift's field id, its type, our field
_FIELDS = (
    (1, "str", "servers"),
    (2, "str", "ledgers"),
    (3, "tf", "checks_txids"),
    (4, "tf", "encodes_region"),
    (5, "str", "reader_servers"),
    (6, "str", "log_servers"),
    (7, "str", "log_reader_servers"),
    (8, "str", "acl_root"),
    (9, "i64", "first_lssn"),
    (10, "tf", "is_federated"),
)


class Binding(Struct, frozen=True):
    """`servers`, `ledgers`: ZooKeeper and root path of the BookKeeper cluster. `log_servers`: ZooKeeper of the logs.

    `reader_servers`, `log_reader_servers`: the same for readers; None: as for writers. `first_lssn`: the number of a
    new log's first segment.
    """

    servers: str
    ledgers: str
    log_servers: str | None = None
    reader_servers: str | None = None
    log_reader_servers: str | None = None
    acl_root: str | None = None
    first_lssn: int | None = None
    checks_txids: bool = True
    encodes_region: bool = False
    is_federated: bool = False

    def pack(self) -> bytes:
        """Return the data of the znode."""
        fields: dict[str, dict[str, object]] = {}
        for number, kind, name in _FIELDS:
            value = getattr(self, name)
            if value is None or (name == "is_federated" and not value):
                continue
            fields[str(number)] = {kind: int(value) if kind == "tf" else value}
        return (_HEADER + json.dumps(fields, separators=(",", ":"))).encode()


def parse_binding(data: bytes, path: str) -> Binding:
    """Return the binding. Unknown fields are ignored. Raises `MetadataCorrupt`."""
    text = data.decode("utf-8", "replace")
    if not text.startswith(_HEADER):
        raise MetadataCorrupt(f"{path} holds no binding of DistributedLog: it begins with {text[:12]!r}")
    try:
        fields = parse_json(text[len(_HEADER) :])
        values: dict[str, Any] = {
            name: _KINDS[kind](fields[str(number)][kind]) for number, kind, name in _FIELDS if str(number) in fields
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetadataCorrupt(f"{path} holds a binding that cannot be read: {error!r}") from None
    if not values.get("servers") or not values.get("ledgers"):
        raise MetadataCorrupt(
            f"the binding of {path} names no BookKeeper cluster: bind it again with `dlog admin bind`"
        )
    return Binding(**values)


_KINDS = {"str": str, "tf": bool, "i64": int}
