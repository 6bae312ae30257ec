"""Content of the entries of a soak's logs."""

from __future__ import annotations

LOG_PAYLOAD_SIZE = 200


def log_payload(name: str, number: int) -> bytes:
    return f"{name} {number} ".encode().ljust(LOG_PAYLOAD_SIZE, b".")


def log_number(name: str, payload: bytes) -> int | None:
    """Return the number in an entry's content; None if no writer has written it."""
    words = payload.split(b" ")
    number = int(words[1]) if len(words) > 1 and words[1].isdigit() else -1
    return number if payload == log_payload(name, number) else None
