"""Plain reads of one entry and their positive answers in v3: the messages of a scan.

As with adds (`v3_adds`), the fields in ascending order without any other are packed and recognised directly; other
messages are handled by `protobuf`, which accepts more. A message accepted here has the same meaning there. Measured:
a quarter of its time.

    read   := uint32 N | 0a h | 08 03 10 01 18 txn | a2 06 n | 08 ledger 10 entry
    answer := uint32 N | 0a h | 08 03 10 01 18 txn | 10 00 | a2 06 n | 08 00 10 ledger 18 entry 22 m body [28 lac]

Source: wire-protocol 3.2 to 3.5.
"""

from __future__ import annotations

from bookies.errors import RemoteProtocolError, Status
from bookies.wire.messages import Buffer, ReadRequest, ReadResponse
from bookies.wire.protobuf import frame, pack_varint, parse_varint

VERSION = 3
_HEADER = b"\x08\x03\x10\x01\x18"  # version three, operation READ, tag of the transaction id
_TXN = 11  # offset of the transaction id from a frame's length word
_READ = b"\xa2\x06"
_OK_READ = b"\x10\x00\xa2\x06"
_OK_LEDGER = b"\x08\x00\x10"
_ENTRY, _BODY, _LAC = 0x18, 0x22, 0x28


def is_plain(request: ReadRequest) -> bool:
    """Report whether the request asks for an entry and nothing else."""
    return (
        request.master_key is None
        and request.previous_lac is None
        and request.timeout_ms is None
        and not (request.is_fencing or request.is_high_priority or request.wants_piggyback or request.trace)
    )


def is_plain_answer(response: ReadResponse) -> bool:
    return response.status is Status.OK and response.body is not None and response.lac_update_ms is None


def pack_read(request: ReadRequest) -> bytes:
    """Return the frame of a plain read."""
    txn = pack_varint(request.txn_id)
    ids = b"\x08" + pack_varint(request.ledger_id) + b"\x10" + pack_varint(request.entry_id)
    size = 5 + len(_HEADER) + len(txn) + len(ids)
    return b"%b\x0a%c%b%b%b%c%b" % (size.to_bytes(4, "big"), 5 + len(txn), _HEADER, txn, _READ, len(ids), ids)


def maybe_parse_read(buffer: bytes, at: int, end: int) -> ReadRequest | None:
    """Return the plain read in the frame [at, end); None when it is anything else."""
    if end - at < 16 or buffer[at + 4] != 0x0A or not buffer.startswith(_HEADER, at + 6):
        return None
    try:
        txn_id, to = parse_varint(buffer, at + _TXN)
        if to != at + 6 + buffer[at + 5] or not buffer.startswith(_READ, to):
            return None
        if to + 3 + buffer[to + 2] != end or buffer[to + 3] != 0x08:
            return None
        ledger_id, to = parse_varint(buffer, to + 4)
        if buffer[to] != 0x10:
            return None
        entry_id, to = parse_varint(buffer, to + 1)
    except (IndexError, RemoteProtocolError):
        return None
    return ReadRequest(VERSION, txn_id, _signed(ledger_id), _signed(entry_id)) if to == end else None


def pack_read_answer(response: ReadResponse) -> list[Buffer]:
    """Return the frame of an answer with an entry."""
    assert response.body is not None
    txn, body = pack_varint(response.txn_id), response.body
    ids = b"%b%b\x18%b\x22%b" % (
        _OK_LEDGER,
        pack_varint(response.ledger_id),
        pack_varint(response.entry_id),
        pack_varint(len(body)),
    )
    lac = b"" if response.max_lac is None else b"\x28" + pack_varint(response.max_lac)
    size = pack_varint(len(ids) + len(body) + len(lac))
    return frame((b"\x0a%c%b%b%b%b%b" % (5 + len(txn), _HEADER, txn, _OK_READ, size, ids), body, lac))


def maybe_parse_read_answer(buffer: bytes, at: int, end: int) -> ReadResponse | None:
    """Return the answer with an entry in the frame [at, end); None when it is anything else."""
    if end - at < 24 or buffer[at + 4] != 0x0A or not buffer.startswith(_HEADER, at + 6):
        return None
    try:
        txn_id, to = parse_varint(buffer, at + _TXN)
        if to != at + 6 + buffer[at + 5] or not buffer.startswith(_OK_READ, to):
            return None
        size, to = parse_varint(buffer, to + 4)
        if to + size != end or not buffer.startswith(_OK_LEDGER, to):
            return None
        ledger_id, to = parse_varint(buffer, to + 3)
        if buffer[to] != _ENTRY:
            return None
        entry_id, to = parse_varint(buffer, to + 1)
        if buffer[to] != _BODY:
            return None
        size, body_at = parse_varint(buffer, to + 1)
        to = body_at + size
        max_lac: int | None = None
        if to < end:
            if buffer[to] != _LAC:
                return None
            number, behind = parse_varint(buffer, to + 1)
            max_lac = _signed(number)
        else:
            behind = to
    except (IndexError, RemoteProtocolError):
        return None
    if behind != end:
        return None
    body = buffer[body_at:to]
    return ReadResponse(VERSION, txn_id, Status.OK, _signed(ledger_id), _signed(entry_id), body, max_lac)


def _signed(number: int) -> int:
    return number if number < 1 << 63 else number - (1 << 64)
