"""`bk bookie maintenance`, `bk bookie drain` and `bk recovery` on a real cluster."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
from collections.abc import Iterator

import pytest
from tests.live.command import Done, Family
from tests.live.command import bk as bk_command
from tests.live.test_local_cluster import run
from tests.live.test_replication import wait_stopped

pytestmark = pytest.mark.live


@pytest.fixture
def family(tmp_path: pathlib.Path) -> Iterator[Family]:
    """All that a test starts, none of which may be left at the end."""
    family = Family()
    yield family
    family.wait_gone()


def test_a_bookie_goes_for_a_while_and_another_one_for_good(tmp_path: pathlib.Path, family: Family) -> None:
    up = run(family, tmp_path, "up", "--bookies", 4, "--json").json()
    try:
        play(tmp_path, family, up)
    finally:
        run(family, tmp_path, "down")


def play(tmp_path: pathlib.Path, family: Family, up: dict[str, object]) -> None:
    uri = str(up["metadata"])

    def done(*words: object, status: int = 0) -> Done:
        done = bk_command(*words, metadata=uri)
        assert done.status == status, done.err
        return done

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
    done("bookie", "drain", lost, "--cancel")
    assert done("bookie", "drain").out == "no bookie is being emptied\n"
    pids = {each["id"]: each["pid"] for each in up["bookies"]}  # type: ignore[attr-defined]
    os.kill(pids[lost], signal.SIGTERM)
    asyncio.run(wait_stopped(uri, lost))
    assert "does not know it any more" in done("bookie", "drain", lost, "--remove").out
    assert lost not in done("bookie", "list").out
    assert "there is no bookie" in done("bookie", "drain", lost, status=2).err

    # Three are left, and the ledger is on all of them.
    blocked = done("bookie", "drain", held[1], status=1)
    assert f"ledger {ledger}  entries 0 to 2,999: waits for a bookie to copy to" in blocked.out
    assert "ledgers are in the way" in done("bookie", "drain").out or "1 ledger" in done("bookie", "drain").out
    done("bookie", "drain", held[1], "--cancel")
