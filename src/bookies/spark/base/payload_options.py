"""Schema files and the schema registry that options of the source and of the sink name."""

from __future__ import annotations

import base64
from typing import Protocol

from bookies.errors import ConfigError, InvalidArgument
from bookies.formats.registry import Registry, opened_registry
from bookies.protocol.payloads.schemas import PROTOBUF


class RegistryOptions(Protocol):
    """Options that name a registry."""

    @property
    def registry(self) -> str | None: ...

    @property
    def registry_user(self) -> str | None: ...


def registry_of(chosen: RegistryOptions) -> Registry | None:
    """Return the registry that the options name; None: they name none. Raises `InvalidArgument`, `ConfigError`."""
    if chosen.registry is None:
        return None
    path = chosen.registry_user
    user = b"" if path is None else _content("schemaRegistry.userInfoFile", path)
    return opened_registry(chosen.registry, user.decode("utf-8", "replace").strip())


def schema_text(schema_format: str, path: str) -> str:
    """Return the schema in a file, as logs keep it. Raises `ConfigError`, `InvalidArgument`."""
    data = _content("valueSchemaFile", path)
    if schema_format == PROTOBUF:
        return base64.b64encode(data).decode()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"option valueSchemaFile: {path} is no text in UTF-8: {error}") from error


def _content(option: str, path: str) -> bytes:
    """Return the content of a file that an option names. Raises `ConfigError`."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"option {option}: {error}") from error
