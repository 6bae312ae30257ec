"""`release/packages.py`: what a release needs, and what is found in packages."""

from __future__ import annotations

import importlib.util
import io
import pathlib
import sysconfig
import tarfile
import zipfile
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[2]
CHANGELOG, PROJECT = "# Changelog\n\n## 1.2.3 (2026-11-27)\n", '[project]\nversion = "1.2.3"\n'


@pytest.fixture(scope="module")
def packages() -> Any:
    spec = importlib.util.spec_from_file_location("packages", ROOT / "release" / "packages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"version": "1.2"}, "is not a version"),
        ({"version": "1.2.4"}, "pyproject.toml has version 1.2.3, not 1.2.4"),
        ({"changelog": "## 1.2.3 (unreleased)\n"}, "has no section"),
        ({"status": " M README.md\n"}, "changes that are not committed:\n M README.md"),
        ({"tags": "v1.2.2\nv1.2.3\n"}, "the tag v1.2.3 exists"),
    ],
)
def test_what_a_release_needs(packages: Any, change: dict[str, str], problem: str) -> None:
    right = {"version": "1.2.3", "changelog": CHANGELOG, "project": PROJECT, "status": "", "tags": "v1.2.2\n"}
    packages.check_release(**right)
    with pytest.raises(packages.Problem) as caught:
        packages.check_release(**right | change)
    assert problem in str(caught.value)


def sdist_of(files: dict[str, bytes], mtime: int) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as sdist:
        for name, data in files.items():
            member = tarfile.TarInfo(f"bookies-1/{name}")
            member.size, member.mtime, member.uid, member.mode = len(data), mtime, mtime, 0o600 + mtime % 8
            sdist.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def test_an_sdist_depends_on_its_files_alone(packages: Any) -> None:
    one = packages.normal_sdist(sdist_of({"a": b"1", "b": b"2"}, 7), 1_000_000_000)
    assert one == packages.normal_sdist(sdist_of({"b": b"2", "a": b"1"}, 9), 1_000_000_000)
    with tarfile.open(fileobj=io.BytesIO(one)) as sdist:
        assert [(member.name, member.mtime, member.mode) for member in sdist] == [
            ("bookies-1/a", 1_000_000_000, 0o644),
            ("bookies-1/b", 1_000_000_000, 0o644),
        ]


def test_files_that_are_missing_or_do_not_belong_are_found(packages: Any, tmp_path: pathlib.Path) -> None:
    tracked = ["README.md", "src/bookies/a.py"]
    path = tmp_path / "bookies-1.tar.gz"

    def check(files: dict[str, bytes]) -> None:
        path.write_bytes(sdist_of(files, 1))
        packages.check_files(path, tracked, [str(ROOT)])

    right = {"README.md": b"", "src/bookies/a.py": b"", "PKG-INFO": b"", "src/bookies.egg-info/PKG-INFO": b""}
    check(right)
    with pytest.raises(packages.Problem, match=r"lacks README\.md"):
        check({"src/bookies/a.py": b""})
    with pytest.raises(packages.Problem, match=r"do not belong there: notes\.txt"):
        check(right | {"notes.txt": b""})
    with pytest.raises(packages.Problem, match=r"a\.py in bookies-1\.tar\.gz has a path of this machine"):
        check(right | {"src/bookies/a.py": str(ROOT).encode()})
    wheel = tmp_path / "bookies-1-cp311-x.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("bookies/a.py", "")
        packed.writestr("bookies-1.dist-info/RECORD", "")
        packed.writestr(f"bookies/kernels/_native{sysconfig.get_config_var('EXT_SUFFIX')}", "")
    packages.check_files(wheel, tracked, [])
    with zipfile.ZipFile(wheel, "a") as packed:
        packed.writestr("tests/a.py", "")
    with pytest.raises(packages.Problem, match=r"do not belong there: tests/a\.py"):
        packages.check_files(wheel, tracked, [])
