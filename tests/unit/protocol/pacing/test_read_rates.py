"""How much clients read from a bookie, and from which ledgers."""

from __future__ import annotations

from bookies.protocol.pacing.read_rates import LEDGERS_MAX, REPORTED_MAX, WINDOW_S, ReadLoad, ReadRates, parse_load


def test_rates_are_those_of_the_last_complete_window() -> None:
    rates = ReadRates(100.0)
    rates.count(7, 4_000)
    rates.count(7, 2_000)
    rates.count(8, 600)
    assert rates.report(100.0 + WINDOW_S - 1) == ReadLoad()
    full = ReadLoad(110, {7: 100, 8: 10})
    assert rates.report(100.0 + WINDOW_S) == full
    rates.count(9, 120)
    assert rates.report(100.0 + 1.5 * WINDOW_S) == full, "this window is too short"
    assert rates.report(100.0 + 3 * WINDOW_S) == ReadLoad(1, {9: 1})
    assert rates.report(100.0 + 4 * WINDOW_S) == ReadLoad()


def test_few_ledgers_are_kept_and_the_most_read_ones() -> None:
    rates = ReadRates(0.0)
    for ledger_id in range(3 * LEDGERS_MAX):
        rates.count(ledger_id, 60)
        rates.count(5, 600)
    load = rates.report(WINDOW_S)
    assert load.rate == 33 * LEDGERS_MAX
    assert len(load.ledgers) == REPORTED_MAX
    assert next(iter(load.ledgers.items())) == (5, 30 * LEDGERS_MAX + 1)


def test_a_report_travels() -> None:
    load = ReadLoad(110, {7: 100, -1: 10})
    assert parse_load(110, load.pack_ledgers()) == load
    assert parse_load(110, load.pack_ledgers()[:-1]) == ReadLoad(110, {7: 100})
    assert parse_load(-5, ReadLoad(0, {7: -2}).pack_ledgers(), -1) == ReadLoad()
    assert parse_load(0, b"", 3) == ReadLoad(owed_entries=3)
