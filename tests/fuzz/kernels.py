"""Fuzz targets: every batch function, Python against native, on valid and on hostile arguments."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from tests.fuzz.target import Target, check, equal, numbers

from bookies.kernels import _python, dlog_entries
from bookies.kernels._python import Records

try:
    from bookies.kernels import _native
except ImportError:  # not compiled
    _native = None  # type: ignore[assignment]

SIZE_MAX = 4096
REFUSALS = (ValueError, IndexError, OverflowError)
INT64 = struct.Struct(">q")


class Entry(NamedTuple):
    """Like `client.base.entries.Entry`, which `kernels.entries` fills."""

    entry_id: int
    payload: bytes
    length: int
    ledger_id: int


class Place(NamedTuple):
    """Like the `Dlsn` that `kernels.cut_records` makes for each record."""

    segment: int
    entry: int
    slot: int


def plain(value: Any) -> Any:
    """Return a result as something that compares: ranges, arrays and lists alike."""
    if isinstance(value, Records):
        return value.data, list(value.starts)
    if isinstance(value, tuple):
        return type(value) is Entry, *map(plain, value)
    if isinstance(value, list | range | array):
        return list(map(plain, value))
    return value


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return plain(call())
    except REFUSALS as error:
        return type(error)


def both(name: str, *arguments: Any) -> Any:
    """Call a function of both kernels, which must agree; return the result, None if they refuse."""
    python = _python if hasattr(_python, name) else dlog_entries
    wanted = outcome(lambda: getattr(python, name)(*arguments))
    if _native is not None:
        got = outcome(lambda: getattr(_native, name)(*arguments))
        equal(got, wanted, f"{name}: native differs from Python for {arguments!r}")
    return None if isinstance(wanted, type) else wanted


def survives(name: str, *arguments: Any) -> None:
    """Call the native function with arguments that nobody promises to pass: it may refuse, and must not overrun."""
    if _native is not None:
        outcome(lambda: getattr(_native, name)(*arguments))


def scans(data: bytes) -> None:
    """Frames and records of a buffer, and what is done with them."""
    (size_max, start, end, index, log_id), buffer = numbers(data, 5)
    start = min(start, len(buffer))
    frames = both("scan_frames", buffer, start, size_max)
    if frames is not None:
        starts = frames[1]
        index = index % max(1, len(starts) - 1)
        if len(starts) > 1:
            _frames_of(buffer, starts, index)
    end = max(start, min(end, len(buffer)))
    records = both("scan_records", buffer, start, end, size_max)
    starts = records[1]
    both("cut_runs", buffer, starts)
    both("greatest_lac", buffer, starts)
    both("pack_locations", log_id, size_max, starts)
    if len(starts) > 1 and min(b - a for a, b in pairwise(starts)) >= 36:
        both("gather_payloads", [(buffer, starts), (buffer, starts[:2])], 32)
        got = [
            list(map(plain, kernel.entries(Entry, 5, 9, buffer, starts, 32)))
            for kernel in (_python, _native or _python)
        ]
        equal(got[0], got[1], "entries: native differs from Python")


def _frames_of(buffer: bytes, starts: Sequence[int], index: int) -> None:
    sizes = [b - a for a, b in pairwise(starts)]
    spaced = range(starts[0], starts[-1] + 1, sizes[0]) if len(set(sizes)) == 1 else starts
    for form in (starts, spaced, array("q", starts)):
        if sizes[index] >= 52:
            both("gather_adds", buffer, form, index)
        if sizes[index] == 28:
            both("scan_add_responses", buffer, form, index)


def verifies(data: bytes) -> None:
    (kind, start, cut, count_max, count), rest = numbers(data, 5)
    digest_type = 1 + kind % 4
    step = 100 if kind & 0x100 else 1 + kind % 7
    payloads = [rest[at : at + step] for at in range(0, min(len(rest), 120), step)] or [b""]
    if kind & 0x80:
        payloads = [payloads[0]] * (1 + count % 70)
    head = bytes(range(24))
    packed = both("pack_add_frames", head, 7, start, start - 1, kind, payloads, digest_type, b"key")
    frames, starts = packed[1], packed[2]
    both("gather_adds", frames, starts, 0)
    buffer = Records.of([frames[at + 28 : end] for at, end in pairwise(starts)]).data
    if cut:
        place = cut % (len(buffer) + 1)
        buffer = buffer[:place] + rest[-4:] + buffer[place + min(4, len(rest)) :]
    first = start - (kind & 1)
    both("verify_records", buffer, 0, len(buffer), 7, first, count_max % 80, digest_type, b"key")
    both("crc32c", rest, kind)
    both("digest", digest_type, b"key", rest[:32], rest[32:])


def tables(data: bytes) -> None:
    """Answers to adds, and the write cache's sorted entries, from arbitrary numbers."""
    words = [INT64.unpack_from(data, at)[0] for at in range(0, len(data) - 7, 8)][:120]
    half = len(words) // 2
    ledgers, ids = [word % 5 for word in words[:half]], words[half : 2 * half]
    bodies = [
        struct.pack(">qqq", ledger, entry, max(-1, entry - 1)) for ledger, entry in zip(ledgers, ids, strict=True)
    ]
    starts = array("q", Records.of(bodies).starts)
    records = Records(Records.of(bodies).data, starts)
    run = array("q", ledgers), array("q", ids), records
    taken = []
    for kernel in (_python, _native or _python):
        entries = kernel.SortedEntries([run, run])
        parts, at = [], 0
        while at < len(entries):
            part = entries.take(at, len(data))
            at += len(part[1])
            parts.append(plain(part))
        taken.append(parts)
    equal(taken[1], taken[0], "SortedEntries: native differs from Python")
    both("find_ledger", [run[0], run[0]], 0, data[0] % 5 if data else 0)
    table = array(
        "q", [number for at, ledger in enumerate(ledgers) for number in (ledger, at + 1, 0, ids[at], 0, ids[at])]
    )
    both("pack_answers", 2, 105, table, array("q", ids))
    if half:
        lengths = [INT64.unpack_from(data, at)[0] % 200 for at in range(0, 8 * half, 8)]
        survives("pack_answers", 2, 105, array("q", words[: half - half % 6]), array("q", ids))
        hostile = array("q", words[:half])
        small = array("q", lengths)
        for name, arguments in (
            ("gather_adds", (half - 1,)),
            ("scan_add_responses", (0,)),
            ("cut_runs", ()),
            ("greatest_lac", ()),
        ):
            for starts_given in (hostile, small, array("q", sorted(lengths)), range(-4, len(data) + 60, 52)):
                survives(name, data, starts_given, *arguments)
        for starts_given in (hostile, small, array("q", sorted(lengths))):
            survives("gather_payloads", [(data, starts_given)], 32)
            survives("pack_locations", 1, 2, starts_given)
            if _native is not None:
                outcome(lambda given=starts_given: list(_native.entries(Entry, 1, 1, data, given, 32)))
                outcome(lambda given=starts_given: _hostile_take(given, ledgers, ids, data))
        for low, high in ((words[0], words[-1]), (lengths[0], lengths[-1])):
            survives(
                "scan_records", data, max(-(1 << 62), min(1 << 62, low)), max(-(1 << 62), min(1 << 62, high)), 1 << 20
            )
            survives("verify_records", data, min(abs(low), 1 << 40), min(abs(high), 1 << 40), 1, 1, 10, 3, b"")


