"""Kinds of file systems, to find directories whose content does not outlast a container or the machine."""

from __future__ import annotations

import os
from collections.abc import Iterable

VOLATILE = ("overlay", "fuse.fuse-overlayfs", "aufs", "tmpfs", "ramfs")
VOLATILE_REMEDY = "mount a volume or a disk there: its content is gone with the container, or with the machine's power"


def file_system_of(path: str, mounts: Iterable[str] | None = None) -> str:
    """Return the kind of file system that a path, existing or not, is on; empty if that is unknown.

    `mounts`: lines of /proc/self/mountinfo, those of this process by default.
    """
    if mounts is None:
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
                mounts = file.readlines()
        except OSError:
            return ""
    full, longest, kind = os.path.realpath(path), "", ""
    for line in mounts:
        fields, _, rest = line.partition(" - ")
        place = fields.split()[4].encode("utf-8", "surrogateescape").replace(b"\\040", b" ").decode("utf-8", "replace")
        is_above = full == place or full.startswith(place.rstrip("/") + "/")
        if is_above and len(place) >= len(longest):  # of two mounts at one place the later one counts
            longest, kind = place, rest.split()[0]
    return kind
