"""The table of all fuzz targets."""

from __future__ import annotations

from tests.fuzz import frames, kernels, logs, metadata, payloads, storage, texts

MODULES = (frames, kernels, storage, metadata, texts, logs, payloads)
TARGETS = {target.name: target for module in MODULES for target in module.TARGETS}
