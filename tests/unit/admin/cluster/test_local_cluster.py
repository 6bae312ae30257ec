"""Which metadata store a local cluster has; what its processes do is in tests/live."""

from __future__ import annotations

import argparse
import json
import pathlib

import pytest

from bookies.admin.cluster import LocalCluster
from bookies.admin.shared.common import metadata_uri
from bookies.errors import ConfigError

ELSEWHERE = "zk://zk1:2181/ledgers"


def test_a_cluster_keeps_to_its_store(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BK_METADATA", raising=False)
    monkeypatch.chdir(tmp_path)
    directory, nothing = tmp_path / "bk-data", argparse.Namespace()
    directory.mkdir()
    assert metadata_uri(nothing) == LocalCluster(directory).metadata_uri == f"file:{directory}/metadata"
    made = LocalCluster(directory, metadata_uri=ELSEWHERE)
    (directory / "cluster.json").write_text(json.dumps(made.describe()))
    assert LocalCluster(directory).metadata_uri == LocalCluster(directory, metadata_uri=ELSEWHERE).metadata_uri
    assert metadata_uri(nothing) == ELSEWHERE
    with pytest.raises(ConfigError, match="belong to the cluster zk://zk1:2181/ledgers, not to etcd://e:2379/c"):
        LocalCluster(directory, metadata_uri="etcd://e:2379/c")
    with pytest.raises(ConfigError, match="uses the embedded store in its own directory, or a ZooKeeper"):
        LocalCluster(tmp_path / "other", metadata_uri="file:/somewhere")


def test_a_file_moves_with_its_directory(tmp_path: pathlib.Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    (before / "cluster.json").write_text(json.dumps(LocalCluster(before).describe()))
    before.rename(after)
    assert LocalCluster(after).metadata_uri == f"file:{after}/metadata"
    (after / "cluster.json").write_text(json.dumps(LocalCluster(after).describe() | {"metadata": 7}))
    with pytest.raises(ConfigError, match="is damaged"):
        LocalCluster(after)


def test_a_full_disk_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / ".cluster.json.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as full:
        LocalCluster(tmp_path, 1)._save()
    assert full.value.filename == str(tmp_path / ".cluster.json.tmp")
    assert not (tmp_path / "cluster.json").exists()
