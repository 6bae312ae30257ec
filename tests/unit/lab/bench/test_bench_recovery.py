"""What `bk bench recovery` does before it writes anything."""

from __future__ import annotations

import pathlib
import shutil

import pytest

from bookies.admin.shared import UsageError
from bookies.lab.bench.bench_recovery import COPIES, Space


def test_it_writes_no_more_than_the_disk_has_room_for(tmp_path: pathlib.Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    Space(tmp_path).check(free / 2 / COPIES, "--bytes")
    with pytest.raises(UsageError, match=rf"{tmp_path} has .* free: reduce --bytes, or set BK_BENCH_DIRECTORY"):
        Space(tmp_path).check(free / COPIES, "--bytes")
