"""Damage that can be seen is never taken for absence: every file of a bookie times every kind of damage.

Afterwards the bookie returns the right bytes, an error or "unknown", or it refuses to start. What it cannot see from
its files is in `UNSEEN`, with the section of docs/reference/formats/damage.md that gives the reason. A sample runs
always; `BK_DAMAGE_STEP=1` takes every byte.
"""

from __future__ import annotations

import os
import pathlib
import struct
from collections.abc import Iterator
from fnmatch import fnmatch
from random import Random

import pytest

from bookies.lab.sim.faults import damage
from bookies.lab.sim.faults.damage import Outcome
from bookies.storage.index import index_format

from .damage_world import DAMAGES, WORLDS, Mutation, collect, kind_of, mutations, worlds

STEP = int(os.environ.get("BK_DAMAGE_STEP", "0"))  # bytes between two damages of a file; 0: a sample
SAMPLE_STEP = 1511
SAMPLE_MAX = 16  # mutations of a world by one kind of damage, in the sample
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "reference" / "formats" / "damage.md"

# (world, format, kind of damage) -> the heading of the reason. An asterisk stands for any.
UNSEEN = {
    ("apache-*", ".idx", "overwritten"): "Index files without a catalog",
    ("apache-*", ".idx", "cut"): "Index files without a catalog",
    ("apache-*", ".idx", "older"): "Index files without a catalog",
    ("apache-*", ".idx", "swapped"): "Index files without a catalog",
    ("apache-*", ".idx", "forged"): "Index files without a catalog",
    ("apache-*", ".idx", "flipped"): "Index files without a catalog",
    ("apache-killed", ".txn", "*"): "Journals without trailers",
    ("apache-killed", "lastMark", "*"): "A mark without a second copy",
    ("apache-rocksdb*", "l*s", "cut"): "Databases without a catalog",
    ("apache-rocksdb*", "l*s", "overwritten"): "Databases without a catalog",
    ("apache-rocksdb*", "l*s", "older"): "Databases without a catalog",
    ("apache-rocksdb*", "l*s", "swapped"): "Databases without a catalog",
    ("failed", ".log", "removed"): "Entry logs of a directory that was away",
    ("failed", ".log", "swapped"): "Entry logs of a directory that was away",
}


def unseen(mutation: Mutation, kind: str) -> str:
    """Return the heading of the reason why this damage cannot be seen; empty if it can."""
    key = mutation.world.name, kind_of(mutation.path), kind
    for pattern, heading in UNSEEN.items():
        if all(fnmatch(name, part) for name, part in zip(key, pattern, strict=True)):
            return heading
    return ""


