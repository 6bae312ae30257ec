"""The table of all fuzz targets."""

from __future__ import annotations

from tests.fuzz import frames, kernels, metadata, storage, texts

TARGETS = {target.name: target for module in (frames, kernels, storage, metadata, texts) for target in module.TARGETS}
