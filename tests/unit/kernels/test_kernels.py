"""The kernels against naive twins: one class over the implementation, which the compiled module's class inherits."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import importlib
import importlib.util
import itertools
import random
import struct
import sys
import types
import zlib
from array import array
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import google_crc32c
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from tests.fakes.examples import scaled

from bookies.kernels import Adds, Records, _python, table_of

CRC32, HMAC, CRC32C, DUMMY = 1, 2, 3, 4
KEY = b"k" * 20
HEAD = b"\x02\x01\x00\x00" + KEY
SIZE_MAX = 5 << 20
HAS_NATIVE = importlib.util.find_spec("bookies.kernels._native") is not None

Starts = list[int]


class Numbered(NamedTuple):
    id: int
    payload: bytes
    length: int
    ledger_id: int


ODD_IDS = st.one_of(st.integers(0, 3), st.sampled_from([-1, -4096, (1 << 63) - 1, 1 << 40]))

# Naive twins: one item at a time, as the specification reads.


def naive_cut_runs(heads: list[bytes]) -> list[tuple[int, int, int]] | None:
    runs: list[tuple[int, int, int]] = []
    for head in heads:
        if len(head) < 16 or min(struct.unpack(">qq", head)) < 0:
            return None
        ledger_id, entry_id = struct.unpack(">qq", head)
        if runs and runs[-1][0] == ledger_id and runs[-1][1] + runs[-1][2] == entry_id:
            runs[-1] = (*runs[-1][:2], runs[-1][2] + 1)
        else:
            runs.append((ledger_id, entry_id, 1))
    return runs


def naive_crc32c(data: bytes, value: int = 0) -> int:
    value ^= 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def naive_digest(digest_type: int, mac_key: bytes, header: bytes, payload: bytes) -> bytes:
    if digest_type == CRC32:
        return struct.pack(">q", zlib.crc32(header + payload))
    if digest_type == HMAC:
        return hmac.new(mac_key, header + payload, hashlib.sha1).digest()
    if digest_type == CRC32C:
        return struct.pack(">I", naive_crc32c(header + payload))
    return b""


def naive_scan_frames(buffer: bytes, start: int, frame_size_max: int) -> tuple[Starts, int]:
    starts = [start]
    while len(buffer) - starts[-1] >= 4:
        size = int.from_bytes(buffer[starts[-1] : starts[-1] + 4], "big") + 4
        if not 4 < size <= frame_size_max:
            if len(starts) == 1:
                raise ValueError
            return starts, -1
        if starts[-1] + size > len(buffer):
            return starts, size
        starts.append(starts[-1] + size)
    return starts, 0


def naive_scan_records(buffer: bytes, start: int, end: int, size_max: int) -> tuple[Starts, str]:
    starts = [start]
    while end - starts[-1] >= 4:
        (size,) = struct.unpack(">i", buffer[starts[-1] : starts[-1] + 4])
        if size <= 0:
            return starts, "negative" if size else "zero"
        if size > size_max:
            return starts, "large"
        if starts[-1] + 4 + size > end:
            return starts, "short"
        starts.append(starts[-1] + 4 + size)
    return starts, "end" if starts[-1] == end else "short"


def naive_gather_adds(
    buffer: bytes, starts: Starts, index: int
) -> tuple[int, list[tuple[int, Starts, list[bytes], int]]]:
    frames = [buffer[at:end] for at, end in itertools.pairwise(starts)][index:]
    same = list(itertools.takewhile(lambda frame: len(frame) >= 52 and frame[4:28] == frames[0][4:28], frames))
    runs = []
    for ledger_id, group in itertools.groupby(same, lambda frame: struct.unpack(">q", frame[28:36])[0]):
        bodies = [frame[28:] for frame in group]
        heads = [struct.unpack(">qqq", body[:24]) for body in bodies]
        runs.append((ledger_id, [head[1] for head in heads], bodies, max(head[2] for head in heads)))
    return index + len(same), runs


def naive_pack_add_frames(
    ledger_id: int, first: int, lac: int, length: int, payloads: list[bytes], digest_type: int
) -> list[bytes]:
    frames = []
    for entry_id, payload in enumerate(payloads, first):
        length += len(payload)
        header = struct.pack(">qqqq", ledger_id, entry_id, lac, length)
        frame = HEAD + header + naive_digest(digest_type, b"mac", header, payload) + payload
        frames.append(struct.pack(">I", len(frame)) + frame)
    return frames


def naive_verify(bodies: list[bytes], ledger_id: int, first: int, count_max: int, digest_type: int) -> tuple[int, str]:
    gap = {CRC32: 8, HMAC: 20, CRC32C: 4, DUMMY: 0}[digest_type]
    for index, body in enumerate(bodies[:count_max]):
        if len(body) < 32 + gap:
            return index, "size"
        if body[32 : 32 + gap] != naive_digest(digest_type, b"mac", body[:32], body[32 + gap :]):
            return index, "digest"
        if struct.unpack(">qq", body[:16]) != (ledger_id, first + index):
            return index, "ids"
    return min(count_max, len(bodies)), ""


def offsets_of(parts: list[bytes]) -> Starts:
    return list(itertools.accumulate(map(len, parts), initial=0))


i64 = st.integers(-(1 << 63), (1 << 63) - 1)
# Payloads of one size exercise the fast paths, which need about fifty of them; mixed ones the loops.
uniform = st.builds(
    lambda size, count, seed: [bytes((seed + i + j) & 255 for j in range(size)) for i in range(count)],
    st.integers(0, 12),
    st.integers(1, 130),
    st.integers(0, 255),
)
payload_lists = st.one_of(uniform, st.lists(st.binary(max_size=20), min_size=1, max_size=20))
digest_types = st.sampled_from([CRC32, HMAC, CRC32C, DUMMY])

# The tests run once for each module, from two classes, which is what Hypothesis would warn of.
both = scaled(60, suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow])


def examples(*strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return lambda test: both(given(*strategies)(test))


class TestPythonKernels:
    module: types.ModuleType = _python

    @pytest.mark.parametrize(
        ("data", "expected"),
        [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)],
    )
    def test_crc32c_check_values(self, data: bytes, expected: int) -> None:
        assert self.module.crc32c(data) == naive_crc32c(data) == expected

    @examples(st.binary(max_size=60), st.binary(max_size=60))
    def test_crc32c_continues(self, first: bytes, second: bytes) -> None:
        assert self.module.crc32c(second, self.module.crc32c(first)) == naive_crc32c(first + second)

    @examples(digest_types, st.binary(min_size=32, max_size=32), st.binary(max_size=40))
    def test_digest(self, digest_type: int, header: bytes, payload: bytes) -> None:
        expected = naive_digest(digest_type, b"mac", header, payload)
        assert self.module.digest(digest_type, b"mac", header, payload) == expected

    @examples(payload_lists, st.binary(max_size=9), st.integers(0, 3), st.integers(5, 24))
    def test_scan_frames(self, payloads: list[bytes], tail: bytes, start: int, size_max: int) -> None:
        frames = b"".join([struct.pack(">I", len(payload)) + payload for payload in payloads])
        buffer = bytes(start) + frames + tail
        self.compare_scan_frames(buffer, start, size_max)
        self.compare_scan_frames(buffer, start, SIZE_MAX)

    @examples(st.binary(max_size=40), st.integers(5, 1 << 33))
    def test_scan_frames_of_anything(self, buffer: bytes, size_max: int) -> None:
        self.compare_scan_frames(buffer, 0, size_max)

    def compare_scan_frames(self, buffer: bytes, start: int, size_max: int) -> None:
        try:
            expected = naive_scan_frames(buffer, start, size_max)
        except ValueError:
            with pytest.raises(ValueError, match="frame of"):
                self.module.scan_frames(buffer, start, size_max)
        else:
            starts, need = self.module.scan_frames(buffer, start, size_max)
            assert (list(starts), need) == expected

    @pytest.mark.parametrize("count", [7, 8, 9, 100])
    @pytest.mark.parametrize("broken", range(4))
    def test_scan_frames_sees_one_differing_length_byte(self, count: int, broken: int) -> None:
        frames = bytearray((b"\x00\x00\x00\x10" + bytes(16)) * count)
        frames[20 * (count // 2) + broken] ^= 1
        self.compare_scan_frames(bytes(frames), 0, 1 << 26)

    def test_uniform_starts_are_a_range(self) -> None:
        starts, _ = self.module.scan_frames((b"\x00\x00\x00\x10" + bytes(16)) * 100, 0, SIZE_MAX)
        assert starts == range(0, 2001, 20)
        starts, _ = self.module.scan_records((b"\x00\x00\x00\x10" + bytes(16)) * 100, 0, 2000, SIZE_MAX)
        assert starts == range(0, 2001, 20)

    @examples(payload_lists, st.binary(max_size=9), st.integers(1, 24), st.integers(0, 9))
    def test_scan_records(self, payloads: list[bytes], tail: bytes, size_max: int, cut: int) -> None:
        buffer = b"ab" + b"".join([struct.pack(">I", len(payload)) + payload for payload in payloads]) + tail
        for end in (len(buffer), max(2, len(buffer) - cut)):
            starts, reason = self.module.scan_records(buffer, 2, end, size_max)
            assert (list(starts), reason) == naive_scan_records(buffer, 2, end, size_max)

    @examples(st.binary(max_size=40), st.integers(1, 1 << 33))
    def test_scan_records_of_anything(self, buffer: bytes, size_max: int) -> None:
        starts, reason = self.module.scan_records(buffer, 0, len(buffer), size_max)
        assert (list(starts), reason) == naive_scan_records(buffer, 0, len(buffer), size_max)

    @examples(payload_lists, st.integers(-1, 1 << 40), st.integers(0, 1 << 62), digest_types)
    def test_pack_add_frames(self, payloads: list[bytes], first: int, length: int, digest_type: int) -> None:
        frames, starts, total = self.module.pack_add_frames(
            HEAD, 7, first, first - 1, length, payloads, digest_type, b"mac"
        )
        expected = naive_pack_add_frames(7, first, first - 1, length, payloads, digest_type)
        assert frames == b"".join(expected)
        assert list(starts) == offsets_of(expected)
        assert total == length + sum(map(len, payloads))

    def test_pack_add_frames_of_nothing(self) -> None:
        frames, starts, length = self.module.pack_add_frames(HEAD, 7, 0, -1, 5, [], CRC32C, b"")
        assert (frames, list(starts), length) == (b"", [0], 5)

    @examples(payload_lists, st.integers(0, 100), i64, st.lists(st.integers(0, 200), max_size=3))
    def test_gather_adds(self, payloads: list[bytes], first: int, ledger_id: int, others: list[int]) -> None:
        frames = naive_pack_add_frames(ledger_id, first, first + 3, 0, payloads, DUMMY)
        for position in others:  # another ledger in between, or another key
            if position < len(frames):
                other = bytearray(frames[position])
                other[35 if position % 3 else 20] ^= 1
                frames[position] = bytes(other)
        buffer = b"".join(frames)
        starts, _ = self.module.scan_frames(buffer, 0, SIZE_MAX)
        index = 0
        while index < len(frames):
            expected = naive_gather_adds(buffer, list(starts), index)
            index, *columns, least = self.module.gather_adds(buffer, starts, index)
            adds = Adds(*columns)
            found = []
            for (found_id, entry_ids, records), lac in zip(adds.stretches(), adds.lacs, strict=True):
                bodies = [records.body(i) for i in range(len(records))]
                assert records.tobytes() == Records.of(bodies).data
                found.append((found_id, list(entry_ids), bodies, lac))
            assert (index, found) == expected
            assert adds.records.size == len(adds.records.data)
            assert least == min(number for ledger, ids, _, _ in found for number in (ledger, *ids))

    @examples(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=70))
    def test_gather_adds_of_ledgers_in_turn(self, adds: list[tuple[int, int, int]]) -> None:
        given = [(HEAD, ledger_id, entry_id, -1, 0, [bytes(size)], DUMMY, b"") for ledger_id, entry_id, size in adds]
        buffer = b"".join([self.module.pack_add_frames(*each)[0] for each in given])
        starts, _ = self.module.scan_frames(buffer, 0, SIZE_MAX)
        index, *columns, _ = self.module.gather_adds(buffer, starts, 0)
        found = Adds(*columns)
        assert index == len(adds)
        runs = list(found.stretches())
        assert [(each, i) for each, ids, _ in runs for i in ids] == [(each, i) for each, i, _ in adds]
        assert [len(records.body(i)) - 32 for *_, records in runs for i in range(len(records))] == [
            size for *_, size in adds
        ]
        assert len(runs) == len(list(itertools.groupby(ledger_id for ledger_id, *_ in adds)))
        assert isinstance(found.entry_ids, array if len(runs) > 1 else range | array)

    @examples(st.lists(st.tuples(st.integers(-1, 2), i64), min_size=1, max_size=12))
    def test_gather_adds_with_ids_of_any_size(self, ids: list[tuple[int, int]]) -> None:
        heads = [struct.pack(">qqqq", *each, -1, 0) for each in ids]
        buffer = b"".join([struct.pack(">I", 24 + 32) + HEAD + head for head in heads])
        starts, _ = self.module.scan_frames(buffer, 0, SIZE_MAX)
        _, *columns, least = self.module.gather_adds(buffer, starts, 0)
        adds = Adds(*columns)
        assert [(ledger_id, i) for ledger_id, entry_ids, _ in adds.stretches() for i in entry_ids] == ids
        assert least == min(map(min, ids))
        expected = b"".join([struct.pack(">IIiqq", 24, 0x02010000, 7, *each) for each in ids])
        assert self.module.pack_answers(2, 7, adds.table, adds.entry_ids) == expected

    @examples(
        st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 40)), max_size=9), max_size=5),
        st.integers(0, 200),
    )
    def test_mixed_runs_are_sorted(self, parts: list[list[tuple[int, int, int]]], size_max: int) -> None:
        model, runs, numbers = {}, [], []
        for part, entries in enumerate(parts):
            bodies = [struct.pack(">qqb", *ids, part) + bytes(size) for *ids, size in entries]
            model |= {ids: body for (*ids_, _), body in zip(entries, bodies, strict=True) for ids in [tuple(ids_)]}
            records = Records.of(bodies)
            runs.append(Records(records.data, array("q", records.starts)))
            numbers.append(tuple(array("q", [each[column] for each in entries]) for column in (0, 1)))
        mixture = self.module.SortedEntries([(*ids, records) for ids, records in zip(numbers, runs, strict=True)])
        assert len(mixture) == len(model)
        found: list[tuple[tuple[int, int], bytes]] = []
        while len(found) < len(mixture):
            records, ledger_ids, entry_ids = mixture.take(len(found), size_max)
            assert len(records) == 1 or len(records.data) <= size_max
            assert list(records.starts)[-1] == len(records.data)
            bodies = [records.body(index) for index in range(len(records))]
            found += zip(zip(ledger_ids, entry_ids, strict=True), bodies, strict=True)
        assert found == sorted(model.items())
        for first in (-1, len(mixture)):
            with pytest.raises(IndexError):
                mixture.take(first, size_max)
        for ledger_id in range(4):
            for first in range(len(parts)):
                places = self.module.find_ledger([ids for ids, _ in numbers], first, ledger_id)
                expected = [
                    part << 32 | index
                    for part, entries in enumerate(parts)
                    for index, (owner, *_) in enumerate(entries)
                    if owner == ledger_id and part >= first
                ]
                assert places == expected

    @pytest.mark.parametrize(
        ("starts", "ids"),
        [
            ([0, 25], (0, 0)),
            ([-4, 24], (0, 0)),
            ([0, 19], (0, 0)),
            ([0, 24], (0, 1)),
            ([0, 24], (1, 0)),
            ([9, 0], (0, 0)),
        ],
    )
    def test_what_is_no_such_record_is_not_taken(self, starts: list[int], ids: tuple[int, int]) -> None:
        records = Records(bytes(24), array("q", starts))
        mixture = self.module.SortedEntries([(array("q", [ids[0]]), array("q", [ids[1]]), records)])
        with pytest.raises(ValueError, match="another entry"):
            mixture.take(0, 100)

    @pytest.mark.parametrize("counts", [(1, 1, 1), (1, 2, 2), (2, 1, 2), (2, 2, 4), (0, 0, 0)])
    def test_a_mixture_has_both_ids_of_each_record(self, counts: tuple[int, int, int]) -> None:
        ledger_ids, entry_ids, starts = (array("q", [0] * count) for count in counts)
        with pytest.raises(ValueError, match="for each record"):
            self.module.SortedEntries([(ledger_ids, entry_ids, Records(b"", starts))])

    @pytest.mark.parametrize("row", [(1, 3, -1, 0, 1, 2), (1, -1, -1, 0, 1, 0)])
    def test_answers_to_stretches_that_do_not_cover_the_entries(self, row: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match="do not cover"):
            self.module.pack_answers(2, 0, array("q", row), range(2))

    def test_gather_adds_in_any_order_of_ids(self) -> None:
        ids, lacs = [*range(60), 99, *range(3, 63)], [*range(50, -71, -1)]
        heads = [struct.pack(">qqqq", 1, entry, lac, 0) for entry, lac in zip(ids, lacs, strict=True)]
        buffer = b"".join([struct.pack(">I", 24 + 32) + HEAD + head for head in heads])
        starts, _ = self.module.scan_frames(buffer, 0, SIZE_MAX)
        index, table, entry_ids, _, _ = self.module.gather_adds(buffer, starts, 0)
        assert (index, list(entry_ids), list(table)) == (121, ids, [1, 121, 50, 0, 0, 99])

    def test_gather_adds_makes_ranges_of_what_is_uniform(self) -> None:
        frames, starts, _ = self.module.pack_add_frames(HEAD, 7, 40, -1, 0, [bytes(100)] * 64, CRC32C, b"")
        _, _, entry_ids, records, _ = self.module.gather_adds(frames, starts, 0)
        assert entry_ids == range(40, 104)
        assert isinstance(records.starts, range)

    @examples(st.integers(0, 2), st.sampled_from([0, 1, 104]), i64, st.lists(i64, max_size=60), st.integers(0, 90))
    def test_add_responses(self, version: int, status: int, ledger_id: int, ids: list[int], more: int) -> None:
        ids += range(more)
        word = b"\x00\x00\x00\x01" if version == 0 else bytes((version, 1, 0, 0))
        frames = [struct.pack(">I4siqq", 24, word, status, ledger_id, entry_id) for entry_id in ids]
        packed = self.module.pack_answers(version, status, *table_of(ledger_id, ids)) if ids else b""
        assert packed == b"".join(frames)
        if ids:
            starts, _ = self.module.scan_frames(packed, 0, SIZE_MAX)
            index, [(code, found_id, entry_ids)] = self.module.scan_add_responses(packed, starts, 0)
            assert (index, code, found_id, list(entry_ids)) == (len(ids), status, ledger_id, ids)

    @examples(st.lists(st.tuples(st.integers(1, 2), st.sampled_from([0, 104]), st.integers(1, 70)), max_size=6))
    def test_scan_add_responses_in_runs(self, runs: list[tuple[int, int, int]]) -> None:
        if not runs:
            return
        buffer = b"".join([self.module.pack_answers(2, code, *table_of(ledger, range(n))) for ledger, code, n in runs])
        starts, _ = self.module.scan_frames(buffer, 0, SIZE_MAX)
        index, taken = self.module.scan_add_responses(buffer, starts, 0)
        assert index == sum(n for *_, n in runs)
        found = [(ledger_id, code, entry_id) for code, ledger_id, ids in taken for entry_id in ids]
        assert found == [(ledger, code, i) for ledger, code, n in runs for i in range(n)]
        assert len(taken) == len(list(itertools.groupby((ledger, code) for ledger, code, _ in runs)))

    def test_scan_add_responses_stops_at_other_frames(self) -> None:
        responses = self.module.pack_answers(2, 0, *table_of(1, range(60)))
        read = b"\x00\x00\x00\x18\x02\x02\x00\x00" + bytes(20)
        buffer = responses + read + responses
        starts, _ = self.module.scan_frames(buffer, 0, SIZE_MAX)
        assert self.module.scan_add_responses(buffer, starts, 0)[0] == 60
        assert self.module.scan_add_responses(buffer, starts, 61)[0] == 121

    @examples(payload_lists, digest_types, st.integers(0, 140), st.data())
    def test_verify_records(self, payloads: list[bytes], digest_type: int, count_max: int, data: st.DataObject) -> None:
        frames = naive_pack_add_frames(7, 40, 39, 0, payloads, digest_type)
        bodies = [frame[28:] for frame in frames]
        buffer = bytearray(b"ab" + Records.of(bodies).data)
        flipped = data.draw(st.none() | st.integers(0, 31 + len(bodies[0])))
        if flipped is not None:
            position = data.draw(st.integers(0, len(bodies) - 1))
            body = bytearray(bodies[position])
            body[flipped % len(body)] ^= 1 << data.draw(st.integers(0, 7))
            bodies[position] = bytes(body)
            buffer = bytearray(b"ab" + Records.of(bodies).data)
        arguments = 7, 40, count_max, digest_type, b"mac"
        starts, problem = self.module.verify_records(bytes(buffer), 2, len(buffer), *arguments)
        good, expected = naive_verify(bodies, 7, 40, count_max, digest_type)
        assert (list(starts), problem) == ([2 + at for at in Records.of(bodies).starts[: good + 1]], expected)

    @pytest.mark.parametrize("digest_type", [CRC32, CRC32C])
    def test_digests_of_every_size(self, digest_type: int) -> None:
        content = random.Random(1).randbytes(70_000)
        payloads = [content[size : 2 * size] for size in (*range(300), 4096, 30_011)]
        frames, starts, _ = self.module.pack_add_frames(HEAD, 7, 40, 39, 0, payloads, digest_type, b"")
        naive = naive_pack_add_frames(7, 40, 39, 0, payloads, digest_type)
        assert [frames[at:end] for at, end in itertools.pairwise(starts)] == naive
        for payload in (content[:200], content[:64]):
            (frame,) = naive_pack_add_frames(7, 0, -1, 0, [payload], digest_type)
            for bit in range(8 * len(frame[60:])):  # of digest and payload
                data = bytearray(Records.of([frame[28:]]).data)
                data[36 + bit // 8] ^= 1 << bit % 8
                arguments = 7, 0, 1, digest_type, b""
                assert self.module.verify_records(bytes(data), 0, len(data), *arguments)[1] == "digest"

    @pytest.mark.parametrize("count", [3, 60])
    @pytest.mark.parametrize("digest_type", [CRC32, CRC32C])
    def test_verify_records_with_wrong_ids(self, digest_type: int, count: int) -> None:
        bodies = [frame[28:] for frame in naive_pack_add_frames(7, 0, -1, 0, [b"x"] * count, digest_type)]
        data = Records.of(bodies).data
        for ledger_id, first in ((8, 0), (7, 1)):
            arguments = ledger_id, first, count, digest_type, b""
            starts, problem = self.module.verify_records(data, 0, len(data), *arguments)
            assert (list(starts), problem) == ([0], "ids")
        swapped = Records.of([bodies[1], bodies[0], *bodies[2:]]).data
        starts, problem = self.module.verify_records(swapped, 0, len(swapped), 7, 0, count, digest_type, b"")
        assert (list(starts), problem) == ([0], "ids")

    @pytest.mark.parametrize("cut", [1, 40, 45, 46])
    def test_verify_records_cut_off(self, cut: int) -> None:
        bodies = [frame[28:] for frame in naive_pack_add_frames(7, 0, -1, 0, [b"hello"] * 60, CRC32C)]
        data = Records.of(bodies).data[:-cut]
        starts, problem = self.module.verify_records(data, 0, len(data), 7, 0, 100, CRC32C, b"")
        assert (list(starts), problem) == (
            list(range(0, 59 * 45 + 1, 45))[: 60 - cut // 46],
            "" if cut == 45 else "short",
        )

    @pytest.mark.parametrize("size", [0, 1, 35])
    def test_verify_records_shorter_than_a_header(self, size: int) -> None:
        data = struct.pack(">I", size) + bytes(size)
        starts, problem = self.module.verify_records(data, 0, len(data), 0, 0, 9, CRC32C, b"")
        assert (list(starts), problem) == ([0], "size")

    @examples(st.lists(payload_lists, max_size=3), st.integers(0, 9))
    def test_gather_payloads(self, lists: list[list[bytes]], header_size: int) -> None:
        parts = [Records.of([bytes(header_size) + payload for payload in payloads]) for payloads in lists]
        data, offsets = self.module.gather_payloads([(each.data, each.starts) for each in parts], header_size)
        payloads = [payload for each in lists for payload in each]
        assert (data, offsets.typecode, list(offsets)) == (b"".join(payloads), "i", offsets_of(payloads))

    @examples(payload_lists, st.integers(0, 1 << 62), st.integers(0, 20))
    def test_entries(self, payloads: list[bytes], first: int, digest_size: int) -> None:
        ledger_id, lengths = 1 << 40, list(itertools.accumulate(map(len, payloads)))
        header_size = 32 + digest_size
        records = Records.of(
            [
                struct.pack(">qqqq", ledger_id, first + index, -1, length) + bytes(digest_size) + payload
                for index, (payload, length) in enumerate(zip(payloads, lengths, strict=True))
            ]
        )
        expected = [
            Numbered(first + index, payload, length, ledger_id)
            for index, (payload, length) in enumerate(zip(payloads, lengths, strict=True))
        ]
        for starts in (records.starts, list(records.starts), array("q", records.starts)):
            found = self.module.entries(Numbered, ledger_id, first, records.data, starts, header_size)
            assert iter(found) is found
            entries = list(found)
            assert entries == expected
            assert all(type(entry) is Numbered for entry in entries)
            assert next(found, None) is None

    def test_steps_take_what_is_at_hand_and_then_ask_for_more(self) -> None:
        class Countdown(self.module.Steps):  # type: ignore[name-defined,misc]
            def __init__(self, runs: list[list[Any]]) -> None:
                super().__init__()
                self.runs = runs
                self.asked = 0

            async def _more(self) -> Any:
                self.asked += 1
                await asyncio.sleep(0)
                if not self.runs:
                    raise StopAsyncIteration
                self._items = iter(self.runs.pop(0))
                return next(self._items)

        def broken() -> Iterator[int]:
            yield 4
            raise ValueError("the fourth was the last")

        async def run() -> None:
            steps = Countdown([[(1,), (2, 2), None], [StopIteration(3)]])
            assert aiter(steps) is steps
            taken = [item async for item in steps]
            assert taken[:3] == [(1,), (2, 2), None]
            assert isinstance(taken[3], StopIteration)
            assert (len(taken), steps.asked) == (4, 3)
            assert await anext(steps, "end") == "end"
            steps._items = iter([5, 6])
            first, second = anext(steps), anext(steps)  # awaited in turn, whichever order they were made in
            assert {await second, await first} == {5, 6}
            steps._items = iter([7])
            assert await asyncio.ensure_future(anext(steps)) == 7
            steps._items = broken()
            assert await anext(steps) == 4
            with pytest.raises(ValueError, match="fourth"):
                await anext(steps)

        asyncio.run(run())

    def test_steps_keep_nothing(self) -> None:
        async def run() -> None:
            steps = self.module.Steps()
            items = [bytes(1000) for _ in range(50)]
            steps._items = iter(items)
            for _ in range(len(items)):
                await anext(steps)
            steps._items = iter(items[:1])
            unawaited = anext(steps)
            close = getattr(unawaited, "close", None)  # of a coroutine
            if close is not None:
                close()
            del unawaited, close, steps
            kept_by_its_list = [sys.getrefcount(item) for item in [bytes(1000)]]
            assert {sys.getrefcount(item) for item in items} == {*kept_by_its_list}

        asyncio.run(run())

    @examples(st.lists(st.binary(max_size=50), max_size=5))
    def test_frame(self, pieces: list[bytes]) -> None:
        whole = b"".join(pieces)
        frame = self.module.Frame(len(whole))
        for piece in pieces:
            if frame.missing:
                with pytest.raises(ValueError, match="missing"):
                    frame.take()
            frame.rest()[: len(piece)] = piece
            frame.advance(len(piece))
        assert (frame.missing, frame.filled, frame.take()) == (0, len(whole), whole)
        for count in (1, -1):
            with pytest.raises(ValueError, match="missing"):
                frame.advance(count)

    def test_the_room_of_a_frame_outlives_it(self) -> None:
        frame = self.module.Frame(1 << 20)
        room = frame.rest()
        room[:] = bytes([7]) * len(room)
        frame.advance(len(room))
        data = frame.take()
        del frame
        assert room[-1] == 7
        del data
        assert room[-1] == 7

    @examples(st.binary(max_size=20_000), st.integers(0, 0xFFFF_FFFF), st.integers(0, 9))
    def test_crc32c_of_any_length(self, data: bytes, value: int, skip: int) -> None:
        assert self.module.crc32c(memoryview(data)[skip:], value) == google_crc32c.extend(value, data[skip:])

    @examples(st.integers(0, 20_000), st.integers(0, 0xFFFF_FFFF))
    def test_crc32c_of_long_data(self, size: int, value: int) -> None:
        data = random.Random(size).randbytes(size)
        assert self.module.crc32c(data, value) == google_crc32c.extend(value, data)

    @examples(payload_lists, st.integers(0, 0x7FFF_FFFF), st.integers(0, 1 << 30))
    def test_pack_locations(self, payloads: list[bytes], log_id: int, position: int) -> None:
        records = Records.of(payloads)
        expected = [struct.pack(">q", log_id << 32 | position + start + 4) for start in records.starts[:-1]]
        assert self.module.pack_locations(log_id, position, records.starts) == b"".join(expected)

    @examples(st.lists(st.tuples(ODD_IDS, ODD_IDS, st.integers(0, 30)), max_size=12), st.integers(0, 5))
    def test_cut_runs(self, records: list[tuple[int, int, int]], skip: int) -> None:
        bodies = [struct.pack(">qq", *ids)[: 16 - (size == 30)] + bytes(size % 30) for *ids, size in records]
        data = bytes(skip) + Records.of(bodies).data
        starts = [skip + start for start in Records.of(bodies).starts]
        runs = naive_cut_runs([body[:16] for body in bodies])
        assert self.module.cut_runs(data, starts) == runs
        assert self.module.cut_runs(data, array("q", starts)) == runs

    @pytest.mark.parametrize(
        ("ids", "runs"),
        [
            ([], []),
            ([(7, 3)], [(7, 3, 1)]),
            ([(7, 3), (7, 4), (7, 5)], [(7, 3, 3)]),
            ([(7, 3), (7, 5), (7, 5)], [(7, 3, 1), (7, 5, 1), (7, 5, 1)]),
            ([(7, 3), (7, 5), (7, 4), (7, 6)], [(7, 3, 1), (7, 5, 1), (7, 4, 1), (7, 6, 1)]),
            ([(7, 3), (8, 4), (8, 5), (7, 4)], [(7, 3, 1), (8, 4, 2), (7, 4, 1)]),
            ([(7, 3), (7, -4096)], None),
            ([(-1, 3)], None),
            ([(7, -1), (7, 0)], None),
            ([(7, 0), (7, (1 << 63) - 1)], [(7, 0, 1), (7, (1 << 63) - 1, 1)]),
        ],
    )
    def test_runs(self, ids: list[tuple[int, int]], runs: list[tuple[int, int, int]] | None) -> None:
        records = Records.of([struct.pack(">qq", *pair) + bytes(16) for pair in ids])
        assert self.module.cut_runs(records.data, records.starts) == runs
        if ids:
            assert self.module.cut_runs(records.data, range(0, len(records.data) + 1, 36)) == runs

    @examples(st.lists(st.tuples(ODD_IDS, ODD_IDS, st.integers(-9, 9)), max_size=8))
    def test_greatest_lac(self, records: list[tuple[int, int, int]]) -> None:
        bodies = [(struct.pack(">qqq", 7, entry, lac) + bytes(9))[: 24 + size] for entry, lac, size in records]
        expected = -1
        for entry, lac, size in records:
            if size >= 0 and lac < entry:
                expected = max(expected, lac)
        found = Records.of(bodies)
        assert self.module.greatest_lac(found.data, found.starts) == expected


@pytest.mark.skipif(not HAS_NATIVE, reason="the compiled kernels are not built")
class TestNativeKernels(TestPythonKernels):
    if HAS_NATIVE:
        module = importlib.import_module("bookies.kernels._native")


def test_records() -> None:
    records = Records.of([b"a", b"", b"ccc"])
    assert (len(records), records.size) == (3, 16)
    assert [records.body(index) for index in range(3)] == [b"a", b"", b"ccc"]
    assert records.tobytes() is records.data
    part = records.slice(1, 3)
    assert (len(part), part.size, part.tobytes()) == (2, 11, b"\x00\x00\x00\x00\x00\x00\x00\x03ccc")
    assert [part.body(0), part.body(1)] == [b"", b"ccc"]
