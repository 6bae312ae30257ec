"""Payloads of a log's entries: their schemas."""
