"""Scenarios: schedules written as text, run step by step."""

from __future__ import annotations

from bookies.lab.sim.scenario.scenario import read_scenario, run_scenario

__all__ = ["read_scenario", "run_scenario"]
