"""Options of the source and of the sink for schemas of payloads: the message, the registry, and what they name."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from bookies.errors import ConfigError, InvalidArgument
from bookies.formats.registry import Registry, opened_registry
from bookies.protocol.payloads.schemas import PROTOBUF
from bookies.spark.base.options import option


@dataclass(frozen=True, kw_only=True)
class SchemaOptions:
    """Options that name schemas of payloads, for reads and writes."""

    message: str | None = option(
        "valueMessage", "message of `protobuf`, as `PACKAGE.NAME`. Default: the first one of its file"
    )
    registry: str | None = option(
        "schemaRegistry", "address of a schema registry: `http://registry:8081`. Default: the log keeps the schemas"
    )
    registry_user: str | None = option(
        "schemaRegistry.userInfoFile", "file on the driver with `USER:PASSWORD` for the registry"
    )
    subject: str | None = option(
        "schemaRegistry.subject",
        "subject of the schemas, of which the newest is read. Default: the name of the log and `-value`",
    )


def registry_of(chosen: SchemaOptions) -> Registry | None:
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
