"""A restart that is measured replays what was added: how much it was, and what becomes of a run where it was not."""

from __future__ import annotations

import contextlib
import pathlib
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from benchmarks.suite import cases, replays
from benchmarks.suite.cases import FIRST_FLUSH_ENTRIES, JOURNAL_ENTRIES, NO_CHECKPOINT
from benchmarks.suite.servers import ApacheCluster, Bookie, Cluster, OurCluster
from benchmarks.suite.stage import QUICK, Contestant, RateLimit

RECORD_SIZE = 1064  # of 1 KiB in a journal, of both systems


class FakeBookie(Bookie):
    """It runs nothing; a start says what it has replayed."""

    replayed = 0

    def start(self) -> None:
        with open(self.log, "a") as file:
            file.write(
                f"I 12:00:00 storage.replayed files=2 entries=3 bytes={self.replayed}\n" if self.replayed else ""
            )

    def wait_writable(self) -> None:
        pass


class FakeStage:
    """One bookie at a time, whose journal a driver fills with zeros. `replays`: share of it."""

    def __init__(self, directory: pathlib.Path, pace: RateLimit, share: float) -> None:
        self.pace, self.filled, self.settings = pace, list[int](), dict[str, object]()
        self._share = share
        self._bookie = FakeBookie("one", 0, directory, [])

    @contextlib.contextmanager
    def single(self, contestant: Contestant, our_settings: Mapping[str, object]) -> Iterator[Cluster]:
        home = self._bookie.home
        cluster = (ApacheCluster if contestant.servers.startswith("Apache") else OurCluster)(home, 1)
        cluster.bookies = [self._bookie]
        self.settings = dict(our_settings)
        yield cluster

    def drive(self, contestant: Contestant, mode: str, *words: str, cluster: Cluster) -> None:
        given = dict(zip(words[::2], words[1::2], strict=True))
        assert (mode, given["--size"]) == ("fill", "1024")
        self.filled.append(int(given["--entries"]))
        size = self.filled[-1] * RECORD_SIZE
        self._bookie.replayed = int(self._share * size)
        journal(
            self._bookie.home,
            {1: sum(self.filled) * RECORD_SIZE},
            (1, sum(self.filled) * RECORD_SIZE - self._bookie.replayed),
        )


def journal(home: pathlib.Path, sizes: dict[int, int], mark: tuple[int, int] | None) -> None:
    """Journal files as Apache's bookie leaves them: sparse here, with zeros behind what was written."""
    for name in ("journal", "ledgers"):
        (home / name / "current").mkdir(parents=True, exist_ok=True)
    for number, size in sizes.items():
        with open(home / "journal" / "current" / f"{number:x}.txn", "wb") as file:
            file.seek(size - 1)
            file.write(b"x")
            file.truncate(size + (3 << 20))
    if mark is not None:
        (home / "ledgers" / "current" / "lastMark").write_bytes(struct.pack(">qq", *mark))


def test_all_behind_the_mark_of_apaches_bookie(tmp_path: pathlib.Path) -> None:
    journal(tmp_path, {0x19A: 500, 0x19B: 5_000_000, 0x19C: 70}, (0x19B, 1_000_000))
    assert replays.size_behind_mark(tmp_path) == 4_000_070
    (tmp_path / "ledgers" / "current" / "lastMark").unlink()
    assert replays.size_behind_mark(tmp_path) == 5_000_570, "without a mark there was no checkpoint"


def test_a_file_of_zeros_holds_nothing(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "zeros"
    path.write_bytes(bytes((1 << 20) + 5))
    assert replays.written_size(path) == 0


def test_our_bookie_says_itself_what_it_has_replayed(tmp_path: pathlib.Path) -> None:
    bookie = FakeBookie("one", 0, tmp_path, [])
    bookie.log.write_text("I 11:00:00 storage.replayed files=1 entries=1 bytes=17\n")
    replay = replays.OurReplay(bookie)
    with pytest.raises(RuntimeError, match="has replayed nothing"):
        replay.size()  # What an earlier start said does not count.
    bookie.replayed = 1234
    bookie.start()
    assert replay.size() == 1234


@pytest.mark.parametrize("servers", ["ours", "Apache: default"])
def test_a_restart_that_replays_too_little_is_a_failed_run(
    servers: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "LEASE_S", 0.0)
    contestant = Contestant("one", servers, "ours")
    good: Any = FakeStage(tmp_path, QUICK, 0.95)
    assert cases.restart(good, contestant)["replayed_mb"] == pytest.approx(0.95 * 57_000 * RECORD_SIZE / 1e6)
    bad: Any = FakeStage(tmp_path, QUICK, 0.85)
    with pytest.raises(RuntimeError, match="only 52 of 61 MB were replayed: there was a checkpoint"):
        cases.restart(bad, contestant)


def test_neither_makes_a_checkpoint_of_what_counts(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "LEASE_S", 0.0)
    filled = {}
    for servers in ("ours", "Apache: default"):
        stage: Any = FakeStage(tmp_path, RateLimit(), 1)
        cases.restart(stage, Contestant("one", servers, "ours"))
        filled[servers] = stage.filled
        assert stage.settings == NO_CHECKPOINT
    assert filled == {"ours": [JOURNAL_ENTRIES], "Apache: default": [FIRST_FLUSH_ENTRIES, JOURNAL_ENTRIES]}
    assert FIRST_FLUSH_ENTRIES * 1024 > 64 << 20
    assert NO_CHECKPOINT["checkpoint_journal_size"] > JOURNAL_ENTRIES * RECORD_SIZE
