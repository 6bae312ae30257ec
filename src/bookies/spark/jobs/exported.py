"""Directory of an export: the run that owns it, and the files that belong to it.

    DIR/_export.json     while the export is running: the run and its source
    DIR/_manifest.json   when it is complete: the same, and for each file: rows, bytes, CRC of the entries, SHA-256

A directory holds one export. The run that began it may be repeated, and replaces its own files, but only while the
source still has their entries: otherwise they may be the only copy. Other runs are refused, and so is the import of an
incomplete export. All calls block, and raise OSError. Source: spark 5.4.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.fs

from bookies.encoding.documents import parse_json
from bookies.errors import InvalidArgument
from bookies.spark.write import tier

MANIFEST, MARK = "_manifest.json", "_export.json"
IDENTITY = ("run", "cluster", "source", "format")
_own = re.compile(
    r"part-(?P<extent>\d{8,})-(?P<entry>\d{12,})\.[a-z]+|_part-\d{8,}-\d{12,}\.[a-z]+\.(?P<rest>[0-9a-f]{32})"
).fullmatch  # `rest`: of a temporary name


def claim(to: str, identity: Mapping[str, str], starts: Mapping[int, tuple[int, int]], *, is_dry: bool = False) -> None:
    """Claim the directory for this export, or continue it. `is_dry`: only check.

    `identity`: `IDENTITY`, and the `token` of a log, which manifests of earlier versions lack. `starts`: ledger and
    first entry of each extent, by number.

    Raises `InvalidArgument` if it belongs to another export, or has entries that are not exported this time.
    """
    system, path = tier.system_of(to)
    owner = _content(system, f"{path}/{MARK}") or _content(system, f"{path}/{MANIFEST}")
    if owner is not None and any(owner.get(name) != identity[name] for name in IDENTITY):
        raise InvalidArgument(
            f"directory {to} has an export of {owner.get('source')} as {owner.get('format')}, of run "
            f"{owner.get('run', 'unknown')}: choose another directory, or delete this one"
        )
    if owner is not None and "token" in owner and owner["token"] != identity.get("token"):
        raise InvalidArgument(
            f"directory {to} has an export of an earlier log {identity['source']}, which was deleted: choose another "
            "directory, or delete this one"
        )
    if owner is not None and (left := _left_out(_parts(system, path), owner, starts)):
        more = f" and {len(left) - 1:,} more" if len(left) > 1 else ""
        raise InvalidArgument(
            f"directory {to} has {left[0]}{more}, with entries that {identity['source']} no longer has, so nothing was "
            "changed: export to another directory under another run id, or move these files away and repeat the run"
        )
    if owner is None and (files := _parts(system, path)):
        raise InvalidArgument(
            f"directory {to} has {files[0].base_name}, of an unknown export: choose another "
            "directory, or delete this one"
        )
    if not is_dry:
        system.create_dir(path, recursive=True)
        _put(system, path, MARK, identity)
        _delete(system, [f"{path}/{MANIFEST}"])


def _left_out(files: Sequence[Any], owner: Mapping[str, Any], starts: Mapping[int, tuple[int, int]]) -> list[str]:
    """Return the complete files whose entries are not all exported this time. `owner`, `starts`: as in `claim`."""
    ledgers = {file["file"]: file.get("ledger") for file in owner.get("files", ())}
    left = []
    for name in [str(info.base_name) for info in files]:
        if (part := _own(name)) is None or part["rest"]:
            continue
        ledger_id, first = starts.get(int(part["extent"]), (None, 0))
        # Manifests of earlier versions have no token: another ledger of this number is of another log.
        if ledger_id is None or ledgers.get(name) not in (None, ledger_id) or int(part["entry"]) < first:
            left.append(name)
    return left


def leave(to: str) -> None:
    """Release the directory after an attempt that wrote no files."""
    system, path = tier.system_of(to)
    if not _parts(system, path):
        _delete(system, [f"{path}/{MARK}"])


def is_there(to: str, name: str, written: Mapping[str, Any]) -> bool:
    """Report whether a file is as it was written. `written`: its description, with `file_size` and `sha256`."""
    system, path = tier.system_of(to)
    info = system.get_file_info(f"{path}/{name}")
    return info.type is pyarrow.fs.FileType.File and _difference(system, info, written) is None


def digest_of(system: Any, path: str) -> tuple[str, int]:
    """Read a file, and return its SHA-256 and its bytes."""
    digest, size = hashlib.sha256(), 0
    with system.open_input_stream(path) as file:
        while data := file.read(1 << 20):
            digest.update(data)
            size += len(data)
    return digest.hexdigest(), size


def _difference(system: Any, info: Any, written: Mapping[str, Any]) -> str | None:
    """Return how a file differs from its description; None: it does not.

    The digests of remote files are not compared: that would transfer them.
    """
    if info.size != int(written["file_size"]):
        return f"has {info.size:,} bytes, but {MANIFEST} lists it with {int(written['file_size']):,}"
    digest = written.get("sha256")
    is_local = isinstance(system, pyarrow.fs.LocalFileSystem)
    if digest is None or not is_local or digest_of(system, info.path)[0] == digest:
        return None
    return f"has another SHA-256 than {MANIFEST} lists"


def write_manifest(to: str, identity: Mapping[str, str], *, is_envelope: bool, files: Sequence[dict[str, Any]]) -> None:
    """Write which entries each file has, in order, and delete files that earlier attempts of the run left.

    Files with other names than an export gives stay.
    """
    files = sorted(files, key=lambda file: str(file["file"]))
    content = {
        **identity,
        "record_format": "envelope" if is_envelope else "raw",
        "entries": sum(file["entries"] for file in files),
        "bytes": sum(file["bytes"] for file in files),
        "files": files,
    }
    system, path = tier.system_of(to)
    named = {file["file"] for file in files}
    old = [file for file in _parts(system, path) if _own(file.base_name) and file.base_name not in named]
    _delete(system, [file.path for file in old])
    _put(system, path, MANIFEST, content)
    _delete(system, [f"{path}/{MARK}"])


def listed(uri: str) -> list[tuple[str, int]] | None:
    """Return name and bytes of each file of an export, in order; None: the directory has no export.

    Raises `InvalidArgument` if the export is incomplete.
    """
    system, path = tier.system_of(uri)
    manifest = _content(system, f"{path}/{MANIFEST}")
    if manifest is None:
        if _content(system, f"{path}/{MARK}") is not None:
            raise InvalidArgument(f"directory {uri} has an incomplete export: repeat that first")
        return None
    files = manifest["files"]
    infos = system.get_file_info([f"{path}/{file['file']}" for file in files]) if files else []
    for file, info in zip(files, infos, strict=True):
        if info.type is not pyarrow.fs.FileType.File:
            raise InvalidArgument(f"directory {uri} has lost {file['file']}, which its {MANIFEST} lists: export again")
        if (difference := _difference(system, info, file)) is not None:
            raise InvalidArgument(f"{uri}/{file['file']} {difference}: export again")
    return [(str(file["file"]), int(file["file_size"])) for file in files]


def _parts(system: Any, path: str) -> list[Any]:
    """Return the files of exports, including incomplete ones."""
    inside = system.get_file_info(pyarrow.fs.FileSelector(path, allow_not_found=True))
    files = [info for info in inside if info.type is pyarrow.fs.FileType.File]
    parts = [info for info in files if info.base_name.startswith(("part-", "_part-"))]
    return sorted(parts, key=lambda info: str(info.base_name))


def _content(system: Any, path: str) -> dict[str, Any] | None:
    """Return the description in an export's file; None: there is no such file, or it is another program's."""
    if system.get_file_info(path).type is not pyarrow.fs.FileType.File:
        return None
    with system.open_input_stream(path) as file:
        data = file.read()
    try:
        content = parse_json(data)
    except ValueError:
        return None
    return content if isinstance(content, dict) and "source" in content and "format" in content else None


def _put(system: Any, path: str, name: str, content: Mapping[str, Any]) -> None:
    tier.put(system, path, name, json.dumps(content, indent=1).encode())


def _delete(system: Any, paths: Sequence[str]) -> None:
    for path in paths:
        if system.get_file_info(path).type is pyarrow.fs.FileType.File:
            system.delete_file(path)
