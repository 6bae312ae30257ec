"""`release/image.py`: layers, the archive that registries read, and what is in the list of contents."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pathlib
import re
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from typing import Any

import pytest
from tests.fakes.scripts import load_script

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def image() -> Any:
    sys.path.insert(0, str(ROOT / "release"))
    try:
        return load_script("release/image.py")
    finally:
        sys.path.pop(0)


def files_of(data: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {member.name: member for member in tar}


def test_a_layer_has_parents_owners_and_compiled_modules(image: Any) -> None:
    layer = image.Layer()
    layer.add("usr/lib/python3.11/a.py", b"X = 1\n")
    layer.add("usr/bin/bk", b"#!", 0o755)
    layer.links["bin"] = "usr/bin"
    members = files_of(layer.packed(7, {"data": (10001, 0o770)}))
    tag = sys.implementation.cache_tag
    assert list(members) == sorted(members)
    assert {name for name, member in members.items() if member.isdir()} == {
        *("data", "usr", "usr/bin", "usr/lib", "usr/lib/python3.11", "usr/lib/python3.11/__pycache__"),
    }
    assert f"usr/lib/python3.11/__pycache__/a.{tag}.pyc" in members
    assert (members["data"].uid, members["data"].mode, members["data"].gid) == (10001, 0o770, 0)
    assert (members["usr/bin/bk"].mode, members["bin"].linkname) == (0o755, "usr/bin")
    assert {(member.mtime, member.gid) for member in members.values()} == {(7, 0)}
    with pytest.raises(image.Problem, match=r"b\.py is no module"):
        layer.add("usr/lib/python3.11/b.py", b"print 1\n")


@pytest.mark.parametrize(
    ("path", "is_in"),
    [
        ("usr/bin/python3.11", True),
        ("usr/bin/bash", False),
        ("usr/share/man/man1/x", False),
        ("usr/share/doc/libc6/copyright", True),
        ("usr/lib/x86_64-linux-gnu/gconv/BIG5.so", False),
        ("usr/lib/python3.11/ensurepip/__init__.py", False),
        ("usr/lib/python3.11/ssl.py", True),
    ],
)
def test_which_files_of_packages_are_in_it(image: Any, path: str, is_in: bool) -> None:
    assert bool(image.KEPT.match(path) and not image.LEFT_OUT.match(path)) is is_in


def test_the_archive_names_its_parts_by_their_digests(image: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "run", lambda *words: "amd64\n")
    layers = {"first": b"one", "second": b"two"}
    data = image.archive(layers, "1.2.3", "abc", 0)
    assert data == image.archive(layers, "1.2.3", "abc", 0)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}  # type: ignore[union-attr]
    for name, blob in files.items():
        assert not name.startswith("blobs/") or name.endswith(hashlib.sha256(blob).hexdigest())
    [entry] = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(files[entry["digest"].replace("sha256:", "blobs/sha256/")])
    [old] = json.loads(files["manifest.json"])
    assert [gzip.decompress(files[path]) for path in old["Layers"]] == [b"one", b"two"]
    config = json.loads(files[old["Config"]])
    assert manifest["config"]["digest"].endswith(old["Config"].rpartition("/")[2])
    assert (config["config"]["User"], config["config"]["Entrypoint"]) == ("10001:0", ["/usr/bin/bk"])
    assert "Volumes" not in config["config"]


def test_the_list_of_contents_has_addresses_of_packages(image: Any) -> None:
    rows = [
        {"type": "deb", "name": "libc6", "version": "2.36"},
        {"type": "pypi", "name": "typing_extensions", "version": "4"},
    ]
    components = json.loads(image.bill_of_materials("1", rows))["components"]
    assert [part["purl"] for part in components] == ["pkg:deb/debian/libc6@2.36", "pkg:pypi/typing-extensions@4"]


def test_the_image_has_the_wheel_of_its_own_machine(
    image: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(out: pathlib.Path, places: object, machines: Sequence[str] = (image.HERE, "other")) -> None:
        out.mkdir()
        for machine in machines:
            (out / f"bookies-{machine}.whl").touch()

    ran: list[tuple[object, ...]] = []
    monkeypatch.setattr(image, "build", build)
    monkeypatch.setattr(image, "run", lambda *words, **_: ran.append(words))
    (tmp_path / "site").mkdir()
    assert image.application(image.Layer(), tmp_path, 7) == []
    assert ran[-1][-1] == f"{tmp_path}/dist/bookies-{image.HERE}.whl[{image.EXTRAS}]"


def test_the_containerfile_installs_the_wheel_of_its_own_machine(tmp_path: pathlib.Path) -> None:
    text = (ROOT / "deploy/image/Containerfile").read_text()
    [pattern] = re.findall(r"\$\(ls /dist/(.+?\.whl)\)", text)
    for machine in ("x86_64", "aarch64", "riscv64"):
        for tag in ("cp312", "cp313"):
            (tmp_path / f"bookies-0.1.0-{tag}-{tag}-manylinux2014_{machine}.manylinux_2_17_{machine}.whl").touch()
    script = f"uname() {{ echo aarch64; }}; tag=cp313; ls {pattern}"
    listed = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert listed.split() == ["bookies-0.1.0-cp313-cp313-manylinux2014_aarch64.manylinux_2_17_aarch64.whl"]
