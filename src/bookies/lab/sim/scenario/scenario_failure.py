"""How a step of a scenario reports that the cluster did not do what the scenario says."""

from __future__ import annotations


class ScenarioFailure(AssertionError):
    """A step's expectation that the run did not meet."""
