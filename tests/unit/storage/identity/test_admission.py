"""Which directories a bookie may start on: every row of the table, what is said, and a crash at every step."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from bookies.errors import CookieMismatch, CorruptRecord, DiskFull
from bookies.lab.sim.world.disk import LOSSES, Loss, SimDisk
from bookies.lab.sim.world.loop import Crashed
from bookies.storage.identity import Cookie
from bookies.storage.identity.admission import Decision, SharedDisk, check_directories, decide, shared_disks
from bookies.storage.identity.cookie import DirectoryState

MASTER = Cookie("b3", "/d1/journal", ("/d2/ledgers", "/d3/ledgers"), "cluster-1")
DIRECTORIES = ["/d1/journal", "/d2/ledgers", "/d3/ledgers"]

NEW = DirectoryState(None, is_empty=True)
ABSENT = DirectoryState(None, is_empty=True, exists=False)
FOREIGN = DirectoryState(None, is_empty=False)
STAMPED = DirectoryState(MASTER, is_empty=True)
USED = DirectoryState(MASTER, is_empty=False)


def states(*each: DirectoryState) -> dict[str, DirectoryState]:
    return dict(zip(DIRECTORIES, each, strict=True))


def replaced(**changes: object) -> Cookie:
    return replace(MASTER, **changes)


@pytest.mark.parametrize(
    ("stored", "found", "decision"),
    [
        (None, (NEW, NEW, NEW), Decision.NEW_BOOKIE),
        (None, (ABSENT, NEW, ABSENT), Decision.NEW_BOOKIE),
        (None, (STAMPED, NEW, NEW), Decision.NEW_BOOKIE),  # a crash while the directories were stamped
        (None, (STAMPED, STAMPED, STAMPED), Decision.NEW_BOOKIE),  # ... or before the stored cookie was created
        (MASTER, (USED, USED, USED), Decision.OK),
        (MASTER, (STAMPED, USED, STAMPED), Decision.OK),
    ],
)
def test_starts(stored: Cookie | None, found: tuple[DirectoryState, ...], decision: Decision) -> None:
    assert decide(MASTER, stored, states(*found)) is decision
    assert decide(MASTER, stored, states(*found), allow_expansion=True) is decision


@pytest.mark.parametrize(
    ("stored", "found", "message"),
    [
        (None, (USED, USED, USED), "/d1/journal holds data of it"),
        (None, (USED, USED, NEW), "/d1/journal holds data of it"),  # lost cookie and a wiped disk (F-37)
        (None, (STAMPED, USED, STAMPED), "/d2/ledgers holds data of it"),
        (None, (NEW, FOREIGN, NEW), "/d2/ledgers is not empty and has no VERSION"),
        (None, (STAMPED, STAMPED, FOREIGN), "/d3/ledgers is not empty and has no VERSION"),
        (MASTER, (USED, USED, NEW), "/d3/ledgers is empty: a disk is missing or was wiped"),
        (MASTER, (USED, ABSENT, USED), "/d2/ledgers does not exist: a disk is missing or was wiped"),
        (MASTER, (NEW, NEW, NEW), "/d1/journal is empty"),
        (MASTER, (USED, FOREIGN, USED), "/d2/ledgers has files but no VERSION"),
    ],
)
def test_refusals(stored: Cookie | None, found: tuple[DirectoryState, ...], message: str) -> None:
    for allow_expansion in (False, True):
        with pytest.raises(CookieMismatch) as caught:
            decide(MASTER, stored, states(*found), allow_expansion=allow_expansion)
        assert str(caught.value).startswith("cannot start bookie b3: ")
        assert message in str(caught.value)
        assert "Nothing was changed" in str(caught.value)


DIFFERENT = {
    "another bookie": (replaced(bookie="b7"), "bookie b7 (according to its cookie)"),
    "another cluster": (
        replaced(instance_id="cluster-2"),
        "another cluster (instance cluster-2; this one is cluster-1)",
    ),
    "no cluster": (replaced(instance_id=None), "another cluster (instance None"),
    "another journal": (replaced(journal_directories="/d9"), "journal directories were /d9"),
    "one journal more": (replaced(journal_directories="/d1/journal,/d9"), "journal directories were /d1/journal, /d9"),
    "another order": (
        replaced(ledger_directories=("/d3/ledgers", "/d2/ledgers")),
        "ledger directories were /d3/ledgers",
    ),
    "one ledger directory more": (replaced(ledger_directories=(*MASTER.ledger_directories, "/d4")), "/d3/ledgers, /d4"),
    "an index of its own": (replaced(index_directories=("/d5",)), "index directories were /d5"),
}


@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.parametrize("is_stored", [False, True])
def test_another_cookie_is_refused(name: str, is_stored: bool) -> None:
    found, message = DIFFERENT[name]
    directory = DirectoryState(found, is_empty=False)
    arguments = (found, states(USED, USED, USED)) if is_stored else (MASTER, states(USED, directory, USED))
    with pytest.raises(CookieMismatch) as caught:
        decide(MASTER, *arguments)
    assert message in str(caught.value)
    assert ("the metadata store" if is_stored else "/d2/ledgers") in str(caught.value)
    if not is_stored:
        # A foreign directory is refused whether or not the store knows the bookie.
        with pytest.raises(CookieMismatch):
            decide(MASTER, None, states(STAMPED, directory, STAMPED))


def test_index_directories_default_to_the_ledger_directories() -> None:
    explicit = replaced(index_directories=MASTER.ledger_directories)
    assert decide(MASTER, explicit, states(USED, USED, USED)) is Decision.OK
    assert decide(explicit, MASTER, states(USED, USED, USED)) is Decision.OK


def test_expansion() -> None:
    old = replaced(ledger_directories=("/d2/ledgers",))
    before = DirectoryState(old, is_empty=False)
    for grown in (NEW, ABSENT):
        found = states(before, before, grown)
        assert decide(MASTER, old, found, allow_expansion=True) is Decision.EXPANDED
        with pytest.raises(CookieMismatch, match="ledger directories were /d2/ledgers"):
            decide(MASTER, old, found)
    with pytest.raises(CookieMismatch, match="/d3/ledgers has files but no VERSION"):
        decide(MASTER, old, states(before, before, FOREIGN), allow_expansion=True)
    with pytest.raises(CookieMismatch, match="/d2/ledgers is empty"):
        decide(MASTER, old, states(before, NEW, NEW), allow_expansion=True)
    # The directory is in an old cookie somewhere, so it was wiped.
    with pytest.raises(CookieMismatch, match="/d3/ledgers is empty"):
        decide(MASTER, old, states(USED, before, NEW), allow_expansion=True)
    # Stamped, then a crash before the stored cookie was replaced; without leave to grow nothing is completed.
    assert decide(MASTER, old, states(STAMPED, USED, STAMPED), allow_expansion=True) is Decision.EXPANDED
    with pytest.raises(CookieMismatch, match="ledger directories were /d2/ledgers"):
        decide(MASTER, old, states(STAMPED, USED, STAMPED))
    # All is stamped and stored: leave to grow changes nothing any more.
    assert decide(MASTER, MASTER, states(STAMPED, USED, STAMPED), allow_expansion=True) is Decision.OK


def test_expansion_by_an_index_directory() -> None:
    """They were the ledger directories before, and still have to be among them, in front."""
    grown = replaced(index_directories=(*MASTER.ledger_directories, "/d4/index"))
    found = {**states(USED, USED, USED), "/d4/index": NEW}
    assert decide(grown, MASTER, found, allow_expansion=True) is Decision.EXPANDED
    for others in (("/d4/index",), ("/d4/index", *MASTER.ledger_directories)):
        with pytest.raises(CookieMismatch, match="index directories were /d2/ledgers, /d3/ledgers"):
            decide(replaced(index_directories=others), MASTER, found, allow_expansion=True)


def test_a_directory_that_only_new_ones_speak_of_has_never_been_used() -> None:
    """A crash between stamping the first and the second new directory."""
    both = replaced(ledger_directories=(*MASTER.ledger_directories, "/d4", "/d5"))
    stamped, used = DirectoryState(both, is_empty=True), DirectoryState(both, is_empty=False)
    found = {**states(USED, USED, USED), "/d4": stamped, "/d5": NEW}
    assert decide(both, MASTER, found, allow_expansion=True) is Decision.EXPANDED
    for known in ({"/d4": used}, {"/d3/ledgers": used}):  # there were lives with both of them
        with pytest.raises(CookieMismatch, match="/d5 is empty: a disk is missing or was wiped"):
            decide(both, MASTER, {**found, **known}, allow_expansion=True)


def test_journals_never_grow() -> None:
    old = replaced(journal_directories="/d0/journal")
    with pytest.raises(CookieMismatch, match="journal directories were /d0/journal"):
        decide(MASTER, old, states(NEW, USED, USED), allow_expansion=True)


# -- what is said -----------------------------------------------------------------------------------------------------

ORDER = "in the same order"
ADVICE = {
    "a ledger directory is gone": (
        {"ledger_directories": ("/d2/ledgers", "/d3/ledgers", "/d4")},
        [
            "/d4 is no longer configured",
            "mounted, or linked, under its old name",
            "bk bookie recover b3",
            "bk bookie format",
        ],
    ),
    "a journal is gone": (
        {"journal_directories": "/d1/journal,/d9"},
        ["/d9 is no longer configured", "bk bookie recover b3"],
    ),
    "a ledger directory is elsewhere": (
        {"ledger_directories": ("/old", "/d3/ledgers")},
        [
            "were /old, /d3/ledgers",
            "now they are /d2/ledgers, /d3/ledgers",
            "/old is no longer configured",
            "under its old name",
        ],
    ),
    "ledger directories in another order": (
        {"ledger_directories": ("/d3/ledgers", "/d2/ledgers")},
        ["they are in another order", "depend on the position in the list", ORDER],
    ),
    "journals in another order": (
        {"journal_directories": "/d9,/d1/journal"},
        ["/d9 is no longer configured"],
    ),
    "a new ledger directory": (
        {"ledger_directories": ("/d2/ledgers",)},
        ["/d3/ledgers is new", "--set allow_storage_expansion=true", ORDER],
    ),
    "a new one in front": (
        {"ledger_directories": ("/d3/ledgers",)},
        ["/d2/ledgers is new and not after the others", "the new ones after them"],
    ),
}


@pytest.mark.parametrize("name", ADVICE)
def test_advice(name: str) -> None:
    changes, words = ADVICE[name]
    found = replaced(**changes)
    with pytest.raises(CookieMismatch) as caught:
        decide(MASTER, found, states(USED, USED, USED))
    for word in [*words, "Nothing was changed", "(cookie in the metadata store)"]:
        assert word in str(caught.value)
    with pytest.raises(CookieMismatch) as caught:
        decide(MASTER, MASTER, states(USED, DirectoryState(found, is_empty=False), USED))
    for word in [*words, "(cookie in /d2/ledgers)"]:
        assert word in str(caught.value)


def test_journals_change_neither_order_nor_number() -> None:
    two = replaced(journal_directories="/d1/journal,/d9")
    for before, words in (
        ("/d9,/d1/journal", "they are in another order"),
        ("/d1/journal", "journals cannot be added"),
    ):
        for allow_expansion in (False, True):
            with pytest.raises(CookieMismatch, match=words):
                decide(
                    two, replaced(journal_directories=before), states(USED, USED, USED), allow_expansion=allow_expansion
                )


def test_an_address_that_was_a_name_has_changed() -> None:
    master, old = replaced(bookie="10.0.0.8:3181"), replaced(bookie="10.0.0.7:3181")
    with pytest.raises(CookieMismatch) as caught:
        decide(master, None, states(DirectoryState(old, is_empty=False), NEW, NEW))
    assert "/d1/journal belongs to bookie 10.0.0.7:3181" in str(caught.value)
    assert "keep its name: --bookie-id 10.0.0.7:3181" in str(caught.value)
    with pytest.raises(CookieMismatch) as caught:
        decide(replaced(bookie="b9"), None, states(DirectoryState(old, is_empty=False), NEW, NEW))
    assert "If the disks were swapped, start it with --bookie-id 10.0.0.7:3181" in str(caught.value)


# -- older layouts ----------------------------------------------------------------------------------------------------

LAYOUT_4 = replace(MASTER, layout=4)
LAYOUT_3 = replace(MASTER, layout=3, instance_id=None)


@pytest.mark.parametrize("old", [LAYOUT_4, LAYOUT_3])
def test_a_bookie_of_an_older_layout_starts_as_it_is(old: Cookie) -> None:
    state = DirectoryState(old, is_empty=False)
    assert decide(MASTER, old, states(state, state, state)) is Decision.OK
    disk = SimDisk()
    for directory in DIRECTORIES:
        disk.put(f"{directory}/current/VERSION", pack_old(old))
    before = disk.files()
    assert check_directories(disk, MASTER, DIRECTORIES, pack_old(old)) is Decision.OK
    assert disk.files() == before


def pack_old(cookie: Cookie) -> bytes:
    if cookie.layout == 4:
        return cookie.pack().replace(b"5", b"4", 1)
    ledgers = "\t".join((str(len(cookie.ledger_directories)), *cookie.ledger_directories))
    return f"3\n{cookie.bookie}\n{cookie.journal_directories}\n{ledgers}\n".encode()


@pytest.mark.parametrize("old", [LAYOUT_4, LAYOUT_3])
def test_stamping_writes_the_newest_layout(old: Cookie) -> None:
    disk = SimDisk()
    grown = replaced(ledger_directories=(*MASTER.ledger_directories, "/d4"))
    for directory in DIRECTORIES:
        disk.put(f"{directory}/current/VERSION", pack_old(old))
    assert (
        check_directories(disk, grown, [*DIRECTORIES, "/d4"], pack_old(old), allow_expansion=True) is Decision.EXPANDED
    )
    assert list(disk.files().values()) == [grown.pack()] * 4


@pytest.mark.parametrize("old", [LAYOUT_4, LAYOUT_3])
def test_older_layouts_are_compared_as_well(old: Cookie) -> None:
    for changes, words in (
        ({"bookie": "b7"}, "bookie b7"),
        ({"journal_directories": "/d9"}, "journal directories were /d9"),
        ({"ledger_directories": ("/d2/ledgers",)}, "ledger directories were /d2/ledgers"),
    ):
        other = replace(old, **changes)
        with pytest.raises(CookieMismatch, match=words):
            decide(MASTER, other, states(USED, USED, USED))
        with pytest.raises(CookieMismatch, match=words):
            decide(MASTER, old, states(USED, DirectoryState(other, is_empty=False), USED))
    with pytest.raises(CookieMismatch, match="another cluster"):
        decide(MASTER, replace(LAYOUT_4, instance_id="cluster-2"), states(USED, USED, USED))


def test_a_cookie_that_cannot_name_a_cluster_needs_the_store_to_be_as_old() -> None:
    state = DirectoryState(LAYOUT_3, is_empty=False)
    with pytest.raises(CookieMismatch, match="another cluster"):
        decide(MASTER, MASTER, states(USED, state, USED))
    with pytest.raises(CookieMismatch, match="another cluster"):
        decide(MASTER, None, states(DirectoryState(LAYOUT_3, is_empty=True), NEW, NEW))


# -- on a disk --------------------------------------------------------------------------------------------------------


def test_a_new_bookie_is_stamped_and_starts_again() -> None:
    disk = SimDisk()
    assert check_directories(disk, MASTER, DIRECTORIES, None) is Decision.NEW_BOOKIE
    assert disk.files() == {f"{directory}/current/VERSION": MASTER.pack() for directory in DIRECTORIES}
    disk.put("/d2/ledgers/current/0.log", b"data")
    assert check_directories(disk, MASTER, DIRECTORIES, MASTER.pack()) is Decision.OK
    with pytest.raises(CookieMismatch, match="holds data of it"):
        check_directories(disk, MASTER, DIRECTORIES, None)


def test_nothing_is_created_on_a_refusal() -> None:
    disk = SimDisk()
    with pytest.raises(CookieMismatch, match="does not exist"):
        check_directories(disk, MASTER, DIRECTORIES, MASTER.pack())
    assert not disk.is_directory("/d1/journal")


def test_an_empty_version_file_says_nothing() -> None:
    disk = SimDisk()
    disk.put("/d2/ledgers/current/VERSION", b"")
    assert check_directories(disk, MASTER, DIRECTORIES, None) is Decision.NEW_BOOKIE
    disk.put("/d2/ledgers/current/VERSION", b"")
    disk.put("/d2/ledgers/current/0.log", b"")
    with pytest.raises(CookieMismatch, match="has files but no VERSION"):
        check_directories(disk, MASTER, DIRECTORIES, MASTER.pack())


def test_unreadable_cookies_are_errors() -> None:
    disk = SimDisk()
    disk.put("/d2/ledgers/current/VERSION", b"5\nboo")
    with pytest.raises(CorruptRecord, match="/d2/ledgers/current/VERSION"):
        check_directories(disk, MASTER, DIRECTORIES, None)
    with pytest.raises(CorruptRecord, match="cookie of b3 in the metadata store"):
        check_directories(SimDisk(), MASTER, DIRECTORIES, b"\0")


@pytest.mark.parametrize("name", ["VERSION", "1f.txn", "0.log", "7.idx"])
def test_files_of_very_old_releases_are_refused(name: str) -> None:
    disk = SimDisk()
    disk.put(f"/d2/ledgers/{name}", b"")
    with pytest.raises(CookieMismatch, match="too old"):
        check_directories(disk, MASTER, DIRECTORIES, None)


def test_expansion_restamps_all_directories() -> None:
    disk = SimDisk()
    old = replaced(ledger_directories=("/d2/ledgers",))
    check_directories(disk, old, DIRECTORIES[:2], None)
    disk.put("/d2/ledgers/current/0.log", b"data")
    found = check_directories(disk, MASTER, DIRECTORIES, old.pack(), allow_expansion=True)
    assert found is Decision.EXPANDED
    assert {data for path, data in disk.files().items() if path.endswith("VERSION")} == {MASTER.pack()}


def test_a_full_disk_while_stamping() -> None:
    disk = SimDisk()
    disk.fail("pwrite", "/d3", lambda: DiskFull("no space"))
    with pytest.raises(DiskFull):
        check_directories(disk, MASTER, DIRECTORIES, None)
    assert check_directories(disk, MASTER, DIRECTORIES, None) is Decision.NEW_BOOKIE


@pytest.mark.parametrize("loss", LOSSES)
def test_a_crash_at_every_step_of_stamping(loss: Loss) -> None:
    """The next start completes it, whatever survived; and what it then says is there is durable."""
    step = 0
    while True:
        step += 1
        disk = SimDisk(Random(step))
        disk.crash_at = step
        stored = None
        try:
            check_directories(disk, MASTER, DIRECTORIES, stored)
            stored = MASTER.pack()
        except Crashed:
            pass
        is_done = disk.call_count < step
        disk.crash(loss)
        decision = check_directories(disk, MASTER, DIRECTORIES, stored)
        assert decision is (Decision.OK if stored else Decision.NEW_BOOKIE)
        disk.crash(loss)
        assert check_directories(disk, MASTER, DIRECTORIES, MASTER.pack()) is Decision.OK
        if is_done:
            break
    assert step > 20


@pytest.mark.parametrize("layout", [3, 4, 5])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_crash_at_every_step_of_an_expansion(loss: Loss, layout: int) -> None:
    """The next start with leave to grow completes it; after that it starts without, and all is of the newest layout."""
    old = replaced(
        ledger_directories=("/d2/ledgers",), layout=layout, instance_id=None if layout == 3 else MASTER.instance_id
    )
    packed = old.pack() if layout == 5 else pack_old(old)
    grown = replaced(ledger_directories=("/d2/ledgers", "/d3/ledgers", "/d4"))
    directories = [*DIRECTORIES, "/d4"]
    step = 0
    while True:
        step += 1
        disk = SimDisk(Random(step))
        for directory, name in (("/d1/journal", "1.txn"), ("/d2/ledgers", "0.log")):
            disk.put(f"{directory}/current/VERSION", packed)
            disk.put(f"{directory}/current/{name}", b"data")
        before = disk.call_count
        disk.crash_at = before + step
        stored = packed
        try:
            check_directories(disk, grown, directories, stored, allow_expansion=True)
            stored = grown.pack()
        except Crashed:
            pass
        is_done = disk.call_count < before + step
        disk.crash(loss)
        decision = check_directories(disk, grown, directories, stored, allow_expansion=True)
        assert decision is (Decision.OK if is_done else Decision.EXPANDED)
        disk.crash(loss)
        assert check_directories(disk, grown, directories, grown.pack()) is Decision.OK
        assert {disk.read_bytes(f"{each}/current/VERSION") for each in directories} == {grown.pack()}
        if is_done:
            break
    assert step > 25


def test_what_other_names_have_must_match_too() -> None:
    disk = SimDisk()
    master = replaced(bookie="b1.example:3181")
    check_directories(disk, master, DIRECTORIES, None)
    other = replaced(bookie="10.0.0.7:3181")
    with pytest.raises(CookieMismatch, match=r"--bookie-id 10.0.0.7:3181"):
        check_directories(disk, master, DIRECTORIES, master.pack(), others={"10.0.0.7:3181": other.pack()})
    assert check_directories(disk, master, DIRECTORIES, master.pack(), others={"x:1": master.pack()}) is Decision.OK


def test_directories_on_one_disk() -> None:
    disk = SimDisk()
    disk.devices = {"/d1": 1, "/d2": 2, "/d3": 3, "/d3/b": 4}
    for directory in ("/d1", "/d2", "/d3", "/d3/b"):
        disk.make_directories(directory)
    assert shared_disks(disk, ["/d1/j"], ["/d1/l"]) == [], "a journal may be where ledgers are"
    assert shared_disks(disk, ["/d1/j", "/d2/j"], ["/d3/a", "/d3/b", "/d2"]) == []
    found = shared_disks(disk, ["/d1/j", "/d2/j", "/d1/i"], ["/d3/a", "/d3/x/y"])
    assert found == [SharedDisk("journal", "/d1/j", "/d1/i"), SharedDisk("ledger or index", "/d3/a", "/d3/x/y")]
    assert str(found[0]) == "the journal directories /d1/j and /d1/i are on one file system"
