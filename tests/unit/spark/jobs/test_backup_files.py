"""Runs of a backup whose files are damaged, or are those of another run. No Spark, no cluster."""

from __future__ import annotations

import pathlib

import pytest

from bookies.errors import InvalidArgument, ReadFailed
from bookies.protocol.ledger.backup import FORMAT, Contents, RunManifest
from bookies.spark.jobs.backup import _confirm
from bookies.spark.jobs.shared import backup_files

NOTHING = Contents((), (), ())


def written(root: str, run: str, ended_ms: int = 1) -> RunManifest:
    file = backup_files.DumpFile(root, run)
    file.write([{"kind": "cluster", "run": run}])
    dump, digest = file.finish(), backup_files.write_contents(root, run, NOTHING)
    manifest = RunManifest(FORMAT, run, "c1", "", 0, ended_ms, 0, 0, 0, 0, dump, digest)
    backup_files.write_manifest(root, manifest)
    return manifest


def test_a_damaged_run_does_not_keep_others_from_being_restored(tmp_path: pathlib.Path) -> None:
    root = f"file://{tmp_path}/c1"
    monday = written(root, "monday")
    written(root, "tuesday", 2)
    (tmp_path / "c1/run-tuesday/manifest.json").write_bytes(b"{")
    assert backup_files.run_of(root, "monday") == monday
    for name in ("tuesday", None, "sunday"):
        with pytest.raises(InvalidArgument, match="or is damaged: read another run with --backup-run"):
            backup_files.run_of(root, name)
    (tmp_path / "c1/run-tuesday/manifest.json").unlink()
    assert backup_files.run_of(root, None) == monday
    with pytest.raises(InvalidArgument, match="has no complete backup run sunday; the latest are monday"):
        backup_files.run_of(root, "sunday")


@pytest.mark.parametrize("name", [backup_files.METADATA, backup_files.LEDGERS])
@pytest.mark.parametrize("is_truncated", [False, True])
def test_a_run_whose_files_are_not_its_own_does_not_exist(
    tmp_path: pathlib.Path, name: str, is_truncated: bool
) -> None:
    root = f"file://{tmp_path}/c1"
    manifest = written(root, "monday")
    _confirm(root, manifest, NOTHING, [])
    path = tmp_path / "c1/run-monday" / name
    path.write_bytes(b"" if is_truncated else b"of another run of this id")
    with pytest.raises(ReadFailed, match="there is no such run: repeat it under a new id"):
        _confirm(root, manifest, NOTHING, [])
    assert backup_files.runs(root) == []
