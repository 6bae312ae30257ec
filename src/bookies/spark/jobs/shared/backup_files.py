"""Files of a backup: its runs, and the copies of ledgers that they list. `protocol/ledger/backup.py` has the layout.

All calls block, and raise OSError.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow.fs
from msgspec import to_builtins

from bookies.client.base.segments import LOGS
from bookies.client.read.offloaded import OffloadedFiles
from bookies.errors import InvalidArgument, ReadFailed
from bookies.metadata.dump_format import parse_item, parse_line
from bookies.metadata.transfer import Item
from bookies.model import BookieId, DigestType, LedgerMetadata, LedgerState
from bookies.protocol.ledger.backup import (
    Contents,
    FileDigest,
    LedgerCopy,
    RunManifest,
    chosen_run,
    end_name,
    pack,
    parse_contents,
    parse_copy,
    parse_run,
)
from bookies.protocol.ledger.offload import LABEL
from bookies.protocol.log import Manifest
from bookies.protocol.log.log_model import parse_manifest
from bookies.protocol.log.log_segments import joined, parse_segment
from bookies.spark.write import tier

RUN, MANIFEST, LEDGERS, METADATA = "run-", "manifest.json", "ledgers.json", "metadata.jsonl"
SWEEPS = "sweeps"  # directory of announcements
LOOKED_UP = 1000  # files whose sizes are asked for at a time


def root_of(uri: str) -> tuple[str, str]:
    """Return the directory of a backup and the cluster whose runs are in it. Raises `InvalidArgument`."""
    to = tier.absolute(uri)
    system, path = tier.system_of(to)
    clusters = [
        info.base_name
        for info in _inside(system, path)
        if info.type is pyarrow.fs.FileType.Directory and _run_names(system, info.path)
    ]
    if len(clusters) == 1:
        return to, str(clusters[0])
    if clusters:
        raise InvalidArgument(
            f"{uri} has backups of clusters {', '.join(sorted(clusters))}: move them to directories of their own"
        )
    raise InvalidArgument(f"{uri} has no backup: `bk spark backup {uri}` writes one")


def _inside(system: Any, path: str) -> list[Any]:
    return list(system.get_file_info(pyarrow.fs.FileSelector(path, allow_not_found=True)))


def _run_names(system: Any, path: str) -> list[str]:
    return sorted(info.base_name for info in _inside(system, path) if info.base_name.startswith(RUN))


def run_of(root: str, name: str | None) -> RunManifest:
    """Return the complete run of that name, None: the latest. A damaged run does not keep others from being read.

    Raises `InvalidArgument`, `NotSupported`.
    """
    named = [] if name is None else runs(root, name)
    return chosen_run(named or runs(root), name, root)


def runs(root: str, only: str | None = None) -> list[RunManifest]:
    """Return the complete runs. `root`: directory of the cluster. Raises `InvalidArgument`, `NotSupported`.

    `only`: name of the one to return.
    """
    system, path = tier.system_of(root)
    complete = []
    for name in _run_names(system, path):
        if only is not None and name != RUN + only:
            continue
        place = f"{path}/{name}/{MANIFEST}"
        with suppress(FileNotFoundError):  # Another process may delete it meanwhile.
            complete.append(parse_run(_read(system, place), place))
    return complete


def _read(system: Any, path: str) -> bytes:
    with system.open_input_stream(path) as file:
        return bytes(file.read())


def _exists(root: str, manifest: RunManifest) -> bool:
    system, path = tier.system_of(f"{directory_of(root, manifest.run)}/{MANIFEST}")
    return bool(system.get_file_info(path).type is pyarrow.fs.FileType.File)


def directory_of(root: str, run: str) -> str:
    return f"{root}/{RUN}{run}"


def delete_run(root: str, run: str) -> None:
    """Delete a run: its manifest first, so that an interruption leaves no incomplete run. Idempotent."""
    system, path = tier.system_of(directory_of(root, run))
    _delete(system.delete_file, f"{path}/{MANIFEST}")
    _delete(system.delete_dir, path)


def _delete(delete: Callable[[str], None], path: str) -> None:
    """Delete a file or directory, unless another process has done so. Raises OSError."""
    with suppress(FileNotFoundError):
        delete(path)


# -- a run's files -----------------------------------------------------------------------------------------------------


class DumpFile:
    """File of metadata that is being written, and its digest."""

    def __init__(self, root: str, run: str) -> None:
        system, path = tier.system_of(directory_of(root, run))
        system.create_dir(path, recursive=True)
        self._file = tier.NewFile(system, path, METADATA)
        self._sum = hashlib.sha256()
        self._size = 0

    def write(self, lines: Sequence[dict[str, Any]]) -> None:
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        self._file.sink.write(data)
        self._sum.update(data)
        self._size += len(data)

    def finish(self) -> FileDigest:
        self._file.finish()
        return FileDigest(self._size, self._sum.hexdigest())

    def discard(self) -> None:
        """Delete an incomplete file. Idempotent."""
        self._file.discard()


def write_contents(root: str, run: str, contents: Contents) -> FileDigest:
    """Write the list of a run's ledgers."""
    system, path = tier.system_of(directory_of(root, run))
    data = pack(contents)
    tier.put(system, path, LEDGERS, data)
    return FileDigest(len(data), hashlib.sha256(data).hexdigest())


