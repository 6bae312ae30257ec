"""Any index is the same after it went to index files and back to databases, key by key, however many directories."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.examples import scaled

from bookies.config import BookieConfig
from bookies.lab.sim.world.databases import SimDatabases, pack, parse
from bookies.lab.sim.world.disk import SimDisk
from bookies.storage.entry_log import entry_log_format
from bookies.storage.index.index_format import STATE_FENCED, STATE_LIMBO, IndexHeader
from bookies.storage.rocksdb import rocksdb_format
from bookies.storage.rocksdb.conversion_check import RecordCheck, fingerprint, runs_of_file
from bookies.storage.rocksdb.rocksdb_format import Run
from bookies.storage.rocksdb.to_index_files import ToIndexFiles
from bookies.storage.rocksdb.to_rocksdb import ToRocks

PAGE_SIZE = 64
headers = st.builds(
    IndexHeader,
    st.binary(max_size=30),
    st.sampled_from([0, STATE_FENCED, STATE_LIMBO, STATE_FENCED | STATE_LIMBO]),
    st.just(b"") | st.binary(min_size=16, max_size=30),
)
entry_ids = st.sets(st.integers(min_value=0, max_value=40) | st.sampled_from([300, 1_000]))
ledgers = st.dictionaries(st.integers(min_value=0, max_value=9) | st.just(1 << 40), st.tuples(headers, entry_ids))


@scaled(40)
@given(ledgers, st.integers(min_value=1, max_value=3), st.integers(min_value=0, max_value=1 << 30))
def test_there_and_back(found: dict[int, tuple[IndexHeader, set[int]]], count: int, seed: int) -> None:
    names = tuple("abc"[:count])
    config = BookieConfig(journal_directories=("j",), ledger_directories=names, index_page_size=PAGE_SIZE)
    disk = SimDisk()
    random = Random(seed)
    disk.put("j/current/VERSION", b"")
    before = {}
    for number, name in enumerate(names):
        own = [each for each in found if each % count == number]
        pairs = locations_in_logs(disk, f"{name}/current", {each: found[each][1] for each in own}, random)
        before[name] = (
            pairs,
            {rocksdb_format.pack_key(each): rocksdb_format.pack_ledger_data(found[each][0]) for each in own},
        )
        disk.put(f"{name}/current/locations", pack(before[name][0]))
        disk.put(f"{name}/current/ledgers", pack(before[name][1]))
    for kind in (ToIndexFiles, ToRocks):
        conversion = kind(disk, SimDatabases(disk), config, lambda *_: None)
        conversion.open()
        survey = conversion.survey()
        assert survey.entries == sum(len(entries) for _, entries in found.values())
        assert not survey.damaged_count
        conversion.convert(survey)
        conversion.discard_old()
        conversion.close()
    for name in names:
        assert parse(disk.read_bytes(f"{name}/current/ledgers")) == before[name][1]
        after = parse(disk.read_bytes(f"{name}/current/locations"))
        assert after.keys() == before[name][0].keys()
        if name == "a":  # whose logs keep their ids
            assert after == before[name][0]
        for key, value in after.items():
            log_id, offset = entry_log_format.split_location(int.from_bytes(value, "big"))
            assert disk.read_bytes(f"{name}/current/{log_id:x}.log")[offset : offset + 16] == key


def locations_in_logs(
    disk: SimDisk, directory: str, entries: dict[int, set[int]], random: Random
) -> dict[bytes, bytes]:
    """Write the entries, in any order, to three logs of a directory."""
    logs = [bytearray(entry_log_format.pack_header()) for _ in range(3)]
    found: dict[bytes, bytes] = {}
    keys = [key for ledger_id, ids in entries.items() for key in rocksdb_format.entry_keys(ledger_id, sorted(ids))]
    random.shuffle(keys)
    for key in keys:
        log_id = random.randrange(3)
        found[key] = entry_log_format.location(log_id, len(logs[log_id]) + 4).to_bytes(8, "big")
        body = key + bytes(16) + random.randbytes(random.choice((0, 3, 5_000)))
        logs[log_id] += len(body).to_bytes(4, "big") + body
    for log_id, data in enumerate(logs):
        disk.put(f"{directory}/{log_id:x}.log", bytes(data))
    return found


@given(st.sets(st.integers(min_value=0, max_value=60)), st.lists(st.integers(min_value=0, max_value=60)))
def test_a_fingerprint_does_not_depend_on_runs(ids: set[int], cuts: list[int]) -> None:
    def runs(*, is_cut: bool) -> list[Run]:
        parts: list[list[int]] = []
        for entry_id in sorted(ids):
            if parts and parts[-1][-1] == entry_id - 1 and not (is_cut and entry_id in cuts):
                parts[-1].append(entry_id)
            else:
                parts.append([entry_id])
        slots = [b"".join(each.to_bytes(8, "big") for each in part) for part in parts]
        return [Run(7, range(part[0], part[-1] + 1), data) for part, data in zip(parts, slots, strict=True)]

    whole = fingerprint(runs(is_cut=False), PAGE_SIZE)
    assert fingerprint(runs(is_cut=True), PAGE_SIZE) == whole
    assert whole.count == len(ids)
    assert whole.pages == len({entry_id // 8 for entry_id in ids})
    assert whole.last_entry_id == max(ids, default=-1)


@given(st.binary(max_size=300), st.lists(st.integers(min_value=0, max_value=(1 << 63) - 1), min_size=1, max_size=5))
def test_no_location_is_believed_unread(data: bytes, locations: list[int]) -> None:
    """Whatever is in the log and wherever a slot points: an entry counts only where its record is, whole."""
    disk = SimDisk()
    disk.put("0.log", data)
    check = RecordCheck(disk, {0: "0.log"})
    slots = b"".join(location.to_bytes(8, "big") for location in [*locations, *(each % 320 for each in locations)])
    run = Run(0, range(len(slots) // 8), slots)
    wrong = set(check.wrong(run))
    check.close()
    for entry_id in run.entry_ids:
        log_id, offset = entry_log_format.split_location(int.from_bytes(slots[8 * entry_id : 8 * entry_id + 8], "big"))
        is_right = log_id == 0 and offset >= 4 and data[offset : offset + 16] == bytes(8) + entry_id.to_bytes(8, "big")
        if is_right:
            length = int.from_bytes(data[offset - 4 : offset], "big")
            is_right = 16 <= length <= len(data) - offset
        assert (entry_id not in wrong) == is_right


def test_runs_of_a_file_with_a_cut_off_slot() -> None:
    disk = SimDisk()
    disk.put("7.idx", bytes(1024) + (5).to_bytes(8, "big") + bytes(8) + (6).to_bytes(8, "big") + b"cut")
    assert [(run.entry_ids, run.slots) for run in runs_of_file(disk, 7, "7.idx")] == [
        (range(1), (5).to_bytes(8, "big")),
        (range(2, 3), (6).to_bytes(8, "big")),
    ]
