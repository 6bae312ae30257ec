"""How it stands with a ledger, in a sentence that is true."""

from __future__ import annotations

from msgspec.structs import replace
from tests.unit.protocol.repair.test_repair_work import A, B, C, D, record_of, verdict_of

from bookies.admin.verbs.explain import SWITCHED_OFF, _verdict, recovery_facts, recovery_lines
from bookies.errors import DigestMismatch
from bookies.metadata.interface.recovery_store import Mark
from bookies.model import BookieId
from bookies.protocol.repair.repair_work import Circumstances, assess
from bookies.replication.operator.manual_repair import LedgerDiagnosis

MARK = Mark(7, (A,), 1_000, 1)


def standing_of(
    *, away: tuple[BookieId, ...] = (), lost: bool = False, leaving: tuple[BookieId, ...] = ()
) -> LedgerDiagnosis:
    record, verdicts = record_of(), [verdict_of({}, away=away)]
    registered = [each for each in (A, B, C, D) if each not in away]
    circumstances = Circumstances(registered, away if lost else (), (), leaving)
    return LedgerDiagnosis(record, None, None, (), verdicts, assess(record, verdicts, circumstances), circumstances)


def test_a_ledger_without_trouble() -> None:
    assert _verdict(standing_of(), 3).endswith("Fully replicated.")


def test_a_replica_on_a_bookie_that_is_to_be_emptied() -> None:
    standing = standing_of(leaving=(A,))
    text = _verdict(standing, 3)
    assert "Fully" not in text
    assert "Complete, but a replica is on a, which is being drained: bk recovery repair 7 has it copied" in text
    assert "it is marked, and will be copied to another bookie" in _verdict(replace(standing, mark=MARK), 3)
    assert "it is being copied to another bookie by b@h" in _verdict(replace(standing, locked_by="b@h"), 3)
    assert "replicas are on a, b, which are being drained" in _verdict(standing_of(leaving=(A, B)), 3)


def test_what_is_marked_goes_on_only_while_repairs_are_on() -> None:
    standing = replace(standing_of(away=(A,), lost=True), mark=MARK)
    assert _verdict(standing, 2).endswith("Under-replicated: it is marked, and will be repaired")
    assert SWITCHED_OFF not in recovery_lines(standing)
    off = replace(standing, is_enabled=False)
    assert _verdict(off, 2).endswith("Under-replicated: bk recovery repair 7 has it repaired now")
    assert recovery_lines(off)[-1] == SWITCHED_OFF
    assert [recovery_facts(each)["repairs_enabled"] for each in (standing, off)] == [True, False]


def test_damage_of_the_only_replica_promises_no_repair() -> None:
    standing = standing_of()
    damaged = DigestMismatch(ledger_id=7, entry_id=9)
    verdicts = [verdict_of({A: damaged, B: damaged, C: damaged})]
    alone = replace(
        standing, verdicts=verdicts, assessment=assess(standing.record, verdicts, standing.circumstances), mark=MARK
    )
    text = _verdict(alone, 0)
    assert "no bookie has all entries that it should have, so some may be unreadable now" in text
    assert "copies the entries that can be read, and names those that are lost" in text
    assert "will be repaired" not in text
    verdicts = [verdict_of({A: damaged})]
    one = replace(alone, verdicts=verdicts, assessment=assess(standing.record, verdicts, standing.circumstances))
    assert _verdict(one, 2).endswith("it is marked, and will be repaired")
