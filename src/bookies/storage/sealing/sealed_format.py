"""The format of sealed entries, of the key list in a file's header, and of the keys file.

A sealed body is `int64 ledger | int64 entry | uint32 key id | nonce (12) | ciphertext | tag (16)`. The ciphertext is
that of everything that followed the ids in the client's body: last add confirmed, length, digest, payload. Ledger id,
entry id and key id are the additional data, so a record that was moved to another entry does not authenticate.

A key id is a part of the key's digest. So a key under a wrong id is impossible, and a wrong key is a missing key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
import zlib
from collections.abc import Sequence

from msgspec import Struct

from bookies.errors import ConfigError, CorruptRecord

KEY_SIZE = 32  # bytes: AES-256
NONCE_SIZE, TAG_SIZE = 12, 16
HEAD_SIZE = 20  # ids and key id: the additional data
OVERHEAD = 4 + NONCE_SIZE + TAG_SIZE  # bytes by which a sealed body is longer
SEALED_SIZE_MIN = 16 + OVERHEAD

NO_KEYS = (0, 0xFFFFFFFF)  # no key has these ids: a plain body has the first half of a last add confirmed there

PLAIN = "plain"  # in place of the first key: entries are stored as they are

KEY_ID = struct.Struct(">I")
_KEY_LIST = struct.Struct(">II")  # number of keys, CRC-32 of the ids
KEYS_MAX = 64
_LINE = re.compile(r"([0-9a-f]{8})\s+([A-Za-z0-9+/]{43}=)")


class Keys(Struct, frozen=True):
    """The content of a keys file. `current`: id of the key that seals; None: entries are stored as they are."""

    current: int | None
    by_id: dict[int, bytes]


def id_of(key: bytes) -> int:
    """Return the id of a key, none of `NO_KEYS`."""
    number = int.from_bytes(hashlib.sha256(b"bookies: id of an entry key\0" + key).digest()[:4], "big")
    return 1 if number in NO_KEYS else number


def label_of(key_id: int) -> str:
    """Return the id as the keys file and messages write it."""
    return f"{key_id:08x}"


def pack_line(key: bytes) -> str:
    """Return the line of a key in the keys file."""
    return f"{label_of(id_of(key))} {base64.b64encode(key).decode()}\n"


def parse_keys(text: str) -> Keys:
    """Parse a keys file: a key per line, the first one seals; or `plain` in place of it. Raises ConfigError."""
    by_id: dict[int, bytes] = {}
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    lines = [(number, line) for number, line in lines if line and not line.startswith("#")]
    is_plain = bool(lines) and lines[0][1] == PLAIN
    for number, line in lines[is_plain:]:
        match = _LINE.fullmatch(line)
        if match is None:  # the line itself may be a key: it is not repeated
            raise ConfigError(f"line {number} is not a key: `bk bookie new-key` writes such lines")
        try:
            key = base64.b64decode(match[2], validate=True)
        except binascii.Error as error:
            raise ConfigError(f"line {number}: the key {match[1]} is not valid base64") from error
        if len(key) != KEY_SIZE or label_of(id_of(key)) != match[1]:
            raise ConfigError(f"line {number}: the key is not {match[1]}: a part of the line was changed or lost")
        if by_id.setdefault(id_of(key), key) != key:
            raise ConfigError(f"line {number}: another key has the id {match[1]}: create a new one")
    if not by_id and not is_plain:
        raise ConfigError("it has no key: create one with `bk bookie new-key`")
    return Keys(None if is_plain else next(iter(by_id)), by_id)


def pack_key_list(key_ids: Sequence[int]) -> bytes:
    """Return the key list of a file's header. Raises ValueError for more than 64 keys."""
    if len(key_ids) > KEYS_MAX:
        raise ValueError(f"{len(key_ids)} keys in use at once: a file can name {KEYS_MAX}")
    ids = b"".join(map(KEY_ID.pack, key_ids))
    return _KEY_LIST.pack(len(key_ids), zlib.crc32(ids)) + ids


def parse_key_list(data: bytes, *, path: str, offset: int) -> tuple[int, ...]:
    """Parse the key list at the start of `data`. Raises CorruptRecord."""
    count, checksum = _KEY_LIST.unpack_from(data)
    ids = data[_KEY_LIST.size : _KEY_LIST.size + 4 * count]
    if not 0 < count <= KEYS_MAX or len(ids) != 4 * count or zlib.crc32(ids) != checksum:
        raise CorruptRecord("the list of keys in its header is damaged", path=path, offset=offset)
    return tuple(key_id for (key_id,) in KEY_ID.iter_unpack(ids))


def key_id_of(body: bytes) -> int:
    """Return the key id in a sealed body; 0 for a body that is too short to be one."""
    return int(KEY_ID.unpack_from(body, 16)[0]) if len(body) >= SEALED_SIZE_MIN else 0
