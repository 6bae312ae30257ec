"""Build an image of an OCI registry into `dist`: `make image`. No daemon, no root, and no other image below it.

There are two layers: files of Debian packages, which `apt-get download` fetches and whose scripts never run; and the
wheel of this checkout with its dependencies. There is no shell in it. One commit and one set of packages give the same
bytes. Needs Debian's apt and binutils, and the CPython that Debian has (`PYTHON`).
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import json
import marshal
import os
import pathlib
import re
import shutil
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from email.parser import Parser

from packages import DIST, EPOCH_MIN, HERE, ROOT, Problem, build, run

PYTHON = "python3.11"
EXTRAS = "uvloop,zookeeper,etcd,http,keystores"
PINS = ROOT / "release" / "image.txt"
DEBIAN = (
    *("base-files", "ca-certificates", "libbz2-1.0", "libc6", "libcrypt1", "libexpat1", "libffi8", "libgcc-s1"),
    *("liblzma5", "libpython3.11-minimal", "libpython3.11-stdlib", "libsqlite3-0", "libssl3", "libstdc++6", "libuuid1"),
    *("python3.11-minimal", "zlib1g"),
)
# Of these packages: paths that the image needs, and what it leaves out of them.
KEPT = re.compile(
    r"(usr/(bin/python3|lib/|lib64/|share/(doc/[^/]+/copyright$|ca-certificates/))|etc/(os-release|ssl/))"
)
LEFT_OUT = re.compile(
    r"usr/lib/[^/]+/(gconv|perl|audit)/|.*/(test|tests|idlelib|tkinter|lib2to3|ensurepip|pydoc_data|config-[^/]*)/"
    r"|.*/(_tkinter|nis|readline|_curses\w*|_dbm|_gdbm|_test\w+|_xxtestfuzz)\.cpython|.*\.(pyx|pxd|pxi|c|h|a|pyc|whl)$"
    r"|.*/direct_url\.json$|.*/RECORD$|bin/"
)
SITE = "usr/local/lib/python3.11/dist-packages"
USER, DATA = 10001, "data"
COMMAND = b"#!/usr/bin/python3.11 -IB\nimport sys\n\nfrom bookies.admin.cli import main\n\nsys.exit(main())\n"
ACCOUNTS = {
    "etc/passwd": f"root:x:0:0:root:/:/nologin\nbookies:x:{USER}:0:bookies:/{DATA}:/nologin\n",
    "etc/group": "root:x:0:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
MEDIA = "application/vnd.oci.image"


class Layer:
    """Files of a layer by path, written in order of their paths, with one time and the owner root."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.links: dict[str, str] = {}
        self.modes: dict[str, int] = {}

    def add(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Add a file, and the compiled form of a Python module: the root file system is read-only."""
        self.files[path], self.modes[path] = data, mode
        if path.endswith(".py") and "/python3" in path:
            folder, _, name = path.rpartition("/")
            compiled = f"{folder}/__pycache__/{name[:-3]}.{sys.implementation.cache_tag}.pyc"
            self.files[compiled], self.modes[compiled] = _compiled(data, f"/{path}"), 0o644

    def packed(self, epoch: int, folders: Mapping[str, tuple[int, int]] | None = None) -> bytes:
        """Return the layer as a tar file. `folders`: directories with an owner and a mode of their own."""
        own = folders or {}
        paths = {*self.files, *self.links}
        parents = {str(parent) for path in {*paths, *own} for parent in pathlib.PurePosixPath(path).parents} - {"."}
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for path in sorted({*paths, *parents, *own}):
                info = tarfile.TarInfo(path)
                info.mtime = epoch
                if path in self.links:
                    info.type, info.linkname = tarfile.SYMTYPE, self.links[path]
                    tar.addfile(info)
                elif path in self.files:
                    info.size, info.mode = len(self.files[path]), self.modes[path]
                    tar.addfile(info, io.BytesIO(self.files[path]))
                else:
                    info.type = tarfile.DIRTYPE
                    info.uid, info.mode = own.get(path, (0, 0o755))
                    tar.addfile(info)
        return buffer.getvalue()


def _compiled(source: bytes, path: str) -> bytes:
    """Return a module's cache, which Python never compares with the source. Empty modules of Python 2 have none."""
    try:
        code = compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise Problem(f"{path} is no module of {PYTHON}: {error}") from error
    # PEP 552: the flags 0b01 are an unchecked hash.
    return (
        importlib.util.MAGIC_NUMBER
        + (1).to_bytes(4, "little")
        + importlib.util.source_hash(source)
        + marshal.dumps(code)
    )


def debian(layer: Layer, place: pathlib.Path) -> list[dict[str, str]]:
    """Add the files of the Debian packages. Return what they are."""
    os.chmod(place, 0o755)
    run("sh", "-c", f"cd '{place}' && apt-get download -q {' '.join(DEBIAN)}")
    rows = []
    for package in sorted(place.glob("*.deb")):
        control = run("dpkg-deb", "--field", package)
        facts = Parser().parsestr(control)
        rows.append({"type": "deb", "name": facts["Package"], "version": facts["Version"]})
        layer.add(f"var/lib/dpkg/status.d/{facts['Package']}", control.encode())  # where scanners look
        unpacked = place / f"{package.stem}.tar"
        run("sh", "-c", f"dpkg-deb --fsys-tarfile '{package}' > '{unpacked}'")
        with tarfile.open(unpacked) as tar:
            for member in tar:
                _add_member(layer, tar, member)
    authorities = [layer.files[path] for path in sorted(layer.files) if path.startswith("usr/share/ca-certificates/")]
    layer.files = {path: data for path, data in layer.files.items() if not path.startswith("usr/share/ca-cert")}
    layer.add("etc/ssl/certs/ca-certificates.crt", b"".join(data.rstrip() + b"\n" for data in authorities))
    layer.links |= {"lib": "usr/lib", "lib64": "usr/lib64", "bin": "usr/bin", "usr/bin/python3": PYTHON}
    return rows


def _add_member(layer: Layer, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    path = re.sub(r"^(lib|lib64|bin)/", r"usr/\1/", member.name.removeprefix("./"))
    if not KEPT.match(path) or LEFT_OUT.match(path):
        return
    if member.issym():
        layer.links[path] = re.sub(r"^/(lib|lib64|bin)/", r"/usr/\1/", member.linkname)
    elif file := tar.extractfile(member) if member.isfile() or member.islnk() else None:
        layer.add(path, file.read(), member.mode & 0o755)


def application(layer: Layer, place: pathlib.Path, epoch: int) -> list[dict[str, str]]:
    """Add the wheel of this checkout and its dependencies. Return what they are."""
    run(sys.executable, "-m", "venv", place / "venv")
    build(place / "dist", {PYTHON: place / "venv"}, [HERE])
    [wheel] = (place / "dist").glob("*.whl")
    pip = (place / "venv/bin/python", "-m", "pip", "install", "-q", "--no-compile", "--constraint", PINS)
    # Unchanged bytes from packages that come as source, too.
    run(*pip, "--target", place / "site", f"{wheel}[{EXTRAS}]", SOURCE_DATE_EPOCH=str(epoch))
    rows = []
    for path in sorted((place / "site").rglob("*")):
        name = path.relative_to(place / "site").as_posix()
        if path.is_file() and not LEFT_OUT.match(name) and "/__pycache__/" not in name:
            layer.add(f"{SITE}/{name}", path.read_bytes(), 0o755 if ".so" in path.suffixes else 0o644)
        if path.name == "METADATA":
            facts = Parser().parsestr(path.read_text())
            rows.append({"type": "pypi", "name": facts["Name"], "version": facts["Version"]})
    layer.add("usr/bin/bk", COMMAND, 0o755)
    for path, text in ACCOUNTS.items():
        layer.add(path, text.encode())
    return rows


def archive(layers: Mapping[str, bytes], version: str, revision: str, epoch: int) -> bytes:
    """Return an image as a tar file that `podman load`, `docker load` and `skopeo copy oci-archive:` read."""
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))
    architecture = run("dpkg", "--print-architecture").strip()
    blobs: dict[str, bytes] = {}

    def stored(data: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    configuration = {
        "created": created,
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": f"{USER}:0",
            "Entrypoint": ["/usr/bin/bk"],
            "Cmd": ["--help"],
            "WorkingDir": f"/{DATA}",
            "Env": ["PATH=/usr/bin", "LANG=C.UTF-8", "HOME=/data", "BK_NEW_BOOKIES="],
            "ExposedPorts": {"3181/tcp": {}, "8080/tcp": {}},
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "bookies",
                "org.opencontainers.image.version": version,
                "org.opencontainers.image.revision": revision,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{hashlib.sha256(data).hexdigest()}" for data in layers.values()],
        },
        "history": [{"created": created, "created_by": name} for name in layers],
    }
    described = [stored(gzip.compress(data, 9, mtime=0), f"{MEDIA}.layer.v1.tar+gzip") for data in layers.values()]
    config = stored(_json(configuration), f"{MEDIA}.config.v1+json")
    manifest = {"schemaVersion": 2, "mediaType": f"{MEDIA}.manifest.v1+json", "config": config, "layers": described}
    entry = stored(_json(manifest), f"{MEDIA}.manifest.v1+json")
    name = f"docker.io/library/bookies:{version}"
    entry["annotations"] = {"org.opencontainers.image.ref.name": version, "io.containerd.image.name": name}
    files = blobs | {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json({"schemaVersion": 2, "mediaType": f"{MEDIA}.index.v1+json", "manifests": [entry]}),
        "manifest.json": _json(
            [
                {
                    "Config": _blob(config),
                    "RepoTags": [f"bookies:{version}"],
                    "Layers": [_blob(layer) for layer in described],
                }
            ]
        ),
    }
    whole = Layer()
    for path, data in files.items():
        whole.add(path, data)
    return whole.packed(epoch)


