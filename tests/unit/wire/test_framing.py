"""Frames out of bytes in any pieces; limits before allocation; no quadratic work."""

from __future__ import annotations

import random
import tracemalloc
from itertools import pairwise

import pytest

from bookies.errors import RemoteProtocolError
from bookies.wire.framing import DIRECT_HELD, DIRECT_SIZE_MAX, PREFIX_SIZE, FrameReader


def frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def frames_of(reader: FrameReader, data: bytes) -> list[bytes]:
    buffer, starts = reader.feed(data)
    return [buffer[starts[index] + 4 : starts[index + 1]] for index in range(len(starts) - 1)]


def test_frames_in_one_piece_keep_the_tail() -> None:
    reader = FrameReader(100)
    assert frames_of(reader, frame(b"one") + frame(b"two") + frame(b"three")[:6]) == [b"one", b"two"]
    assert frames_of(reader, b"r") == []
    assert frames_of(reader, b"ee" + frame(b"four")) == [b"three", b"four"]


def test_a_buffer_without_leftovers_is_passed_through() -> None:
    data = frame(b"payload")
    buffer, _ = FrameReader(100).feed(data)
    assert buffer is data


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer(kind: type) -> None:
    assert frames_of(FrameReader(100), kind(frame(b"payload"))) == [b"payload"]


def test_the_limit_counts_the_prefix() -> None:
    assert frames_of(FrameReader(11), frame(b"1234567")) == [b"1234567"]
    with pytest.raises(RemoteProtocolError, match="frame of 8 bytes"):
        FrameReader(11).feed(frame(b"12345678"))


@pytest.mark.parametrize("length", [b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x80\x00\x00\x00"])
def test_a_bad_length_is_refused_as_soon_as_it_is_there(length: bytes) -> None:
    reader = FrameReader(5 << 20)
    assert frames_of(reader, length[:3]) == []
    with pytest.raises(RemoteProtocolError):
        reader.feed(length[3:])
    with pytest.raises(RemoteProtocolError):  # and the stream stays broken
        reader.feed(frame(b"good"))


def test_good_frames_before_a_bad_length_are_delivered() -> None:
    reader = FrameReader(100)
    assert frames_of(reader, frame(b"good") + b"\xff\xff\xff\xff") == [b"good"]
    assert reader.error is not None
    with pytest.raises(RemoteProtocolError):
        reader.feed(b"more")


def test_nothing_is_allocated_by_a_declared_length() -> None:
    tracemalloc.start()
    try:
        reader = FrameReader(1 << 30)
        reader.feed((1 << 29).to_bytes(4, "big") + b"a few")
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()


def test_a_large_frame_in_small_pieces_is_copied_once() -> None:
    """Joining at every piece would copy 2 GB here; what is copied is told by identity of the pieces."""
    payload = bytes(range(256)) * 4096
    data = frame(payload)
    reader = FrameReader(2 << 20)
    for at in range(0, len(data) - 256, 256):
        buffer, starts = reader.feed(data[at : at + 256])
        assert (buffer, list(starts)) == (b"", [0]) or at == 0
    assert frames_of(reader, data[at + 256 :]) == [payload]


def test_what_follows_the_frames_can_be_forgotten() -> None:
    reader = FrameReader(100)
    buffer, starts = reader.feed(frame(b"start TLS") + b"\x16\x03\x03\x00")
    reader.forget_rest()
    assert buffer[starts[-1] :] == b"\x16\x03\x03\x00"
    assert frames_of(reader, frame(b"next")) == [b"next"]


@pytest.mark.parametrize("size", [DIRECT_HELD, 100_000, DIRECT_SIZE_MAX - PREFIX_SIZE, DIRECT_SIZE_MAX])
@pytest.mark.parametrize("first", [10, DIRECT_HELD - 1, DIRECT_HELD, DIRECT_HELD + 1, 60_000])
@pytest.mark.parametrize("is_direct", [True, False])
def test_a_long_frame_is_received_in_its_place(size: int, first: int, is_direct: bool) -> None:
    """What comes behind it is not lost, whether it was written into the room or not."""
    payload = random.Random(size).randbytes(size)
    data = frame(payload) + frame(b"next")
    reader = FrameReader(2 * DIRECT_SIZE_MAX)
    found = []
    at = 0
    while at < len(data):
        if reader.direct is not None and is_direct:
            room = reader.direct.rest()
            count = min(len(room), 70_000, len(data) - at)
            room[:count] = data[at : at + count]
            buffer, starts = reader.received(count)
        else:
            count = first if at == 0 else 70_000
            buffer, starts = reader.feed(data[at : at + count])
        at += count
        assert reader.held_size <= size + PREFIX_SIZE
        found += [buffer[start + PREFIX_SIZE : end] for start, end in pairwise(starts)]
    assert found == [payload, b"next"]
    assert reader.held_size == 0
