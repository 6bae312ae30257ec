"""Profiles in which bookies are emptied and return under their ids, while writers are idle. See `emptying.py`."""

from __future__ import annotations

from typing import Any

from bookies.lab.sim.clients.plan import Plan
from bookies.lab.sim.faults.fault_schedule import FaultPlan

_HASTY = {"add_timeout_ms": 300, "read_timeout_ms": 300, "connect_timeout_ms": 500}


def _emptied(trusting: str) -> dict[str, Any]:
    """Return the fields of a `Profile`. `trusting`: prefix of the hosts that do not check records before adds."""
    return {
        "bookies": 6,
        "duration_s": 8.0,
        "lease_s": 0.3,
        "plan": Plan(
            writers=3,
            recoverers=1,
            readers=1,
            emptiers=2,
            trusting=trusting,
            quorums=((3, 3, 2), (3, 2, 2), (2, 2, 2), (4, 3, 2)),
            entries_max=30,
            pause_ms=400,
            recovery_ms=600,
            deferred_probability=0.05,
            advanced_probability=0.1,
        ),
        "faults": FaultPlan(
            gap_ms=400,
            weights={
                "crash bookie": 2,
                "cut connection": 2,
                "slow host": 1,
                "metadata trouble": 2,
                "isolate from the store": 1,
                "kill client at an await": 1,
            },
        ),
        "client_settings": _HASTY,
    }


EMPTIED = {"emptied": _emptied(""), "emptied-writers": _emptied("b"), "emptied-bookies": _emptied("writer")}