def _blob(descriptor: Mapping[str, object]) -> str:
    return f"blobs/{str(descriptor['digest']).replace(':', '/')}"


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def bill_of_materials(version: str, rows: list[dict[str, str]]) -> bytes:
    """Return what is in the image, in CycloneDX's format."""
    components = []
    for row in rows:
        name = re.sub(r"[-_.]+", "-", row["name"]).lower() if row["type"] == "pypi" else row["name"]
        purl = f"pkg:{row['type']}/{'debian/' if row['type'] == 'deb' else ''}{name}@{row['version']}"
        components.append({"type": "library", "name": row["name"], "version": row["version"], "purl": purl})
    subject = {"type": "container", "name": "bookies", "version": version}
    bom = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": {"component": subject}}
    return json.dumps(bom | {"components": components}, indent=1).encode() + b"\n"


def missing_libraries(layer: Layer) -> Iterator[str]:
    """Yield shared libraries that files of the image name and that are not in it."""
    present = {path.rpartition("/")[2] for path in (*layer.files, *layer.links)}
    for path, data in layer.files.items():
        if data.startswith(b"\x7fELF"):
            with tempfile.NamedTemporaryFile() as file:
                file.write(data)
                file.flush()
                needed = re.findall(r"NEEDED\s+(\S+)", run("objdump", "-p", file.name))
            yield from (f"{path} needs {name}" for name in needed if name not in present)


