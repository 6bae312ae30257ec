"""Formats of payloads: Avro, Protobuf, JSON and Arrow as columns of Arrow, with schemas and their compatibility."""

from __future__ import annotations

from bookies.formats.payloads import DecodedPayloads, Payloads, checked_by
from bookies.formats.registry import Registry, opened_registry

__all__ = ["DecodedPayloads", "Payloads", "Registry", "checked_by", "opened_registry"]
