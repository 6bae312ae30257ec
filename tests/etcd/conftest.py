"""Tests with a real etcd run when they are asked for: make etcd."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests marked `etcd` unless `-m etcd` asks for them."""
    if "etcd" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("etcd")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
