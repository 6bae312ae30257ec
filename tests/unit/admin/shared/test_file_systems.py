"""Which kind of file system a directory is on."""

from __future__ import annotations

import pathlib

import pytest

from bookies.admin.shared.file_systems import VOLATILE, file_system_of

MOUNTS = """\
22 1 0:21 / / rw,relatime shared:1 - overlay overlay rw
23 22 8:1 / /data rw - ext4 /dev/sda1 rw
24 23 0:30 / /data/a\\040b rw master:2 - tmpfs tmpfs rw
25 23 0:31 / /data/late rw - tmpfs tmpfs rw
26 23 8:2 / /data/late rw - xfs /dev/sdb1 rw
27 22 0:32 / /rootless rw - fuse.fuse-overlayfs fuse-overlayfs rw
""".splitlines()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/database", "overlay"),
        ("/data", "ext4"),
        ("/data/ledgers/current", "ext4"),
        ("/data/a b/x", "tmpfs"),
        ("/data/late/x", "xfs"),
        ("/rootless/data", "fuse.fuse-overlayfs"),
    ],
)
def test_the_longest_mount_counts(path: str, kind: str) -> None:
    assert file_system_of(path, MOUNTS) == kind


def test_here_and_where_nothing_is_known(tmp_path: pathlib.Path) -> None:
    assert file_system_of(str(tmp_path))
    assert file_system_of("/data", []) == ""


def test_containers_own_layers_are_volatile() -> None:
    assert {"overlay", "fuse.fuse-overlayfs", "aufs", "tmpfs"} <= set(VOLATILE)
