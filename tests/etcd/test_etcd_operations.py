"""`bk bookie drain`, and bookies that return empty, on a real etcd."""

from __future__ import annotations

import pathlib

import pytest
from tests.etcd.server import etcd_server
from tests.live.emptying import drain_killed_and_resumed
from tests.live.ended import stale_writer_is_refused

pytestmark = pytest.mark.etcd


def test_a_drain_is_killed_and_goes_on(tmp_path: pathlib.Path) -> None:
    with etcd_server(tmp_path) as server:
        drain_killed_and_resumed(tmp_path, f"etcd://{server.address}/cluster")


def test_bookies_are_emptied_behind_a_writer(tmp_path: pathlib.Path) -> None:
    with etcd_server(tmp_path) as server:
        stale_writer_is_refused(tmp_path, f"etcd://{server.address}/cluster")
