"""The error of a scenario's step."""

from __future__ import annotations


class ScenarioFailure(AssertionError):
    """A step that did not happen as the scenario says."""
