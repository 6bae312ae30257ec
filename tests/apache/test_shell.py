"""Apache's `bookkeeper shell` on our bookies and auto-recovery; docs/reference/compatibility.md has its table."""

from __future__ import annotations

import pathlib

import pytest
from tests.apache.apache import VERSION
from tests.apache.recovery import Stage, shell, stage
from tests.interop.processes import wait_until
from tests.live.command import bk, commands_of

IS_KNOWN = VERSION.startswith("4.17")
pytestmark = [pytest.mark.apache, pytest.mark.skipif(not IS_KNOWN, reason="what it says is in other words there")]


def said(cluster: Stage, *words: str, status: int = 0) -> str:
    found, output = shell(cluster, *words)
    assert found == status, (words, output)
    return output


def test_it_looks_and_gives_orders(tmp_path: pathlib.Path) -> None:
    with stage(tmp_path, ["ours"], 4) as cluster:
        cluster.fill(4)
        ledger = next(iter(cluster.written))
        cluster.wait_auditor(cluster.participant("ours", "both"))
        auditor = cluster.look().auditor
        assert auditor is not None
        assert auditor in said(cluster, "whoisauditor")
        assert "InstanceId: " in said(cluster, "whatisinstanceid")
        listed = said(cluster, "listbookies", "-a")
        assert all(f"BookieID:{name}" in listed for name in cluster.bookies)
        assert f"ledgerID: {ledger}" in said(cluster, "listledgers")
        assert "state=CLOSED" in said(cluster, "ledgermetadata", "-ledgerid", str(ledger))
        entries = ("-firstentryid", "0", "-lastentryid", "3")
        assert f"Lid={ledger}, Eid=3" in said(cluster, "readledger", "-ledgerid", str(ledger), *entries)
        holder = cluster.users["ours-v2"].ask("metadata", ledger=ledger)["fragments"]["0"][0]
        raw = said(cluster, "readledger", "-ledgerid", str(ledger), *entries, "-bookie", holder)
        assert f"Lid={ledger}, Eid=2" in raw  # It leaves the last one out, of Apache's bookies too.
        quorums = ("-ensemble", "3", "-writeQuorum", "3", "-ackQuorum", "2", "-numEntries", "10")
        assert "10 entries written" in said(cluster, "simpletest", *quorums)
        assert "Total disk capacity in the cluster" in said(cluster, "bookieinfo")
        assert "Address: 127.0.0.1" in said(cluster, "endpointinfo", "-bookieid", "ours-0")
        said(cluster, "autorecovery", "-disable")
        assert "Autorecovery is disabled" in said(cluster, "triggeraudit", status=255)
        said(cluster, "autorecovery", "-enable")
        said(cluster, "lostbookierecoverydelay", "-set", "2")
        assert "value in ZK: 2" in said(cluster, "lostbookierecoverydelay", "-get")
        said(cluster, "triggeraudit")
        before_ms = cluster.look().checked_ms
        said(cluster, "forceauditchecks", "-calc")
        # Apache's auditor looks at this time when it starts; ours within a minute.
        wait_until(lambda: (cluster.look().checked_ms or 0) > (before_ms or 0), "all ledgers were checked again")
        said(cluster, "deleteledger", "-ledgerid", str(ledger), "-force")
        assert f"ledgerID: {ledger}\n" not in said(cluster, "listledgers")


def test_it_empties_bookies(tmp_path: pathlib.Path) -> None:
    """One through our auto-recovery, one by itself."""
    with stage(tmp_path, ["ours"], 5) as cluster:
        cluster.fill(16)
        participant = cluster.participant("ours", "both")
        cluster.wait_auditor(participant)
        said(cluster, "decommissionbookie", "-bookieid", "ours-0", status=255)  # It runs.
        sealed = lose(cluster, "ours-0")
        said(cluster, "decommissionbookie", "-bookieid", "ours-0")
        assert cluster.look("ours-0").is_whole
        assert "ours-0" not in said(cluster, "listbookies", "-a")
        participant.kill()
        cluster.add_bookie()
        cluster.wait_writable()
        sealed += lose(cluster, "ours-1")
        said(cluster, "recover", "-force", "-deleteCookie", "ours-1")
        assert not cluster.look("ours-1").naming
        cluster.check_readable(sealed, cluster.users["java-v3"])


def test_a_ledger_that_apache_deletes_is_restored_by_ours(tmp_path: pathlib.Path) -> None:
    """Apache's shell and clients see the record that is created again. Its bookies have no quarantine."""
    with stage(tmp_path, ["ours"], 4) as cluster:
        cluster.fill(8)
        done = commands_of(cluster.uri)
        ledger = next(number for number in cluster.written if number not in cluster.opened)
        dump = tmp_path / "dump.jsonl"
        dump.write_text(done("metadata", "dump", ledger, "--passwords").out)
        said(cluster, "deleteledger", "-ledgerid", str(ledger), "-force")
        assert f"ledger {ledger}: deleted" in done("metadata", "diff", dump, status=1).out
        done("metadata", "apply", dump, "--reason", "deleted by Apache's shell")
        assert "state=CLOSED" in said(cluster, "ledgermetadata", "-ledgerid", str(ledger))
        cluster.check_readable([ledger], cluster.users["java-v3"])
        for bookie in done("ledger", "show", ledger, "--json").json()["fragments"][0]["bookies"]:
            assert done("ledger", "read", ledger, "--bookie", bookie, "--json").rows()
        for bookie in cluster.bookies:
            assert done("bookie", "test", bookie, "--json").json()["passed"]
        # Bookies that had deleted the ledger meanwhile found its entries again, and cannot list them.
        assert bk("metadata", "orphans", "--json", metadata=cluster.uri).json()["orphans"] == []


def lose(cluster: Stage, name: str) -> list[int]:
    """Kill a bookie and wait until it is not registered any more; the open ledgers that are written to it."""
    unfinished = [ledger for ledger in cluster.named(name) if ledger in cluster.opened]
    cluster.bookies[name].kill()
    ours = cluster.users["ours-v2"]
    wait_until(lambda: ours.ask("bookies").get(name) != "writable", f"{name} is away")
    return unfinished
