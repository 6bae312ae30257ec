"""The trace of one run: readable lines, and a fingerprint of all events, including those without a line.

Two runs of one seed have equal lines and equal fingerprints, in any process. The input of a trace must not depend on
object addresses, hash seeds or real time.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable

LINE_COUNT_MAX = 200_000


class Trace:
    """Lines of `virtual seconds  participant  text`. `now`: the virtual clock, seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.lines: list[str] = []
        self.is_over = False
        self._fingerprint = 0

    def note(self, participant: str, text: str) -> None:
        """Add a line, unless the run is over."""
        if self.is_over:
            return
        line = f"{self._now():12.6f}  {participant:<10} {text}"
        self.mix(line.encode())
        if len(self.lines) < LINE_COUNT_MAX:
            self.lines.append(line)

    def mix(self, data: bytes) -> None:
        """Add `data` to the fingerprint without a line: bytes on a wire, the order of events."""
        self._fingerprint = zlib.crc32(data, self._fingerprint)

    def digest(self) -> str:
        """Return the digest of all lines and of all mixed-in data: 32 hexadecimal digits."""
        total = hashlib.sha256("\n".join(self.lines).encode())
        total.update(self._fingerprint.to_bytes(4, "big"))
        return total.hexdigest()[:32]

    def tail(self, count: int) -> list[str]:
        return self.lines[-count:]
