"""The table of profiles: values have the types of their fields, later items override named lists, mistakes raise."""

from __future__ import annotations

import pytest

from bookies.lab.sim.faults.fault_schedule import FAULTS, Faults
from bookies.lab.sim.faults.profiles import NAMED, PROFILES, parse_profile, profile_of


def test_rows_become_fields() -> None:
    profile = parse_profile(
        """
    run      bookies 3, duration_s 1.5, defers_syncs True
    plan     quorums 3/3/2, digests dummy, entries_max 7,
             writer_settings WRITER_SETTINGS
    faults   gap_ms 20, durations_s 0.1 2, crash bookie in a disk call 4
    targeted
    clients  HASTY, wire v3, add_timeout_ms 50"""
    )
    assert (profile.bookies, profile.duration_s, profile.defers_syncs) == (3, 1.5, True)
    assert (profile.plan.quorums, profile.plan.digests) == (((3, 3, 2),), ("dummy",))
    assert (profile.plan.entries_max, profile.plan.writer_settings) == (7, NAMED["WRITER_SETTINGS"])
    assert (profile.faults.gap_ms, profile.faults.durations_s) == (20, (0.1, 2))
    assert profile.faults.weights == {"crash bookie in a disk call": 4}
    assert profile.targeted_faults is not None
    assert profile.client_settings == NAMED["HASTY"] | {"wire": "v3", "add_timeout_ms": 50}


def test_later_items_override_those_of_a_named_list() -> None:
    weights = PROFILES["recovery-small"].faults.weights
    changed = {name for name in weights if weights[name] != NAMED["HEALING"][name]}
    assert changed == {"lose bookie", "kill worker in a copy", "pause worker in a copy"}


@pytest.mark.parametrize("row", ["plan     writrs 2", "runs     bookies 3", "targeted probability 1"])
def test_unknown_rows_and_items_raise(row: str) -> None:
    with pytest.raises((KeyError, TypeError), match=r"writrs|runs|probability"):
        parse_profile(f"\n    {row}")


def test_every_fault_of_a_profile_exists() -> None:
    for name in (*PROFILES, "small"):
        assert profile_of(name, 1)[1].faults.weights.keys() <= set(FAULTS), name
    assert all(hasattr(Faults, "_" + fault.replace(" ", "_")) for fault in FAULTS)
