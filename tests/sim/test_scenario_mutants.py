"""Each mutant of the protocol is killed by its schedule; one without a schedule by chance, in its own profile."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sim import mutant_table as table

SCHEDULED = [each for each in table.MUTANTS if each.schedules]
SEEDS_MAX = 90
FIRST_SEEDS = {  # of those without a schedule: a seed that has found the mutant
    "a circuit breaker that has opened never closes": 15,
    "a client opens a ledger with any password": 1,
    "an index header that changed while it was written is taken for clean": 38,
    "a bookie accepts any password": 1,
    "a commit does not check the versions of its ledgers": 25,
    "an abort does not check the version of the list": 9,
    "a transaction that was committed is appended again": 1,
    "a commit leaves out a ledger": 1,
    "a truncation does not respect cursors": 7,
    "moving a cursor moves others back": 11,
    "retention counts every cursor as stale": 6,
    "retention removes a ledger too many": 11,
    "retention measures age from the beginning of a ledger": 74,
    "the position of a time is the point after it": 5,
    "the end of a time is the point before it": 2,
    "a record loses its key": 1,
    "a consumer commits with any token": 10,
    "a consumer commits the entry that is being handled": 1,
    "a consumer begins behind its cursor": 1,
    "a holder is removed too early": 1,
    "a holder counts on more than its ttl": 1,
    "tokens begin again when no process has a lease": 1,
    "a leader does not read the numbers in the log": 1,
    "numbered appends go on after an unknown outcome": 6,
    "an append is compared with the last confirmed entry": 1,
    "a replaced leader refuses conditional appends": 6,
    "a repair of a ledger does nothing": 4,
    "the balance goes on during repairs": 6,
    "a decommission succeeds in spite of failures": 5,
    "`placement_rule` is a wish": 1,
    "a renewal writes one entry": 36,
    "an announcement does not wait for the ack quorum": 1,
    "an announcement does not wait for the force": 2,
}


@pytest.mark.parametrize("mutant", SCHEDULED, ids=[each.what for each in SCHEDULED])
def test_mutant_is_killed(mutant: Any) -> None:
    assert table.run_mutant(mutant, mutant.schedules[0]) is not None, f"{mutant.schedules[0]} does not notice it"


@pytest.mark.parametrize("what", FIRST_SEEDS)
def test_chance_finds_it(what: str) -> None:
    """From a seed on that has found it; `mutant_table.py` looks from 1 on, and for all. The museum has others."""
    (mutant,) = [each for each in table.MUTANTS if each.what == what]
    first = FIRST_SEEDS[what]
    assert table.first_seed(mutant, range(first, first + SEEDS_MAX), mutant.profile) is not None, (
        f"{mutant.profile} does not notice it"
    )


def test_every_mutant_is_searched_for() -> None:
    assert {each.what for each in table.MUTANTS if not each.schedules} == FIRST_SEEDS.keys()
