"""The directory of an export: one export in it, and what is taken from it. No Spark, no cluster."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from bookies.errors import InvalidArgument
from bookies.spark.jobs.exported import MANIFEST, MARK, claim, digest_of, is_there, leave, listed, write_manifest
from bookies.spark.jobs.importing import files_of
from bookies.spark.write import tier

A, B, C, OTHER = (f"part-{extent:08d}-000000000000.txt" for extent in (0, 1, 2, 9))
STARTS = {extent: (17 + extent, 0) for extent in (0, 1, 2, 9)}
FRIDAY = {"run": "friday", "cluster": "one", "source": "orders", "format": "text"}


def write(directory: pathlib.Path, name: str, content: str = "one\n") -> dict[str, Any]:
    (directory / name).write_text(content)
    return {"file": name, "entries": 1, "bytes": 3, "file_size": len(content)}


def export(directory: pathlib.Path, *names: str) -> None:
    claim(str(directory), FRIDAY, STARTS)
    assert not (directory / MANIFEST).exists()  # while it is being made nobody takes it for whole
    write_manifest(str(directory), FRIDAY, is_envelope=False, files=[write(directory, name) for name in names])


def visible(directory: pathlib.Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir() if each.name[0] not in "_.")


def test_a_directory_holds_one_export(tmp_path: pathlib.Path) -> None:
    export(tmp_path, A, B)
    for other in ({"run": "monday"}, {"source": "returns"}, {"format": "csv"}, {"cluster": "two"}):
        for is_dry in (False, True):
            with pytest.raises(InvalidArgument, match="has an export of orders as text, of run friday: choose another"):
                claim(str(tmp_path), FRIDAY | other, STARTS, is_dry=is_dry)
    assert listed(str(tmp_path)) == [(A, 4), (B, 4)]
    claim(str(tmp_path), FRIDAY, STARTS)  # begun again, and stopped
    with pytest.raises(InvalidArgument, match="of run friday"):
        claim(str(tmp_path), FRIDAY | {"run": "monday"}, STARTS)
    (tmp_path / MARK).unlink()
    with pytest.raises(InvalidArgument, match=rf"has {A}, of an unknown export"):
        claim(str(tmp_path), FRIDAY, STARTS)


def test_the_same_run_replaces_its_own_files_and_no_others(tmp_path: pathlib.Path) -> None:
    (tmp_path / "README.txt").write_text("mine")
    export(tmp_path, A, B, C)
    (tmp_path / "part-of-a-table.txt").write_text("mine")
    (tmp_path / f"_{B}.{'1f' * 16}").write_text("of a task that was killed")
    export(tmp_path, A)
    assert visible(tmp_path) == ["README.txt", A, "part-of-a-table.txt"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["README.txt", MANIFEST, A, "part-of-a-table.txt"]
    assert is_there(str(tmp_path), A, {"file_size": 4})
    assert not is_there(str(tmp_path), A, {"file_size": 5})
    assert not is_there(str(tmp_path), B, {"file_size": 4})


def test_files_of_entries_that_the_log_no_longer_has_are_not_replaced(tmp_path: pathlib.Path) -> None:
    """They may be the only copy. A run that was interrupted has no manifest, and the way out is the same."""
    later = "part-00000001-000000000500.txt"
    export(tmp_path, A, B, later)
    for starts in ({1: (18, 0)}, {}, {0: (17, 3), 1: (18, 0)}):  # one, all, or some of its entries were truncated
        for is_dry in (True, False):
            with pytest.raises(InvalidArgument, match=rf"has {A}.* no longer has, so nothing was changed: export to"):
                claim(str(tmp_path), FRIDAY, starts, is_dry=is_dry)
    assert [name for name, _ in listed(str(tmp_path)) or ()] == [A, B, later]
    claim(str(tmp_path), FRIDAY, STARTS)  # interrupted
    with pytest.raises(InvalidArgument, match=rf"has {A} and 1 more, with entries that orders no longer has"):
        claim(str(tmp_path), FRIDAY, {1: (18, 400)})
    for name in (A, B):
        (tmp_path / name).rename(tmp_path / f"moved-{name}")
    claim(str(tmp_path), FRIDAY, {1: (18, 400)})
    write_manifest(str(tmp_path), FRIDAY, is_envelope=False, files=[write(tmp_path, later)])
    assert visible(tmp_path) == [f"moved-{A}", f"moved-{B}", later]


def test_an_export_of_a_deleted_log_stays_when_there_is_another_of_its_name(tmp_path: pathlib.Path) -> None:
    claim(str(tmp_path), FRIDAY | {"token": "first"}, STARTS)
    for is_complete in (False, True):
        if is_complete:
            write_manifest(str(tmp_path), FRIDAY | {"token": "first"}, is_envelope=False, files=[write(tmp_path, A)])
        with pytest.raises(InvalidArgument, match="has an export of an earlier log orders, which was deleted: choose"):
            claim(str(tmp_path), FRIDAY | {"token": "second"}, STARTS)
    claim(str(tmp_path), FRIDAY | {"token": "first"}, STARTS)
    old = write(tmp_path, A) | {"ledger": 17}
    write_manifest(str(tmp_path), FRIDAY, is_envelope=False, files=[old])  # as an earlier version writes it
    with pytest.raises(InvalidArgument, match=f"has {A}, with entries that orders no longer has"):
        claim(str(tmp_path), FRIDAY | {"token": "second"}, {0: (40, 0)})
    claim(str(tmp_path), FRIDAY | {"token": "first"}, STARTS)


def test_a_file_of_the_same_size_with_another_content_is_found(tmp_path: pathlib.Path) -> None:
    claim(str(tmp_path), FRIDAY, STARTS)
    system, path = tier.system_of(str(tmp_path))
    described = write(tmp_path, A)
    described["sha256"], size = digest_of(system, f"{path}/{A}")
    assert size == 4
    write_manifest(str(tmp_path), FRIDAY, is_envelope=False, files=[described])
    assert listed(str(tmp_path)) == [(A, 4)]
    assert is_there(str(tmp_path), A, described)
    write(tmp_path, A, "two\n")
    assert not is_there(str(tmp_path), A, described)
    with pytest.raises(InvalidArgument, match=rf"{A} has another SHA-256 than _manifest\.json lists: export"):
        listed(str(tmp_path))


def test_an_attempt_that_brought_nothing_leaves_nothing(tmp_path: pathlib.Path) -> None:
    claim(str(tmp_path), FRIDAY, STARTS, is_dry=True)
    assert list(tmp_path.iterdir()) == []
    claim(str(tmp_path), FRIDAY, STARTS)
    leave(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_an_import_takes_what_the_export_lists(tmp_path: pathlib.Path) -> None:
    inside, other = tmp_path / "orders", tmp_path / "other"
    inside.mkdir()
    other.mkdir()
    export(inside, A, B)
    write(inside, OTHER)  # nobody knows why
    write(other, "more.txt")
    names = [f"{inside}/{A}", f"{inside}/{B}"]
    assert [name for name, _ in files_of([str(inside)])] == names
    assert [name for name, _ in files_of([str(tmp_path)])] == [*names, f"{other}/more.txt"]
    (inside / B).write_text("two lines\n" * 2)
    with pytest.raises(InvalidArgument, match=rf"{B} has 20 bytes, but .* lists it with 4:"):
        files_of([str(tmp_path)])
    (inside / B).unlink()
    with pytest.raises(InvalidArgument, match=rf"has lost {B}"):
        files_of([str(inside)])
    claim(str(inside), FRIDAY, STARTS)
    with pytest.raises(InvalidArgument, match="has an incomplete export"):
        files_of([str(inside)])


def test_a_manifest_of_another_program_says_nothing(tmp_path: pathlib.Path) -> None:
    for content in (json.dumps({"files": []}), "[]", "not JSON"):
        (tmp_path / MANIFEST).write_text(content)
        write(tmp_path, "a.txt")
        assert [name for name, _ in files_of([str(tmp_path)])] == [f"{tmp_path}/a.txt"]
