"""For which position the answer to an add counts, in the eyes of the checker."""

from __future__ import annotations

import pytest

from bookies.lab.sim.checkers.ack_counting import AckChecker
from bookies.model import BookieId, DigestType, LedgerMetadata

B1, B2, B3 = BookieId("b1"), BookieId("b2"), BookieId("b3")
RECORD = LedgerMetadata(0, 3, 2, 2, ((0, (B1, B2, B3)),), digest_type=DigestType.CRC32)


@pytest.mark.parametrize(
    ("is_prompt", "again_s", "is_right"),
    [(True, 0.04, False), (True, 0.06, True), (False, 0.04, True)],
    ids=["cannot have been given up", "given up", "may have waited for its connection"],
)
def test_the_answer_to_a_request_that_was_given_up_is_its_successors(
    is_prompt: bool, again_s: float, is_right: bool
) -> None:
    """The wire has no more than ledger and entry to tell them apart."""
    now_s, reported = 0.0, list[str]()
    acks = AckChecker(lambda invariant, text: reported.append(invariant), lambda: 0, lambda: now_s)
    acks.sent(1, B1, 0, 0, frozenset({0}), is_prompt=True)
    acks.answered(1, B1, 0, [0], is_ok=True)
    acks.sent(2, B2, 0, 0, frozenset({2}), is_prompt=is_prompt)
    acks.answered(2, B2, 0, [0], is_ok=True)
    now_s = again_s
    acks.sent(2, B2, 0, 0, frozenset({1}), is_prompt=True)
    acks.acknowledged([RECORD], 0, 0, 0, lambda entry: 0)
    assert reported == ([] if is_right else ["I-9"])
