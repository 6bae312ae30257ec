"""Faults of a run: profiles, fault schedules, damage to files."""

from __future__ import annotations

from bookies.lab.sim.faults.fault_schedule import Faults
from bookies.lab.sim.faults.profiles import Profile

__all__ = ["Faults", "Profile"]
