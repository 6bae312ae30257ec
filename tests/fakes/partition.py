"""A part of a simulated disk that is a file system of its own."""

from __future__ import annotations

from bookies.errors import DiskFull
from bookies.lab.sim.world.disk import SimDisk


class Partition:
    """Makes the files under a path a file system of their own, with a capacity in bytes; `ballast`: of others."""

    def __init__(self, disk: SimDisk, under: str, capacity: int) -> None:
        self.capacity = capacity
        self.ballast = 0
        self._disk = disk
        self._under = under
        self._usage = disk.usage
        disk.reserve, disk.usage = self.reserve, self.usage  # type: ignore[method-assign]

    def used(self) -> int:
        return self.ballast + sum(map(len, self._disk.files(self._under).values()))

    def reserve(self, path: str, growth: int) -> None:
        if path.startswith(self._under) and growth > 0 and self.used() + growth > self.capacity:
            raise DiskFull(f"{path}: no space left on device")

    def usage(self, path: str) -> tuple[int, int]:
        if path.startswith(self._under):
            return self.capacity, max(0, self.capacity - self.used())
        return self._usage(path)
