"""Payloads of Protobuf to columns, and back. The library `ptars` converts whole columns in both directions, in Rust.

A schema is descriptors in base64: a set of files, as `protoc --include_imports --descriptor_set_out` writes it, or one
file, as a registry has it. A reader needs its own schema only: unknown fields are skipped, missing ones have defaults.
"""

from __future__ import annotations

import base64
import functools
from typing import Any

import pyarrow as pa

from bookies.errors import InvalidArgument, NotSupported
from bookies.formats.columns import plain
from bookies.formats.framing import pack_place

# Types of fields that read each other's bytes, by their numbers in `FieldDescriptorProto.Type`.
_ALIKE = ((3, 4, 5, 8, 13, 14), (17, 18), (7, 15), (6, 16), (9, 12))
_REPEATED = 3  # in `FieldDescriptorProto.Label`
_MESSAGE = (10, 11)
_WELL_KNOWN = tuple(
    f"google/protobuf/{name}.proto"
    for name in ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
)


class Message:
    """One message of descriptors. `name`: its full name; empty: the first one of the last file."""

    def __init__(self, schema: str, name: str) -> None:
        try:
            files = _files_of(base64.b64decode(schema, validate=True))
            pool = _library("google.protobuf.descriptor_pool").DescriptorPool()
            for file in files:
                pool.Add(file)
            first = ".".join(part for part in (files[-1].package, files[-1].message_type[0].name) if part)
            self.descriptor: Any = pool.FindMessageTypeByName(name or first)
        except KeyError:
            raise InvalidArgument(f"the descriptors have no message {name}: give its full name, PACKAGE.NAME") from None
        except (ValueError, TypeError, IndexError, _library("google.protobuf.message").Error) as error:
            raise InvalidArgument(
                f"the schema has no descriptors of Protobuf ({error}): give what `protoc --include_imports "
                "--descriptor_set_out=FILE` writes"
            ) from error
        _check_finite(self.descriptor, ())
        self._handler = _handler_of(self.descriptor)
        self.columns = [pa.field(field.name, plain(field.type)) for field in self._handler.schema()]

    @property
    def place(self) -> bytes:
        """The place of the message in its file, as payloads have it after their schema id."""
        indexes: list[int] = []
        inner = self.descriptor
        while inner is not None:
            outer = inner.containing_type
            siblings = inner.file.message_types_by_name if outer is None else outer.nested_types_by_name
            indexes.append(list(siblings).index(inner.name))
            inner = outer
        return pack_place(indexes[::-1])

    def decode(self, bodies: pa.Array) -> tuple[pa.StructArray, dict[int, str]]:
        """Return the columns, and the reason for each row that does not decode, which is null. `bodies`: no nulls."""
        try:
            return self._decoded(bodies), {}
        except ValueError:
            pass  # At least one payload is malformed: find out which.
        bad = {row: reason for row, body in enumerate(bodies.to_pylist()) if (reason := self._reason(body))}
        good = [row for row in range(len(bodies)) if row not in bad]
        order = dict(zip(good, range(len(good)), strict=True))
        rows = self._decoded(bodies.take(pa.array(good, pa.int64())))
        return rows.take(pa.array([order.get(row) for row in range(len(bodies))], pa.int64())), bad

    def encode(self, rows: pa.StructArray) -> pa.Array:
        """Return one payload per row. Raises `InvalidArgument` for a value that its field cannot hold."""
        batch = pa.RecordBatch.from_struct_array(rows)
        schema = self._handler.schema()
        try:
            columns = [batch[name].cast(schema.field(name).type) for name in batch.schema.names]
            return self._handler.record_batch_to_array(pa.RecordBatch.from_arrays(columns, batch.schema.names))
        except ValueError as error:
            raise InvalidArgument(f"a row does not match message {self.descriptor.full_name}: {error}") from error

    def _decoded(self, bodies: pa.Array) -> pa.StructArray:
        batch = self._handler.array_to_record_batch(bodies)
        columns = [column.cast(field.type) for column, field in zip(batch.columns, self.columns, strict=True)]
        return pa.StructArray.from_arrays(columns, fields=self.columns)

    def _reason(self, body: bytes) -> str:
        try:
            self._decoded(pa.array([body], pa.binary()))
        except ValueError as error:
            return str(error)
        return ""


