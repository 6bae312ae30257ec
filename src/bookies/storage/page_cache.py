"""What the page cache is told to forget of a file that is gone through from its front."""

from __future__ import annotations

from bookies.runtime.ports import File


class ForgottenPart:
    """The part of one file, from its front, that the page cache was told to forget: `size` bytes, each told once.

    Pages that the system can use again cost a copy; ever new ones cost a virtual machine, whose host has to find them,
    ten times that. `step`: bytes after which it is told again.
    """

    def __init__(self, step: int) -> None:
        self.size = 0
        self._step = step

    def grow(self, file: File, end: int) -> None:
        """Nothing before `end` need be kept."""
        if end - self.size >= self._step:
            file.drop_cache(self.size, end - self.size)
            self.size = end
