"""The directory of an export: whose it is, and which files belong to it.

    DIR/_export.json     while the export is being made: the run, and of what it is
    DIR/_manifest.json   when it is whole: the same; and of each file: rows, bytes, the CRC of the entries, the SHA-256

A directory holds one export. The run that began it may be repeated, and replaces its own files; anybody else is
refused, and so is an import of what is not whole. All calls block, and raise OSError. Source: spark 5.4.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.fs

from bookies.errors import InvalidArgument
from bookies.spark.write import tier

MANIFEST, MARK = "_manifest.json", "_export.json"
IDENTITY = ("run", "cluster", "source", "format")


def claim(to: str, identity: Mapping[str, str], *, is_dry: bool = False) -> None:
    """Make the directory this export's, or go on with it. `is_dry`: only look. Raises `InvalidArgument`: another's."""
    system, path = tier.system_of(to)
    found = _content(system, f"{path}/{MARK}") or _content(system, f"{path}/{MANIFEST}")
    if found is not None and any(found.get(name) != identity[name] for name in IDENTITY):
        raise InvalidArgument(
            f"directory {to} has an export of {found.get('source')} as {found.get('format')}, of run "
            f"{found.get('run', 'unknown')}: choose another directory, or delete this one"
        )
    if found is None and (files := _parts(system, path)):
        raise InvalidArgument(
            f"directory {to} has {files[0].base_name}, of an export that is not known any more: choose another "
            "directory, or delete this one"
        )
    if not is_dry:
        system.create_dir(path, recursive=True)
        _put(system, path, MARK, identity)
        _delete(system, [f"{path}/{MANIFEST}"])


def leave(to: str) -> None:
    """An attempt that brought nothing leaves nothing."""
    system, path = tier.system_of(to)
    if not _parts(system, path):
        _delete(system, [f"{path}/{MARK}"])


def is_there(to: str, name: str, size: int) -> bool:
    """Whether a file that was written is where it was left. `size`: bytes of it."""
    system, path = tier.system_of(to)
    info = system.get_file_info(f"{path}/{name}")
    return bool(info.type is pyarrow.fs.FileType.File and info.size == size)


def write_manifest(to: str, identity: Mapping[str, str], *, is_envelope: bool, files: Sequence[dict[str, Any]]) -> None:
    """Say what is in which file, in order; what earlier attempts of the same run left beside them goes."""
    files = sorted(files, key=lambda each: str(each["file"]))
    content = {
        **identity,
        "record_format": "envelope" if is_envelope else "raw",
        "entries": sum(each["entries"] for each in files),
        "bytes": sum(each["bytes"] for each in files),
        "files": files,
    }
    system, path = tier.system_of(to)
    named = {each["file"] for each in files}
    _delete(system, [each.path for each in _parts(system, path) if each.base_name not in named])
    _put(system, path, MANIFEST, content)
    _delete(system, [f"{path}/{MARK}"])


def listed(uri: str) -> list[tuple[str, int]] | None:
    """(name, bytes) of each file of an export, in order; None: the directory has none.

    Raises `InvalidArgument`: it is not whole.
    """
    system, path = tier.system_of(uri)
    manifest = _content(system, f"{path}/{MANIFEST}")
    if manifest is None:
        if _content(system, f"{path}/{MARK}") is not None:
            raise InvalidArgument(f"directory {uri} has an export that has not ended: repeat that first")
        return None
    found = [(str(each["file"]), int(each["file_size"])) for each in manifest["files"]]
    infos = system.get_file_info([f"{path}/{name}" for name, _ in found]) if found else []
    for (name, size), info in zip(found, infos, strict=True):
        if info.type is not pyarrow.fs.FileType.File:
            raise InvalidArgument(f"directory {uri} has lost {name}, which its {MANIFEST} lists: export again")
        if info.size != size:
            raise InvalidArgument(
                f"{uri}/{name} has {info.size:,} bytes, and {size:,} when it was exported ({MANIFEST}): export again"
            )
    return found


def _parts(system: Any, path: str) -> list[Any]:
    """Files of exports, also those that are not whole."""
    inside = system.get_file_info(pyarrow.fs.FileSelector(path, allow_not_found=True))
    files = [each for each in inside if each.type is pyarrow.fs.FileType.File]
    found = [each for each in files if each.base_name.startswith(("part-", "_part-"))]
    return sorted(found, key=lambda each: str(each.base_name))


def _content(system: Any, path: str) -> dict[str, Any] | None:
    """What an export says of itself; None: there is nothing, or something of another program."""
    if system.get_file_info(path).type is not pyarrow.fs.FileType.File:
        return None
    with system.open_input_stream(path) as file:
        data = file.read()
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "source" in found and "format" in found else None


def _put(system: Any, path: str, name: str, content: Mapping[str, Any]) -> None:
    with system.open_output_stream(f"{path}/_new{name}") as file:
        file.write(json.dumps(content, indent=1).encode())
    system.move(f"{path}/_new{name}", f"{path}/{name}")


def _delete(system: Any, paths: Sequence[str]) -> None:
    for path in paths:
        if system.get_file_info(path).type is pyarrow.fs.FileType.File:
            system.delete_file(path)