message = functools.lru_cache(maxsize=64)(Message)


def unreadable(writer: Any, reader: Any, path: str = "") -> str:
    """Return why one descriptor cannot read what was written with another one; empty if it can."""
    by_number = {one.number: one for one in writer.fields}
    by_name = {one.name: one for one in writer.fields}
    for one in reader.fields:
        where = f"{path}{one.name}"
        if one.name in by_name and by_name[one.name].number != one.number:
            return f"{where} has number {by_name[one.name].number} where it was written, {one.number} where it is read"
        written = by_number.get(one.number)
        if written is None:
            continue
        kinds = written.type, one.type
        is_same = kinds[0] == kinds[1] or any(kinds[0] in alike and kinds[1] in alike for alike in _ALIKE)
        if not is_same or (_is_repeated(written) != _is_repeated(one)):
            return f"{where} (number {one.number}) has another type where it was written"
        if one.type in _MESSAGE and (reason := unreadable(written.message_type, one.message_type, f"{where}.")):
            return reason
    return ""


def file_alone(schema: str) -> str:
    """Return descriptors as a registry accepts them: of one file, which may import well-known ones only.

    A registry reads a set of files as a file without messages. Raises `InvalidArgument` if there are other files.
    """
    *imported, file = _files_of(base64.b64decode(schema))
    if others := [one.name for one in imported if one.name not in _WELL_KNOWN]:
        raise InvalidArgument(
            f"{file.name} imports {others[0]}, and a schema in a registry is one file: put the messages into one file, "
            "or keep the schema with the log, without option schemaRegistry"
        )
    return base64.b64encode(file.SerializeToString()).decode()


def _is_repeated(one: Any) -> bool:
    return bool(one.is_repeated) if hasattr(one, "is_repeated") else one.label == _REPEATED


def _files_of(data: bytes) -> list[Any]:
    """Return the files of a descriptor set or of one file, each after those that it imports."""
    pb = _library("google.protobuf.descriptor_pb2")
    try:
        files = list(pb.FileDescriptorSet.FromString(data).file)
        if files and files[-1].name:
            return files
    except _library("google.protobuf.message").DecodeError:
        pass
    file = pb.FileDescriptorProto.FromString(data)
    imported = []
    for name in file.dependency:
        if name not in _WELL_KNOWN:
            raise ValueError(f"file {file.name} imports {name}, which is not among them")
        module = _library(name.removesuffix(".proto").replace("/", ".") + "_pb2")
        imported.append(pb.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb))
    return [*imported, file]


def _handler_of(descriptor: Any) -> Any:
    """Return what converts messages. Raises `InvalidArgument` for descriptors that the library does not accept."""
    ptars = _library("ptars")
    config = ptars.PtarsConfig(timestamp_unit="us", enum_repr="string", list_value_name="element")
    try:
        return ptars.HandlerPool([descriptor.file], config).get_for_message(descriptor)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # Rust's panics have no other name in Python.
            raise
        raise InvalidArgument(f"the descriptors of message {descriptor.full_name} are damaged: {error}") from error


def _check_finite(descriptor: Any, outer: tuple[str, ...]) -> None:
    """Check that no message contains itself. Raises `InvalidArgument`."""
    if descriptor.full_name in outer:
        raise InvalidArgument(f"message {descriptor.full_name} contains itself, so it has no columns: read it as raw")
    for one in descriptor.fields:
        if one.message_type is not None:
            _check_finite(one.message_type, (*outer, descriptor.full_name))


def _library(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotSupported("payloads of Protobuf need the extra protobuf: pip install 'bookies[protobuf]'") from error
