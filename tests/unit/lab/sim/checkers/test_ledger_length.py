"""When a recovery may publish an inexact length: what its reads of the last entry had told it by then."""

from __future__ import annotations

import pytest

from bookies.lab.sim.checkers.ledger_length import LedgerLengthChecker
from bookies.model import BookieId, DigestType, LedgerMetadata, LedgerState

B1, B2 = BookieId("b1"), BookieId("b2")
CLOSED = LedgerMetadata(
    0, 2, 2, 2, ((0, (B1, B2)),), state=LedgerState.CLOSED, last_entry_id=0, length=9, digest_type=DigestType.CRC32
)


@pytest.mark.parametrize(
    ("is_prompt", "answer_s", "is_excused"),
    [(True, 0.02, False), (True, 0.06, True), (False, 0.02, True)],
    ids=["in time", "too late", "waited for a connection"],
)
def test_an_answer_counts_when_the_client_still_waited_for_it(
    is_prompt: bool, answer_s: float, is_excused: bool
) -> None:
    now_s = 0.0
    lengths = LedgerLengthChecker(lambda: now_s)
    lengths.asked("recoverer", B1, 0, 0, is_prompt=is_prompt)
    now_s = answer_s
    lengths.shown("recoverer", B1, 0, 0)
    lengths.closed("recoverer", CLOSED)
    assert (0 not in lengths.unexcused) == is_excused
