"""Which directories a bookie uses after a loss; the notes of losses; a crash at every step."""

from __future__ import annotations

from random import Random

import pytest

from bookies.errors import CookieMismatch, CorruptRecord
from bookies.lab.sim.world.disk import LOSSES, SimDisk
from bookies.lab.sim.world.disk import Loss as PowerLoss
from bookies.lab.sim.world.loop import Crashed
from bookies.storage.identity.cookie import Cookie, DirectoryState, read_state, write_cookie
from bookies.storage.identity.lost_directories import (
    FILE_NAME,
    Loss,
    Uses,
    currents_of,
    note_applied,
    pack,
    parse,
    plan,
    read,
    unapplied,
    union,
    write,
)

COOKIE = Cookie("b1", "/j", ("/l1", "/l2"), "cluster-1")
DIRECTORIES = ["/j", "/l1", "/l2"]
NEEDED = [["/j"], ["/l1", "/l2"], ["/l1", "/l2"]]
USED = DirectoryState(COOKIE, is_empty=False)
BLANK = DirectoryState(None, is_empty=True)
ABSENT = DirectoryState(None, is_empty=True, exists=False)
NOTED = Loss("/l2", "m1", is_applied=True)


def planned(*states: DirectoryState, notes: tuple[list[Loss], ...] = ([], [], []), named: tuple[str, ...] = ()) -> Uses:
    copies = dict(zip(DIRECTORIES, notes, strict=True))
    return plan(dict(zip(DIRECTORIES, states, strict=True)), copies, named, NEEDED, "new")


def test_without_a_loss_every_directory_is_used() -> None:
    assert planned(USED, USED, USED) == Uses()
    assert planned(USED, USED, USED, named=("/l2",)) == Uses()  # it is there
    assert planned(USED, USED, BLANK) == Uses()  # not declared lost: `decide` refuses it


def test_a_lost_directory_is_left_out_until_there_is_an_empty_one() -> None:
    loss = Loss("/l2", "new")
    assert planned(USED, USED, ABSENT, named=("/l2",)) == Uses((loss,), False, ("/l2",))
    noted = [loss]
    assert planned(USED, USED, ABSENT, notes=(noted, noted, [])) == Uses((loss,), True, ("/l2",))
    replaced = [Loss("/l2", "new", is_replaced=True)]
    assert planned(USED, USED, BLANK, notes=(noted, noted, [])) == Uses((*replaced,), False, (), ("/l2",))
    assert planned(USED, USED, USED, notes=(replaced,) * 3, named=("/l2",)) == Uses((*replaced,))


def test_the_old_disk_is_refused() -> None:
    with pytest.raises(CookieMismatch, match="/l2 has files, but it was declared lost"):
        planned(USED, USED, USED, notes=([NOTED], [NOTED], []))
    # Two disks that were each declared lost without the other.
    with pytest.raises(CookieMismatch, match="/l1 has files, but it was declared lost"):
        planned(USED, USED, USED, notes=([], [NOTED], [Loss("/l1", "m2")]))


def test_the_loss_of_a_disk_that_replaced_one_is_declared_again() -> None:
    notes = [Loss("/l2", "m1", is_applied=True, is_replaced=True)]
    for state, text in ((BLANK, "is empty"), (ABSENT, "does not exist")):
        with pytest.raises(CookieMismatch, match=f"/l2 {text}: the disk that replaced a lost one is missing"):
            planned(USED, USED, state, notes=(notes, notes, []))
    uses = planned(USED, USED, ABSENT, notes=(notes, notes, []), named=("/l2",))
    assert uses == Uses((*notes, Loss("/l2", "new")), False, ("/l2",))


