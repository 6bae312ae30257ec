"""Our auditor with Apache's workers and the reverse, on bookies of either kind and of both; each repairs the other's
marks, takes over from the other, and both clients read what is left."""

from __future__ import annotations

import pathlib
import re

import pytest
from tests.apache.recovery import Stage, shell, stage
from tests.interop.processes import wait_until

pytestmark = pytest.mark.apache
LEDGERS = 32
KINDS = {"java": ["java"], "ours": ["ours"], "both": ["java", "ours"]}
OTHER = {"ours": "java", "java": "ours"}


def lose_a_bookie(cluster: Stage, kind: str) -> tuple[str, list[int]]:
    """Kill one, of that kind if there is one. Its name, and those of the open ledgers that are written to it."""
    running = [name for name, bookie in cluster.bookies.items() if bookie.is_running]
    of_kind = [name for name in running if cluster.bookies[name].kind == kind] or running
    unfinished = {name: [each for each in cluster.named(name) if each in cluster.opened] for name in of_kind}
    victim = max(of_kind, key=lambda name: len(unfinished[name]))
    cluster.bookies[victim].kill()
    return victim, unfinished[victim]


@pytest.mark.parametrize("bookies", KINDS)
@pytest.mark.parametrize("auditor", ["ours", "java"])
def test_one_marks_and_the_other_repairs(tmp_path: pathlib.Path, auditor: str, bookies: str) -> None:
    with stage(tmp_path, KINDS[bookies], 5) as cluster:
        cluster.fill(LEDGERS)
        marking = cluster.participant(auditor, "auditor")
        cluster.wait_auditor(marking)
        victim, sealed = lose_a_bookie(cluster, OTHER[auditor])
        needing = cluster.look(victim).naming
        wait_until(lambda: sorted(cluster.look().marks) == sorted(needing), f"{len(needing)} ledgers are marked")
        assert all(mark.replicas == (victim,) for mark in cluster.look().marks.values())
        repairing = cluster.participant(OTHER[auditor], "worker")
        cluster.wait_whole(victim)
        marking.check()
        repairing.check()
        cluster.check_readable(sealed, cluster.users[f"{OTHER[auditor]}-v3"])
        status, listed = shell(cluster, "listunderreplicated")
        assert status == 0, listed
        assert re.search(r"ledger count(: | {count=)0\b", listed), listed


@pytest.mark.parametrize("bookies", KINDS)
@pytest.mark.parametrize("first", ["ours", "java"])
def test_each_takes_over_from_the_other(tmp_path: pathlib.Path, first: str, bookies: str) -> None:
    """Whole processes of both kinds side by side: the one that is the auditor is killed, and one of its bookies."""
    with stage(tmp_path, KINDS[bookies], 5) as cluster:
        cluster.fill(LEDGERS)
        elected = cluster.participant(first, "both")
        cluster.wait_auditor(elected)
        wait_until(lambda: cluster.look().checked_ms is not None, "all ledgers were checked")
        checked_ms = cluster.look().checked_ms
        following = cluster.participant(OTHER[first], "both")
        victim, sealed = lose_a_bookie(cluster, first)
        cluster.wait_whole(victim)
        elected.check()
        elected.kill()
        cluster.wait_auditor(following)
        cluster.add_bookie()
        cluster.wait_writable()
        victim, more = lose_a_bookie(cluster, OTHER[first])
        cluster.wait_whole(victim)
        following.check()
        assert cluster.look().checked_ms == checked_ms, "it was checked again, though it was not due"
        sealed += [ledger for ledger in more if ledger not in sealed]
        cluster.check_readable(sealed, cluster.users["java-v3"])  # Either may have sealed them.
