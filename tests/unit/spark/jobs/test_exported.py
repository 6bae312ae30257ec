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

FRIDAY = {"run": "friday", "cluster": "one", "source": "orders", "format": "text"}


def write(directory: pathlib.Path, name: str, content: str = "one\n") -> dict[str, Any]:
    (directory / name).write_text(content)
    return {"file": name, "entries": 1, "bytes": 3, "file_size": len(content)}


def export(directory: pathlib.Path, *names: str) -> None:
    claim(str(directory), FRIDAY)
    assert not (directory / MANIFEST).exists()  # while it is being made nobody takes it for whole
    write_manifest(str(directory), FRIDAY, is_envelope=False, files=[write(directory, name) for name in names])


def visible(directory: pathlib.Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir() if each.name[0] not in "_.")


def test_a_directory_holds_one_export(tmp_path: pathlib.Path) -> None:
    export(tmp_path, "part-0.txt", "part-1.txt")
    for other in ({"run": "monday"}, {"source": "returns"}, {"format": "csv"}, {"cluster": "two"}):
        for is_dry in (False, True):
            with pytest.raises(InvalidArgument, match="has an export of orders as text, of run friday: choose another"):
                claim(str(tmp_path), FRIDAY | other, is_dry=is_dry)
    assert listed(str(tmp_path)) == [("part-0.txt", 4), ("part-1.txt", 4)]
    claim(str(tmp_path), FRIDAY)  # begun again, and stopped
    with pytest.raises(InvalidArgument, match="of run friday"):
        claim(str(tmp_path), FRIDAY | {"run": "monday"})
    (tmp_path / MARK).unlink()
    with pytest.raises(InvalidArgument, match=r"has part-0\.txt, of an unknown export"):
        claim(str(tmp_path), FRIDAY)


def test_the_same_run_replaces_its_own_files_and_no_others(tmp_path: pathlib.Path) -> None:
    (tmp_path / "README.txt").write_text("mine")
    export(tmp_path, "part-0.txt", "part-1.txt", "part-2.txt")
    (tmp_path / "_part-1.txt.1f").write_text("of a task that was killed")
    export(tmp_path, "part-0.txt")
    assert visible(tmp_path) == ["README.txt", "part-0.txt"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["README.txt", MANIFEST, "part-0.txt"]
    assert is_there(str(tmp_path), "part-0.txt", {"file_size": 4})
    assert not is_there(str(tmp_path), "part-0.txt", {"file_size": 5})
    assert not is_there(str(tmp_path), "part-1.txt", {"file_size": 4})


def test_a_file_of_the_same_size_with_another_content_is_found(tmp_path: pathlib.Path) -> None:
    claim(str(tmp_path), FRIDAY)
    system, path = tier.system_of(str(tmp_path))
    described = write(tmp_path, "part-0.txt")
    described["sha256"], size = digest_of(system, f"{path}/part-0.txt")
    assert size == 4
    write_manifest(str(tmp_path), FRIDAY, is_envelope=False, files=[described])
    assert listed(str(tmp_path)) == [("part-0.txt", 4)]
    assert is_there(str(tmp_path), "part-0.txt", described)
    write(tmp_path, "part-0.txt", "two\n")
    assert not is_there(str(tmp_path), "part-0.txt", described)
    with pytest.raises(InvalidArgument, match=r"part-0\.txt has another SHA-256 than _manifest\.json lists: export"):
        listed(str(tmp_path))


def test_an_attempt_that_brought_nothing_leaves_nothing(tmp_path: pathlib.Path) -> None:
    claim(str(tmp_path), FRIDAY, is_dry=True)
    assert list(tmp_path.iterdir()) == []
    claim(str(tmp_path), FRIDAY)
    leave(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_an_import_takes_what_the_export_lists(tmp_path: pathlib.Path) -> None:
    inside, other = tmp_path / "orders", tmp_path / "other"
    inside.mkdir()
    other.mkdir()
    export(inside, "part-0.txt", "part-1.txt")
    write(inside, "part-9.txt")  # nobody knows why
    write(other, "more.txt")
    names = [f"{inside}/part-0.txt", f"{inside}/part-1.txt"]
    assert [name for name, _ in files_of([str(inside)])] == names
    assert [name for name, _ in files_of([str(tmp_path)])] == [*names, f"{other}/more.txt"]
    (inside / "part-1.txt").write_text("two lines\n" * 2)
    with pytest.raises(InvalidArgument, match=r"part-1\.txt has 20 bytes, but .* lists it with 4:"):
        files_of([str(tmp_path)])
    (inside / "part-1.txt").unlink()
    with pytest.raises(InvalidArgument, match=r"has lost part-1\.txt"):
        files_of([str(inside)])
    claim(str(inside), FRIDAY)
    with pytest.raises(InvalidArgument, match="has an incomplete export"):
        files_of([str(inside)])


def test_a_manifest_of_another_program_says_nothing(tmp_path: pathlib.Path) -> None:
    for content in (json.dumps({"files": []}), "[]", "not JSON"):
        (tmp_path / MANIFEST).write_text(content)
        write(tmp_path, "a.txt")
        assert [name for name, _ in files_of([str(tmp_path)])] == [f"{tmp_path}/a.txt"]