def test_what_a_bookie_needs_must_exist() -> None:
    with pytest.raises(CookieMismatch, match="/j: declared lost, and the bookie cannot do without it"):
        planned(ABSENT, USED, USED, named=("/j",))
    with pytest.raises(CookieMismatch, match="/l1, /l2: declared lost"):
        planned(USED, ABSENT, ABSENT, named=("/l1", "/l2"))
    assert planned(BLANK, BLANK, BLANK, named=("/j", "/l1", "/l2")).replaced == (*DIRECTORIES,)


def test_the_file() -> None:
    losses = [NOTED, Loss("/l1", "m2", is_replaced=True)]
    data = pack(losses)
    assert parse(data) == losses
    for bad in (data[:-3], data.replace(b"m1", b"m3"), b"", b"[]\n", _signed(b"[]\n"), _signed(b'{"losses": [7]}\n')):
        with pytest.raises(CorruptRecord):
            parse(bad)


def _signed(line: bytes) -> bytes:
    import zlib

    return line + f"{zlib.crc32(line):08x}\n".encode()


def test_all_copies_are_true() -> None:
    assert union([[Loss("/a", "1")], [Loss("/a", "1", True)], [Loss("/a", "1", False, True), Loss("/b", "2")]]) == [
        Loss("/a", "1", True, True),
        Loss("/b", "2"),
    ]


def test_applied_losses_are_noted_everywhere() -> None:
    disk = SimDisk()
    for directory in DIRECTORIES:
        write_cookie(disk, directory, COOKIE.pack())
    currents = currents_of(DIRECTORIES)
    disk.put(f"{currents[0]}/{FILE_NAME}", pack([Loss("/l2", "m1")]))
    assert unapplied(disk, currents) == [Loss("/l2", "m1")]
    noted = Loss("/l2", "m1", is_noted=True)
    note_applied(disk, currents, is_whole=False)
    assert unapplied(disk, currents) == [noted]
    assert list(read(disk, currents).values()) == [[noted]] * 3
    note_applied(disk, currents, is_whole=True)
    assert unapplied(disk, currents) == []
    assert list(read(disk, currents).values()) == [[Loss("/l2", "m1", is_applied=True, is_noted=True)]] * 3


def test_a_note_of_an_earlier_version_is_understood() -> None:
    line = b'{"losses": [{"path": "/l2", "mark": "m1", "applied": true, "replaced": false}]}\n'
    assert parse(_signed(line)) == [Loss("/l2", "m1", is_applied=True, is_noted=True)]


@pytest.mark.parametrize("loss", LOSSES)
def test_a_crash_at_any_step_leaves_a_start_that_completes_it(loss: PowerLoss) -> None:
    for step in range(100):
        disk = SimDisk(Random(f"{loss}/{step}"))
        for directory in DIRECTORIES:
            write_cookie(disk, directory, COOKIE.pack())
        for directory in ("/j", "/l1"):
            disk.put(f"{directory}/current/file", b"data")
        disk.crash_at = disk.call_count + step
        try:
            _start(disk, ("/l2",))
        except Crashed:
            disk.crash(loss)
        else:
            break
        disk.crash_at = None
        losses = _start(disk, ("/l2",))
        assert losses[-1].path == "/l2"
        assert losses == _start(disk, ())  # no further consent is needed, and nothing changes
        disk.put("/l2/current/file", b"data")
        assert losses == _start(disk, ())
    else:
        raise AssertionError("the start never ended")


def _start(disk: SimDisk, named: tuple[str, ...]) -> list[Loss]:
    """The part of a start that uses the notes; all losses."""
    states = {directory: read_state(disk, directory) for directory in DIRECTORIES}
    notes = read(disk, currents_of(DIRECTORIES))
    uses = plan(states, dict(zip(DIRECTORIES, notes.values(), strict=True)), named, NEEDED, f"m{disk.call_count}")
    if not uses.is_noted:
        kept = [directory for directory in DIRECTORIES if directory not in (*uses.left_out, *uses.replaced)]
        write(disk, COOKIE.pack(), kept, uses)
    return list(uses.losses)