def some(kind: str, world: str) -> Iterator[Mutation]:
    """Yield all mutations, or a sample of at least one file of each format."""
    if STEP:
        for path in sorted(worlds()[world].base.files):
            yield from mutations(worlds()[world], path, kind, STEP)
        return
    random = Random(f"{world}/{kind}")
    by_format: dict[str, list[str]] = {}
    for path in sorted(worlds()[world].base.files):
        by_format.setdefault(kind_of(path), []).append(path)
    for paths in by_format.values():
        found = list(mutations(worlds()[world], random.choice(paths), kind, SAMPLE_STEP))
        yield from random.sample(found, min(len(found), max(1, SAMPLE_MAX // len(by_format))))


def examined(mutation: Mutation) -> Outcome:
    base = damage.may_be_lost(mutation.world.base, mutation.files, mutation.path)
    return damage.examine(base, mutation.files, f"{mutation.path}/{mutation.name}", collect)


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("world", WORLDS)
def test_visible_damage_is_never_taken_for_absence(world: str, kind: str) -> None:
    lies: list[str] = []
    for mutation in some(kind, world):
        outcome = examined(mutation)
        assert not outcome.false, mutation[1:3]
        if outcome.lies() and not unseen(mutation, kind):
            lies += [f"{mutation.path}, {mutation.name}: {lie}" for lie in outcome.lies()[:2]]
    assert not lies, lies[:20]


def test_every_reason_is_in_the_documents() -> None:
    text = PAGE.read_text()
    assert not [heading for heading in set(UNSEEN.values()) if f"**{heading}.**" not in text]


@pytest.mark.parametrize("world", WORLDS)
def test_an_intact_bookie_serves_everything(world: str) -> None:
    """Otherwise the sweep would be about nothing."""
    base = worlds()[world].base
    outcome = damage.examine(base, base.files, 0, collect)
    assert not outcome.lies()
    assert not outcome.refusal
    assert outcome.counts["right"] == 2 * len(base.entries) > 100


# -- what once was taken for absence -----------------------------------------------------------------------------------
def replaced(world: str, path: str, data: bytes, name: str) -> Mutation:
    made = worlds()[world]
    return Mutation(made, path, name, made.base.files | {path: data})


@pytest.mark.parametrize("world", ["apache-stopped", "apache-killed"])
def test_an_index_file_of_apaches_that_is_cut_off(world: str) -> None:
    """It ends within its header, or within a slot, or with fewer slots than a page: it is not a shorter file."""
    path, page = "/ledgers/current/0/3/3.idx", damage.CONFIG.index_page_size
    data = worlds()[world].base.files[path]
    for size in range(0, len(data), STEP or 29):
        if size <= index_format.HEADER_SIZE or (size - index_format.HEADER_SIZE) % page:
            assert not examined(replaced(world, path, data[:size], f"cut at {size}")).lies(), size


@pytest.mark.parametrize("ledger_id", [1, 2, 4, 5])
def test_an_index_file_of_apaches_that_is_another_ledgers(ledger_id: int) -> None:
    """Its last slot names an entry of the other ledger: neither its slots nor its fence are this ledger's."""
    files = worlds()["apache-stopped"].base.files
    data = files[f"/ledgers/current/0/{ledger_id}/{ledger_id}.idx"]
    for other in (3, 5, 7):
        mutation = replaced("apache-stopped", f"/ledgers/current/0/{other}/{other}.idx", data, f"of {ledger_id}")
        assert other == ledger_id or not examined(mutation).lies(), other


@pytest.mark.parametrize("world", ["killed", "rocksdb-killed"])
@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_a_journal_whose_header_names_an_older_version(world: str, version: int) -> None:
    """Its groups have trailers, so the header is damaged. Replay goes on at the next group, once."""
    for path, data in worlds()[world].base.files.items():
        if path.endswith(".txn"):
            changed = data[:4] + version.to_bytes(4, "big") + data[8:]
            outcome = examined(replaced(world, path, changed, f"version {version}"))
            assert not outcome.lies(), path
            assert not outcome.refusal, path


@pytest.mark.parametrize(("world", "suffix"), [("apache-killed", ".txn"), ("apache-stopped", ".log")])
def test_an_entry_id_that_no_bookie_accepts(world: str, suffix: str) -> None:
    """A changed id in a journal, or in a log while an index file is rebuilt, is damage and not another entry."""
    ids = struct.pack(">qq", 8, 23)
    changed = struct.pack(">qq", 8, 23 + (1 << 60))
    made = worlds()[world]
    path = next(path for path, data in made.base.files.items() if ids in data and path.endswith(suffix))
    files = made.base.files | {path: made.base.files[path].replace(ids, changed, 1)}
    files.pop("/ledgers/current/0/8/8.idx", None)
    outcome = examined(Mutation(made, path, "impossible id", files))
    assert not outcome.lies()
    assert outcome.counts["DataUnknown"] or outcome.counts["ReadFailed"]


@pytest.mark.parametrize("size", [0, 1, 20, 540, 1023])
def test_a_log_that_is_shorter_than_its_header_while_index_files_are_rebuilt(size: int) -> None:
    """The catalog knows that the log was synced, so it is not one that a crash left empty."""
    path = "/ledgers0/current/0.log"
    data = worlds()["failed"].base.files[path][:size]
    assert not examined(replaced("failed", path, data, f"cut at {size}")).lies()


@pytest.mark.parametrize("number", range(3, 9))
def test_a_catalog_that_lost_its_last_records_after_a_compaction(number: int) -> None:
    """No mark is greater than it has announced, but slots name a log that it does not count: that log was synced."""
    path = "/ledgers/current/index.catalog"
    world = worlds()["compacting"]
    ends = [mutation for mutation in mutations(world, path, "forged", 1) if mutation.name.startswith("cut off")]
    assert not examined(ends[-number]).lies()
