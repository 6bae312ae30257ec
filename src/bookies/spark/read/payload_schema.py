"""Schema of a query's payloads, in the form that travels to its tasks.

A task that meets the id of a schema that the plan does not have asks for it: a registry once in the life of the
process; the log of the row, whose ids mean nothing in other logs, once, and again for an id that it did not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
from msgspec import Struct

from bookies.errors import InvalidArgument, LogNotFound, SchemaIncompatible, SchemaNotFound
from bookies.formats.columns import ddl_of, is_wider, type_name
from bookies.formats.payloads import Find, Payloads
from bookies.protocol.payloads.schemas import LogSchemas
from bookies.spark.base import runtime
from bookies.spark.base.arrow import Stretch, known_columns
from bookies.spark.base.settings import Settings

PREFIX = "value_"  # of a payload's column whose name the source itself has


class PayloadSchema(Struct, frozen=True):
    """Schema of payloads. `payloads`: the decoder of Avro and Protobuf; None: another format.

    kept: schemas of each log by their ids, as far as they are known.
    """

    columns: pa.Schema
    payloads: Payloads | None
    settings: Settings
    kept: dict[str, Mapping[int, str]] = {}

    @property
    def fields(self) -> dict[str, pa.Field]:
        """The payload's fields by column. Names of the source's own columns keep their meaning."""
        taken = {name for name in known_columns(self.settings) if name != "value"}
        # Spark does not tell names apart that differ in case only.
        return {PREFIX + field.name if field.name.lower() in taken else field.name: field for field in self.columns}

    @property
    def arrow(self) -> pa.Schema:
        """The columns."""
        return pa.schema([pa.field(name, field.type) for name, field in self.fields.items()])

    @property
    def ddl(self) -> str:
        """The columns as Spark's DDL."""
        return ddl_of(self.arrow)

    def check(self, wanted: Iterable[pa.Field]) -> None:
        """Check that the payloads have these columns. Raises `InvalidArgument`."""
        fields = self.fields
        for column in wanted:
            if column.name not in fields:
                raise InvalidArgument(f"the payload's schema has no column {column.name!r}; it has {', '.join(fields)}")
            if not is_wider(column.type, fields[column.name].type):
                raise InvalidArgument(
                    f"column {column.name!r} is {type_name(fields[column.name].type)} in the payload's schema: it "
                    f"cannot be read as {type_name(column.type)}"
                )

    def decode(
        self, stretch: Stretch, values: pa.Array, wanted: Iterable[pa.Field]
    ) -> tuple[dict[str, pa.Array], Mapping[int, str]]:
        """Return the columns, and the reason for each row that does not decode. Raises `SchemaIncompatible`."""
        assert self.payloads is not None
        try:
            rows, malformed = self.payloads.decode(values, self._find(stretch.origin.log))
        except SchemaIncompatible as error:
            raise SchemaIncompatible(
                f"{f'log {stretch.origin.log}: ' if stretch.origin.log else ''}{error.message}",
                ledger_id=stretch.ledger_id,
                entry_id=stretch.entry_of(0),
            ) from None
        parts = dict(zip((field.name for field in rows.type), rows.flatten(), strict=True))
        fields = self.fields
        return {column.name: parts[fields[column.name].name].cast(column.type) for column in wanted}, malformed

    def _find(self, log: str | None) -> Find:
        is_asked = False

        def schema(schema_id: int) -> str:
            nonlocal is_asked
            if log is None:
                raise SchemaNotFound(f"a ledger has no schema with id {schema_id}: read it as part of its log")
            if schema_id not in self.kept.get(log, ()) and not is_asked:
                is_asked = True
                self.kept[log] = texts_of(runtime.worker().run(schemas_of_log(self.settings, log)))
            if schema_id not in self.kept[log]:
                raise SchemaNotFound(f"log {log} has no schema with id {schema_id}")
            return self.kept[log][schema_id]

        return schema


def texts_of(kept: LogSchemas) -> dict[int, str]:
    """Return the schemas of a log by their ids."""
    return {version.id: version.text for version in kept.versions}


async def schemas_of_log(settings: Settings, log: str) -> LogSchemas:
    """Return what a log keeps now; nothing, if there is no such log."""
    client = await runtime.worker().client(settings.uri, settings.config)
    try:
        return await client.log(log, password=settings.password).schemas()
    except LogNotFound:
        return LogSchemas()
