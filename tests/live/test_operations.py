"""`bk bookie maintenance`, `bk bookie drain` and `bk recovery` on a real cluster."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal

import pytest
from tests.live.command import Family, commands_of, run, up, wait_stopped

from bookies.admin.cluster import LocalCluster

pytestmark = pytest.mark.live


def test_a_bookie_goes_for_a_while_and_another_one_for_good(tmp_path: pathlib.Path, family: Family) -> None:
    with up(family, tmp_path, 4) as (uri, pids):
        play(tmp_path, family, uri, pids)


def play(tmp_path: pathlib.Path, family: Family, uri: str, pids: dict[str, int]) -> None:
    done = commands_of(uri)
    lines = "".join(f"line {number}\n" for number in range(3000))
    ledger = int(run(family, tmp_path, "ledger", "append", "--new", stdin=lines).out)
    held = done("ledger", "show", ledger, "--json").json()["fragments"][0]["bookies"]
    lost = held[0]

    # A while.
    assert done("bookie", "maintenance").out == "no bookie is in maintenance\n"
    assert "there is no bookie b9" in done("bookie", "maintenance", "b9", "--for", "20m", status=2).err
    for nonsense in ("20", "0m", "-1m", "8d", "1e9s", "m"):
        assert "--for" in done("bookie", "maintenance", lost, f"--for={nonsense}", status=2).err
    assert "nothing was changed" in done("bookie", "maintenance", lost, "--for", "20m", "--dry-run").out
    assert done("bookie", "maintenance").out == "no bookie is in maintenance\n"
    done("bookie", "maintenance", lost, "--for", "20m", "--reason", "new disk")
    assert "new disk" in done("bookie", "maintenance", lost).out
    refused = done("bookie", "maintenance", held[1], "--for", "1h", status=1)
    assert f"1 ledger ({ledger}) would have fewer replicas than the ack quorum" in refused.err
    done("bookie", "maintenance", held[1], "--for", "1h", "--force")
    [first, second] = done("bookie", "maintenance", "--json").json()
    assert {first["bookie"], second["bookie"]} == set(held[:2])
    for bookie in held[:2]:
        done("bookie", "maintenance", bookie, "--end")
    assert done("bookie", "maintenance", "--json").json() == []

    # For good.
    plan = done("bookie", "drain", lost, "--dry-run", "--json").json()
    assert (plan["ledgers"], plan["entries"], plan["foreseen"]) == (1, 3000, [])
    assert "nothing was changed" in done("bookie", "drain", lost, "--dry-run").out
    assert "is empty: 3,000 entries" in done("bookie", "drain", lost).out
    assert lost not in done("ledger", "show", ledger, "--json").json()["fragments"][0]["bookies"]
    assert "it is empty" in done("bookie", "drain").out
    assert "stop it first" in done("bookie", "drain", lost, "--remove", status=1).err
    assert "nothing to plan" in done("bookie", "drain", lost, "--cancel", "--dry-run", status=2).err
    done("bookie", "drain", lost, "--cancel")
    assert done("bookie", "drain").out == "no bookie is being drained\n"
    os.kill(pids[lost], signal.SIGTERM)
    asyncio.run(wait_stopped(uri, lost))
    assert f"the cluster has forgotten {lost}" in done("bookie", "drain", lost, "--remove").out
    assert lost not in done("bookie", "list").out
    assert "there is no bookie" in done("bookie", "drain", lost, status=2).err

    # Three are left, and the ledger is on all of them.
    blocked = done("bookie", "drain", held[1], status=1)
    assert f"ledger {ledger}  entries 0 to 2,999: waits for a bookie to copy to" in blocked.out
    assert "ledgers are in the way" in done("bookie", "drain").out or "1 ledger" in done("bookie", "drain").out
    done("bookie", "drain", held[1], "--cancel")


def test_ledgers_are_explained_and_repaired_by_hand(tmp_path: pathlib.Path) -> None:
    with LocalCluster(tmp_path / "bk-data", 4, lease_ms=1500) as cluster:
        uri = cluster.metadata_uri
        done = commands_of(uri)
        lines = tmp_path / "lines"
        lines.write_text("one\ntwo\nthree\n")
        ledger = int(done("ledger", "append", "--new", "--input", lines).out)
        opened = int(done("ledger", "append", "--new", "--input", lines, "--keep-open").out)
        assert "3 of 3 replicas are good, ack quorum 2 holds: readable" in done("ledger", "explain", ledger).out
        assert "entry 1  fragment 1" in done("ledger", "explain", f"{ledger}:1").out
        assert "has no entry 3" in done("ledger", "explain", f"{ledger}:3", status=1).out
        assert "LEDGER:ENTRY" in done("ledger", "explain", f"{ledger}:x", status=2).err
        assert "healthy" in done("recovery", "why", ledger).out
        assert "no ledger is marked" in done("recovery", "repair").out

        here = [done("ledger", "show", each, "--json").json()["fragments"][0]["bookies"] for each in (ledger, opened)]
        lost = next(bookie for bookie in here[0] if bookie in here[1])
        refused = done("recovery", "repair", ledger, "--lost", lost, status=2)
        assert f"bk bookie drain {lost}" in refused.err
        cluster.kill(lost)
        asyncio.run(wait_stopped(uri, lost))

        explained = done("ledger", "explain", ledger, "--json", status=1).json()
        assert explained["fragments"][0]["fewest_good"] == 2
        states = {each["bookie"]: (each["mode"], each["state"]) for each in explained["fragments"][0]["replicas"]}
        assert states[lost] == ("down", "unavailable")
        assert explained["verdict"].startswith(
            "2 of 3 replicas are good, ack quorum 2 holds: readable. Under-replicated"
        )
        entry = done("ledger", "explain", f"{ledger}:2", "--json", status=1).json()["entry"]
        assert sorted(each["state"] for each in entry["replicas"]) == ["stored", "stored", "unavailable"]
        assert "waits for a bookie to come back, or to count as lost" in done("recovery", "why", ledger, status=1).out
        assert "waiting" in done("recovery", "repair", ledger, status=1).out

        plan = done("recovery", "repair", ledger, opened, "--lost", lost, "--dry-run").out
        assert f"ledger {ledger}: repairable, 1 fragments would be repaired" in plan
        assert f"ledger {opened}: repairable, 0 fragments would be repaired, after sealing it" in plan
        left = done("recovery", "repair", ledger, opened, "--lost", lost, status=1)
        assert "--seal-open" in left.out
        assert "1 of 2 ledgers are whole: 3 entries" in left.out
        whole = done("recovery", "repair", ledger, opened, "--lost", lost, "--seal-open", "--json").json()
        assert [each["state"] for each in whole["ledgers"]] == ["healthy", "healthy"]
        assert done("ledger", "verify").status == 0
        assert done("recovery", "status", "--watch").out.startswith("0 marked, 0 being repaired; 0 repaired")

        # The one that took their place has less than the others, and they have what it may take.
        assert "nothing was changed" in done("bookie", "balance", "--dry-run", "--tolerance", 1).out
        moved = done("bookie", "balance", "--tolerance", 1, "--json").json()
        assert moved["moves"] == moved.get("moved", 0) + len(moved.get("refused", []))
        assert "--tolerance" in done("bookie", "balance", "--tolerance", 0, status=2).err
