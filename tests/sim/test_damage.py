"""The table of docs/reference/formats/damage.md, cell by cell: a bookie's answer to each damage of each file."""

from __future__ import annotations

import pathlib
import posixpath
import re
from functools import cache
from random import Random

import pytest

from bookies.config import BookieConfig
from bookies.errors import CookieMismatch, CorruptRecord
from bookies.kernels import Records
from bookies.lab.sim.faults import damage
from bookies.lab.sim.faults.damage import Base, Files, Outcome
from bookies.lab.sim.world.disk import SimDisk
from bookies.storage.engine import quarantine_format
from bookies.storage.engine.quarantine_format import QuarantineRecord, QuarantineState
from bookies.storage.entry_log import entry_log_format
from bookies.storage.identity import admission, cookie
from bookies.storage.index import index_format
from bookies.storage.journal import journal_format

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "reference" / "formats" / "damage.md"
DAMAGES = ("bits flipped", "truncated", "garbage appended", "removed", "another bookie's")
ENTRY = (3, 4)  # of which the file is damaged where one entry is meant
LOG, INDEX = "/ledgers/current/0.log", "/ledgers/current/0/3/3.idx"
STATUS = "/ledgers/current/BOOKIE_STATUS"
REMOVED = "/ledgers/current/removedLedgers"


@cache
def base(is_clean: bool) -> Base:
    made = damage.build("table", is_clean=is_clean)
    made.files[STATUS] = b"1,READ_WRITE,1700000000000,false\n"
    gone = {900 + each: QuarantineRecord(QuarantineState.DELETED, 1_700_000_000_000) for each in range(4)}
    made.files["/ledgers/current/VERSION"] = cookie.master_cookie(damage.CONFIG, "b1", "cluster").pack()
    made.files[REMOVED] = quarantine_format.pack(5, gone, quarantine_format.identity_of("b1", "cluster"))
    return made


@cache
def others() -> Files:
    gone = {
        each: QuarantineRecord(QuarantineState.DELETED, 1_800_000_000_000) for each in range(1, 9)
    }  # which the bookie has
    return damage.build("other", is_clean=False, skip=1).files | {
        STATUS: b"1,READ_ONLY,1800000000000,true\n",
        REMOVED: quarantine_format.pack(9, gone, quarantine_format.identity_of("b2", "cluster")),
    }


def groups(data: bytes) -> list[int]:
    """Where the groups of a journal begin, and the end of the last one."""
    end = len(data.rstrip(b"\0"))
    found = [at for at in range(512, end, 512) if data[at : at + 4] not in (b"\0" * 4, b"\xff\xff\xff\0")]
    return [*found, end + 512 - end % 512]


def journals(is_first: bool) -> str:
    """Of those that are replayed when the bookie was killed."""
    paths = sorted(path for path in base(False).files if path.endswith(".txn"))
    used = [path for path in paths if len(groups(base(False).files[path])) > 2]
    return used[-2 if is_first else -1]


def entry_at() -> int:
    """Where in the log the record of `ENTRY` begins."""
    data = base(True).files[LOG]
    return data.index(Records.of([damage.body_of(*ENTRY)]).data)


def target(what: str) -> tuple[Base, str, int, int]:
    """(the bookie, the file, first and last byte) of a row."""
    files, killed = base(True).files, base(False).files
    last, first = journals(is_first=False), journals(is_first=True)
    map_offset = int.from_bytes(files[LOG][8:16], "big")
    places: dict[str, tuple[Base, str, int, int]] = {
        "journal tail": (base(False), last, groups(killed[last])[-2], groups(killed[last])[-2] + 4),
        "journal middle": (base(False), first, groups(killed[first])[0], groups(killed[first])[0] + 4),
        "entry log header": (base(True), LOG, 0, 16),
        "ledgers map": (base(True), LOG, map_offset, len(files[LOG])),
        "entry": (base(True), LOG, entry_at() + 4, entry_at() + 20),
        "index file header": (base(True), INDEX, 0, 40),
        "index page": (base(True), INDEX, index_format.HEADER_SIZE, index_format.HEADER_SIZE + 64),
        "lastMark": (base(False), "/ledgers/current/lastMark", 0, 16),
        "lastId": (base(True), "/ledgers/current/lastId", 0, 1),
        "BOOKIE_STATUS": (base(True), STATUS, 0, 10),
        "removedLedgers": (base(True), REMOVED, 0, 80),
        "index.catalog": (base(True), "/ledgers/current/index.catalog", 0, 400),
    }
    return places[what]


