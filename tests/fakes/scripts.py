"""Programs outside of packages, as modules."""

from __future__ import annotations

import functools
import importlib.util
import pathlib
import sys
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]


@functools.cache
def load_script(path: str) -> Any:
    """Load a program by its path below the repository's root, once."""
    spec = importlib.util.spec_from_file_location(f"script_{pathlib.Path(path).stem}", ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
