"""Encryption at rest on a simulated disk: round trips, rotation, crashes, damage, and missing keys."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.fakes.records import BOOKIE, FakeRecords
from tests.sim.space_world import ALL, Body, SpaceSweep, check_entries, fill, small_machine
from tests.sim.test_storage_crash import sweep

from bookies.errors import ConfigError, DataUnknown, EntryNotFound, ReadFailed, StorageError
from bookies.kernels import Adds
from bookies.lab.sim.world.disk import NOTHING_SURVIVES, PROCESS_DIES
from bookies.storage.entry_log import entry_log_format
from bookies.storage.entry_log.log_usage import keys_of
from bookies.storage.identity import cookie
from bookies.storage.journal import journal_format
from bookies.storage.journal.journal_trailer import MAGIC as TRAILER
from bookies.storage.sealing.keys_file import RECHECK_S
from bookies.storage.sealing.sealed_format import id_of, label_of, pack_line
from bookies.storage.store import LedgerStore

PATH = "/keys/keys"
KEY = b"k" * 20
OLD, NEW = b"a" * 32, b"b" * 32
PLAIN = "plain\n"
BOTH_INDEXES_BUT = {
    "test_damage_is_never_absence",
    "test_a_missing_key_refuses_the_start_and_names_key_and_files",
    "test_a_missing_key_of_a_journal_refuses_the_start",
    "test_a_journal_without_header_is_not_replayed_as_plain_without_keys",
    "test_plain_entries_of_a_journal_without_header_do_not_stop_the_start",
    "test_a_log_that_a_failed_directory_has_lost_stays_sealed",
    "test_a_cookie_that_cannot_say_it_refuses_encryption",
    "test_a_missing_key_of_the_last_group_is_not_taken_for_a_crash",
    "test_a_missing_key_of_a_damaged_group_costs_none_of_its_entries",
    "test_a_damaged_entry_under_an_unknown_key_does_not_stop_the_start",
    "test_a_log_whose_header_is_damaged_hinders_neither_start_nor_other_logs",
    "test_changes_of_the_keys_file_that_cannot_be_used_keep_the_keys",
    "test_the_bookie_reports_how_much_is_under_each_key",
}


def lines(*keys: bytes) -> str:
    return "".join(map(pack_line, keys))


def write_keys(disk: Any, text: str) -> None:
    disk.make_directories("/keys")
    disk.replace_bytes(PATH, text.encode())


@pytest.fixture
def sealed(machine: Callable[..., Any]) -> Callable[..., Any]:
    """A machine whose bookie has one key."""

    def make(seed: object = 0, **settings: object) -> Any:
        made = small_machine(machine, seed, encryption_keys_file=PATH, **settings)
        write_keys(made.disk, lines(OLD))
        for directory in (*made.config.journal_directories, *made.config.ledger_directories):
            stamp = cookie.Cookie("b1", ",".join(made.config.journal_directories), made.config.ledger_directories, "i")
            cookie.write_cookie(made.disk, directory, stamp.pack())
        return made

    return make


def without_keys(made: Any) -> Any:
    made.config = replace(made.config, encryption_keys_file="")
    return made


def files(made: Any, suffix: str) -> dict[str, bytes]:
    names = [
        f"{directory}/current/{name}"
        for directory in (*made.config.journal_directories, *made.config.ledger_directories)
        for name in made.disk.list(f"{directory}/current")
        if not made.disk.is_directory(f"{directory}/current/{name}")
    ]
    return {name: made.disk.read_bytes(name) for name in names if name.endswith(suffix)}


def keys_of_logs(made: Any) -> set[tuple[int, ...]]:
    return {keys_of(made.disk, path) for path in files(made, ".log")}


def is_noted(made: Any) -> bool:
    noted = {cookie.is_encrypted(made.disk, path.removesuffix("/VERSION")) for path in files(made, "VERSION")}
    assert len(noted) == 1
    return noted.pop()


async def re_encrypt(store: LedgerStore, promises: Any, records: FakeRecords) -> None:
    store.collect(records, BOOKIE)
    assert store.collector is not None
    await store.collector.re_encrypt(is_awaited=True)
    assert store.collector.steps.failure_count == 0
    await check_entries(store, promises, records)


def test_no_payload_is_on_the_disk_and_everything_is_read(sealed: Any, body: Body) -> None:
    made = sealed()

    async def script(store: LedgerStore, promises: Any) -> None:
        await fill(store, promises, body)
        await promises.check(store)  # from the cache
        await store.checkpoint()
        await promises.check(store)
        await promises.add(store, 7, {0: body(7, 0, size=500)})

    assert made.live(script, stops=False)
    made.crash(PROCESS_DIES)
    made.check()
    for path, data in (files(made, ".log") | files(made, ".txn")).items():
        for sent in made.promises.submitted.values():
            assert all(each[16:80] not in data for each in sent), path
    assert keys_of_logs(made) == {(id_of(OLD),)}
    assert is_noted(made)


def test_a_crash_at_a_disk_call(machine: Any, sealed: Any, body: Body) -> None:
    async def script(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, {entry: body(1, entry) for entry in range(8)})
        await promises.add(store, 2, {entry: body(2, entry, size=700) for entry in (0, 3, 4)})
        await promises.fence(store, 2)
        promises.add(store, 1, {entry: body(1, entry, size=900) for entry in range(8, 16)})
        await store.checkpoint()
        await promises.add(store, 1, {entry: body(1, entry) for entry in range(16, 20)})

    assert sweep(sealed, script, step=5) > 60


def test_adds_that_wait_for_their_ledgers_are_counted_as_they_are_reported(sealed: Any, body: Body) -> None:
    """Sealing adds bytes to them. A bookie that counts less than it answers stops at the first such add."""
    made = sealed(journals=2)

    async def before(store: LedgerStore, promises: Any) -> None:
        await promises.add_mixed(store, {(ledger_id, 0): body(ledger_id, 0) for ledger_id in range(5)})
        await promises.fence(store, 4)

    async def after(store: LedgerStore, promises: Any) -> None:
        outcomes: asyncio.Queue[Adds] = asyncio.Queue()
        counted, left = 0, 14

        def accepted(size: int) -> None:
            nonlocal counted
            counted += size

        def send(ledger_ids: range, entry_id: int) -> None:
            adds = Adds.of_many(
                [(ledger_id, entry_id, -1) for ledger_id in ledger_ids],
                [body(ledger_id, entry_id) for ledger_id in ledger_ids],
            )
            assert not store.add(
                adds,
                KEY,
                is_recovery=False,
                is_deferred_sync=False,
                accepted=accepted,
                done=lambda part, error: outcomes.put_nowait(part),
            )

        send(range(8), 1)  # on disk, one of them fenced, and new ones
        send(range(6), 2)  # behind them
        while left:
            part = await outcomes.get()
            left -= part.stretch_count
            counted -= part.records.size
        assert not counted

    assert made.live(before)
    assert made.live(after)


def test_plain_entries_are_sealed_then_rotated_then_decrypted(sealed: Any, body: Body) -> None:
    """Journals are replayed, and logs are read, that a process in another mode has written."""
    made, records = sealed(), FakeRecords.of(*ALL)
    run = partial(made.live, stops=False)

    async def add(store: LedgerStore, promises: Any, first: int) -> None:
        for ledger_id in ALL:
            await promises.add(store, ledger_id, {first + at: body(ledger_id, first + at, size=400) for at in range(3)})
        await promises.check(store)

    async def rotate(store: LedgerStore, promises: Any) -> None:
        await add(store, promises, 20)
        write_keys(made.disk, lines(NEW, OLD))
        await asyncio.sleep(2 * RECHECK_S)
        await add(store, promises, 30)
        await store.checkpoint()
        assert keys_of_logs(made) >= {(id_of(NEW), id_of(OLD))}
        await re_encrypt(store, promises, records)

    write_keys(made.disk, PLAIN + lines(OLD))
    assert run(lambda store, promises: add(store, promises, 0))
    assert not is_noted(made)
    made.crash(PROCESS_DIES)
    write_keys(made.disk, lines(OLD))
    assert run(lambda store, promises: add(store, promises, 10))  # replays a plain journal
    assert is_noted(made)
    assert run(rotate)
    assert keys_of_logs(made) == {(id_of(NEW),)}
    made.crash(NOTHING_SURVIVES)
    write_keys(made.disk, lines(NEW))  # the retired key has left
    assert run(lambda store, promises: add(store, promises, 40))
    made.crash(PROCESS_DIES)
    write_keys(made.disk, PLAIN + lines(NEW))
    assert made.live(lambda store, promises: re_encrypt(store, promises, records))
    assert keys_of_logs(made) == {()}
    assert not is_noted(made)
    without_keys(made).check()


def test_the_bookie_reports_how_much_is_under_each_key(sealed: Any, body: Body) -> None:
    made, records = sealed(), FakeRecords.of(*ALL)

    async def script(store: LedgerStore, promises: Any) -> None:
        await fill(store, promises, body)
        await store.checkpoint()
        store.collect(records, BOOKIE)
        assert store.collector is not None
        facts: Any = await store.collector.compactions.recoding.describe()
        assert facts["key_in_use"] == facts["keys_known"] == label_of(id_of(OLD))
        assert facts["bytes_under_key"] == {label_of(id_of(OLD)): sum(map(len, files(made, ".log").values()))}

    assert made.live(script)


@pytest.mark.parametrize("kind", ["transactional", "plain"])
def test_a_crash_in_re_encryption(sealed: Any, body: Body, kind: str) -> None:
    async def script(store: LedgerStore, promises: Any, records: FakeRecords) -> None:
        write_keys(store._runtime.disk, lines(NEW, OLD))
        await asyncio.sleep(2 * RECHECK_S)
        await promises.add(store, 5, {entry: body(5, entry, size=700) for entry in range(20, 24)})
        await re_encrypt(store, promises, records)

    def make(seed: object, **settings: object) -> Any:
        return sealed(seed, compaction=kind, **settings)

    crash = SpaceSweep(make, body, script)
    for number in range(3, crash.count_calls(), 41):
        crash.crash(number)


@pytest.mark.parametrize("keys", ["", PLAIN + lines(NEW), lines(NEW)])
def test_a_missing_key_refuses_the_start_and_names_key_and_files(sealed: Any, body: Body, keys: str) -> None:
    made = sealed()

    async def script(store: LedgerStore, promises: Any) -> None:
        await fill(store, promises, body)

    assert made.live(script)
    before = files(made, "")
    if keys:
        write_keys(made.disk, keys)
    path = next(iter(files(made, ".log")))
    with pytest.raises(StorageError, match=f"key is missing: {label_of(id_of(OLD))}, needed by {path}"):
        (made if keys else without_keys(made)).live(script)
    assert {name: data for name, data in files(made, "").items() if name in before} == before


@pytest.mark.parametrize("keys", ["", lines(NEW)])
def test_a_missing_key_of_a_journal_refuses_the_start(sealed: Any, body: Body, keys: str) -> None:
    made = sealed()
    assert made.live(lambda store, promises: promises.add(store, 1, {0: body(1, 0)}), stops=False)
    made.crash(PROCESS_DIES)
    if keys:
        write_keys(made.disk, keys)
    with pytest.raises(StorageError, match=r"txn.*encryption_keys_file"):
        (made if keys else without_keys(made)).live(lambda store, promises: promises.check(store))
    write_keys(made.disk, lines(NEW, OLD))
    made.config = replace(made.config, encryption_keys_file=PATH)
    made.check()


def test_a_journal_without_header_is_not_replayed_as_plain_without_keys(sealed: Any, body: Body) -> None:
    """Sealed entries look like plain ones. The cookies say that there may be some."""
    made = sealed()
    assert made.live(lambda store, promises: promises.add(store, 1, {0: body(1, 0)}), stops=False)
    made.crash(PROCESS_DIES)
    before = files(made, ".txn")
    for path in before:
        made.disk.flip_bit(path, 1, 1)
    with pytest.raises(StorageError, match=r"txn.*encryption_keys_file"):
        without_keys(made).live(lambda store, promises: promises.check(store))
    for path in before:
        made.disk.flip_bit(path, 1, 1)
    assert files(made, ".txn") == before
    made.config = replace(made.config, encryption_keys_file=PATH)
    made.check()


def test_plain_entries_of_a_journal_without_header_do_not_stop_the_start(sealed: Any, body: Body) -> None:
    """The cookies say that entries may be sealed, so these count as damaged. No key is missing: none ever was."""
    made = sealed()
    assert made.live(lambda store, promises: promises.add(store, 1, {0: body(1, 0)}))
    write_keys(made.disk, PLAIN + lines(OLD))

    async def add(store: LedgerStore, promises: Any) -> None:
        for ledger_id, entry in ((1, 1), (1, 2), (2, 0)):  # a group each; the last add confirmed is 1 or -1
            await promises.add(store, ledger_id, {entry: body(ledger_id, entry)})

    assert made.live(add, stops=False)
    made.crash(PROCESS_DIES)
    for path in files(made, ".txn"):
        made.disk.flip_bit(path, 1, 1)

    async def script(store: LedgerStore, promises: Any) -> None:
        assert await store.read(1, 0) == body(1, 0)
        for ledger_id, entry in ((1, 1), (1, 2), (2, 0)):
            with pytest.raises(DataUnknown):
                await store.read(ledger_id, entry)

    assert made.live(script)


def test_a_missing_key_of_the_last_group_is_not_taken_for_a_crash(sealed: Any, body: Body) -> None:
    """Without its trailer a crash may have torn the group, and entries that do not authenticate are left out."""
    made = sealed()
    bodies = {entry: body(1, entry, size=700) for entry in range(6)}
    assert made.live(lambda store, promises: promises.add(store, 1, bodies), stops=False)
    made.crash(PROCESS_DIES)
    path, data = next((path, data) for path, data in files(made, ".txn").items() if TRAILER in data)
    made.disk.flip_bit(path, data.rindex(TRAILER) + 30, 1)
    write_keys(made.disk, lines(NEW))
    with pytest.raises(StorageError, match=r"txn.*encryption_keys_file"):
        made.live(lambda store, promises: promises.check(store))
    write_keys(made.disk, lines(NEW, OLD))
    made.check()


def damage_a_journal(made: Any, body: Body, count: int, damage: bytes) -> None:
    """Leave a group of `count` sealed entries, the last damaged from its key id on, and one under another key."""

    async def add(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, {entry: body(1, entry) for entry in range(count)})
        write_keys(made.disk, lines(NEW, OLD))
        assert store.parts is not None
        assert store.parts.keys is not None
        store.parts.keys.reload()
        await promises.add(store, 1, {count: body(1, count)})

    assert made.live(add, stops=False)
    made.crash(PROCESS_DIES)
    path, data = next((path, data) for path, data in files(made, ".txn").items() if TRAILER in data)
    at = data.rindex(id_of(OLD).to_bytes(4, "big"))
    made.disk.put(path, data[:at] + damage + data[at + len(damage) :])


async def check_all_but(store: LedgerStore, promises: Any, lost: int) -> None:
    for (ledger_id, entry), sent in promises.acknowledged.items():
        if entry == lost:
            with pytest.raises(DataUnknown):
                await store.read(ledger_id, entry)
        else:
            assert await store.read(ledger_id, entry) == sent


@pytest.mark.parametrize("damage", [bytes(4), b"????", b"?" * 40], ids=["zeros", "key", "all"])
def test_a_missing_key_of_a_damaged_group_costs_none_of_its_entries(sealed: Any, body: Body, damage: bytes) -> None:
    """Without the key nothing would tell the intact entries of the group from the damaged one."""
    made = sealed()
    damage_a_journal(made, body, 4, damage)
    write_keys(made.disk, lines(NEW))
    with pytest.raises(StorageError, match=rf"txn.* needs the key {label_of(id_of(OLD))}"):
        made.live(lambda store, promises: promises.check(store))
    write_keys(made.disk, lines(NEW, OLD))
    assert made.live(lambda store, promises: check_all_but(store, promises, 3))


def test_a_damaged_entry_under_an_unknown_key_does_not_stop_the_start(sealed: Any, body: Body) -> None:
    """What it names may be no key, and then the bookie could never start again."""
    made = sealed()
    damage_a_journal(made, body, 1, b"?" * 40)
    assert made.live(lambda store, promises: check_all_but(store, promises, 0))


@pytest.mark.parametrize("damage", ["", "unreadable"])
def test_a_log_whose_header_is_damaged_hinders_neither_start_nor_other_logs(
    sealed: Any, body: Body, damage: str
) -> None:
    """It may have sealed entries: Apache's bookie stays locked out, and the rest is decrypted."""
    made, records = sealed(), FakeRecords.of(1)

    async def script(store: LedgerStore, promises: Any) -> None:
        for entry in range(2):
            await promises.add(store, 1, {entry: body(1, entry)})
            await store.checkpoint()
        await promises.check(store)

    assert made.live(script)
    assert made.live(lambda store, promises: promises.add(store, 1, {2: body(1, 2)}))
    write_keys(made.disk, PLAIN + lines(OLD))
    path = min(files(made, ".log"))
    if damage:
        made.disk.fail("pread", path, lambda: OSError(5, "Input/output error"), count=1 << 30)
    else:
        made.disk.flip_bit(path, entry_log_format.KEYS_OFFSET + 9, 1)

    async def decrypt(store: LedgerStore, promises: Any) -> None:
        store.collect(records, BOOKIE)
        assert store.collector is not None
        await store.collector.re_encrypt(is_awaited=True)
        assert len((await store.collector.compactions.recoding.describe())["bytes_under_key"]) == 2
        assert await store.read(1, 2) == body(1, 2)

    assert made.live(decrypt)
    assert is_noted(made)
    with pytest.raises(StorageError, match=f"{path} may hold encrypted entries"):
        without_keys(made).live(script)  # which would serve them as they are stored


