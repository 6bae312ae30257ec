"""What auto-recovery is judged by in `bk chaos`: sums over lives of processes, and how much may be copied."""

from __future__ import annotations

import pytest

from bookies.lab.chaos.chaos_checker import Checker
from bookies.lab.chaos.chaos_healer import Sums
from bookies.lab.chaos.chaos_recovery import FREE_SIZE, HealingCheck
from bookies.model import BookieId
from bookies.replication.operator.status import ProcessStatus


def status(name: str, size: int, ledgers: int = 0) -> ProcessStatus:
    worker = {"bytes_copied": size, "entries_copied": 1, "ledgers_repaired": ledgers, "ledgers_sealed": 0}
    return ProcessStatus(name, BookieId(name), 0, [], [], worker, [])


def test_a_count_that_falls_begins_anew() -> None:
    sums = Sums()
    for each in (status("b1", 100), status("b2", 7), status("b1", 250, 3), status("b1", 40, 1), status("b1", 60, 1)):
        sums.add(each)
    assert sums.total["bytes copied by repairs"] == 250 + 60 + 7
    assert sums.total["ledgers repaired"] == 4


def test_an_auditor_counts_whenever_it_is_another_one() -> None:
    sums = Sums()
    for name in ("b1", None, "b1", "b2", "b1"):
        sums.leads(name)
    assert sums.auditors == ["b1", "b2", "b1"]


@pytest.mark.parametrize(("copied", "absences", "is_fine"), [(0, 0, True), (1800, 2, True), (1801, 2, False)])
def test_more_than_what_was_away_was_copied(copied: int, absences: int, is_fine: bool) -> None:
    check = HealingCheck(Checker())
    check.size = 1000
    check.check_thrift(FREE_SIZE + copied, absences, 5)
    assert check._checker.violations == [] if is_fine else "thrift" in check._checker.violations[0]
