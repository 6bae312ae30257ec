"""Which directories a bookie may start on: bytes, every row of the table, and a crash at every step of stamping."""

from __future__ import annotations

import dataclasses
from random import Random

import pytest

from bookies.config import BookieConfig
from bookies.errors import CookieMismatch, CorruptRecord, DiskFull
from bookies.sim.disk import LOSSES, Loss, SimDisk
from bookies.sim.loop import Crashed
from bookies.storage import cookie
from bookies.storage.cookie import Cookie, Decision, DirectoryState, check_directories, decide, parse

EXAMPLE = rb"""5
bookieHost: "192.0.2.10:3181"
journalDir: "/data/journal"
ledgerDirs: "2\t/data/ledger0\t/data/ledger1"
instanceId: "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
indexDirs: "2\t/data/index0\t/data/index1"
"""
COOKIE = Cookie(
    "192.0.2.10:3181",
    "/data/journal",
    ("/data/ledger0", "/data/ledger1"),
    "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0",
    ("/data/index0", "/data/index1"),
)
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
    return dataclasses.replace(MASTER, **changes)  # type: ignore[arg-type]


# -- bytes ------------------------------------------------------------------------------------------------------------


def test_the_worked_example() -> None:
    assert COOKIE.pack() == EXAMPLE
    assert parse(EXAMPLE) == COOKIE


def test_what_is_not_configured_is_left_out() -> None:
    text = Cookie("b1", "j0,j1", ("l",)).pack()
    assert text == b'5\nbookieHost: "b1"\njournalDir: "j0,j1"\nledgerDirs: "1\\tl"\n'
    assert parse(text) == Cookie("b1", "j0,j1", ("l",))


def test_odd_paths() -> None:
    odd = Cookie("b\u00e9", 'a "b"', ("/x y", "/\u65e5\u672c\\"), "i", ())
    assert odd.pack().isascii()
    assert parse(odd.pack()) == odd


def test_older_layouts() -> None:
    layout_4 = EXAMPLE.replace(b"5\n", b"4\n", 1).replace(b'indexDirs: "2\\t/data/index0\\t/data/index1"\n', b"")
    found = parse(layout_4)
    assert found == dataclasses.replace(COOKIE, layout=4, index_directories=None)
    assert found.pack().startswith(b"5\n")
    layout_3 = b"3\n192.0.2.10:3181\n/data/journal\n2\t/data/ledger0\t/data/ledger1\n"
    assert parse(layout_3) == dataclasses.replace(found, layout=3, instance_id=None)


def test_any_text_format_is_read() -> None:
    text = b"5\n ledgerDirs:'1\tl' # new\n journalDir : \"\\x6a\" bookieHost: 'b' '1';"
    assert parse(text) == Cookie("b1", "j", ("l",))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"5",
        b"2\nb\nj\n1\tl\n",
        b"6\n" + EXAMPLE[2:],
        b"\0" * 64,
        b"3\nb1\n",
        b"3\n\xff\xff\nj\n1\tl\n",
        EXAMPLE[:40],
        EXAMPLE.replace(b"journalDir", b"journal"),
        EXAMPLE.replace(b'"/data/journal"', b"7"),
        EXAMPLE.replace(b'"2\\t/data/ledger0', b'"3\\t/data/ledger0'),
        EXAMPLE.replace(b'"2\\t/data/ledger0\\t/data/ledger1"', b'""'),
        EXAMPLE.replace(b"/data/journal", b"\\377"),
    ],
)
def test_what_is_no_cookie(data: bytes) -> None:
    with pytest.raises(CorruptRecord, match="VERSION at byte"):
        parse(data)


def test_the_cookie_of_a_configuration() -> None:
    config = BookieConfig(journal_directories=("j0", "j1"), ledger_directories=("l", "j0"), index_directories=("i",))
    assert cookie.master_cookie(config, "b1", "c") == Cookie("b1", "j0,j1", ("l", "j0"), "c", ("i",))
    assert cookie.directories_of(config) == ["j0", "j1", "l", "i"]
    assert cookie.master_cookie(BookieConfig(), "b1", None).index_directories is None


# -- the decision -----------------------------------------------------------------------------------------------------


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
    "another bookie": (replaced(bookie="b7"), "belongs to bookie b7 (its cookie says so)"),
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
    # Stamped, then a crash before the stored cookie was replaced: nothing more to stamp, and the old one matches.
    assert decide(MASTER, old, states(STAMPED, USED, STAMPED), allow_expansion=True) is Decision.OK


def test_journals_never_grow() -> None:
    old = replaced(journal_directories="/d0/journal")
    with pytest.raises(CookieMismatch, match="journal directories were /d0/journal"):
        decide(MASTER, old, states(NEW, USED, USED), allow_expansion=True)


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
