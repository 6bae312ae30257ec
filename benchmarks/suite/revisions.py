"""Two revisions of this package, built the same way into directories of their own."""

from __future__ import annotations

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def install(revision: str | None, directory: pathlib.Path) -> pathlib.Path:
    """Where the packages of a revision are then; None: this checkout. Exits when git knows no such revision."""
    directory.mkdir()
    source, packages = directory / "source", directory / "packages"
    source.mkdir()
    _unpack(revision, source)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", str(packages), str(source)], check=True)
    if not list((packages / "bookies" / "kernels").glob("_native*.so")):
        which = revision or "this checkout"
        print(f"{which}: the compiled kernels could not be built; the Python ones are measured", file=sys.stderr)
    return packages


def _unpack(revision: str | None, directory: pathlib.Path) -> None:
    """The files of a revision; of the checkout those that git knows, without what building left there."""
    if revision is None:
        names = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        there = "\n".join(each for each in names.splitlines() if (ROOT / each).exists())
        packed = subprocess.run(["tar", "-c", "-T", "-"], cwd=ROOT, input=there.encode(), capture_output=True)
    else:
        packed = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True)
    if packed.returncode:
        raise SystemExit(f"no files of revision {revision}: {packed.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", str(directory)], input=packed.stdout, check=True)
