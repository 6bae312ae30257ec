"""Settings of this process: options, BK_... variables, and the file that BK_CONFIG names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeVar

from bookies.errors import ConfigError
from bookies.runtime.files import OsDisk
from bookies.settings import TABLE_OF, Given, Layer, Resolved, SettingsFile, from_variables, parse_settings, resolve

T = TypeVar("T")
VARIABLE = "BK_CONFIG"


def read_settings(path: str) -> SettingsFile:
    """Read a file `bk.toml` with its mistakes. Raises `ConfigError`."""
    try:
        return parse_settings(OsDisk().read_bytes(path), path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def file_layer(kind: type, environment: Mapping[str, str] | None = None) -> Layer:
    """Return what the file of BK_CONFIG gives. Raises `ConfigError` for a file with a mistake in any table."""
    path = (os.environ if environment is None else environment).get(VARIABLE, "")
    if not path:
        return {}
    file = read_settings(path)
    if file.problems:
        more = f" (and {len(file.problems) - 1} more: bk config check {path})" if file.problems[1:] else ""
        raise ConfigError(f"{file.problems[0]}{more}")
    return file.tables.get(TABLE_OF[kind], {})


def settings_of(kind: type[T], options: Layer | None = None, file: Layer | None = None) -> Resolved[T]:
    """Return the settings with their places: options, then variables, then a file, by default that of BK_CONFIG.

    Raises `ConfigError`.
    """
    layer = file_layer(kind) if file is None else file
    return resolve(kind, options or {}, from_variables(kind, os.environ), layer)


def configured(kind: type[T], **given: Any) -> T:
    """Return the settings: those given, then variables, then the file of BK_CONFIG. Raises `ConfigError`."""
    return settings_of(kind, {name: Given(value, "option", name) for name, value in given.items()}).config
