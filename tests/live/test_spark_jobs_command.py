"""`bk spark` as its users meet it: a process that is interrupted, and goes on where it was."""

from __future__ import annotations

import os
import pathlib
import signal

import pytest
from tests.live.command import Family, started
from tests.live.spark_marks import SMALL_BOOKIES

from bookies.admin.cluster import LocalCluster

pytestmark = [pytest.mark.live, pytest.mark.spark]

TIMEOUT_S = 600  # a machine that does many other things takes minutes to start Java


@pytest.mark.long
def test_an_interrupted_scrub_leaves_nothing_behind_and_goes_on(tmp_path: pathlib.Path) -> None:
    family = Family()
    with LocalCluster(tmp_path / "bk-data", 3, settings=SMALL_BOOKIES) as cluster:
        with cluster.connect() as store:
            for _ in range(6):
                with store.create() as ledger:
                    ledger.append_many([os.urandom(1000) for _ in range(1000)])
        words = ["spark", "scrub", "--metadata", cluster.metadata_uri, "--output", "runs", "--run-id", "x"]
        with started(*words, "--rate", "0.05", cwd=tmp_path, family=family) as process:
            assert process.stderr is not None
            said = ""
            while "scrub, run x: 6 items" not in said:
                line = process.stderr.readline()
                assert line, said
                said += line
            process.send_signal(signal.SIGINT)
            _, rest = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 130, said + rest
        assert "interrupted; finished items are kept: repeat it with run id x" in rest
        family.wait_gone(120)
        with started(*words, cwd=tmp_path, family=family) as process:
            out, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, err
        assert "6 items, 18,000 copies of entries" in out
        assert "no findings" in out
        family.wait_gone(120)