def _hostile_take(starts: array[int], ledgers: list[int], ids: list[int], data: bytes) -> None:
    run = array("q", ledgers[: len(starts) - 1]), array("q", ids[: len(starts) - 1]), Records(data, starts)
    entries = _native.SortedEntries([run])
    for at in range(len(entries)):
        outcome(lambda: entries.take(at, 1 << 20))  # noqa: B023


def filling(data: bytes) -> None:
    """A frame that is filled piece by piece, with counts from outside."""
    sizes, rest = list(data[:8]), data[8:]
    kernels = [kernel for kernel in (_python, _native) if kernel is not None]
    frames = [kernel.Frame(len(rest)) for kernel in kernels]
    for size in sizes:
        results = []
        for frame in frames:
            room = frame.rest()
            piece = rest[frame.filled : frame.filled + size]
            room[: len(piece)] = piece
            results.append((outcome(lambda frame=frame, size=size: frame.advance(size)), frame.filled, frame.missing))
        check(len(set(map(repr, results))) == 1, "Frame: native differs from Python", results)
    taken = [outcome(frame.take) for frame in frames]
    check(taken.count(taken[0]) == len(taken), "Frame.take: native differs", taken)
    check(not isinstance(taken[0], bytes) or taken[0] == rest, "Frame.take: other bytes", taken)