def write_manifest(root: str, manifest: RunManifest) -> None:
    """Make the run complete."""
    system, path = tier.system_of(directory_of(root, manifest.run))
    tier.put(system, path, MANIFEST, pack(manifest))


def contents_of(root: str, manifest: RunManifest) -> Contents:
    """Return the list of a run's ledgers. Raises `ReadFailed` if it is not as it was written, `InvalidArgument`."""
    data = _checked(root, manifest.run, LEDGERS, manifest.ledgers)
    return parse_contents(data, f"{directory_of(root, manifest.run)}/{LEDGERS}")


def metadata_of(root: str, manifest: RunManifest) -> Iterator[Item]:
    """Yield the items of a run's metadata. Raises `ReadFailed` if it is not as it was written, `InvalidArgument`."""
    for text in _checked(root, manifest.run, METADATA, manifest.metadata).splitlines():
        line = parse_line(text.decode())
        if line["kind"] not in ("cluster", "end"):
            yield parse_item(line)


def lists_of(named: Mapping[str, bytes]) -> dict[str, Manifest | None]:
    """Return the whole lists of all logs, by name; None: a segment is missing. `named`: records by name.

    Segments may be replaced while the records are read. Raises `MetadataCorrupt`, `NotSupported`.
    """
    lists: dict[str, Manifest | None] = {}
    for record in named:
        if record.startswith(LOGS):
            name = record.removeprefix(LOGS)
            head = parse_manifest(name, named[record])
            if all(segment.name in named for segment in head.segments):
                parts = {one.name: parse_segment(one.name, named[one.name]) for one in head.segments}
                lists[name] = joined(head, parts)
            else:
                lists[name] = None
    return lists


def _checked(root: str, run: str, name: str, digest: FileDigest) -> bytes:
    system, path = tier.system_of(directory_of(root, run))
    try:
        data = _read(system, f"{path}/{name}")
    except OSError as error:
        raise ReadFailed(f"{path}/{name} cannot be read, so choose another run with --backup-run: {error}") from error
    if FileDigest(len(data), hashlib.sha256(data).hexdigest()) != digest:
        raise ReadFailed(
            f"{path}/{name} is not as run {run} wrote it: choose another run with --backup-run; to write and to delete "
            "runs, delete the directory of this one first"
        )
    return data


# -- copies of ledgers -------------------------------------------------------------------------------------------------


def ledger_directory(root: str, ledger_id: int) -> str:
    to, _, cluster = root.rpartition("/")
    return tier.directory_of(to, cluster, ledger_id, "")


def uri_of(root: str, copy: LedgerCopy) -> str:
    """Return the directory of a copy."""
    return ledger_directory(root, copy.ledger) + copy.attempt


def opened_files(root: str, copy: LedgerCopy) -> OffloadedFiles:
    """Return the files of a copy, to be read."""
    label = json.dumps(to_builtins(copy.offload(uri_of(root, copy)))).encode()
    ensembles = ((0, (BookieId("none"),)),)  # A record names bookies; the files are read without them.
    record = LedgerMetadata(
        copy.ledger,
        *(1, 1, 1),
        ensembles,
        LedgerState.CLOSED,
        copy.rows - 1,
        copy.bytes,
        DigestType.CRC32C,
        custom_metadata={LABEL: label},
    )
    return OffloadedFiles(record)


def complete_copy(root: str, record: LedgerMetadata) -> LedgerCopy | None:
    """Return the complete copy of a sealed ledger that an earlier run left; None: there is none with all its files."""
    system, path = tier.system_of(f"{ledger_directory(root, record.ledger_id)}{end_name(record)}")
    if system.get_file_info(path).type is not pyarrow.fs.FileType.File:
        return None
    copy = parse_copy(_read(system, path))
    return copy if copy is not None and copy.is_of(record) and not lost_copies(root, [copy]) else None