def damaged(what: str, how: str) -> tuple[Base, Files]:
    made, path, first, last = target(what)
    data = bytearray(made.files[path])
    random = Random(f"{what}/{how}")
    files = dict(made.files)
    if how == "removed":
        del files[path]
        return made, files
    if how == "bits flipped":
        for at in {random.randrange(first, last) for _ in range(8)}:
            data[at] ^= 1 << random.randrange(8)
    elif how == "truncated":
        del data[(first + last) // 2 :]
    elif how == "garbage appended":
        data += random.randbytes(1000)
    else:
        same = [each for each in others() if posixpath.splitext(each)[1] == posixpath.splitext(path)[1]]
        data = bytearray(others()[path if path in others() else sorted(same)[-1]])
    files[path] = bytes(data)
    return made, files


def kind_of(made: Base, outcome: Outcome) -> str:
    if outcome.refusal:
        return "refused"
    if outcome.denied or outcome.unfenced:
        return "lost"
    return "whole" if outcome.counts["right"] == len(made.entries) else "part"


def cells() -> list[tuple[str, str, str]]:
    """(file, damage, what the page says)."""
    rows = re.findall(r"^\| `?([^|`]+)`? \|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    table = {name.strip(): [cell.strip() for cell in text.split("|")] for name, text in rows}
    assert table["file"] == list(DAMAGES)
    return [
        (name, how, said)
        for name, row in table.items()
        if name not in ("file", "---") and len(row) == len(DAMAGES)
        for how, said in zip(DAMAGES, row, strict=True)
    ]


@pytest.mark.parametrize(("what", "how", "said"), [each for each in cells() if each[0] != "cookie"])
def test_every_cell_of_the_table(what: str, how: str, said: str) -> None:
    made, files = damaged(what, how)
    outcome = damage.examine(made, files, f"{what}/{how}")
    assert kind_of(made, outcome) == said, (outcome.counts, outcome.refusal, outcome.lies())
    assert not outcome.false
    if said == "lost":
        path = target(what)[1]
        left = damage.may_be_lost(made, files, path)
        assert outcome.denied <= set(made.entries) - set(left.entries)
        assert outcome.unfenced <= made.fenced - left.fenced
    else:
        assert not outcome.lies()
    if said == "refused":
        assert outcome.files == files


@pytest.mark.parametrize(("how", "said"), [(how, said) for what, how, said in cells() if what == "cookie"])
def test_cookies(how: str, said: str) -> None:
    config = BookieConfig(journal_directories=("/journal",), ledger_directories=("/ledgers",))
    master = cookie.master_cookie(config, "b1", "cluster")
    disk = SimDisk(Random(0))
    directories = cookie.directories_of(config)
    admission.check_directories(disk, master, directories, None)
    disk.put("/ledgers/current/0.log", b"x")
    data = bytearray(master.pack())
    path = "/ledgers/current/VERSION"
    if how == "removed":
        disk.unlink(path)
    else:
        if how == "bits flipped":
            data[20] ^= 1
        elif how == "truncated":
            del data[len(data) // 2 :]
        elif how == "garbage appended":
            data += b"\x93\x01"
        else:
            data = bytearray(cookie.master_cookie(config, "b2", "cluster").pack())
        disk.put(path, bytes(data))
    before = disk.files()
    assert said == "refused"
    with pytest.raises((CookieMismatch, CorruptRecord)):
        admission.check_directories(disk, master, directories, master.pack())
    assert disk.files() == before


def test_a_base_is_what_the_table_needs() -> None:
    """Otherwise the rows would be about nothing."""
    made = base(False)
    assert journals(is_first=True) != journals(is_first=False)
    assert kind_of(made, damage.examine(made, made.files, 0)) == "whole"
    assert entry_log_format.parse_header(base(True).files[LOG]) is not None
    assert journal_format.parse_header(made.files[journals(is_first=True)][:24], 1 << 20)[0] == journal_format.VERSION


def test_random_damage_never_makes_a_bookie_lie() -> None:
    """A piece of what `bk sim --damage` does."""
    summary = damage.fuzz(0, 60, (base(True), base(False)), others())
    assert summary.lies == []
    assert summary.count == 60
    assert summary.unharmed > 30


@pytest.mark.parametrize("number", [30_075, 30_515])
def test_mutations_that_once_made_it_lie(number: int) -> None:
    """A lost group with one group behind it in the newest journal; a changed entry id in a journal."""
    bases = damage.build("fuzz", is_clean=True), damage.build("fuzz", is_clean=False)
    assert damage.fuzz(number, 1, bases, others()).lies == []
