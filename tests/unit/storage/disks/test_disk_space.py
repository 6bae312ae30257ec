"""When a disk counts as full: marks, margins, several directories."""

from __future__ import annotations

import pytest

from bookies.config import BookieConfig, validate
from bookies.errors import ConfigError
from bookies.storage.disks.disk_space import DiskSpace, Marks, Space
from bookies.units import size_text

GIB = 1 << 30
MARKS = Marks.of(BookieConfig())


def space(usable: int, path: str = "/d", total: int = 100 * GIB, *, was_full: bool = False) -> Space:
    return Space.of(path, total, usable, MARKS, was_full=was_full)


def test_percentages_are_of_40_gib_where_a_disk_is_larger() -> None:
    assert MARKS.needed(95, 10 * GIB) == GIB // 2
    assert MARKS.needed(95, 10_000 * GIB) == 2 * GIB
    assert Marks(90, 93, 95, 99, 0).needed(95, 1000 * GIB) == 50 * GIB


def test_a_disk_that_was_full_needs_a_margin() -> None:
    for usable, was_full, is_full in (
        (2 * GIB, False, False),
        (2 * GIB - 1, False, True),
        (2 * GIB, True, True),
        (28 * GIB // 10, True, False),
        (28 * GIB // 10 - 1, True, True),
    ):
        assert space(usable, was_full=was_full).is_full is is_full
    assert space(4 * GIB - 1).is_almost_full
    assert not space(4 * GIB).is_almost_full
    assert not space(GIB // 4).has_priority_room
    assert space(GIB).has_priority_room


def of(*usables: int, any_full: bool = True, needs_each: bool = False, journal: int = 50 * GIB) -> DiskSpace:
    spaces = {f"/d{number}": space(usable, f"/d{number}") for number, usable in enumerate(usables)}
    ledgers = list(spaces)
    spaces["/j"] = space(journal, "/j")
    return DiskSpace(spaces, ledgers, ledgers, ["/j"], any_full=any_full, needs_each=needs_each)


def test_one_full_directory_is_enough_unless_it_is_not() -> None:
    assert of(GIB, 50 * GIB).is_full
    assert not of(GIB, 50 * GIB, any_full=False).is_full
    assert of(GIB, GIB, any_full=False).is_full
    assert of(50 * GIB, journal=GIB, any_full=False).is_full
    assert of(0, GIB).has_priority_room
    assert not of(0, GIB, needs_each=True).has_priority_room
    assert of(GIB, GIB, needs_each=True).has_priority_room
    assert not of(0, 0).has_priority_room
    assert not of(GIB, journal=0).has_priority_room
    assert of(GIB, 3 * GIB, 5 * GIB).crowded == {"/d0", "/d1"}


def test_the_reason_says_what_ends_it() -> None:
    assert of(50 * GIB).reason(MARKS) == ""
    text = of(GIB, 50 * GIB).reason(MARKS)
    assert text == (
        "/d0: the disk is full, 1.0 GiB of 100.0 GiB are usable; adds are accepted again when "
        f"{size_text(MARKS.needed(93, 100 * GIB))} are usable"
    )
    assert of(GIB, GIB, GIB // 2).reason(MARKS).count("the disk is full") == 2
    assert of(GIB, GIB).reason(MARKS).startswith("/d0, /d1: the disk is full")


def test_a_file_system_of_several_directories_counts_once() -> None:
    assert of(GIB, GIB, 2 * GIB).totals() == (200 * GIB, 3 * GIB)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"disk_usage_warn_threshold": 96},
            "disk_usage_warn_threshold = 96: must be at most disk_usage_threshold = 95",
        ),
        ({"disk_usage_lwm_threshold": 96}, "disk_usage_lwm_threshold = 96: must be at most disk_usage_threshold = 95"),
        ({"disk_usage_priority_threshold": 94}, "disk_usage_priority_threshold = 94 is less than"),
    ],
)
def test_marks_out_of_order_are_refused(settings: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        validate(BookieConfig(**settings))  # type: ignore[arg-type]
