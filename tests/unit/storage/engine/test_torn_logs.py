"""Which entry logs count only in part after a power failure, and when nobody can tell."""

from __future__ import annotations

from random import Random

import pytest

from bookies.lab.sim.world.disk import SimDisk
from bookies.storage.engine.torn_logs import is_behind, torn_logs
from bookies.storage.entry_log.log_directories import LogDirectories
from bookies.storage.index.catalog_format import Contents, Synced, pack, pack_synced, pack_torn, parse
from bookies.storage.journal import LogMark

MARK = LogMark(7, 512)
PLACES = ("/a/current", "/b/current")


def disk_with(*names: str) -> SimDisk:
    disk = SimDisk(Random(0))
    for directory in PLACES:
        disk.put(f"{directory}/VERSION", b"")
    for name in names:
        disk.put(f"/{name}", b"x")
    return disk


def torn(disk: SimDisk, synced: Synced, **changes: object) -> dict[int, int]:
    given: dict[str, object] = {"returned": [], "before": {}}
    return torn_logs(disk, LogDirectories(PLACES), synced=synced, **(given | changes))  # type: ignore[arg-type]


def test_what_was_not_synced() -> None:
    disk = disk_with("a/current/3.log", "b/current/4.log", "a/current/5.log", "b/current/6.log")
    assert torn(disk, Synced(4, 2048, 5, (MARK,))) == {4: 2048, 6: 0}
    assert torn(disk, Synced(-1, 0, 5, (MARK,))) == {6: 0}
    assert torn(disk, Synced(9, 2048, 9, (MARK,))) == {}  # it was removed since


def test_more_logs_that_were_being_written() -> None:
    disk = disk_with("a/current/3.log", "b/current/4.log", "a/current/5.log", "b/current/6.log")
    synced = Synced.of({3: 1024, 4: 2048}, 5, (MARK,), b"r" * 16)
    assert synced.ends == {3: 1024, 4: 2048}
    assert torn(disk, synced, before={4: 4096}) == {3: 1024, 4: 2048, 6: 0}
    assert Synced.of({}, 5, (MARK,), b"r" * 16) == Synced(-1, 0, 5, (MARK,), b"r" * 16)


def test_what_was_torn_before_stays_so_while_it_is_there() -> None:
    disk = disk_with("a/current/3.log", "b/current/4.log")
    assert torn(disk, Synced(-1, 0, 4, (MARK,)), before={3: 1024, 2: 4096}) == {3: 1024}
    assert torn(disk, Synced(4, 2048, 4, (MARK,)), before={3: 1024, 4: 1500}) == {3: 1024, 4: 1500}


def test_the_complete_output_of_a_compaction_counts() -> None:
    disk = disk_with("a/current/6.log", "a/current/6.log.3.compacted", "a/current/7.log", "b/current/8.log.compacting")
    assert torn(disk, Synced(4, 2048, 5, (MARK,))) == {7: 0}


def test_ids_that_a_failed_directory_had_are_not_judged() -> None:
    disk = disk_with("a/current/6.log", "b/current/7.log")
    assert torn(disk, Synced(4, 2048, 5, (MARK,)), returned=["/b/current"]) == {6: 0}


@pytest.mark.parametrize(
    ("announced", "found", "lacks"),
    [
        ((LogMark(7, 512),), [[LogMark(7, 512)]], False),
        ((LogMark(7, 512),), [[LogMark(6, 0), LogMark(7, 0)]], False),  # announced, and never persisted
        ((LogMark(7, 512),), [[LogMark(7, 0), LogMark(8, 0)]], True),  # another program was here
        ((LogMark(7, 512),), [[]], False),
        ((), [[LogMark(7, 0)]], True),  # nothing was announced
        ((LogMark(7, 512), LogMark(7, 512)), [[LogMark(7, 0)], [LogMark(8, 0)]], True),
    ],
)
def test_a_catalog_that_lacks_something_is_known_by_the_marks(
    announced: tuple[LogMark, ...], found: list[list[LogMark]], lacks: bool
) -> None:
    run_id = b"r" * 16
    assert is_behind(Synced(4, 2048, 5, announced, run_id), found, run_id) == lacks
    assert is_behind(Synced(4, 2048, 5, announced, run_id), found, b"") == lacks  # after an orderly stop
    assert is_behind(Synced(4, 2048, 5, announced, b"s" * 16), found, run_id)  # another bookie's
    assert not is_behind(None, found, run_id)


def test_it_is_kept_in_the_catalog() -> None:
    synced = Synced(4, 2048, 5, (MARK, LogMark(9, 0)), bytes(range(16)), ((3, 1024), (7, 4096)))
    kept = parse(b"".join(pack(Contents(64, synced=synced, torn={3: 1024, 6: 0}))), 64)
    assert (kept.synced, kept.torn, kept.problem) == (synced, {3: 1024, 6: 0}, "")
    later = Synced(-1, 0, 6)
    appended = (
        b"".join(pack(Contents(64))) + pack_synced(synced) + pack_torn({3: 1}) + pack_synced(later) + pack_torn({})
    )
    kept = parse(appended, 64)
    assert (kept.synced, kept.torn) == (later, {})
