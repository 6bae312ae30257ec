"""Tests with Apache's own bookie run when they are asked for: make apache."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests marked `apache` unless `-m apache` asks for them."""
    if "apache" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("apache")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
