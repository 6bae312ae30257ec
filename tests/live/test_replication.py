"""`bk ledger verify` and `bk bookie recover` on a real cluster that loses a bookie; the blocking administration."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal

import pytest
from tests.live.command import Family, commands_of, run, up, wait_stopped

import bookies as bk

pytestmark = pytest.mark.live


def test_what_a_lost_bookie_held_is_copied(tmp_path: pathlib.Path, family: Family) -> None:
    with up(family, tmp_path, 4) as (uri, pids):
        play(tmp_path, family, uri, pids)


def play(tmp_path: pathlib.Path, family: Family, uri: str, pids: dict[str, int]) -> None:
    done = commands_of(uri)
    lines = "".join(f"line {number}\n" for number in range(3000))
    ledger = int(run(family, tmp_path, "ledger", "append", "--new", stdin=lines).out)
    assert "1 ledger checked, 0 with problems" in done("ledger", "verify").out

    with bk.blocking.connect(uri) as store:
        administration = store.administration()
        lost = store.metadata(ledger).last_ensemble[0]
        assert list(administration.ledgers_on([lost])) == [ledger]
        assert administration.are_entries_stored(ledger, lost)
        assert administration.list_entries(lost, ledger) == [range(3000)]
        assert administration.missing_entries(lost, ledger) == []
        assert len(list(administration.read_stored(ledger, 10, 19))) == 10
        assert administration.bookie_info(lost) is not None
        assert len(administration.bookies().bookies) == 4

    assert "stop it" in done("bookie", "recover", lost, status=2).err
    os.kill(pids[lost], signal.SIGTERM)
    asyncio.run(wait_stopped(uri, lost))
    assert "at least 2 good of 3" in done("ledger", "verify", ledger, status=1).out
    row = done("ledger", "verify", ledger, "--json", "--percentage", 0, status=1).json()
    assert (row["ok"], row["fewest_replicas"]) == (False, 2)
    assert row["fragments"][0]["replicas"][0]["state"] == "unavailable"

    plan = done("bookie", "recover", lost, "--dry-run", "--json").json()
    assert [(each["ledger"], each["replaced"][0]["old"]) for each in plan["fragments"]] == [(ledger, lost)]
    assert "would copy 1 fragment" in done("bookie", "recover", lost, "--dry-run").out
    assert "copied 1 fragment: 3,000 entries" in done("bookie", "recover", lost, "--rate", 10_000_000).out
    assert "0 with problems" in done("ledger", "verify").out
    assert "repaired 0 fragments of 1 ledger" in done("ledger", "repair", ledger).out
    assert done("ledger", "repair", "--json").json() == {"dry_run": False, "fragments": [], "left": []}
    assert done("ledger", "read", ledger).out == lines

    with bk.blocking.connect(uri) as store:
        administration = store.administration()
        [verdict] = administration.check_ledger(ledger, percentage=10).fragments
        move = administration.replicate_fragment(verdict.fragment, [1], in_place=True)
        assert (move.first, move.last) == (0, 2999)
        assert administration.recover_bookies([lost], ledger_id=ledger).moves == ()
        assert administration.decommission(lost).moves == ()
        assert administration.recover(ledger).last_entry_id == 2999
    assert done("ledger", "verify", 99, status=1).err
    assert done("ledger", "verify", "--percentage", 101, status=2).err