def test_a_log_that_a_failed_directory_has_lost_stays_sealed(sealed: Any, body: Body) -> None:
    """The next start cuts off what was not synced there. Only the header says that the rest is sealed."""
    made = sealed(ledgers=2, entry_log_size_max=1 << 20)
    made.disk.forgets_failed_syncs = True

    async def script(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, {0: body(1, 0)})
        await store.checkpoint()
        directory = posixpath.dirname(next(iter(files(made, ".log"))))
        made.disk.fail("fsync|fdatasync", directory, lambda: OSError(5, "Input/output error"), count=1 << 40)
        await promises.add(store, 1, {1: body(1, 1)})
        await store.checkpoint()
        assert store.stats()["directories_failed"] == 1

    assert made.live(script, stops=False)
    made.disk.faults.clear()
    made.crash(PROCESS_DIES)
    made.check()
    assert keys_of_logs(made) == {(id_of(OLD),)}


def test_a_cookie_that_cannot_say_it_refuses_encryption(sealed: Any, body: Body) -> None:
    """Otherwise a start without keys, or Apache's bookie, would serve sealed entries as they are."""
    made = sealed()
    for path in files(made, "VERSION"):
        made.disk.replace_bytes(path, b"3\nb1\n/journal0\n1\t/ledgers0\n")
    with pytest.raises(StorageError, match="layout 3, which cannot say"):
        made.live(lambda store, promises: promises.add(store, 1, {0: body(1, 0)}))
    assert not files(made, ".txn")


