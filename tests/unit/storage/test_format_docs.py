"""The examples of docs/reference/formats are bytes that the code writes, and their tables name what the code knows."""

from __future__ import annotations

import json
import pathlib
import re
import struct
from collections.abc import Sequence
from random import Random

from bookies.kernels import Records
from bookies.protocol.quorums import IdSet
from bookies.storage.disks import (
    status_format,
)
from bookies.storage.engine import (
    quarantine_format,
)
from bookies.storage.entry_log import (
    entry_log_format,
)
from bookies.storage.identity import (
    cookie,
    former_ledgers_format,
)
from bookies.storage.index import (
    index_format,
)
from bookies.storage.journal import (
    journal_format,
    log_mark_format,
)
from bookies.storage.journal.journal_trailer import TRAILER_SIZE, parse_trailer
from bookies.storage.rocksdb import (
    rocksdb_format,
)
from bookies.storage.scrub import (
    scrub_format,
)
from bookies.storage.sealing import sealed_format
from bookies.storage.sealing.sealer import Nonces, Sealer

DOCS = pathlib.Path(__file__).parents[3] / "docs" / "reference" / "formats"
KEY = bytes.fromhex("850bf1071c5e3d8c24235676f8816ae0cbe2f14f")
LAC = bytes.fromhex("00000000000000070000000000000000851054f0")
BODIES = [
    bytes.fromhex("00000000000000070000000000000000ffffffffffffffff00000000000000059e3e717b68656c6c6f"),
    bytes.fromhex("000000000000000700000000000000010000000000000000000000000000000a9b088207776f726c64"),
]


def dump(page: str) -> dict[int, bytes]:
    """Offset to the bytes of each line of the page's hex dump; every line also shows them as text."""
    lines = {}
    for line in (DOCS / page).read_text().splitlines():
        match = re.match(r"([0-9a-f]{8})  ((?:[0-9a-f]{2} {1,2})+) *\|(.{1,16}?)\|", line)
        if match:
            data = bytes.fromhex(match[2])
            shown = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in data)
            assert line[line.index("|") + 1 :].startswith(shown + "|")
            lines[int(match[1], 16)] = data
    return lines


def check(page: str, data: bytes) -> None:
    lines = dump(page)
    assert lines
    for offset, content in lines.items():
        assert data[offset : offset + 16] == content, f"{page} at {offset:#x}"


def test_journal() -> None:
    records = journal_format.pack_ledger_key(7, KEY) + Records.of(BODIES[:1]).data
    end = journal_format.pack_group_end(0x18F1548F701, 512, [records], len(records), journal_format.ALIGNMENT)
    check("journal.md", journal_format.pack_header() + records + end)
    assert parse_trailer(end, len(end) - TRAILER_SIZE, 1024 - TRAILER_SIZE, 0x18F1548F701)
    text = (DOCS / "journal.md").read_text()
    for version in journal_format.HEADER_SIZES:
        assert f"\n| {version} |" in text
    for number in journal_format.VERSION_OF_SPECIAL:
        assert f"int64({number:#x})" in text


class _Counting(Nonces):
    """The nonce of the example."""

    def take(self, count: int) -> Sequence[bytes]:
        return [bytes(range(12))] * count


def test_sealed_entries() -> None:
    key = b"k" * 32
    keys = sealed_format.Keys(sealed_format.id_of(key), {sealed_format.id_of(key): key})
    body = struct.pack(">qqqq", 7, 1, 0, 10) + b"CRC.hello"
    check("sealed-entries.md", Sealer(keys, Random(1)).seal(Records.of([body]), _Counting(Random(1))).data)
    text = (DOCS / "sealed-entries.md").read_text()
    assert f"{journal_format.SEALED_VERSION:#x}" in text
    assert f"{entry_log_format.SEALED_VERSION:#x}" in text
    assert f"byte {entry_log_format.KEYS_OFFSET} " in text
    line = re.search("^([0-9a-f]{8} [A-Za-z0-9+/]{43}=)", text, re.MULTILINE)
    assert line
    assert sealed_format.parse_keys(f"plain\n{line[1]}").by_id


def test_entry_log() -> None:
    records = Records.of(BODIES).data
    data = entry_log_format.pack_header(1024 + len(records), 1) + records
    check("entry-log.md", data + entry_log_format.pack_ledgers_map([(7, len(records))]))


def test_index() -> None:
    slots = b"".join(entry_log_format.location(31, offset).to_bytes(8, "big") for offset in (0x404, 0x431))
    check("index-file.md", index_format.pack_header(index_format.IndexHeader(KEY, 1, LAC)) + slots)


def test_rocksdb() -> None:
    text = (DOCS / "rocksdb.md").read_text()
    header = index_format.IndexHeader(KEY, index_format.STATE_FENCED, LAC)
    rows = [("ledgers", rocksdb_format.pack_key(7), rocksdb_format.pack_ledger_data(header))]
    for key, offset in zip(rocksdb_format.entry_keys(7, range(2)), (0x404, 0x431), strict=True):
        rows.append(("locations", key, entry_log_format.location(31, offset).to_bytes(8, "big")))
    for database, key, value in rows:
        assert f"| `{database}` | `{key.hex()}` | `{value.hex()}` |" in text
    for name, (number, _) in rocksdb_format.LEDGER_DATA.by_name.items():
        assert re.search(rf" {name} +{'='} {number};", text)


def test_last_mark() -> None:
    check("last-mark.md", log_mark_format.pack(log_mark_format.LogMark(0x18F1548F701, 1024)))


def test_cookie() -> None:
    text = (DOCS / "cookie.md").read_text()
    example = re.search(r"```\n(5\nbookieHost.*?)```", text, re.DOTALL)
    assert example
    data = example[1].encode()
    assert cookie.parse(data).pack() == data
    check("cookie.md", data)


def test_bookie_status() -> None:
    record = status_format.StatusRecord(is_read_only=True, written_ms=1795262526105, is_manual=True)
    check("bookie-status.md", record.pack())
    assert f"\n{record.pack().decode()}```" in (DOCS / "bookie-status.md").read_text()


def test_former_ledgers() -> None:
    ids = IdSet(1207)
    ids.add(500_000, 500_004)
    ids.add(700_000, 700_001)
    assert f"```\n{former_ledgers_format.pack(ids).decode()}```" in (DOCS / "former-ledgers.md").read_text()


def test_removed_ledgers() -> None:
    removals = {7: quarantine_format.QuarantineRecord(quarantine_format.QuarantineState.QUARANTINED, 1_700_000_000_000)}
    check("removed-ledgers.md", quarantine_format.pack(1, removals))
    text = (DOCS / "removed-ledgers.md").read_text()
    for state in quarantine_format.QuarantineState:
        assert f"\n| {state.value} |" in text


def test_scrub_progress() -> None:
    text = (DOCS / "scrub-progress.md").read_text()
    example = re.search(r"```\n(\{.*?)```", text, re.DOTALL)
    assert example
    facts = example[1].replace("\n", "")
    found = scrub_format.Finding(31, 1024, 7, 0, 0, "its CRC32C does not match", 1_700_000_000_600)
    log = scrub_format.LogProgress(1_700_000_000_000, 1_700_000_000_500, 4096)
    began = 1_700_000_000_000
    counts = scrub_format.Counts(read=1024)
    progress = scrub_format.Progress(1, began, 0, False, began, None, True, 0, counts, {31: log}, [found])
    data = scrub_format.pack(1, progress)
    assert data[20:-4].decode() == facts
    check("scrub-progress.md", data)
    for name in json.loads(facts):
        assert f"\n| `{name}` |" in text
