"""Whether all is well, and if not, why and what to do: asked of a bookie's server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.unit.web.conftest import Site, serve

from bookies.admin.verbs.cluster_health import _recovery_findings, _sentence, _writable_findings
from bookies.client.transport import BookieStatus
from bookies.metadata.shared.bookie_notes import Draining, Note
from bookies.model import BookieId
from bookies.replication.operator.status import ProcessStatus, RecoveryStatus

__all__ = ["serve"]
API = "/api/v1"
Serve = Callable[..., None]


async def health_of(site: Site) -> tuple[Any, dict[str, Any]]:
    """The answer, and its findings by level and subject."""
    answer = (await site.call("viewer", "GET", f"{API}/health")).json
    return answer, {f"{row['level']} {row['about']}".strip(): row for row in answer["findings"]}


def test_the_sentence_is_the_worst_finding(serve: Serve) -> None:
    async def body(site: Site) -> None:
        answer, findings = await health_of(site)
        assert (answer["ok"], answer["level"]) == (False, "warn")
        assert "only 1 of 1 bookies accepts writes" in answer["sentence"]
        assert findings["warn recovery"]["remedy"].endswith("run `bk recovery run`")
        await site.world.on_bookie(site.server.hold_read_only(True))
        answer, findings = await health_of(site)
        assert answer["sentence"].startswith("Act now: no bookie accepts writes.")
        assert "an operator made it read-only" in findings["warn bookie b1"]["what"]
        assert findings["warn bookie b1"]["remedy"] == "`bk bookie read-write --bookie b1`"

    serve(body)


def test_a_lost_bookie_and_one_in_maintenance(serve: Serve) -> None:
    async def body(site: Site) -> None:
        await site.server.metadata.create_cookie(BookieId("b7"), b"cookie")
        _, findings = await health_of(site)
        assert findings["warn bookie b7"]["what"] == "bookie b7 is down"
        assert "bk bookie drain b7 --remove" in findings["warn bookie b7"]["remedy"]
        given = {"duration": "20m", "reason": "new disk"}
        assert (await site.call("operator", "POST", f"{API}/bookies/b7/maintenance", given)).status == 200
        answer = (await site.call("viewer", "GET", f"{API}/health")).json
        (row,) = [row for row in answer["findings"] if row["about"] == "bookie b7"]
        assert "in maintenance until" in row["what"]
        assert "(new disk)" in row["what"]

    serve(body, users=True)


def status_of(*reports: dict[str, Any], marked: int = 0, is_enabled: bool = True) -> RecoveryStatus:
    """The status of a cluster whose only process could not repair the ledgers of these reports."""
    process = ProcessStatus(
        "p@h", BookieId("p"), 1, [], [], {}, [{"waits": [], "losses": [], **row} for row in reports]
    )
    stuck = [row["ledger_id"] for row in reports]
    return RecoveryStatus(is_enabled, BookieId("p"), None, marked, {}, {}, [process], stuck)


STUCK = {"ledger_id": 2, "waits": [{"for": "a bookie to copy to", "why": "none of 4 can; start another bookie"}]}
DRAINED = {BookieId("b1"): Note(draining=Draining(1, "ann"))}


def test_a_drain_that_is_stuck_names_the_ledger_and_its_cause() -> None:
    (finding,) = _recovery_findings(status_of(STUCK, marked=1), [], DRAINED)
    assert finding.level == "warn"
    assert "1 ledger is to be copied, 1 cannot be repaired now: ledger 2 waits for" in finding.what
    assert finding.what.endswith("a bookie to copy to; none of 4 can; start another bookie")
    assert _sentence([finding]).endswith("ledger 2 waits for a bookie to copy to.")
    (finding,) = _recovery_findings(status_of({"ledger_id": 2}, marked=2), [], {})
    assert finding.what == "2 ledgers lack replicas, 1 cannot be repaired now"


def test_a_bookie_that_is_drained_does_not_count_as_accepting_writes() -> None:
    bookies = [BookieStatus(BookieId(name), "writable", None, {}) for name in ("b1", "b2", "b3")]
    (row,) = _writable_findings(bookies, {})
    assert (row.level, row.what) == ("ok", "3 of 3 bookies accept writes")
    (row,) = _writable_findings(bookies, DRAINED)
    assert (row.level, row.what) == ("warn", "only 2 of 3 bookies accept writes")
    (row,) = _writable_findings(bookies[:1], DRAINED)
    assert (row.level, row.what) == ("bad", "no bookie accepts writes")


def test_lost_entries_name_the_bookies_to_start() -> None:
    loss = {"first": 0, "last": 9, "evidence": {"b4": "it is lost: not registered"}}
    bad, _ = _recovery_findings(status_of({"ledger_id": 2, "losses": [loss]}, marked=1), [], {})
    assert (bad.level, bad.remedy) == ("bad", "start b4, and keep the disks: `bk recovery why 2`")


def test_while_auto_recovery_is_disabled_no_finding_calls_replicas_complete() -> None:
    off, marks = _recovery_findings(status_of(is_enabled=False), [], {})
    assert "neither noticed nor recreated" in off.what
    assert "the auditor is disabled" in marks.what
