"""Keys, values and runs of DbLedgerStorage's databases, without any database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookies.errors import CorruptRecord
from bookies.storage.index.index_format import STATE_FENCED, STATE_LIMBO, STATE_REBUILDING, IndexHeader
from bookies.storage.rocksdb import rocksdb_format

KEY = bytes.fromhex("850bf1071c5e3d8c24235676f8816ae0cbe2f14f")
LAC = bytes.fromhex("00000000000000070000000000000000851054f0")


class Dictionary:
    """A database in memory, handed out a few keys at a time."""

    def __init__(self, pairs: dict[bytes, bytes], piece_count: int = 3) -> None:
        self._pairs = {key: pairs[key] for key in sorted(pairs)}
        self._piece_count = piece_count

    def pieces(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        keys = list(self._pairs)
        for at in range(0, len(keys), self._piece_count):
            some = keys[at : at + self._piece_count]
            yield some, [self._pairs[key] for key in some]

    def get(self, key: bytes) -> bytes | None:
        return self._pairs.get(key)

    def from_key(self, key: bytes) -> Iterator[tuple[bytes, bytes]]:
        return ((each, value) for each, value in self._pairs.items() if each >= key)

    def close(self) -> None:
        pass


def test_the_worked_example() -> None:
    header = IndexHeader(KEY, STATE_FENCED, LAC)
    data = bytes.fromhex(f"080110011a14{KEY.hex()}2214{LAC.hex()}")
    assert rocksdb_format.pack_ledger_data(header) == data
    assert rocksdb_format.parse_ledger_data(data, "ledgers", 7) == header
    assert [key.hex() for key in rocksdb_format.entry_keys(7, range(2))] == [
        "00000000000000070000000000000000",
        "00000000000000070000000000000001",
    ]


def test_an_uncertain_ledger_is_in_limbo_for_apaches_bookie() -> None:
    for state in (STATE_LIMBO, STATE_REBUILDING, STATE_LIMBO | STATE_REBUILDING):
        header = IndexHeader(KEY, state)
        data = rocksdb_format.pack_ledger_data(header)
        assert b"\x28\x01" in data
        assert rocksdb_format.parse_ledger_data(data, "ledgers", 7) == header
        settled = data.replace(b"\x28\x01", b"")  # by Apache's integrity check, which keeps unknown fields
        assert rocksdb_format.parse_ledger_data(settled, "ledgers", 7) == IndexHeader(KEY)


@pytest.mark.parametrize("data", ["", "0801", "08011000", "08011001" + "1a05aa", "080110012202aaaa1a00", "ff"])
def test_damaged_ledger_data(data: str) -> None:
    with pytest.raises(CorruptRecord, match="ledger 7"):
        rocksdb_format.parse_ledger_data(bytes.fromhex(data), "ledgers", 7)


def test_ledgers_with_short_and_long_keys_and_flags() -> None:
    value = rocksdb_format.pack_ledger_data(IndexHeader(KEY))
    fenced = rocksdb_format.pack_ledger_data(IndexHeader(KEY, STATE_FENCED))
    reader = Dictionary(
        {
            rocksdb_format.pack_key(1): value,
            rocksdb_format.pack_key(2) + bytes(8): fenced,
            rocksdb_format.pack_key(3): fenced,
            rocksdb_format.pack_key(3) + bytes(8): value,
            rocksdb_format.pack_key(rocksdb_format.FLAGS_LEDGER_ID): (1).to_bytes(8, "big"),
        }
    )
    found = rocksdb_format.ledgers_of(reader, "ledgers")
    assert [(each, header.is_fenced) for each, header in found.items()] == [(1, False), (2, True), (3, True)]
    assert rocksdb_format.needs_integrity_check(reader)
    assert rocksdb_format.pack_key(rocksdb_format.FLAGS_LEDGER_ID).hex() == "ffffffffffff1103"
    assert not rocksdb_format.needs_integrity_check(Dictionary({}))
    with pytest.raises(CorruptRecord, match="a key has 4 bytes"):
        rocksdb_format.ledgers_of(Dictionary({b"1234": value}), "ledgers")


@given(
    st.dictionaries(
        st.integers(min_value=0, max_value=5) | st.sampled_from([1 << 40, (1 << 63) - 1, -3]),
        st.sets(st.integers(min_value=0, max_value=12) | st.just((1 << 63) - 1)),
    ),
    st.integers(min_value=1, max_value=7),
)
def test_runs_are_all_entries_in_order(entries: dict[int, set[int]], piece_count: int) -> None:
    pairs = {
        key: (ledger_id & 0xFF).to_bytes(4, "big") + (entry_id & 0xFFFF).to_bytes(4, "big")
        for ledger_id, entry_ids in entries.items()
        for entry_id in entry_ids
        for key in rocksdb_format.entry_keys(ledger_id, [entry_id])
    }
    found = []
    for run in rocksdb_format.runs_of(Dictionary(pairs, piece_count), "locations"):
        slots = [run.slots[at : at + 8] for at in range(0, len(run.slots), 8)]
        found += list(zip(rocksdb_format.entry_keys(run.ledger_id, run.entry_ids), slots, strict=True))
    assert found == [(key, value) for key, value in sorted(pairs.items()) if key[0] < 0x80]


def test_keys_of_other_sizes_are_damage() -> None:
    for pairs in ({b"8 bytes.": bytes(8)}, {bytes(16): bytes(7)}):
        with pytest.raises(CorruptRecord, match="a key does not have 16 bytes, or a value not 8"):
            list(rocksdb_format.runs_of(Dictionary(pairs), "locations"))


def test_the_runs_of_one_ledger() -> None:
    pairs = {key: bytes(8) for ledger_id in (6, 7, 8) for key in rocksdb_format.entry_keys(ledger_id, [0, 1, 5])}
    assert [run.entry_ids[0] for run in rocksdb_format.runs_of_ledger(Dictionary(pairs), 7)] == [0, 1, 5]
