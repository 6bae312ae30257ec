"""Schemas of a log's payloads, kept in the log's record: versions with ids, and the rule for a new version.

They are a field of the record that versions without this module keep as it is. So a mirror, a migration and a backup
of the log have them too. An id is never reused, because entries name the schema that they were written with by its id.

Source: docs/reference/formats/schemas.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from bookies.errors import InvalidArgument, MetadataCorrupt
from bookies.protocol.log.log_model import Manifest

FIELD = "schemas"  # of the log's record
AVRO, PROTOBUF, JSON, ARROW = "avro", "protobuf", "json", "arrow"
SCHEMA_FORMATS = (AVRO, PROTOBUF, JSON, ARROW)
BACKWARD, FORWARD, FULL, NONE = "backward", "forward", "full", "none"
COMPATIBILITIES = (BACKWARD, FORWARD, FULL, NONE)
SIZE_MAX = 64 << 10  # characters of all schemas of a log: they are written with every change of its list


class LogSchema(Struct, frozen=True):
    """One version. `text`: the schema, in the notation of its format. `message`: the name of Protobuf's message."""

    id: int
    text: str
    message: str = ""


class LogSchemas(Struct, frozen=True):
    """All versions of a log, the oldest first. `format`: one of `SCHEMA_FORMATS`; empty: the log has no schema."""

    format: str = ""
    compatibility: str = BACKWARD
    versions: tuple[LogSchema, ...] = ()

    @property
    def latest(self) -> LogSchema | None:
        """Return the newest version; None: there is none."""
        return self.versions[-1] if self.versions else None

    def find(self, schema: LogSchema) -> LogSchema | None:
        """Return the version with this text and message; None: there is none."""
        return next((one for one in self.versions if replace(one, id=schema.id) == schema), None)


Check = Callable[[LogSchemas], None]  # raises `SchemaIncompatible` if the new version does not fit those there are


def schemas_of(manifest: Manifest) -> LogSchemas:
    """Return the schemas of a log. Raises `MetadataCorrupt`."""
    stored: Any = manifest.extra.get(FIELD)
    if stored is None:
        return LogSchemas()
    try:
        rows = [(row["id"], row["schema"], row.get("message", "")) for row in stored["versions"]]
        names = stored["format"], stored["compatibility"]
        if not all(type(number) is int and type(text) is type(message) is str for number, text, message in rows):
            raise ValueError("a version")
        if names[0] not in SCHEMA_FORMATS or names[1] not in COMPATIBILITIES:
            raise ValueError(f"{names}")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise MetadataCorrupt(f"the schemas of a log cannot be read: {error!r}") from error
    return LogSchemas(*names, tuple(LogSchema(*row) for row in rows))


def with_schema(
    manifest: Manifest, new: LogSchema, schema_format: str, compatibility: str | None, check: Check
) -> Manifest | None:
    """Return the record with a schema as the newest version, unless it has that schema; None: there is no change.

    new: its id does not count.
    compatibility: the rule from now on; None: the log's.
    check: called with the log's schemas under that rule, if it has any and not this one; it may refuse.
    Raises `InvalidArgument`, and what `check` raises.
    """
    known = schemas_of(manifest)
    for value, allowed in ((schema_format, SCHEMA_FORMATS), (compatibility or NONE, COMPATIBILITIES)):
        if value not in allowed:
            raise InvalidArgument(f"{value!r}: expected one of {', '.join(allowed)}")
    if known.format not in ("", schema_format):
        raise InvalidArgument(
            f"the log has payloads of format {known.format}, not {schema_format}: write {known.format}, or another log"
        )
    wanted = replace(known, format=schema_format, compatibility=compatibility or known.compatibility)
    if known.find(new) is None:
        if wanted.versions:
            check(wanted)
        number = 1 + max((one.id for one in known.versions), default=0)
        wanted = replace(wanted, versions=(*known.versions, replace(new, id=number)))
    if wanted == known:
        return None
    if sum(len(one.text) for one in wanted.versions) > SIZE_MAX:
        raise InvalidArgument(
            f"the schemas of the log would have more than {SIZE_MAX:,} characters: keep them in a schema registry, or "
            "write a new log"
        )
    rows = [
        {"id": one.id, "schema": one.text} | ({"message": one.message} if one.message else {})
        for one in wanted.versions
    ]
    stored = {"format": wanted.format, "compatibility": wanted.compatibility, "versions": rows}
    return replace(manifest, extra={**manifest.extra, FIELD: stored})
