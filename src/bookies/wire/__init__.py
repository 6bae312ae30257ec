"""Frames, requests and responses, the protocols v2 and v3, digests, and authentication as state machines; no IO."""
