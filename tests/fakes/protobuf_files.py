"""Descriptors of Protobuf as `protoc` writes them, without `protoc`."""

from __future__ import annotations

import base64
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

KINDS = {"int32": 5, "int64": 3, "uint64": 4, "string": 9, "double": 1, "bytes": 12, "bool": 8, "sint64": 18}


def file_of(messages: dict[str, dict[str, tuple[int, str]]], *, package: str = "shop") -> Any:
    """One file. Of each message: name -> number and type; a type ends in `[]` if it is repeated."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package=package, syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.enum_type.add(name="Kind").value.add(name="NEW", number=0)
    file.enum_type[0].value.add(name="OLD", number=1)
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            plain = kind.removesuffix("[]")
            field = message.field.add(name=field_name, number=number, label=3 if kind != plain else 1)
            if plain in KINDS:
                field.type = KINDS[plain]
            else:
                field.type, field.type_name = (14, ".shop.Kind") if plain == "Kind" else (11, f".{plain}")
    return file


def set_of(file: Any) -> bytes:
    """A descriptor set with the file and those that it imports."""
    files = [descriptor_pb2.FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb), file]
    return bytes(descriptor_pb2.FileDescriptorSet(file=files).SerializeToString())


def text_of(file: Any) -> str:
    """The schema as logs keep it."""
    return base64.b64encode(set_of(file)).decode()


def class_of(file: Any, name: str) -> Any:
    """Google's own class of a message."""
    pool = descriptor_pool.DescriptorPool()
    for one in descriptor_pb2.FileDescriptorSet.FromString(set_of(file)).file:
        pool.Add(one)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


ORDER = file_of(
    {
        "Order": {
            "id": (1, "int64"),
            "customer": (2, "string"),
            "tags": (3, "string[]"),
            "at": (4, "google.protobuf.Timestamp"),
            "big": (5, "uint64"),
            "kind": (6, "Kind"),
            "items": (7, "shop.Item[]"),
        },
        "Item": {"price": (1, "double")},
    }
)