def main() -> int:
    """Build the image and its list of contents into `dist`."""
    os.umask(0o022)
    try:
        if f"python3.{sys.version_info[1]}" != PYTHON:
            raise Problem(f"the image has Debian's {PYTHON}, so that must build it: make image PYTHON={PYTHON}")
        if missing := [tool for tool in ("apt-get", "dpkg-deb", "objdump") if shutil.which(tool) is None]:
            raise Problem(f"needs {', '.join(missing)}: Debian 12 with apt and binutils")
        version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
        revision = run("git", "rev-parse", "HEAD").strip()
        epoch = max(EPOCH_MIN, int(run("git", "log", "-1", "--format=%ct")))
        base, own = Layer(), Layer()
        with tempfile.TemporaryDirectory() as name:
            places = [pathlib.Path(name) / part for part in ("debian", "application")]
            for place in places:
                place.mkdir()
            rows = debian(base, places[0]) + application(own, places[1], epoch)
        both = Layer()
        both.files, both.links = base.files | own.files, base.links
        if lacking := sorted(missing_libraries(both)):
            raise Problem(f"the image lacks libraries: {', '.join(lacking)}")
        layers = {
            "Debian packages": base.packed(epoch),
            "bookies": own.packed(epoch, {DATA: (USER, 0o770), "tmp": (0, 0o1777)}),
        }
        DIST.mkdir(exist_ok=True)
        image = DIST / f"bookies-image-{version}.tar"
        image.write_bytes(archive(layers, version, revision, epoch))
        (DIST / f"bookies-image-{version}.cdx.json").write_bytes(bill_of_materials(version, rows))
    except Problem as problem:
        print(f"make image: {problem}", file=sys.stderr)
        return 1
    unpacked = sum(map(len, layers.values()))
    print(f"{image.name}: {image.stat().st_size / 1e6:.1f} MB, unpacked {unpacked / 1e6:.1f} MB, {len(rows)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