def test_changes_of_the_keys_file_that_cannot_be_used_keep_the_keys(sealed: Any, body: Body) -> None:
    made = sealed()

    async def script(store: LedgerStore, promises: Any) -> None:
        for number, text in enumerate(("rubbish", PLAIN + lines(OLD), lines(NEW)[:-5])):
            write_keys(made.disk, text)
            await asyncio.sleep(2 * RECHECK_S)
            await promises.add(store, 1, {number: body(1, number)})
        write_keys(made.disk, lines(NEW))  # the running bookie still has the old key
        await asyncio.sleep(2 * RECHECK_S)
        await promises.add(store, 1, {3: body(1, 3)})
        await store.checkpoint()
        await promises.check(store)

    assert made.live(script)
    assert keys_of_logs(made) == {(id_of(NEW), id_of(OLD))}
    write_keys(made.disk, "")
    with pytest.raises(ConfigError, match="it has no key"):
        made.live(script)


# -- damage ----------------------------------------------------------------------------------------------------------
PLACES = {"length": 3, "ledger": 4 + 7, "entry": 4 + 15, "key": 4 + 17, "nonce": 4 + 25, "text": 4 + 40, "tag": -1}


@pytest.mark.parametrize("place", [*PLACES, "version", "key list"])
def test_damage_is_never_absence(sealed: Any, body: Body, place: str) -> None:
    """Each byte class of a sealed entry and of the header: the entry is an error, others stay, the scrub finds it."""
    made, records = (
        sealed(entry_log_size_max=1 << 20, scrub_period_ms=3_600_000, scrub_rate_size=1 << 30),
        FakeRecords.of(1),
    )
    bodies = {entry: body(1, entry, has_digest=False) for entry in range(3)}

    assert made.live(lambda store, promises: promises.add(store, 1, bodies))
    path, data = next(iter(files(made, ".log").items()))
    size = 4 + len(bodies[0]) + 32
    start = entry_log_format.HEADER_SIZE + size
    offsets = {"version": 7, "key list": entry_log_format.KEYS_OFFSET + 9}
    offset = offsets.get(place) or start + PLACES[place] + (size if place == "tag" else 0)
    made.disk.flip_bit(path, offset, 1)
    assert made.disk.read_bytes(path) != data

    async def script(store: LedgerStore, promises: Any) -> None:
        for entry in bodies:
            if entry == 1 or place in offsets:
                with pytest.raises(ReadFailed):
                    await store.read(1, entry)
                assert store.read_resident(1, entry) is None
            else:
                assert await store.read(1, entry) == bodies[entry]
        with pytest.raises(EntryNotFound):
            await store.read(1, 3)
        store.scrub(records)
        assert store.scrubber is not None
        await (await store.scrubber.start_pass())
        assert store.scrubber.gauges()["scrub_damaged_entries"] == (3 if place in offsets else 1)

    assert made.live(script)


@pytest.mark.parametrize(("place", "size"), [(30, 60), (3, 60), (3, 900)], ids=["text", "key", "key-of-large"])
def test_a_journal_entry_that_does_not_authenticate_leaves_its_ledger_uncertain(
    sealed: Any, body: Body, size: int, place: int
) -> None:
    """A damaged id of a key is no missing key, and no torn end: the rest authenticates."""
    made = sealed()
    assert made.live(lambda store, promises: promises.add(store, 1, {0: body(1, 0, size=size)}), stops=False)
    made.crash(PROCESS_DIES)
    path, data = next(iter(files(made, ".txn").items()))
    assert int.from_bytes(data[4:8], "big") == journal_format.SEALED_VERSION
    made.disk.flip_bit(path, data.index(id_of(OLD).to_bytes(4, "big")) + place, 1)

    async def script(store: LedgerStore, promises: Any) -> None:
        with pytest.raises(DataUnknown):
            await store.read(1, 0)

    assert made.live(script)
