"""The compiled kernels with the address and undefined-behaviour sanitizers, in a build folder of their own.

The sanitizers' library hides the interpreter's coverage from libFuzzer. So this run changes at random what the guided
search and its corpora have.
"""

from __future__ import annotations

import os
import pathlib
import random
import subprocess
import sys
import sysconfig
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from tests.fuzz.target import Target

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


def mutate(target: Target, seconds: float, found: pathlib.Path, findings: pathlib.Path) -> NoReturn:
    """Run the target on changed inputs for this processor time, then exit. What ends the process is in `findings`."""
    from tests.fuzz import corpus

    inputs = [*corpus.inputs(target), *(path.read_bytes() for path in (found.iterdir() if found.exists() else ()))]
    choose, count, started = random.Random(), 0, os.times()
    current = findings / f"input-{os.getpid()}"
    while sum(os.times()[:2]) - sum(started[:2]) < seconds:
        data = bytearray(choose.choice(inputs))
        for _ in range(choose.randrange(5) if count >= len(inputs) else 0):
            _change(data, choose, inputs)
        data = bytearray(inputs[count]) if count < len(inputs) else data[: target.size_max]
        current.write_bytes(data)
        target.run(bytes(data))
        count += 1
    current.unlink()
    print(f"stat::number_of_executed_units: {count}", flush=True)
    os._exit(0)


def _change(data: bytearray, choose: random.Random, inputs: list[bytes]) -> None:
    """Change an input in place: bits, numbers at the edges, cuts, and pieces of other inputs."""
    at, kind = choose.randrange(len(data) + 1), choose.randrange(5)
    if kind == 0 and at < len(data):
        data[at] ^= 1 << choose.randrange(8)
    elif kind == 1:
        number = choose.choice((0, 1, -1, 24, 28, 52, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63)))
        size = choose.choice((1, 2, 4, 8))
        data[at : at + size] = (number & (1 << 8 * size) - 1).to_bytes(size, "big")
    elif kind == 2:
        del data[at : at + choose.randrange(1, 64)]
    else:
        other = choose.choice(inputs)
        start = choose.randrange(len(other) + 1)
        piece = other[start : start + choose.randrange(1, 200)]
        data[at : at + len(piece) * (kind - 3)] = piece
