"""`bk log mirror` as an operator runs it: a source whose bookies are killed, and what it had that the mirror lacks."""

from __future__ import annotations

import json
import pathlib
import signal

import pytest
from tests.live.command import Done, bk, started
from tests.live.spark_marks import SMALL_BOOKIES

from bookies.admin.cluster import LocalCluster
from bookies.client.blocking import Client

pytestmark = pytest.mark.live


def values(store: Client) -> list[bytes]:
    with store.log("orders").open() as reader:
        return [entry.payload for entry in reader.read()]


def test_a_lost_source_is_continued_and_what_it_had_is_named(tmp_path: pathlib.Path) -> None:
    with (
        LocalCluster(tmp_path / "here", 3, settings=SMALL_BOOKIES, lease_ms=4_000) as here,
        LocalCluster(tmp_path / "there", 3, settings=SMALL_BOOKIES) as there,
    ):
        pair = ["--metadata", here.metadata_uri, "--to", there.metadata_uri]
        back = ["--metadata", there.metadata_uri, "--to", here.metadata_uri]

        def mirror(*words: str) -> Done:
            return bk("log", "mirror", "orders", *words)

        with here.connect() as source, there.connect() as target:
            log = source.log("orders")
            log.create()
            leader = log.lead()
            leader.append_many([b"%d" % number for number in range(100)])
            with started("log", "mirror", "orders", *pair, cwd=tmp_path) as process:
                while mirror(*pair, "--status", "--json").status or not copied(mirror(*pair, "--status", "--json"), 99):
                    assert process.poll() is None
                process.send_signal(signal.SIGKILL)
                process.wait(60)
            shown = bk("log", "show", "orders", metadata=there.metadata_uri).out
            assert "appends are refused: it is a mirror of" in shown
            assert "the source answers for log orders" in mirror(*pair, "--switch-over", "--source-lost").err
            itself = ["--metadata", there.metadata_uri, "--to", there.metadata_uri]
            assert "and the mirror follows" in mirror(*itself, "--switch-over", "--source-lost").err
            last = leader.append_many([b"lost"] * 20)
            for bookie in here.bookies:
                here.kill(bookie.id)
            over = mirror(*pair, "--switch-over", "--source-lost")
            assert over.status == 0, over.err
            with target.log("orders").lead() as leader_there:
                leader_there.append(b"next")
            kept = len(values(target)) - 1
            assert kept in (99, 100)
            assert values(target) == [b"%d" % number for number in range(kept)] + [b"next"]
            unknown = mirror(*pair, "--status", "--json")
            assert (unknown.status, json.loads(unknown.out)[0]["lost"]) == (1, None)
            here.start()
            again = mirror(*pair, "--once")
            assert (again.status, "it is a log of its own" in again.err) == (1, True)
            assert mirror(*pair, "--switch-over").status == 1
            refused = mirror(*back, "--once")
            assert (refused.status, "only it has" in refused.err) == (1, True), refused.err
            status = mirror(*pair, "--status", "--json")
            assert status.status == 1
            [row] = json.loads(status.out)
            assert row["lost"] == [{"ledger": last.ledger_id, "first": kept, "last": 119}]
            assert mirror(*back, "--once", "--drop").status == 0
            assert mirror(*back, "--switch-over").status == 0
            assert values(source) == values(target)
            with source.log("orders").lead() as leader:
                leader.append(b"here again")
            assert bk("ledger", "read", last.ledger_id, "--first", kept, metadata=here.metadata_uri).out.startswith(
                "lost" if kept == 100 else "99"
            )


def copied(status: Done, count: int) -> bool:
    """Whether the mirror has the first entries."""
    [row] = json.loads(status.out)
    return bool(row.get("copied") and row["copied"][1] >= count)