def bodies(data: bytes) -> None:
    """Records of DistributedLog that are collected, placed and cut, from arbitrary numbers and in any bytes."""
    (start, end, least, size_max, written), rest = numbers(data, 5)
    types, step = (Entry, Place), 1 + written % 50
    both("cut_records", types, (rest, 0, len(rest)), (3, 4), 7, least % 4)
    both("cut_records", types, (rest, start, end), (3, 4), -written, 0)
    both("placed", rest[:13], rest, written)
    payloads = [rest[at : at + step] for at in range(0, len(rest), step)]
    collected = []
    for kernel in (dlog_entries, _native or dlog_entries):
        builder, got = kernel.EntryBuilder(kernel.SlotAppend, size_max, least - 1), list[Any]()
        for number, payload in enumerate(payloads):
            append = builder.add_next(payload, None if payload[0] & 1 else start + number * (payload[0] - 20))
            if append is None:
                got += [builder.take()] if builder else []
                builder.begin(number)
                append = builder.add(payload, 1 + number, payload[0] & dlog_entries.SET, 1 + payload[0] % 3)
            got.append((append.entry, append.slot, builder.last_txid, builder.first_txid, builder.size))
        collected.append([*got, builder.take() if builder else None])
    equal(collected[1], collected[0], "EntryBuilder: native differs from Python")


def _body_seeds() -> list[bytes]:
    record = dlog_entries.RECORD.pack
    plain_records = b"".join(record(at << 16 | at & 8, at, 5) + b"hello" for at in range(1, 9))
    others = record(9 << 16 | 4, 9, 2) + b"no" + record(10 << 16 | 1, 9, 7) + b"control" + record(1, 1, -1)
    return [struct.pack(">5H", 2, 60, 1, 200, 9) + each for each in (plain_records, plain_records + others)]


def _scan_seeds() -> list[bytes]:
    head = bytes((2, 1, 0, 0)) + b"k" * 20
    frames, _, _ = _python.pack_add_frames(head, 7, 3, 2, 9, [b"one", b"two", b"seven"], 3, b"")
    many, _, _ = _python.pack_add_frames(head, 7, 3, 2, 9, [b"one"] * 60, 1, b"")
    answers = _python.pack_answers(2, 0, array("q", (7, 9, 0, 3, 1, 11)), range(3, 12))
    long_answers = _python.pack_answers(2, 0, array("q", (7, 60, 0, 3, 1, 62)), range(3, 63))
    front = struct.pack(">5H", 2000, 0, 65535, 0, 3)
    buffers = [frames, many, answers, long_answers, answers + frames, Records.of([b"x" * 40, b"y" * 50] * 5).data]
    return [front + buffer for buffer in buffers]


TARGETS = [
    Target("kernel-scans", scans, _scan_seeds, SIZE_MAX),
    Target(
        "kernel-verify",
        verifies,
        lambda: [struct.pack(">5H", 0x80 + n, 9, n, 99, 60) + b"payload" * 9 for n in range(4)],
        512,
    ),
    Target(
        "kernel-tables",
        tables,
        lambda: [b"".join(map(INT64.pack, [1, 2, 1, 3, 1 << 40, 5, 6, 7, 8, -9, 3, 3] * 3))],
        1024,
    ),
    Target(
        "kernel-frames", filling, lambda: [bytes([3, 4, 0, 9, 1, 2, 2, 2]) + b"the bytes of a frame, 32 in all"], 256
    ),
    Target("kernel-bodies", bodies, _body_seeds, 2048),
]
