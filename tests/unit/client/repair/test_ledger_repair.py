"""What is said of a ledger when the rounds of its repair are used up."""

from __future__ import annotations

from bookies.client.repair.ledger_repair import _outcome
from bookies.protocol.repair.repair_work import Assessment, Cause, RepairState


def test_a_ledger_that_is_to_be_sealed_is_never_healthy() -> None:
    """Sealed in each round, and each time the store showed an older record."""
    outcome = _outcome(Assessment(wants_sealing=True), (), {}, 0.0)
    assert outcome.state is RepairState.WAITING
    assert [wait.cause for wait in outcome.waits] == [Cause.STORE]
    assert _outcome(Assessment(), (), {}, 0.0).state is RepairState.HEALTHY
