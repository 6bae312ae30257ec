"""The table of all fuzz targets."""

from __future__ import annotations

from tests.fuzz import frames, kernels, logs, metadata, storage, texts

MODULES = (frames, kernels, storage, metadata, texts, logs)
TARGETS = {target.name: target for module in MODULES for target in module.TARGETS}
