"""What happened in one run: readable lines, and a fingerprint of everything, also of what has no line.

Two runs of one seed must have equal lines and equal fingerprints, in any process. Nothing that goes in may depend on
addresses of objects, on hash seeds, or on real time.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable

LINE_COUNT_MAX = 200_000


class Trace:
    """Lines of `virtual seconds  who  what`. `now`: the virtual clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.lines: list[str] = []
        self.is_over = False
        self._fingerprint = 0

    def note(self, who: str, text: str) -> None:
        """Add a line, unless the run is over."""
        if self.is_over:
            return
        line = f"{self._now():12.6f}  {who:<10} {text}"
        self.mix(line.encode())
        if len(self.lines) < LINE_COUNT_MAX:
            self.lines.append(line)

    def mix(self, data: bytes) -> None:
        """Let `data` count for the fingerprint without a line: bytes on a wire, the order of events."""
        self._fingerprint = zlib.crc32(data, self._fingerprint)

    def digest(self) -> str:
        """Hexadecimal; of all lines and of all that was mixed in."""
        total = hashlib.sha256("\n".join(self.lines).encode())
        total.update(self._fingerprint.to_bytes(4, "big"))
        return total.hexdigest()[:32]

    def tail(self, count: int) -> list[str]:
        return self.lines[-count:]
