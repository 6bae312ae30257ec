"""Simulated clients and operators, and the checks at the end of a run."""

from __future__ import annotations

from bookies.lab.sim.clients.log_workload import LogWorkload
from bookies.lab.sim.clients.workload import Workload

__all__ = ["LogWorkload", "Workload"]
