"""The archive is a package that imports, and is the same each time it is made."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from bookies.errors import ConfigError
from bookies.spark.base.packaging import package

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import bookies, bookies.kernels, bookies.spark.base.options
assert bookies.__file__.startswith(sys.argv[1]), bookies.__file__
assert not bookies.kernels.NATIVE
import zipimport
assert zipimport.zipimporter(sys.argv[1]).find_spec("pyspark_bookkeeper")
"""


def test_the_archive_is_a_package(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "bookies.zip")
    assert package(path) == pathlib.Path(path).stat().st_size
    subprocess.run([sys.executable, "-I", "-c", PROGRAM, path], check=True)


def test_it_is_the_same_each_time(tmp_path: pathlib.Path) -> None:
    for name in ("a.zip", "b.zip"):
        package(str(tmp_path / name))
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_a_name_that_spark_would_pass_over(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"name it .*bookies\.whl\.zip"):
        package(str(tmp_path / "bookies.whl"))
