"""The file of the scrub: what comes back is what was written, and of copies the newest good one counts."""

from __future__ import annotations

import struct

import pytest

from bookies.errors import CorruptRecord
from bookies.kernels import crc32c
from bookies.storage.scrub import scrub_format
from bookies.storage.scrub.scrub_format import Counts, Finding, LogProgress, Progress

PROGRESS = Progress(
    3,
    1_700_000_000_000,
    0,
    True,
    1_690_000_000_000,
    17,
    False,
    2,
    Counts(read=5, verified=4, unchecked=1, unchecked_entries=1, dead_damaged=9),
    {
        31: LogProgress(1_690_000_000_000, 1_700_000_000_100, 4096, False),
        32: LogProgress(1_700_000_000_050, is_done=True),
    },
    [Finding(31, 1024, 7, 0, 4, "its CRC32C does not match", 1_700_000_000_200)],
)


def test_what_is_packed_is_parsed() -> None:
    assert scrub_format.parse(scrub_format.pack(9, PROGRESS)) == (9, PROGRESS)
    assert scrub_format.parse(scrub_format.pack(1, Progress())) == (1, Progress())


def test_no_flipped_bit_and_no_other_length_is_believed() -> None:
    data = scrub_format.pack(9, PROGRESS)
    for at in range(len(data)):
        with pytest.raises(CorruptRecord):
            scrub_format.parse(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with pytest.raises(CorruptRecord):
            scrub_format.parse(data[:at])
    with pytest.raises(CorruptRecord):
        scrub_format.parse(data + b"\0")


def test_the_newest_good_copy_counts() -> None:
    old, new = scrub_format.pack(1, Progress(number=1)), scrub_format.pack(2, PROGRESS)
    assert scrub_format.newest([("a", old), ("b", new)]) == (2, PROGRESS, [])
    sequence, progress, damaged = scrub_format.newest([("a", old), ("b", new[:-1])])
    assert (sequence, progress, [each.path for each in damaged]) == (1, Progress(number=1), ["b"])
    assert scrub_format.newest([]) == (0, None, [])


@pytest.mark.parametrize("body", [b"[]", b"{}", b"\xff", b"[" * 10_000, b'{"pass": [1, 2]}'])
def test_a_right_checksum_over_other_content(body: bytes) -> None:
    data = struct.pack(">4sIQI", scrub_format.MAGIC, scrub_format.VERSION, 9, len(body)) + body
    with pytest.raises(CorruptRecord, match="not what the scrub writes"):
        scrub_format.parse(data + crc32c(data).to_bytes(4, "big"))