def name_copy(root: str, record: LedgerMetadata, copy: LedgerCopy) -> None:
    """Note that a copy is complete."""
    system, path = tier.system_of(ledger_directory(root, copy.ledger).rstrip("/"))
    tier.put(system, path, end_name(record), pack(copy))


def lost_copies(root: str, copies: Iterable[LedgerCopy]) -> set[int]:
    """Return the ledgers of copies that are about to be deleted, or of which a file is missing or has another size."""
    doomed = announced(root)  # before the files are looked up: an announcement ends after its deletions
    system, path = tier.system_of(root)
    lost, named = set(), []
    for copy in copies:
        if (place := _place_of(root, copy)) in doomed:
            lost.add(copy.ledger)
        named += [(copy.ledger, f"{path}/{place}/{name}", size) for name, size in copy.files]
    for at in range(0, len(named), LOOKED_UP):
        part = named[at : at + LOOKED_UP]
        infos = system.get_file_info([file for _, file, _ in part])
        for (ledger_id, _, size), info in zip(part, infos, strict=True):
            if info.type is not pyarrow.fs.FileType.File or info.size != size:
                lost.add(ledger_id)
    return lost


# -- deletion ----------------------------------------------------------------------------------------------------------
# Object stores have no locks. A sweep announces what it is about to delete, then reads which runs are complete. A run
# writes its manifest, then reads what is announced. So at least one of them sees the other, and gives way.


def _place_of(root: str, copy: LedgerCopy) -> str:
    return uri_of(root, copy).removeprefix(f"{root}/")


def announced(root: str) -> set[str]:
    """Return the directories of copies and runs, relative to `root`, that a sweep is about to delete.

    Raises `InvalidArgument`.
    """
    system, path = tier.system_of(f"{root}/{SWEEPS}")
    return {place for places in _announcements(system, path).values() for place in places}


def _announcements(system: Any, path: str) -> dict[str, list[str]]:
    """Return the announced directories by the path of their announcement."""
    notices = {}
    for info in _inside(system, path):
        if info.base_name.startswith("_"):
            continue  # It is being written.
        try:
            notices[info.path] = msgspec.json.decode(_read(system, info.path), type=list[str])
        except FileNotFoundError:
            continue  # Its sweep has ended meanwhile.
        except msgspec.DecodeError as error:
            raise InvalidArgument(
                f"{info.path} is damaged: delete it while no backup runs with --keep ({error})"
            ) from error
    return notices


def delete_leftovers(to: str, cluster: str, before_s: float) -> None:
    """Delete what no complete run has: copies, and runs without a manifest, not written to since `before_s`.

    Copies that `offload` wrote to the same place stay. Other runs may end meanwhile. `before_s`: seconds since 1970.
    """
    root = f"{to}/{cluster}"
    system, path = tier.system_of(root)
    used = _used(root)
    doomed = [
        attempt.path.removeprefix(f"{path}/")
        for attempt in tier.attempts(to, cluster, tier.BACKUP_DIGITS)
        if attempt.changed_s <= before_s
    ]
    doomed += [
        info.base_name
        for info in _inside(system, path)
        if info.base_name.startswith(RUN) and tier.changed_s(system, info) <= before_s
    ]
    if doomed := [place for place in doomed if place not in used]:
        system.create_dir(f"{path}/{SWEEPS}", recursive=True)
        name = f"{uuid.uuid4().hex}.json"
        tier.put(system, f"{path}/{SWEEPS}", name, msgspec.json.encode(doomed))
        used = _used(root)
        for place in doomed:
            if place not in used:
                _delete(system.delete_dir, f"{path}/{place}")
        _delete(system.delete_file, f"{path}/{SWEEPS}/{name}")
    for notice, places in _announcements(system, f"{path}/{SWEEPS}").items():
        # Of a sweep that was killed. While it is new or has something to delete, it may be running.
        own, *infos = system.get_file_info([notice, *(f"{path}/{place}" for place in places)])
        is_over = all(info.type is pyarrow.fs.FileType.NotFound for info in infos)
        if is_over and (own.mtime_ns or 0) / 1e9 <= before_s:
            _delete(system.delete_file, notice)


def _used(root: str) -> set[str]:
    """Return the directories of complete runs and of the copies that they list, relative to `root`."""
    places = set()
    for run in runs(root):
        try:
            places |= {_place_of(root, copy) for copy in contents_of(root, run).copies}
        except ReadFailed:
            if _exists(root, run):
                raise
            continue  # Another process has deleted it meanwhile.
        places.add(RUN + run.run)
    return places
