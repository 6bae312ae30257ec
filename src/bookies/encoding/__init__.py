"""Encodings that several packages share: protobuf, and its text format."""
