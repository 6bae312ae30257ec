"""The compiled kernels with the address and undefined-behaviour sanitizers, in a build folder of their own."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import sysconfig

FOLDER = pathlib.Path("build") / "fuzz" / "native"
SOURCE = pathlib.Path("src") / "bookies" / "kernels"
FLAGS = "-fwrapv -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g -O1 -shared -fPIC"
MARK = "BOOKIES_FUZZ_SANITIZED"  # set in the environment of a process that has the sanitizers' libraries


def is_active() -> bool:
    return MARK in os.environ


def restart() -> None:
    """Compile the kernels and start this program again with the sanitizers; return if it runs with them already."""
    if is_active():
        return
    library = FOLDER / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    changed = max(path.stat().st_mtime for path in SOURCE.glob("_*.[ph]*"))
    if not library.exists() or library.stat().st_mtime < changed:
        build(library)
    libraries = [
        subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    environment = {
        **os.environ,
        MARK: "1",
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "PYTHONMALLOC": "malloc",  # Python's own allocator packs objects into blocks, and hides overruns
    }
    os.execve(sys.executable, [sys.executable, "-m", "tests.fuzz.run", *sys.argv[1:]], environment)


def build(library: pathlib.Path) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    code = FOLDER / "_native.c"
    subprocess.run([sys.executable, "-m", "cython", "-3", str(SOURCE / "_native.pyx"), "-o", str(code)], check=True)
    headers = [f"-I{sysconfig.get_path('include')}", f"-I{SOURCE.resolve()}"]
    subprocess.run(["gcc", *FLAGS.split(), *headers, str(code), "-o", str(library)], check=True)


def use() -> None:
    """Let `bookies.kernels._native` be the compiled kernels of this folder."""
    import bookies.kernels

    bookies.kernels.__path__.insert(0, str(FOLDER.resolve()))
